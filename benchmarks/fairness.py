"""How unlike clients fare under the methods of FedNTD's table 1, from what `fedrecall reproduce` kept.

    FEDRECALL_DATA=... python -m benchmarks.fairness [--columns cifar10/shard2,cifar10/lda0.1]

Reads benchmarks/results/reproduction/ and the data's labels, and trains nothing: of the last round's class
accuracies, what each client has of them on its own mixture of classes.
"""

from __future__ import annotations

import argparse
from statistics import fmean, stdev

import numpy as np

from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.datasets import load
from fedrecall.ingredients import federate
from fedrecall.measures.accuracy import in_local
from fedrecall.measures.fairness import spread
from fedrecall.papers import load_paper, table
from fedrecall.papers.results import FOLDER, Outcome, Results

SWITCH = "authors-draw+augmented-test"
HEAD = (
    "| column | method | seeds | mean of clients, % | deviation | worst tenth | best tenth |\n"
    "|---|---|---|---|---|---|---|"
)
PARTS = ("mean", "deviation", "worst_tenth", "best_tenth")


def fares(run: Outcome) -> dict[str, float]:
    """How clients fare under a run's last model."""
    config = run.config
    federation = federate(config, load(config.dataset), ALGORITHMS.make(config.algorithm))
    shares = federation.counts / federation.counts.sum(1, keepdims=True)
    own = {
        k: in_local(p, np.array(run.class_accuracy)) for k, p in enumerate(shares)
    }  # all classes are tested
    return spread({k: a for k, a in own.items() if a is not None})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", default="cifar10/shard2,cifar10/lda0.1")
    chosen, variant = table("fedntd/table1"), load_paper("fedntd").variant(SWITCH)
    results = Results.load(FOLDER)
    print(HEAD)
    for column in parser.parse_args().columns.split(","):
        for method in chosen.methods:
            runs = results.of(chosen.cell(column, method).config(variant=variant))
            found = [fares(run) for run in runs.values() if run.done >= chosen.rounds and not run.failed]
            if found:
                told = [[100 * f[part] for f in found] for part in PARTS]
                cells = [f"{fmean(v):.1f}" + (f" ± {stdev(v):.1f}" if len(v) > 1 else "") for v in told]
                print(f"| {column} | {method} | {len(found)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
