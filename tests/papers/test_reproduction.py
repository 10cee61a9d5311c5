"""`fedrecall reproduce` from end to end, on noise in folders laid out like the papers' data sets."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.data.test_datasets import LAYOUTS, mirror
from tests.papers.outcomes import outcome
from tools.reproduction import render

from fedrecall import config as configs
from fedrecall import files
from fedrecall.cli import main, progress
from fedrecall.cli.commands.reproduce import named_methods
from fedrecall.data.datasets import DATASETS, load
from fedrecall.errors import Diverged, UserError
from fedrecall.experiment import Experiment
from fedrecall.papers import PAPERS, load_paper, reproduction, table
from fedrecall.papers.reproduction import Pace, adopt, carry_out, differences, plan, stacks, unlike
from fedrecall.papers.results import Results, codes, path_of, read, run_folder, save

TEN = tuple("abcdefghij")
TABLE1 = table("fedntd/table1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Data sets in the hub's layout: 400 and 40 pictures of noise as CIFAR-10, fewer of the others."""
    root = tmp_path_factory.mktemp("hub")
    mirror(root, "cifar10", train=400, rest=40, names=TEN)
    return root


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path_factory, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path_factory.getbasetemp() / "papers-cache"))
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    for name in LAYOUTS:  # a few pictures of noise pass for each
        monkeypatch.setattr(DATASETS.cls(name), "sizes", None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedrecall", *map(str, words)])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        return exit_.value.code or 0, " ".join(said.out.split()), " ".join(said.err.split())

    return run


def test_it_runs_breadth_first_skips_resumes_and_writes_as_it_goes(call, root, tmp_path):
    words = ("reproduce", "fedntd/table1", "--columns", "cifar10/shard2", "--methods", "fedavg,fedntd")
    words += ("--data-root", root, "--backend", "serial", "--results", "results", "--out", "out")
    code, said, _ = call(*words, "--seeds", 2, "--rounds", 1)
    assert code == 0
    order = ["fedavg, seed 0", "fedntd, seed 0", "fedavg, seed 1", "fedntd, seed 1"]
    places = [said.index(f"fedntd/table1 cifar10/shard2 {what}:") for what in order]
    assert places == sorted(places)
    assert "1 of 200" in said
    assert "unfinished" in said
    assert "52.61 ± 1.00" in said
    found = Results.load(tmp_path / "results")
    assert [len(found.of(TABLE1.cell("cifar10/shard2", m).config())) for m in ("fedavg", "fedntd")] == [2, 2]

    code, said, _ = call(*words, "--seeds", 2, "--rounds", 1)
    assert code == 0
    assert "nothing is missing" in said

    cell = TABLE1.cell("cifar10/shard2", "fedavg")
    before = read(path_of(cell.config(), tmp_path / "results"))
    code, _, _ = call(
        *words, "--methods", "fedavg", "--seeds", 1, "--rounds", 1, "--switch", "fixed-partition"
    )
    assert code == 0
    code, _, _ = call(*words, "--methods", "fedavg", "--seeds", 1, "--rounds", 2)
    after = read(path_of(cell.config(), tmp_path / "results"))
    assert (before.done, after.done) == (1, 2)
    assert after.accuracy[:1] == before.accuracy
    assert after.measures["alignment"]["layers"]["fc1"]["neurons"] == 512

    whole = Experiment(cell.config(rounds=2, backend="serial"), dataset=load("cifar10", root=root)).run()
    assert after.accuracy == [round(r["accuracy"], 4) for r in whole.history]

    code, said, _ = call("list", "papers")
    assert code == 0
    assert "fedntd/table1" in said
    page = render(tmp_path / "results")
    assert "| cifar10/shard2 | fedavg | 40.14 ± 1.15; F 0.59 |" in page
    assert "| cifar10/shard2 | fedavg, `fixed-partition` | 40.14 ± 1.15; F 0.59 |" in page


MINE = """
from dataclasses import dataclass

from fedrecall import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    \"\"\"FedAvg with other losses.\"\"\"

    scale: float = 1.0
    shift: float = 0.0

    def loss(self, model, params, anchor, batch):
        return self.scale * super().loss(model, params, anchor, batch)
"""


def test_an_algorithm_of_ones_own_is_played_in_the_papers_setup_beside_its_methods(call, root, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    mine = "mine.py:Mine:scale=0.5,shift=1"
    words = ("reproduce", "fedntd/table1", "--columns", "cifar10/shard2", "--data-root", root)
    words += ("--backend", "serial", "--results", "results", "--out", "out", "--rounds", 1, "--seeds", 1)
    switch = ("--switch", "fixed-partition")
    code, said, _ = call(*words, *switch, "--methods", f"fedavg,calibrated,{mine}")
    assert code == 0
    assert f"{mine}, seed 0" in said
    assert "over fedavg – " in said
    cell = TABLE1.guest("cifar10/shard2", mine)
    assert cell.config().algorithm == {"name": f"{tmp_path}/mine.py:Mine", "scale": 0.5, "shift": 1.0}
    variant = load_paper("fedntd").variant("fixed-partition")
    ours = Results.load(tmp_path / "results")
    asked = codes(cell.config().algorithm)
    (found,) = Results.load(tmp_path / "results", asked).of(cell.config(variant=variant)).values()
    assert (len(ours), list(found.made["code"])) == (2, ["mine.py:Mine"])
    data = load("cifar10", root=root)
    alone = Experiment(cell.config(variant=variant, rounds=1, backend="serial"), dataset=data).run()
    assert found.accuracy == [round(alone.accuracy, 4)]

    page = render(tmp_path / "results")
    first = page[page.index("### fedntd/table1:") : page.index("### fedntd/table2:")]
    assert "| cifar10/shard2 | calibrated, `fixed-partition` | – | " in first
    assert (
        "| **1** of 200 |" in first.partition("Gains")[2].partition("calibrated, `fixed-partition` | – ")[2]
    )
    assert "scale=0.5" not in page  # others have no such file

    code, said, _ = call(*words, *switch, "--methods", f"calibrated,{mine}")
    assert (code, "nothing is missing" in said) == (0, True)
    Experiment(cell.config(1, rounds=1, backend="serial"), tmp_path / "own", dataset=data).run()
    code, said, _ = call(*words, "--methods", mine, "--from", "own")
    assert (code, f"{mine}, seed 1: 1 of 1 rounds" in said) == (0, True)

    path = path_of(found.config, tmp_path / "results")
    path.write_text(path.read_text().replace(found.made["code"]["mine.py:Mine"], "0123456789abcdef"))
    code, _, err = call(*words, *switch, "--methods", mine)
    assert code == 2
    assert "was measured with other code than mine.py:Mine has now" in err
    assert call(*words, *switch, "--methods", "calibrated")[0] == 0  # of which nothing is wrong

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text(MINE)
    code, _, err = call(*words, "--methods", "mine.py:Mine,other/mine.py:Mine")
    assert (code, "are one and the same in results" in err) == (2, True)


def test_what_has_settings_within_settings_is_listed_below_a_tables_methods(tmp_path):
    of = {"name": "moon", "mu": 0.05}
    private = {"name": "private", "of": of, "clip": 1.0, "noise": 0.5}
    cell = TABLE1.guest("cifar10/shard2", "what it is called", private)
    save(outcome(cell, [30.0, 40.0]), tmp_path)
    (row,) = (line for line in render(tmp_path).splitlines() if "| private:" in line and "/shard2" in line)
    assert "| – | 34.00; F 0.10 | 1 | **2** of 200 |" in row


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("fedavg, fedntd", ["fedavg", "fedntd"]),
        ("fedtrio:beta=0,tau=2,fedavg", ["fedtrio:beta=0,tau=2", "fedavg"]),
        ("mine.py:Mine:1,-2e-3,x=3,calibrated", ["mine.py:Mine:1,-2e-3,x=3", "calibrated"]),
        ("fedavg,mine.py:Mine,other.py:Other:a=1", ["fedavg", "mine.py:Mine", "other.py:Other:a=1"]),
        ("fedprox:mu=1,lambda=0.5,lambda=1", ["fedprox:mu=1", "lambda=0.5", "lambda=1"]),
    ],
)
def test_methods_are_told_apart_from_settings(text, methods):
    assert named_methods(text, table("fedntd/table12")) == methods


def test_a_signal_in_a_runs_last_round_stops_the_others(call, root, tmp_path, monkeypatch):
    class Kills:
        def begin(self, config, history):
            pass

        def record(self, record):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

        def end(self):
            pass

    monkeypatch.setattr(progress, "shown", lambda *_: Kills())
    words = ("reproduce", "fedntd/table1", "--columns", "cifar10/shard2", "--methods", "fedavg,fedntd")
    words += ("--data-root", root, "--backend", "serial", "--results", "results", "--out", "out")
    code, _, err = call(*words, "--seeds", 1, "--rounds", 1)
    assert code == 130
    assert "stopped after round 1; what was done is saved, and the same command goes on with it." in err
    found = Results.load(tmp_path / "results")
    assert [len(found.of(TABLE1.cell("cifar10/shard2", m).config())) for m in ("fedavg", "fedntd")] == [1, 0]


def test_a_run_made_otherwise_is_taken_if_it_is_the_papers(call, root, tmp_path):
    data = load("cifar10", root=root)
    cell = TABLE1.cell("cifar10/shard3", "scaffold")
    Experiment(cell.config(4, rounds=1, backend="serial", measures=()), tmp_path / "mine", dataset=data).run()
    code, said, _ = call(
        *("reproduce", "fedntd/table1", "--columns", "cifar10/shard3", "--methods", "scaffold"),
        *("--from", "mine", "--results", "results"),
    )
    assert code == 0
    assert "cifar10/shard3 scaffold, seed 4: 1 of 1 rounds" in said
    assert "1 of 200" in said
    # Moved to where it says, it is gone on with.
    folder = run_folder(cell.config(4), tmp_path / "runs" / "reproduction")
    assert str(folder.relative_to(tmp_path)) in said
    folder.parent.mkdir(parents=True)
    (tmp_path / "mine").rename(folder)
    results = Results.load(tmp_path / "results")
    out = tmp_path / "runs" / "reproduction"
    plans = plan(TABLE1, [cell], [4], results, out, rounds=2, backend="serial")
    carry_out(plans, tmp_path / "results", lambda _: None, lambda _: Silent(), root)
    assert read(path_of(cell.config(4), tmp_path / "results")).done == 2

    def made_with(lr):
        """The same run, had its learning rate been another."""
        copy = shutil.copytree(folder, tmp_path / f"lr{lr}")
        held = files.read_json(copy / "config.json")
        held["training"]["lr"] = lr
        files.write_json(copy / "config.json", held)
        return copy

    starts = files.read_json(folder / "made.json")
    for start in starts:
        start["data"]["name"] = "cifar10, held out"
    other = shutil.copytree(folder, tmp_path / "other")
    files.write_json(other / "made.json", starts)
    with pytest.raises(UserError, match="is a run on cifar10, held out, not the paper's cifar10"):
        adopt(TABLE1, other, tmp_path / "results")
    with pytest.raises(UserError, match=r"cifar10/shard3 scaffold has training.lr = 0.01, not 0.5"):
        adopt(TABLE1, made_with(0.5), tmp_path / "results")
    made = adopt(TABLE1, made_with(0.1), tmp_path / "results")
    assert (made.outcome.config.training.lr, made.variant.name) == (0.1, "lr-0.1")
    code, said, _ = call(
        *("reproduce", "fedntd/table1", "--columns", "cifar10/shard3", "--methods", "scaffold"),
        *("--from", "lr0.1", "--results", "results"),
    )
    assert code == 0
    assert "scaffold with lr-0.1, seed 4: 2 of 2 rounds" in said
    assert "(lr-0.1)" in said
    assert "2 of 200" in said


def test_what_is_taken_replaces_no_other_run_that_went_as_far(root, tmp_path):
    cell = TABLE1.cell("cifar10/shard3", "fedavg")
    data = load("cifar10", root=root)
    for name, rounds in (("one", 2), ("two", 2), ("three", 3)):
        config = cell.config(0, rounds=rounds, backend="serial", measures=())
        Experiment(config, tmp_path / name, dataset=data).run()
        starts = files.read_json(tmp_path / name / "made.json")
        files.write_json(tmp_path / name / "made.json", [{**s, "started": name} for s in starts])
    results = tmp_path / "results"
    kept = adopt(TABLE1, tmp_path / "one", results).path
    before = kept.read_bytes()
    with pytest.raises(UserError, match=r"holds 2 rounds of another run of .*: delete it to have .*two"):
        adopt(TABLE1, tmp_path / "two", results)
    adopt(TABLE1, tmp_path / "one", results)  # itself it may
    assert kept.read_bytes() == before
    assert adopt(TABLE1, tmp_path / "three", results).outcome.done == 3
    with pytest.raises(UserError, match="holds 3 rounds of another run"):
        adopt(TABLE1, tmp_path / "two", results)


def test_a_run_of_other_code_is_not_taken(root, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fedrecall.algorithms.fedavg import FedAvg\nclass Mine(FedAvg): pass\n"
    )
    (cell,) = TABLE1.choose(["cifar10/shard3"], [f"{tmp_path / 'mine.py'}:Mine"])
    config = cell.config(0, rounds=1, backend="serial", measures=())
    Experiment(config, tmp_path / "run", dataset=load("cifar10", root=root)).run()
    starts = files.read_json(tmp_path / "run" / "made.json")
    starts[-1]["code"] = dict.fromkeys(starts[-1]["code"], "0" * 16)
    files.write_json(tmp_path / "run" / "made.json", starts)
    with pytest.raises(UserError, match=r"other code than mine\.py:Mine has now"):
        adopt(TABLE1, tmp_path / "run", tmp_path / "results", [cell])
    assert not (tmp_path / "results").exists()


def test_a_figures_run_that_was_killed_in_its_first_round_is_begun_anew(tmp_path):
    t = table("fedcad/fig1")
    cell = t.cells[0]
    done = outcome(cell, [50.0] * 100, measures={"locals": {}})
    (first,) = plan(t, [cell], [0], Results([done]), tmp_path)
    first.folder.mkdir(parents=True)
    files.write_json(first.folder / "config.json", configs.as_dict(first.config))
    assert [p.folder for p in plan(t, [cell], [0], Results([done]), tmp_path)] == [first.folder]


def test_a_setup_that_is_refused_leaves_the_others(call, root, monkeypatch):
    words = ("reproduce", "fedntd/table1", "--columns", "cifar10/shard2", "--methods", "fedavg,fedntd")
    words += ("--data-root", root, "--backend", "serial", "--out", "out", "--seeds", 1, "--rounds", 1)
    real = reproduction.Experiment

    def picky(config, *args, **kwargs):
        if config.algorithm["name"] == "fedavg":
            raise UserError("no such shares can be drawn.")
        return real(config, *args, **kwargs)

    monkeypatch.setattr(reproduction, "Experiment", picky)
    code, said, error = call(*words)
    assert code == 2
    assert "left out: fedntd/table1 cifar10/shard2 fedavg, seed 0: no such shares can be drawn." in said
    assert "1 of the runs could not be made: fedntd/table1 cifar10/shard2 fedavg, seed 0: no such" in error
    found = Results.load(Path("out/results"))
    assert [r.config.algorithm["name"] for r in found] == ["fedntd"]


class Silent:
    def begin(self, config, history):
        pass

    def record(self, record):
        pass

    def end(self):
        pass


def test_a_run_that_turns_to_nan_is_noted_as_failed_and_the_next_goes_on(root, tmp_path):
    cells = TABLE1.choose(["cifar10/shard2"], ["fedavg", "fednova"])
    plans = plan(TABLE1, cells, [0], Results(), tmp_path, rounds=2, backend="serial", **{"training.lr": 1e30})
    said = []
    left_out = carry_out(plans, tmp_path / "results", said.append, lambda _: Silent(), root)
    assert left_out == ([], [])
    assert sum("failed: every client of the round failed" in line for line in said) == 2
    found = list(Results.load(tmp_path / "results"))
    assert len(found) == 2
    assert all(r.failed for r in found)
    again = plan(
        TABLE1, cells, [0], Results(found), tmp_path, rounds=2, backend="serial", **{"training.lr": 1e30}
    )
    assert again == []


def test_seeds_of_a_stack_go_on_when_one_of_them_turns_to_nan(root, tmp_path, monkeypatch, copies):
    def fails(self, failures, visits):
        if self.config.seed == 1:
            raise Diverged("it is no number.")

    class Counts(Silent):
        def begin(self, config, history):
            begun.append(config["seed"])

    monkeypatch.setattr(Experiment, "check_failures", fails)
    cells, said, begun = TABLE1.choose(["cifar10/shard2"], ["fedavg"]), [], []
    how = {"backend": "vectorised", "rounds": 2, "model": "mlp:4", "measures": (), "training.local_epochs": 1}
    plans = plan(TABLE1, cells, range(3), Results(), tmp_path, **how)
    carry_out(plans, tmp_path / "results", said.append, lambda _: Counts(), root)
    assert [line for line in said if "failed" in line] == [
        "fedntd/table1 cifar10/shard2 fedavg, seed 1 failed: it is no number."
    ]
    found = {r.config.seed: (r.done, r.failed) for r in Results.load(tmp_path / "results")}
    assert found == {0: (2, None), 1: (0, "it is no number."), 2: (2, None)}
    assert begun == [0, 1, 2]  # nobody was played again to find out who failed
    assert len(copies) == 1


def test_other_data_of_the_same_name_are_neither_run_on_nor_taken(call, root, tmp_path, monkeypatch):
    recipe = DATASETS.cls("cifar10")
    words = ("reproduce", "fedntd/table1", "--columns", "cifar10/shard2", "--methods", "fedavg")
    words += ("--results", "results")
    making = ("--seeds", 1, "--rounds", 1, "--data-root", root, "--backend", "serial", "--out", "out")
    monkeypatch.setattr(recipe, "sizes", (50_000, 10_000))
    code, said, error = call(*words, *making)
    assert code == 2
    assert "left out: what was found is cifar10 of 400 and 40 examples, not the paper's of 50000 and" in said
    assert "no data set that this needs" in error
    assert not (tmp_path / "results").exists()

    monkeypatch.setattr(recipe, "sizes", (400, 40))  # had the paper had so many
    assert call(*words, *making)[0] == 0
    cell = TABLE1.cell("cifar10/shard2", "fedavg")
    kept, folder = path_of(cell.config(), tmp_path / "results"), run_folder(cell.config(), tmp_path / "out")
    data = files.read_json(kept)["made"]["data"]
    assert (data["name"], data["train"], data["test"]) == ("cifar10", 400, 40)
    assert data == files.read_json(folder / "made.json")[0]["data"]
    kept.unlink()
    assert call(*words, "--from", folder)[0] == 0
    assert files.read_json(kept)["made"]["data"] == data
    kept.unlink()
    monkeypatch.setattr(recipe, "sizes", (50_000, 10_000))
    code, _, error = call(*words, "--from", folder)
    assert code == 2
    assert "is a run on cifar10 of 400 and 40 examples, not the paper's of 50000 and 10000." in error
    assert not kept.exists()


def test_data_sets_whose_size_is_known_within_bounds_are_held_to_them(monkeypatch):
    monkeypatch.undo()  # the sizes as they are
    config = table("sfedkd/table1").cell("ham10000/exdir2-1", "cwc").config()

    def said(train, test):
        return unlike(config, {"name": "ham10000", "train": train, "test": test})

    # 10,015 images, of which at most 2,492 lie in the validation split alone and 1,285 in the test split.
    assert said(10_015 - 2_492 - 1_285, 1_285) is None
    assert said(9_577, 1_285) is None
    bounds = "not the paper's of 6238 to 9577 and 1285"
    assert said(630, 1_285) == f"ham10000 of 630 and 1285 examples, {bounds}"
    assert said(9_578, 1_285) == f"ham10000 of 9578 and 1285 examples, {bounds}"
    assert said(8_000, 63) == f"ham10000 of 8000 and 63 examples, {bounds}"
    assert said(None, None) == f"ham10000 of None and None examples, {bounds}"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_data_set_of_a_paper_has_a_size(paper, monkeypatch):
    monkeypatch.undo()
    cells = [cell for t in load_paper(paper).tables.values() for cell in t.cells]
    assert all(DATASETS.cls(cell.settings["dataset"]).sizes for cell in cells)


def test_data_that_is_not_here_leaves_out_what_needs_it_alone(call, root):
    words = ("--data-root", root, "--backend", "serial", "--rounds", 1, "--seeds", 1, "--methods", "fedavg")
    code, said, error = call(
        "reproduce", "fedntd/table1", *words, "--columns", "cinic10/shard2,cifar10/shard2"
    )
    assert code == 0
    assert "left out: the data set cinic10 cannot be had" in said
    columns = "cinic10/shard2,cifar100/shard10,cinic10/lda0.1,cifar100/lda0.1"
    code, said, error = call("reproduce", "fedntd/table1", *words, "--columns", columns, "--seeds", 2)
    assert code == 2
    assert said.count("left out: ") == 2  # each data set once
    code, _, error = call("reproduce", "fedntd/table1", *words, "--columns", "cinic10/shard2")
    assert code == 2
    assert "no data set that this needs" in error


SMALL = {"clients": 4, "sample": 2, "rounds": 1, "training.local_epochs": 1, "backend": "serial"}
ELSEWHERE = [
    # what is not here: cell, and what makes it small (partition, algorithm and augmentation are the paper's)
    ("fashion_mnist", "sfedkd/table1", "fashion_mnist/exdir2-0.5", "sfedkd", {"rounds": 2}),
    ("cinic10", "fedntd/table1", "cinic10/shard2", "fedntd", {}),
    ("cifar100", "fedntd/table1", "cifar100/shard10", "moon", {}),
    (
        "cifar100",
        "fedssd/table1",
        "cifar100",
        "moon",
        {"model": "resnet50:width=4", "auxiliary_per_class": 2},
    ),
    (
        "tiny_imagenet",
        "fedssd/table1",
        "tinyimagenet",
        "fedssd",
        {"model": "resnet50:width=4", "algorithm.auxiliary_per_class": 2, "auxiliary_per_class": 2},
    ),
    ("ham10000", "sfedkd/table1", "ham10000/exdir2-1", "cwc", {}),
]


@pytest.mark.parametrize(("dataset", "name", "column", "method", "small"), ELSEWHERE)
def test_recipes_for_data_that_is_not_here_run_on_its_layout(tmp_path, dataset, name, column, method, small):
    mirror(tmp_path / "hub", dataset, train=60, rest=6)
    t = table(name)
    cell = t.cell(column, method)
    changes = {**SMALL, **small}
    plans = plan(t, [cell], [0], Results(), tmp_path / "out", **changes)
    left_out = carry_out(plans, tmp_path / "results", lambda _: None, lambda _: Silent(), tmp_path / "hub")
    assert left_out == ([], [])
    (found,) = Results.load(tmp_path / "results")
    assert found.done == changes["rounds"]
    assert found.failures == 0


def test_the_same_experiment_in_several_tables_is_run_once(tmp_path):
    t = table("fedssd/table2")
    cell = t.cell("dirichlet0.5", "fedssd")
    for other in (
        table("fedssd/table1").cell("cifar10", "fedssd"),
        table("fedssd/table3").cell("alpha0.01", "ssd"),
    ):
        done = outcome(other, [50.0] * 100)
        assert plan(t, [cell], [0], Results([done]), tmp_path) == []


def test_what_was_not_measured_is_made_anew_beside_the_finished_run(tmp_path):
    t = table("fedntd/table2")
    cell = t.cell("shard2", "fedntd")
    blind = outcome(cell, [50.0] * 200)
    (p,) = plan(t, [cell], [0], Results([blind]), tmp_path)
    assert p.folder.name == "seed0-measured"
    seen = outcome(cell, [50.0] * 200, measures={"alignment": {"layers": {}}})
    assert plan(t, [cell], [0], Results([seen]), tmp_path) == []


def test_a_figure_needs_the_run_itself_whatever_is_known_of_it(tmp_path):
    """Figures 1 and 2 of FedCAD are of the same experiment, after 100 rounds and after 10."""
    known = {}
    for name in ("fig1", "fig2"):
        t = table(f"fedcad/{name}")
        cell = t.cell("cifar10/dirichlet0.5", "fedavg")
        done = outcome(cell, [50.0] * 100, measures={"locals": {}})
        plans = plan(t, [cell], range(2), Results([done]), tmp_path)
        assert [(p.config.seed, p.folder.name) for p in plans] == [(0, f"seed0-{name}"), (1, f"seed1-{name}")]
        known[name] = plans[0].folder
    assert known["fig1"] != known["fig2"]


def test_a_run_counts_for_what_is_asked_as_precisely_or_less(tmp_path):
    cell = TABLE1.cell("cifar10/shard2", "fedavg")
    measured = {"alignment": {}}
    coarse = outcome(cell, [50.0] * 200, precision="bfloat16", measures=measured)
    fine = outcome(cell, [50.0] * 200, measures=measured)
    for done, asked, runs in (
        (coarse, "bfloat16", 0),
        (coarse, "float32", 1),
        (fine, "bfloat16", 0),
        (fine, "float32", 0),
        (fine, "float64", 1),
    ):
        plans = plan(TABLE1, [cell], [0], Results([done]), tmp_path, precision=asked)
        assert len(plans) == runs
        assert all(p.config.precision == asked for p in plans)


def test_runs_in_two_precisions_make_neither_a_mean_nor_a_gain(tmp_path):
    cells = TABLE1.choose(["cifar10/shard2"], ["fedavg", "fedntd"])
    measured = {"alignment": {}}

    def missing(*runs, seeds=range(3)):
        plans = plan(TABLE1, cells, seeds, Results(runs), tmp_path, precision="bfloat16")
        return [(p.cells[0].method, p.config.seed) for p in plans]

    def run(cell, seed, precision):
        return outcome(cell, [50.0] * 200, seed, precision=precision, measures=measured)

    fine = [run(cells[0], s, "float32") for s in range(3)]
    coarse = [run(cells[1], s, "bfloat16") for s in range(3)]
    assert missing(*fine, *coarse) == [("fedavg", s) for s in range(3)]  # or there would be no gain
    assert missing(fine[0], *coarse, run(cells[0], 1, "bfloat16")) == [("fedavg", 0), ("fedavg", 2)]
    assert missing(*fine, *(run(cells[1], s, "float32") for s in range(3))) == []


def test_seeds_are_one_stack_where_they_are_vectorised(tmp_path):
    cells = TABLE1.choose(["cifar10/shard2"], ["fedavg", "fedntd"])
    for backend, sizes in (("vectorised", [3, 3]), ("vectorised:chunk=4", [3, 3]), ("processes", [1] * 6)):
        plans = plan(TABLE1, cells, range(3), Results(), tmp_path, backend=backend)
        assert [len(s) for s in stacks(plans)] == sizes
        assert [p for s in stacks(plans) for p in s] == (
            plans if sizes == [1] * 6 else plans[::2] + plans[1::2]
        )


@pytest.mark.slow
def test_a_stack_of_seeds_gives_what_each_gives_alone(root, tmp_path):
    cells = TABLE1.choose(["cifar10/shard2"], ["fedavg"])
    for backend in ("serial", "vectorised"):
        plans = plan(TABLE1, cells, range(2), Results(), tmp_path / backend, backend=backend, rounds=1)
        carry_out(plans, tmp_path / f"{backend}-results", lambda _: None, lambda _: Silent(), root)
    one, many = (
        Results.load(tmp_path / f"{b}-results").of(cells[0].config()) for b in ("serial", "vectorised")
    )
    for seed in (0, 1):
        assert many[seed].accuracy == pytest.approx(one[seed].accuracy, abs=0.026)  # one picture of 40


def test_the_time_left_is_that_of_the_rounds_left(tmp_path):
    now, said = [0.0], []
    cells = TABLE1.choose(["cifar10/shard2"], ["fedavg", "fedntd"])
    plans = plan(TABLE1, cells, range(2), Results(), tmp_path, rounds=6)  # 24 rounds
    pace = Pace(said.append, plans, clock=lambda: now[0])
    fedavg, fedntd, fedavg1, fedntd1 = (pace.of(p) for p in plans)

    def play(run, rounds, seconds):
        for _ in range(rounds):
            now[0] += seconds
            run.record({})

    fedavg.begin({}, [{}] * 4)  # resumed: two are left
    assert pace.text() == "20 rounds to play"
    play(fedavg, 2, 40.0)
    assert said == ["2 of 20 rounds played, about 12 min left"]  # at most one a minute; 18 rounds of 40 s
    pace.over(plans[:1])
    fedntd.begin({}, [])
    play(fedntd, 5, 100.0)
    assert said[-1] == "7 of 20 rounds played, about 16 min left"  # 7 like these, 6 like FedAvg's
    pace.over(plans[1:2])  # it failed, its last round is not played
    fedavg1.begin({}, [])
    play(fedavg1, 6, 10.0)
    assert said[-1] == "13 of 19 rounds played, about 10 min left"  # six of FedNTD's 100 s
    fedntd1.begin({}, [{}] * 3)  # once more, a stack of seeds was undone: what is there is not played again
    fedntd1.begin({}, [{}] * 3)
    play(fedntd1, 1, 70.0)
    assert said[-1] == "14 of 16 rounds played, about 3 min left"  # two of 95 s


def test_differences_name_what_matters():
    cell = TABLE1.cell("cifar10/shard2", "fedntd")
    given = cell.config(3, rounds=1, backend="serial", clients=50, **{"algorithm.beta": 2.0})
    assert differences(cell.config(), given) == ["algorithm.beta = 1.0, not 2.0", "clients = 100, not 50"]


def test_a_figure_that_is_only_drawn_is_explained(call):
    code, said, _ = call("reproduce", "fedntd/fig4")
    assert code == 0
    assert "fedrecall run" in said
    assert "fedrecall figure fedntd/fig4" in said


def test_notes_stand_beside_their_cells(tmp_path):
    cell = TABLE1.cell("cifar10/shard2", "fedntd")
    save(outcome(cell, [50.0] * 20), tmp_path)
    notes = {
        cell.key: {"rounds": 20, "text": "because of X"},
        "fedntd/table1": {"rounds": 20, "text": "all of Y"},
        "fedntd/table1 mnist/shard2": {"rounds": 0, "text": "Z alone"},
    }
    (tmp_path / "notes.yaml").write_text(json.dumps(notes))
    page = render(tmp_path)
    for text in ("- cifar10/shard2, fedntd: because of X", "all of Y", "- mnist/shard2: Z alone"):
        assert text in page
    (tmp_path / "notes.yaml").write_text(json.dumps({"fedntd/tabel1": "a slip"}))
    with pytest.raises(UserError, match="fedntd/tabel1"):
        render(tmp_path)
    assert files.read_json(next(tmp_path.glob("*/seed0.json")))["rounds"]["done"] == 20


def test_a_figure_with_runs_of_its_own_is_drawn_from_them(call, root, tmp_path):
    code, said, _ = call(
        *("reproduce", "fedcad/fig1", "--methods", "fedavg,fedcad", "--seeds", 1, "--rounds", 2),
        *("--data-root", root, "--backend", "serial", "--results", "results", "--out", "out"),
    )
    assert code == 0
    assert (tmp_path / "out/figures/fedcad-fig1.png").exists()
    drawn = files.read_json(tmp_path / "out/figures/fedcad-fig1.json")
    assert "fedcad" in json.dumps(drawn)
    assert "local models' accuracy %" in said


@pytest.mark.parametrize("place", ["out", "results"])
def test_a_folder_that_cannot_be_written_is_a_sentence(call, root, tmp_path, place):
    (tmp_path / "file").write_text("")
    folders = {"out": tmp_path / "out", "results": tmp_path / "results", place: tmp_path / "file" / "x"}
    words = ("--columns", "cifar10/shard2", "--methods", "fedavg", "--rounds", 1, "--seeds", 1)
    words += ("--data-root", root, "--out", folders["out"], "--results", folders["results"])
    code, _, err = call("reproduce", "fedntd/table1", *words)
    assert code == 2
    assert f"cannot write to {folders[place]}" in err
    assert "Traceback" not in err
