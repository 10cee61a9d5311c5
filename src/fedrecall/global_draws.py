"""What codes draw that seed Python's and NumPy's global generators: FedML's, FedNTD's and others.

They fix who holds how much of which class by one seed, and the clients of a round by the round's number,
so that every trial of theirs meets the same. Here the same numbers come from generators of our own, which
NumPy and Python promise to keep as they are; which examples of a class a client gets is fedrecall's draw.
"""

import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def clients(population: int, count: int, round_number: int) -> list[int]:
    """The clients of a round, in their order; the first round's seed is 0."""
    drawn = np.random.RandomState(round_number - 1).choice(population, count, replace=False)
    return [int(k) for k in drawn]


def shards(sizes: Ints, clients: int, each: int, seed: int) -> Ints:
    """Examples of each class at each client, ``[C, N]``, where everybody takes as many shards in turn.

    Their classes are shuffled; of a class's shards, the first of which are larger by one example where they
    do not come out even, a client takes any that is left.
    """
    parts = clients * each // len(sizes)
    classes = list(range(len(sizes))) * parts
    random.Random(seed).shuffle(classes)
    generator = np.random.RandomState(seed)
    left = [[int(n) // parts + (i < n % parts) for i in range(parts)] for n in sizes]
    counts = np.zeros((len(sizes), clients), np.int64)
    for place, c in enumerate(classes):
        counts[c, place // each] += left[c].pop(generator.choice(len(left[c]), replace=False))
    return counts


def dirichlet(sizes: Ints, clients: int, alpha: float, balance: bool, seed: int) -> Callable[[], Ints]:
    """Draws, one after the other, of the examples of each class at each client, ``[C, N]``."""
    generator = np.random.RandomState(seed)

    def draw() -> Ints:
        counts = np.zeros((len(sizes), clients), np.int64)
        held = np.zeros(clients, np.int64)
        for c, size in enumerate(sizes):
            generator.permutation(int(size))  # which examples; it moves the generator on
            shares = generator.dirichlet(np.full(clients, alpha))
            if balance:
                shares *= held < sizes.sum() / clients
            if not shares.sum() > 0:  # all to clients that may have no more, or not a number: of no use
                return np.zeros_like(counts)
            shares /= shares.sum()
            cuts = (np.cumsum(shares) * size).astype(np.int64)[:-1]
            counts[c] = np.diff(cuts, prepend=0, append=size)
            held += counts[c]
        return counts

    return draw
