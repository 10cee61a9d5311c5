import math

import pytest
import torch

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
