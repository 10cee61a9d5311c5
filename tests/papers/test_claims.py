"""What FedNTD's gaps say of this package's own runs is what the committed results say."""

from pathlib import Path

import pytest

from fedrecall.papers import load_paper
from fedrecall.papers.paper import Cell, Table
from fedrecall.papers.quantities import smooth
from fedrecall.papers.results import FOLDER, Outcome, Results, identity
from fedrecall.papers.verdicts import measure

ROOT = Path(__file__).parent.parent.parent
PAPER = load_paper("fedntd")
OWN, THEIRS = (PAPER.variant(name) for name in ("augmented-test", "authors-draw+augmented-test"))


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.load(ROOT / FOLDER)


def cells() -> list[tuple[Table, Cell]]:
    """Those whose accuracy is a moving average, each once though several tables have it."""
    found = {
        identity(cell.config()): (t, cell)
        for t in reversed(PAPER.tables.values())
        if t.smoothing
        for cell in t.cells
        if "accuracy" in cell.published
    }
    return list(found.values())


def gap(about: str) -> str:
    (found,) = (text for text in PAPER.gaps if about in text)
    return " ".join(found.split())


def test_accuracy_and_forgetting_add_up_to_what_is_said(results):
    said = gap("add up to the mean of the classes' best accuracies")
    runs: list[tuple[str, Outcome]] = [
        (f"{cell.method} on {cell.column}", run)
        for _, cell in cells()
        for run in results.about(cell.config())
        if run.failed is None and run.done
        if identity(run.config) == identity(cell.config()) or PAPER.reading(cell, run.config) is not None
    ]
    most, of = max(
        (100 * (smooth(run.accuracy, 0.6)[-1] + run.forgetting[-1]), name)
        for name, run in runs
        if run.done == run.config.rounds
    )
    assert of == "fednova on cifar10/lda0.1"
    assert f"our runs come to {most:.1f} at most (FedNova on cifar10/lda0.1)" in said
    raw = {
        dataset: max(
            100 * (a + f)
            for _, run in runs
            if run.config.dataset["name"] == dataset
            for a, f in zip(run.accuracy[1:], run.forgetting[1:], strict=True)
        )
        for dataset in ("mnist", "cifar10")
    }
    assert raw["cifar10"] <= 100.01  # both are kept with four digits
    assert f"single rounds of ours come to {raw['mnist']:.1f}" in said
    published = PAPER.tables["table11"].cell("R0.5", "fednova").published
    assert f"comes to {published['accuracy'].value + 100 * published['forgetting'].value:.1f}" in said


def test_the_authors_draw_moves_accuracy_as_is_said(results):
    said = gap("Their draw (variant authors-draw")
    moved = {}
    for t, cell in cells():
        own, theirs = (measure(t, cell, "accuracy", results, v) for v in (OWN, THEIRS))
        if own and theirs and own.complete and theirs.complete:
            value = cell.published["accuracy"].value
            moved[cell.method, cell.column] = own.summary.mean, theirs.summary.mean, value
    by = {key: abs(theirs - own) for key, (own, theirs, _) in moved.items()}
    dies = "scaffold", "cifar10/lda0.1"
    assert f"by {by.pop(dies):.1f} SCAFFOLD's on cifar10/lda0.1" in said
    own, theirs, value = moved[dies]
    assert f"({own:.2f}, then {theirs:.2f}; published are {value:.2f})" in said
    assert f"moves accuracies by up to {max(by.values()):.1f} points" in said
    away = {key for key, (own, theirs, value) in moved.items() if abs(theirs - value) > abs(own - value)}
    assert away == {key for key in moved if key[0] == "fedntd" and key[1] != "mnist/shard2"}
    own, theirs, value = moved["fedntd", "mnist/shard2"]
    assert f"({own:.2f}, then {theirs:.2f}; published are {value:.2f})" in said
