"""Randomness as data: every random draw comes from a stream named by what it is for.

A stream is keyed by a seed and a path of integers and words such as ``("visit", round,
client)``. Nothing else enters, so who computes a draw, in which order, and who else takes
part cannot change it.
"""

import hashlib
import os
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand
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
def seeded(seed: int | None, *path: int | str) -> Iterator[None]:
    """Let what draws inside from the streams that a whole program shares (torch's own, on the device that it
    uses, NumPy's and Python's) draw this path's numbers.

    Without a seed they are numbers that nobody can tell. Users' code draws: noise in `finish`, a mixture of
    examples in `loss`. On a CPU the streams are as they were afterwards, but for the second of a pair of
    normal numbers that NumPy may hold; of a GPU's own nobody else draws here.
    """
    drawn = secrets.randbits(63) if seed is None else key(seed, *path)
    kept, pythons, numpys = torch.get_rng_state(), random.getstate(), mtrand.get_bit_generator()
    spare = _SPARE.pop() if _SPARE else np.random.MT19937()  # to copy the state of NumPy's takes much longer
    try:
        mtrand.set_bit_generator(spare)
        mtrand.seed(None if seed is None else drawn % 2**32)
        random.seed(None if seed is None else drawn)
        if seed is None:
            torch.set_rng_state(_secret_state())
        else:
            torch.default_generator.manual_seed(drawn)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(drawn)  # which takes all bits, as a CPU's generator does not
        yield
    finally:
        torch.set_rng_state(kept)
        random.setstate(pythons)
        mtrand.set_bit_generator(numpys)
        _SPARE.append(spare)


_SPARE: list[np.random.MT19937] = []
"""Generators for `seeded`, which nobody else uses; as many as were ever needed within one another."""


class Places(NamedTuple):
    """How far the shared streams are, within `seeded`: torch's on a CPU, NumPy's and Python's."""

    torch: Tensor
    numpy: Any
    python: Any


def places() -> Places:
    """How far they are."""
    return Places(torch.get_rng_state(), mtrand.get_state(), random.getstate())


def go_on(at: Places) -> None:
    """Go on from there."""
    torch.set_rng_state(at.torch)
    mtrand.set_state(at.numpy)
    random.setstate(at.python)


def moved(at: Places) -> bool:
    """Whether torch's or NumPy's has been drawn from; Python's may be by any thread of the program."""
    now = places()
    numpys = zip(at.numpy, now.numpy, strict=True)
    return not (torch.equal(at.torch, now.torch) and all(np.array_equal(*both) for both in numpys))


def _secret_state() -> Tensor:
    """A state of torch's CPU generator of which every word is the operating system's.

    It is a Mersenne twister: what it can be seeded with are 32 bits, which can all be tried.
    """
    state = torch.Generator().manual_seed(0).get_state()  # that new words are made before the first is drawn
    words = np.frombuffer(os.urandom(4 * _WORDS), dtype=np.uint32).astype(np.int64)
    state[_HEAD : _HEAD + 8 * _WORDS].view(torch.int64).copy_(torch.from_numpy(words))
    return state


_WORDS = 624
_HEAD = 24
"""Bytes before them in a generator's state: its seed, two flags and a place."""


def secret_uniforms(count: int) -> Tensor:
    """Numbers in (0, 1), float64, that nobody can compute: made of the operating system's random bytes."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
    return torch.from_numpy((bits + 0.5) * 2.0**-52)  # exact: with one more bit the largest would round to 1
