"""Seconds of CPU that one visit of W1 takes, beside the loop written by hand: for a machine that is busy.

    python -m benchmarks.steps [algorithm:precision ...]
    PYTHONPATH=ANOTHER_CHECKOUT/src python -m benchmarks.steps --model lenet_cifar moon:5:bfloat16

One thread, one epoch of one client, taking turns, with workers' memory settings; CPU time, so that waiting
for a core does not count.
The loop written by hand is that of W1's network; another network's visits are timed alone, to compare
two versions of this package. Results are kept of the usual cases all together, or with --out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import W1, cifar10
from benchmarks.floor import Trainer
from fedrecall import config as configs
from fedrecall.backends.processes import WORKERS
from fedrecall.experiment import Experiment
from fedrecall.files import write_json
from fedrecall.training import visit

RESULTS = Path(__file__).parent / "results" / "steps.json"
CASES = ("fedavg:float32", "fedavg:bfloat16", "fedntd:float32", "fedntd:bfloat16")


def measure(case: str, model: str, turns: int = 6) -> dict[str, Any]:
    algorithm, precision = case.rsplit(":", 1)
    dataset = cifar10()
    config = configs.make({**W1, "algorithm": algorithm, "precision": precision, "model": model})
    run = Experiment(config, dataset=dataset)
    recipe = replace(config.training, local_epochs=1)
    weights, data = run.model.initial(), run.federation.client(0)
    down = run.algorithm.broadcast(run.model, run.algorithm.start(weights), None)
    initial = list(weights.params.values())
    half = precision == "bfloat16"

    def by_hand(with_kernels: bool) -> Any:
        trainer = Trainer(algorithm, half, with_kernels, dataset.mean, dataset.std)

        def go() -> None:
            if algorithm == "fedntd":
                trainer.teach([initial])
            trainer.train(data.x, data.y, initial, 0.01, 0, epochs=1)

        return go

    memory = run.algorithm.remember(weights)
    floors = {"floor": by_hand(False), "floor with kernels": by_hand(True)} if model == W1["model"] else {}
    players = {
        **floors,
        "fedrecall": lambda: visit(
            run.algorithm, run.model, recipe, data, down, memory, seed=0, round_number=1, client=0
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for turn in range(turns + 1):
        for name, play in players.items():
            since = time.process_time()
            play()
            if turn:
                seconds[name].append(time.process_time() - since)
    found: dict[str, Any] = {name: statistics.median(own) for name, own in seconds.items()}
    for floor in floors:
        pairs = zip(seconds["fedrecall"], seconds[floor], strict=True)
        found[f"ratio to {floor}"] = statistics.median(a / b for a, b in pairs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, help="algorithm:precision, such as fedavg:float32")
    parser.add_argument("--model", default=W1["model"], help="another network, without the loop by hand")
    parser.add_argument("--out", type=Path, help="where to keep what was measured, of any cases")
    options = parser.parse_args()
    if WORKERS.items() - os.environ.items():  # they are read when a process starts
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.steps", *sys.argv[1:]], os.environ | WORKERS
        )
    torch.set_num_threads(1)
    results = {}
    for case in options.cases:
        found = results[case] = measure(case, options.model)
        if len(results) == 1:
            print(f"| one epoch of a client, CPU s | {' | '.join(found)} |")
            print("|---" * (1 + len(found)) + "|")
        print(f"| {case} | " + " | ".join(f"{v:.3f}" for v in found.values()) + " |", flush=True)
    usual = options.model == W1["model"] and results.keys() == {*CASES}
    out = options.out or (RESULTS if usual else None)
    if out is not None:
        write_json(out, results)


if __name__ == "__main__":
    main()
