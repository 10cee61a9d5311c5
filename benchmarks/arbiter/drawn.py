"""Our algorithms with the classes and the clients that the authors' code draws.

    fedrecall run --algorithm benchmarks/arbiter/drawn.py:NTD --partition benchmarks/arbiter/drawn.py:Dealt \\
        --dataset cifar10 --model cnn --clients 100 --sample 10 --rounds 60 --batch-size 50 \\
        --local-epochs 5 --out runs/drawn

That code has one seed for all partitions, and seeds the draw of a round's clients with the round's number,
so that every trial of its authors has met the same classes in the same rounds.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.data.partitions import Ints, Shards

SEED = 19940817


@dataclass(frozen=True)
class Dealt(Shards):
    """Shards whose classes are dealt as the authors' seed deals them; which examples they have is our own."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        classes = int(labels.max()) + 1
        dealt = list(range(classes)) * (clients * self.s // classes)
        random.Random(SEED).shuffle(dealt)
        owner = np.empty(len(labels), np.int64)
        for c in range(classes):
            holders = np.flatnonzero(np.array(dealt) == c) // self.s
            own = rng.permutation(np.flatnonzero(labels == c))
            for holder, part in zip(holders, np.array_split(own, len(holders)), strict=True):
                owner[part] = holder
        return owner


def clients(sampled: Sequence[int], round_number: int) -> list[int]:
    """As many clients as were sampled, out of 100, as the authors' code draws them."""
    drawn = np.random.RandomState(round_number - 1).choice(100, len(sampled), replace=False)
    return [int(k) for k in drawn]


@dataclass(frozen=True)
class Avg(FedAvg):
    """FedAvg with the authors' clients."""

    def arrange(self, sampled: Sequence[int], round_number: int) -> Sequence[int]:
        """The clients of this round, whoever was sampled."""
        return clients(sampled, round_number)


@dataclass(frozen=True)
class NTD(FedNTD):
    """FedNTD with the authors' clients."""

    def arrange(self, sampled: Sequence[int], round_number: int) -> Sequence[int]:
        """The clients of this round, whoever was sampled."""
        return clients(sampled, round_number)
