"""What the command line does before and around every command."""

import subprocess
import sys
from pathlib import Path

import pytest

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

FLAGS = """
import sys
sys.argv = ["fedrecall", "--version"]
from fedrecall.cli import main
try:
    main()
except SystemExit:
    pass
import torch
large, inside = torch.ones(10_000_000), False
for line in open("/proc/self/smaps"):
    word = line.split()[0]
    if "-" in word:
        begin, end = (int(part, 16) for part in word.split("-"))
        inside = begin <= large.data_ptr() < end
    elif inside and word == "VmFlags:":
        print(line)
"""


@pytest.mark.skipif(
    not THP.exists() or "[never]" in THP.read_text(),
    reason="this system has no huge pages, whoever asks",
)
def test_large_tensors_ask_for_huge_pages():
    done = subprocess.run([sys.executable, "-c", FLAGS], capture_output=True, text=True, check=True)
    assert "hg" in done.stdout.split("VmFlags:")[1].split()


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "fedrecall", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "compare" in done.stdout


def test_a_lack_of_memory_is_a_sentence():
    line = ["run", "--model", "mlp:10000000000000", "--rounds", "1", "--backend", "serial"]
    done = subprocess.run([sys.executable, "-m", "fedrecall", *line], capture_output=True, text=True)
    assert done.returncode == 2
    assert "memory ran out" in done.stderr
    assert "Traceback" not in done.stderr
