"""What a program of one's own begins with."""

import io
import json
import re

import numpy as np
import pytest
import torch
from rich.console import Console

import fedrecall
from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.cli import progress
from fedrecall.data.datasets import load
from fedrecall.errors import UserError

SMALL = {
    "dataset": "digits",
    "model": "mlp",
    "clients": 4,
    "sample": 2,
    "backend": "serial",
    "local_epochs": 1,
}


def test_a_run_says_how_it_goes_on_the_error_stream(capfd):
    fedrecall.run(rounds=2, **SMALL)
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(r"fedavg seed 0: 2 rounds\n(.*\n)*round 2/2  accuracy [\d.]+%", err)
    fedrecall.run(rounds=2, progress=False, **SMALL)
    assert capfd.readouterr() == ("", "")


def test_what_a_program_prints_stays_where_it_prints(capsys):
    """Beside a bar, which is on the error stream."""
    bar = progress.shown(progress.Display(Console(file=io.StringIO(), force_terminal=True)))
    bar.begin({"algorithm": {"name": "fedavg"}, "seed": 0, "rounds": 2}, [])
    print("mine")
    bar.end()
    assert capsys.readouterr().out == "mine\n"


def test_a_closed_stream_ends_no_training():
    shown = io.StringIO()
    sink = progress.shown(progress.Display(Console(file=shown)))
    shown.close()
    with pytest.warns(RuntimeWarning, match="progress cannot be shown any more"):
        sink.begin({"algorithm": {"name": "fedavg"}, "seed": 0, "rounds": 2}, [])


def test_what_there_is_none_of_is_not_gone_on_with(tmp_path):
    """A slip in the folder's name would begin a run of 200 rounds by the defaults."""
    with pytest.raises(UserError, match=r"raal holds no run to go on with. To begin one, say of what"):
        fedrecall.run(tmp_path / "raal", resume=True, rounds=1)
    with pytest.raises(UserError, match="resume=True needs the run's folder"):
        fedrecall.run(resume=True)
    assert not (tmp_path / "raal").exists()


def test_an_algorithm_in_the_place_of_the_folder_is_no_folder(tmp_path, monkeypatch):
    """It would train FedAvg into a folder of that name."""
    monkeypatch.chdir(tmp_path)
    for said in ("fedntd", "fedntd:beta=2", "FedNTD", "mine.py:Mine"):
        meant = said.replace("FedNTD", "fedntd")
        for resume in (False, True):
            with pytest.raises(UserError, match=f"'{said}' is an algorithm: give algorithm='{meant}'"):
                fedrecall.run(said, rounds=1, resume=resume, **SMALL)
    for given in (fedrecall.FedAvg, fedrecall.FedAvg()):
        with pytest.raises(UserError, match=r"folder comes first, not .*FedAvg.*: give an algorithm as algo"):
            fedrecall.run(given, rounds=1, **SMALL)
    for key, value in (("over", {"lr": [0.1]}), ("seeds", 3)):
        with pytest.raises(UserError, match=rf"run plays one run; {key} is for fedrecall\.compare"):
            fedrecall.run(rounds=1, **{key: value}, **SMALL)
    assert list(tmp_path.iterdir()) == []
    assert fedrecall.run("fedntd", algorithm="fedntd", rounds=1, **SMALL).out.name == "fedntd"
    assert len(fedrecall.run("fedntd", resume=True, rounds=2).history) == 2


def test_the_same_call_begins_a_run_and_goes_on_with_it(tmp_path):
    first = fedrecall.run(tmp_path, resume=True, rounds=1, **SMALL)
    again = fedrecall.run(tmp_path, resume=True, rounds=2, **SMALL)
    whole = fedrecall.run(rounds=2, **SMALL)
    assert (len(first.history), len(again.history)) == (1, 2)
    assert all(torch.equal(again.weights.params[n], w) for n, w in whole.weights.params.items())


SCALED = """
from dataclasses import dataclass, field
from enum import Enum
from fedrecall import FedAvg

class Side(Enum):
    LEFT = "left"
    RIGHT = "right"

@dataclass(frozen=True)
class Scaled(FedAvg):
    of: dict[int, float] = field(default_factory=dict)
    side: Side = Side.LEFT
    pairs: dict[str, tuple[int, float]] = field(default_factory=dict)

    def loss(self, model, params, anchor, batch):
        told = self.side is Side.RIGHT and self.pairs == {"a": (1, 0.5)}
        return super().loss(model, params, anchor, batch) * (self.of.get(1, 1.0) if told else 1.0)
"""


@pytest.mark.parametrize("protected", [False, True])
def test_what_a_file_has_no_form_for_is_the_same_after_a_resume(protected, tmp_path):
    (tmp_path / "scaled.py").write_text(SCALED)
    name = f"{tmp_path}/scaled.py:Scaled"
    algorithm = ALGORITHMS.make({"name": name, "of": {1: 10.0}, "side": "right", "pairs": {"a": (1, 0.5)}})
    if protected:
        algorithm = ALGORITHMS.make({"name": "private", "of": algorithm, "noise": 0, "clip": 100})
    given = SMALL | {"algorithm": algorithm, "progress": False, "normalisation": "fixed"}
    straight = fedrecall.run(rounds=2, **given)
    fedrecall.run(tmp_path / "run", rounds=1, **given)
    resumed = fedrecall.run(tmp_path / "run", resume=True, rounds=2, **given)
    assert resumed.history[-1]["class_accuracy"] == straight.history[-1]["class_accuracy"]
    assert fedrecall.run(rounds=2, **given | {"algorithm": name}).accuracy != straight.accuracy
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    asked = {} if protected else {"algorithm": {"of": {1: 10.0}}}  # as a file may name it again
    for config in (saved, configs.merged(saved, asked)):
        assert ALGORITHMS.make(configs.begun(config).algorithm) == algorithm


def test_data_that_were_given_are_augmented_as_those_of_their_name():
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    settings = {k: v for k, v in SMALL.items() if k != "dataset"} | {"rounds": 1}
    for name, usual in (("cifar10", "crop+flip+cutout"), ("icu-2026", "none")):
        mine = fedrecall.from_arrays(images, np.arange(60) % 3, name=name)
        assert fedrecall.run(dataset=mine, **settings).config.augmentation == usual
        said = fedrecall.run(dataset=mine, augmentation="flip", **settings)
        assert said.config.augmentation == "flip"


def test_data_that_were_given_are_called_by_their_own_name(tmp_path):
    digits = load("digits")
    mine = fedrecall.from_arrays(digits.train.x[:, 0].numpy(), digits.train.y.numpy(), name="icu-2026")
    settings = {k: v for k, v in SMALL.items() if k != "dataset"}
    result = fedrecall.run(tmp_path, dataset=mine, rounds=1, **settings)
    assert repr(result).startswith("<Result of fedavg on icu-2026: accuracy ")
    with pytest.raises(
        UserError, match=r"begun on other data, icu-2026 .* the same, with dataset=\.\.\. where"
    ):
        fedrecall.run(tmp_path, resume=True, rounds=2)


def test_a_data_set_of_another_library_is_told_how_it_becomes_one(tmp_path, monkeypatch):
    x, y = torch.arange(240).reshape(30, 2, 4) * 1.0, torch.arange(30) % 3
    theirs = torch.utils.data.TensorDataset(x, y)
    for given in (theirs, type(theirs), HubDict(train=theirs), 3):
        kind = (given if isinstance(given, type) else type(given)).__name__
        with pytest.raises(UserError, match=rf"a value of type {kind} .*from_arrays\(ds\[.*\(\*ds.tensors\)"):
            fedrecall.run(dataset=given)
    assert fedrecall.from_arrays(*theirs.tensors).class_names == ("0", "1", "2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for folder in ("/my/folder", "mine", "./mine"):
        with pytest.raises(UserError, match=f"'{folder}'; name a folder of your own as folder:{folder}"):
            fedrecall.run(dataset=folder)
    with pytest.raises(UserError, match=r"a{300} cannot be looked up"):
        fedrecall.run(dataset="a" * 300)
    with pytest.raises(UserError, match="unknown dataset 'digit'; did you mean 'digits'"):
        fedrecall.run(dataset="digit")
    with pytest.raises(UserError, match="a dataset given as a mapping needs a 'name'"):
        fedrecall.run(dataset={"path": "mine"})


def test_what_was_recorded_is_had_as_plain_lists_and_rows(tmp_path):
    for seed in (0, 1):
        kept = fedrecall.run(tmp_path / f"runs/{seed}", rounds=2, seed=seed, measures=["locals"], **SMALL)
    alone = fedrecall.run(rounds=2, seed=1, measures=["locals"], **SMALL)
    for result in (kept, alone):
        assert json.loads(json.dumps(result.history)) == list(result.records)
    runs = fedrecall.open_runs(str(tmp_path / "runs"))
    assert [r.path.name for r in runs] == ["0", "1"]
    assert runs[1].records == kept.history
    rows = [row for run in runs for row in run.rows]
    assert [(r["run"], r["seed"], r["round"]) for r in rows] == [
        ("0", 0, 1),
        ("0", 0, 2),
        ("1", 1, 1),
        ("1", 1, 2),
    ]
    assert {r["algorithm"] for r in rows} == {"fedavg"}
    assert {r["split"] for r in rows} == {"test"}
    local = kept.history[-1]["measures"]["locals"]["local_accuracy"]
    assert rows[-1]["measures/locals/local_accuracy"] == pytest.approx(sum(local) / len(local))
    assert rows[-1]["accuracy"] == alone.accuracy
    assert all(isinstance(v, (str, int, float)) for row in rows for v in row.values())


def test_rows_of_a_run_that_is_validated_say_so_whether_or_not_a_round_was_evaluated(tmp_path):
    fedrecall.run(tmp_path / "run", rounds=3, validation=0.2, evaluate_every=2, **SMALL)
    rows = fedrecall.open_runs(tmp_path / "run")[0].rows
    assert [("accuracy" in r, r["split"]) for r in rows] == [
        (seen, "validation") for seen in (False, True, True)
    ]


class HubDict(dict):
    """Splits by name, as Hugging Face's DatasetDict is."""
