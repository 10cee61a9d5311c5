"""What was measured of the authors' code: where nothing is said to differ, ours makes its updates."""

import argparse
import importlib.util
import json
from pathlib import Path

import pytest

from fedrecall.papers import table

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
FILE = BENCHMARKS / "results" / "arbiter-updates.json"
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


def test_the_released_code_is_called_with_the_setup_of_the_cell():
    spec = importlib.util.spec_from_file_location("arbiter_run", BENCHMARKS / "arbiter" / "run.py")
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    options = argparse.Namespace(algorithm="fedavg", rounds=None, device="cpu", seed=None)

    def called(paper_table, column):
        config = table(paper_table).cell(column, "fedavg").config()
        words = run.command(config, options)[2:]
        return {flag.removeprefix("--"): word for flag, word in zip(words[::2], words[1::2], strict=True)}

    shards, lda = called("fedntd/table8", "E1"), called("fedntd/table1", "mnist/lda0.1")
    usual = {"n_clients": "100", "sample_ratio": "0.1", "n_rounds": "200", "device": "cpu"}
    usual["config_path"] = "config/fedavg.json"
    cifar = {"dataset_name": "cifar10", "model_name": "fedavg_cifar", "local_epochs": "1"}
    mnist = {"dataset_name": "mnist", "model_name": "fedavg_mnist", "local_epochs": "3"}
    assert shards == usual | cifar | {"partition_method": "sharding", "partition_s": "2"}
    assert lda == usual | mnist | {"partition_method": "lda", "partition_alpha": "0.1"}
