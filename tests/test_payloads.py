"""What arrives is held against what is declared."""

import pytest
import torch

from fedrecall.errors import Malformed
from fedrecall.payloads import check

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
