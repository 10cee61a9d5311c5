"""Combinations are what they are made of at the edges, and are chosen without looking at the test split."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.algorithms.cases import assert_same, experiment

from fedrecall.data.datasets import load
from fedrecall.errors import UserError

ROOT = Path(__file__).parent.parent.parent / "benchmarks" / "beyond"
FILE = ROOT / "combinations.py"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("beyond_run", ROOT / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("combination", "like"),
    [
        ("ClassWiseNTD:low=1,high=1,tau=2", "fedntd:tau=2"),
        ("ClassWiseNTD:low=0,high=0", "fedavg"),
        ("ClassWiseNTD:beta=0", "fedavg"),
        ("MomentumNTD:server_momentum=0", "fedntd"),
        ("MomentumNTD:beta=0,server_momentum=0.7", "fedavgm:beta=0.7"),
        ("ScaffoldNTD:beta=0", "scaffold"),
        (
            "ScaffoldNTD:beta=0,uniform=true,momentum_aware=false",
            "scaffold:uniform=true,momentum_aware=false",
        ),
    ],
)
def test_at_its_edges_a_combination_is_one_of_its_parts(combination, like):
    mine = experiment(f"{FILE}:{combination}").run()
    assert_same(mine.weights, experiment(like).run().weights, 1e-12)


@pytest.mark.parametrize("combination", ["ClassWiseNTD", "MomentumNTD", "ScaffoldNTD"])
def test_between_them_it_is_neither(combination):
    mine = experiment(f"{FILE}:{combination}").run().weights
    for part in ("fedntd", "scaffold", "fedavgm:beta=0.5"):
        with pytest.raises(AssertionError):
            assert_same(mine, experiment(part).run().weights, 1e-9)


def test_what_is_held_out_is_a_tenth_of_every_training_class_and_nothing_of_the_test_split(run):
    d = load("synthetic:classes=4,train=400,test=40,size=5")
    h = run.held_out(d)
    assert np.bincount(h.test.y.numpy()).tolist() == [10] * 4
    assert len(h.train) + len(h.test) == len(d.train)
    pictures = {bytes(x.numpy().tobytes()) for x in d.train.x}
    assert {bytes(x.numpy().tobytes()) for part in (h.train, h.test) for x in part.x} == pictures
    assert not {bytes(x.numpy().tobytes()) for x in d.test.x} & {bytes(x.numpy().tobytes()) for x in h.test.x}
    assert (run.held_out(d).test.x == h.test.x).all()


def test_selection_and_wins_ask_for_three_seeds_and_the_better_baseline(run):
    two, three = [0.50, 0.52], [0.50, 0.52, 0.51]
    setting, other = "cifar10/shard2", "mnist/shard2"
    leads = run.leads(
        {
            setting: {
                "fedavg": three,
                "fedntd": [a + 0.1 for a in three],
                "scaffold ntd": [a + 0.11 for a in three],
            },
            other: {"fedavg": three, "scaffold": three, "scaffold ntd": [a - 0.1 for a in three]},
        }
    )
    assert leads["scaffold ntd"][setting]["over"] == "fedntd"
    assert leads["scaffold ntd"][setting]["lead"] == pytest.approx(0.01)
    assert run.selected(leads) == ["scaffold ntd"]  # ahead on one of two
    assert run.wins(leads["scaffold ntd"]) == 1
    few = run.leads({setting: {"fedavg": two, "scaffold ntd": [a + 0.3 for a in two]}})
    assert run.selected(few) == []
    assert run.wins(few["scaffold ntd"]) == 0


def test_every_method_of_every_setting_has_a_config(run):
    for setting in (*run.SETTINGS, run.SEQUENTIAL["setting"]):
        for names in run.methods(setting):
            for name in names:
                made = run.config(setting, name, 1, 5, backend="serial")
                assert (made.seed, made.rounds) == (1, 5)
    assert run.config("cifar10/exdir2-0.5", "sfedkd 5x2", 0, None).chains == 5


def test_the_test_split_is_looked_at_once(run, monkeypatch, tmp_path):
    (tmp_path / "beyond-test.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["run.py", "test", "--results", str(tmp_path)])
    with pytest.raises(UserError, match="looked at once"):
        run.main()
    (tmp_path / "beyond-test.json").unlink()
    (tmp_path / "beyond-select.json").write_text('{"selected": [], "accuracy": {}}')
    with pytest.raises(UserError, match="selected nobody"):
        run.main()
