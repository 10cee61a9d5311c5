"""Randomness as data: every random draw comes from a stream named by what it is for.

A stream is keyed by a seed and a path of integers and words such as ``("visit", round,
client)``. Nothing else enters, so who computes a draw, in which order, and who else takes
part cannot change it.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def key(seed: int, *path: int | str) -> int:
    """A 63-bit integer that depends on the seed and the whole path."""
    text = "/".join([str(int(seed)), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_stream(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for this path: the same draws whatever the device that uses them.

    PyTorch's CPU generator takes the lower 32 bits of the key: two of very many paths may draw the same.
    """
    return torch.Generator().manual_seed(key(seed, *path))


def numpy_stream(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for this path."""
    return np.random.default_rng(key(seed, *path))


@contextmanager
def seeded(seed: int, *path: int | str) -> Iterator[None]:
    """Let what draws from torch's own streams inside draw this path's numbers, on the device that it uses.

    Users' code does: noise in `finish`, a mixture of examples in `loss`. On a CPU the stream is as it was
    afterwards; of a GPU's own nobody else draws here.
    """
    kept, drawn = torch.get_rng_state(), key(seed, *path)
    torch.default_generator.manual_seed(drawn)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(drawn)
    try:
        yield
    finally:
        torch.set_rng_state(kept)


def secret_uniforms(count: int) -> Tensor:
    """Numbers in (0, 1), float64, that nobody can compute: made of the operating system's random bytes."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
    return torch.from_numpy((bits + 0.5) * 2.0**-52)  # exact: with one more bit the largest would round to 1
