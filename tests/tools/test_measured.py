"""The algorithms' pages have what was measured."""

from pathlib import Path

import pytest
from tests.papers.outcomes import outcome
from tools.measured import BLOCK, Pages

from fedrecall.algorithms import ALGORITHMS
from fedrecall.papers import load_paper, table
from fedrecall.papers.results import FOLDER, Results, save

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))


@pytest.fixture(scope="module")
def pages() -> Pages:
    return Pages(Results.load(ROOT / FOLDER))


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_a_page_is_up_to_date(path, pages):
    text = path.read_text()
    assert BLOCK.search(text), f"{path.name} has no <!-- measured: NAME --> block"
    assert pages.fill(text) == text, "run `make docs`"


def test_every_algorithm_has_a_block():
    named = {n for p in PAGES for m in BLOCK.finditer(p.read_text()) for n in m["names"].split()}
    assert named == set(ALGORITHMS) - {"private"}


def test_a_block_has_each_run_once_and_what_was_not_run_folded(tmp_path):
    cell = table("fedntd/table1").cell("cifar10/shard2", "scaffold")
    save(outcome(cell, [30.0, 31.0]), tmp_path)
    shown, hidden = Pages(Results.load(tmp_path)).block(["scaffold"]).split("<details>")
    assert "| fedntd/table1 | cifar10/shard2 | scaffold | 44.60 ± 2.24; F 0.53 | 30.40; " in shown
    assert "| not run |" not in shown
    assert "| fedntd/table1 | cifar10/shard2 |" not in hidden
    assert "| fedntd/table1 | cifar10/lda0.1 | scaffold | 23.12 ± 0.55; F 0.74 |" in hidden
    # Tables 8 and 10 have this cell again, with the same runs.
    assert "| 44.60 " not in hidden


def test_what_was_run_with_a_switch_alone_is_not_called_not_run(tmp_path):
    cell = table("fedntd/table1").cell("cifar10/lda0.1", "scaffold")
    save(outcome(cell, [30.0, 31.0], variant=load_paper("fedntd").variant("augmented-test")), tmp_path)
    shown, hidden = Pages(Results.load(tmp_path)).block(["scaffold"]).split("<details>")
    assert "| cifar10/lda0.1 | scaffold, `augmented-test` | 23.12 ± 0.55; F 0.74 | 30.40; " in shown
    assert "| not run |" not in shown
    assert "| fedntd/table1 | cifar10/lda0.1 |" not in hidden


def test_of_what_no_paper_reports_it_is_said(tmp_path):
    assert Pages(Results.load(tmp_path)).block(["fedavgm"]) == "No table of the four papers has it.\n"


def test_a_block_can_be_filled_again():
    pages = Pages(Results([]))
    once = pages.fill("a\n<!-- measured: moon -->\nold\n<!-- /measured -->\nb\n")
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("<!-- /measured -->\nb\n")
    assert pages.fill(once) == once
