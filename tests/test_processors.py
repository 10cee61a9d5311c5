"""How many processors may be used, as the system's files say it."""

import os
import subprocess
import sys

import pytest

from fedrecall import processors


@pytest.fixture(autouse=True)
def of_eight(monkeypatch, tmp_path):
    """Eight processors, of which nothing else takes any away but what a test writes."""
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setattr(processors, "bound", lambda: 8)
    monkeypatch.setattr(processors, "OWN", str(tmp_path / "own"))
    monkeypatch.setattr(processors, "GROUPS", str(tmp_path / "groups"))


def written(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("6400000 100000", 8),
    ],
)
def test_a_containers_share_of_the_processors(tmp_path, share, expected):
    (tmp_path / "own").write_text("0::/\n")
    written(tmp_path / "groups", cpu__max=share)
    assert processors.cores() == expected


def test_a_share_is_no_more_than_that_of_the_groups_above(tmp_path):
    (tmp_path / "own").write_text("0::/a/b/c\n")
    written(tmp_path / "groups" / "a", cpu__max="300000 100000")
    written(tmp_path / "groups" / "a" / "b", cpu__max="max 100000")
    written(tmp_path / "groups" / "a" / "b" / "c", cpu__max="500000 100000")
    assert processors.cores() == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("400000", 4)])
@pytest.mark.parametrize("place", ["", "docker/0a1b"])  # as it is called outside, where it is not seen
def test_a_share_by_the_first_version_of_control_groups(tmp_path, quota, expected, place):
    (tmp_path / "own").write_text("4:memory:/x\n3:cpu,cpuacct:/docker/0a1b\n0::/\n")
    files = {"cpu__cfs_quota_us": quota, "cpu__cfs_period_us": "100000"}
    written(tmp_path / "groups" / "cpu,cpuacct" / place, **files)
    assert processors.cores() == expected


@pytest.mark.parametrize(("asked", "expected"), [("3", 3), ("16", 8), ("", 8), ("some", 8), ("0", 1)])
def test_what_a_task_asked_for(monkeypatch, asked, expected):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)
    assert processors.cores() == expected


@pytest.mark.parametrize(
    ("before", "given", "said"),
    [
        ("", {}, "3"),
        ("", {"OMP_NUM_THREADS": "5"}, "5"),
        ("", {"SLURM_CPUS_PER_TASK": "8"}, "None"),  # all of them
        ("import torch; ", {}, "None"),  # it would do nothing more
    ],
)
def test_pytorch_takes_no_more_threads_than_may_be_used(before, given, said):
    eight = "import os; os.sched_getaffinity = lambda _: range(8); os.cpu_count = lambda: 8; "
    others = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", f"{eight}{before}import fedrecall; print(os.environ.get('OMP_NUM_THREADS'))"],
        env={**others, "SLURM_CPUS_PER_TASK": "3", **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == said
