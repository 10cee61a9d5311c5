"""The page as text: what it says, that it says it safely, and how large it is."""

import json
import math
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats
from tests.reports.synthetic import AGREED, MADE, accuracies, changed, of_nodes, write

import fedrecall
from fedrecall.errors import UserError
from fedrecall.records import Fault, RunFolder
from fedrecall.reports import charts
from fedrecall.reports.markup import Html, tag, text
from fedrecall.reports.report import MOST_SITES, build, default_targets, entries, pairs
from fedrecall.reports.runs import arrange, open_runs

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&amp;{{7*7}}"


class Page(HTMLParser):
    """Tables and figures of a page by the identity of the figure that they are in."""

    def __init__(self, content):
        super().__init__()
        self.tables, self.words, self.tags = {}, [], []
        self._figure = self._cell = None
        self.feed(content)

    def handle_starttag(self, name, attributes):
        found = dict(attributes)
        self.tags.append((name, found))
        if name == "figure":
            self._figure = self.tables.setdefault(found["id"], [])
        elif name == "tr" and self._figure is not None:
            self._figure.append([])
        elif name in ("td", "th") and self._figure is not None:
            self._figure[-1].append("")
            self._cell = True
        elif name not in ("svg", "line"):
            self._cell = None

    def handle_endtag(self, name):
        if name in ("table", "figure"):
            self._cell = None
        if name == "figure":
            self._figure = None

    def handle_data(self, data):
        self.words.append(data)
        if self._cell:
            self._figure[-1][-1] += data

    def column(self, figure, head):
        """The numbers of a column by the words at its top."""
        first, *rows = self.tables[figure]
        return [float(row[first.index(head)]) for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        write(root / f"avg-{seed}", seed=seed)
        write(root / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=seed + 1)
    return root


@pytest.fixture(scope="module")
def page(folder):
    return Page(build(open_runs([folder])))


def test_every_section_is_there(page):
    found = [a["id"] for name, a in page.tags if name == "section"]
    assert found == [
        *("results", "federation", "accuracy", "forgetting", "classes", "local", "targets"),
        *("cost", "confusion", "comparison", "measures", "runs"),
    ]


def test_curves_are_the_mean_over_seeds_with_the_sample_standard_deviation(page):
    runs = np.array([accuracies(s, 0, 6, 3).mean(1) for s in range(3)]) * 100
    assert page.column("accuracy", "round") == [1, 2, 3, 4, 5, 6]
    assert page.column("accuracy", "fedavg: mean") == pytest.approx(runs.mean(0), abs=0.006)
    assert page.column("accuracy", "fedavg: std") == pytest.approx(runs.std(0, ddof=1), abs=0.006)
    assert page.column("accuracy", "fedavg: seed 2") == pytest.approx(runs[2], abs=0.006)


def test_the_drawn_line_goes_through_the_numbers_of_the_table(folder, page):
    content = build(open_runs([folder]))
    figure = content[content.index('<figure id="accuracy"') :]
    low, high = map(float, re.search(r'data-y="([^"]+)"', figure)[1].split())
    drawn = re.search(r'class="line c0"[^>]* d="M([^"]+)"', figure)[1]
    points = [tuple(map(float, p.split())) for p in drawn.split("L")]
    assert [x for x, _ in points] == pytest.approx([0, 200, 400, 600, 800, 1000])
    values = [high - y / 1000 * (high - low) for _, y in points]
    assert values == pytest.approx(page.column("accuracy", "fedavg: mean"), abs=0.05)


def test_heat_maps_have_a_pixel_a_class_and_round(page):
    table = page.tables["classes-0"]
    assert table[0] == ["class \\ round", "1", "2", "3", "4", "5", "6"]
    expected = 100 * np.mean([accuracies(s, 0, 6, 3) for s in range(3)], axis=0).T
    found = [[float(cell) for cell in row[1:]] for row in table[1:]]
    assert np.array(found) == pytest.approx(expected, abs=0.06)


def test_local_accuracy_is_the_mean_over_clients_and_seeds(page):
    assert page.column("in-local-local", "fedntd: mean") == pytest.approx([85.0] * 6)
    assert page.column("out-local-local", "fedntd: mean") == pytest.approx([15.0] * 6)
    assert page.column("measure-measures-divergence-weights", "fedavg: mean") == [4.0] * 6


def test_rounds_and_seconds_to_a_target(folder):
    found = Page(build(open_runs([folder]), targets=[0.3, 0.99])).tables["targets-table"]
    assert found[0] == ["experiment", "30 %: rounds", "30 %: seconds", "99 %: rounds", "99 %: seconds"]
    rounds = [int(np.argmax(accuracies(s, 0, 6, 3).mean(1) >= 0.3)) + 1 for s in range(3)]
    assert found[1][1] == f"{np.mean(rounds):.1f} ± {np.std(rounds, ddof=1):.1f}"
    # Two chains of one client each: a round waits for the slower one, 1.5 s.
    assert found[1][2] == f"{1.5 * np.mean(rounds):.2f} ± {1.5 * np.std(rounds, ddof=1):.2f}"
    assert found[1][3:] == ["not reached", "not reached"]


def test_targets_that_some_seeds_miss_say_so(tmp_path):
    for seed in (0, 1):
        write(tmp_path / str(seed), seed=seed)
    between = sorted(accuracies(s, 0, 6, 3).mean(1).max() for s in (0, 1))
    found = Page(build(open_runs([tmp_path]), targets=[float(np.mean(between))])).tables["targets-table"]
    assert found[1][1].endswith("(1 of 2 seeds)")


def test_default_targets_are_round_numbers_that_were_reached(folder):
    groups = arrange(open_runs([folder]))
    best = max(accuracies(s, b, 6, 3).mean(1).max() for s in range(3) for b in (0, s + 1))
    found = default_targets(groups)
    assert found[-1] <= best < found[-1] + 0.1
    assert all(math.isclose(round(t * 20), t * 20) for t in found)


def test_costs(page):
    sent, spent = page.tables["cost-bytes"][1], page.tables["cost-seconds"][1]
    # 6 rounds of 2 visits, 2,000 bytes down and 3,000 up a round.
    assert sent == ["fedavg", "1,000", "1,500", "30,000", "40", "6"]
    assert spent[1:6] == ["6", "9.00 ± 0.00", "15.00 ± 0.00", "12.00 ± 0.00", "3.00 ± 0.00"]
    assert spent[6] == "1.50 ± 0.00"


def test_paired_comparison(page):
    table = page.tables["comparison-accuracy"]
    # Cell by cell: one pair a seed; fedntd is 0.05, 0.10, 0.15 better by construction.
    assert table[1][:3] == ["fedntd − fedavg", "3", "+10.00"]
    assert table[1][3].startswith("[+5.00")
    assert table[1][4:] == ["3 / 0 / 0", "", "none: needs 6 pairs"]


def test_a_difference_goes_where_its_experiment_is_switched_off(folder):
    content = build(open_runs([folder]))
    for key in ("accuracy", "forgetting"):
        figure = content[content.index(f'<figure id="comparison-{key}"') :]
        rows = figure[figure.index("<tbody>") : figure.index("</table>")].split("<tr")[1:]
        assert [row.partition(">")[0] for row in rows] == [' class="g1"']


def test_a_p_value_has_its_test_named(tmp_path):
    for seed in range(7):
        write(tmp_path / f"avg-{seed}", seed=seed, rounds=2)
        write(tmp_path / f"ntd-{seed}", seed=seed, rounds=2, algorithm="fedntd", better=0.1 * (seed + 1))
    row = Page(build(open_runs([tmp_path]))).tables["comparison-accuracy"][1]
    p = stats.wilcoxon([0.1 * (seed + 1) for seed in range(7)]).pvalue
    assert row[5:] == [f"{p:.3g}", "Wilcoxon signed-rank, two-sided"]


def test_only_seeds_that_both_have_are_paired(tmp_path):
    for name, algorithm, seeds in (("avg", "fedavg", (0, 1, 2)), ("ntd", "fedntd", (1, 2, 3))):
        for seed in seeds:
            write(tmp_path / f"{name}-{seed}", algorithm=algorithm, seed=seed)
    ((_, _, _, shared),) = pairs(arrange(open_runs([tmp_path])), None)
    assert [(a.seed, b.seed) for a, b in shared] == [(1, 1), (2, 2)]


def test_runs_of_different_lengths_are_compared_at_their_ends(tmp_path):
    write(tmp_path / "long", rounds=6)
    write(tmp_path / "short", rounds=3)
    row = Page(build(open_runs([tmp_path]))).tables["comparison-accuracy"][1]
    ends = [100 * accuracies(0, 0, rounds, 3).mean(1)[-1] for rounds in (6, 3)]
    assert row[:3] == ["fedavg (rounds=3) − fedavg (rounds=6)", "1", f"{ends[1] - ends[0]:+.2f}"]


def test_a_run_that_goes_on_is_compared_at_a_round_that_all_evaluated(tmp_path):
    for seed in (0, 1):
        write(tmp_path / f"avg-{seed}", seed=seed)
        write(tmp_path / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=1, played=4 + 2 * seed)
    found = Page(build(open_runs([tmp_path])))
    row = found.tables["comparison-accuracy"][1]
    at = [accuracies(s, 1, 6, 3).mean(1)[3] - accuracies(s, 0, 6, 3).mean(1)[3] for s in (0, 1)]
    assert row[:3] == ["fedntd − fedavg, after round 4", "2", f"{100 * np.mean(at):+.2f}"]
    assert "the last round that all of them evaluated" in " ".join(found.words)


def test_a_finished_run_whose_last_round_nobody_tested_is_compared_at_one_that_both_tested(tmp_path):
    write(tmp_path / "avg")

    def untested(record):
        if record["round"] == 6:
            del record["accuracy"]
            record["untested"] = ["nobody evaluated the model of round 6: no node has test examples"]

    changed(write(tmp_path / "ntd", algorithm="fedntd", better=1), untested)
    content = build(open_runs([tmp_path]))
    at = accuracies(0, 1, 6, 3).mean(1)[4] - accuracies(0, 0, 6, 3).mean(1)[4]
    row = Page(content).tables["comparison-accuracy"][1]
    assert row[:3] == ["fedntd − fedavg, after round 5", "1", f"{100 * at:+.2f}"]
    assert "ntd was tested by nobody in round 6." in content
    assert "On the whole test split" not in content


def test_costs_are_of_the_rounds_that_all_runs_of_an_experiment_have(tmp_path):
    for seed in (0, 1):
        write(tmp_path / f"run-{seed}", seed=seed, played=3 + 3 * seed)
    header, row = Page(build(open_runs([tmp_path]))).tables["cost-seconds"]
    told = dict(zip(header, row, strict=True))
    assert told["rounds"] == "3"
    assert told["rounds here"] == "6.00 ± 0.00"  # 2 s each, of the longer run the first three
    assert told["all clients"] == "7.50 ± 0.00"


def test_a_seed_counts_once_and_the_page_says_what_is_left_out(tmp_path):
    for algorithm in ("fedavg", "fedntd"):
        made = write(tmp_path / algorithm, algorithm=algorithm)
        shutil.copytree(made, tmp_path / f"{algorithm}-copy")
    found = Page(build(open_runs([tmp_path, tmp_path / "fedavg"])))
    assert found.tables["comparison-accuracy"][1][1] == "1"
    assert [row[1] for row in found.tables["results-table"][1:]] == ["1", "1"]
    said = " ".join(found.words)
    assert "fedavg-copy is the same experiment with the same seed as fedavg and is left out" in said


def test_groups_are_compared_within_their_setup_or_with_a_named_baseline(tmp_path):
    for partition in ("shards:2", "iid"):
        for algorithm in ("fedavg", "fedntd", "fedprox"):
            write(tmp_path / f"{algorithm}-{partition[:3]}", algorithm=algorithm, partition=partition)
    groups = arrange(open_runs([tmp_path]))
    plain = {g.label: base.label for base, _, g, _ in pairs(groups, None)}
    assert plain == {
        "fedntd (iid)": "fedavg (iid)",
        "fedntd (shards:2)": "fedavg (shards:2)",
        "fedprox (iid)": "fedavg (iid)",
        "fedprox (shards:2)": "fedavg (shards:2)",
    }
    named = {g.label: base.label for base, _, g, _ in pairs(groups, "fedntd")}
    assert named["fedavg (iid)"] == "fedntd (iid)"
    with pytest.raises(UserError, match="fedntd"):
        build(open_runs([tmp_path]), baseline="fedntf")


def test_what_was_not_measured_is_not_shown(tmp_path):
    run = write(tmp_path / "run")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps({k: v for k, v in r.items() if k != "measures"}) for r in records]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = Page(build(open_runs([run])))
    sections = [a["id"] for name, a in found.tags if name == "section"]
    assert not {"local", "confusion", "comparison", "measures"} & set(sections)


def test_runs_that_are_not_finished_are_told_apart(tmp_path):
    write(tmp_path / "going", played=4)
    write(tmp_path / "idle", played=0, algorithm="fedntd")
    found = Page(build(open_runs([tmp_path])))
    said = " ".join(found.words)
    assert "going stands at round 4 of 6" in said
    assert "idle has no evaluated round yet and is left out" in said
    assert found.column("accuracy", "round") == [1, 2, 3, 4]
    with pytest.raises(UserError, match="nothing to report"):
        build(open_runs([tmp_path / "idle"]))


def failed(run, number, reason="client 3 gave NaN. The model before it is kept."):
    RunFolder(run).fail(Fault(number, reason))
    return run


def test_a_seed_that_failed_is_left_out_and_does_not_shorten_the_others(tmp_path):
    for seed in (0, 1, 2):
        write(tmp_path / f"avg-{seed}", seed=seed)
        write(tmp_path / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=1, played=2 if seed == 1 else 6)
    failed(tmp_path / "ntd-1", 3)
    found = Page(build(open_runs([tmp_path])))
    rows = {row[0]: row for row in found.tables["results-table"][1:]}
    assert rows["fedavg"][1:3] == ["3", "6"]
    assert rows["fedntd"][1:3] == ["2 of 3, 1 failed", "6"]
    ends = [100 * accuracies(seed, 1, 6, 3).mean(1)[-1] for seed in (0, 2)]
    assert rows["fedntd"][3] == f"{np.mean(ends):.2f} ± {np.std(ends, ddof=1):.2f}"
    assert found.column("accuracy", "round") == [1, 2, 3, 4, 5, 6]
    assert found.tables["comparison-accuracy"][1][:2] == ["fedntd − fedavg", "2"]
    said = " ".join(found.words)
    assert "Failed:  ntd-1 failed at round 3 of 6: client 3 gave NaN. The model before it is kept. " in said
    assert "Not finished" not in said
    assert "ntd-1  · failed at round 3 of 6" in said


def test_an_experiment_whose_seeds_all_failed_is_shown_as_far_as_it_went_and_not_compared(tmp_path):
    write(tmp_path / "avg")
    failed(write(tmp_path / "ntd", algorithm="fedntd", played=2), 3)
    failed(write(tmp_path / "early", algorithm="fedntd", seed=1, played=0), 1)
    failed(write(tmp_path / "prox", algorithm="fedprox", played=0), 1)
    found = Page(build(open_runs([tmp_path])))
    rows = {row[0]: row[1:3] for row in found.tables["results-table"][1:]}
    assert rows == {"fedavg": ["1", "6"], "fedntd": ["1 of 2, all failed", "2"]}
    assert "comparison-accuracy" not in found.tables
    said = " ".join(found.words)
    for name, number in (("ntd", 3), ("early", 1), ("prox", 1)):
        assert f"{name} failed at round {number} of 6: client 3 gave NaN" in said
    assert "Left out" not in said


def test_a_table_says_of_unfinished_runs_what_the_page_does(tmp_path):
    for seed, played in enumerate((6, 5, 2)):
        write(tmp_path / f"avg-{seed}", seed=seed)
        write(tmp_path / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=1, played=played)
    avg, ntd = entries(open_runs([tmp_path]))
    assert (avg.rounds, avg.unfinished, avg.behind, avg.after) == (6, False, 0, None)
    assert (ntd.rounds, ntd.planned, ntd.behind, ntd.after) == (5, 6, 1, 5)
    at = [accuracies(s, 1, 6, 3).mean(1)[4] - accuracies(s, 0, 6, 3).mean(1)[4] for s in (0, 1)]
    assert ntd.difference.mean == pytest.approx(np.mean(at))
    label = Page(build(open_runs([tmp_path]))).tables["comparison-accuracy"][1][0]
    assert label == "fedntd − fedavg, after round 5"


def test_of_seeds_that_all_failed_those_that_failed_early_are_counted_too(tmp_path):
    for seed, played in enumerate((4, 0, 1, 4)):  # of the second there is no round, of the third too few
        failed(write(tmp_path / str(seed), seed=seed, played=played), played + 1)
    found = Page(build(open_runs([tmp_path])))
    assert found.tables["results-table"][1][1:3] == ["2 of 4, all failed", "4"]
    (entry,) = entries(open_runs([tmp_path]))
    assert (len(entry.accuracy), entry.failed) == (0, 4)


def test_where_the_first_experiment_failed_others_are_compared_with_the_next(tmp_path):
    failed(write(tmp_path / "1", played=2), 3)
    for name, algorithm in (("2", "fedntd"), ("3", "fedprox")):
        write(tmp_path / name, algorithm=algorithm)
    ((base, _, group, _),) = pairs(arrange(open_runs([tmp_path])), None)
    assert (base.algorithm, group.algorithm) == ("fedntd", "fedprox")


def test_a_seed_that_failed_and_was_made_anew_is_the_new_one(tmp_path):
    failed(write(tmp_path / "a", played=5), 6)
    write(tmp_path / "b", played=1)
    (group,) = arrange(open_runs([tmp_path]))
    assert [run.name for run in group.runs] == ["b"]


def test_a_seed_that_has_just_begun_does_not_shorten_the_others(tmp_path):
    for seed, played in ((0, 6), (1, 3), (2, 2)):
        write(tmp_path / f"avg-{seed}", seed=seed, played=played)
    found = Page(build(open_runs([tmp_path])))
    assert found.tables["results-table"][1][1:3] == ["3", "2"]  # half of the three are at round 3
    assert "avg-2 stands at round 2 of 6: the curves and numbers of its experiment end" in " ".join(
        found.words
    )
    write(tmp_path / "avg-3", seed=3)
    found = Page(build(open_runs([tmp_path])))
    assert found.tables["results-table"][1][1:3] == ["3", "3"]  # half of the four are at round 6
    said = " ".join(found.words)
    assert "avg-2 is only at round 2 and would cut short the other seeds of its experiment." in said


def test_runs_that_were_looked_at_after_other_rounds_are_said_not_to_compare(tmp_path):
    write(tmp_path / "runs" / "a")
    other = write(tmp_path / "runs" / "b", algorithm="fedntd")
    assert "Not alike" not in build(open_runs([tmp_path / "runs"]))
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:4]))
    assert "Not alike" not in build(open_runs([tmp_path / "runs"]))  # as far as it is
    (other / "metrics.jsonl").write_text("".join(lines))
    changed(other, lambda record: record["round"] in (1, 2, 4) and record.pop("accuracy"))
    said = build(open_runs([tmp_path / "runs"]))
    assert "runs were evaluated every round or every 3 rounds up to round 3, then every 2 rounds: " in said


def test_a_round_that_was_evaluated_for_being_the_last_is_not_looked_back_on(tmp_path):
    for name, ends in (("straight", (5,)), ("extended", (3, 5))):
        write(tmp_path / name, algorithm="fedntd" if len(ends) > 1 else "fedavg", rounds=5)

        def as_asked(record, ends=ends):
            if record["round"] % 2 and record["round"] not in ends:
                del record["accuracy"]
            elif record["round"] % 2:
                record["off_grid"] = True

        changed(tmp_path / name, as_asked)
    assert "Not alike" not in build(open_runs([tmp_path]))


def test_what_was_promised_is_beside_what_was_reached(tmp_path):
    write(tmp_path / "open")
    assert "epsilon" not in Page(build(open_runs([tmp_path]))).tables["results-table"][0]
    for seed, spent in enumerate((3.0, 4.5)):
        run = write(tmp_path / f"private{seed}", algorithm="fedntd", seed=seed)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        told = [{**line, "epsilon": spent * line["round"] / 6, "delta": 1e-5} for line in lines]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    header, *rows = Page(build(open_runs([tmp_path]))).tables["results-table"]
    assert header[-1] == "epsilon"
    assert sorted(row[-1] for row in rows) == ["4.50 at 1e-05", "none"]  # the weakest promise of the seeds


def test_a_promise_is_shown_between_two_evaluations(tmp_path):
    def tell(record):
        if record["round"] == 4:
            record |= {"epsilon": 2.5, "delta": 1e-5}
        else:
            del record["accuracy"]

    changed(write(tmp_path / "run", played=5), tell)
    header, row = Page(build(open_runs([tmp_path]))).tables["results-table"]
    assert (header[-1], row[-1]) == ("epsilon", "2.50 at 1e-05")


@pytest.mark.parametrize(
    "told", [{"epsilon": 0.1}, {"epsilon": None, "delta": 1e-5}, {"epsilon": 0.1, "delta": "none"}], ids=str
)
def test_what_else_an_algorithm_calls_epsilon_is_no_promise(told, tmp_path):
    changed(write(tmp_path / "run"), lambda record: record.update(told))
    assert "epsilon" not in Page(build(open_runs([tmp_path]))).tables["results-table"][0]


def test_damaged_records_are_not_taken_for_none(tmp_path):
    write(tmp_path / "sound")
    run = write(tmp_path / "damaged")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "{}", *lines[2:]]) + "\n")
    with pytest.raises(UserError, match=r"damaged/metrics\.jsonl, line 2: not a round's record"):
        build(open_runs([tmp_path]))


def test_numbers_that_are_none_break_the_line_and_nothing_else(tmp_path):
    run = write(tmp_path / "run")
    content = (run / "metrics.jsonl").read_text().replace('"loss": ', '"loss": NaN, "was": ', 2)
    (run / "metrics.jsonl").write_text(content)
    found = Page(build(open_runs([run])))
    assert found.tables["loss"][1][1] == ""
    assert "nan" not in " ".join(a.get("d", "") for _, a in found.tags).lower()


def test_other_peoples_text_is_text(tmp_path):
    made = {**MADE, "command": EVIL, "cpu": EVIL, "versions": {EVIL: EVIL}}
    run = write(tmp_path / "x", made=made, names=[EVIL, "b", "c"])
    config = json.loads((run / "config.json").read_text())
    config["algorithm"] = {"name": EVIL}
    config["model"] = EVIL
    (run / "config.json").write_text(json.dumps(config))
    runs = open_runs([run])
    runs[0].name = EVIL
    content = build(runs, title=EVIL)
    found = Page(content)
    assert [name for name, _ in found.tags].count("script") == 1
    assert not [a for name, a in found.tags if name == "img" and not a["src"].startswith("data:")]
    assert not [key for _, a in found.tags for key in a if key.startswith("on")]
    assert EVIL in "".join(found.words)
    assert content.count("<script") == 1


def test_the_page_refers_to_nothing_outside(folder):
    content = re.sub(r"<script>.*</script>", "", build(open_runs([folder])), flags=re.DOTALL)
    assert not re.search(r"""(src|href)="(?!data:|#)""", content)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", content.replace("http-equiv", ""))


def test_the_same_runs_make_the_same_page(folder):
    assert build(open_runs([folder])) == build(open_runs([folder]))


def test_ten_runs_of_200_rounds_stay_below_3_megabytes(tmp_path):
    for seed in range(5):
        for algorithm in ("fedavg", "fedntd"):
            size = {"rounds": 200, "clients": 100, "classes": 10}
            write(tmp_path / f"{algorithm}-{seed}", algorithm=algorithm, seed=seed, **size)
    seeds = len(build(open_runs([tmp_path])).encode())
    for k, path in enumerate(sorted(tmp_path.glob("*"))):  # ten experiments of one seed each
        config = json.loads((path / "config.json").read_text())
        config["algorithm"], config["seed"] = {"name": "fedprox", "mu": k / 10}, 0
        (path / "config.json").write_text(json.dumps(config))
    alone = len(build(open_runs([tmp_path])).encode())
    assert max(seeds, alone) < 3e6


def test_long_runs_and_many_classes_are_thinned(tmp_path):
    write(tmp_path / "long", rounds=1500, classes=60)
    found = Page(build(open_runs([tmp_path])))
    rounds = found.column("accuracy", "round")
    assert len(rounds) <= charts.MOST_POINTS
    assert rounds[-1] == 1500
    assert len(found.tables["classes-0"][0]) * 60 < 45_000


@pytest.mark.parametrize("count", [1, 2, 399, 400, 401, 5000])
def test_thinning_keeps_the_end_and_an_even_step(count):
    places = charts.thin(count)
    assert places[-1] == count - 1
    assert len(places) <= charts.MOST_POINTS
    assert len(set(np.diff(places))) <= 1
    if count <= charts.MOST_POINTS:
        assert places.tolist() == list(range(count))


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [0, 100],
        [3, 3.0001],
        [15, 15 + 1e-14],
        [0, 0],
        [0, -7e-18],
        [-0.2, 0.83],
        [1e-9, 2e-9],
        [1e6, 3.7e8],
    ],
)
def test_axes_hold_their_values_between_round_numbers(values):
    low, high, ticks = charts._nice(np.array(values))
    assert low <= min(values) <= max(values) <= high
    assert 2 <= len(ticks) <= 9
    step = ticks[1] - ticks[0]
    assert f"{step:e}"[0] in "125"


def test_a_line_is_broken_where_a_value_is_missing():
    assert charts._path(["0", "1", "2", "3"], ["5", "nan", "6", "7"]) == "M0 5h1M2 6L3 7"


def test_escaping():
    assert tag("p", "<b>", Html("<i>"), None, class_="a'\"", hidden=True, id=None) == (
        '<p class="a&#x27;&quot;" hidden>&lt;b&gt;<i></p>'
    )
    assert text("&", 3) == "&amp;3"
    assert tag("path", d="M0 0") == '<path d="M0 0"/>'


def test_bad_targets_are_refused(folder):
    with pytest.raises(UserError, match="60"):
        build(open_runs([folder]), targets=[60])


def test_a_federation_is_not_called_by_where_its_class_lies(tmp_path):
    of_nodes(tmp_path / "a", AGREED)
    of_nodes(tmp_path / "b", {**AGREED, "secure": "masks"})
    page = build(open_runs([tmp_path]))
    title = re.search("<title>(.*)</title>", page)[1]
    assert re.fullmatch(
        r"fedavg on nodes.*data \(1x8x8, 3 classes, 150 examples, digest [0-9a-f]{8}\)", title
    )
    assert "fedavg (secure=masks)" in page
    assert "Twice" not in page


def of_sites(names, accuracy):
    """As a record has sites of this accuracy."""
    numbers = {"examples": [10 * (1 + i) for i in range(len(names))], "accuracy": list(accuracy)}
    return {"sites": list(names), **numbers, "balanced_accuracy": [a / 2 for a in accuracy]}


def with_sites(run, told, at=lambda record: record.setdefault("measures", {})):
    """The run with ``told(round)`` in the records of the rounds for which that is something."""
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if found := told(record["round"]):
            at(record)["sites"] = found
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return run


def test_sites_are_shown_worst_first_whoever_recorded_them(tmp_path):
    names = ["north", "south", "<b>west"]
    for seed, more in ((0, 0.0), (1, 0.1)):
        run = write(tmp_path / f"asked/{seed}", seed=seed)
        with_sites(run, lambda t, m=more: t % 2 == 0 and of_sites(names, [0.9, 0.3 + m + t / 100, 0.6 + m]))
    page = Page(build(open_runs([tmp_path / "asked"])))
    assert page.column("worst-site", "round") == [2, 4, 6]
    assert page.column("worst-site", "fedavg: mean") == pytest.approx([37, 39, 41])
    spread = f"± {100 * np.std([0, 0.1], ddof=1):.2f}"
    head, *rows = page.tables["sites-table-0"]
    assert head == ["site", "test examples", "accuracy (%)", "balanced accuracy (%)"]
    assert [row[0] for row in rows] == ["south", "<b>west", "north"]
    assert rows[0][1:3] == ["20 ± 0", f"41.00 {spread}"]
    assert rows[2][3] == "45.00 ± 0.00"
    heads = [row[0] for row in page.tables["sites-0"]]
    assert heads == ["site \\ round", "south", "<b>west", "north"]
    assert [float(v) for v in page.tables["sites-0"][1][1:]] == pytest.approx([37, 39, 41])
    assert "measures-sites" not in build(open_runs([tmp_path / "asked"]))  # once is enough

    clients = ["client 0", "client 1"]
    nodes = of_nodes(tmp_path / "nodes", AGREED)
    with_sites(
        nodes,
        lambda t: of_sites(clients[: 1 if t == 5 else 2], [0.8, 0.4][: 1 if t == 5 else 2]),
        lambda r: r,
    )
    page = Page(build(open_runs([nodes])))
    assert [row[:3] for row in page.tables["sites-table-0"][1:]] == [
        ["client 1", "20", "40.00"],
        ["client 0", "10", "80.00"],
    ]
    assert page.tables["sites-0"][1] == ["client 1", *["40.0"] * 4, "", "40.0"]  # it was not there in round 5


def test_where_clients_have_models_of_their_own_theirs_are_beside_the_global_one(tmp_path):
    own = {"own_accuracy": [None, 0.9]}
    with_sites(write(tmp_path / "run"), lambda t: of_sites(["north", "south"], [0.25, 0.5]) | own)
    page = Page(build(open_runs([tmp_path / "run"])))
    head, *rows = page.tables["sites-table-0"]
    assert head[-1] == "of its client's own model (%)"
    assert [(row[0], row[-1]) for row in rows] == [("south", "90.00"), ("north", "")]  # where nobody is
    assert page.column("worst-site", "fedavg") == [90] * 6
    assert page.tables["sites-0"][1:] == [["south", *["90.0"] * 6], ["north", *[""] * 6]]
    own = {"own_accuracy": [0.9, 0.4]}
    with_sites(write(tmp_path / "both"), lambda t: of_sites(["north", "south"], [0.25, 0.5]) | own)
    page = Page(build(open_runs([tmp_path / "both"])))
    assert [row[0] for row in page.tables["sites-table-0"][1:]] == ["south", "north"]  # the worst first
    assert [row[1] for row in page.tables["sites-0"][1:]] == ["40.0", "90.0"]


def test_seeds_that_tested_clients_in_unlike_ways_are_not_averaged(tmp_path):
    def fares(run, told):
        changed(run, lambda r: r["measures"].update(fairness=told(r["round"])))

    fares(write(tmp_path / "0", seed=0), lambda t: {"mean": 0.5})
    fares(write(tmp_path / "1", seed=1), lambda t: {"mean": 0.4} if t < 3 else {"at_home": {"mean": t / 10}})
    fares(write(tmp_path / "2", seed=2), lambda t: {"at_home": {"mean": t / 5}})
    html = build(open_runs([tmp_path]))
    page = Page(html)
    for way, shown in (
        ("", [45.0, 45.0, *[""] * 4]),
        ("-at-home", ["", "", *(15.0 * t for t in range(3, 7))]),
    ):
        head, *rows = page.tables[f"measure-measures-fairness{way}-mean"]
        found = [row[head.index("fedavg: mean")] for row in rows]
        assert [v and 100 * float(v) for v in found] == pytest.approx(shown)
    assert html.count("fedavg: 2 of 3 seeds.") == 2


def test_of_many_sites_the_worst_are_shown(tmp_path):
    names = [f"writer {i}" for i in range(300)]
    run = with_sites(write(tmp_path / "run"), lambda t: of_sites(names, [1 - i / 300 for i in range(300)]))
    page = build(open_runs([run]))
    rows = Page(page).tables["sites-table-0"][1:]
    assert [row[0] for row in rows] == [f"writer {i}" for i in range(299, 299 - MOST_SITES, -1)]
    assert f"the worst {MOST_SITES} of 300 sites" in page


def test_an_accuracy_of_a_part_of_the_nodes_is_not_of_the_whole_test_split(tmp_path):
    assert "On the whole test split" in build(open_runs([write(tmp_path / "all")]))
    path = of_nodes(tmp_path / "run", AGREED) / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for number in (5, 6):
        records[number - 1]["untested"] = [f"client 2, evaluation of round {number}: gone"]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    page = build(open_runs([tmp_path / "run"]))
    assert "run was tested without client 2 in rounds 5 to 6." in page
    assert "On the whole test split" not in page


def test_what_accuracy_is_of_is_said_where_clients_may_keep_layers(tmp_path):
    settings = {"dataset": "synthetic:3,train=90,test=30", "model": "mlp:4", "clients": 3, "sample": 2}
    fedrecall.run(tmp_path / "per", algorithm="examples/fedper.py:FedPer", rounds=1, **settings)
    own = "examples/fedmean.py:FedMean"  # whose clients keep nothing
    other = "examples/fedsparse.py:FedSparse"  # whose clients keep something else
    others = {"mean": own, "sparse": other, "avg": "fedavg", "scaffold": "scaffold"}
    for name, algorithm in others.items():
        fedrecall.run(tmp_path / name, algorithm=algorithm, rounds=1, **settings)
    said = "accuracy, loss and forgetting are of what travels"
    page = build(open_runs([tmp_path]))
    caption = next(part for part in page.split("</figcaption>") if "headline" in part)
    assert f"Clients of fedper.py:FedPer may keep layers of their own: {said}" in caption
    assert "--measure fairness,personal" in caption
    assert said not in build(open_runs([tmp_path / name for name in others]))
