"""What was measured of the authors' code: where nothing is said to differ, ours makes its updates."""

import json
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent.parent / "benchmarks" / "results" / "arbiter-updates.json"
CASES = json.loads(FILE.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"{c['ours']}-{c['sample']}" for c in CASES])
def test_where_nothing_differs_the_updates_are_the_same(case):
    if "theirs" in case["note"]:
        assert case["gap"] > 1e-2
    else:
        assert case["gap"] < 1e-10
        assert case["from_fedavg"] > 1e-2 or case["ours"] == "fedavg"


def test_every_released_algorithm_was_compared():
    released = {"fedavg", "fedavgm", "fedcurv", "feddyn", "fednova", "fedntd", "fedprox", "moon", "scaffold"}
    assert {c["theirs"] for c in CASES} == released
