"""Several algorithms side by side, from Python."""

import csv
import errno
import itertools
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedrecall
from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.cli.app import app
from fedrecall.comparison import End, called, plan, run_folder
from fedrecall.data.datasets import load
from fedrecall.errors import UserError
from fedrecall.records import scalars
from fedrecall.reports.statistics import paired_difference

SMALL = {
    "dataset": "digits",
    "model": "mlp:8",
    "clients": 4,
    "sample": 2,
    "backend": "serial",
    "local_epochs": 1,
    "rounds": 2,
}


def test_each_run_is_what_it_is_alone_and_differences_are_of_pairs():
    found = fedrecall.compare("fedavg", "fedntd", seeds=2, progress=False, **SMALL)
    alone = {
        (name, seed): fedrecall.run(algorithm=name, seed=seed, progress=False, **SMALL)
        for seed in (0, 1)
        for name in ("fedavg", "fedntd")
    }
    assert [(r["algorithm"], r["seed"]) for r in found.runs] == list(alone)
    assert [(r["accuracy"], r["forgetting"]) for r in found.runs] == [
        (result.accuracy, result.forgetting) for result in alone.values()
    ]
    rows = [
        (r["algorithm"], r["seed"], r["round"], r["accuracy"], r["class_accuracy/3"]) for r in found.rounds
    ]
    assert rows == [
        (*whose, r["round"], scalars(r)["accuracy"], r["class_accuracy"][3])
        for whose, result in alone.items()
        for r in result.history
    ]
    first, second = found.entries
    assert (first.difference, second.against) == (None, "fedavg")
    assert second.difference == paired_difference(first.accuracy, second.accuracy)
    assert second.forgotten == paired_difference(first.forgetting, second.forgetting)
    assert repr(found) == "<Comparison of fedavg, fedntd: 4 of 4 runs>"


def test_it_finds_what_the_command_finds_and_goes_on_with_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    said = ["compare", "fedavg", "fedntd:2", *options, "--over", "lr=0.01,0.1", "--json", "found.json"]
    assert CliRunner().invoke(app, [*said, "--out", "runs"]).exit_code == 0
    tables = json.loads((tmp_path / "found.json").read_text())["tables"]
    played = {p: p.read_bytes() for p in (tmp_path / "runs").glob("*/metrics.jsonl")}
    algorithms = ("fedavg", FedNTD(beta=2))
    found = fedrecall.compare(*algorithms, over={"lr": [0.01, 0.1]}, out="runs", progress=False, **SMALL)
    assert [
        [{"name": row.name, **{of: row.each(of) for of in End._fields}} for row in rows]
        for rows in found.rows.values()
    ] == [t["rows"] for t in tables]
    assert [(r["algorithm"], r["lr"]) for r in found.runs] == [
        ("fedavg", 0.01),
        ("fedntd:2", 0.01),
        ("fedavg", 0.1),
        ("fedntd:2", 0.1),
    ]
    assert {p: p.read_bytes() for p in (tmp_path / "runs").glob("*/metrics.jsonl")} == played
    assert len(played) == 4


def test_its_table_is_printed_shown_by_notebooks_and_written(tmp_path):
    found = fedrecall.compare("fedavg", "fedntd", progress=False, **SMALL)
    found.write(tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text() == str(found) == found._repr_markdown_()
    (line,) = [line for line in str(found).splitlines() if line.startswith("| fedntd ")]
    assert f"{100 * found.runs[1]['accuracy']:.2f}" in line
    found.write(str(tmp_path / "table.csv"))
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [float(row["accuracy"]) for row in lines] == [r["accuracy"] for r in found.runs]
    with pytest.raises(UserError, match=r"name a file that ends in \.tex, \.csv, \.md"):
        found.write(tmp_path / "table.xlsx")


def test_what_the_server_holds_for_one_is_said_of_all(tmp_path):
    settings = SMALL | {"progress": False, "partition": "iid"}
    found = fedrecall.compare("fedavg", "fedssd:auxiliary_per_class=5", **settings)
    said = "holds 5 training examples of each class, which no client has, for fedssd:auxiliary_per_class=5"
    assert [said in note for note in found.notes] == [True]
    assert found.notes[0] in str(found)
    assert fedrecall.compare("fedavg", **settings).notes == []
    assert fedrecall.compare("fedavg", auxiliary_per_class=5, **settings).notes == []  # as it was said


def test_of_what_accuracy_is_is_said_where_clients_have_models_of_their_own():
    fedper = f"{Path(__file__).parents[1] / 'examples' / 'fedper.py'}:FedPer"
    for measures, where in ([], "the measure fairness"), (["fairness"], "the columns of clients"):
        found = fedrecall.compare("fedavg", fedper, measures=measures, progress=False, **SMALL)
        assert found.notes == [f"Accuracy of {fedper}: of what travels; of clients' own models see {where}."]


def test_inputs_that_are_normalised_in_unlike_ways_are_told_of():
    both = ("fedavg", "private:noise=0")
    (note,) = fedrecall.compare(*both, progress=False, **SMALL).notes
    assert note.startswith("Inputs of private:noise=0 are normalised by fixed statistics, the others' by")
    for alike in {"normalisation": "fixed"}, {"over": {"normalisation": ["fixed", "none"]}}:
        assert fedrecall.compare(*both, progress=False, **alike, **SMALL).notes == []


def test_data_that_were_given_are_those_of_all_runs():
    digits = load("digits")
    few = fedrecall.from_arrays(digits.train.x[:300, 0].numpy(), digits.train.y[:300].numpy(), name="few")
    settings = {k: v for k, v in SMALL.items() if k != "dataset"} | {"dataset": few, "progress": False}
    found = fedrecall.compare("fedavg", over={"partition": ["iid", "shards:2"]}, **settings)
    alone = [fedrecall.run(partition=p, **settings).accuracy for p in ("iid", "shards:2")]
    assert [r["accuracy"] for r in found.runs] == alone
    assert [r["partition"] for r in found.runs] == ["iid", "shards:2"]
    assert {r["split"] for r in found.runs} == {"test"}
    assert fedrecall.compare("fedavg", validation=0.2, **settings).rounds[-1]["split"] == "validation"


def test_a_run_that_diverges_has_failed_and_the_others_go_on():
    found = fedrecall.compare("fedavg", over={"lr": [1e30, 0.1]}, progress=False, **SMALL)
    failed, went = found.runs
    assert failed["failed"]
    assert failed["accuracy"] is None
    assert went["failed"] is None
    assert {r["lr"] for r in found.rounds} == {0.1}
    assert "failed" in str(found)


class Typo(FedAvg):
    def loss(self, model, params, anchor, batch):
        return batch.X


def test_an_error_in_an_algorithm_ends_its_own_runs_and_is_told_of_once():
    with pytest.warns(RuntimeWarning, match=r"Typo failed:\nTraceback.*\n.*in loss\n.*batch\.X") as told:
        found = fedrecall.compare("fedavg", Typo, seeds=2, progress=False, **SMALL)
    assert len([warning for warning in told if "failed" in str(warning.message)]) == 1
    failed = [r["failed"] for r in found.runs]
    assert failed[::2] == [None, None]
    assert all("attribute 'X'. In `loss` of test_comparison.py:Typo, line" in why for why in failed[1::2])


def test_what_concerns_the_machine_ends_all(monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Typo, "loss", full)
    with pytest.raises(OSError, match="no room"):
        fedrecall.compare(Typo, "fedavg", progress=False, **SMALL)


def test_a_stack_of_which_one_cannot_be_made_lets_go_of_all_folders(tmp_path):
    def play(rounds):
        settings = SMALL | {"backend": "vectorised", "rounds": rounds, "progress": False}
        return fedrecall.compare("fedavg", seeds=2, out=tmp_path, **settings)

    play(2)
    (tmp_path / "fedavg-seed1" / "checkpoints").rename(tmp_path / "away")
    with pytest.raises(UserError, match="no checkpoint to go on from") as held:  # as a notebook holds it
        play(3)
    (tmp_path / "away").rename(tmp_path / "fedavg-seed1" / "checkpoints")
    assert None not in [run["accuracy"] for run in play(3).runs], held


def test_what_another_process_plays_is_said(tmp_path):
    config = configs.make(configs.nested(SMALL))
    held = fedrecall.Experiment(config, tmp_path / "fedavg-seed0")
    with pytest.warns(RuntimeWarning, match="fedavg-seed0 is being played by another process"):
        found = fedrecall.compare("fedavg", "fedntd", out=tmp_path, progress=False, **SMALL)
    held.close()
    assert [r["accuracy"] is None for r in found.runs] == [True, False]
    found = fedrecall.compare("fedavg", "fedntd", out=tmp_path, progress=False, **SMALL)
    assert None not in [r["accuracy"] for r in found.runs]


def test_it_says_how_it_goes_on_the_error_stream(capfd):
    fedrecall.compare("fedavg", "fedntd", **SMALL)
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if line.endswith("2 rounds")] == [
        "fedavg seed 0: 2 rounds",
        "fedntd seed 0: 2 rounds",
    ]
    fedrecall.compare("fedavg", progress=False, **SMALL)
    assert capfd.readouterr() == ("", "")


class Told:
    """A sink."""

    def begin(self, config, history): ...
    def record(self, record): ...
    def end(self): ...


@pytest.mark.parametrize(
    ("algorithms", "given", "said"),
    [
        ((), {}, "compare: name at least one algorithm"),
        ((["fedavg", "fedntd"],), {}, "algorithm: a name, a mapping or a dataclass is wanted"),
        (("fedavg", "fedavg"), {}, "fedavg is named twice"),
        (("fedavg",), {"algorithm": "fedntd"}, "in Python out of the settings"),
        (("fedavg",), {"seeds": 0}, "seeds = 0 is to be how many runs each has"),
        (("fedavg",), {"seeds": [0, 1]}, "seeds = .* is to be how many runs each has"),
        (("fedavg",), {"over": {"lr": []}}, "over 'lr': give its values"),
        (
            ("fedavg",),
            {"over": {"lr": [0.1, "0.1"]}},
            "over 'lr': training.lr or one of its values is there twice",
        ),
        (("fedavg",), {"over": {"seed": [0, 1]}}, "over 'seed': say how many with --seeds, in Python seeds="),
        (("fedavg",), {"over": {"lrr": [0.1]}}, "config has no 'lrr'; did you mean 'lr'"),
        (("fedavg", FedNTD, FedNTD()), {}, "fedntd is named twice"),
        (("fedavg",), {"over": [("lr", 0.1)]}, "over is a mapping of settings to values"),
        (("fedavg",), {"over": {"dataset": [load("digits")]}}, "one that is made is given as dataset="),
        (("fedavg",), {"resume": True}, "compare goes on with what is in out"),
        (("fedavg",), {"sinks": [Told()]}, "an object among sinks would be told of all runs at once"),
    ],
)
def test_a_mistake_is_told_before_anything_is_played(tmp_path, algorithms, given, said):
    with pytest.raises(UserError, match=said):
        fedrecall.compare(*algorithms, out=tmp_path / "runs", **SMALL | given)
    assert not (tmp_path / "runs").exists()


def test_data_that_were_given_do_not_vary():
    settings = SMALL | {"dataset": load("digits")}
    with pytest.raises(UserError, match="over 'dataset': the data are given already"):
        fedrecall.compare("fedavg", over={"dataset": ["digits"]}, **settings)


def test_values_that_vary_are_told_apart_and_kept_as_numbers():
    over = {"sample": [1, 1.0, np.float64(0.5)], "lr": np.array([0.1, 0.25]), "momentum": np.array(0.5)}
    settings = {k: v for k, v in SMALL.items() if k != "sample"} | {"progress": False, "sinks": None}
    found = fedrecall.compare("fedavg", over=over, seeds=np.int64(1), **settings)
    assert [(r["sample"], r["lr"]) for r in found.runs] == list(itertools.product([1, 1.0, 0.5], [0.1, 0.25]))
    assert {type(v) for r in found.runs for v in (r["sample"], r["lr"])} == {int, float}
    assert [*found.rows] == [
        f"sample={s}, lr={lr}, momentum=0.5" for s in ("1", "1.0", "0.5") for lr in (0.1, 0.25)
    ]
    assert [p.made.sampled for p in found.plans] == [1, 1, 4, 4, 2, 2]


OWN = """
from dataclasses import dataclass
from fedrecall import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    mu: float = 1.0
"""


RATED = """
from dataclasses import dataclass, field
from fedrecall import FedAvg

@dataclass(frozen=True)
class Rated(FedAvg):
    rates: dict[str, float] = field(default_factory=dict)
"""


def test_classes_of_files_are_called_without_folders_unless_that_tells_two_apart(tmp_path, monkeypatch):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_text(OWN)
    one, other = (ALGORITHMS.make(f"{tmp_path}/{place}/mine.py:Mine:mu=0.5") for place in "ab")
    clipped = ALGORITHMS.make({"name": "private", "of": ALGORITHMS.spec(one), "clip": 2.0})
    assert list(called([one, "fedavg", type(one)])) == ["mine.py:Mine:0.5", "fedavg", "mine.py:Mine"]
    assert list(called([clipped])) == ["private:(mine.py:Mine:0.5),clip=2"]
    monkeypatch.setattr(
        sys.modules["__main__"], "Here", type("Here", (FedNTD,), {"__module__": "__main__"}), raising=False
    )
    assert list(called([sys.modules["__main__"].Here(beta=2)])) == ["Here:2"]
    (tmp_path / "rated.py").write_text(RATED)
    rated = ALGORITHMS.make({"name": f"{tmp_path}/rated.py:Rated", "rates": {"fc1.weight": 0.5, "name": 2.0}})
    (said,) = called([rated])
    assert said == "rated.py:Rated:rates.fc1.weight=0.5,rates.name=2"
    (planned,) = plan({said: rated}, {"clients": 4}, seeds=1)
    folder = run_folder(planned, tmp_path)
    assert folder.name == shlex.quote(folder.name) == "rated.py-Rated-rates.fc1.weight=0.5,rates.name=2-seed0"
    monkeypatch.chdir(tmp_path)
    assert ALGORITHMS.make(said) == rated
    assert list(called([one, other])) == [f"{tmp_path}/{place}/mine.py:Mine:0.5" for place in "ab"]


def test_what_is_too_long_for_a_folders_name_ends_in_a_digest_of_it_all(tmp_path):
    (tmp_path / "mine.py").write_text(OWN.replace("mu: float = 1.0", "w: tuple[float, ...] = ()"))
    mine = ALGORITHMS.cls(f"{tmp_path}/mine.py:Mine")
    one, other = (mine((*(i / 97 for i in range(60)), last)) for last in (0.5, 1.0))
    for rounds in (1, 2):  # played, and gone on with
        settings = SMALL | {"rounds": rounds, "progress": False}
        found = fedrecall.compare(one, other, out=tmp_path / "c", **settings)
        assert [r["failed"] for r in found.runs] == [None, None]
        names = [path.name for path in (tmp_path / "c").iterdir()]
        assert len(names) == 2
        assert all(re.fullmatch(r"mine\.py-Mine-0\+0\.0103[\d.+]+-[0-9a-f]{8}-seed0", n) for n in names)
    for bytes_, whole in ((249, True), (250, False)):  # and 6 of the seed
        name = "é" * 60 + "x" * (bytes_ - 120)
        (planned,) = plan({name: "fedavg"}, {"clients": 4}, seeds=1)
        called = run_folder(planned, tmp_path).name
        assert (called == f"{name}-seed0") == whole
        assert whole or re.fullmatch("é{50}-[0-9a-f]{8}-seed0", called)
