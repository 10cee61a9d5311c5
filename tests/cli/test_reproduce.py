"""What `reproduce` prints of results that are there, and what it would go on with; nothing is run."""

import sys
from types import SimpleNamespace

import pytest
from tests.papers.outcomes import outcome
from tests.reports.synthetic import write

from fedrecall.cli import main
from fedrecall.cli.commands import reproduce
from fedrecall.papers import load_paper, table
from fedrecall.papers.results import save

TABLE1 = table("fedntd/table1")
FEDAVG, FEDNTD = (TABLE1.cell("mnist/shard2", m) for m in ("fedavg", "fedntd"))


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the program in an empty folder: what it printed, and what it said went wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedrecall", *map(str, words)])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr()
        return said.out, " ".join(said.err.split())

    return run


def rows(said):
    """The cells of a printed table, row by row, the first as they are headed."""
    return [
        [c.strip() for c in line.strip("│┃ ").replace("┃", "│").split("│")]
        for line in said.splitlines()
        if "│" in line or "┃" in line
    ]


ONLY = ("reproduce", "fedntd/table1", "--columns", "mnist/shard2", "--seeds", 0, "--results", "kept")


def test_with_a_switch_it_is_about_what_the_switch_changes(call):
    said, _ = call(*ONLY, "--methods", "fedavg,moon", "--switch", "moon-shipped")
    assert {row[1] for row in rows(said)[1:] if len(row) > 1} == {"moon"}
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
    head, *found = rows(said)
    told = {(row[1], row[2]): dict(zip(head, row, strict=False)) for row in found if len(row) == len(head)}
    one = told["fedavg", "accuracy %"]
    published = FEDAVG.published["accuracy"]
    assert one["published"] == f"{published.value:.2f} ± {published.std:.2f}"
    assert (one["measured"], one["n"], one["rounds"]) == ("62.00 ± 2.83", "2", "200 of 200")
    assert one["off by"] == f"{62 - published.value:+.2f}"
    failed = told["fedntd", "accuracy %"]
    assert failed["measured"] == "failed"
    assert "(1 failed)" in failed["verdict"]


def test_a_method_that_failed_in_the_paper_failed_in_accuracy():
    cell = next(c for t in load_paper("fedntd").tables.values() for c in t.cells if c.failed)
    assert reproduce.published_text(cell, "accuracy") == "failed"
    assert reproduce.published_text(cell, "forgetting") != "failed"


def test_a_run_that_failed_is_a_cell_that_is_finished(tmp_path):
    save(outcome(FEDAVG, [10.0] * 3, failed="round 4: NaN"), tmp_path / "kept")
    save(outcome(FEDNTD, [10.0] * 3), tmp_path / "kept")
    listed = reproduce.list_papers(tmp_path / "kept")
    columns = {str(c.header): list(c.cells) for c in listed.columns}
    place = columns["name"].index("fedntd/table1")
    assert (columns["begun"][place], columns["finished"][place]) == ("2", "1")


def test_what_is_taken_is_shown_in_the_tables_order(call, monkeypatch, tmp_path):
    order = iter([FEDNTD, FEDAVG, FEDNTD])

    def adopt(chosen, folder, results, cells):
        cell = next(order)
        return SimpleNamespace(outcome=outcome(cell, [50.0]), cell=cell, variant=None, path=folder)

    monkeypatch.setattr(reproduce, "adopt", adopt)
    said, _ = call(*ONLY[:-4], "--results", "kept", "--from", "a", "--from", "b", "--from", "c")
    named = [row[1] for row in rows(said)[1:] if len(row) > 2 and row[2] == "accuracy %"]
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
