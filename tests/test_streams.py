import math
import random

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from fedrecall import streams


def draws(*path, seed=0):
    return torch.rand(4, generator=streams.torch_stream(seed, *path)).tolist()


def test_a_stream_depends_on_seed_and_the_whole_path_and_on_nothing_else():
    first = draws("visit", 3, 7)
    torch.rand(100)
    assert draws("visit", 3, 7) == first
    others = [draws("visit", 7, 3), draws("visit", 37), draws("sample", 3, 7), draws("visit", 3, 7, seed=1)]
    assert len({tuple(d) for d in [first, *others]}) == 5


def test_numpy_streams_are_keyed_alike():
    a = streams.numpy_stream(0, "x").random(3)
    assert (a == streams.numpy_stream(0, "x").random(3)).all()
    assert (a != streams.numpy_stream(0, "y").random(3)).any()


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_secret_numbers_are_inside_their_interval_whatever_bytes_they_are_made_of(byte, monkeypatch):
    monkeypatch.setattr(streams.os, "urandom", lambda count: byte * count)
    (number,) = streams.secret_uniforms(1).tolist()
    assert 0 < number < 1
    assert math.isfinite(torch.special.ndtri(torch.tensor(number, dtype=torch.float64)))


def shared():
    return torch.rand(()).item(), mtrand.rand(), random.random()


def test_the_shared_streams_draw_what_the_path_says_and_go_on_as_if_nobody_had():
    torch.manual_seed(1)
    mtrand.seed(1)
    random.seed(1)
    alone = [shared(), shared()]
    torch.manual_seed(1)
    mtrand.seed(1)
    random.seed(1)
    between = [shared()]
    with streams.seeded(3, "a", 2):
        first, second = shared(), shared()
        with streams.seeded(3, "b"):
            shared()
        third = shared()
    with streams.seeded(None):
        secret = shared()
    assert [*between, shared()] == alone
    with streams.seeded(3, "a", 2):
        assert [shared(), shared(), shared()] == [first, second, third]
    assert len({*alone, first, second, third, secret}) == 6
    with streams.seeded(3, "b", 2):
        assert not {*first} & {*shared()}


def test_numpys_stream_may_be_one_that_takes_no_seed():
    own = mtrand.get_bit_generator()
    try:
        mtrand.set_bit_generator(np.random.PCG64(1))
        with streams.seeded(3):
            inside = shared()
        after = mtrand.rand()
    finally:
        mtrand.set_bit_generator(own)
    assert after == np.random.RandomState(np.random.PCG64(1)).rand()
    with streams.seeded(3):
        assert shared() == inside


def test_a_place_in_the_shared_streams_is_gone_on_from():
    with streams.seeded(3):
        at = streams.places()
        assert not streams.moved(at)
        first = shared()
        assert streams.moved(at)
        streams.go_on(at)
        assert shared() == first
    for draw in (torch.rand, lambda _: mtrand.randn()):
        with streams.seeded(3):
            draw(1)
            at = streams.places()
            draw(1)  # of NumPy the second of a pair, which is there already
            assert streams.moved(at)
