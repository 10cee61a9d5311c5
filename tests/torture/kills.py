"""Ending a run at a chosen moment, and looking at what it leaves behind."""

import contextlib
import json
import os
import signal
import subprocess
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.torture.watch import processes

import fedrecall
from fedrecall import backends, experiment, streams, trees
from fedrecall import config as configs
from fedrecall.records import RunFolder
from fedrecall.reports import report
from fedrecall.reports.runs import Run

BASE: dict[str, Any] = {
    "dataset": "synthetic:classes=4,train=160,test=80,size=8",
    "model": "mlp:8",
    "partition": "shards:2",
    "clients": 8,
    "sample": 3,
    "rounds": 4,
    "seed": 3,
    "workers": 2,
    "measures": ["locals"],
    "training.local_epochs": 2,
    "training.batch_size": 7,
}
ALGORITHMS = ("fedntd", "fedseq", "scaffold")
"""A parallel, a sequential and a stateful one."""
MARK = "FEDRECALL_TORTURE"


def run(folder: Path | None, algorithm: str, backend: str, **changes: Any) -> Any:
    """The run, from the start or from where it was ended."""
    values = {**BASE, "algorithm": algorithm, "backend": backend, **changes}
    if backend == "processes" and algorithm == "fedseq":
        values["chains"] = 2  # a single chain does not need workers
    return fedrecall.run(folder, resume=folder is not None, **values)


class Moments:
    """Counts what a run does, and kills its process at one of them."""

    def __init__(self, fatal: int = -1):
        self.fatal, self.count = fatal, 0
        self.names: list[str] = []

    def tick(self, name: str) -> None:
        """Something happens."""
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        self.names.append(name)

    def around(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function with a moment before and one after."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.tick(f"before {name}")
            found = fn(*args, **kwargs)
            self.tick(f"after {name}")
            return found

        return called

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the moments of writing (half a file too), training and evaluating."""
        places: list[tuple[Any, str, Any]] = []

        def patch(owner: Any, name: str, new: Any) -> None:
            places.append((owner, name, getattr(owner, name)))
            setattr(owner, name, new)

        whole = os.fsync

        def half(descriptor: int) -> None:
            """The file's second half never reached the disk."""
            if self.count == self.fatal:
                with contextlib.suppress(OSError):  # a folder has no halves
                    size, name = os.fstat(descriptor).st_size, os.readlink(f"/proc/self/fd/{descriptor}")
                    # What was appended to before has its old lines on disk already.
                    os.ftruncate(descriptor, size // 2 if name.endswith(".tmp") else max(size - 20, 0))
            self.tick("half a file")
            whole(descriptor)
            self.tick("after fsync")

        patch(os, "fsync", half)
        patch(os, "replace", self.around("replace", os.replace))
        patch(Path, "unlink", self.around("unlink", Path.unlink))
        patch(experiment, "evaluate", self.around("evaluate", experiment.evaluate))
        for name in ("serial", "processes"):
            backend = backends._load(name)
            patch(backend, "map", _ticking(backend.map, self))
        try:
            yield
        finally:
            for owner, name, old in reversed(places):
                setattr(owner, name, old)


def _ticking(mapped: Callable[..., Any], moments: Moments) -> Callable[..., Any]:
    def called(self: Any, jobs: Any) -> Any:
        for visit in mapped(self, jobs):
            moments.tick("training")
            yield visit
        moments.tick("trained")

    return called


def forked(fn: Callable[[], Any], seconds: float | None = None) -> int:
    """Call it in a process of its own, killed after some seconds if it lives; how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        said = os.dup(2)
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            fn()
            code = 0
        except BaseException:
            os.write(said, traceback.format_exc().encode())
        finally:
            os._exit(code)
    if seconds is not None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def readable(folder: Path) -> None:
    """A run folder of whatever age can be read."""
    held = RunFolder(folder)
    if not held.started:
        return
    configs.make(held.config())
    records = held.metrics()
    assert [r["round"] for r in records] == list(range(1, len(records) + 1))
    kept = [c.round_number for c in held.checkpoints()]
    assert all(number <= len(records) for number in kept)
    if records:
        assert len(records) - 1 <= max(kept, default=0)  # nothing but the round is lost
        assert Run(folder).finished in (True, False)


def clean(folder: Path) -> None:
    """A finished run's folder holds nothing that it does not need."""
    assert not list(folder.rglob("*.tmp"))
    named = {n for c in RunFolder(folder).checkpoints() for n in c.memories.values()}
    assert {p.name for p in (folder / "memories").glob("*")} == named if named else True
    stems = {p.stem for p in (folder / "checkpoints").iterdir()}
    assert stems == {"round-000003", "round-000004"}


def same(found: Any, expected: Any) -> bool:
    """Whether two runs ended with the same parameters and the same records, seconds aside."""
    a, b = trees.arrays(found.weights), trees.arrays(expected.weights)
    equal = a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a)
    records = [[{k: v for k, v in r.items() if k != "seconds"} for r in x.history] for x in (found, expected)]
    return equal and json.dumps(records[0]) == json.dumps(records[1])


def killed(folder: Path, algorithm: str, backend: str, moment: int, seconds: float | None = None) -> int:
    """Start or go on, and die at this moment, or after these seconds; how it ended."""

    def play() -> None:
        with Moments(moment).counted():
            run(folder, algorithm, backend)

    return forked(play, seconds)


def count_moments(algorithm: str, backend: str, folder: Path) -> list[str]:
    """What a whole run does, by name."""
    moments = Moments()
    with moments.counted():
        run(folder, algorithm, backend)
    return moments.names


def campaign(tmp: Path, algorithm: str, backend: str, kills: int, key: int) -> dict[str, int]:
    """Kill runs so many times at keyed moments, half of them again while they go on; prove each resume."""
    mark = f"torture-{uuid.uuid4().hex}"
    os.environ[MARK] = mark
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    draw = streams.numpy_stream(key, "kills", algorithm, backend)
    since = time.monotonic()
    expected = run(None, algorithm, backend)
    names = count_moments(algorithm, backend, tmp / "counted")
    assert {"half a file", "before replace", "after replace", "before unlink", "trained"} <= set(names)
    lasting = (time.monotonic() - since) / 2
    done: dict[str, int] = {}
    number = 0
    try:
        while sum(done.values()) < kills:
            folder = tmp / f"{algorithm}-{backend}-{number}"
            number += 1
            for again in range(2):
                moment = int(draw.integers(len(names)))
                late = float(draw.random()) * lasting if draw.random() < 0.3 else None
                ended = killed(folder, algorithm, backend, -1 if late is not None else moment, late)
                assert ended in (-signal.SIGKILL, 0), ended
                if ended:
                    what = names[moment] if late is None and not again else "any time"
                    done[what] = done.get(what, 0) + 1
                readable(folder)
            assert same(run(folder, algorithm, backend), expected)
            clean(folder)
        assert gone(mark)
        if before or os.path.isdir("/dev/shm"):
            assert not {n for n in set(os.listdir("/dev/shm")) - before if "fedrecall" in n or "torch" in n}
    finally:
        del os.environ[MARK]
    return done


def gone(mark: str, but: int | None = None) -> bool:
    """Whether no process of a run is left, that of this process' own nursery aside."""
    from fedrecall.backends.processes import Nursery

    held = Nursery._shared
    own = {held._process.pid} if held is not None and held._owner == os.getpid() else set()
    own |= {child for parent in own for child in children(parent)}
    until = time.monotonic() + 20
    while left := set(processes(mark)) - own:
        if time.monotonic() > until:
            raise AssertionError(f"processes {left} are left")
        time.sleep(0.05)
    return True


def children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def killed_reports(tmp: Path, kills: int, key: int) -> int:
    """Kill the writing of a report: it is whole afterwards or not there."""
    run(tmp / "run", "fedntd", "serial")
    from fedrecall import files

    page = report.build([Run(tmp / "run")]).encode()
    draw = streams.numpy_stream(key, "kills", "report")
    done = 0
    for number in range(kills):
        out = tmp / f"report-{number}.html"
        moment = int(draw.integers(4))

        def play(out: Path = out, moment: int = moment) -> None:
            with Moments(moment).counted():
                files.write(out, report.build([Run(tmp / "run")]).encode())

        done += forked(play) == -signal.SIGKILL
        assert not out.exists() or len(out.read_bytes()) == len(page)
        readable(tmp / "run")
    return done


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A disk of so many bytes at this folder where that is permitted; whether it is one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def free(folder: Path) -> int:
    """Bytes left on a folder's disk."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
