"""A real Ray cluster of two nodes on this machine, for the tests that need one."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}


@contextlib.contextmanager
def two_nodes() -> Iterator[Any]:
    """Two nodes of one CPU each, and this process connected to the first; nothing outlives it."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray
    from ray.cluster_utils import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="fr", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Ray notes the cluster's address here and does not make the folder.
        patch.setenv("RAY_TMPDIR", folder)
        Path(folder, "ray").mkdir()
        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "temp_dir": folder})
        started: set[int] = set()
        try:
            cluster.add_node(**NODE)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
            yield cluster
        finally:
            started = descendants(os.getpid(), "ray")
            ray.shutdown()
            cluster.shutdown()
        assert gone(started), "Ray left processes behind"


def descendants(pid: int, word: str = "") -> set[int]:
    """All processes below this one whose command has the word in it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
    found, waiting = set(), [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_text()
                # Ray puts itself on the path that the workers of `processes` are started with.
                if word in command and "fedrecall.backends.worker" not in command:
                    found.add(child)
    return found


def gone(pids: set[int], seconds: float = 60) -> bool:
    """Whether these processes end within this time."""

    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    return not any(map(alive, pids))
