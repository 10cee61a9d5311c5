"""The command line as a stranger meets it: what it prints, what it leaves, how it exits."""

import csv
import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import struct
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer.main
from matplotlib.axes import Axes
from rich.console import Console

import fedrecall
from fedrecall import config as configs
from fedrecall import files
from fedrecall.algorithms import ALGORITHMS
from fedrecall.backends.vectorised import Vectorised
from fedrecall.cli import main, progress
from fedrecall.cli.app import COMMANDS, app
from fedrecall.cli.commands.compare import tables
from fedrecall.cli.commands.inspect import _chart, draw_partition, flowing
from fedrecall.cli.commands.run import summarise
from fedrecall.cli.options import gather
from fedrecall.comparison import End, Planned, Row, called, end, plan, rows_of, run_folder
from fedrecall.config import Config
from fedrecall.data import partitions
from fedrecall.errors import UserError
from fedrecall.experiment import Result
from fedrecall.fields import fields
from fedrecall.records import RunFolder
from fedrecall.reports.runs import open_runs
from fedrecall.training import Recipe

SMALL = [
    *("--dataset", "synthetic:classes=4,train=160,test=80,size=8", "--model", "mlp:8"),
    *("--clients", "8", "--sample", "3", "--rounds", "2"),
]
LONG = "x" * 300


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the program in an empty folder: (exit code, what it printed, what it said went wrong)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedrecall", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        return exit_.value.code or 0, said.out, " ".join(said.err.split())

    return run


def test_a_run_prints_its_end_and_leaves_a_folder(call, tmp_path):
    code, out, _ = call(
        "run", *SMALL, "--algorithm", "fedprox:mu=0.5", "--lr", "0.05", "-s", "training.momentum=0.5"
    )
    assert code == 0
    assert "accuracy, last round" in out
    folder = RunFolder(tmp_path / "runs" / "fedprox-synthetic-shards-seed0")
    made = configs.make(folder.config())
    assert (made.algorithm["mu"], made.training.lr, made.training.momentum) == (0.5, 0.05, 0.5)
    assert len(folder.metrics()) == 2
    code, _, _ = call("run", *SMALL, "--algorithm", "fedprox:mu=0.5")
    assert code == 0
    assert RunFolder(tmp_path / "runs" / "fedprox-synthetic-shards-seed0-2").started


def test_rounds_whose_config_is_gone_are_not_begun_anew(call, tmp_path):
    assert call("run", *SMALL, "--out", "x")[0] == 0
    (tmp_path / "x" / "config.json").rename(tmp_path / "kept")
    for words in (["--algorithm", "fedprox"], ["--algorithm", "fedprox", "--resume"], ["--resume"]):
        code, _, err = call("run", *SMALL, "--out", "x", *words)
        assert code == 2
        assert "x holds rounds, but no config.json" in err
    (tmp_path / "kept").rename(tmp_path / "x" / "config.json")
    assert call("run", "--resume", "--out", "x", "--rounds", "3")[0] == 0
    assert len(RunFolder(tmp_path / "x").metrics()) == 3


def test_runs_that_were_looked_at_after_other_rounds_are_not_compared(call):
    assert call("compare", "fedavg", *SMALL, "--out", "x")[0] == 0
    code, _, err = call("compare", "fedavg", "fedprox", *SMALL, "--evaluate-every", "2", "--out", "x")
    assert code == 2
    assert "was evaluated every round, not every 2 rounds" in err
    assert "give --evaluate-every 1, or another --out" in err
    run = ("run", "--resume", "--out", "x/fedavg-seed0", "--rounds", "4", "--evaluate-every", "2")
    assert call(*run)[0] == 0
    code, _, err = call("compare", "fedavg", *SMALL, "--rounds", "4", "--evaluate-every", "2", "--out", "x")
    assert code == 2  # though it was begun as the last start said
    assert "was evaluated every round" in err


def test_a_mistyped_folder_is_not_a_new_run(call, tmp_path):
    code, _, err = call("run", "--resume", "--out", "typo", "--rounds", "300")
    assert code == 2
    assert "typo holds no run to go on with" in err
    assert not (tmp_path / "typo").exists()
    code, _, err = call("run", "--resume", "--out", "typo")
    assert code == 2
    assert "typo holds no run to go on with" in err
    code, _, err = call("run", "nothere.yaml")
    assert err.endswith("config nothere.yaml cannot be read: No such file or directory.")


def test_runs_that_begin_at_once_have_folders_of_their_own(call, tmp_path):
    first = tmp_path / "runs/fedavg-synthetic-shards-seed0"
    going = RunFolder(first)
    going.acquire()  # another process has begun there, and has written nothing yet
    try:
        code, out, err = call("run", *SMALL)
        assert code == 0, err
        assert "fedavg-synthetic-shards-seed0-2" in out
        code, _, err = call("run", *SMALL, "--out", str(first))
        assert code == 75
        assert "another run is writing to" in err
    finally:
        going.release()


def test_a_tilde_is_the_home_in_every_option(call, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    words = ["compare", "fedavg", *SMALL, "--out=~/ev"]
    assert call(*words, "--json=~/q.json")[0] == 0
    code, _, err = call(*words, "--evaluate-every", "2")
    assert "was evaluated every round, not every 2" in err
    for command in (
        ["run", "--resume", "--rounds", "3", "--out", "~/ev/fedavg-seed0"],
        ["report", "~/ev/fedavg-seed0", "--out=~/page.html"],
        ["watch", "--once", "~/ev"],
        ["partition", *SMALL[:2], "--clients", "8", "--save=~/p.json", "--picture=~/new/folder/p.png"],
    ):
        code, _, err = call(*command)
        assert code == 0, err
    assert {path.name for path in home.iterdir()} == {"ev", "q.json", "page.html", "p.json", "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert len(open_runs(["~/ev"])) == 1
    assert len(fedrecall.trained("~/ev/fedavg-seed0").inputs.class_names) == 4


def test_runs_that_another_process_plays_are_left_to_it(call, tmp_path):
    words = [
        "compare",
        "fedavg",
        "fedprox",
        "fedntd",
        *SMALL,
        "--seeds",
        "2",
        "--out",
        "x",
        "--json",
        "t.json",
    ]
    going = [RunFolder(tmp_path / "x" / name) for name in ("fedavg-seed0", "fedntd-seed1")]
    for folder in going:
        folder.acquire()
    try:
        code, out, err = call(*words)
    finally:
        for folder in going:
            folder.release()
    assert code == 75, err
    for folder in going:
        assert f"x/{folder.path.name} is being played by another process" in out
        assert not folder.recorded
    fedavg, fedprox, fedntd = json.loads((tmp_path / "t.json").read_text())["rows"]
    played = [[a is not None for a in r["accuracy"]] for r in (fedavg, fedprox, fedntd)]
    assert played == [[False, True], [True, True], [True, False]]
    assert "1 not run" in out
    code, out, _ = call(*words)
    assert code == 0
    assert "played by another" not in out
    again = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert again[1] == fedprox
    assert all(a is not None for r in again for a in r["accuracy"])


def test_a_run_that_another_process_ends_in_the_meantime_has_its_numbers(call, tmp_path, monkeypatch):
    assert call("run", *SMALL, "--out", "x/fedavg-seed0")[0] == 0
    first = RunFolder(tmp_path / "x" / "fedavg-seed0")
    first.acquire()
    monkeypatch.setattr(progress, "shown", lambda *_: Releases(first))
    code, out, err = call("compare", "fedavg", "fedprox", *SMALL, "--out", "x")
    assert code == 0, err
    assert "not run" not in out
    assert "played by another" not in out


class Releases:
    """A sink that lets go of another run's folder in the first round."""

    def __init__(self, folder):
        self.folder = folder

    def begin(self, config, history):
        pass

    def record(self, record):
        self.folder.release()

    def end(self):
        pass


def test_the_exit_code_says_whether_the_same_command_may_do_later(call, monkeypatch):
    assert call("run", *SMALL, "--algorithm", "fedprox:mu=1e30")[0] == 3
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error, code in ((full, 75), (OSError(errno.EACCES, "no"), 2), (MemoryError(), 75)):
        with monkeypatch.context() as here:
            here.setattr(RunFolder, "append", raising(error))
            assert call("run", *SMALL)[0] == code
    assert call("run", *SMALL, "--out", "x")[0] == 0
    for error, code in ((full, 75), (OSError(errno.EDQUOT, "no"), 75), (OSError(errno.EACCES, "no"), 2)):
        with monkeypatch.context() as here:
            here.setattr(files, "write", raising(error))
            assert call("report", "x", "--out", "x.html")[0] == code
            assert call("figure", "fedssd/fig8", "x")[0] == code
            here.setattr(Path, "mkdir", raising(error))
            assert call("run", *SMALL, "--out", "y")[0] == code


def raising(error):
    def fails(*_, **__):
        raise error

    return fails


def test_a_run_that_failed_before_its_first_round_leaves_its_name(call, tmp_path):
    assert call("run", *SMALL, "--backend", "foo")[0] == 2
    code, _, _ = call("run", *SMALL)
    assert code == 0
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["fedavg-synthetic-shards-seed0"]


def test_all_numbers_of_a_comparison_are_whole_on_a_narrow_terminal(call, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = call("compare", "fedavg", "fedntd", *SMALL, "--seeds", "2", "--json", "t.json")
    assert code == 0
    shown = out[out.index("last round") :]
    assert "…" not in shown
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    both = [[100 * a for a in r["accuracy"]] for r in rows]
    mean = sum(both[1]) / 2 - sum(both[0]) / 2
    assert f"{mean:+.2f}" in shown


def test_going_back_past_a_damaged_checkpoint_is_said(call, tmp_path):
    assert call("run", *SMALL, "--out", "x", "--rounds", "3")[0] == 0
    (tmp_path / "x" / "checkpoints" / "round-000003.safetensors").write_bytes(b"torn")
    code, _, err = call("run", *SMALL, "--resume", "--out", "x", "--rounds", "4")
    assert code == 0
    assert err.startswith("warning: x/checkpoints/round-000003.safetensors is damaged")
    assert "Going on from round 2." in err
    assert ".py" not in err  # no line of code, which a user has no use for


def test_resume_needs_no_more_than_the_folder_and_extends(call, tmp_path):
    call("run", *SMALL, "--out", "x")
    assert call("run", "--resume", "--out", "x")[0] == 0
    assert call("run", *SMALL, "--out", "x", "--resume", "--rounds", "3")[0] == 0
    assert len(RunFolder(tmp_path / "x").metrics()) == 3
    code, _, err = call("run", *SMALL, "--out", "x")
    assert code == 2
    assert "--resume" in err


def test_settings_come_from_a_file_and_options_override_it(call, tmp_path):
    (tmp_path / "c.yaml").write_text("algorithm: fedavg\nrounds: 9\ntraining: {lr: 0.5}\n")
    assert call("run", "c.yaml", *SMALL, "--out", "x", "--batch-size", "5")[0] == 0
    made = configs.make(RunFolder(tmp_path / "x").config())
    assert (made.rounds, made.training.lr, made.training.batch_size) == (2, 0.5, 5)


def test_settings_of_the_local_training_may_be_named_alone_wherever_they_are_given(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "lr: 0.5\ntraining: {momentum: 0.0}\nbatch_size: 7\nalgorithm: fedntd\nalgorithm.beta: 2\n"
    )
    made = configs.make(gather(file, {"batch_size": "8"}, ["lr_decay=0.5", "batch_size=9"]))
    assert made.training == Recipe(lr=0.5, momentum=0.0, batch_size=9, lr_decay=0.5)
    assert made.algorithm["beta"] == 2


def test_compare_prints_every_algorithm_and_pairs_seeds(call, tmp_path):
    code, out, _ = call(
        "compare", "fedavg", "fedntd", "fedseq", *SMALL, "--seeds", "2", "--json", "t.json", "--out", "all"
    )
    assert code == 0
    assert "fedntd" in out
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [r["name"] for r in rows] == ["fedavg", "fedntd", "fedseq"]
    assert [len(r["accuracy"]) for r in rows] == [2, 2, 2]
    runs = [configs.make(RunFolder(p).config()) for p in sorted((tmp_path / "all").iterdir())]
    assert {r.seed for r in runs} == {0, 1}
    parts = {
        seed: {(p / "partition.json").read_text() for p in (tmp_path / "all").glob(f"*-seed{seed}")}
        for seed in (0, 1)
    }
    assert all(len(p) == 1 for p in parts.values())  # one federation for all algorithms of a seed


def test_numbers_of_held_out_training_examples_are_told_from_test_results(call, tmp_path):
    words = [*SMALL, "--validation", "0.2"]
    code, said, _ = call("run", "--algorithm", "fedavg", *words, "--out", "runs/mine")
    assert code == 0
    assert "validation accuracy, last round" in said
    assert not re.search(r"(?<!validation )accuracy", said)
    _, said, _ = call("compare", "fedavg", "fedntd", *words)
    assert re.search(r"validation\s", said)
    _, plain, _ = call("compare", "fedavg", "fedntd", *SMALL)
    assert "validation" not in plain
    _, said, _ = call("watch", "runs/mine", "--once")
    assert "validation accuracy" in said
    assert call("report", "runs/mine", "--out", "report.html")[0] == 0
    page = Path("report.html").read_text()
    assert "mine was evaluated on held-out training examples (validation = 0.2), not the test split." in page
    assert "On the whole test split" not in page
    _, said, _ = call("figure", "fedntd/fig2", "runs/mine")
    assert "mine was evaluated on held-out training examples" in " ".join(said.split())
    call("partition", *SMALL[:2], "--clients", "8", "--validation", "0.2", "--save", "p.json")
    assert sum(map(len, partitions.load(Path("p.json"))[0])) == 128  # of 160


def test_compare_over_settings_is_a_comparison_with_each(call, tmp_path):
    over = ["--over", "partition=iid,lda:0.5,min_size=1", "--over", "lr=0.1,0.01"]
    code, out, _ = call("compare", "fedavg", "fedntd", *SMALL, *over, "--json", "t.json", "--out", "all")
    assert code == 0
    tables = json.loads((tmp_path / "t.json").read_text())["tables"]
    settings = [
        {"partition": partition, "training.lr": lr}
        for partition in ("iid", "lda:0.5,min_size=1")
        for lr in ("0.1", "0.01")
    ]
    assert [t["over"] for t in tables] == settings
    assert "partition=lda:0.5,min_size=1, lr=0.01: last round, one seed" in out
    assert "fedavg, partition=lda:0.5,min_size=1, lr=0.01, seed 0: " in out
    alone = ["--partition", "lda:0.5,min_size=1", "--lr", "0.01", "--json", "one.json"]
    assert call("compare", "fedavg", "fedntd", *SMALL, *alone)[0] == 0
    for key in ("name", "accuracy", "forgetting", "bytes_up"):
        one = json.loads((tmp_path / "one.json").read_text())["rows"]
        assert [r[key] for r in tables[-1]["rows"]] == [r[key] for r in one]
    runs = [RunFolder(p) for p in (tmp_path / "all").iterdir()]
    assert len(runs) == 8
    played = {p: p.read_bytes() for p in (tmp_path / "all").rglob("metrics.jsonl")}
    assert call("compare", "fedavg", "fedntd", *SMALL, *over, "--out", "all")[0] == 0  # finished: shown again
    assert played == {p: p.read_bytes() for p in (tmp_path / "all").rglob("metrics.jsonl")}


def test_compare_over_data_sets_loads_each(call, tmp_path):
    over = ["--over", "dataset=digits,synthetic:classes=4,train=60,test=20,size=8"]
    code, _, _ = call("compare", "fedavg", *SMALL, *over, "--json", "t.json", "--out", "all")
    assert code == 0
    names = {RunFolder(p).config()["dataset"]["name"] for p in (tmp_path / "all").iterdir()}
    assert names == {"digits", "synthetic"}


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (["lr"], "--over lr: give key=value,value, such as lr=0.01,0.1"),
        (["lr="], "--over lr=: give key=value,value"),
        (["=0.1"], "--over =0.1: give key=value,value"),
        (["seed=1,2"], "--over seed=1,2: say how many with --seeds"),
        (["algorithm.beta=1,2"], "name an algorithm once for each, such as fedntd:beta=1 fedntd:beta=3"),
        (["lr=0.1", "training.lr=0.2"], "training.lr or one of its values is there twice"),
        (["lr=0.1,0.1"], "training.lr or one of its values is there twice"),
        (["lr=0.1,x"], "lr = 'x' is not a number"),
        (["sides=1,2"], "config has no 'sides'"),
        (
            ["lr=0.1,1", "mu=0.5,2"],
            "mu is a setting of fedprox:0.1, not of all runs: give it with the name, such "
            "as fedprox:mu=0.5 fedprox:mu=2.",
        ),
        (["partition=iid,shards:0"], "shards"),
    ],
)
def test_compare_over_what_there_is_not_ends_before_anything_is_trained(call, over, said, tmp_path):
    words = [word for one in over for word in ("--over", one)]
    code, _, err = call("compare", "fedavg", "fedprox:0.1", *SMALL, *words, "--out", "all")
    assert code == 2
    assert said in err
    assert not (tmp_path / "all").exists()


def test_compare_and_report_show_what_privacy_was_promised(call, tmp_path):
    pytest.importorskip("dp_accounting")
    private = "private:fedavg,clip=0.5,noise=1"
    code, out, err = call("compare", "fedavg", private, *SMALL, "--json", "t.json", "--out", "all")
    assert code == 0, err
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    lines = next((tmp_path / "all").glob("private*/metrics.jsonl")).read_text().splitlines()
    last = json.loads(lines[-1])
    assert [r["epsilon"] for r in rows] == [[None], [last["epsilon"]]]
    table = out[out.index("last round") :].splitlines()
    assert any("fedavg" in line and "none" in line.split() for line in table)
    assert any(f"{last['epsilon']:.2f}" in line.split() for line in table)
    assert "epsilon" not in call("compare", "fedavg", "fedntd", *SMALL)[1]


def test_a_comparison_shows_how_clients_fare_where_that_was_measured(call, tmp_path):
    numbers = tmp_path / "numbers.json"
    asked = ("compare", "fedavg", FEDPER, *SMALL, "--measure", "fairness:2", "--out", "runs")
    code, out, _ = call(*asked, "--json", "numbers.json")
    assert code == 0
    rows = json.loads(numbers.read_text())["rows"]
    for told, name in zip(rows, ("fedavg", "fedper.py-*-FedPer"), strict=True):
        (folder,) = (tmp_path / "runs").glob(f"{name}-seed0")
        last = RunFolder(folder).metrics()[-1]["measures"]["fairness"]
        assert (told["clients_mean"], told["worst_tenth"]) == ([last["mean"]], [last["worst_tenth"]])
        assert all(f"{100 * last[key]:.2f}" in out.split() for key in ("mean", "worst_tenth"))
    assert "clients %" in out
    assert "clients - fedavg" in out
    first, second = (told["clients_mean"][0] for told in rows)
    assert f"{100 * (second - first):+.2f}" in out.split()
    small = {w[2:]: int(v) if v.isdigit() else v for w, v in zip(SMALL[::2], SMALL[1::2], strict=True)}
    found = fedrecall.compare("fedavg", FEDPER, out="runs", progress=False, measures=["fairness:2"], **small)
    assert [entry.clients for entry in found.entries] == [[first], [second]]
    found.write("t.csv")
    fared = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [float(row["clients"]) for row in fared] == [first, second]
    assert float(fared[1]["clients_difference"]) == pytest.approx(second - first)
    assert f"| {100 * second:.2f} | " in str(found)
    plain = call("compare", "fedavg", FEDPER, *SMALL, "--json", "numbers.json")[1]
    assert "clients %" not in plain
    assert [r["clients_mean"] for r in json.loads(numbers.read_text())["rows"]] == [[None]] * 2


def test_a_comparison_is_written_as_a_table(call, tmp_path):
    asked = ("compare", "fedavg", "fedprox:mu=1e30", "fedntd", *SMALL, "--seeds", "2")
    asked += ("--over", "lr=0.01,0.1", "--validation", "0.2", "--out", "all")
    code, out, _ = call(*asked, "--backend", "serial", "--json", "t.json", "--table", "t.csv")
    assert code == 3  # one of them diverges
    assert "table: t.csv" in out
    told = json.loads((tmp_path / "t.json").read_text())["tables"]
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [r["setting"] for r in rows] == ["lr=0.01"] * 3 + ["lr=0.1"] * 3
    for line, held in zip(rows, [r for table in told for r in table["rows"]], strict=True):
        assert line["algorithm"] == held["name"]
        known = [a for a in held["accuracy"] if a is not None]
        assert int(line["seeds"]) == len(known)
        assert line["against"] == ("" if held["name"] == "fedavg" else "fedavg")
        if known:
            assert float(line["accuracy"]) == pytest.approx(np.mean(known))
            assert float(line["accuracy_std"]) == pytest.approx(np.std(known, ddof=1))
    code, _, err = call("report", "all", "--table", "r.csv")
    assert code == 0, err
    again = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert {r["split"] for r in rows + again} == {"validation"}
    assert {r["accuracy"] for r in again} == {r["accuracy"] for r in rows} - {""}
    code, _, err = call(*asked, "--table", "t.xls")
    assert code == 2
    assert "t.xls: name a file that ends in .tex, .csv, .md" in err


@pytest.mark.parametrize("extra", [[], ["--on-failure", "stop"]])
def test_compare_shows_a_run_that_diverges_as_failed_beside_the_others(call, tmp_path, extra):
    words = ["fedavg", "fedprox:mu=1e30", "fedntd", *SMALL]
    words += ["--seed", "3", "--seeds", "2", "--json", "t.json"]
    code, out, _ = call("compare", *words, *extra, "--backend", "serial", "--out", "all")
    assert code == 3
    shown = {line.split()[1]: line for line in out.splitlines() if line.startswith("│")}
    assert "2 failed" in shown["fedprox:mu=1e30"]
    assert "[" in shown["fedntd"]  # the paired difference and its interval
    lines = [line for line in out.splitlines() if line.startswith("fedprox:mu=1e30, seed ")]
    assert [line.split()[2:4] for line in lines] == [["3", "failed:"], ["4", "failed:"]]
    assert all("There was no round before it." in line for line in lines)
    fedavg, fedprox, fedntd = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert fedprox["accuracy"] == [None, None]
    assert None not in fedavg["accuracy"] + fedntd["accuracy"]
    assert fedavg["failed"] == fedntd["failed"] == [None, None]
    assert None not in fedprox["failed"]


def test_all_of_a_comparison_spare_the_examples_that_one_of_them_needs():
    """So that they divide the same ones among the clients."""
    needed = ALGORITHMS.make("fedssd").auxiliary_per_class
    assert needed > 0
    names = ["fedavg", "fedssd", "fedntd"]
    made = plan(called(names), {"seed": 3}, 2)
    assert [(p.name, p.made.algorithm["name"], p.made.seed) for p in made] == [
        (n, n, s) for s in (3, 4) for n in names
    ]
    assert {p.made.auxiliary_per_class for p in made} == {needed}
    for said, held in ((7, 7), (None, needed)):
        runs = plan(called(names), {"auxiliary_per_class": said}, 1)
        assert {p.made.auxiliary_per_class for p in runs} == {held}


def planned(name, setting=""):
    """A run of a comparison that tests only call by its name."""
    return Planned(name, setting, SimpleNamespace(seed=3))


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("fedntd", "fedntd-seed3"),
        ("fedntd:beta=0.5,tau=2", "fedntd-beta=0.5,tau=2-seed3"),
        ("private:./mine.py:Mine,clip=1", "private-.-mine.py-Mine,clip=1-seed3"),
        ("package.module:Mine", "package.module-Mine-seed3"),
        ("mine.py:Mine", "mine.py-Mine-seed3"),
        ("./mine.py:Mine:mu=2", "mine.py-Mine-mu=2-seed3"),
        ("my/own/mine.py:Mine", "my-own-mine.py-Mine-seed3"),
        ("my/../mine.py:Mine", "mine.py-Mine-seed3"),
    ],
)
def test_a_run_of_a_comparison_is_called_as_it_was_named(name, called):
    assert run_folder(planned(name), Path("out")) == Path("out") / called
    assert run_folder(planned(name), None) is None


def test_runs_of_files_elsewhere_are_seen_and_apart(monkeypatch, tmp_path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    places = ("mine.py", "../mine.py", "../other/mine.py", "/mine.py", ".hidden/mine.py", "../.mine.py")
    names = [f"{place}:Mine:mu=2" for place in places]
    called = [run_folder(planned(name, "lr=0.1, model=mlp:8"), tmp_path).name for name in names]
    assert called[0] == "mine.py-Mine-mu=2-lr=0.1-model=mlp-8-seed3"
    assert all(re.fullmatch(r"mine\.py-\w{6}-Mine-mu=2-lr=0.1-model=mlp-8-seed3", c) for c in called[1:])
    assert len(set(called)) == len(called)
    again = f"{tmp_path}/mine.py:Mine:mu=2"  # the second one, named otherwise
    assert run_folder(planned(again), tmp_path) == run_folder(planned(names[1]), tmp_path)


OWN = (
    "from dataclasses import dataclass\nfrom fedrecall import FedAvg\n"
    "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    mu: float = 1.0\n"
)


def test_a_comparison_of_files_is_kept_where_a_report_finds_it(call, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    assert call("compare", "fedavg", "./mine.py:Mine", *SMALL, "--out", "all")[0] == 0
    assert [run.name for run in open_runs([tmp_path / "all"])] == ["fedavg-seed0", "mine.py-Mine-seed0"]
    code, _, err = call("compare", "mine.py:Mine", "./mine.py:Mine", *SMALL, "--out", "all")
    assert code == 2
    assert "mine.py:Mine and ./mine.py:Mine would be kept in one folder, all/mine.py-Mine-seed0" in err


BROKEN = """
from dataclasses import dataclass
from pathlib import Path
from fedrecall import FedAvg

@dataclass(frozen=True)
class Typo(FedAvg):
    def loss(self, model, params, anchor, batch):
        return super().loss(model, params, anchor, batch) if Path("mended").exists() else batch.X

@dataclass(frozen=True)
class Several(FedAvg):
    def loss(self, model, params, anchor, batch):
        return model(params, batch.x)[:, 0]
"""


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_an_error_in_an_algorithm_ends_its_own_runs_alone(call, tmp_path, backend):
    (tmp_path / "mine.py").write_text(BROKEN)
    asked = ["compare", "mine.py:Typo", "fedavg", "mine.py:Several", *SMALL, "--seeds", "2", "--out", "all"]
    asked += ["--backend", backend, "--json", "t.json"]
    code, out, err = call(*asked)
    assert code == 1
    where = "In `loss` of mine.py:Typo, line 9."
    why = f"AttributeError: 'Batch' object has no attribute 'X'. {where}"
    assert [f"mine.py:Typo, seed {seed} failed: {why}" in out for seed in (0, 1)] == [True, True]
    assert err.count("Traceback") == err.count("batch.X") == err.count(where) == 1
    typo, fedavg, several = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert typo["failed"] == [why, why]
    assert all("must be one number" in said for said in several["failed"])
    assert RunFolder(tmp_path / "all" / "mine.py-Typo-seed1").fault.reason == why
    call("compare", "fedavg", *SMALL, "--seeds", "2", "--backend", backend, "--json", "alone.json")
    (alone,) = json.loads((tmp_path / "alone.json").read_text())["rows"]
    assert fedavg["accuracy"] == alone["accuracy"]
    (tmp_path / "mended").touch()
    assert call(*asked)[0] == 1  # of the other one
    typo, again, _ = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert typo["accuracy"] == fedavg["accuracy"] == again["accuracy"]


def test_errors_are_shown_of_a_comparison_that_was_stopped_later(call, tmp_path):
    stopped = "class Stopped(FedAvg):\n    def loss(self, *given):\n        raise KeyboardInterrupt\n"
    (tmp_path / "mine.py").write_text(f"{BROKEN}\n@dataclass(frozen=True)\n{stopped}")
    code, _, err = call("compare", "mine.py:Typo", "mine.py:Stopped", *SMALL, "--backend", "serial")
    assert code == 130
    assert err.count("Traceback") == err.count("batch.X") == 1


def test_a_run_of_a_comparison_that_has_recorded_nothing_is_begun_anew(call, tmp_path):
    (tmp_path / "mine.py").write_text(BROKEN)
    asked = ("compare", "mine.py:Typo", *SMALL, "--backend", "serial", "--out", "all")
    made = tmp_path / "all" / "mine.py-Typo-seed0" / "made.json"

    def begun_with_other_code():
        starts = files.read_json(made)
        starts[-1]["code"] = dict.fromkeys(starts[-1]["code"], "0123456789abcdef0123456789abcdef")
        files.write_json(made, starts)

    assert call(*asked)[0] == 1
    begun_with_other_code()
    (tmp_path / "mended").touch()
    assert call(*asked)[0] == 0
    begun_with_other_code()
    code, _, err = call(*asked)
    assert code == 2
    assert "was begun with other code" in err
    assert "delete the folder to begin the run anew" in err
    shutil.rmtree(made.parent)
    assert call(*asked)[0] == 0


def test_an_unexpected_error_is_shown_from_ones_own_code_on(call, tmp_path):
    (tmp_path / "mine.py").write_text(BROKEN)
    code, _, err = call("run", "--algorithm", "mine.py:Typo", *SMALL, "--backend", "serial")
    assert code == 1
    said = "In `loss` of mine.py:Typo, line 9. fedrecall --debug COMMAND shows the whole traceback."
    assert err.endswith(f"AttributeError: 'Batch' object has no attribute 'X' {said}")
    assert err.count("File ") == 1


def test_a_comparison_says_of_what_accuracy_is_where_clients_have_other_models(call):
    code, out, _ = call("compare", "fedavg", FEDPER, *SMALL)
    assert code == 0
    told = f"Accuracy of {FEDPER}: of what travels; of clients' own models see the measure fairness."
    assert out.splitlines().count(told) == 1
    assert out.index(told) > out.index("last round")
    assert "what travels" not in call("compare", "fedavg", "fedntd", *SMALL)[1]


def test_there_is_a_column_of_differences_where_there_are_any():
    whole = End(0.5, 0.1, 1.0, 1, 1, clients_mean=0.5, worst_tenth=0.25)
    for second, columns in ((whole, ["accuracy - a", "clients - a"]), (End(failed="NaN"), [])):
        (shown,) = tables([Row("a", [whole]), Row("b", [second])], 1, "", 300)
        assert [str(c.header) for c in shown.columns if " - " in str(c.header)] == columns


def test_a_mean_of_fewer_seeds_than_there_are_says_so():
    whole = End(0.5, 0.1, 1.0, 1_000_000, 1_000_000, 1.0, 1e-5, 0.4, 0.25)
    without = whole._replace(epsilon=None, delta=None, clients_mean=None, worst_tenth=None)
    rows = [Row("a", [whole, without, whole]), Row("b", [whole, whole, End(failed="NaN")])]
    (wide,) = tables(rows, 3, "", 300)
    shown = {str(c.header): [str(cell) for cell in c.cells] for c in wide.columns}
    assert shown["clients %"] == ["40.00 ± 0.00 (2 of 3)", "40.00 ± 0.00"]
    assert shown["worst tenth\nof clients %"] == ["25.00 ± 0.00 (2 of 3)", "25.00 ± 0.00"]
    assert shown["epsilon"] == ["1.00 at 1e-05 (2 of 3)", "1.00 at 1e-05"]
    assert shown["forgetting"] == ["0.100 ± 0.000"] * 2
    assert shown["accuracy %"] == ["50.00 ± 0.00", "50.00 ± 0.00, 1 failed"]


def test_how_clients_fare_is_not_averaged_over_runs_that_tested_them_in_unlike_ways():
    def of(fairness):
        costs = {"seconds": {"train": 1.0}, "bytes_down": 1, "bytes_up": 1}
        last = costs | {"accuracy": 0.5, "forgetting": 0.1, "measures": {"fairness": fairness}}
        return end(Result(None, [last], None, None, None, None))

    by_classes, at_home = {"mean": 0.2, "worst_tenth": 0.1}, {"at_home": {"mean": 0.4, "worst_tenth": 0.3}}
    plans = [Planned(name, "", None) for name in "aabb"]
    for found, kept in (
        ([by_classes, at_home, at_home, at_home], [None, 0.4]),
        ([by_classes] * 4, [0.2, 0.2]),
    ):
        rows = rows_of(plans, dict(enumerate(map(of, found))))[""]
        assert rows[0].each("clients_mean") == kept
        assert rows[0].each("at_home") == ["at_home" in way for way in found[:2]]


def test_of_several_promises_the_weakest_is_shown():
    ends = [End(0.5, 0.1, 1.0, 1, 1, epsilon, 1e-5) for epsilon in (1.0, 3.0, 2.0)]
    (wide,) = tables([Row("a", ends), Row("b", [End(0.5, 0.1, 1.0, 1, 1)] * 3)], 3, "", 200)
    assert list(wide.columns[-1].cells) == ["3.00 at 1e-05", "none"]


FEDAVG = SimpleNamespace(algorithm={"name": "fedavg"})
FEDPER = f"{Path(__file__).parents[2] / 'examples' / 'fedper.py'}:FedPer"


@pytest.mark.parametrize("algorithm", [FEDPER, {"name": "private", "of": FEDPER}, "fedavg"])
def test_of_what_accuracy_is_is_said_where_clients_have_other_models(algorithm, capsys, call):
    record = {
        "round": 1,
        "accuracy": 0.5,
        "forgetting": 0,
        "seconds": {"train": 1},
        "bytes_down": 0,
        "bytes_up": 0,
    }
    summarise(SimpleNamespace(records=[record], out=None, config=SimpleNamespace(algorithm=algorithm)))
    shown = capsys.readouterr().out
    if algorithm != FEDPER:
        assert ("what travels" in shown) == (algorithm != "fedavg")
        return
    assert "of what travels; of clients' own models: --measure fairness,personal" in shown
    shown = call("show", "algorithm", FEDPER)[1]
    assert "of what travels; of clients' own models: --measure fairness,personal" in shown


def test_the_end_of_a_run_names_its_best_round_and_its_promise(capsys):
    told = [(0.5, 0.25), (0.75, 0.125), (0.625, 0.375)]
    sent = {"seconds": {"train": 2.0}, "bytes_down": 3_000_000, "bytes_up": 1_500_000}
    history = [{"accuracy": a, "forgetting": f, **sent} for a, f in told]
    history.insert(1, dict(sent))  # not evaluated
    for number, record in enumerate(history, start=1):
        record["round"] = number
    summarise(SimpleNamespace(records=history, out=None, config=FEDAVG))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        "accuracy, last round 62.50%",
        "accuracy, best round 75.00% (round 3)",
        "forgetting 0.375",
        "training 8.0 s, 2.00 s a round",
        "sent a round 3.00 MB down, 1.50 MB up",
    ]
    told = {part: [0.75, 0.5] for part in ("examples", "accuracy", "balanced_accuracy")}
    history[-1]["measures"] = {"sites": {"sites": ["north", "[b]\x1bsouth"], **told}}
    summarise(SimpleNamespace(records=history, out=None, config=FEDAVG))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[2].startswith("accuracy, worst site 50.00% ([b]")
    assert "\x1b" not in rows[2]
    history[-1] |= {"epsilon": 1.234, "delta": 1e-5}
    summarise(SimpleNamespace(records=history, out="x", config=FEDAVG))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    found = end(SimpleNamespace(records=history, accuracy=0.625, forgetting=0.375))
    assert found == End(0.625, 0.375, 8.0, 3_000_000, 1_500_000, 1.234, 1e-5)
    assert rows[-2:] == ["privacy epsilon 1.23 at delta 1e-05, for each client", "run folder x"]
    assert progress.line(history[-1] | {"failures": []}).split("  ")[2] == "epsilon 1.23"


@pytest.mark.parametrize(
    "told", [{"epsilon": 0.5}, {"epsilon": None, "delta": 1e-5}, {"epsilon": 0.5, "delta": None}]
)
def test_what_an_algorithm_of_ones_own_calls_epsilon_need_not_be_of_privacy(told, capsys):
    record = {"round": 1, "accuracy": 0.5, "forgetting": 0.0, "failures": [], **told}
    record |= {"seconds": {"train": 1.0}, "bytes_down": 0, "bytes_up": 0}
    result = SimpleNamespace(records=[record], out=None, config=FEDAVG, accuracy=0.5, forgetting=0.0)
    summarise(result)
    assert "privacy" not in capsys.readouterr().out
    assert "epsilon" not in progress.line(record)
    assert (end(result).epsilon, end(result).delta) == (None, None)


def test_a_difference_is_of_the_seeds_whose_runs_both_went_through():
    numbers = End(0.5, 0.1, 1.0, 3_000_000, 2_000_000)
    better, failed = numbers._replace(accuracy=0.75), End(failed="NaN")
    rows = [Row("a", [numbers, failed, numbers]), Row("b", [better, better, failed]), Row("c", [numbers])]
    (wide,) = tables(rows, 3, "", 200)
    shown = {str(c.header): list(c.cells) for c in wide.columns}
    assert shown["accuracy %"] == ["50.00 ± 0.00, 1 failed", "75.00 ± 0.00, 1 failed", "50.00, 2 not run"]
    assert (shown["MB down"], shown["MB up"]) == (["3.00"] * 3, ["2.00"] * 3)
    against = shown["accuracy - a\n[95 % interval]"]
    assert list(map(str, against)) == ["", "+25.00 (1 of 3)", "+0.00 (1 of 3)"]


def test_two_pairs_have_no_interval_but_their_values():
    ends = [End(accuracy, 0.1, 1.0, 2_000_000, 2_000_000) for accuracy in (0.5, 0.5, 0.6, 0.9)]
    rows = [Row("a", ends[:2]), Row("b", ends[2:])]
    heads = {seeds: tables(rows, seeds, "", 200)[0].columns[3] for seeds in (2, 3)}
    assert {seeds: str(head.header) for seeds, head in heads.items()} == {
        2: "accuracy - a\n[both seeds]",
        3: "accuracy - a\n[95 % interval]",
    }
    assert [str(list(head.cells)[1]) for head in heads.values()] == [
        "+25.00 [+10.00, +40.00]",
        "+25.00 [+10.00, +40.00] (2 of 3: both values)",
    ]


@pytest.mark.parametrize(
    "name", ["fedntd", "private:fedavg,clip=0.5,noise=1", "/home/me/work/mine.py:Mine:x=1"]
)
@pytest.mark.parametrize("width", [70, 80, 100, 120, 160, 200])
def test_no_number_of_a_comparison_is_cut_however_narrow_the_terminal(name, width):
    ends = [
        End(0.123456 * k, 0.1 / k, 0.7 * k, 3_000_000, 10, 1.25 * k, 1e-5, 0.04 * k, 0.03 * k)
        for k in (1, 2, 3)
    ]
    rows = [Row(name, ends), Row("b", ends[::-1])]
    console = Console(width=width, record=True, file=io.StringIO())
    found = tables(rows, 3, "lr=0.1", width)
    for one in found:
        console.print(one)
    said = console.export_text()
    assert all(len(line) <= width for line in said.splitlines())
    assert said.count("lr=0.1: last round, mean ± std over 3 seeds") == 1
    cells = [str(c) for one in found for column in one.columns[1:] for c in column.cells]
    assert all(said.count(cell) >= cells.count(cell) for cell in cells)
    headings = [str(column.header).split("\n")[0] for one in found for column in one.columns[1:]]
    assert headings == [
        *("accuracy %", "forgetting", f"accuracy - {name}", "clients %", "worst tenth", f"clients - {name}"),
        *("training s", "MB down", "MB up", "epsilon"),
    ]
    assert (len(found) == 1) == (width >= 200)


def test_paragraphs_of_a_docstring_flow_and_lists_and_commands_stay():
    doc = """What it is.

    A sentence that
    goes on here.

    - one
    - two

        fedrecall run
    """
    assert flowing(doc) == "What it is.\n\nA sentence that goes on here.\n\n- one\n- two\n\n    fedrecall run"
    assert flowing("") == ""


def test_brackets_of_names_and_headings_are_shown(capsys):
    ends = [End(accuracy, 0.1, 1.0, 2_000_000, 2_000_000) for accuracy in (0.5, 0.5, 0.6, 0.9)]
    Console(width=200).print(*tables([Row("my[x]/a.py:A", ends[:2]), Row("b", ends[2:])], 2, "", 200))
    said = capsys.readouterr().out
    assert said.count("my[x]/a.py:A") == 2
    assert "[both seeds]" in said


STACKED = [*SMALL, "--precision", "float64", "--backend", "vectorised"]


@pytest.fixture
def stacked(monkeypatch):
    """The sizes of the stacks that are trained."""
    sizes, real = [], Vectorised.map_all
    monkeypatch.setattr(
        Vectorised, "map_all", lambda self, tasks: sizes.append(len(tasks)) or real(self, tasks)
    )
    return sizes


def test_runs_whose_steps_are_the_same_are_compared_as_one_stack(call, tmp_path, stacked):
    words = ["compare", "fedavg", "fedntd", "--seeds", "2", "--over", "partition=iid,shards:2"]
    code, out, err = call(*words, *STACKED, "--json", "many.json", "--out", "all")
    assert code == 0, err
    assert stacked == [12, 12, 12, 12]  # of each algorithm both rounds of two seeds by two partitions
    assert "fedntd, partition=shards:2, seed 1: round 2/2" in out
    serial = [*STACKED, "--backend", "serial", "--json", "one.json", "--out", "one"]
    assert call(*words, *serial)[0] == 0
    many, one = (json.loads((tmp_path / f"{name}.json").read_text())["tables"] for name in ("many", "one"))
    for row_ in (r for t in (*many, *one) for r in t["rows"]):
        del row_["seconds"]
    assert many == one
    for folder in (tmp_path / "all").iterdir():
        losses, alone = (
            [r["train_loss"] for r in RunFolder(tmp_path / base / folder.name).metrics()]
            for base in ("all", "one")
        )
        assert losses == pytest.approx(alone, rel=1e-11)


def test_runs_of_a_stack_go_on_when_one_of_them_diverges(call, tmp_path, stacked):
    words = ["compare", "fedavg", "--over", "lr=1e300,0.1", *STACKED, "--seeds", "2", "--json", "t.json"]
    code, out, _ = call(*words)
    assert code == 3
    assert stacked == [12, 6]
    assert "2 failed" in out
    bad, good = (t["rows"][0] for t in json.loads((tmp_path / "t.json").read_text())["tables"])
    assert [bad["accuracy"], good["failed"]] == [[None, None]] * 2
    assert all("every client of the round failed" in why for why in bad["failed"])
    assert call("compare", "fedavg", "--lr", "0.1", *STACKED, "--seeds", "2", "--json", "one.json")[0] == 0
    (alone,) = json.loads((tmp_path / "one.json").read_text())["rows"]
    assert good["accuracy"] == alone["accuracy"]


def test_a_stack_that_is_stopped_is_gone_on_with(call, tmp_path, monkeypatch, stacked):
    words = ["compare", "fedavg", "fedntd", *STACKED, "--json", "t.json", "--out", "all"]
    assert call(*words[:2], *words[3:], "--seed", "1")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(progress, "shown", lambda *_: Kills(signal.SIGINT))
        code, out, err = call(*words, "--seeds", "2")
    assert code == 130
    assert "stopped after round 1; what was done is saved, and the same command goes on with it." in err
    assert "1 not run" in out
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [a is None for a in rows[0]["accuracy"]] == [True, False]  # each in the place of its seed
    assert rows[1]["accuracy"] == [None, None]
    assert not (tmp_path / "all" / "fedntd-seed0").exists()
    del stacked[:]
    assert call(*words, "--seeds", "2")[0] == 0
    assert stacked == [3, 6, 6]
    found = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert call(*words[:-2], "--seeds", "2", "--backend", "serial")[0] == 0
    expected = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [r["accuracy"] for r in found] == [r["accuracy"] for r in expected]


def test_a_signal_in_the_last_round_of_a_stack_stops_the_next_one(call, monkeypatch, tmp_path):
    sinks = iter([Kills(signal.SIGINT)])
    monkeypatch.setattr(progress, "shown", lambda *_: next(sinks, Kills(0)))  # the first run's kills
    words = [*STACKED, "--rounds", "1", "--seeds", "2", "--out", "x", "--json", "t.json"]
    code, _, err = call("compare", "fedavg", "fedprox", *words)
    assert code == 130
    assert "stopped after round 1; what was done is saved, and the same command goes on with it." in err
    assert not (tmp_path / "x" / "fedprox-seed0").exists()
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [None in r["accuracy"] for r in rows] == [False, True]


def test_the_examples_of_a_comparison_are_moved_to_the_device_once(call, copies):
    for backend in ("serial", "vectorised"):
        copies.clear()
        assert call("compare", "fedavg", "fedntd", *STACKED, "--backend", backend, "--seeds", "2")[0] == 0
        assert len(copies) == 1


def test_what_stops_a_comparison_does_not_take_what_it_found_before(call, monkeypatch):
    class Fails:
        runs = 0

        def begin(self, config, history):
            self.runs += 1
            if self.runs == 2:
                raise UserError("enough")

        def record(self, record): ...

        def end(self): ...

    sink = Fails()
    monkeypatch.setattr(progress, "shown", lambda *_: sink)
    code, out, err = call("compare", "fedavg", "fedntd", *SMALL, "--backend", "serial")
    assert code == 2
    assert "enough" in err
    assert "fedavg" in out


@pytest.mark.parametrize(
    ("algorithm", "words", "said"),
    [
        ("fedssd", ["--auxiliary-per-class", "10"], "fedssd needs auxiliary_per_class >= 64, not 10"),
        ("fedntd", [], "was begun with seed = 1, not 0"),
        ("fedprox", ["--rounds", "1"], "holds 2 rounds: it cannot be continued to rounds = 1"),
        ("fedlsd", [], "fedlsd-seed0 was begun on other data"),
    ],
)
def test_compare_checks_every_run_before_the_first_is_trained(call, tmp_path, algorithm, words, said):
    begun = tmp_path / "all" / f"{algorithm}-seed0"
    if algorithm != "fedssd":
        other = ["--auxiliary-per-class", "0", "--seed", "1" if algorithm == "fedntd" else "0"]
        assert call("run", *SMALL, "--algorithm", algorithm, *other, "--out", str(begun))[0] == 0
    if algorithm == "fedlsd":
        made = json.loads((begun / "made.json").read_text())
        made[-1]["data"]["train"] += 1
        (begun / "made.json").write_text(json.dumps(made))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    code, out, err = call("compare", "fedavg", algorithm, *SMALL, *words, "--out", "all")
    assert code == 2
    assert said in err
    assert "round" not in out
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--algorithm", "fedntt"], "unknown algorithm 'fedntt'; did you mean 'fedntd'?"),
        (["run", "--clients", "many"], "clients = 'many' is not a whole number"),
        (["run", "-s", "trainig.lr=1"], "config has no 'trainig'; did you mean 'training'?"),
        (["run", "-s", "nonsense"], "give key=value"),
        (["run", "-s", "=3"], "-s =3: give key=value"),
        (["run", "--algorithm", "[bold]fed[/bold]"], "unknown algorithm '[bold]fed[/bold]'"),
        (["run", "--lr", "0"], "lr = '0' must be > 0"),
        (["run", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["run", "fedntd"], "there is no config fedntd; an algorithm is named as --algorithm fedntd."),
        (["run", "fedntd:beta=2"], "an algorithm is named as --algorithm fedntd:beta=2."),
        (["run", "--global-seed", "4294967296"], "global_seed = '4294967296' must be"),
        (
            ["run", "--dataset", "cifar10", "--data-root", "~nobody-of-that-name/x"],
            "~nobody-of-that-name/x: ",
        ),
        (["run", "--dataset", "folder:~nobody-of-that-name/x"], "~nobody-of-that-name/x: "),
        (["run", "--dataset", f"folder:{LONG}"], "cannot be looked up: File name too long."),
        (["run", "--dataset", "cifar10", "--data-root", LONG], "cannot be looked up: File name too long."),
        (["run", *SMALL, "--out", LONG], "File name too long."),
        (["run", "--resume", "--out", LONG], "cannot be looked up: File name too long."),
        (["report", LONG], "cannot be looked up: File name too long."),
        (["watch", LONG, "--once"], "cannot be looked up: File name too long."),
        (["reproduce", "fedntd/table1", "--from", LONG], "cannot be looked up: File name too long."),
        (["reproduce", "fedntd/table1", "--results", LONG], "cannot be looked up: File name too long."),
        (["run", *SMALL, "--model", "mlp:4611686018427387904"], "memory ran out"),
        (["run", "--dataset", "synthetic:2,4611686018427387904,20"], "memory ran out"),
        (["run", "--backend", "seriel", *SMALL], "did you mean 'serial'?"),
        (["run", "--resume", "--out", "nowhere"], "holds no run to go on with"),
        (["run", "--resume"], "name its folder with --out"),
        (["watch", "nowhere", "--every", "nan"], "--every = nan is not a number of seconds"),
        (["watch", "nowhere", "--every", "inf"], "--every = inf is not a number of seconds"),
        (["run", "--algorithm", "mine.py:Mine"], "there is no file"),
        (["compare", "fedavg", "fedavg"], "named twice"),
        (["compare", "fedntd", *SMALL, "-s", "algorithm.beta=3"], "with its name, such as fedntd:beta=3"),
        (
            ["compare", "fedntd", *SMALL, "--config", "algorithm.yaml"],
            "leave algorithm out of -s and --config",
        ),
        (["list", "algoritms"], "did you mean 'algorithms'?"),
        (["list", "papes"], "did you mean 'papers'?"),
        (["show", "papes", "fedntd"], "there are no 'papes' to show; did you mean 'papers'?"),
        (["show", "paper", "fednd"], "there is no paper 'fednd'; did you mean 'fedntd'?"),
        (["show", "papers", "fedntd/table3"], "fedntd has no table 'table3'; did you mean"),
        (["show", "algorithm", "fedavgg"], "did you mean 'fedavg'?"),
        (["run", *SMALL, "-s", "algorithm.uniform=1"], "fedavg has no 'uniform'; it has no settings."),
        (["partition", "--partition", "shards:900", "--clients", "20", "--dataset", "digits"], "shards"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_2(call, tmp_path, words, said):
    (tmp_path / "algorithm.yaml").write_text("algorithm: fedavg\n")
    code, _, err = call(*words)
    assert code == (75 if said == "memory ran out" else 2)
    assert said in err
    assert "Traceback" not in err


class Kills:
    """A sink that sends a signal after the first round."""

    def __init__(self, signum):
        self.signum = signum

    def begin(self, config, history):
        self.played = 0

    def record(self, record):
        self.played = record["round"]
        if self.played == 1:
            os.kill(os.getpid(), self.signum)
            time.sleep(0.01)

    def end(self):
        pass


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "--out", "x"],
            "run --resume --out x stopped after round {}; what was done is saved.",
        ),
        (
            ["run", "--out", "x", "--data-root", "d"],
            "run --resume --out x --data-root d stopped after round {}; what was done is saved.",
        ),
        (
            ["compare", "fedavg", "--out", "x"],
            "stopped after round {}; what was done is saved, and the same command goes on with it.",
        ),
        (["compare", "fedavg"], "stopped after round {}."),
    ],
)
def test_a_signal_says_what_is_saved_and_is_the_exit_code(call, monkeypatch, words, said, signum):
    sink = Kills(signum)
    monkeypatch.setattr(progress, "shown", lambda *_: sink)
    code, _, err = call(*words, *SMALL, "--rounds", "50", "--backend", "serial")
    assert code == 128 + signum
    assert said.format(sink.played) in err
    assert ("saved" in err) == ("--out" in words)


def test_a_signal_in_a_runs_last_round_stops_the_others(call, monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "shown", lambda *_: Kills(signal.SIGINT))
    words = [*SMALL, "--rounds", "1", "--backend", "serial", "--out", "x"]
    code, out, err = call("compare", "fedavg", "fedprox", *words)
    assert code == 130
    assert "stopped after round 1; what was done is saved, and the same command goes on with it." in err
    assert not (tmp_path / "x" / "fedprox-seed0").exists()
    assert "1 not run" in out
    code, out, _ = call("run", *words[:-1], "y")  # which has no others
    assert code == 0


def test_the_command_that_goes_on_with_a_run_does(call, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(progress, "shown", lambda *_: Kills(signal.SIGINT))
        words = ["run", *SMALL, "--backend", "serial", "--out", "my runs/x y", "--data-root", "my data"]
        code, _, err = call(*words, "--rounds", "3")
    assert code == 130
    said = err.partition("go on with: ")[2].partition(" stopped after")[0]
    program, *again = shlex.split(said)
    assert program == "fedrecall"
    assert again[-2:] == ["--data-root", "my data"]
    assert call(*again)[0] == 0
    assert len(RunFolder(tmp_path / "my runs" / "x y").metrics()) == 3


def test_what_cannot_be_written_is_one_sentence(call, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for where in ("file/x.json", "folder", "."):
        code, out, err = call("compare", "fedavg", *SMALL, "--json", where)
        assert code == 2
        assert f"cannot write {where}" in err
        assert "round" not in out  # before anything is trained
        code, _, err = call("partition", "--dataset", "digits", "--clients", "10", "--save", where)
        assert code == 2
        assert f"cannot write {where}" in err
    code, _, err = call("partition", "--dataset", "digits", "--clients", "10", "--picture", "p.xyz")
    assert code == 2
    assert "cannot draw p.xyz: Format 'xyz' is not supported" in " ".join(err.split())


def _paths():
    """Every argument and option of every command that names a file or folder."""
    commands = typer.main.get_command(app)
    for name in COMMANDS:
        for param in commands.get_command(None, name).params:
            if isinstance(param.type, typer.models.TyperPath):
                first = ["fedntd/fig4"] if name == "figure" else ["run"] if name == "predict" else []
                words = [*first, ""] if param.param_type_name == "argument" else [param.opts[0], ""]
                yield pytest.param([name, *words], id=f"{name} {param.opts[0]}")


@pytest.mark.parametrize("words", list(_paths()))
def test_a_path_without_a_name_is_not_taken_for_this_folder(call, tmp_path, words):
    code, _, err = call(*words)
    assert code == 2
    assert "is empty: name it" in err.replace(" │ ", " ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["list", "nothing"], ValueError, "nothing"),
        (["run", *SMALL, "--model", "mlp:4611686018427387904"], Exception, "."),  # no memory for it
    ],
)
def test_debug_shows_the_traceback(words, kind, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedrecall", "--debug", *words])
    with pytest.raises(kind, match=said):
        main()


def test_an_error_of_our_own_is_shown_whole_and_not_promised_again(call, monkeypatch):
    monkeypatch.setattr("fedrecall.cli.commands.inspect.KINDS", None)
    code, _, err = call("list", "models")
    assert code == 1
    assert "Traceback" in err
    assert "in list_command" in err
    assert "--debug" not in err


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "partitions", "models", "measures"])
def test_list_names_everything(call, kind):
    from fedrecall.cli.commands.inspect import KINDS

    code, out, _ = call("list", kind)
    assert code == 0
    words = out.split()
    assert all(name in words for name in KINDS[kind])


def test_show_says_how_a_mapping_is_written(call, tmp_path):
    (tmp_path / "rated.py").write_text(
        "from dataclasses import dataclass\nfrom fedrecall import FedAvg\n\n@dataclass(frozen=True)\n"
        "class Rated(FedAvg):\n    rates: dict[str, float] | None = None\n    of: tuple[int, ...] = ()\n"
    )
    out = " ".join(call("show", "algorithm", f"{tmp_path}/rated.py:Rated")[1].split())
    assert "a mapping from text to a number or none, written as" in out
    assert 'rates.KEY=VALUE or {"KEY": VALUE}' in out
    assert "a list of a whole number, written as 1+2" in out


def test_show_explains_hyperparameters_and_counts_what_travels(call):
    code, out, _ = call("show", "algorithm", "fedprox")
    assert code == 0
    assert "mu" in out
    assert "0.1" in out
    assert "1.00 ×" in out


@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {"fedavg", "fedseq", "private"}))
def test_show_has_the_equation_of_every_algorithm_that_has_one(name, call):
    code, out, _ = call("show", "algorithm", name)
    assert code == 0
    assert "CE" in out or "<-" in out


@pytest.mark.parametrize(
    ("name", "noise", "summing"),
    [
        ("fedntd", "yes, with private", "by examples or with equal weights"),
        ("feddyn", "no: FedDyn keeps at the server what its clients remember", "with equal weights"),
        ("scaffold", "no: Scaffold uploads change beside the model", "with equal weights"),
        (
            "fedseq",
            "no: FedSeq sends every client's model to the next",
            "by examples or with equal weights, where every client is a chain of its own",
        ),
        ("fednova", "no: FedNova uploads steps", "no: the server needs more of the uploads than their mean"),
        ("private:fedavg,noise=0", "this is it", "no: the server needs more of the uploads than their mean"),
    ],
)
def test_show_says_what_protects_an_upload(name, noise, summing, call):
    code, out, _ = call("show", "algorithm", name)
    assert code == 0
    said = {line[:20].strip(): line[20:].strip() for line in out.splitlines()}
    assert said["differential privacy"].startswith(noise)
    assert said["secure aggregation"] == summing


def test_show_of_a_network_of_ones_own_says_how_it_is_called(call, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n    '''A line.'''\n"
        "    def __init__(self, classes, width=8):\n        super().__init__()\n"
    )
    code, out, _ = call("show", "model", f"{tmp_path}/net.py:Net")
    assert code == 0
    assert "A line." in out
    assert "called as Net(classes, width=8)" in out
    code, _, err = call("show", "model", f"{tmp_path}/net.py:Nett")
    assert code == 2
    assert "did you mean 'Net'?" in err


def test_partition_of_one_client(call):
    code, out, _ = call("partition", "--dataset", "digits", "--clients", "1", "--partition", "iid")
    assert code == 0
    assert "1438" in out


def test_partition_draws_saves_and_pictures(call, tmp_path):
    code, out, _ = call(
        "partition", "--dataset", "digits", "--clients", "10", "--save", "p.json", "--picture", "p.png"
    )
    assert code == 0
    assert "classes a client" in out
    parts, _ = partitions.load(tmp_path / "p.json")
    assert sum(map(len, parts)) == 1438
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    _, out, _ = call("partition", "--dataset", "digits", "--clients", "10", "--picture", "chart")
    assert "picture: chart.png" in out
    assert (tmp_path / "chart.png").exists()


def test_a_saved_partition_is_run_and_compared_as_it_was_drawn(call, tmp_path):
    held = [*SMALL[:2], "--clients", "8"]
    drawn = [*held, "--partition", "lda:0.5,min_size=1", "--seed", "2"]
    code, *_ = call("partition", *drawn, "--auxiliary-per-class", "3", "--save", "p.json")
    assert code == 0
    others = ["--model", "mlp:8", "--sample", "3", "--rounds", "2", "--auxiliary-per-class", "3"]
    filed, ssd = [*held, "--partition", "file:p.json", "--seed", "2"], "fedssd:auxiliary_per_class=3"
    for out, words in (("drawn", drawn), ("filed", filed)):
        code, _, err = call("run", *words, *others, "--algorithm", ssd, "--out", out)
        assert code == 0, err
    arrays = [
        (tmp_path / o / "checkpoints" / "round-000002.safetensors").read_bytes() for o in ("drawn", "filed")
    ]
    assert arrays[0] == arrays[1]
    code, *_ = call("partition", *filed, "--auxiliary-per-class", "3", "--save", "again.json")
    assert code == 0
    saved, again = ((tmp_path / name).read_text() for name in ("p.json", "again.json"))
    assert json.loads(saved)["clients"] == json.loads(again)["clients"]
    code, _, err = call("run", *filed, "--clients", "9", "--out", "more")
    assert (code, "is of 8 clients, not 9: give --clients 8" in err) == (2, True)


def test_compare_plays_all_on_one_file_and_none_on_another_one(call, tmp_path):
    words, save = (
        [*SMALL, "--partition", "file:p.json", "--out", "all"],
        ["--clients", "8", "--save", "p.json"],
    )
    call("partition", *SMALL[:2], *save)
    code, _, err = call("compare", "fedavg", *words)
    assert code == 0, err
    call("partition", *SMALL[:2], "--seed", "1", *save)
    code, _, err = call("compare", "fedavg", "fedntd", *words)
    assert code == 2
    assert "has changed since" in err
    assert "put it back, or give another --out" in err
    assert not list((tmp_path / "all").glob("fedntd*/metrics.jsonl"))
    (tmp_path / "p.json").unlink()
    code, out, err = call("compare", "fedavg", *words)  # which is finished
    assert code == 0, err
    assert "fedavg" in out


def test_a_charts_rows_are_clients_and_its_shades_their_classes():
    counts = np.array([[8, 0, 1], [4, 2, 3], [0, 5, 0]])
    drawn = _chart(counts, ("ant", "bee", "cat"), [["oslo"], list("abcde"), []]).plain.splitlines()
    assert drawn == [
        "client  classes ant … cat",
        "0 ██  ░░ 9  oslo",
        "1 ▒▒░░▒▒ 9  a  b  c  and 2 more",
        "2   ▓▓   5",
    ]
    many = _chart(np.ones((70, 31), int), tuple("x" * 31), None).plain.splitlines()
    assert [line.split()[0] for line in many[1:]] == [*map(str, range(50)), "…", "69"]
    assert many[1] == " 0 " + "█" * 31 + " 31"


def test_partition_counts_and_names_who_holds_what(call, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    held = {"oslo": "aaaab", "rome": "abbbbbccc", "bern": "cc"}  # at each site, by class
    rows = [f"{i},{label},{site}" for site, labels in held.items() for i, label in enumerate(labels)]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("\n".join(["x,label,site", *rows]))
    (tmp_path / "mine" / "test.csv").write_text("x,label,site\n1,a,york\n2,b,york\n3,c,york\n")
    words = ["--dataset", "folder:mine,origin=site", "--partition", "natural", "--clients", "3"]
    code, out, err = call("partition", *words, "--seed", "4", "--save", "p.json")
    assert code == 0, err
    told = {line[:20].strip(): line[20:].split() for line in out.splitlines()}
    assert told["examples a client"] == ["2", "5", "9"]
    assert told["classes a client"] == ["1", "2", "3"]
    assert told["clients a class"] == ["2", "2", "2"]
    parts, meta = partitions.load(tmp_path / "p.json")
    sizes = {"oslo": 5, "rome": 9, "bern": 2}
    assert [len(p) for p in parts] == [sizes[name] for (name,) in meta["origins"]]
    assert (meta["seed"], meta["clients"], meta["partition"]) == (4, 3, {"name": "natural"})


def test_a_picture_of_very_many_clients_is_one(tmp_path):
    counts = np.eye(2, dtype=int).repeat(3000, axis=0)
    path = draw_partition(counts, ("a", "b"), tmp_path / "new" / "folder" / "p.png")
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (20_000, 250)


def test_a_pictures_bubbles_have_the_areas_of_their_numbers(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "scatter", lambda self, *where, s, **_: drawn.append((*where, s)))
    draw_partition(np.array([[8, 0], [2, 4]]), ("a", "b"), tmp_path / "p.png")
    ((clients, classes, areas),) = drawn
    assert list(zip(clients, classes, areas / areas.max(), strict=True)) == [
        (0, 0, 1),
        (1, 0, 0.25),
        (1, 1, 0.5),
    ]


@pytest.mark.parametrize("named", ["--data-root", "FEDRECALL_DATA"])
def test_a_root_that_is_not_there_is_said(call, monkeypatch, tmp_path, named):
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    (tmp_path / "here").mkdir()
    for root, there in (("nothere", False), ("here", True)):
        words = ["--data-root", root] if named == "--data-root" else []
        if not words:
            monkeypatch.setenv("FEDRECALL_DATA", root)
        code, out, _ = call("doctor", *words)
        assert code == 0
        assert (f"there is no folder {root}, which {named} names" in out) is not there
        code, _, err = call("run", "--dataset", "cifar10", *words)
        assert code == 2
        assert f"there is no {'copy in' if there else 'folder'} {root};" in err


def test_doctor_says_what_is_here(call):
    code, out, _ = call("doctor")
    assert code == 0
    said = {line.strip().partition("  ")[0] for line in out.splitlines()}
    assert {"torch", "threads", "GPU", "digits"} <= said, out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_all_it_takes_has_help(name):
    command = typer.main.get_command(app).get_command(None, name)
    assert "Example: fedrecall " + name in command.help
    assert [p.name for p in command.params if not p.help] == []


def test_what_takes_a_config_has_an_option_for_all_of_it():
    group = typer.main.get_command(app)
    taken = {name: {p.name for p in group.get_command(None, name).params} for name in COMMANDS}
    settings = {f.name for f in (*fields(Config), *fields(Recipe))} - {"training"}
    assert len(settings) > 28
    assert taken["run"] > settings
    assert taken["compare"] > settings - {"algorithm"}
    assert len(taken["run"]) > 30


def test_resume_with_one_option_keeps_the_others_as_they_were(call, tmp_path):
    begun = [
        *SMALL,
        "--rounds",
        "2",
        "--evaluate-every",
        "2",
        "--measure",
        "confusion",
        "--local-epochs",
        "2",
    ]
    assert call("run", *begun, "--backend", "serial", "--out", "x")[0] == 0
    assert call("run", "--resume", "--out", "x", "--rounds", "4")[0] == 0
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (config["rounds"], config["evaluate_every"], config["measures"]) == (4, 2, ["confusion"])
    assert (config["backend"], config["training"]["local_epochs"]) == ("serial", 2)


def test_resume_takes_of_a_file_what_it_says_and_names_what_differs(call, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("training: {lr: 0.5}\nalgorithm: {name: fedntd, beta: 0.5}\n")
    words = [*SMALL, "--backend", "serial", "--out", "x"]
    assert call("run", "c.yaml", *words, "--batch-size", "10", "-s", "algorithm.tau=3")[0] == 0
    assert call("run", "c.yaml", "--resume", "--out", "x", "--rounds", "3")[0] == 0
    made = configs.make(RunFolder(tmp_path / "x").config())
    assert (made.rounds, made.training.batch_size, made.algorithm["tau"]) == (3, 10, 3)
    for text, said in (
        ("training: {lr: 0.5, batch_size: 20}", "was begun with training.batch_size = 10, not 20: resume"),
        ("algorithm: fedntd:beta=0.5", "was begun with algorithm.tau = 3.0, not 1.0: resume"),
        ("algorithm: {name: fedprox, mu: 0.1}", "was begun with algorithm.name = 'fedntd', not 'fedprox':"),
    ):
        file.write_text(text)
        code, _, err = call("run", "c.yaml", "--resume", "--out", "x", "--rounds", "4")
        assert code == 2
        assert said in err


def test_resume_begins_where_nothing_was_begun(call, tmp_path):
    assert call("run", *SMALL, "--algorithm", "fedntd", "--resume", "--rounds", "1", "--out", "new")[0] == 0
    assert (tmp_path / "new" / "config.json").exists()


def test_a_run_folder_may_have_a_name_that_is_no_text(call, monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", console)
    words = ("--algorithm", "fedavg", "--rounds", "1", "--out", os.fsdecode(b"r\xff"))
    assert call("run", *SMALL, *words)[0] == 0
    console.flush()
    assert rb"r\udcff" in console.buffer.getvalue()


def test_a_run_folder_may_be_called_anything(call):
    code, out, _ = call("run", *SMALL, "--rounds", "1", "--out", "a[/x]")
    assert code == 0
    assert "a[/x]" in out


def test_a_partition_is_that_of_the_algorithm_that_it_is_for(call):
    words = ["partition", "--dataset", "digits", "--partition", "iid", "--clients", "4"]
    _, whole, _ = call(*words)
    _, less, _ = call(*words, "-s", "algorithm=fedssd", "-s", "algorithm.auxiliary_per_class=10")
    sizes = [
        next(line for line in out.splitlines() if "examples a client" in line).split()
        for out in (whole, less)
    ]
    assert int(sizes[0][-1]) - int(sizes[1][-1]) == 10 * 10 // 4


@pytest.mark.parametrize(
    ("file", "text"),
    [("config.json", "{}"), ("metrics.jsonl", '{"round": 1, "chains": [[0]], "seconds": {"train": 1}}\n')],
)
def test_watch_says_what_it_cannot_show(call, tmp_path, file, text):
    assert call("run", *SMALL, "--rounds", "1", "--out", "x")[0] == 0
    (tmp_path / "x" / file).write_text(text)
    code, _, err = call("watch", "x", "--once")
    assert code == 2
    assert file in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "said"), [("list", "measures, figures, sinks or papers"), ("run", "A YAML file of settings")]
)
def test_help_explains_what_stands_without_an_option(call, command, said):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert said in out


def test_an_algorithm_that_fails_on_any_data_is_shown_as_far_as_it_goes_in_a_sentence(call, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom fedrecall.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Lost(FedAvg):\n"
        "    def loss(self, model, params, anchor, batch):\n"
        "        return super().loss(model, params, anchor, batch) * float('nan')\n"
        "@dataclass(frozen=True)\nclass Stranger:\n    mu: float = 0.5\n"
    )
    code, _, err = call("show", "algorithm", f"{tmp_path}/mine.py:Lost")
    assert code == 2
    assert "tried on made-up examples the algorithm fails: the loss became nan" in err
    code, _, err = call("run", "--algorithm", f"{tmp_path}/mine.py:Stranger", "--dataset", "digits")
    assert code == 2
    assert "does not derive from fedrecall.algorithms.fedavg.FedAvg" in err


HEADED = """
from dataclasses import dataclass
from torch import nn
from fedrecall import FedAvg

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 5))
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        return self.head(self.body(x))

@dataclass(frozen=True)
class Headed(FedAvg):
    def equip(self, module):
        if "head" not in dict(module.named_children()):
            raise ValueError(f"not for a {type(module).__name__}")
        return module

    def personal(self, weights, memory):
        return weights._replace(params={**weights.params, "head.weight": weights.params["head.weight"] * 1})
"""


def test_an_algorithm_for_a_network_of_ones_own_is_shown_with_that(call, tmp_path):
    (tmp_path / "mine.py").write_text(HEADED)
    show = ("show", "algorithm", f"{tmp_path}/mine.py:Headed")
    code, _, err = call(*show)
    assert code == 2
    said = " ".join(err.split())
    assert (
        "it could not be measured with cnn on digits (nor with resnet10): ValueError: not for a Chain."
        in said
    )
    for more, dataset, size in (((), "digits", 64), (("--dataset", "synthetic:4,size=6"), "synthetic", 36)):
        code, out, _ = call(*show, "--model", f"{tmp_path}/mine.py:Net", *more)
        assert code == 0
        out = re.sub(r"[\s│]+", " ", out)  # long paths are wrapped
        assert f"on {dataset} (" in out
        numbers = 5 * size + 5 + (5 + 1) * (10 if dataset == "digits" else 4)
        assert f"{4 * numbers:,}" in out
    code, _, err = call("show", "model", "cnn", "--model", "mlp")
    assert code == 2
    assert "show model: --model and --dataset are what an algorithm is measured with." in err


def test_going_on_where_files_have_moved_says_how(call, tmp_path):
    (tmp_path / "data").mkdir()
    rows = ["a,b,label", *(f"{i % 7},{i % 5},{'xy'[i % 2]}" for i in range(60))]
    (tmp_path / "data" / "train.csv").write_text("\n".join(rows))
    words = ["--dataset", "folder:data", "--model", "mlp:4", "--clients", "4", "--sample", "2", "--out", "x"]
    assert call("run", *words, "--rounds", "1")[0] == 0
    (tmp_path / "data").rename(tmp_path / "moved")
    code, _, err = call("run", "--resume", "--out", "x", "--rounds", "2")
    assert code == 2
    assert "there is no folder" in err
    assert "-s dataset.path=FOLDER" in err
    assert call("run", "--resume", "--out", "x", "--rounds", "2", "-s", "dataset.path=moved")[0] == 0
    assert len(RunFolder(tmp_path / "x").metrics()) == 2


FORGOTTEN = """
from fedrecall import FedAvg

class Mine(FedAvg):
    mu: float = 1.0

class Stranger:
    pass
"""


def test_who_forgets_the_class_or_its_decorator_is_told(call, tmp_path):
    (tmp_path / "mine.py").write_text(FORGOTTEN)
    for named, said in (
        ("mine.py", "name a class in it, as in mine.py:MyClass"),
        ("mine.py:Mine", "its mu would be no settings: write @dataclass(frozen=True) above class Mine"),
        ("mine.py:Stranger", "has no dataclass 'Stranger': write @dataclass(frozen=True) above class Str"),
    ):
        code, _, err = call("run", *SMALL, "--algorithm", named)
        assert code == 2
        assert said in err


def test_runs_of_one_algorithm_are_told_apart_while_they_run(call):
    code, out, _ = call("compare", "fedprox:mu=0.5", "fedprox:mu=2", *SMALL, "--rounds", "1")
    assert code == 0
    assert "fedprox:0.5 seed 0: 1 rounds" in out
    assert "fedprox:2 seed 0: 1 rounds" in out
    code, out, _ = call("run", *SMALL, "--algorithm", "fedntd")
    assert "fedntd seed 0: 2 rounds" in out


def a_round(number, failures=()):
    return {"round": number, "failures": list(failures), "seconds": {"train": 1.0}}


CONFIG = {"algorithm": {"name": "fedavg"}, "seed": 0, "rounds": 6}


def test_a_log_has_a_line_now_and_then_and_one_of_every_failure_and_of_the_end(capsys, monkeypatch):
    now = iter([100.0, 101.0, 101.5, 102.5, 103.0, 103.4])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    lines = progress.Lines(progress.Display(Console(width=80)))
    lines.begin(CONFIG, [])
    for number in range(1, 7):
        lines.record(a_round(number, ["client 3 gave NaN"] if number == 3 else []))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "fedavg seed 0: 6 rounds"
    assert [line.split()[1] for line in said[1:]] == ["1/6", "3/6", "6/6"]
    assert said[2] == "round 3/6  1.00 s/round  1 clients left out: client 3 gave NaN"
    lines.begin(CONFIG, [{}] * 4)
    assert capsys.readouterr().out == "fedavg seed 0: 6 rounds after round 4\n"


def test_of_runs_side_by_side_a_log_says_whose_a_round_is_and_is_no_longer_for_it(capsys, monkeypatch):
    now = iter([100.0, 100.1, 103.0, 103.1, 104.0, 104.2, 106.0, 107.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    display = progress.Display(Console(width=80), 3)
    runs = [progress.Lines(display) for _ in range(2)]
    for seed, run in enumerate(runs):
        run.begin(CONFIG | {"seed": seed, "rounds": 4}, [])
    for number in (1, 2, 3):
        for run in runs:
            run.record(a_round(number))
    for run in runs:
        run.record(a_round(4))
        run.end()
    said = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said[2:] == [f"fedavg seed {s}: round {r}/4" for r in (1, 3, 4) for s in (0, 1)]
    now = iter([200.0])
    alone = progress.Lines(display)
    alone.begin(CONFIG, [])
    alone.record(a_round(1))
    assert capsys.readouterr().out.splitlines()[1].startswith("round 1/6")


def test_runs_side_by_side_have_a_bar_each_until_the_last_of_them_is_over():
    drawn = io.StringIO()
    display = progress.Display(Console(file=drawn, width=120, force_terminal=True), 2)
    runs = [progress.shown(display) for _ in range(2)]
    for seed, run in enumerate(runs):
        run.begin(CONFIG | {"seed": seed}, [])
    runs[0].record(a_round(3))
    runs[0].end()
    assert display.bars.live.is_started
    runs[1].record(a_round(5))
    runs[1].end()
    assert not display.bars.live.is_started
    last = drawn.getvalue()[drawn.getvalue().rindex("fedavg seed 0 (1 of 2)") :]
    assert "3/6" in last
    assert "5/6" in last[last.index("fedavg seed 1 (2 of 2)") :]


def test_runs_that_only_a_setting_tells_apart_are_shown_with_it(capsys):
    display = progress.Display(Console(width=80), 2)
    for setting in ("lr=0.1", "lr=0.2"):
        progress.shown(display, setting).begin(CONFIG, [])
    assert capsys.readouterr().out.splitlines() == [
        "fedavg, lr=0.1, seed 0: 6 rounds",
        "fedavg, lr=0.2, seed 0: 6 rounds",
    ]
    drawn = io.StringIO()
    display = progress.Display(Console(file=drawn, width=120, force_terminal=True), 2)
    bar = progress.shown(display, "lr=0.1")
    bar.begin(CONFIG, [])
    bar.end()
    assert "fedavg, lr=0.1, seed 0 (1 of 2)" in drawn.getvalue()


def test_a_bar_begins_where_the_run_goes_on():
    drawn = io.StringIO()
    display = progress.Display(Console(file=drawn, width=120, force_terminal=True), 2)
    bar = progress.Bar(display)
    bar.begin(CONFIG, [{}] * 4)
    bar.end()
    assert "4/6" in drawn.getvalue()
    assert "fedavg seed 0 (1 of 2)" in drawn.getvalue()
    bar = progress.Bar(display)
    bar.begin(CONFIG, [])
    bar.record(a_round(2))
    bar.end()
    assert "fedavg seed 0 (2 of 2)" in drawn.getvalue()
    assert "2/6" in drawn.getvalue()


@pytest.mark.parametrize("width", [80, 140])
def test_a_bar_shows_the_round_its_numbers_and_the_time_left_however_long_a_round_takes(width):
    now, drawn = [0.0], io.StringIO()
    display = progress.Display(Console(file=drawn, width=width, force_terminal=True))
    display.bars.get_time = lambda: now[0]
    bar = progress.Bar(display)
    bar.begin({**CONFIG, "rounds": 200}, [])
    display.bars.tasks[0]._get_time = lambda: now[0]
    for number in range(1, 11):
        now[0] += 90.0
        bar.record({**a_round(number), "accuracy": 0.5, "forgetting": 0.1, "seconds": {"train": 90.0}})
    bar.end()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).splitlines()[-1]
    assert shown.startswith("fedavg seed 0 ")
    assert shown.endswith(" 10/200 accuracy 50.00%  forgetting 0.100  90.00 s/round 4:45:00")
    assert ("━" in shown) == (width == 140)


def test_what_cannot_be_shown_is_said_once():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "no space left")

    console = Console(file=Full(), width=80)
    sink = progress.shown(progress.Display(console))
    with pytest.warns(RuntimeWarning, match=r"cannot be shown any more \(no space left\)"):
        sink.begin(CONFIG, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sink.record(a_round(6))
        sink.end()


def test_an_algorithm_of_ones_own_is_shown_without_its_folder(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    made = configs.make({"algorithm": f"{tmp_path}/mine.py:Mine:mu=2", "seed": 3})
    assert progress.name(configs.as_dict(made)) == "mine.py:Mine:2 seed 3"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0.00"),
        (4_808, "0.00481"),
        (11_020, "0.0110"),
        (1_500_000, "1.50"),
        (44_784_000, "44.8"),
        (2.5e9, "2500"),
    ],
)
def test_bytes_are_shown_in_three_digits(count, shown):
    assert progress.megabytes(count) == shown
