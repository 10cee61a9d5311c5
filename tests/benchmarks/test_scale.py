"""That the cost model's cells can still be measured, on networks too small to tell anything."""

from pathlib import Path

import pytest
from benchmarks.scale import client_cell, server_cell

from benchmarks import scale
from fedrecall.algorithms import ALGORITHMS
from fedrecall.files import read_json


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedtrio", "sfedkd"])
def test_a_round_at_the_server_sends_what_is_declared(algorithm: str) -> None:
    cell = server_cell(algorithm, parameters=750, sampled=3, population=4, repeats=3)

    assert cell["first_down"] == 3 * cell["declared_down"]
    assert (cell["bytes_down"] > cell["first_down"]) == (algorithm == "sfedkd")  # it has teachers by then
    assert cell["bytes_up"] == 3 * cell["declared_up"]
    assert cell["links"] == (3 if algorithm == "sfedkd" else 1)


def test_a_visit_is_timed() -> None:
    cell = client_cell(750)

    assert cell["seconds"] > 0
    assert cell["model"] == 4 * cell["parameters"]


def test_the_page_has_all_that_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    around = ("before\n<!-- measured: begin -->\n", "<!-- measured: end -->\nafter\n")
    page.write_text("".join(around))
    monkeypatch.setattr(scale, "PAGE", page)
    monkeypatch.setattr(scale, "RESULTS", tmp_path / "scale.json")
    monkeypatch.setattr(scale, "CELLS", [(20_000, 52, 60)])  # a pace is taken from 4 MB on
    monkeypatch.setattr(scale, "EACH", (750, 3, 4))
    monkeypatch.setattr(scale, "WIDTHS", {750: 10})
    monkeypatch.setattr(scale, "REPEATS", 1)
    monkeypatch.setattr("sys.argv", ["scale"])
    scale.main()
    found = read_json(tmp_path / "scale.json")
    assert {row["algorithm"] for row in found["algorithms"]} == set(ALGORITHMS)
    assert page.read_text() == f"{scale.tables(found)}\n".join(around)
    assert page.read_text().count("| yes |") == len(list(ALGORITHMS))  # bytes as declared
