"""The loop over rounds: what it records, and that it can be stopped, resumed, extended, refused."""

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedrecall
from fedrecall import config as configs
from fedrecall import experiment as experiments
from fedrecall import trees
from fedrecall.algorithms import FedAvg
from fedrecall.backends import open_backend
from fedrecall.data import partitions
from fedrecall.data.datasets import Split, load
from fedrecall.errors import Interrupted, UserError
from fedrecall.experiment import Experiment
from fedrecall.measures.accuracy import evaluate
from fedrecall.records import Fault, RunFolder
from fedrecall.rounds import drive

SMALL = {
    "algorithm": "fedntd",
    "dataset": "synthetic:classes=4,train=160,test=80,size=8",
    "model": "mlp:8",
    "clients": 8,
    "sample": 3,
    "rounds": 4,
    "seed": 3,
    "backend": "serial",
    "training.local_epochs": 2,
    "training.batch_size": 7,
}


def config(**changes):
    values = SMALL | changes
    flat = {k: v for k, v in values.items() if "." not in k}
    return configs.make(configs.override(flat, {k: v for k, v in values.items() if "." in k}))


def same(a, b):
    a, b = trees.arrays(a), trees.arrays(b)
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.fixture(scope="module")
def straight():
    return Experiment(config()).run()


def test_the_record_says_what_happened(straight):
    assert [r["round"] for r in straight.history] == [1, 2, 3, 4]
    curve = np.array([r["class_accuracy"] for r in straight.history])
    last = straight.history[-1]
    assert last["forgetting"] == pytest.approx(np.mean(np.max(curve[:3], 0) - curve[3]))
    a, b = curve[2], curve[3]
    assert last["consistency"] == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)))
    assert last["lr"] == pytest.approx(0.01 * 0.99**3)
    assert sorted(len(c) for c in last["chains"]) == [1, 1, 1]
    model_bytes = trees.size_in_bytes(straight.weights)
    assert last["bytes_down"] == last["bytes_up"] == 3 * model_bytes
    again = evaluate(straight.model, straight.weights, straight.federation.test)
    assert straight.accuracy == np.trace(again.confusion) / 80


def test_the_folder_says_what_made_the_run(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    folder = tmp_path / "run"
    assert configs.make(json.loads((folder / "config.json").read_text())) == config(rounds=1)
    made = json.loads((folder / "made.json").read_text())[0]
    assert {"command", "versions", "cpu", "git", "started", "threads"} <= made.keys()
    assert torch.__version__.startswith(made["versions"]["torch"].split("+")[0])
    parts, _ = partitions.load(folder / "partition.json", 160)
    assert len(parts) == 8
    Experiment(config(rounds=2), folder, resume=True).run()
    starts = json.loads((folder / "made.json").read_text())
    assert [("run" in start) for start in starts] == [True, False]  # one name, however often it goes on
    assert starts[0] == made


def test_a_run_is_stopped_by_a_signal_after_its_round_and_resumes_bit_for_bit(tmp_path, straight, capsys):
    class Killer:
        def begin(self, config, history):
            pass

        def record(self, record):
            if record["round"] == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)

        def end(self):
            pass

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as stopped:
        Experiment(config(), tmp_path / "run", sinks=[Killer()]).run()
    assert stopped.value.signum == signal.SIGTERM
    assert capsys.readouterr().err == "stopping after this round; asked again, at once\n"
    assert len(RunFolder(tmp_path / "run").metrics()) in (2, 3)
    assert same(Experiment(config(), tmp_path / "run", resume=True).run().weights, straight.weights)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_process_without_an_error_stream_stops_after_its_round_too(tmp_path, monkeypatch):
    class Killer:
        def begin(self, config, history):
            pass

        def record(self, record):
            monkeypatch.setattr(sys, "stderr", None)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

        def end(self):
            pass

    with pytest.raises(Interrupted):
        Experiment(config(), tmp_path / "run", sinks=[Killer()]).run()
    assert len(RunFolder(tmp_path / "run").metrics()) in (1, 2)


def test_a_finished_run_can_be_extended(tmp_path, straight):
    Experiment(config(rounds=2), tmp_path / "run").run()
    assert same(Experiment(config(), tmp_path / "run", resume=True).run().weights, straight.weights)
    done = Experiment(config(), tmp_path / "run", resume=True).run()  # nothing left to do
    assert same(done.weights, straight.weights)
    assert len(done.history) == 4


@cache
def in_one_go(every):
    return Experiment(config(rounds=7, evaluate_every=every)).run()


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@settings(max_examples=12, deadline=None)
@given(every=st.integers(1, 4), ends=st.sets(st.integers(1, 6), min_size=1))
def test_a_run_that_was_extended_forgot_what_one_played_in_one_go_did(tmp_path_factory, every, ends):
    folder = tmp_path_factory.mktemp("extended") / "run"
    for rounds in (*sorted(ends), 7):
        extended = Experiment(config(rounds=rounds, evaluate_every=every), folder, resume=True).run()
    for found, expected in zip(extended.history, in_one_go(every).history, strict=True):
        assert found["round"] in ends or ("accuracy" in found) == ("accuracy" in expected)
        if "accuracy" in expected:
            for name in ("accuracy", "class_accuracy", "loss", "forgetting", "consistency"):
                assert found[name] == expected[name]


def test_a_damaged_checkpoint_costs_a_round_and_no_more(tmp_path, straight):
    Experiment(config(rounds=3), tmp_path / "run").run()
    path = tmp_path / "run" / "checkpoints" / "round-000003.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.warns(
        RuntimeWarning, match=r"round-000003\.safetensors is damaged.* Going on from round 2\."
    ):
        again = Experiment(config(), tmp_path / "run", resume=True)
    assert len(again.history) == 2
    assert same(again.run().weights, straight.weights)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path, straight):
    Experiment(config(rounds=1), tmp_path / "run").run()
    for path in (tmp_path / "run" / "checkpoints").iterdir():  # as a kill right after the record leaves it
        path.unlink()
    again = Experiment(config(), tmp_path / "run", resume=True)
    assert again.history == []
    assert same(again.run().weights, straight.weights)


def files_of(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def damage_all(folder):
    for path in (folder / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"x")


def lose_manifests(folder):
    for path in (folder / "checkpoints").glob("*.json"):
        path.unlink()


def lose_memories(folder):
    for path in (folder / "memories").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (damage_all, r"round-000003\.safetensors is damaged"),
        (lose_manifests, "holds none that can be read"),
        (lose_memories, "memories that are damaged or not there"),
    ],
)
@pytest.mark.parametrize("every", [1, 2, 100])
def test_a_run_whose_checkpoints_were_lost_is_refused_and_left_as_it_is(tmp_path, loss, said, every):
    run = tmp_path / "run"
    made = config(rounds=3, algorithm="scaffold")
    Experiment(made, run).run()
    loss(run)
    (run / "config.json").write_text(json.dumps(configs.as_dict(replace(made, checkpoint_every=every))))
    before = files_of(run)
    with pytest.raises(UserError, match=f"holds 3 rounds, but no checkpoint to go on from: .*{said}"):
        Experiment(config(rounds=5, algorithm="scaffold"), run, resume=True)
    assert files_of(run) == before


class StopsAt:
    """Asks the experiment to stop once a round was recorded."""

    def __init__(self, number):
        self.number, self.experiment = number, None

    def begin(self, config, history):
        pass

    def record(self, record):
        if record["round"] == self.number:
            self.experiment.ask_to_stop(signal.SIGTERM)

    def end(self):
        pass


def stopped_at(number, made, out):
    sink = StopsAt(number)
    sink.experiment = Experiment(made, out, sinks=[sink])
    with pytest.raises(Interrupted) as stopped:
        sink.experiment.run()
    return stopped.value


def test_a_round_that_was_recorded_before_the_signal_came_is_saved(tmp_path, straight):
    stop = stopped_at(2, config(checkpoint_every=10), tmp_path / "run")
    assert stop.saved
    assert [c.round_number for c in RunFolder(tmp_path / "run").checkpoints()] == [2]
    again = Experiment(config(), tmp_path / "run", resume=True)
    assert len(again.history) == 2
    assert same(again.run().weights, straight.weights)


def test_a_run_that_is_asked_to_stop_a_second_time_stops_at_once():
    run = Experiment(config())
    run.ask_to_stop(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run.ask_to_stop(signal.SIGTERM)


def test_a_run_without_a_folder_does_not_say_that_it_saved():
    assert not stopped_at(2, config(), None).saved


def test_a_run_cannot_be_resumed_to_fewer_rounds_than_it_has(tmp_path):
    Experiment(config(rounds=3), tmp_path / "run").run()
    before = files_of(tmp_path / "run")
    with pytest.raises(UserError, match="holds 3 rounds: it cannot be continued to rounds = 2"):
        Experiment(config(rounds=2), tmp_path / "run", resume=True)
    assert files_of(tmp_path / "run") == before


def test_a_run_that_ends_where_it_was_stopped_evaluates_its_last_round(tmp_path):
    stopped_at(2, config(evaluate_every=3), tmp_path / "run")
    result = Experiment(config(evaluate_every=3, rounds=2), tmp_path / "run", resume=True).run()
    expected = Experiment(config(evaluate_every=3, rounds=2)).run()
    for name in ("accuracy", "forgetting", "loss", "class_accuracy"):
        assert result.history[-1][name] == expected.history[-1][name]
    assert (result.accuracy, result.forgetting) == (expected.accuracy, expected.forgetting)
    assert RunFolder(tmp_path / "run").metrics() == list(result.history)
    longer = Experiment(config(evaluate_every=3), tmp_path / "run", resume=True).run()
    assert [r["round"] for r in longer.history if "accuracy" in r] == [2, 3, 4]


def test_other_data_of_the_same_size_are_refused(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    whole = Experiment(config()).federation.dataset
    labels = replace(whole, test=Split(whole.test.x, whole.test.y.flip(0).contiguous()))
    scale = replace(whole, mean=whole.mean * 1.01)
    rolled = replace(whole, train=Split(whole.train.x.roll(1, 0), whole.train.y))
    turned = replace(whole, test=Split(whole.test.x.flip(-1), whole.test.y))
    for other in (labels, scale, rolled, turned):
        with pytest.raises(UserError, match=r"other data, synthetic of 160 and 80 examples \(digest"):
            Experiment(config(rounds=2), tmp_path / "run", resume=True, dataset=other)
    shade = whole.train.x.clone()
    shade[::3, :, ::4] ^= 1  # as another decoder might
    alike = replace(whole, train=Split(shade, whole.train.y))
    Experiment(config(rounds=1), tmp_path / "run", resume=True, dataset=alike).run()
    made = tmp_path / "run" / "made.json"
    starts = json.loads(made.read_text())
    starts[-1]["data"]["sketch"][0] = None
    made.write_text(json.dumps(starts))
    with pytest.raises(UserError, match="other data"):
        Experiment(config(rounds=2), tmp_path / "run", resume=True)
    del starts[-1]
    del starts[0]["data"]["digest"]  # of a run that was begun before there was one
    made.write_text(json.dumps(starts))
    Experiment(config(rounds=2), tmp_path / "run", resume=True).run()
    assert "digest" in json.loads(made.read_text())[-1]["data"]


def test_only_what_does_not_change_the_result_may_change_on_resume(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    with pytest.raises(UserError, match="already holds a run"):
        Experiment(config(rounds=2), tmp_path / "run")
    with pytest.raises(UserError, match="seed = 3, not 4"):
        Experiment(config(rounds=2, seed=4), tmp_path / "run", resume=True)
    whole = Experiment(config()).federation.dataset
    less = replace(whole, test=Split(whole.test.x[:-8], whole.test.y[:-8]))
    with pytest.raises(
        UserError, match=r"other data, synthetic of 160 and 80 examples.*, not synthetic of 160 and 72"
    ):
        Experiment(config(rounds=2), tmp_path / "run", resume=True, dataset=less)
    Experiment(config(rounds=2, evaluate_every=2, measures=["locals"]), tmp_path / "run", resume=True).run()


def test_a_run_that_was_begun_before_a_setting_existed_goes_on_with_its_default(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    path = tmp_path / "run" / "config.json"
    known = json.loads(path.read_text())
    del known["test_augmentation"], known["training"]["momentum"]
    path.write_text(json.dumps(known))
    with pytest.raises(UserError, match="test_augmentation = 'none', not 'flip'"):
        Experiment(config(rounds=2, test_augmentation="flip"), tmp_path / "run", resume=True)
    assert len(Experiment(config(rounds=2), tmp_path / "run", resume=True).run().history) == 2


def test_a_refused_run_leaves_the_folder_free(tmp_path):
    with pytest.raises(UserError):
        Experiment(
            config(dataset="synthetic:classes=4,train=16,test=80,size=8", partition="lda:0.1"), tmp_path / "x"
        )
    RunFolder(tmp_path / "x").acquire()


def test_evaluation_every_n_rounds_and_always_the_last():
    history = Experiment(config(evaluate_every=3)).run().history
    assert [r["round"] for r in history if "accuracy" in r] == [3, 4]
    assert history[-1]["forgetting"] is not None


def test_checkpoints_every_n_rounds_and_always_the_last(tmp_path):
    Experiment(config(checkpoint_every=3), tmp_path / "run").run()
    assert [c.round_number for c in RunFolder(tmp_path / "run").checkpoints()] == [4, 3]


def test_models_of_every_nth_round_stay_and_are_what_they_were(tmp_path):
    made = {"algorithm": "scaffold", "rounds": 5, "checkpoint_every": 4, "keep_every": 2}
    Experiment(config(**made), tmp_path / "run").run()
    folder = RunFolder(tmp_path / "run")
    assert folder.saved_rounds() == [2, 4, 5]
    Experiment(config(**made | {"rounds": 7, "keep_every": 0}), tmp_path / "run", resume=True).run()
    assert folder.saved_rounds() == [2, 4, 5, 7]  # 4 and 5 are kept: one to stay, one of the last two
    again = fedrecall.trained(tmp_path / "run", 2).network.state_dict()
    other = Experiment(config(algorithm="scaffold", rounds=2)).run().trained.network.state_dict()
    assert all(torch.equal(again[name], other[name]) for name in other)
    remembered = {n for c in folder.checkpoints() for n in c.memories.values()}
    assert {p.name for p in (tmp_path / "run" / "memories").iterdir()} == remembered


def test_a_model_that_stays_does_not_change_the_run(tmp_path, straight):
    assert same(Experiment(config(keep_every=1), tmp_path / "run").run().weights, straight.weights)


def test_measures_are_recorded_with_their_cost():
    history = Experiment(config(measures=["locals"])).run().history
    last = history[-1]
    measured = last["measures"]["locals"]
    assert len(measured["in_local"]["local"]) == 3
    assert last["seconds"]["measures"]["locals"] > 0


def test_a_measure_that_skips_rounds_is_taken_after_the_last():
    history = Experiment(config(measures=["locals:2"], rounds=3)).run().history
    assert [r["round"] for r in history if "measures" in r] == [2, 3]


MEDDLES = """
from dataclasses import dataclass
from fedrecall import trees
from fedrecall.measures.moment import Measure

@dataclass(frozen=True)
class Meddles(Measure):
    what: str = "after"

    def __call__(self, moment):
        if self.what == "memory":
            next(tensor for _, tensor in trees.leaves(moment.good[0].memory)).add_(1)
        elif self.what == "upload":
            next(iter(moment.good[1].up.weights.params.values())).add_(1)
        elif self.what == "dict":
            moment.after.params.update({n: p * 0 for n, p in moment.after.params.items()})
        elif self.what != "nothing":
            next(iter(getattr(moment, self.what).params.values())).add_(1)
        return {}
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("before", "before/params/"),
        ("after", "after/params/"),
        ("dict", "after/params/"),
        ("upload", "uploads/1/weights/params/"),
        ("memory", "memories/0/"),
    ],
)
def test_a_measure_that_changes_what_it_looks_at_is_told(what, said, tmp_path):
    (tmp_path / "mine.py").write_text(MEDDLES)
    measure = f"{tmp_path / 'mine.py'}:Meddles"
    settings = {"algorithm": "scaffold", "rounds": 1}
    Experiment(config(measures=[f"{measure}:what=nothing"], **settings)).run()
    with pytest.raises(UserError, match=rf"`measure .*mine\.py:Meddles` changes .*{said}.* in place"):
        Experiment(config(measures=[f"{measure}:what={what}"], **settings)).run()


MINE = """
from dataclasses import dataclass
from torch import nn
from fedrecall.measures.moment import Measure

def net(classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))

@dataclass(frozen=True)
class M(Measure):
    def __call__(self, moment):
        return {"one": 1}
"""


@pytest.mark.parametrize("model", ["mine.py:net:width=5", {"name": "mine.py:net", "width": 5}])
def test_a_network_and_a_measure_are_those_of_the_folder_in_which_a_run_was_begun(
    model, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here/mine.py").write_text(MINE)
    (tmp_path / "there/mine.py").write_text(MINE.replace('"one": 1', '"two": 2'))
    monkeypatch.chdir(tmp_path / "here")
    settings = {"model": model, "measures": ["mine.py:M"]}
    first = Experiment(config(rounds=1, **settings), tmp_path / "run").run()
    monkeypatch.chdir(tmp_path / "there")
    found = fedrecall.run(tmp_path / "run", resume=True, rounds=2, progress=False)
    assert [r["measures"] for r in found.history] == [{"mine.py:M": {"one": 1}}] * 2
    images = found.federation.dataset.test.x
    assert fedrecall.trained(tmp_path / "run").predict(images) == found.trained.predict(images)
    assert first.weights.params["1.weight"].shape == (5, 64)
    monkeypatch.chdir(tmp_path / "here")
    Experiment(config(rounds=3, **settings), tmp_path / "run", resume=True).run()


def test_a_run_of_an_earlier_version_which_named_its_network_from_a_folder_goes_on_there(
    tmp_path, monkeypatch
):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    settings = {"model": "mine.py:net", "measures": ["mine.py:M"]}
    Experiment(config(rounds=1, **settings), tmp_path / "run").run()
    saved = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps(saved | settings))
    Experiment(config(rounds=2, **settings), tmp_path / "run", resume=True).run()
    assert json.loads((tmp_path / "run/config.json").read_text()) == saved | {"rounds": 2}
    (tmp_path / "run/config.json").write_text(json.dumps(saved | settings))
    assert len(fedrecall.run(tmp_path / "run", resume=True, rounds=3, progress=False).history) == 3


DRAWS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.out = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(x) if self.training else self.out(x + torch.randn_like(x))
"""


def test_a_network_that_draws_when_it_is_evaluated_draws_by_seed_and_round(tmp_path):
    (tmp_path / "mynet.py").write_text(DRAWS)
    settings = {"model": f"{tmp_path / 'mynet.py'}:Net", "measures": ["locals", "confusion:locals=true"]}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    straight = Experiment(config(**settings)).run()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    Experiment(config(rounds=2, **settings), tmp_path / "run").run()
    resumed = Experiment(config(**settings), tmp_path / "run", resume=True).run()
    for a, b in zip(resumed.history, straight.history, strict=True):
        for key in ("accuracy", "loss", "class_accuracy", "measures"):
            assert a[key] == b[key]


def test_a_run_folder_may_be_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    given = {k: v for k, v in SMALL.items() if "." not in k} | {"rounds": 1, "progress": False}
    assert fedrecall.run("~/runs/x", **given).out == tmp_path / "home" / "runs" / "x"
    assert len(fedrecall.run("~/runs/x", resume=True, rounds=2, progress=False).history) == 2
    assert Experiment(config(rounds=1), "~/runs/y").folder.path == tmp_path / "home" / "runs" / "y"
    assert not (tmp_path / "~").exists()


def test_exploding_clients_stop_the_run_if_all_fail_and_the_last_good_model_stays(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    exploding = config(**{"training.lr": 1e30, "algorithm": "fedavg"})
    with pytest.raises(UserError, match=r"every client of the round failed, first client \d+, round 1, step"):
        Experiment(exploding, tmp_path / "other").run()


@pytest.mark.parametrize(
    ("every", "kept"),
    [
        (1, "The model of round 3 is kept."),
        (2, "The last saved model is that of round 2: checkpoint_every is 2."),
        (9, "No model was saved: checkpoint_every is 9."),
    ],
)
def test_what_is_kept_of_a_run_that_diverges_is_told_as_it_is(every, kept, tmp_path, monkeypatch):
    def aggregate(self, server, ups, cohort):
        made.append(len(made))
        grown = {n: p * (float("inf") if len(made) == 4 else 1) for n, p in server.weights.params.items()}
        return server._replace(weights=server.weights._replace(params=grown))

    made: list[int] = []
    monkeypatch.setattr(FedAvg, "aggregate", aggregate)
    run = Experiment(config(algorithm="fedavg", rounds=5, checkpoint_every=every), tmp_path / "run")
    with pytest.raises(UserError, match=f"uploads make holds NaN or Inf\\. {re.escape(kept)}"):
        run.run()
    saved = sorted((tmp_path / "run").glob("checkpoints/*.safetensors"))
    assert bool(saved) == (every < 9)


def test_a_model_too_far_gone_to_be_tested_is_not_what_a_run_goes_on_from(tmp_path, monkeypatch):
    def aggregate(self, server, ups, cohort):
        made.append(len(made))
        grown = {n: p * (1e30 if len(made) == 3 else 1) for n, p in server.weights.params.items()}
        return server._replace(weights=server.weights._replace(params=grown))  # finite, all of it

    made: list[int] = []
    with monkeypatch.context() as changed:
        changed.setattr(FedAvg, "aggregate", aggregate)
        run = Experiment(config(algorithm="fedavg", precision="float32"), tmp_path / "run")
        with pytest.raises(
            UserError, match=r"loss of round 3's model is (nan|inf) .*model of round 2 is kept"
        ):
            run.run()
    found = Experiment(config(algorithm="fedavg", precision="float32"), tmp_path / "run", resume=True).run()
    assert [math.isfinite(r["loss"]) for r in found.history] == [True] * 4


def test_what_ended_a_run_stands_in_its_folder_until_it_goes_on(tmp_path, monkeypatch):
    def aggregate(self, server, ups, cohort):
        made.append(len(made))
        assert folder.fault is None
        if len(made) == 3:
            raise error
        return server

    folder = RunFolder(tmp_path / "run")
    where = f"In `aggregate` of test_experiment.py, line {aggregate.__code__.co_firstlineno + 4}."
    for error, reason in (
        (UserError("it is too far."), "it is too far."),
        (KeyError("w"), f"KeyError: 'w'. {where}"),
    ):
        made: list[int] = []
        run = Experiment(config(algorithm="fedavg", rounds=6), folder.path, resume=True)
        with monkeypatch.context() as changed:
            changed.setattr(FedAvg, "aggregate", aggregate)
            with pytest.raises(type(error)):
                run.run()
        assert folder.fault == Fault(len(folder.metrics()) + 1, reason)
    assert folder.fault.round_number == 5
    assert len(Experiment(config(algorithm="fedavg", rounds=6), folder.path, resume=True).run().history) == 6
    assert folder.fault is None


def test_an_error_after_the_last_round_is_of_that_round(tmp_path):
    class Sink:
        def begin(self, config, history): ...
        def end(self): ...
        def record(self, record):
            if record["round"] == 2:
                raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        Experiment(config(rounds=2), tmp_path / "run", sinks=[Sink()]).run()
    folder = RunFolder(tmp_path / "run")
    line = Sink.record.__code__.co_firstlineno + 2
    assert folder.fault == Fault(2, f"OSError: no room. In `record` of test_experiment.py:Sink, line {line}.")
    Experiment(config(rounds=2), tmp_path / "run", resume=True).run()
    assert folder.fault is None


def test_a_run_that_was_stopped_has_not_failed(tmp_path):
    stopped_at(2, config(), tmp_path / "run")
    assert RunFolder(tmp_path / "run").fault is None


def test_where_a_saved_model_cannot_be_trained_on_the_way_back_is_said(tmp_path, monkeypatch):
    def aggregate(self, server, ups, cohort):
        made.append(len(made))
        grown = {n: p * (1e30 if len(made) == 3 else 1) for n, p in server.weights.params.items()}
        return server._replace(weights=server.weights._replace(params=grown))

    made: list[int] = []
    settings = {"algorithm": "fedavg", "precision": "float32", "evaluate_every": 4}  # nobody looks in time
    with monkeypatch.context() as changed:
        changed.setattr(FedAvg, "aggregate", aggregate)
        with pytest.raises(UserError, match=r"every client .* the newest round-\*\.json of .*checkpoints"):
            Experiment(config(**settings), tmp_path / "run").run()
    with pytest.raises(UserError, match="too far gone"):
        Experiment(config(**settings), tmp_path / "run", resume=True).run()
    with monkeypatch.context() as changed:
        changed.setattr(FedAvg, "aggregate", aggregate)
        made[:] = [0, 1]
        with pytest.raises(UserError, match="every client ") as first:
            Experiment(config(**settings), tmp_path / "first").run()
    assert "The model of round 1 is kept." in str(first.value)
    assert "too far gone" not in str(first.value)  # there is none before it
    max((tmp_path / "run" / "checkpoints").glob("round-*.json")).unlink()
    assert len(Experiment(config(**settings), tmp_path / "run", resume=True).run().history) == 4


def test_a_run_that_is_looked_at_less_often_from_here_on_still_looks_back(tmp_path):
    Experiment(config(rounds=3), tmp_path / "run").run()
    with_gaps = Experiment(config(rounds=5, evaluate_every=2), tmp_path / "run", resume=True).run().history
    whole = Experiment(config(rounds=5)).run().history
    assert [bool(r.get("off_grid")) for r in with_gaps if "accuracy" in r] == [False] * 4 + [True]
    table = np.array([r["class_accuracy"] for r in whole])
    looked_back = table[[0, 1, 2]].max(0)
    assert with_gaps[3]["forgetting"] == pytest.approx((looked_back - table[3]).mean())
    again = Experiment(config(rounds=6, evaluate_every=3), tmp_path / "run", resume=True).run().history
    looked_back = table[[0, 1, 2, 3]].max(0)  # not at round 5, which was tested for having been the last
    last = np.array(again[5]["class_accuracy"])
    assert again[5]["forgetting"] == pytest.approx((looked_back - last).mean())


def test_the_mean_of_finite_losses_is_finite():
    def absurd(jobs):
        return [visit._replace(loss=1.7e308) for visit in backend.map(jobs)]

    run = Experiment(config(rounds=1))
    backend = open_backend("serial", run.work)
    (record,) = drive(run.loop(), absurd).history
    run.close()
    assert record["train_loss"] == pytest.approx(1.7e308)


def test_a_failure_can_stop_the_run():
    with pytest.raises(UserError, match=r"client \d+, round 1, step \d+.*A run without a folder keeps no"):
        Experiment(config(**{"training.lr": 1e30, "on_failure": "stop"})).run()


def test_a_run_outside_the_main_thread_works(straight):
    found = []
    thread = threading.Thread(target=lambda: found.append(Experiment(config()).run()))
    thread.start()
    thread.join()
    assert same(found[0].weights, straight.weights)


def test_five_lines_of_python(straight):
    result = fedrecall.run(**SMALL)
    assert same(result.weights, straight.weights)
    given = fedrecall.run(**(SMALL | {"dataset": straight.federation.dataset}))
    assert same(given.weights, straight.weights)


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_a_run_with_validation_never_looks_at_the_test_split(backend, tmp_path):
    data = load(SMALL["dataset"])
    other = replace(data, test=replace(data.test, x=255 - data.test.x, y=data.test.y.flip(0)))
    how = {"validation": 0.25, "backend": backend, "rounds": 2}
    straight, without = (Experiment(config(**how), dataset=d).run() for d in (data, other))
    assert [r["accuracy"] for r in without.history] == [r["accuracy"] for r in straight.history]
    assert {r["split"] for r in straight.history} == {"validation"}
    assert "validation accuracy" in repr(straight)
    again = evaluate(straight.model, straight.weights, straight.federation.test)
    assert straight.accuracy == np.trace(again.confusion) / 40
    Experiment(config(**how | {"rounds": 1}), tmp_path / "run", dataset=data).run()
    resumed = Experiment(config(**how), tmp_path / "run", resume=True, dataset=data).run()
    assert same(resumed.weights, straight.weights)
    assert [r["accuracy"] for r in resumed.history] == [r["accuracy"] for r in straight.history]
    for share in (0.0, 0.5):
        with pytest.raises(UserError, match=r"begun with validation = 0\.25"):
            Experiment(config(**how | {"validation": share}), tmp_path / "run", resume=True, dataset=data)


def test_a_run_that_divides_what_is_undivided_goes_on_as_it_was_begun(tmp_path):
    data = load(SMALL["dataset"])
    how = config(validation=0.2, rounds=1)
    Experiment(how, tmp_path / "run", dataset=data).run()  # as by a version that did not know of units
    noted = replace(data, undivided=True)
    again = Experiment(replace(how, rounds=2), tmp_path / "run", resume=True, dataset=noted).run()
    assert len(again.records) == 2


def test_a_partition_without_a_config_is_of_no_run(tmp_path, straight):
    Experiment(config(rounds=1, clients=7), tmp_path / "run").run()
    for path in ("config.json", "made.json", "metrics.jsonl"):  # as a kill before config.json leaves it
        (tmp_path / "run" / path).unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert same(Experiment(config(), tmp_path / "run").run().weights, straight.weights)


def test_a_partition_of_other_clients_is_refused(tmp_path):
    Experiment(config(rounds=1, clients=7), tmp_path / "other").run()
    Experiment(config(rounds=1), tmp_path / "run").run()
    (tmp_path / "run" / "partition.json").write_bytes((tmp_path / "other" / "partition.json").read_bytes())
    with pytest.raises(UserError, match="of 7 clients, but the run has 8"):
        Experiment(config(), tmp_path / "run", resume=True)


def test_a_checkpoint_of_another_model_is_not_taken_for_a_start_from_scratch(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace("mlp:8", "mlp:9"))
    with pytest.raises(UserError, match="another algorithm or model"):
        Experiment(config(model="mlp:9"), tmp_path / "run", resume=True)


def test_a_full_disk_costs_the_round_and_says_so(tmp_path, straight, monkeypatch):
    written = []

    def full(source, target, replace=os.replace):
        written.append(target)
        if len(written) == 9:  # the second round's manifest
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"No space left on device.*resume the run"):
        Experiment(config(), tmp_path / "run").run()
    monkeypatch.undo()
    again = Experiment(config(), tmp_path / "run", resume=True)
    assert len(again.history) in (1, 2)
    assert same(again.run().weights, straight.weights)


def test_a_sink_that_fails_at_the_end_does_not_keep_the_folder(tmp_path):
    class Full:
        def begin(self, config, history):
            pass

        def record(self, record):
            pass

        def end(self):
            raise UserError("cannot write to it")

    with pytest.raises(UserError, match="cannot write to it"):
        Experiment(config(rounds=1), tmp_path / "run", sinks=[Full()]).run()
    assert len(Experiment(config(rounds=1), tmp_path / "run", resume=True).history) == 1


@pytest.mark.parametrize("where", ["the backend", "another sink"])
def test_only_a_sink_that_began_ends(where, tmp_path, monkeypatch):
    asked = []

    class Sink:
        def __init__(self, name, fails=False):
            self.name, self.fails = name, fails

        def begin(self, config, history):
            if self.fails:
                raise UserError("no room")
            asked.append(f"begin {self.name}")

        def record(self, record):
            pass

        def end(self):
            asked.append(f"end {self.name}")

    if where == "the backend":
        monkeypatch.setattr(experiments, "open_backend", unopened)
    sinks = [Sink("one"), Sink("two", fails=True), Sink("three")]
    with pytest.raises(UserError, match="no room"):
        Experiment(config(), tmp_path / "run", sinks=sinks).run()
    assert asked == ([] if where == "the backend" else ["begin one", "end one"])


def test_settings_of_the_local_training_may_be_named_alone():
    small = {"dataset": "synthetic:3,60,15", "clients": 4, "sample": 2, "rounds": 2, "model": "mlp:4"}
    result = fedrecall.run(**small, local_epochs=2, lr=0.5)
    assert (result.config.training.local_epochs, result.config.training.lr) == (2, 0.5)
    assert repr(result) == (
        f"<Result of fedavg on synthetic: accuracy {result.accuracy:.2%}, "
        f"forgetting {result.forgetting:.3f} after 2 rounds>"
    )
    last = {k: v for k, v in result.records[-1].items() if k not in ("accuracy", "forgetting")}
    untested = replace(result, records=[*result.records[:-1], last])  # as of a federation whose nodes left
    assert math.isnan(untested.accuracy)
    assert math.isnan(untested.forgetting)
    assert repr(untested) == "<Result of fedavg on synthetic: last round tested by nobody after 2 rounds>"


COUNTING = """
from dataclasses import dataclass
from typing import NamedTuple
from fedrecall.algorithms.fedavg import FedAvg

class Memory(NamedTuple):
    visits: int

@dataclass(frozen=True)
class Counting(FedAvg):
    def remember(self, weights):
        return Memory(0)
"""


def test_what_a_checkpoint_would_leave_out_is_refused_before_a_round(tmp_path):
    (tmp_path / "mine.py").write_text(COUNTING)
    with pytest.raises(UserError, match="a client's memory has visits = 0, which no checkpoint would hold"):
        Experiment(configs.make({"dataset": "digits", "algorithm": f"{tmp_path}/mine.py:Counting"}))
    pairs = COUNTING.replace("Memory(0)", "Memory({(0, 1): next(iter(weights.params.values()))})")
    (tmp_path / "pairs.py").write_text(pairs)
    with pytest.raises(
        UserError, match=r"visits = {\(0, 1\): tensor[^}]*}, which no checkpoint would hold: make its keys"
    ):
        Experiment(configs.make({"dataset": "digits", "algorithm": f"{tmp_path}/pairs.py:Counting"}))
    state = COUNTING.replace("def remember", "def start").replace("Memory(0)", "Memory(0, weights)")
    state = state.replace("visits: int", "visits: int\n    weights: object")
    (tmp_path / "also.py").write_text(state)
    with pytest.raises(UserError, match="the server's state has visits = 0, which no checkpoint would hold"):
        Experiment(configs.make({"dataset": "digits", "algorithm": f"{tmp_path}/also.py:Counting"}))


def test_a_class_without_test_examples_is_told_of_once(tmp_path):
    whole = load(SMALL["dataset"])

    def only(kept):
        return replace(whole, test=Split(whole.test.x[kept], whole.test.y[kept]))

    part = only(whole.test.y != 2)
    with pytest.warns(RuntimeWarning, match="nothing is tested of '2': a class") as said:
        result = Experiment(config(), dataset=part).run()
    assert len(said) == 1
    curve = np.array([r["class_accuracy"] for r in result.history])[:, [0, 1, 3]]
    assert result.forgetting == pytest.approx((curve[:-1].max(0) - curve[-1]).mean())
    with pytest.warns(RuntimeWarning, match=r"nothing is tested of '1', '2', '3': a class"):
        Experiment(config(rounds=1), dataset=only(whole.test.y == 0)).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Experiment(config(), dataset=whole).run()


def test_a_run_of_whose_rounds_one_was_lost_is_refused(tmp_path):
    Experiment(config(rounds=3), tmp_path / "run").run()
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="lacks rounds before round 3"):
        Experiment(config(), tmp_path / "run", resume=True)


def test_a_secret_run_begins_with_draws_that_nobody_can_repeat(monkeypatch):
    def start(self, weights):
        drawn[-1].add(float(torch.rand(())))
        return plain(self, weights)

    plain, drawn = FedAvg.start, list[set[float]]()
    monkeypatch.setattr(FedAvg, "start", start)
    for secret in (False, False, True, True):
        drawn.append(set())
        Experiment(config(algorithm={"name": "private", "secret": secret}))
    assert drawn[0] & drawn[1]
    assert not drawn[2] & drawn[3]


def test_a_run_goes_on_in_python_without_its_settings(tmp_path):
    settings = {"lr": 0.05, "clients": 6, "sample": 2, "model": "mlp:4", "backend": "serial"}
    settings["dataset"] = SMALL["dataset"]
    fedrecall.run(tmp_path / "run", rounds=1, **settings)
    result = fedrecall.run(tmp_path / "run", resume=True, rounds=2)
    assert len(result.history) == 2
    assert result.config.training.lr == 0.05
    with pytest.raises(UserError, match=r"begun with clients = 6, not 7"):
        fedrecall.run(tmp_path / "run", resume=True, rounds=3, **settings | {"clients": 7})
    with pytest.raises(UserError, match=r"begun with training.lr = 0.05, not"):  # one that was left out
        fedrecall.run(tmp_path / "run", resume=True, **{k: v for k, v in settings.items() if k != "lr"})


def test_one_sink_needs_no_list(tmp_path):
    result = fedrecall.run(
        dataset=SMALL["dataset"],
        model="mlp:4",
        clients=4,
        sample=2,
        rounds=1,
        out=tmp_path / "run",
        sinks="tensorboard",
    )
    assert result.config.sinks == ("tensorboard",)


def test_a_run_that_failed_before_its_first_round_may_be_begun_anew(tmp_path):
    class Fails:
        def begin(self, config, history):
            raise RuntimeError("no")

        def record(self, record):
            pass

        def end(self):
            pass

    with pytest.raises(RuntimeError):
        Experiment(config(), tmp_path / "run", sinks=[Fails()]).run()
    assert RunFolder(tmp_path / "run").started
    result = Experiment(config(seed=4), tmp_path / "run").run()
    assert same(result.weights, Experiment(config(seed=4)).run().weights)
    with pytest.raises(UserError, match="already holds a run"):
        Experiment(config(), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("damaged")
    with pytest.raises(UserError, match="already holds a run"):
        Experiment(config(), tmp_path / "run")


def test_a_backend_that_could_not_be_opened_is_not_that_of_the_run(tmp_path, straight, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(experiments, "open_backend", unopened)
    with pytest.raises(UserError, match="no room"):
        Experiment(config(), folder).run()
    assert not RunFolder(folder).started
    monkeypatch.undo()
    Experiment(config(rounds=2), folder).run()
    before = (folder / "config.json").read_bytes(), (folder / "made.json").read_bytes()
    monkeypatch.setattr(experiments, "open_backend", unopened)
    with pytest.raises(UserError, match="no room"):
        Experiment(config(backend="ray:memory=1e6", workers=100), folder, resume=True).run()
    monkeypatch.undo()
    assert before == ((folder / "config.json").read_bytes(), (folder / "made.json").read_bytes())
    result = Experiment(config(), folder, resume=True).run()
    assert same(result.weights, straight.weights)


def unopened(*_):
    raise UserError("no room")


def test_a_run_with_a_backend_that_cannot_be_had_any_more_goes_on_with_another(tmp_path, straight):
    Experiment(config(rounds=2), tmp_path).run()
    saved = tmp_path / "config.json"
    saved.write_text(saved.read_text().replace('"serial"', '"proceses"'))
    with pytest.raises(UserError, match="did you mean 'processes'"):
        configs.begun(RunFolder(tmp_path).config())
    assert same(Experiment(config(), tmp_path, resume=True).run().weights, straight.weights)


def test_sinks_and_measures_that_cannot_be_had_any_more_do_not_hold_up_a_run(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    saved |= {"sinks": ["mlflow:http://me:secret@host"], "measures": ["gone.py:Gone"]}
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    assert len(Experiment(config(rounds=2), tmp_path / "run", resume=True).run().history) == 2
    assert "secret" not in (tmp_path / "run" / "config.json").read_text()


COUNTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, how):
        super().__init__()
        self.how, self.out = how, nn.Linear(64, classes)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training and self.how == "in place":
            self.seen += 1
        elif self.training and self.how == "anew":
            self.seen = self.seen + 1
        return self.out(x.flatten(1)) + 0 * self.seen
"""


@pytest.mark.parametrize("how", ["in place", "anew", "never"])
def test_a_buffer_that_is_not_saved_may_not_change(how, tmp_path):
    (tmp_path / "net.py").write_text(COUNTS)
    run = Experiment(config(model=f"{tmp_path / 'net.py'}:Net:how={how}", algorithm="fedavg"))
    if how == "never":
        assert len(run.run().history) == 4
        return
    with pytest.raises(UserError, match=r"changes its buffer 'seen'.*Register it as persistent"):
        run.run()


def test_a_checkpoint_in_another_precision_is_of_another_model(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    folder = RunFolder(tmp_path / "run")
    saved = next(folder.checkpoints())
    wide = {n: t.double() if t.is_floating_point() else t for n, t in saved.arrays.items()}
    folder.save(saved._replace(arrays=wide))
    with pytest.raises(UserError, match="another algorithm or model"):
        Experiment(config(), tmp_path / "run", resume=True)


def deal(path, parts, **meta):
    partitions.save(path, [np.array(part) for part in parts], meta)
    return f"file:{path}"


QUARTERS = [range(k, 160, 4) for k in range(4)]


def dealt(path, **changes):
    return config(**{"partition": deal(path, QUARTERS), "clients": 4, "rounds": 2} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partition": "lda:0.5,min_size=1", "partition_seed": 5},
        {"partition": "lda:0.5,min_size=1", "global_seed": 5},
        {"algorithm": "fedssd:auxiliary_per_class=3", "partition": "iid"},
        {"algorithm": "fedavg", "auxiliary_per_class": 2},
        {"algorithm": "fedseq", "partition": "classes:2"},
    ],
)
def test_a_runs_own_partition_file_makes_the_same_run_again_and_so_does_going_on(tmp_path, changes):
    drawn = Experiment(config(**changes), tmp_path / "drawn").run()
    again = changes | {"partition": f"file:{tmp_path / 'drawn' / 'partition.json'}", "partition_seed": None}
    Experiment(config(**{**again, "rounds": 2}), tmp_path / "again").run()
    filed = Experiment(config(**again), tmp_path / "again", resume=True).run()
    assert same(filed.weights, drawn.weights)
    for one, other in zip(filed.federation.parts, drawn.federation.parts, strict=True):
        assert np.array_equal(one, other)
    auxiliaries = filed.federation.auxiliary_part, drawn.federation.auxiliary_part
    assert np.array_equal(*auxiliaries) if auxiliaries[1] is not None else auxiliaries[0] is None
    held = [json.loads((tmp_path / run / "partition.json").read_text()) for run in ("again", "drawn")]
    assert held[0] == held[1]


def test_examples_that_a_file_gives_to_nobody_are_not_trained_on_and_serve_the_server(tmp_path):
    few = [[k, k + 4, k + 8] for k in range(4)]
    spec = deal(tmp_path / "p.json", few)
    told = Experiment(config(partition=spec, clients=4, rounds=1)).run()
    assert told.federation.counts.sum() == 12
    with_server = config(partition=spec, clients=4, rounds=1, algorithm="fedssd:auxiliary_per_class=5")
    auxiliary = Experiment(with_server).federation.auxiliary_part
    assert len(auxiliary) == 20
    assert not set(auxiliary.tolist()) & {i for part in few for i in part}
    whole = deal(tmp_path / "whole.json", QUARTERS)
    with pytest.raises(UserError, match=r"all but 0 examples of class 0.*--auxiliary-per-class 5 --save"):
        Experiment(replace(with_server, partition=whole))


def test_validation_is_taken_from_what_a_file_gives_clients(tmp_path):
    path = tmp_path / "p.json"
    made = dealt(path, validation=0.25)
    run = Experiment(made, tmp_path / "run")
    held = np.setdiff1d(np.concatenate(QUARTERS), np.concatenate(run.federation.parts))
    assert len(held) == len(run.federation.test) == 40
    assert all(set(mine) <= set(given) for mine, given in zip(run.federation.parts, QUARTERS, strict=True))
    run.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the file has not changed
        Experiment(replace(made, rounds=5), tmp_path / "run", resume=True).run()
    few = deal(path, [[int(held[0])], *([k] for k in np.setdiff1d(np.arange(160), held)[:3].tolist())])
    with pytest.raises(
        UserError, match=r"validation = 0\.25 takes all that .* gives client 0: hold out less"
    ):
        Experiment(replace(made, partition=few))


def test_a_partition_file_of_other_data_is_refused(tmp_path):
    Experiment(config(rounds=1), tmp_path / "run").run()
    spec = f"file:{tmp_path / 'run' / 'partition.json'}"
    for other in ("train=160,test=80,size=8,seed=1", "train=161,test=80,size=8"):
        with pytest.raises(UserError, match="is of other data, synthetic of 160 and 80 examples"):
            Experiment(config(partition=spec, dataset=f"synthetic:classes=4,{other}"))
    renamed = replace(load(SMALL["dataset"]), name="mine")
    Experiment(config(partition=spec), dataset=renamed)


@pytest.mark.parametrize("change", ["none", "other", "damaged", "gone"])
def test_a_run_goes_on_with_what_each_client_held_whatever_has_become_of_the_file(tmp_path, change):
    path = tmp_path / "p.json"
    straight = Experiment(dealt(path)).run()
    Experiment(dealt(path, rounds=1), tmp_path / "run").run()
    made = dealt(path)
    if change == "other":
        deal(path, QUARTERS[::-1])
    elif change == "damaged":
        path.write_text("{")
    elif change == "gone":
        path.unlink()
    changed = change in ("other", "damaged")
    with pytest.warns(RuntimeWarning, match="has changed since") if changed else warnings.catch_warnings():
        warnings.simplefilter("always" if changed else "error")
        resumed = Experiment(made, tmp_path / "run", resume=True).run()
    assert same(resumed.weights, straight.weights)


def test_a_run_does_not_go_on_by_its_file_where_its_own_copy_is_gone(tmp_path):
    path = tmp_path / "p.json"
    Experiment(dealt(path, rounds=1), tmp_path / "run").run()
    (tmp_path / "run" / "partition.json").unlink()
    with pytest.raises(UserError, match=r"partition\.json is gone, which says who held what"):
        Experiment(dealt(path), tmp_path / "run", resume=True)
