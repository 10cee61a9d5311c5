"""What arrives is held against what is declared."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.errors import Malformed
from fedrecall.models.model import Model
from fedrecall.models.networks import build
from fedrecall.payloads import check, declared, declared_down, kept

DECLARED = {"model": torch.zeros(3, 2), "teachers": torch.zeros(0, 2)}


def test_what_is_as_declared_is_taken_and_teachers_may_grow():
    for teachers in (0, 4):
        given = {"model": torch.ones(3, 2), "teachers": torch.ones(teachers, 2)}
        assert check(given, DECLARED, "it", growing=True)["teachers"].shape == (teachers, 2)
    with pytest.raises(Malformed, match=r"'teachers' has shape \[4, 2\], declared is \[0, 2\]"):
        check(given, DECLARED, "it")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("model", torch.ones(0, 2), "has shape"),
        ("model", torch.ones(3, 2, 1), "has shape"),
        ("teachers", torch.ones(4, 3), "has shape"),
        ("teachers", torch.ones(4), "has shape"),
        ("model", torch.ones(3, 2).double(), "float64, declared is torch.float32"),
        ("model", torch.full((3, 2), torch.inf), "NaN or Inf"),
        ("more", torch.ones(1), "undeclared"),
    ],
)
def test_what_is_not_is_refused(name, given, said):
    sound = {"model": torch.ones(3, 2), "teachers": torch.ones(4, 2)}
    with pytest.raises(Malformed, match=said):
        check({**sound, name: given}, DECLARED, "it", growing=True)


@dataclass(frozen=True)
class Drawing(FedAvg):
    def start(self, weights):
        torch.rand(3)
        return super().start(weights)

    def remember(self, weights):
        return Drawn(torch.rand(0))

    def wrap(self, down):
        torch.rand(3)
        return down


class Drawn(NamedTuple):
    number: torch.Tensor


def test_finding_out_what_travels_leaves_the_users_own_stream_alone():
    torch.manual_seed(3)
    model = Model(build("mlp:4", (5,), 2))
    before = torch.get_rng_state()
    declared_down(Drawing(), model, (5,), 2)
    declared(Drawing(), model, (5,), 2)
    kept(Drawing(), model, (5,), 2)
    assert torch.equal(before, torch.get_rng_state())
