"""What the page says of runs that differ in everything is what they recorded."""

import base64
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tests.reports.synthetic import accuracies, changed, write
from tests.reports.test_report import Page

from fedrecall.errors import UserError
from fedrecall.measures.accuracy import credibility
from fedrecall.reports.report import MOST_FEDERATIONS, build, default_targets, pairs
from fedrecall.reports.runs import arrange, open_runs
from fedrecall.reports.statistics import bootstrap_interval


def spread(values, scale=1.0, digits=2):
    values = scale * np.array(values)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def test_results_are_of_the_last_round_and_of_each_runs_best(tmp_path):
    told = {0: [0.2, 0.7, 0.5], 1: [0.3, 0.4, 0.6], 2: [0.9, 0.1, 0.7]}
    found = []
    for seed, accuracy in told.items():

        def change(record, accuracy=accuracy, seed=seed):
            i = record["round"] - 1
            record |= {"accuracy": accuracy[i], "loss": 2 - accuracy[i] ** 2}
            record |= {"forgetting": 0.01 * (seed + 1) * (i + 1)}
            record["seconds"]["train"] = 1.0 + seed * i

        found.append(changed(write(tmp_path / str(seed), rounds=3, seed=seed), change))
    header, row = Page(build(open_runs([tmp_path]))).tables["results-table"]
    said = dict(zip(header, row, strict=True))
    assert (said["seeds"], said["rounds"]) == ("3", "3")
    assert said["accuracy, last round (%)"] == spread([0.5, 0.6, 0.7], 100)
    assert said["accuracy, best round (%)"] == spread([0.7, 0.6, 0.9], 100)
    for name, key in (("forgetting", "forgetting"), ("loss", "loss")):
        assert said[name] == spread([r[-1][key] for r in found], digits=4)
    assert said["training (s)"] == spread([3.0, 6.0, 9.0], digits=1)


@pytest.mark.parametrize(
    ("accuracy", "targets"),
    [
        ([0.1, 0.6], [0.3, 0.4, 0.5, 0.6]),
        ([0.3, 0.1], [0.15, 0.2, 0.25, 0.3]),
        ([0.12, float("nan")], [0.05, 0.1]),
        ([0.03, 0.01], [0.03]),
        ([15 / 360], [0.0416]),  # 0.0417 no run reached
        ([1.0], [0.7, 0.8, 0.9, 1.0]),
    ],
    ids=str,
)
def test_targets_are_round_numbers_that_the_best_run_reached(accuracy, targets):
    runs = [SimpleNamespace(series=lambda key, a=a: np.array(a)) for a in (accuracy, [0.01])]
    assert default_targets([SimpleNamespace(runs=runs)]) == targets


def test_targets_are_shares_in_their_order(tmp_path):
    runs = open_runs([write(tmp_path / "x")])
    header = Page(build(runs, targets=[0.99, 0.3, 1.0])).tables["targets-table"][0]
    assert [h for h in header if h.endswith("rounds")] == ["30 %: rounds", "99 %: rounds", "100 %: rounds"]
    for target in (0.0, -0.1, 1.01):
        with pytest.raises(UserError, match=re.escape(f"target {target:g}: give a share in (0, 1]")):
            build(runs, targets=[0.5, target])


def test_of_each_setup_a_federation_is_drawn_before_others_of_one(tmp_path):
    for partition in ("iid", "shards:2"):
        for seed in range(4):
            run = write(tmp_path / f"{partition[:3]}-{seed}", seed=seed, partition=partition)
            if partition == "iid":
                held = json.loads((run / "partition.json").read_text())
                held["meta"]["counts"] = [[4 + seed] * 3] * 5
                (run / "partition.json").write_text(json.dumps(held))
    content = build(open_runs([tmp_path]))
    drawn = re.findall(r'<figure id="(federation-\d)-partition"|<section id="federation"', content)
    heads = re.findall(r"(?:<p>|<summary>)([^<>]*, 5 clients: [^<>]*)<", content)
    assert len([d for d in drawn if d]) == MOST_FEDERATIONS == len(heads)
    of = [head.rpartition(": ")[2] for head in heads]
    assert {name[:3] for name in of[:2]} == {"iid", "sha"}
    assert of[0][-1] == of[1][-1] == "0"
    (rest,) = re.findall(r"Not drawn: ([^<]*)\.<", content)
    assert sorted([*of, *(head.rpartition(": ")[2] for head in rest.split("; "))]) == sorted(
        f"{p}-{s}" for p in ("iid", "sha") for s in range(4)
    )


def test_a_federation_is_said_in_numbers_and_the_servers_share_too(tmp_path):
    run = write(tmp_path / "x", clients=4, classes=2)
    held = json.loads((run / "partition.json").read_text())
    counts = np.array([[1, 2], [0, 7], [10, 1000], [5, 5]])
    held["meta"] |= {"counts": counts.tolist(), "auxiliary": 1234}
    (run / "partition.json").write_text(json.dumps(held))
    found = Page(build(open_runs([run])))
    said = " ".join(found.words)
    assert "1,030 examples; a client holds 3 to 1,010, the median is 8. The server holds 1,234 more" in said
    table = found.tables["federation-0-partition"]
    assert [[int(cell) for cell in row[1:]] for row in table[1:]] == counts.T.tolist()
    assert [row[0] for row in table[1:]] == ["class 0", "class 1"]
    assert found.column("federation-0-sizes", "examples") == counts.sum(1).tolist()


def test_accuracy_is_beside_the_seconds_that_it_took(tmp_path):
    for seed in (0, 1):

        def change(record, seed=seed):
            record["seconds"]["clients"] = [0.5, (2.0 + seed) * record["round"]]

        changed(write(tmp_path / str(seed), seed=seed, rounds=4), change)
    found = Page(build(open_runs([tmp_path])))
    waited = np.cumsum([[2.0 * t, 3.0 * t] for t in range(1, 5)], axis=0).mean(1)
    reached = np.mean([accuracies(s, 0, 4, 3).mean(1) for s in (0, 1)], axis=0)
    header, *rows = found.tables["accuracy-seconds"]
    at = {head: [float(row[i]) for row in rows] for i, head in enumerate(header)}
    assert at["fedavg: seconds"] == pytest.approx(waited, abs=0.006)
    assert at["fedavg"] == pytest.approx(100 * reached, abs=0.006)


def test_every_stage_of_the_local_models_has_its_own_chart(tmp_path):
    places = [(where, stage) for where in ("in_local", "out_local") for stage in ("before", "local", "after")]

    def change(record):
        measured = record["measures"]["locals"]
        for n, (where, stage) in enumerate(places):
            measured[where][stage] = [0.1 * n, None, 0.1 * n + 0.02 * record["round"]]
        measured["local_average_accuracy"] = 0.01 * record["round"]

    changed(write(tmp_path / "x", rounds=2), change)
    found = Page(build(open_runs([tmp_path])))
    for n, (where, stage) in enumerate(places):
        shown = found.column(f"{where.replace('_', '-')}-{stage}", "fedavg")
        assert shown == pytest.approx([10 * n + 1, 10 * n + 2])
    assert found.column("local-average", "fedavg") == [1.0, 2.0]


def test_a_measure_is_of_the_seeds_that_have_it_and_their_number_is_said(tmp_path):
    def forget(record):
        del record["measures"]["divergence"]

    for seed in (0, 1, 2):
        run = write(tmp_path / f"avg-{seed}", seed=seed)
        if seed == 1:
            changed(run, forget)
    write(tmp_path / "ntd", algorithm="fedntd")
    changed(write(tmp_path / "prox", algorithm="fedprox"), forget)
    content = build(open_runs([tmp_path]))
    name = "measure-measures-divergence-weights"
    found = Page(content)
    assert found.column(name, "fedavg: mean") == [4.0] * 6
    assert found.column(name, "fedntd") == [4.0] * 6
    assert not [head for head in found.tables[name][0] if head.startswith("fedprox")]
    figure = content[content.index(f'<figure id="{name}"') :]
    said = re.search(r"<figcaption>.*?</figcaption>", figure)[0]
    assert said.endswith("<p>fedavg: 2 of 3 seeds.</p></figcaption>")


def test_a_measure_is_of_the_seeds_that_have_a_round_of_it_in_common(tmp_path):
    for seed, played, every in ((0, 6, 3), (1, 6, 3), (2, 5, 5)):

        def thin(record, every=every):
            if record["round"] % every:
                del record["measures"]["divergence"]

        changed(write(tmp_path / str(seed), seed=seed, played=played), thin)
    content = build(open_runs([tmp_path]))
    name = "measure-measures-divergence-weights"
    assert Page(content).column(name, "round") == [3.0, 6.0]
    assert "fedavg: 2 of 3 seeds." in content


def pixels(content, identity):
    """The shades of a heat map's picture, 0 to 254."""
    figure = content[content.index(f'<figure id="{identity}"') :]
    data = re.search(r'src="data:image/png;base64,([^"]+)"', figure)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)


def test_confusion_is_the_last_that_was_recorded_summed_over_seeds(tmp_path):
    counts, trust = {}, {}
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        counts[seed], trust[seed] = rng.integers(1, 50, (3, 3)), rng.random((3, 3)).round(3)

        def change(record, seed=seed):
            if record["round"] < 5:
                old = {"global": [[1, 0, 0]] * 3, "credibility": np.zeros((3, 3)).tolist()}
                record["measures"]["confusion"] = old
            elif record["round"] == 5 + seed:
                new = {"global": counts[seed].tolist(), "credibility": trust[seed].tolist()}
                record["measures"]["confusion"] = new
            else:
                record["measures"].pop("confusion", None)

        changed(write(tmp_path / str(seed), seed=seed), change)
    content = build(open_runs([tmp_path]))
    found = Page(content)
    whole = counts[0] + counts[1]
    assert [[float(c) for c in row[1:]] for row in found.tables["confusion-0"][1:]] == whole.tolist()
    assert "Round 5 and 6, 2 seeds; a row a true class." in " ".join(found.words)
    assert np.abs(pixels(content, "confusion-0") - 254 * credibility(whole)).max() <= 0.5
    mean = np.mean([trust[0], trust[1]], axis=0)
    shown = [[float(c) for c in row[1:]] for row in found.tables["credibility-0"][1:]]
    assert np.array(shown) == pytest.approx(100 * mean, abs=0.06)
    assert np.abs(pixels(content, "credibility-0") - 254 * mean).max() <= 0.5


def test_a_difference_in_forgetting_is_better_where_it_is_lower(tmp_path):
    change = {0: 0.10, 1: 0.02, 2: 0.06}
    for seed, better in change.items():
        write(tmp_path / f"avg-{seed}", seed=seed)

        def improve(record, better=better):
            record["forgetting"] += better

        changed(write(tmp_path / f"ntd-{seed}", algorithm="fedntd", seed=seed), improve)
    content = build(open_runs([tmp_path]))
    row = Page(content).tables["comparison-forgetting"][1]
    low, high = bootstrap_interval(list(change.values()))
    assert row[2:5] == ["+0.0600", f"[{low:+.4f}, {high:+.4f}]", "3 / 0 / 0"]
    figure = content[content.index('<figure id="comparison-forgetting"') :]
    assert "lower is better" in figure[: figure.index("</figcaption>")]
    figure = content[content.index('<figure id="comparison-accuracy"') :]
    assert "higher is better" in figure[: figure.index("</figcaption>")]


def test_a_whisker_goes_from_end_to_end(tmp_path):
    """Of accuracies in points, which are a hundred times what was recorded."""
    for seed, better in enumerate((1, 2, 3)):
        write(tmp_path / f"avg-{seed}", seed=seed)
        write(tmp_path / f"ntd-{seed}", algorithm="fedntd", seed=seed, better=better)
    content = build(open_runs([tmp_path]))
    figure = content[content.index('<figure id="comparison-accuracy"') :]
    figure = figure[: figure.index("</figure>")]
    left, wide = map(
        float, re.search(r'class="whisker c1" style="left:([\d.]+)%;width:([\d.]+)%"', figure).groups()
    )
    dot = float(re.search(r'class="dot c1" style="left:([\d.]+)%"', figure)[1])
    zero = float(re.search(r'class="zero" style="left:([\d.]+)%"', figure)[1])
    ticks = {
        float(number): float(place)
        for place, number in re.findall(r'style="left:([\d.]+)%" class="x">([^<]+)<', figure)
    }
    (a, at), (b, bt) = min(ticks.items()), max(ticks.items())

    def place(value):
        return at + (value - a) / (b - a) * (bt - at)

    low, high = bootstrap_interval([0.05, 0.10, 0.15])
    assert (zero, dot) == pytest.approx((place(0), place(10)), abs=0.02)
    assert (left, left + wide) == pytest.approx((place(100 * low), place(100 * high)), abs=0.03)


def test_runs_on_other_data_are_compared_with_none(tmp_path):
    for n, dataset in enumerate(("digits", "synthetic:classes=3,train=60,test=30")):
        for algorithm in ("fedavg", "fedntd", "fedprox")[: 3 - n]:
            write(tmp_path / f"{algorithm}-{n}", algorithm=algorithm, dataset=dataset)
    groups = arrange(open_runs([tmp_path]))

    def compared(baseline):
        return {
            (base.algorithm, base.runs[0].path.name[-1], g.algorithm, g.runs[0].path.name[-1])
            for base, _, g, _ in pairs(groups, baseline)
        }

    firsts = {("fedavg", "0", "fedntd", "0"), ("fedavg", "0", "fedprox", "0"), ("fedavg", "1", "fedntd", "1")}
    assert compared(None) == firsts
    # Of the second data set fedprox has no run: nothing is compared with that of the first.
    assert compared("fedprox") == {("fedprox", "0", "fedavg", "0"), ("fedprox", "0", "fedntd", "0")}


def test_a_named_baseline_may_be_of_another_setup(tmp_path):
    write(tmp_path / "base", partition="iid")
    write(tmp_path / "other", algorithm="fedntd", partition="shards:2")
    write(tmp_path / "third", algorithm="fedprox", partition="shards:2")
    groups = arrange(open_runs([tmp_path]))
    plain = {g.algorithm: base.algorithm for base, _, g, _ in pairs(groups, None)}
    named = {g.algorithm: base.algorithm for base, _, g, _ in pairs(groups, "fedavg")}
    assert (len(plain), named) == (1, {"fedntd": "fedavg", "fedprox": "fedavg"})


def test_runs_whose_data_are_noted_to_differ_are_not_compared(tmp_path):
    for algorithm, digest in (("fedavg", "a"), ("fedntd", "a"), ("fedprox", "b")):
        made = {"command": "x", "data": {"name": "mine", "train": 9, "test": 9, "digest": digest}}
        write(tmp_path / algorithm, algorithm=algorithm, made=made)
    found = {g.algorithm for _, _, g, _ in pairs(arrange(open_runs([tmp_path])), "fedavg")}
    assert found == {"fedntd"}


def dealing(run, clients):
    """The run with these examples at its clients."""
    path = run / "partition.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clients": clients}))
    return run


def not_compared(content):
    """The page's sentences on what is not compared."""
    return re.findall(r"<strong>Not compared: </strong>([^<]*)</p>", content)


def test_runs_whose_clients_hold_other_examples_are_not_compared_and_it_is_said(tmp_path):
    for seed in (0, 1):
        dealing(write(tmp_path / f"avg-{seed}", seed=seed), [[seed], [5, 6]])
        dealing(write(tmp_path / f"ntd-{seed}", seed=seed, algorithm="fedntd"), [[seed], [5, 6]])
        dealing(write(tmp_path / f"ssd-{seed}", seed=seed, algorithm="fedssd"), [[seed], [6]])
    runs = open_runs([tmp_path])
    found = [(base.algorithm, g.algorithm) for base, _, g, _ in pairs(arrange(runs), None)]
    assert found == [("fedavg", "fedntd")]
    assert not_compared(build(runs)) == [
        "fedssd (auxiliary_per_class=64) with fedavg (auxiliary_per_class=0): their clients hold other "
        "examples."
    ]
    found = [(base.algorithm, g.algorithm) for base, _, g, _ in pairs(arrange(runs), "fedssd")]
    assert found == []
    assert not_compared(build(runs, baseline="fedssd")) == [
        "fedavg (auxiliary_per_class=0), fedntd (auxiliary_per_class=0) with fedssd "
        "(auxiliary_per_class=64): their clients hold other examples."
    ]


def test_runs_whose_clients_hold_the_same_are_compared_whatever_others_hold(tmp_path):
    for name, algorithm, held in (("a", "fedavg", None), ("b", "fedssd", 64), ("c", "fedavg", 64)):
        run = write(tmp_path / name, algorithm=algorithm, auxiliary_per_class=held)
        dealing(run, [[1], [2]] if held else [[1], [2, 3]])
    found = [(base.label, g.label) for base, _, g, _ in pairs(arrange(open_runs([tmp_path])), None)]
    assert found == [("fedssd (auxiliary_per_class=64)", "fedavg (auxiliary_per_class=64)")]
    found = [(base.label, g.label) for base, _, g, _ in pairs(arrange(open_runs([tmp_path])), "fedavg")]
    assert found == [("fedavg (auxiliary_per_class=64)", "fedssd (auxiliary_per_class=64)")]


def test_of_two_experiments_the_seeds_are_compared_whose_clients_hold_the_same(tmp_path):
    for seed in (0, 1, 2):
        dealing(write(tmp_path / f"avg-{seed}", seed=seed), [[seed], [5]])
        other = [[seed], [5 if seed < 2 else 6]]
        dealing(write(tmp_path / f"ntd-{seed}", seed=seed, algorithm="fedntd"), other)
    runs = open_runs([tmp_path])
    ((_, _, _, shared),) = pairs(arrange(runs), None)
    assert [(a.seed, b.seed) for a, b in shared] == [(0, 0), (1, 1)]
    said = "fedntd of seed 2 with fedavg: their clients hold other examples."
    assert not_compared(build(runs)) == [said]


def test_runs_without_a_round_in_common_have_no_difference(tmp_path):
    def early(record):
        if record["round"] > 2:
            del record["accuracy"]

    def late(record):
        if record["round"] <= 2:
            del record["accuracy"]

    changed(write(tmp_path / "a", played=4), early)
    changed(write(tmp_path / "b", algorithm="fedntd", played=5), late)
    found = Page(build(open_runs([tmp_path])))
    assert not [name for name in found.tables if name.startswith("comparison")]


def test_a_number_that_is_none_has_no_difference_and_others_have(tmp_path):
    write(tmp_path / "a")
    changed(write(tmp_path / "b", algorithm="fedntd"), lambda r: r.update(forgetting=float("nan")))
    found = Page(build(open_runs([tmp_path])))
    assert [name for name in found.tables if name.startswith("comparison")] == ["comparison-accuracy"]
    assert found.tables["results-table"][2][5] == "not a number"


def test_classes_are_numbered_where_their_names_are_not_theirs(tmp_path):
    run = write(tmp_path / "x")
    held = json.loads((run / "partition.json").read_text())
    held["meta"] |= {"counts": [[1, 2]] * 5, "class_names": ["only", "two"]}
    (run / "partition.json").write_text(json.dumps(held))
    assert [row[0] for row in Page(build(open_runs([run]))).tables["classes-0"][1:]] == ["0", "1", "2"]


def test_what_made_a_run_is_there_and_what_all_share(tmp_path):
    made = {"command": "fedrecall run x", "git": "0123abcd+", "versions": {"torch": "2.1"}}
    made |= {"cpu": "a processor", "gpu": "a card", "platform": "Linux", "threads": 3, "python": "3.12"}
    for seed, lr in enumerate((0.1, 0.1, 0.2)):
        write(
            tmp_path / str(seed),
            seed=seed,
            made=made | {"git": None} if seed else made,
            training={"lr": lr},
        )
    content = build(open_runs([tmp_path]))
    said = " ".join(Page(content).words)
    assert said.count("0123abcd+") == 1
    assert "a processor, a card, Linux, 3 threads, Python 3.12" in said
    assert "torch 2.1" in said
    shared = content[content.index("What the configs of all these runs share") :]
    shared = shared[: shared.index("</pre>")]
    assert "&quot;algorithm&quot;" in shared
    assert "&quot;seed&quot;" not in shared
    assert "&quot;training&quot;" not in shared


def test_a_seed_without_a_round_in_common_with_the_others_is_left_out_and_it_is_said(tmp_path):
    for seed, played, every in ((0, 12, 10), (1, 11, 10), (2, 5, 5), (3, 4, 3)):

        def evaluate(record, every=every):
            if record["round"] % every:
                del record["accuracy"]

        run = write(tmp_path / f"avg-{seed}", seed=seed, rounds=12, played=played, evaluate_every=every)
        changed(run, evaluate)
    write(tmp_path / "ntd", algorithm="fedntd", rounds=12)
    content = build(open_runs([tmp_path]))
    found = Page(content)
    rows = {row[0]: row[1:3] for row in found.tables["results-table"][1:]}
    assert rows == {"fedavg": ["2", "10"], "fedntd": ["1", "12"]}
    said = re.findall(r"<strong>Left out: </strong>([^<]*)</p>", content)
    others = "has no evaluated round in common with the other seeds of its experiment."
    assert said == [f"avg-2 {others}", f"avg-3 {others}"]
    states = " ".join(found.words)
    assert "not finished: at round 5 of 12" in states
    assert "not begun" not in states


def test_a_run_that_was_played_but_not_evaluated_has_begun(tmp_path):
    write(tmp_path / "a")
    changed(write(tmp_path / "b", seed=1, played=2), lambda record: record.pop("accuracy"))
    write(tmp_path / "c", seed=2, played=0)
    said = " ".join(Page(build(open_runs([tmp_path]))).words)
    assert "not finished: at round 2 of 6" in said
    assert "c  · not begun" in said
