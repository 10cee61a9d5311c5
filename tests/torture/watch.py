"""Watching what code does to the machine: writes outside a folder, processes, connections, time."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 5
"""Of computing, after which a call counts as hanging."""
WAITING = 60
"""Seconds after which a call counts as hanging that computes nothing: many, for the machine may be busy."""

_allowed: tuple[str, ...] | None = None
_found: list[str] = []
_hooked = False
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.rename": (1, 3),
    "os.symlink": (1, 2),
    "os.link": (1, 3),
}
"""Of each event, which argument is the path and which the folder that it is relative to."""
_NEVER = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class", "socket.connect")


class Outside(AssertionError):
    """Something was done that was not allowed."""


class Hangs(BaseException):
    """It took too long; nobody's `except Exception` is to take it for a refusal."""


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    if _allowed is None:
        return
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, int) or not (flags & _WRITES if mode is None else set(mode) & set("wax+")):
            return
        _may_write(path, event)
    elif event in _PATHS:
        path, folder = (arguments[i] for i in _PATHS[event])
        _may_write(path if folder == -1 else Path(f"/proc/self/fd/{folder}") / os.fsdecode(path), event)
    elif event in _NEVER:
        _found.append(f"{event} {arguments}")
    elif event == "subprocess.Popen":
        command = arguments[1]
        if list(command[:1]) != ["git"]:  # made.json names the revision
            _found.append(f"{event} {command}")


def _may_write(path: Any, event: str) -> None:
    if isinstance(path, int):
        return
    whole = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
    if whole.startswith("/dev") or "__pycache__" in whole:
        return
    if not any(whole == a or whole.startswith(a + os.sep) for a in _allowed or ()):
        _found.append(f"{event} {os.fsdecode(path)!r}")


@contextmanager
def watched(*folders: Path) -> Iterator[None]:
    """Fail if anything is written elsewhere, another program started, or it takes too long."""
    global _allowed, _hooked
    if not _hooked:
        sys.addaudithook(_look)  # which stays, idle, until the end of the process
        _hooked = True
    _found.clear()
    temporary, tempfile.tempdir = tempfile.tempdir, str(folders[0])
    _allowed = tuple(os.path.realpath(folder) for folder in folders)
    try:
        with limited():
            yield
    finally:
        _allowed, tempfile.tempdir = None, temporary
    if _found:
        raise Outside("; ".join(_found))


@contextmanager
def limited() -> Iterator[None]:
    """Raise Hangs after some seconds of computing, or many of waiting."""
    start = time.thread_time()

    def stop(signum: int, _frame: Any) -> None:
        if signum == signal.SIGALRM:
            raise Hangs("of waiting")
        left = SECONDS - (time.thread_time() - start)
        if left <= 0:
            raise Hangs("of computing")
        signal.setitimer(signal.ITIMER_VIRTUAL, left)  # the clock went for other threads too

    old = {s: signal.signal(s, stop) for s in (signal.SIGVTALRM, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in old.items():
            signal.signal(signum, handler)


def alive(pid: int) -> bool:
    """Whether a process lives and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes(mark: str) -> list[int]:
    """The processes, this one aside, that have a word in their command line or environment."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            text = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in text and alive(int(place.name)):
            found.append(int(place.name))
    return found


def resident() -> float:
    """MB of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))
