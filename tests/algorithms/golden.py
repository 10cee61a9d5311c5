"""Short runs on digits, kept as they came out, so that a change that changes results is noticed.

    python -m tests.algorithms.golden            # all of them
    python -m tests.algorithms.golden moon fednova

writes `golden.json` anew. Do so only when a result is meant to change, and say why in the commit:
what an algorithm must compute is proved elsewhere, by identities and formulas.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.algorithms.cases import CASES

import fedrecall
from fedrecall import trees

FILE = Path(__file__).with_name("golden.json")


def short_run(spec: str) -> dict[str, Any]:
    """Three rounds at the algorithm's and the package's defaults, on a small network in float64."""
    result = fedrecall.run(
        algorithm=spec,
        dataset="digits",
        partition="lda:0.5",
        model="mlp:32",
        clients=10,
        sample=4,
        rounds=3,
        training={"local_epochs": 3, "batch_size": 20, "lr": 0.05},
        precision="float64",
        backend="serial",
        seed=0,
    )
    params = trees.arrays(result.weights.params)
    return {
        "accuracy": result.accuracy,
        "loss": result.history[-1]["loss"],
        "failures": sum(len(r["failures"]) for r in result.history),
        "norms": {name: float(p.norm()) for name, p in sorted(params.items())},
    }


def main(names: list[str]) -> None:
    """Record these algorithms, or all."""
    torch.set_num_threads(1)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    specs = [case.spec for case in CASES]
    for spec in specs:
        if not names or spec in names or spec.partition(":")[0] in names:
            kept[spec] = short_run(spec)
            print(spec, kept[spec]["accuracy"], kept[spec]["loss"])
    FILE.write_text(json.dumps({s: kept[s] for s in specs if s in kept}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
