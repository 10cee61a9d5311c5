"""How many processors this process may use; it needs no more than Python, so that it can be asked first."""

import math
import os
from collections.abc import Iterator

OWN = "/proc/self/cgroup"
"""The control groups that this process is in."""
GROUPS = "/sys/fs/cgroup"


def cores() -> int:
    """Those it is bound to, or fewer: a container's share of their time, or what a Slurm task asked for."""
    task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    asked = [int(task)] if task.isdecimal() else []
    return max(1, min([bound(), *asked, *_shares()]))


def bound() -> int:
    """Those that the system may run it on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shares() -> Iterator[int]:
    """How many processors' time the control groups that this process is in may take, rounded up."""
    for line in _words(OWN, "\n"):
        controllers, _, place = line.partition(":")[2].partition(":")
        folder = os.path.join(GROUPS, controllers)  # of version 2 there are none, and all in one folder
        parts = [part for part in place.split("/") if part]
        for depth in range(len(parts) + 1):  # the least of all above it counts, too
            here = os.path.join(folder, *parts[:depth])
            if controllers:
                share = [*_words(f"{here}/cpu.cfs_quota_us"), *_words(f"{here}/cpu.cfs_period_us")]
            else:
                share = _words(f"{here}/cpu.max")
            if len(share) == 2 and share[0].isdecimal():  # without a limit it is "max", or -1
                yield math.ceil(int(share[0]) / int(share[1]))


def _words(path: str, mark: str | None = None) -> list[str]:
    """What a file of the system says, if it is there."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip().split(mark)
    except (OSError, UnicodeDecodeError):
        return []
