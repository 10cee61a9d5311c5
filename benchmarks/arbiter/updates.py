"""Our algorithms beside those that FedNTD's authors released, number for number instead of level for level.

    git clone https://github.com/Lee-Gihun/FedNTD /tmp/arbiter/code
    python benchmarks/arbiter/updates.py --code /tmp/arbiter/code

Both play the same rounds in float64: the same clients in the same order, the same initial model, the same
mini-batches of made-up images. Nothing is left to chance; what remains is arithmetic. The gap is the
largest, over the rounds and over the layers, of the distance between the two models relative to how far the
layer has come from the initial one; beside it is how far ours is from FedAvg, which says that the algorithm
had something to do. Clients' shares of the examples, which theirs has in float32, are float64 here, too. It
writes benchmarks/results/arbiter-updates.json, which docs/reproduction.md shows.
"""

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fedrecall import config as configs
from fedrecall import rounds
from fedrecall.data.client import ClientData
from fedrecall.data.datasets import Dataset, load
from fedrecall.experiment import Experiment
from fedrecall.files import write_json

RESULTS = Path(__file__).parent.parent / "results" / "arbiter-updates.json"
STANDINS = Path(__file__).parent / "standins"
CLIENTS, ROUNDS, EPOCHS, SEED = 8, 4, 2, 3
SGD: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}
DECAY = 0.99


@dataclass(frozen=True)
class Case:
    """One of their algorithms, and what should be the same of ours."""

    theirs: str
    params: Mapping[str, Any]
    ours: str
    sample: int = 4
    partition: str = "lda:0.5"
    batch: int = 5
    note: str = ""


CURV = {"size": 500, "lam": 10.0}
CASES = (
    Case("fedavg", {}, "fedavg"),
    Case("fedavgm", {"avgm_beta": 0.7}, "fedavgm:beta=0.7"),
    Case("feddyn", {"dyn_alpha": 0.1}, "feddyn:alpha=0.1", partition="iid", note="clients of one size"),
    Case("feddyn", {"dyn_alpha": 0.1}, "feddyn:alpha=0.1", note="theirs averages by examples, ours equally"),
    Case("fedprox", {"mu": 1.0}, "fedprox:mu=1"),
    Case("fednova", {"nova_ccvr": False}, "fednova"),
    Case("fednova", {"nova_ccvr": True}, "fednova:recoil=true"),
    Case("scaffold", {"adaptive_divison": True}, "scaffold"),
    Case("scaffold", {"adaptive_divison": False}, "scaffold:momentum_aware=false"),
    Case("moon", {"mu": 1.0, "tau": 0.5}, "moon", CLIENTS, note="every client in every round"),
    Case("moon", {"mu": 1.0, "tau": 0.5}, "moon", note="before a first visit theirs has the initial model"),
    Case("fedcurv", CURV, "fedcurv:lam=10", 1, batch=1, note="batches of 1, one client a round"),
    Case(
        "fedcurv",
        CURV,
        "fedcurv:lam=10",
        batch=1,
        note="batches of 1; theirs subtracts in place, for all that follow",
    ),
    Case(
        "fedcurv",
        CURV,
        "fedcurv:lam=10,together=50",
        1,
        batch=50,
        note="one batch a client, one client a round",
    ),
    Case("fedntd", {"tau": 1, "beta": 1}, "fedntd"),
    Case("fedntd", {"tau": 3, "beta": 0.5}, "fedntd:tau=3,beta=0.5"),
)


class Loader:
    """What they iterate over once an epoch: the batches that ours draws for the same visit."""

    def __init__(self, data: ClientData, size: int):
        self.data, self.size = data, size
        self.begin(1)

    def begin(self, number: int) -> None:
        """A round begins."""
        draws = self.data.draw(EPOCHS, SEED, number, self.data.number)
        self.batches = [(b.x, b.y) for b in self.data.training_batches(draws, self.size)]
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        share = len(self.batches) // EPOCHS
        start = self.passes % EPOCHS * share
        self.passes += 1
        return iter(self.batches[start : start + share])


@dataclass
class Curve:
    """A sink that keeps the model of every round."""

    experiment: Experiment
    models: list[list[Tensor]] = field(default_factory=list)

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Nothing to set up."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Keep the model."""
        self.models.append([p.clone() for p in self.experiment.server.weights.params.values()])

    def end(self) -> None:
        """Nothing to close."""


def experiment(case: Case, algorithm: str, dataset: Dataset) -> Experiment:
    """Ours."""
    settings = {
        "algorithm": algorithm,
        "dataset": "synthetic",
        "partition": case.partition,
        "model": "cnn",
        "clients": CLIENTS,
        "sample": case.sample,
        "rounds": ROUNDS,
        "seed": SEED,
        "precision": "float64",
        "backend": "serial",
        "training": {**SGD, "local_epochs": EPOCHS, "lr_decay": DECAY, "batch_size": case.batch},
    }
    return Experiment(configs.make(settings), dataset=dataset)


def theirs(case: Case, twin: Experiment) -> list[list[Tensor]]:
    """The models after their rounds, begun where ours begin."""
    network = importlib.import_module("train_tools.models.fedavgnet").FedAvgNetCIFAR().double()
    start = twin.server.weights.params.values()
    network.load_state_dict(dict(zip(network.state_dict(), start, strict=True)))
    loaders = [Loader(twin.federation.client(k).numbered(k), case.batch) for k in range(CLIENTS)]
    local = {k: {"datasize": len(x.data), "train": x, "test": x} for k, x in enumerate(loaders)}
    optimizer = torch.optim.SGD(network.parameters(), **SGD)
    server = importlib.import_module(f"algorithms.{case.theirs}.Server").Server(
        types.SimpleNamespace(**case.params),
        network,
        {"num_classes": 10, "local": local, "global": {"test": local[0]["test"]}},
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, gamma=DECAY, step_size=1),
        n_rounds=ROUNDS,
        sample_ratio=case.sample / CLIENTS,
        local_epochs=EPOCHS,
        device="cpu",
    )
    models = []

    def end_of_round(weights: Mapping[str, Tensor], *_: Any) -> None:
        server.model.load_state_dict(weights)
        server.scheduler.step()
        models.append([w.clone() for w in weights.values()])

    def begin_round(index: int) -> list[int]:
        for loader in loaders:
            loader.begin(index + 1)
        return list(rounds.sample(CLIENTS, case.sample, SEED, index + 1))

    server._update_and_evaluate = end_of_round
    server._client_sampling = begin_round
    server.client._get_local_stats = dict
    server.run()
    return models


def ours(twin: Experiment) -> list[list[Tensor]]:
    """The models after our rounds."""
    curve = Curve(twin)
    twin.sinks.append(curve)
    twin.run()
    return curve.models


def gap(models: list[list[Tensor]], others: list[list[Tensor]], start: list[Tensor]) -> float:
    """How far the two ever are from each other."""
    return max(
        float((a - b).norm() / (b - begun).norm())
        for model, other in zip(models, others, strict=True)
        for a, b, begun in zip(model, other, start, strict=True)
    )


def compare(case: Case) -> dict[str, float]:
    """Ours against theirs, and, for what the algorithm's own term amounts to, against FedAvg."""
    data = load(f"synthetic:classes=10,train={20 * CLIENTS},test=20,size=32,channels=3,noise=3")
    mine = experiment(case, case.ours, data)
    start = [p.clone() for p in mine.server.weights.params.values()]
    quiet = contextlib.redirect_stdout(io.StringIO())  # their servers print every round
    with quiet, mock.patch.object(torch, "float", torch.float64):
        released = theirs(case, mine)
    models = ours(mine)
    plain = ours(experiment(case, "fedavg", data))
    return {"gap": gap(models, released, start), "from_fedavg": gap(models, plain, start)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", type=Path, required=True, help="a clone of Lee-Gihun/FedNTD")
    options = parser.parse_args()
    sys.path[:0] = [str(STANDINS), str(options.code)]
    # Their package of models imports a file that is not in the repository.
    sys.modules["train_tools.models.models"] = types.ModuleType("train_tools.models.models")
    commit = subprocess.run(
        ["git", "-C", str(options.code), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    rows = []
    for case in CASES:
        found = compare(case)
        rows.append({**asdict(case), **found})
        print(
            f"{case.theirs:9} {json.dumps(case.params):28} {case.ours:30} gap {found['gap']:.1e}, "
            f"from FedAvg {found['from_fedavg']:.1e}  {case.note}",
            flush=True,
        )
    write_json(RESULTS, {"code": f"Lee-Gihun/FedNTD {commit}", "rounds": ROUNDS, "cases": rows})


if __name__ == "__main__":
    main()
