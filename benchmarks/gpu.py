"""The GPU table, in one command: every way to train W1 on a GPU, a whole run, and six runs at once.

    python -m benchmarks.gpu                          # CIFAR-10 by name
    python -m benchmarks.gpu --dataset folder:PATH    # or from what `fedrecall.data.store.export` wrote
    python -m benchmarks.gpu --dataset synthetic      # random images of its shape: the same speed
    python -m benchmarks.gpu --device cpu --epochs 1 --sample 4 --parts variants   # what a CPU can do
    python -m benchmarks.gpu --variants "stack, matmul" --precisions bfloat16      # a part of it

W1: CIFAR-10, 100 clients shards:2 (500 images each), 10 sampled, E = 5, B = 50, `cnn`, crop + flip +
Cutout, SGD 0.01/0.9/1e-5. It needs torch, numpy, PyYAML and safetensors, and writes JSON and a table.
A variant that fails is a line of the table, not the end of it.
"""

import argparse
import itertools
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrecall import config as configs
from fedrecall import trees
from fedrecall.backends import open_backend
from fedrecall.data.datasets import load
from fedrecall.data.store import Dataset
from fedrecall.experiment import Experiment
from fedrecall.files import write_json
from fedrecall.together import run_together

W1 = {
    "partition": "shards:2",
    "model": "cnn",
    "clients": 100,
    "sample": 10,
    "augmentation": "crop+flip+cutout",
    "seed": 0,
}
TRAINING = {"local_epochs": 5, "batch_size": 50, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}
SYNTHETIC = "synthetic:classes=10,train=50000,test=10000,channels=3,size=32"
METHODS = ("fedavg", "fedntd")
PRECISIONS = ("float32", "tf32", "bfloat16")  # float32 allows no tensor float anywhere, tf32 everywhere
VARIANTS = {
    "one by one": "serial",
    "stack": "vectorised",
    "stack, matmul": "vectorised:convolutions=matmul",
    "stack, graph": "vectorised:graph=true",
    "stack, matmul, graph": "vectorised:convolutions=matmul,graph=true",
    "lanes, graph": "vectorised:chunk=1,lanes=10,graph=true",
}
TARGETS = {"fedavg": 0.15, "fedntd": 0.25, "run": 60.0, "together": 1.5}
MANY = 10**6


class Bench:
    """One invocation: its data, its device, what it found."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.device = torch.device(options.device)
        self.gpu = self.device.type == "cuda"
        spec = SYNTHETIC if options.dataset == "synthetic" else options.dataset
        self.dataset: Dataset = load(spec).to(self.device)
        self.variants = {n: VARIANTS[n] for n in options.variants if self.gpu or "graph" not in VARIANTS[n]}
        self.main_method = "fedntd" if "fedntd" in options.methods else options.methods[0]
        self.precisions = [p for p in options.precisions if self.gpu or p != "tf32"]
        asked = {**vars(options), "out": options.out.name}
        self.found: dict[str, Any] = {"machine": machine(), "targets": TARGETS, "options": asked}

    def experiment(self, algorithm: str, variant: str, precision: str, **settings: Any) -> Experiment:
        """One run of W1."""
        values = {
            **W1,
            "algorithm": algorithm,
            "dataset": "cifar10",  # for the record; the data are those given
            "device": str(self.device),
            "backend": VARIANTS[variant],
            "precision": "float32" if precision == "tf32" else precision,
            "sample": self.options.sample,
            "training": {**TRAINING, "local_epochs": self.options.epochs},
            **settings,
        }
        if self.options.tiny:
            values |= {"clients": 8, "sample": 4, "model": "cnn:8"}
        return Experiment(configs.make(values), dataset=self.dataset)

    def save(self) -> None:
        """Write what was found so far."""
        write_json(self.options.out, self.found)

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""
        if self.gpu:
            torch.cuda.synchronize()

    def agreement(self) -> None:
        """Every variant against the reference on the CPU: four rounds in double precision.

        Of clients of one size, whose recorded trainings are replayed with other data and another rate, and
        of clients of many.
        """
        rows = []
        here = self.dataset
        self.dataset = load("synthetic:classes=10,train=400,test=50,channels=3,size=8")
        for method, partition in itertools.product(self.options.methods, ("iid", "lda:1")):
            small = {"rounds": 4, "clients": 8, "sample": 4, "partition": partition, "model": "cnn:8"}

            def weights(variant: str, method: str = method, small: Any = small, **device: str) -> Any:
                run = self.experiment(method, variant, "float64", **small, **device)
                return trees.arrays(trees.transform(lambda t: t.cpu(), run.run().weights))

            expected: dict[str, Tensor] = weights("one by one", device="cpu")
            for variant in self.variants:

                def gap(
                    variant: str = variant, weights: Any = weights, expected: dict[str, Tensor] = expected
                ) -> dict[str, Any]:
                    found = weights(variant).items()
                    return {"gap": max(float((t - expected[n]).abs().max()) for n, t in found)}

                row = {"method": method, "partition": partition, "variant": variant}
                rows.append(row | attempt(gap))
        self.dataset = here
        self.found["agreement"] = rows
        table(rows, ["method", "partition", "variant", "gap"])

    def rounds(self) -> None:
        """Seconds a round of every variant, without evaluation; the variants take turns."""
        rows = []
        for method, precision in itertools.product(self.options.methods, self.precisions):
            runners: dict[str, Runner] = {}
            failed: dict[str, dict[str, Any]] = {}
            with arithmetic(precision):
                for name in self.variants:
                    made = attempt(partial(started, self, method, name, precision))
                    if "runner" in made:
                        runners[name] = made["runner"]
                    else:
                        failed[name] = made
                for _, name in itertools.product(range(self.options.rounds), list(runners)):
                    if name in runners and "error" in (found := attempt(runners[name].round)):
                        failed[name] = found
                        del runners[name]
            for name in self.variants:
                row = {"method": method, "precision": precision, "variant": name}
                rows.append(row | (failed[name] if name in failed else runners[name].summary()))
            for runner in runners.values():
                runner.close()
            if self.gpu:
                torch.cuda.empty_cache()
            self.found["rounds"] = rows
            self.save()
        table(rows, ["method", "precision", "variant", "seconds", "first", "megabytes"])

    def best(self, method: str, precision: str) -> str:
        """The fastest variant that was measured, or the plain stack."""
        rows = [
            r
            for r in self.found.get("rounds", ())
            if r["method"] == method and r["precision"] == precision and "seconds" in r
        ]
        return min(rows, key=lambda r: r["seconds"])["variant"] if rows else "stack"

    def run(self) -> None:
        """A whole run with evaluation after every round: of FedNTD, if that is among the methods."""
        rows = []
        for precision in self.precisions:
            variant = self.best(self.main_method, precision)

            def whole(variant: str = variant, precision: str = precision) -> dict[str, Any]:
                since = time.perf_counter()
                run = self.experiment(self.main_method, variant, precision, rounds=self.options.run_rounds)
                history = run.run().history
                self.synchronize()
                return {
                    "seconds": round(time.perf_counter() - since, 2),
                    "rounds": len(history),
                    "accuracy": history[-1]["accuracy"],
                    "forgetting": history[-1]["forgetting"],
                    "evaluation": statistics.median(r["seconds"]["evaluate"] for r in history),
                }

            with arithmetic(precision):
                rows.append({"precision": precision, "variant": variant} | attempt(whole))
            self.found["run"] = rows
            self.save()
        table(rows, ["precision", "variant", "rounds", "seconds", "evaluation", "accuracy", "forgetting"])

    def together(self) -> None:
        """Three seeds of two methods at once, or six of one, against one run alone; evaluation included."""
        methods = self.options.methods
        runs = list(itertools.product(methods, range(6 // len(methods))))
        rows = []
        for precision, variant in itertools.product(self.precisions, self.variants):
            if variant == "one by one":
                continue

            def compare(variant: str = variant, precision: str = precision) -> dict[str, Any]:
                alone = self.seconds([(self.main_method, 0)], variant, precision)
                six = self.seconds(runs, variant, precision)
                return {"alone": alone, "six": six, "ratio": round(six / alone, 3)}

            with arithmetic(precision):
                rows.append({"precision": precision, "variant": variant} | attempt(compare))
            self.found["together"] = rows
            self.save()
        table(rows, ["precision", "variant", "alone", "six", "ratio"])

    def seconds(self, runs: list[tuple[str, int]], variant: str, precision: str) -> float:
        """Median seconds from one round to the next of runs side by side."""
        rounds = max(self.options.rounds, 3)
        made = [self.experiment(m, variant, precision, seed=s, rounds=rounds) for m, s in runs]
        made[0].sinks.append(watch := Watch(self.synchronize))
        run_together(made)
        return round(statistics.median(b - a for a, b in itertools.pairwise(watch.times[1:])), 4)


class Runner:
    """One variant's run, a round at a time."""

    def __init__(self, bench: Bench, method: str, variant: str, precision: str):
        self.bench = bench
        run = bench.experiment(method, variant, precision, rounds=MANY, evaluate_every=MANY)
        self.run, self.loop = run, run.loop()
        self.backend = open_backend(run.config.backend, run.work)
        self.jobs = next(self.loop)
        self.times: list[float] = []
        self.megabytes = 0.0

    def round(self) -> dict[str, Any]:
        """Play one round and note its seconds."""
        if self.bench.gpu:
            torch.cuda.reset_peak_memory_stats()
        self.bench.synchronize()
        since = time.perf_counter()
        self.jobs = self.loop.send(self.backend.map(self.jobs))
        self.bench.synchronize()
        self.times.append(time.perf_counter() - since)
        if self.bench.gpu:
            # Reserved: what a recorded training has freed is still its own.
            self.megabytes = torch.cuda.max_memory_reserved() / 2**20
        return {}

    def summary(self) -> dict[str, Any]:
        """The row of the table; the first round warms up and is told apart."""
        later = self.times[1:] or self.times
        return {
            "seconds": round(statistics.median(later), 4),
            "lowest": round(min(later), 4),
            "first": round(self.times[0], 4),
            "times": [round(t, 4) for t in self.times],
            "megabytes": round(self.megabytes),  # of everything that is on the device at that time
        }

    def close(self) -> None:
        """Free the variant."""
        self.loop.close()
        self.backend.close()
        self.run.close()


class Watch:
    """A sink that notes when rounds end."""

    def __init__(self, synchronize: Callable[[], None]):
        self.synchronize = synchronize
        self.times: list[float] = []

    def begin(self, config: Mapping[str, Any], history: Any) -> None:
        """Nothing to note."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Note the time."""
        self.synchronize()
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to note."""


def started(bench: Bench, method: str, variant: str, precision: str) -> dict[str, Any]:
    return {"runner": Runner(bench, method, variant, precision)}


def attempt(what: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return what()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Whether products of single-precision numbers may round them to tensor floats."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    cells = [columns, *([str(r.get(c, r.get("error", ""))) for c in columns] for r in rows)]
    widths = [min(max(len(row[i]) for row in cells), 40) for i in range(len(columns))]
    for row in cells:
        print("  ".join(c[:40].ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parts = {
        "agreement": Bench.agreement,
        "variants": Bench.rounds,
        "run": Bench.run,
        "together": Bench.together,
    }
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each variant, the first not counted")
    parser.add_argument("--run-rounds", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=TRAINING["local_epochs"])
    parser.add_argument("--sample", type=int, default=W1["sample"], help="clients a round")
    parser.add_argument("--tiny", action="store_true", help="a few small clients, to try this script out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no GPU here, so nothing was measured; --device cpu measures what a CPU can do.")
        return 2
    bench = Bench(options)
    print(json.dumps(bench.found["machine"]), flush=True)
    for name in options.parts:
        print(f"\n{name}", flush=True)
        parts[name](bench)
        bench.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
