"""What the command line does before and around every command."""

import subprocess
import sys
from pathlib import Path

import pytest

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

FAULTS = """
import resource, sys
sys.argv = ["fedrecall", "--version"]
from fedrecall.cli import main
if {first}:
    try:
        main()
    except SystemExit:
        pass
import torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, first: bool) -> int:
    """Pages that the system clears for 40 MB, with the command line's `main` called first or not."""
    code = FAULTS.format(first=first)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(
    not THP.exists() or "[madvise]" not in THP.read_text(),
    reason="this system gives huge pages to all or to none, whoever asks",
)
def test_large_tensors_are_in_huge_pages():
    # Where memory is in pieces the system has few huge pages to give: the best of some tries.
    assert min(faults(first=True) for _ in range(3)) < faults(first=False) / 2


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "fedrecall", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "compare" in done.stdout


def test_a_lack_of_memory_is_a_sentence():
    line = ["run", "--model", "mlp:10000000+10000000", "--rounds", "1", "--backend", "serial"]
    done = subprocess.run([sys.executable, "-m", "fedrecall", *line], capture_output=True, text=True)
    assert done.returncode == 2
    assert "memory ran out" in done.stderr
    assert "Traceback" not in done.stderr
