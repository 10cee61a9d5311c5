"""What `reproduce` prints of results that are there, and what it would go on with; nothing is run."""

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.papers.outcomes import outcome
from tests.reports.synthetic import write

from fedrecall.cli import main, papers
from fedrecall.cli.commands import reproduce
from fedrecall.papers import PAPERS, load_paper, table
from fedrecall.papers.reproduction import LeftOut
from fedrecall.papers.results import FOLDER, Results, save
from fedrecall.papers.verdicts import NOT_RUN, PARTIAL, STAND_IN_ALONE, best

ROOT = Path(__file__).parent.parent.parent
TABLE1 = table("fedntd/table1")
FEDAVG, FEDNTD = (TABLE1.cell("mnist/shard2", m) for m in ("fedavg", "fedntd"))


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the program in an empty folder, of a project that measured nothing but what is in the repository's
    place there: what it printed, and what it said went wrong."""
    monkeypatch.chdir(tmp_path)
    for module in (papers, reproduce):
        monkeypatch.setattr(module, "committed", lambda: tmp_path / FOLDER)
    monkeypatch.setenv("COLUMNS", "220")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedrecall", *map(str, words)])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr()
        return said.out, " ".join(said.err.split())

    return run


def rows(said):
    """The cells of the printed tables, row by row, after the column that each is of."""
    found, column = [], ""
    for line in said.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == len(HEADINGS) and cells[0] != "method":
            found.append([column, *cells])
        elif len(cells) == 1 and cells[0] in TABLE1.columns:
            (column,) = cells
    return found


HEADINGS = ("method", "what", "published", "measured", "n", "off by", "in its spread", "verdict")
ONLY = ("reproduce", "fedntd/table1", "--columns", "mnist/shard2", "--seeds", 0, "--results", "kept")


def test_with_a_switch_it_is_about_what_the_switch_changes(call):
    said, _ = call(*ONLY, "--methods", "fedavg,moon", "--switch", "moon-shipped")
    assert {row[1] for row in rows(said)} == {"moon"}
    assert "(moon-shipped)" in said
    _, err = call(*ONLY, "--methods", "fedavg", "--switch", "moon-shipped")
    assert "the switch moon-shipped changes nothing in these cells of fedntd/table1" in err


@pytest.mark.parametrize(
    ("name", "words", "seeds"),
    [
        ("sfedkd/table1", (), 5),
        ("fedssd/table1", (), 3),
        ("fedntd/table1", (), 3),
        ("sfedkd/table1", ("--seeds", 2), 2),
    ],
)
def test_as_many_seeds_as_the_paper_has_trials(name, words, seeds, call, monkeypatch):
    asked = []
    monkeypatch.setattr(reproduce, "plan", lambda *given, **_: asked.append(given[2]) or [])
    call("reproduce", name, *words, "--results", "kept")
    assert asked == [range(seeds)]


def test_the_precision_of_what_was_measured_is_said_where_it_is_not_the_usual(call, tmp_path):
    for cell, precision in ((FEDAVG, "float32"), (FEDNTD, "bfloat16")):
        save(outcome(cell, [50.0], precision=precision), tmp_path / "kept")
    assert "Computed in" not in call(*ONLY, "--methods", "fedavg")[0]
    assert "Computed in bfloat16, each cell in one." in call(*ONLY, "--methods", "fedntd")[0]
    assert (
        "Computed in bfloat16 or float32, each cell in one." in call(*ONLY, "--methods", "fedavg,fedntd")[0]
    )


def test_published_stands_beside_measured(call, tmp_path):
    for seed, accuracy in enumerate((60.0, 64.0)):
        save(outcome(FEDAVG, [accuracy] * 200, seed=seed), tmp_path / "kept")
    save(outcome(FEDNTD, [10.0] * 99, failed="round 100: NaN"), tmp_path / "kept")
    said, _ = call(*ONLY, "--methods", "fedavg,fedntd")
    assert "of 200" not in said  # all of them
    told = {(row[1], row[2]): dict(zip(HEADINGS, row[1:], strict=True)) for row in rows(said)}
    one = told["fedavg", "accuracy %"]
    published = FEDAVG.published["accuracy"]
    assert one["published"] == f"{published.value:.2f} ± {published.std:.2f}"
    assert (one["measured"], one["n"], one["verdict"]) == ("62.00 ± 2.83", "2", "not reproduced")
    assert one["off by"] == f"{62 - published.value:+.2f}"
    failed = told["fedntd", "accuracy %"]
    assert failed["measured"] == "failed"
    assert "(1 failed)" in failed["verdict"]
    assert told["fedntd", "forgetting"]["measured"] == "–"


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_of_a_table_is_broken_in_a_narrow_terminal(width, call, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce.out, "_width", width)
    for column in ("mnist/shard2", "mnist/lda0.1"):
        cells = [TABLE1.cell(column, method) for method in ("fedavg", "scaffold")]
        for cell, rounds in zip(cells, (200, 150), strict=True):
            save(outcome(cell, [62.125] * rounds, seed=0), tmp_path / "kept")
    columns = ("--columns", "mnist/lda0.1,mnist/shard2", "--methods", "fedavg,scaffold")
    said, _ = call("reproduce", "fedntd/table1", "--seeds", 0, "--results", "kept", *columns)
    assert all(len(line) <= width for line in said.splitlines())
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for column in ("mnist/lda0.1", "mnist/shard2"):
        base, cell = (TABLE1.cell(column, method).published["accuracy"] for method in ("fedavg", "scaffold"))
        after = lines[lines.index(column) + 3 :]
        for p, row, method in ((base, after[0], "fedavg"), (cell, after[2], "scaffold")):
            assert row.startswith(f"{method} accuracy % {p.value:.2f} ± {p.std:.2f} 62.1")
        assert "unfinished:" in after[2]
        gain = f"scaffold over fedavg {cell.value - base.value:+.2f} +0.00 1 – – at round 150"
        assert gain in lines


def overview(folder):
    """What is listed of each table and figure when these are the results."""
    name, told = papers.overview(folders=[folder]).columns
    return dict(zip(name.cells, map(str, told.cells), strict=True))


def test_a_run_that_failed_is_a_cell_that_is_finished(tmp_path):
    save(outcome(FEDAVG, [10.0] * 3, failed="round 4: NaN"), tmp_path / "kept")
    save(outcome(FEDNTD, [10.0] * 3), tmp_path / "kept")
    _, finished, unfinished, machines = overview(tmp_path / "kept")["fedntd/table1"].splitlines()
    assert finished == "1 of 98 cells finished: mnist/shard2 (fedavg)"
    assert unfinished == "1 of 98 cells unfinished: mnist/shard2 (fedntd)"
    assert machines == "on a CPU"


def test_the_list_of_papers_says_which_cells_have_been_measured_and_on_what(tmp_path):
    switch, lenet = (load_paper("fedntd").variant(name) for name in ("augmented-test", "lenet"))
    for method in TABLE1.methods:
        cell = TABLE1.cell("cifar10/shard3", method)
        save(replace(outcome(cell, [50.0] * 200, variant=switch), made={"gpu": "a GPU"}), tmp_path)
    save(outcome(FEDAVG, [50.0] * 200), tmp_path)
    align = table("fedntd/table13").cell("16/lda0.1", "fedalign")
    save(outcome(align, [50.0] * 25, variant=lenet), tmp_path)
    told = overview(tmp_path)
    assert told["fedntd/table1"].splitlines()[1:] == [
        "8 of 98 cells finished: mnist/shard2 (fedavg), cifar10/shard3",
        "on a CPU and a GPU",
    ]
    assert told["fedntd/table13"].splitlines()[1:] == [
        "1 of 18 cells run with a stand-in alone: 16/lda0.1 (fedalign)",
        "on a CPU",
    ]
    assert told["fedntd/resnet10"].splitlines()[1:] == ["none of 12 cells run"]
    assert told["fedntd/fig4"].endswith("(drawn from runs)")


def test_the_list_of_papers_counts_as_the_page_of_results_does():
    """Which counts by the word of each cell."""
    results = Results.load(ROOT / FOLDER)
    told = overview(ROOT / FOLDER)
    for paper in map(load_paper, PAPERS):
        for t in paper.tables.values():
            words = Counter(best(paper, t, cell, results) for cell in t.cells)
            words.pop(NOT_RUN, 0)
            counts = {state: words.pop(state, 0) for state in (PARTIAL, STAND_IN_ALONE)}
            counts["finished"] = words.total()
            lines = told[f"{paper.name}/{t.name}"].splitlines()
            for state in counts:
                (said,) = [line for line in lines if f" cells {state}: " in line] or ["0"]
                assert int(said.split()[0]) == counts[state], (t.name, state)


def test_a_table_is_shown_cell_by_cell(call, tmp_path):
    switch = load_paper("fedntd").variant("authors-draw+augmented-test")
    kept = tmp_path / "runs" / "reproduction" / "results"
    for seed in range(2):
        save(outcome(FEDAVG, [78.63] * 200, seed=seed, variant=switch), kept)
    save(outcome(FEDAVG, [78.63] * 30, precision="bfloat16"), kept)
    save(outcome(FEDNTD, [10.0] * 3, failed="round 4: NaN"), kept)
    save(outcome(TABLE1.guest("mnist/shard2", "fedtrio"), [90.0] * 200), kept)
    said, err = call("show", "paper", "fedntd/table1")
    assert err == ""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[1:6] == [
        "column method with seeds rounds on verdict",
        "mnist/shard2 fedavg 0 30 of 200 a CPU, bfloat16 unfinished",
        "mnist/shard2 fedavg a 0, 1 200 a CPU reproduced",
        "mnist/shard2 fedntd 0 3 of 200 a CPU not reproduced (1 failed)",
        "mnist/shard2 fedtrio 0 200 a CPU measured",
    ]
    assert lines[6] == "a: --switch authors-draw+augmented-test"
    assert lines[7].startswith("not run: mnist/shard2 (fedcurv, fedprox, fednova, scaffold, moon), cifar10/")
    assert "nothing is run: fedrecall reproduce fedntd/table1 --seeds 0" in said
    assert "fedrecall reproduce fedntd/table1 --columns mnist/shard2 --methods fedavg --seeds 1" in said
    assert "all 98 cells, 3 seeds of each, 200 rounds a run" in said


def test_a_paper_is_shown_table_by_table_and_a_figure_by_what_it_needs(call):
    said, _ = call("show", "paper", "fedcad")
    assert load_paper("fedcad").title in said
    assert "fedcad/fig1" in said
    assert "fedntd/table1" not in said
    assert "fedrecall show paper fedcad/fig1" in said
    said, _ = call("show", "paper", "fedntd/fig4")
    assert "fedrecall figure fedntd/fig4" in said
    assert "fedrecall show paper fedntd/table1" in call("list", "papers")[0]


def test_what_the_project_measured_is_printed_apart_and_counts_as_nothing_done(call, tmp_path, monkeypatch):
    committed, kept = tmp_path / FOLDER, tmp_path / "kept"
    for seed in range(3):
        save(outcome(FEDAVG, [70.0] * 200, seed=seed, measures={"alignment": {}}), committed)
    said, _ = call(*ONLY, "--methods", "fedavg,fedntd")
    assert said.count("fedntd/table1: Accuracy") == 1
    assert "(measured by the project, not run here)" in " ".join(said.split())
    assert "there is no result of it in kept" in said
    assert [row[4] for row in rows(said) if row[1:3] == ["fedavg", "accuracy %"]] == ["70.00 ± 0.00"]

    save(outcome(FEDAVG, [60.0] * 200, measures={"alignment": {}}), kept)
    said, _ = call(*ONLY, "--methods", "fedavg,fedntd")
    mine, theirs = said.split("(measured by")
    for part, measured, seeds in ((mine, "60.00", "1"), (theirs, "70.00 ± 0.00", "3")):
        (row,) = (row for row in rows(part) if row[1:3] == ["fedavg", "accuracy %"])
        assert row[4:6] == [measured, seeds]
    assert "fedntd" not in {row[1] for row in rows(theirs)}  # of which the project has nothing

    asked = []
    monkeypatch.setattr(reproduce, "carry_out", lambda plans, *_: asked.extend(plans) or LeftOut([], []))
    words = ("reproduce", "fedntd/table1", "--columns", "mnist/shard2", "--methods", "fedavg")
    said, _ = call(*words, "--seeds", 3, "--results", "kept")
    assert [p.config.seed for p in asked] == [1, 2]
    assert "2 runs, 400 rounds at most; --columns, --methods, --seeds and --rounds ask for fewer." in said
    asked.clear()
    said, _ = call(*words, "--seeds", 3, "--results", FOLDER)
    assert asked == []
    assert "nothing is missing" in said
    assert "measured by the project" not in said
    assert said.count("fedntd/table1: Accuracy") == 1


def test_the_switch_that_reproduces_a_cell_is_named_where_it_is_not(call, tmp_path):
    paper = load_paper("fedntd")
    draw, images = (paper.variant(name) for name in ("authors-draw+augmented-test", "augmented-test"))
    kept = tmp_path / "kept"
    save(outcome(FEDAVG, [93.0] * 200), kept)
    save(outcome(FEDAVG, [78.63] * 200, variant=draw), kept)
    save(outcome(FEDNTD, [70.0] * 200, variant=images), kept)
    save(outcome(TABLE1.guest("mnist/shard2", "fedtrio"), [90.0] * 200, variant=draw), kept)
    prox = TABLE1.cell("mnist/shard2", "fedprox")
    save(outcome(prox, [78.26] * 200), kept)  # as it is
    save(outcome(prox, [78.26] * 200, variant=draw), kept)
    said, _ = call(*ONLY, "--methods", "fedavg,fedprox,fedntd,fedtrio")
    assert said.splitlines()[-3:] == [
        "reproduced with --switch authors-draw+augmented-test: mnist/shard2 (fedavg)",
        "not reproduced with --switch augmented-test: mnist/shard2 (fedntd)",
        "measured with --switch authors-draw+augmented-test: mnist/shard2 (fedtrio)",
    ]
    said, _ = call(*ONLY, "--methods", "fedavg", "--switch", "authors-draw+augmented-test")
    assert "with --switch" not in said


def test_what_is_taken_is_shown_in_the_tables_order(call, monkeypatch, tmp_path):
    order = iter([FEDNTD, FEDAVG, FEDNTD])

    def adopt(chosen, folder, results, cells):
        cell = next(order)
        return SimpleNamespace(outcome=outcome(cell, [50.0]), cell=cell, variant=None, path=folder)

    monkeypatch.setattr(reproduce, "adopt", adopt)
    said, _ = call(*ONLY[:-4], "--results", "kept", "--from", "a", "--from", "b", "--from", "c")
    named = [row[1] for row in rows(said) if row[2] == "accuracy %"]
    assert named == ["fedavg", "fedntd"]


@pytest.mark.parametrize("rounds", [5, 6])
def test_a_figure_is_not_drawn_of_a_model_that_has_gone_on(rounds, call, monkeypatch, tmp_path):
    chosen = table("fedcad/fig1")
    run = write(tmp_path / "run", rounds=rounds)
    monkeypatch.setattr(reproduce, "folder_of", lambda *_: run)
    drawn = []
    monkeypatch.setattr(
        "fedrecall.reports.figures.draw",
        lambda name, *_: drawn.append(name) or SimpleNamespace(notes=(), files=()),
    )
    shorter = SimpleNamespace(rounds=5, figure=chosen.figure)
    reproduce._draw(shorter, chosen.cells[:1], tmp_path, None, {}, None)
    assert bool(drawn) == (rounds == 5)


def test_nothing_is_drawn_where_nothing_is_run(call, monkeypatch):
    monkeypatch.setattr(reproduce, "_draw", lambda *_: pytest.fail("it draws"))
    said, err = call("reproduce", "fedcad/fig1", "--seeds", 0, "--results", "kept")
    assert "fedcad/fig1" in said
    assert err == ""
