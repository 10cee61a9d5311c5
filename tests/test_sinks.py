"""Every service in its own offline form, read back with its own reader; those not installed are skipped."""

import importlib.util
import json
import posixpath
import re
import shutil
import sqlite3
import struct
import sys
import time
import types
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedrecall
from fedrecall import config as configs
from fedrecall import sinks, trees
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.records import scalars

SMALL = {
    "dataset": "synthetic:3,train=60,test=30",
    "model": "mlp",
    "clients": 4,
    "sample": 2,
    "rounds": 3,
    "partition": "shards:2",
    "training.local_epochs": 1,
    "backend": "serial",
}


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed (pip install 'fedrecall[sinks]')")


@pytest.fixture
def service(monkeypatch):
    """A service that keeps what it is told, under the name 'pocket'."""
    module = types.ModuleType("pocket")
    monkeypatch.setitem(sys.modules, "pocket", module)
    module.__spec__ = importlib.util.spec_from_loader("pocket", None)

    @dataclass(frozen=True)
    class Pocket(sinks.Service):
        package: ClassVar[str] = "pocket"
        told: ClassVar[list] = []
        closed: ClassVar[int] = 0
        fails_at: ClassVar[int | None] = None
        killed_after: ClassVar[int | None] = None
        keeps: ClassVar[bool] = False
        """Whether a log goes on where it ended."""

        def open(self, name, folder, config):
            Pocket.told.append(("open", name, config["seed"]))

            def write(step, numbers):
                if step == Pocket.fails_at:
                    raise OSError("no space left")
                Pocket.told.append((step, numbers))
                if step == Pocket.killed_after:
                    raise KeyboardInterrupt

            def close():
                Pocket.closed += 1

            def held(name):
                return {step for step, *numbers in Pocket.told if step != "open" and name in numbers[0]}

            return sinks.Log(write, close, held) if Pocket.keeps else sinks.Log(write, close)

    module.Pocket = Pocket
    monkeypatch.setitem(sinks.SINKS.entries, "pocket", "pocket:Pocket")
    return Pocket


def steps(service):
    return [step for step, *_ in service.told if step != "open"]


def test_a_record_becomes_numbers_by_name():
    record = {
        "round": 3,
        "lr": 0.1,
        "chains": [[4], [1, 2]],
        "failures": ["client 4 gave NaN"],
        "seconds": {"train": 2.0, "clients": [1.0, 3.0], "measures": {"locals": 0.5}},
        "accuracy": 0.5,
        "consistency": None,
        "class_accuracy": [1.0, 0.0],
        "measures": {
            "locals": {"clients": [4, 1], "in_local": {"after": [0.2, 0.4]}},
            "confusion": {"global": [[1, 0], [0, 1]], "credibility": None},
            "landscape": {"sizes": [0.0, 0.1], "loss": [1.0, 3.0], "eigenvalues": [15.0]},
            "chain": {
                "chains": [
                    {"clients": [4], "forgetting": 0.0, "consistency": [0.5], "drift": {"own": []}},
                    {
                        "clients": [1, 2],
                        "forgetting": 0.5,
                        "consistency": [0.8, 1.0],
                        "drift": {"own": [0.9]},
                    },
                ]
            },
        },
    }
    assert scalars(record) == {
        "lr": 0.1,
        "seconds/train": 2.0,
        "seconds/clients": 2.0,
        "seconds/measures/locals": 0.5,
        "accuracy": 0.5,
        "class_accuracy/0": 1.0,
        "class_accuracy/1": 0.0,
        "measures/locals/in_local/after": pytest.approx(0.3),
        "measures/landscape/loss/0": 1.0,
        "measures/landscape/loss/1": 3.0,
        "measures/landscape/eigenvalues/0": 15.0,
        "measures/chain/forgetting": 0.25,
        "measures/chain/consistency": pytest.approx(0.7),
        "measures/chain/drift/own": 0.9,
    }


def test_whoever_looks_on_changes_nothing(tmp_path, service):
    alone = fedrecall.run(tmp_path / "alone", **SMALL)
    watched = fedrecall.run(tmp_path / "watched", sinks=["pocket"], **SMALL)
    one, other = trees.arrays(alone.weights), trees.arrays(watched.weights)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert service.told[0] == ("open", "watched", 0)
    assert [step for step, *_ in service.told[1:]] == [1, 2, 3]
    assert service.told[-1][1]["accuracy"] == watched.accuracy
    assert service.closed == 1


def test_sinks_may_change_when_a_run_goes_on_and_hear_what_they_missed(tmp_path, service):
    fedrecall.run(tmp_path, **{**SMALL, "rounds": 2})
    fedrecall.run(tmp_path, resume=True, sinks=["pocket"], **SMALL)
    assert [step for step, *_ in service.told[1:]] == [1, 2, 3]


def test_a_log_that_goes_on_is_told_what_it_lacks_and_nothing_twice(tmp_path, service):
    service.keeps = True
    settings = {**SMALL, "sinks": ["pocket"], "resume": True}
    fedrecall.run(tmp_path, **{**settings, "rounds": 2})
    fedrecall.run(tmp_path, **{**settings, "rounds": 4, "sinks": "none"})
    assert steps(service) == [1, 2]
    fedrecall.run(tmp_path, **{**settings, "rounds": 5})
    assert steps(service) == [1, 2, 3, 4, 5]


def test_a_log_that_failed_gets_the_rest_from_the_next_start(tmp_path, service):
    service.keeps = True
    settings = {**SMALL, "sinks": ["pocket"], "resume": True}
    service.fails_at = 2
    with pytest.warns(RuntimeWarning, match="gets no more"):
        fedrecall.run(tmp_path, **settings)
    service.fails_at = 3
    with pytest.warns(RuntimeWarning, match="gets no more"):  # while it is told what it missed
        fedrecall.run(tmp_path, **settings)
    assert steps(service) == [1, 2]
    service.fails_at = None
    fedrecall.run(tmp_path, **{**settings, "rounds": 4})
    assert steps(service) == [1, 2, 3, 4]


def test_rounds_that_are_played_again_after_a_kill_are_not_told_again(tmp_path, service):
    service.keeps = True
    service.killed_after = 3
    settings = {**SMALL, "rounds": 4, "checkpoint_every": 2, "sinks": ["pocket"], "resume": True}
    with pytest.raises(KeyboardInterrupt):
        fedrecall.run(tmp_path, **settings)
    service.killed_after = None
    assert len(fedrecall.run(tmp_path, **settings).history) == 4
    assert steps(service) == [1, 2, 3, 4]


def test_a_service_that_is_interrupted_while_it_hears_what_it_missed_is_closed(tmp_path, service):
    fedrecall.run(tmp_path, **{**SMALL, "rounds": 2})
    service.killed_after = 1
    with pytest.raises(KeyboardInterrupt):
        fedrecall.run(tmp_path, resume=True, sinks=["pocket"], **SMALL)
    assert (steps(service), service.closed) == ([1], 1)


def test_a_round_that_was_evaluated_since_is_told_of_again(tmp_path, service):
    service.keeps = True
    service.killed_after = 2
    settings = {**SMALL, "evaluate_every": 3, "sinks": ["pocket"], "resume": True}
    with pytest.raises(KeyboardInterrupt):
        fedrecall.run(tmp_path, **settings)
    service.killed_after = None
    last = fedrecall.run(tmp_path, **{**settings, "rounds": 2}).history[-1]
    assert steps(service) == [1, 2, 2]
    assert service.told[-1][1]["accuracy"] == last["accuracy"]


def test_a_round_that_was_saved_and_not_told_of_is_told_of_later(tmp_path, service):
    class Stop:
        def begin(self, config, history): ...

        def record(self, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

        def end(self): ...

    service.keeps = True
    settings = {**SMALL, "evaluate_every": 3}
    with pytest.raises(KeyboardInterrupt):
        fedrecall.run(tmp_path, sinks=[Stop(), "pocket"], **settings)
    last = fedrecall.run(tmp_path, resume=True, sinks=["pocket"], **{**settings, "rounds": 2}).history[-1]
    assert [step for step, *_ in service.told] == ["open", 1, "open", 2]
    assert service.told[-1][1]["accuracy"] == last["accuracy"]


@pytest.mark.parametrize("none", [[], "none", ["none"]])
def test_a_run_goes_on_without_its_sinks_if_told_so(tmp_path, service, none):
    fedrecall.run(tmp_path, sinks=["pocket"], **{**SMALL, "rounds": 1})
    told = list(service.told)
    assert fedrecall.run(tmp_path, resume=True, rounds=2, sinks=none).config.sinks == ()
    assert service.told == told
    assert fedrecall.run(tmp_path, resume=True, rounds=3).config.sinks == ()


class Half:
    def begin(self, config, history):
        raise AssertionError("it is no sink")

    def end(self):
        raise AssertionError("it is no sink")


@pytest.mark.parametrize(
    "bad", [[print], print, [Half()], [Half], [None], 3, ["pocket", 3], {"name": "pocket"}]
)
def test_what_is_no_sink_is_one_sentence_before_the_run_begins(tmp_path, service, bad):
    with pytest.raises(UserError, match="is no object with the methods begin, record and end"):
        fedrecall.run(tmp_path / "run", sinks=bad, **SMALL)
    if isinstance(bad, list):
        with pytest.raises(UserError, match="is no object with the methods begin, record and end"):
            Experiment(configs.make(configs.nested(SMALL)), tmp_path / "run", sinks=bad)
    assert not (tmp_path / "run").exists()


def test_a_service_that_fails_is_left_and_the_run_goes_on(tmp_path, service):
    service.fails_at = 2
    with pytest.warns(RuntimeWarning, match=r"pocket gets no more of this run \(OSError: no space left\)"):
        result = fedrecall.run(tmp_path, sinks=["pocket"], **SMALL)
    assert len(result.history) == 3
    assert [step for step, *_ in service.told[1:]] == [1]


def test_a_missing_package_is_named_before_the_run_folder_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"wandb is not installed: pip install 'fedrecall\[sinks\]'"):
        fedrecall.run(tmp_path / "run", sinks=["wandb"], **SMALL)
    assert not (tmp_path / "run").exists()


def test_an_unknown_sink_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="tensorboard"):
        configs.make({"sinks": ["tensorbord"]})


def test_a_run_is_known_by_what_it_is_and_not_by_where_it_lies(tmp_path):
    place, elsewhere = tmp_path / "run", tmp_path / "archive" / "run"
    fedrecall.run(place, **SMALL)
    known = sinks._identity({}, place)
    fedrecall.run(place, resume=True, **{**SMALL, "rounds": 4})
    assert sinks._identity({}, place) == known
    shutil.copytree(place, tmp_path / "copy")
    assert sinks._identity({}, tmp_path / "copy") != known
    elsewhere.parent.mkdir()
    shutil.move(place, elsewhere)
    assert sinks._identity({}, elsewhere) == known
    fedrecall.run(place, **SMALL)  # a new run in the old one's place
    assert sinks._identity({}, place) != known


def test_a_run_without_a_folder_is_known_by_its_settings():
    config = configs.as_dict(configs.make({"algorithm": "fedntd:beta=1"}))
    other = configs.as_dict(configs.make({"algorithm": "fedntd:beta=3"}))
    assert sinks._identity(config, None) == sinks._identity(dict(reversed(config.items())), None)
    assert sinks._identity(config, None) != sinks._identity(other, None)


def test_a_run_of_an_earlier_version_is_known_by_its_place(tmp_path):
    """Which did not name it."""
    for place in ("one/run", "other/run"):
        fedrecall.run(tmp_path / place, **SMALL)
        made = json.loads((tmp_path / place / "made.json").read_text())
        made[0].pop("run")
        (tmp_path / place / "made.json").write_text(json.dumps(made))
    places = ("one/run", "one/../one/run", "other/run")
    one, again, other = (sinks._identity({}, tmp_path / p) for p in places)
    assert one == again != other


def test_what_a_service_says_of_a_failure_is_told_without_its_password(service, monkeypatch):
    def refuse(*_):
        raise OSError("no way to http://bob:hunter2@host:5000/runs")

    monkeypatch.setattr(service, "open", refuse)
    with pytest.warns(RuntimeWarning, match="no way to http://") as told:
        fedrecall.run(sinks=["pocket"], **SMALL)
    assert "hunter2" not in str(told[0].message)


def test_a_services_parameters_are_plain():
    config = {
        "lr": 0.1,
        "algorithm": {"name": "fedavg", "inner": {"on": True}},
        "sinks": ["a"],
        "workers": None,
    }
    flat = {
        "lr": 0.1,
        "algorithm.name": "fedavg",
        "algorithm.inner.on": True,
        "sinks": '["a"]',
        "workers": "null",
    }
    assert sinks._flat(config) == flat


def followed(tmp_path, spec, *others):
    """A run of a round, gone on with to three without the service and to four with it; its history."""
    fedrecall.run(tmp_path / "run", sinks=[spec], **{**SMALL, "rounds": 1})
    fedrecall.run(tmp_path / "run", resume=True, sinks="none", **SMALL)
    last = {**SMALL, "rounds": 4}
    return fedrecall.run(tmp_path / "run", resume=True, sinks=[spec, *others], **last).history


def an_algorithm(folder):
    """The name of one's own in this folder."""
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom fedrecall import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    mu: float = 1.0\n"
    )
    return f"{folder}/mine.py:Mine"


def a_measure(folder):
    """The name of one's own in this folder, of which MLflow takes hardly a letter."""
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom fedrecall.measures.moment import Measure\n"
        "@dataclass(frozen=True)\nclass Mine(Measure):\n"
        "    def __call__(self, moment):\n        return {'one': 1, '..': {'größe': 2.0, '/gr??e': 3.0}}\n"
    )
    return f"{folder}/mine.py:Mine"


@needs("tensorboard")
def test_tensorboard(tmp_path):
    history = followed(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    events = found.Scalars("accuracy")
    assert [e.step for e in events] == [1, 2, 3, 4]
    assert [e.value for e in events] == pytest.approx([r["accuracy"] for r in history])
    assert len(found.Tags()["scalars"]) == len(scalars(history[-1]) | scalars(history[0]))


@needs("tensorboard")
def test_tensorboard_needs_a_place(tmp_path):
    with pytest.raises(UserError, match="tensorboard:FOLDER"):
        fedrecall.run(sinks=["tensorboard"], **SMALL)
    fedrecall.run(sinks=[f"tensorboard:{tmp_path}"], **SMALL)
    assert list(tmp_path.glob("fedavg-synthetic-seed0-*/events*"))


@needs("tensorboard")
def test_runs_that_share_a_tensorboard_folder_have_a_place_of_their_own_in_it(tmp_path):
    logs = tmp_path / "logs"
    for beta in (1, 3, 3):  # one that is played again is the same run
        fedrecall.run(
            sinks=[f"tensorboard:{logs}"], **{**SMALL, "rounds": 1}, algorithm=f"fedntd:beta={beta}"
        )
    assert len(list(logs.glob("fedntd-synthetic-seed0-*"))) == 2
    for place in ("a/seed0", "b/seed0"):
        for rounds in (1, 2):
            settings = {**SMALL, "rounds": rounds, "sinks": [f"tensorboard:{logs}"]}
            fedrecall.run(tmp_path / place, resume=True, **settings)
    assert len(list(logs.glob("seed0-*"))) == 2


@needs("tensorboard")
def test_a_run_of_an_algorithm_of_ones_own_stays_in_the_tensorboard_folder(tmp_path):
    own = an_algorithm(tmp_path / "own")
    fedrecall.run(sinks=[f"tensorboard:{tmp_path / 'logs'}"], **{**SMALL, "rounds": 1}, algorithm=own)
    assert list(tmp_path.glob("logs/mine.py-Mine-synthetic-seed0-*/events*"))
    assert [path.name for path in (tmp_path / "own").iterdir() if path.name != "__pycache__"] == ["mine.py"]


@needs("tensorboard")
def test_tensorboards_folder_may_be_at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    fedrecall.run(sinks=["tensorboard:~/tb"], **SMALL)
    assert list(tmp_path.glob("home/tb/fedavg-synthetic-seed0-*/events*"))
    assert not (tmp_path / "~").exists()
    with pytest.raises(UserError, match="~nobody-of-that-name/tb"):
        fedrecall.run(sinks=["tensorboard:~nobody-of-that-name/tb"], **SMALL)


@needs("mlflow")
def test_mlflow(tmp_path):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)

    class Look:
        states: ClassVar[list] = []

        def begin(self, config, history): ...

        def record(self, record):
            place = client.get_experiment_by_name("forgetting").experiment_id
            self.states.extend(run.info.status for run in client.search_runs([place]))

        def end(self): ...

    look = Look()
    history = followed(tmp_path, f"mlflow:{store},experiment=forgetting", look)
    place = client.get_experiment_by_name("forgetting").experiment_id
    (run,) = client.search_runs([place])  # the same run, gone on with
    kept = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "accuracy"))
    assert kept == [(r["round"], pytest.approx(r["accuracy"])) for r in history]
    assert look.states == ["RUNNING"]
    assert run.data.params["algorithm.name"] == "fedavg"
    assert run.info.status == "FINISHED"


@needs("mlflow")
def test_mlflow_takes_the_numbers_of_any_measure(tmp_path):
    store, own = f"sqlite:///{tmp_path}/mlflow.db", a_measure(tmp_path / "own")
    fedrecall.run(sinks=[f"mlflow:{store}"], measures=[own], **{**SMALL, "rounds": 1})
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("fedrecall").experiment_id])
    found = {k: v for k, v in run.data.metrics.items() if k.startswith("measures/")}
    assert found["measures/mine.py:Mine/one"] == 1
    assert sorted(found.values()) == [1, 2, 3]


@pytest.mark.parametrize("count", [3, 1000, 2500])
def test_mlflow_gets_no_more_numbers_at_once_than_it_takes(count, monkeypatch):
    asked = []
    client = SimpleNamespace(
        get_experiment_by_name=lambda name: SimpleNamespace(experiment_id="1"),
        create_run=lambda *_, **__: SimpleNamespace(info=SimpleNamespace(run_id="a")),
        log_batch=lambda run, metrics=(), params=(): asked.append([*metrics]),
    )
    packages = {
        "mlflow": {},
        "mlflow.entities": {"Metric": lambda *given: given, "Param": lambda *given: given},
        "mlflow.tracking": {"MlflowClient": lambda tracking_uri: client},
    }
    for name, held in packages.items():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(held)
    log = sinks.MLflow().open("run", None, {})
    asked.clear()
    log.write(3, {str(n): float(n) for n in range(count)})
    assert max(map(len, asked)) <= 1000
    assert [(name, value, step) for batch in asked for name, value, _, step in batch] == [
        (str(n), float(n), 3) for n in range(count)
    ]


@given(st.text() | st.lists(st.sampled_from(["..", ".", "", "a", "b c", "ä", "/"])).map("/".join))
def test_a_name_is_made_one_that_mlflow_takes(name):
    made = sinks._taken(name)
    assert posixpath.normpath(made) == made
    assert re.fullmatch(r"[A-Za-z0-9_.\-/ :]{1,250}", made)
    assert not made.startswith(("/", ".."))
    assert made != "."
    assert sinks._taken(made) == made


def test_names_that_mlflow_takes_stay_and_others_stay_apart():
    taken = ("accuracy", "class_accuracy/3", "measures/mine.py:Mine/in local", "measures/my/mine.py:M/x")
    assert [sinks._taken(name) for name in taken] == [*taken]
    others = ("größe", "gr__e", "gr??e", "a//b", "a/./b", "a/../b", "/a/b", "a/b", "x" * 300, "x" * 301)
    assert len({sinks._taken(name) for name in others}) == len(others)


def test_measures_of_ones_own_are_called_by_their_files_names():
    record = {"lr": 0.1, "accuracy": 0.5, "seconds": {"train": 1.0}}
    record["measures"] = {"locals": {"a": 1.0}, "./my/mine.py:M": {"a": 2.0}, "/x/other.py:M": {"a": 3.0}}
    record["seconds"]["measures"] = {"locals": 4.0, "./my/mine.py:M": 5.0, "/x/other.py:M": 6.0}
    assert sinks._numbers(record) == {
        "seconds/train": 1.0,
        "seconds/measures/locals": 4.0,
        "seconds/measures/mine.py:M": 5.0,
        "seconds/measures/other.py:M": 6.0,
        "measures/locals/a": 1.0,
        "measures/mine.py:M/a": 2.0,
        "measures/other.py:M/a": 3.0,
        "lr": 0.1,
        "accuracy": 0.5,
    }
    assert [*sinks._numbers(record)][-2:] == ["lr", "accuracy"]  # by which it is known that the rest is there
    two = {"measures": {"a/mine.py:M": {"a": 1.0}, "b/mine.py:M": {"a": 2.0}}}
    assert sorted(sinks._numbers(two).values()) == [1.0, 2.0]


def wandb_records(content):
    """The records of a .wandb file: LevelDB's log format after seven bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    place, whole = 7, b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def wandb_accuracies(folder):
    """Accuracy by step, over all starts of a run."""
    found = {}
    for path in sorted(folder.glob("offline-run-*/*.wandb")):
        for record in wandb_records(path.read_bytes()):
            if record.WhichOneof("record_type") == "history":
                items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
                found[record.history.step.num] = float(items["accuracy"])
    return found


@needs("wandb")
def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    history = followed(tmp_path, "wandb")
    expected = {r["round"]: pytest.approx(r["accuracy"]) for r in history}
    end = time.monotonic() + 30  # its own process writes the file, some time after the run ended
    while (found := wandb_accuracies(tmp_path / "run" / "wandb")) != expected and time.monotonic() < end:
        time.sleep(0.2)
    assert found == expected


@pytest.mark.parametrize(
    ("mode", "resumed", "told"),
    [("online", True, [3, 4, 5]), ("online", False, [1, 2, 3, 4, 5]), ("offline", True, [1, 2, 3, 4, 5])],
)
def test_wandb_goes_on_where_its_server_is(mode, resumed, told, tmp_path, monkeypatch):
    """Which drops what is told of rounds that it is past."""
    fedrecall.run(tmp_path, **{**SMALL, "rounds": 4})
    steps = []
    run = SimpleNamespace(
        log=lambda numbers, step: steps.append(step),
        finish=lambda: None,
        resumed=resumed,
        starting_step=3 if resumed else 0,
    )
    module = types.ModuleType("wandb")
    module.__spec__ = importlib.util.spec_from_loader("wandb", None)
    module.init, module.Settings = lambda **_: run, lambda **_: None
    monkeypatch.setitem(sys.modules, "wandb", module)
    fedrecall.run(tmp_path, resume=True, sinks=[f"wandb:mode={mode}"], **{**SMALL, "rounds": 5})
    assert steps == told


@pytest.fixture
def trackios(tmp_path, monkeypatch):
    """Where trackio keeps its databases."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    for name in [m for m in sys.modules if m.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)  # it reads its folder when it is imported
    return tmp_path / "kept"


@needs("trackio")
def test_experiments_without_a_folder_are_runs_of_their_own_in_trackio(trackios):
    for beta in (1, 3, 3):
        fedrecall.run(sinks=["trackio"], **{**SMALL, "rounds": 1}, algorithm=f"fedntd:beta={beta}")
    (database,) = trackios.glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, run_id from metrics").fetchall()
    assert len({name for name, _ in rows}) == 2
    assert len(set(rows)) == 3


@needs("trackio")
def test_trackio(tmp_path, trackios):
    history = followed(tmp_path, "trackio")
    (database,) = trackios.glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select step, metrics from metrics order by id").fetchall()
    found = {step: json.loads(metrics)["accuracy"] for step, metrics in rows}
    assert found == {r["round"]: pytest.approx(r["accuracy"]) for r in history}
    assert [step for step, _ in rows] == [1, 2, 3, 4]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # a run of its own, of which nothing has been told
    fedrecall.run(tmp_path / "copy", resume=True, sinks=["trackio"], **{**SMALL, "rounds": 5})
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "select step from metrics where run_name like 'copy%' order by id"
        ).fetchall()
    assert rows == [(1,), (2,), (3,), (4,), (5,)]


def test_a_password_in_a_services_address_is_refused():
    with pytest.raises(UserError, match="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"):
        sinks.SINKS.make("mlflow:uri=http://bob:hunter2@host:5000")
    with pytest.raises(UserError, match="for a database the whole uri as MLFLOW_TRACKING_URI"):
        sinks.SINKS.make({"name": "mlflow", "uri": "mysql://host/runs?user=bob&password=hunter2"})
    assert sinks.SINKS.make("mlflow:uri=http://bob@host:5000").uri == "http://bob@host:5000"
