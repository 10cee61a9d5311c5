"""What the long tests find goes into one file, from which docs/reliability.md is made."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest
import torch

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reliability.json"


class Figures:
    """Numbers by section; what a partial run does not measure stays as it was."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def add(self, section: str, **numbers: Any) -> None:
        """Keep what was found."""
        self.found.setdefault(section, {"measured": _machine()}).update(numbers)
        self.save()  # at once: what comes after may be interrupted

    def save(self) -> None:
        """Write them beside those of before."""
        held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        held |= self.found
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


@pytest.fixture(scope="session")
def figures() -> Figures:
    """Where a test says what it found."""
    return Figures()
