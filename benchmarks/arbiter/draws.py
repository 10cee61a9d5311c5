"""What `--global-seed` deals and draws, beside the functions of the code that FedNTD's authors released.

    git clone https://github.com/Lee-Gihun/FedNTD /tmp/arbiter/code
    python benchmarks/arbiter/draws.py --code /tmp/arbiter/code

Examples of each class at each client, for the classes of CIFAR-10, CIFAR-100 and MNIST, and the clients of
every round. Shards are dealt of smaller classes, on which their code takes seconds instead of hours.
"""

import argparse
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

from fedrecall import global_draws
from fedrecall.data.partitions import PARTITIONS, label_counts

STANDINS = Path(__file__).parent / "standins"
SEED = 19940817
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
CASES = [
    *((f"lda:{alpha}", "CIFAR-10", [5000] * 10, 100) for alpha in (0.1, 0.3, 0.5)),
    ("lda:0.1", "MNIST", MNIST, 100),
    ("lda:0.1", "CIFAR-100", [500] * 100, 100),
    *((f"shards:{s}", "even classes", [50] * 10, 20) for s in (2, 3, 5)),
    *((f"shards:{s}", "uneven classes", [n // 100 for n in MNIST], 20) for s in (2, 3, 5)),
]


def main() -> None:
    """Compare, and fail where anything differs."""
    parser = argparse.ArgumentParser(description="What --global-seed draws, beside the released code.")
    parser.add_argument("--code", type=Path, required=True, help="a clone of Lee-Gihun/FedNTD")
    given = parser.parse_args()
    sys.path[:0] = [str(STANDINS), str(given.code)]
    from algorithms.BaseServer import BaseServer  # type: ignore[import-not-found]
    from train_tools.preprocessing import datasetter  # type: ignore[import-not-found]

    same = True
    for spec, name, sizes, clients in CASES:
        kind, _, value = spec.partition(":")
        labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
        np.random.seed(SEED)  # noqa: NPY002
        random.seed(SEED)
        if kind == "lda":
            parts = datasetter.lda_partition(labels, clients, float(value))
        else:
            parts, _ = datasetter.sharding_partition(labels, clients, int(value))
        theirs = label_counts(labels, [parts[k] for k in range(clients)], len(sizes))
        split = PARTITIONS.make(spec).split(labels, clients, 0, global_seed=SEED)
        equal = np.array_equal(theirs, label_counts(labels, split, len(sizes)))
        same = same and equal
        print(f"{spec:9} {name:15} {clients:3} clients  {'the same' if equal else 'DIFFERENT'}")
    for share in (0.05, 0.1, 1.0):
        server = SimpleNamespace(n_clients=100, sample_ratio=share)
        with mock.patch("builtins.print"):
            drawn = [BaseServer._client_sampling(server, t).tolist() for t in range(200)]
        equal = drawn == [global_draws.clients(100, round(100 * share), t + 1) for t in range(200)]
        same = same and equal
        print(f"{share:.0%} of 100 clients in 200 rounds  {'the same' if equal else 'DIFFERENT'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
