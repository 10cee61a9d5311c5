"""Settings of the whole test suite."""

import os

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
