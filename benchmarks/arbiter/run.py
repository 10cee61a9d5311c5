"""The code that FedNTD's authors released, run on the same data as ours, as an arbiter between two levels.

    git clone https://github.com/Lee-Gihun/FedNTD /tmp/arbiter/code
    python benchmarks/arbiter/run.py --code /tmp/arbiter/code --algorithm fedntd --rounds 10

It runs at the configuration that is shipped with it, but on the CPU unless --device says otherwise, and
prints the accuracy of every round beside ours, if there is a result of the same cell. Nothing of it is
part of this package. What it imports and this project does without (torchvision's readers and
transforms, wandb's log) is stood in for by `standins/`; what slows it down and does not touch the model
is left out there: worker processes of its loaders, and the evaluation of every local model.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from fedrecall.data.datasets import load
from fedrecall.papers import table
from fedrecall.papers.results import FOLDER, Results

STANDINS = Path(__file__).parent / "standins"


def export(name: str, folder: Path) -> None:
    """The data set as the stand-in for torchvision reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.npz"
    if not path.exists():
        d = load(name)
        arrays = {}
        for part, split in (("train", d.train), ("test", d.test)):
            pictures = split.x.permute(0, 2, 3, 1).numpy()
            arrays[f"{part}_x"] = pictures[..., 0] if pictures.shape[-1] == 1 else pictures
            arrays[f"{part}_y"] = split.y.numpy()
        np.savez(path, **arrays)


def command(options: argparse.Namespace) -> list[str]:
    words = [sys.executable, str(STANDINS / "start.py"), "--config_path", f"config/{options.algorithm}.json"]
    kind, _, value = options.partition.partition(":")
    words += [
        "--dataset_name",
        options.dataset,
        "--device",
        options.device,
        "--n_rounds",
        str(options.rounds),
    ]
    words += ["--partition_method", {"shards": "sharding", "lda": "lda"}[kind]]
    words += ["--partition_s", value] if kind == "shards" else ["--partition_alpha", value]
    if options.dataset == "mnist":
        words += ["--model_name", "fedavg_mnist", "--local_epochs", "3"]
    if options.seed is not None:
        words += ["--seed", str(options.seed)]
    return words


def ours(options: argparse.Namespace) -> list[float]:
    """The mean curve of our runs of the same cell."""
    kind, _, value = options.partition.partition(":")
    column = f"{options.dataset}/{kind.removesuffix('s')}{value}"
    cell = table("fedntd/table1").cell(column, options.algorithm)
    runs = list(Results.load(FOLDER).of(cell.config()).values())
    if not runs:
        return []
    return [float(np.mean(a)) for a in zip(*(r.accuracy for r in runs), strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", type=Path, required=True, help="a clone of Lee-Gihun/FedNTD")
    parser.add_argument(
        "--algorithm", default="fedntd", help="fedavg, fedntd, scaffold, fedprox, fednova, ..."
    )
    parser.add_argument("--dataset", default="cifar10", help="cifar10, cifar100 or mnist")
    parser.add_argument("--partition", default="shards:2", help="shards:S or lda:ALPHA")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, help="by default the shipped one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path("/tmp/arbiter"), help="where data and curve go")
    options = parser.parse_args()
    export(options.dataset, options.work / "data")
    curve = options.work / f"{options.dataset}-{options.partition.replace(':', '')}-{options.algorithm}.jsonl"
    curve.unlink(missing_ok=True)
    places = {
        "ARBITER_DATA": str((options.work / "data").resolve()),
        "ARBITER_CURVE": str(curve.resolve()),
        "PYTHONPATH": os.pathsep.join([str(STANDINS.resolve()), str(options.code.resolve())]),
    }
    subprocess.run(command(options), cwd=options.code, env={**os.environ, **places}, check=True)
    theirs = [json.loads(line)["server_test_acc"] for line in curve.read_text().splitlines()]
    mine = ours(options)
    print("round  theirs  ours")
    for number, accuracy in enumerate(theirs, start=1):
        here = f"{mine[number - 1]:7.2%}" if number <= len(mine) else ""
        print(f"{number:5}  {accuracy:6.2%}  {here}")


if __name__ == "__main__":
    main()
