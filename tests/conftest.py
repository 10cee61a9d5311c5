"""Settings of the whole test suite."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import settings

# Small networks are slower on several threads, and many times slower beside other programs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # a console made with it would keep to it


# The same examples every time: a test that fails, fails for everybody.
settings.register_profile("keyed", derandomize=True)
settings.load_profile("keyed")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """What a test draws of torch does not depend on the tests before it, nor on the hour."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is as wide on every terminal."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The images that data sets come to have on a device that is none of the processor's."""
    from fedrecall.data.store import Dataset

    made: list[torch.Tensor] = []

    def to(self: Dataset, device: Any) -> Dataset:
        if any(self.train.x is x for x in made):  # they are there
            return self
        made.append(self.train.x.clone())
        return replace(self, train=replace(self.train, x=made[-1]))

    monkeypatch.setattr(Dataset, "to", to)
    return made
