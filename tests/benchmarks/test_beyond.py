"""Combinations are what they are made of at the edges, and are chosen without looking at the test split."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.algorithms.cases import assert_same, experiment

from fedrecall import config as configs
from fedrecall.algorithms.fedavg import Down
from fedrecall.batches import Batch
from fedrecall.data.datasets import load
from fedrecall.errors import UserError
from fedrecall.models.model import Weights

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
        ("CredibleNTD:beta=0", "fedavg"),
        ("CredibleNTD:floor=1", "fedntd:distance=mse"),
        ("MomentumNTD:server_momentum=0", "fedntd"),
        ("MomentumNTD:beta=0,server_momentum=0.7", "fedavgm:beta=0.7"),
        ("SteadyNTD:calibration=0,keep=0", "fedntd"),
        ("SteadyNTD:calibration=0,keep=0,old_teacher=true", "fedntd"),
        ("SteadyNTD:beta=0,calibration=0,keep=0", "fedavg"),
        ("SteadyNTD:beta=0,keep=0", "calibrated"),
        ("MomentumScaffoldNTD:beta=0,server_momentum=0", "scaffold"),
        ("MomentumScaffoldNTD:server_momentum=0,calibration=1", "fedtrio"),
    ],
)
def test_at_its_edges_a_combination_is_one_of_its_parts(combination, like):
    apart = {"auxiliary_per_class": 5} if combination.startswith("CredibleNTD") else {}
    combination = combination.replace("CredibleNTD:", "CredibleNTD:auxiliary_per_class=5,")
    mine = experiment(f"{FILE}:{combination}", **apart).run()
    assert_same(mine.weights, experiment(like, **apart).run().weights, 1e-12)


@pytest.mark.parametrize(
    "combination",
    [
        "ClassWiseNTD", "MomentumNTD", "CredibleNTD", "SteadyNTD:calibration=0",
        "SteadyNTD:keep=0", "MomentumScaffoldNTD",
        "SteadyNTD:calibration=0,old_teacher=true",
    ],
)  # fmt: skip
def test_between_them_it_is_neither(combination):
    own = ":auxiliary_per_class=5,floor=0.5" if combination == "CredibleNTD" else ""
    mine = experiment(f"{FILE}:{combination}{own}", auxiliary_per_class=5).run().weights
    for part in ("fedavg", "fedntd", "fedntd:distance=mse", "scaffold", "fedavgm:beta=0.5"):
        with pytest.raises(AssertionError):
            assert_same(mine, experiment(part, auxiliary_per_class=5).run().weights, 1e-9)


def test_the_average_is_of_a_training_that_it_does_not_change():
    """Clients go on from the last model: the same rounds as FedAvg's, averaged."""
    steady = experiment(f"{FILE}:SteadyNTD:beta=0,calibration=0,keep=0.6", rounds=3).run().weights.params
    mine = [experiment("fedavg", rounds=r).run().weights.params for r in (1, 2, 3)]
    start = experiment("fedavg", rounds=3, training={"lr": 1e-12}).run().weights.params
    for name, found in steady.items():
        expected = 0.6**3 * start[name] + 0.4 * (0.36 * mine[0][name] + 0.6 * mine[1][name] + mine[2][name])
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-9)


def test_calibration_is_the_log_of_the_clients_shares_added_to_the_logits():
    """On one label alone with C classes: -log of (n + 1) e^a / ((n + 1) e^a + sum of the others' e^z)."""
    spec = importlib.util.spec_from_file_location("combinations", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    logits = torch.tensor([[0.3, -0.2, 0.9]], dtype=torch.float64)

    class Data:
        counts = torch.tensor([4, 0, 0])

    class Net:
        def __call__(self, params, x):
            return logits

        frozen = __call__

    down = Down(Weights({"w": torch.zeros(1, dtype=torch.float64)}, {}))
    one = module.SteadyNTD(beta=0.0)
    anchor = one.prepare(Net(), down, None, Data())
    e = logits[0].exp()
    expected = -np.log(float(5 * e[0] / (5 * e[0] + e[1] + e[2])))
    found = one.loss(Net(), {}, anchor, Batch(logits, torch.tensor([0]), torch.tensor([0])))
    assert float(found) == pytest.approx(expected)


def test_what_is_held_out_is_a_tenth_of_every_training_class_and_nothing_of_the_test_split(run):
    d = load("synthetic:classes=4,train=400,test=40,size=5")
    h = run.held_out(d)
    assert np.bincount(h.test.y.numpy()).tolist() == [10] * 4
    assert len(h.train) + len(h.test) == len(d.train)
    pictures = {bytes(x.numpy().tobytes()) for x in d.train.x}
    assert {bytes(x.numpy().tobytes()) for part in (h.train, h.test) for x in part.x} == pictures
    assert not {bytes(x.numpy().tobytes()) for x in d.test.x} & {bytes(x.numpy().tobytes()) for x in h.test.x}
    assert (run.held_out(d).test.x == h.test.x).all()


SHARDS, SKEW = "fedntd/table8:E1", "fedntd/table9:E1"


def test_selection_and_wins_ask_for_three_seeds_and_the_better_baseline(run):
    two, three = [0.50, 0.52], [0.50, 0.52, 0.51]
    raced = {
        SHARDS: {
            "fedavg": three[:1],
            "fedntd": [a + 0.1 for a in three],
            "scaffold ntd": [a + 0.11 for a in three],
            "class-wise ntd": [three[0] + 0.2],  # ahead, but out of the race after its first seed
        },
        SKEW: {"scaffold": three, "scaffold ntd": [a - 0.1 for a in three], "class-wise ntd": [0.7]},
    }
    leads = run.leads(raced)
    assert leads["scaffold ntd"][SHARDS]["over"] == "fedntd"
    assert leads["scaffold ntd"][SHARDS]["lead"] == pytest.approx(0.01)
    assert leads["class-wise ntd"][SHARDS]["seeds"] == 1
    assert run.selected(raced) == "scaffold ntd"  # ahead on one of two
    assert run.wins(leads["scaffold ntd"]) == 1
    few = {SHARDS: {"fedavg": two, "scaffold ntd": [a + 0.3 for a in two]}}
    assert run.still_racing(few) == {"scaffold ntd"}
    assert run.selected(few) is None
    assert run.wins(run.leads(few)["scaffold ntd"]) == 0


def test_what_counts_is_the_level_of_the_last_tenth_of_the_rounds(run):
    def tenths(*accuracies):
        return run.tenths(dict(enumerate(accuracies, 1)), len(accuracies))

    assert tenths(*[0.0] * 16, 0.1, 0.2, 0.4, 0.6) == pytest.approx([0.0] * 8 + [0.15, 0.5])
    assert tenths(0.1, 0.7) == [0.1, 0.7]
    assert tenths(*[0.9] * 9, *[0.1, 0.3] * 10) == pytest.approx([0.2] * 10)
    seldom = {1: 0.2, 2: 0.3, 4: 0.4, 6: 0.5, 7: 0.5}
    assert run.tenths(seldom | dict.fromkeys(range(8, 22), 0.9), 21) == pytest.approx(
        [0.3, 0.4, 0.5] + [0.9] * 7
    )


def test_rounds_before_the_last_tenth_may_be_looked_at_seldom(run, tmp_path):
    data = load("synthetic:classes=4,train=200,test=40,size=5")
    made = configs.make(
        {"dataset": "synthetic:classes=4,train=200,test=40,size=5", "model": "mlp", "clients": 4}
        | {"sample": 2, "rounds": 20, "training": {"batch_size": 10}, "partition": "iid", "measures": ()}
    )

    def records(name):
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    every = run.played(made, tmp_path / "every", data, 1)
    for _ in range(2):  # the second time it is there already
        assert run.played(made, tmp_path / "seldom", data, 10)[-1] == every[-1]
    assert [r["round"] for r in records("seldom") if "accuracy" in r] == [*range(2, 19, 2), 19, 20]
    for one, other in zip(records("seldom"), records("every"), strict=True):
        assert all(one[k] == other[k] for k in ("train_loss", "accuracy", "loss") if k in one)


def test_a_race_plays_on_with_those_ahead_and_the_best_baseline(run, monkeypatch, tmp_path):
    """Played on small data, with accuracies that are made up: who plays which seed."""
    by_name = {"fedavg": 0.4, "fedntd": 0.5, "scaffold": 0.3, "class-wise ntd": 0.6, "scaffold ntd": 0.45}
    names = {n.replace(" ", "-"): n for n in (*run.BASELINES, *run.CANDIDATES)}
    played, lengths = [], []

    class Played:
        def __init__(self, config, folder, **_):
            self.name = names[folder.parent.name]
            place = folder.parent.parent.relative_to(tmp_path)
            setting = "/".join(place.parts[1:3]) + ":" + "/".join(place.parts[3:])
            played.append((setting, self.name, config.seed))
            lengths.append(config.rounds)

        def run(self):
            accuracy = by_name.get(self.name, 0.1)
            self.history = [{"round": r, "accuracy": accuracy} for r in range(1, 21)]
            return self

    monkeypatch.setattr(run, "Experiment", Played)
    monkeypatch.setattr(run, "load", lambda _: load("synthetic:classes=4,train=400,test=40,size=5"))
    found, curves = run.measure(tmp_path, [SHARDS, SKEW], None, 3, 20)
    everybody = {*run.BASELINES, *run.CANDIDATES}
    assert {n for s, n, seed in played if (s, seed) == (SHARDS, 0)} == everybody
    # Who was behind in the first setting does not play the second one.
    assert {n for s, n, seed in played if (s, seed) == (SKEW, 0)} == {*run.BASELINES, "class-wise ntd"}
    for setting in (SHARDS, SKEW):
        for seed in (1, 2):
            assert [n for *at, n in ((s, e, n) for s, n, e in played) if at == [setting, seed]] == [
                "fedntd",
                "class-wise ntd",
            ]
    assert run.selected(found) == "class-wise ntd"
    assert curves[SKEW]["fedntd"] == [[pytest.approx(0.5)] * 10] * 3
    played.clear()
    run.measure(tmp_path, [SHARDS], {SHARDS: ["fedntd", "class-wise ntd"]}, 2, 20)
    assert [n for _, n, seed in played if seed == 1] == ["fedntd", "class-wise ntd"]
    race, kept = [tmp_path, [SHARDS], {SHARDS: ["fedntd", "class-wise ntd"]}], tmp_path / "kept.json"
    first = run.measure(*race, 1, 20, kept)
    assert json.loads(kept.read_text())["tenths"] == first[1]
    played.clear()
    both = run.measure(*race, 2, 20, kept)
    assert [(n, seed) for _, n, seed in played] == [("fedntd", 1), ("class-wise ntd", 1)]
    assert both[0] == {SHARDS: {n: first[0][SHARDS][n] * 2 for n in ("fedntd", "class-wise ntd")}}
    ahead = {SHARDS: {"fedntd": both[1][SHARDS]["fedntd"]}}  # of a later seed than the other's
    kept.write_text(json.dumps({"tenths": ahead}))
    run.measure(*race, 1, 20, kept)
    assert json.loads(kept.read_text())["tenths"] == {SHARDS: first[1][SHARDS] | ahead[SHARDS]}
    lengths.clear()
    run.measure(tmp_path, [SHARDS], None, 1, None)
    assert set(lengths) == {run.SETTINGS[SHARDS]}
    lengths.clear()
    run.measure(tmp_path, [SHARDS], {SHARDS: ["fedntd"]}, 1, None)
    assert lengths == [200]  # the paper's


def test_every_method_of_every_setting_has_a_config(run):
    for setting in (*run.SETTINGS, run.SEQUENTIAL["setting"]):
        for names in run.methods(setting):
            for name in names:
                made = run.config(setting, name, 1, 5, backend="serial")
                assert (made.seed, made.rounds) == (1, 5)
    assert run.config(run.SEQUENTIAL["setting"], "sfedkd 5x2", 0, None).chains == 5
    assert run.config(SHARDS, "scaffold ntd", 0, None).training.local_epochs == 1


def test_the_test_split_is_looked_at_once(run, monkeypatch, tmp_path):
    (tmp_path / "beyond-test.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["run.py", "test", "--results", str(tmp_path)])
    with pytest.raises(UserError, match="looked at once"):
        run.main()
    (tmp_path / "beyond-test.json").unlink()
    (tmp_path / "beyond-select.json").write_text('{"selected": null, "accuracy": {}}')
    with pytest.raises(UserError, match="selected nobody"):
        run.main()
    (tmp_path / "beyond-select.json").write_text('{"selected": "scaffold ntd", "accuracy": {}}')
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--seeds", "2"])
    with pytest.raises(UserError, match="3 seeds or more"):
        run.main()
    assert not (tmp_path / "beyond-test.json").exists()


def test_some_settings_alone_conclude_nothing(run, monkeypatch, tmp_path, capsys):
    three = [0.5, 0.51, 0.52]
    raced = {s: {"fedavg": [0.1], "fedntd": three, "scaffold ntd": [0.6] * 3} for s in (SHARDS, SKEW)}
    asked = []

    def measured(runs, settings, chosen, seeds, rounds, kept, seldom, **how):
        asked.append({s: chosen[s] for s in settings})
        found = {s: {"fedntd": three, "scaffold ntd": [0.6, 0.61, 0.62]} for s in settings}
        return found, {
            s: {n: [[0.0, v] for v in by_seed] for n, by_seed in d.items()} for s, d in found.items()
        }

    monkeypatch.setattr(run, "measure", measured)
    (tmp_path / "beyond-select.json").write_text(
        json.dumps({"selected": run.selected(raced), "accuracy": raced})
    )
    command = ["run.py", "test", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--settings", SKEW])
    run.main()
    assert asked == [{SKEW: ["fedntd", "scaffold ntd"]}]
    assert not (tmp_path / "beyond-test.json").exists()
    monkeypatch.setattr(sys, "argv", command)
    run.main()
    assert set(asked[1]) == {SHARDS, SKEW}
    said = json.loads((tmp_path / "beyond-test.json").read_text())
    assert said["leads"]["scaffold ntd"][SKEW]["lead"] == pytest.approx(0.1)
    assert said["worthy"] == []  # two wins, and it takes three
    assert "nobody" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*command, "--settings", "fedntd/table1:mnist/shard2"])
    (tmp_path / "beyond-test.json").unlink()
    with pytest.raises(UserError, match="no race in"):
        run.main()


def test_a_confirmation_is_of_one_method_in_settings_written_down_and_concludes_once(
    run, monkeypatch, tmp_path, capsys
):
    asked = []

    def measured(runs, settings, chosen, seeds, rounds, kept, seldom, **how):
        asked.append((settings, chosen, how["training.local_epochs"]))
        found = {s: {"fedntd": [0.5] * seeds, run.CONFIRMING[-1]: [0.6] * seeds} for s in settings}
        curves = {s: {n: [[v] for v in by_seed] for n, by_seed in d.items()} for s, d in found.items()}
        kept.write_text(json.dumps({"tenths": curves}))
        return found, curves

    monkeypatch.setattr(run, "measure", measured)
    command = ["run.py", "confirm", "--results", str(tmp_path), "--seeds"]
    for seeds in (2, 3):  # with two nothing is concluded, and what was played is kept
        monkeypatch.setattr(sys, "argv", [*command, f"{seeds}"])
        run.main()
        said = json.loads((tmp_path / "beyond-confirm.json").read_text())
        assert ("leads" in said) == (seeds == 3)
    assert said["worthy"] == [run.CONFIRMING[-1]]
    assert asked == [(list(run.CONFIRMED), {s: list(run.CONFIRMING) for s in run.CONFIRMED}, 1)] * 2
    assert all(run.config(s, n, 0, None) for s in run.CONFIRMED for n in run.CONFIRMING)
    assert not {*run.CONFIRMED} & {SHARDS, SKEW, "fedntd/table1:mnist/shard2"}, "looked at before"
    with pytest.raises(UserError, match="was looked at"):
        run.main()


def test_what_was_found_is_shown_as_a_table_of_those_with_enough_seeds(run, monkeypatch, tmp_path, capsys):
    raced = {
        SHARDS: {
            "fedntd": [0.50, 0.52, 0.51],
            "scaffold ntd": [0.53, 0.54, 0.55],
            "class-wise ntd": [0.7],
        }
    }
    monkeypatch.setattr(sys, "argv", ["run.py", "show", "--results", str(tmp_path)])
    with pytest.raises(UserError, match="select writes it"):
        run.main()
    (tmp_path / "beyond-select.json").write_text(json.dumps({"accuracy": raced, "leads": run.leads(raced)}))
    run.main()
    *_, row = capsys.readouterr().out.strip().splitlines()
    cells = [c.strip() for c in row.strip("|").split("|")]
    assert cells[:3] == [SHARDS, "fedntd 51.00 ± 1.00", "scaffold ntd 54.00 ± 1.00"]
    assert cells[3].startswith("+3.00 [+2.00, +")
    assert cells[4] == "3"
    ways = {"fedntd": [[0.1, 0.50], [0.2, 0.52], [0.3, 0.51]], "scaffold ntd": [[0.4, 0.53]] * 3}
    only = {SHARDS: {n: raced[SHARDS][n] for n in ways}}
    said = {"accuracy": only, "leads": run.leads(only), "tenths": {SHARDS: ways}}
    (tmp_path / "beyond-select.json").write_text(json.dumps(said))
    run.main()
    *_, row = capsys.readouterr().out.strip().splitlines()
    assert row == f"| {SHARDS}, scaffold ntd | +20.0 | +2.0 |"
