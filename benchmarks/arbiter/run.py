"""The code that FedNTD's authors released, run on the same data as ours, as an arbiter between two levels.

    git clone https://github.com/Lee-Gihun/FedNTD /tmp/arbiter/code
    python benchmarks/arbiter/run.py --code /tmp/arbiter/code --table fedntd/table8 --column E1

It runs at the configuration that is shipped with it and the table's setup, but on the CPU unless --device
says otherwise, prints accuracy and forgetting of every round beside ours, if there is a result of the same
cell with their draw (switch authors-draw), and keeps both in benchmarks/results/arbiter/. Nothing of it is
part of this package. What it imports and this project does without (torchvision's readers and transforms,
wandb's log) is stood in for by `standins/`; what slows it down and does not touch the model is left out
there: worker processes of its loaders, and the evaluation of every local model.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.config import Config
from fedrecall.data.datasets import load
from fedrecall.files import write
from fedrecall.measures.accuracy import Recall
from fedrecall.papers import load_paper, table
from fedrecall.papers.results import FOLDER, Results, name
from fedrecall.provenance import environment

STANDINS = Path(__file__).parent / "standins"
KEPT = Path(__file__).parent.parent / "results" / "arbiter"


def export(dataset: str, folder: Path) -> None:
    """The data set as the stand-in for torchvision reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dataset}.npz"
    if not path.exists():
        d = load(dataset)
        arrays: dict[str, Any] = {}
        for part, split in (("train", d.train), ("test", d.test)):
            pictures = split.x.permute(0, 2, 3, 1).numpy()
            arrays[f"{part}_x"] = pictures[..., 0] if pictures.shape[-1] == 1 else pictures
            arrays[f"{part}_y"] = split.y.numpy()
        np.savez(path, **arrays)


def command(config: Config, options: argparse.Namespace) -> list[str]:
    """Their call for what a cell's config says; what it leaves out is as shipped."""
    dataset, partition = str(config.dataset["name"]), config.partition
    method, value = {"shards": ("sharding", "s"), "lda": ("lda", "alpha")}[str(partition["name"])]
    settings = {
        "config_path": f"config/{options.algorithm}.json",
        "dataset_name": dataset,
        "model_name": "fedavg_mnist" if dataset == "mnist" else "fedavg_cifar",
        "n_clients": config.clients,
        "sample_ratio": config.sampled / config.clients,
        "local_epochs": config.training.local_epochs,
        "n_rounds": options.rounds or config.rounds,
        "partition_method": method,
        f"partition_{value}": partition[value],
        "device": options.device,
    }
    if options.seed is not None:
        settings["seed"] = options.seed
    words = [sys.executable, str(STANDINS / "start.py")]
    for flag, setting in settings.items():
        words += [f"--{flag}", str(setting)]
    return words


def play(config: Config, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Their accuracies after every round; rounds of a run that was finished before are read."""
    seed = "" if options.seed is None else f"-seed{options.seed}"
    curve = options.work / f"{name(config)}{seed}.jsonl"
    rounds = options.rounds or config.rounds
    if not curve.exists() or len(curve.read_text().splitlines()) <= rounds:
        curve.unlink(missing_ok=True)
        places = {
            "ARBITER_DATA": str((options.work / "data").resolve()),
            "ARBITER_CURVE": str(curve.resolve()),
            "ARBITER_TEST": "augmented" if options.augmented_test else "plain",
            "PYTHONPATH": os.pathsep.join([str(STANDINS.resolve()), str(options.code.resolve())]),
        }
        subprocess.run(command(config, options), cwd=options.code, env={**os.environ, **places}, check=True)
    _, *played = map(json.loads, curve.read_text().splitlines())
    return played[:rounds]


def theirs(played: list[dict[str, Any]], code: Path) -> dict[str, Any]:
    """What is kept of it."""
    revision = subprocess.run(
        ["git", "-C", str(code), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    recall = Recall()
    return {
        "made": f"Lee-Gihun/FedNTD {revision.stdout.strip()}, float32, {environment()['cpu']}",
        "accuracy": [row["accuracy"] for row in played],
        "forgetting": [round(recall.step(np.array(row["class_accuracy"]))[0], 4) for row in played],
    }


def ours(config: Config, rounds: int) -> dict[str, Any] | None:
    """The same of our result, if there is one."""
    for run in Results.load(FOLDER).of(config).values():
        made = f"fedrecall, seed {run.seed}, {run.config.precision}, {' then '.join(run.machines)}"
        return {"made": made, "accuracy": run.accuracy[:rounds], "forgetting": run.forgetting[:rounds]}
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", type=Path, required=True, help="a clone of Lee-Gihun/FedNTD")
    parser.add_argument("--table", default="fedntd/table1")
    parser.add_argument("--column", default="cifar10/shard2")
    parser.add_argument(
        "--algorithm", default="fedntd", help="fedavg, fedntd, scaffold, fedprox, fednova, ..."
    )
    parser.add_argument("--augmented-test", action="store_true", help="test images as training images are")
    parser.add_argument("--rounds", type=int, help="by default the table's")
    parser.add_argument("--seed", type=int, help="by default the shipped one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path("/tmp/arbiter"), help="where data and curves go")
    options = parser.parse_args()
    switch = "authors-draw" + "+augmented-test" * options.augmented_test
    config = (
        table(options.table)
        .cell(options.column, options.algorithm)
        .config_with(load_paper("fedntd").variant(switch))
    )
    export(str(config.dataset["name"]), options.work / "data")
    found = {
        "table": options.table,
        "column": options.column,
        "algorithm": options.algorithm,
        "switch": switch,
        "theirs": theirs(play(config, options), options.code),
    }
    found["ours"] = ours(config, len(found["theirs"]["accuracy"]))
    path = KEPT / f"{name(config)}.json"
    lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in found.items())
    write(path, f"{{\n{lines}\n}}\n".encode())
    print("round  theirs, F    ours, F")
    pairs = [
        zip(side["accuracy"], side["forgetting"], strict=True)
        for side in (found["theirs"], found["ours"])
        if side
    ]
    for number, row in enumerate(zip_longest(*pairs), start=1):
        print(f"{number:5} ", "  ".join(f"{cell[0]:6.2%}, {cell[1]:.2f}" if cell else "" for cell in row))
    print(f"kept in {path}")


if __name__ == "__main__":
    main()
