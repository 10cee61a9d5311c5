"""That the cost model's cells can still be measured, on networks too small to tell anything."""

import pytest
from benchmarks.scale import client_cell, server_cell


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
