"""Workers killed, stopped or out of memory again and again: every visit as if nothing had been."""

import itertools
import mmap
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.backends.test_processes import Roomy, alive, gone, jobs, same, work

from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.backends import processes
from fedrecall.backends.processes import Processes
from fedrecall.backends.serial import Serial

pytestmark = pytest.mark.slow

TIMES = 10
CGROUPS = (  # where, the file of its limit, the file that counts kills
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
)


@dataclass(frozen=True)
class Hungry(FedNTD):
    """Needs, and touches, 200 MB for a moment, fresh from the system every time."""

    def prepare(self, model, down, memory, data):
        with mmap.mmap(-1, 200 << 20) as room:
            room.write(b"1" * len(room))
        return super().prepare(model, down, memory, data)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def small_group(room: int) -> Iterator[tuple[Callable[[int], None], Callable[[], int]]]:
    """Put a process where the kernel kills it when it takes more than this; how often that happened."""
    for root, limit, events in CGROUPS:
        group = root / f"fedrecall-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(room))
        except OSError:  # a cgroup without the memory controller
            group.rmdir()
            continue

        def add(pid: int, group: Path = group) -> None:
            (group / "cgroup.procs").write_text(str(pid))

        def kills(group: Path = group, events: str = events) -> int:
            lines = dict(line.split() for line in (group / events).read_text().splitlines())
            return int(lines["oom_kill"])

        try:
            yield add, kills
        finally:
            until = time.monotonic() + 10
            while (group / "cgroup.procs").read_text() and time.monotonic() < until:
                time.sleep(0.05)
            group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here, which needs root; the short form limits address space")


def test_the_kernel_kills_a_worker_for_its_memory(one_thread, figures):
    w = work(Hungry(), workers=2)
    backend = Processes(w)
    expected = list(Serial(w).map(jobs(w)))
    try:
        same(backend.map(jobs(w)), expected)
        with small_group(100 << 20) as (add, kills):
            for number in range(1, TIMES + 1):
                poor = backend._workers[number % 2].pid
                add(poor)
                same(backend.map(jobs(w)), expected)
                assert gone([poor])
                assert kills() == number
    finally:
        backend.close()
    figures.add("workers/out of memory, killed by the kernel", times=TIMES, same=True)


def _starve(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))


@pytest.mark.parametrize(
    ("what", "harm"),
    [
        ("killed", lambda pid: os.kill(pid, signal.SIGKILL)),
        ("stopped", lambda pid: os.kill(pid, signal.SIGSTOP)),
        ("refused memory", _starve),
    ],
)
def test_harmed_in_the_middle_of_a_link(what, harm, one_thread, monkeypatch, figures):
    monkeypatch.setattr(processes, "TICK", 0.1)
    monkeypatch.setattr(processes, "STILL", 30)
    w = work(Roomy(), workers=2)
    backend = Processes(w)
    expected = list(Serial(w).map(jobs(w)))
    try:
        for after in itertools.islice(itertools.cycle(range(1, 4)), TIMES):
            found = backend.map(jobs(w))
            got = [next(found) for _ in range(after)]
            pids = [worker.pid for worker in backend._workers]
            harm(pids[after % len(pids)])
            got += list(found)
            same(got, expected)
            same(backend.map(jobs(w)), expected)  # nor does what comes after notice
            assert not alive(pids[after % len(pids)])
    finally:
        backend.close()
    figures.add(f"workers/{what}", times=TIMES, same=True)
