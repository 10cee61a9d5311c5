"""The fast backend on CPUs: persistent worker processes of one thread each.

A small network trains faster on one thread than on several, so a link of several visits is
divided among workers, the longest visit first, each worker taking the next when it is done. A link
of one visit (sequential learning) is trained in this process with all its threads. Which of the
two it is depends on the link alone, so results do not depend on the number of workers.

Of the data a worker is given the rows of the client it visits, through shared memory: the data set
is never copied. A worker that dies or stands still is replaced and its visit made again, with the
same result, because all that is random about a visit is a function of seed, round and client.
"""

from __future__ import annotations

import atexit
import errno
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from fedrecall import own_faults, own_modules, streams, trees
from fedrecall.backends.backend import Job, NotStarted, Work
from fedrecall.backends.parcels import (
    ANSWERS,
    DATA,
    DOWNS,
    MEMORIES,
    Arena,
    Channel,
    Parcel,
    Shelf,
    Unsendable,
    _anonymous,
    pack,
    packed_size,
    unpack,
)
from fedrecall.backends.places import Places, importable
from fedrecall.backends.serial import Serial
from fedrecall.backends.worker import STOPS, Failed
from fedrecall.errors import NotNow, OfMachine, UserError
from fedrecall.memories import CACHE_BYTES
from fedrecall.processors import cores
from fedrecall.training import Visit

ATTEMPTS = 3
"""How often a visit may end its worker before the run is given up."""
TICK = 0.5
"""Seconds between looks at workers that are silent."""
STILL = 120
"""Ticks without a pulse after which a worker counts as stopped. In ticks of this process, not in
seconds: when the machine sleeps or everything is suspended together, nobody is to blame."""
PATIENCE = 1800.0
"""Seconds that any visit may take."""
SLOWER = 100.0
"""By how much a visit may be slower than the slowest so far, in time a step, after that."""

_START = (
    "import sys; sys.path[:] = {path}; from fedrecall.backends.worker import nursery; nursery({descriptor})"
)


@contextmanager
def _held_back() -> Iterator[None]:
    """In this block signals to stop wait, as they go on doing in a process that is started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Gone(Exception):
    """The nursery is no more."""


@contextmanager
def _limits_told() -> Iterator[None]:
    """Say in a sentence that this process may not open or start any more."""
    try:
        yield
    except OSError as error:
        limits = {errno.EMFILE: "open files is reached: raise it (ulimit -n)"}
        limits[errno.EAGAIN] = "processes is reached: raise it (ulimit -u, or the container's)"
        limits[errno.ENOMEM] = "memory is reached: free some"
        if error.errno not in limits:
            raise
        raise (NotNow if error.errno == errno.ENOMEM else OfMachine)(
            f"the limit of {limits[error.errno]}, or use fewer workers or the serial backend, "
            "which need fewer."
        ) from error


class Nursery:
    """The process that workers are forked from: one for all backends of this process, as it takes a
    second or two to start. It ends with this process."""

    _shared: ClassVar[Nursery | None] = None
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def shared(cls) -> Nursery:
        """The one there is, or a new one if it has ended or belongs to the process that forked this one."""
        with cls._sharing:
            held = cls._shared
            if held is None or held._owner != os.getpid() or held._process.poll() is not None:
                cls._shared = held = cls()
                atexit.register(held.close)
            return held

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = _START.format(path=ascii(importable()), descriptor=number)
            with _held_back():  # Ctrl-C is sent to it as well, and may come while it imports
                self._process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    pass_fds=[number],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | WORKERS,
                )
        self._end = ours

    def fork(self, *descriptors: int) -> int:
        """The process id of a new worker that holds these descriptors."""
        pid = self._ask(0, descriptors)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def bury(self, pid: int) -> int:
        """Kill a worker if it still lives; what it died of (a signal is negative)."""
        return self._ask(pid, ())

    def close(self) -> None:
        """End it, and with it every worker."""
        self._end.close()
        if self._owner == os.getpid():
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _ask(self, order: int, descriptors: Sequence[int]) -> int:
        with self._lock:
            try:
                socket.send_fds(self._end, [struct.pack("!q", order)], descriptors)
                answer = self._end.recv(8, socket.MSG_WAITALL)
            except OSError as error:
                raise Gone from error
            except BaseException:  # interrupted: the answer would be taken for that of the next question
                self._end.close()
                raise
        if len(answer) < 8:
            raise Gone
        return int(struct.unpack("!q", answer)[0])


WORKERS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "THP_MEM_ALLOC_ENABLE": "0",
}
"""Workers' environment: one thread, and glibc keeps freed memory of a step for the next one instead of
returning its pages; then huge pages, which the command line asks for, only cost."""


class Worker:
    """One worker as this process sees it."""

    def __init__(self, nursery: Nursery, code: Places, work: Parcel):
        ours, theirs = socket.socketpair()
        pulse = _anonymous()
        try:
            os.ftruncate(pulse, 8)
            self._pulse = mmap.mmap(pulse, 8)
            with theirs:
                self.pid = nursery.fork(theirs.fileno(), pulse)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(pulse)
        self.channel = Channel(ours)
        self.down: Any = None
        self.knows: dict[bytes, Arena | Shelf] = {}
        """The shared memory that it was told of."""
        self.place: int | None = None
        """The job at work, by its place in the link; None when idle."""
        self.ready = False
        """Whether it has said that it understood the work."""
        self.since = 0.0
        self._seen, self._still = b"", 0
        self.channel.send(pack(code))
        self.channel.send(work)

    def stands_still(self) -> bool:
        """Whether the pulse has been missing for too many ticks; to be asked once a tick."""
        now = bytes(self._pulse[:8])
        self._still = 0 if now != self._seen else self._still + 1
        self._seen = now
        return self._still >= STILL


class Processes:
    """Visits side by side on the cores of this machine."""

    def __init__(self, work: Work):
        self.work = work
        self.count = work.workers or cores()
        self._serial = Serial(work)
        try:
            self._parcel = pack((work.algorithm, work.model, work.recipe, work.seed))
        except Unsendable as error:
            raise UserError(
                f"worker processes cannot load your algorithm or model: {error}; put it into a file of its "
                "own and name it as file.py:Class, or use the serial backend."
            ) from error
        # Of the files loaded by path those that a worker needs.
        needed = {
            path: own_modules.loaded_sources[path]
            for path, module in own_modules.loaded_files.items()
            if module.__name__.encode() in self._parcel.structure
        }
        self._places = Places.of(needed)
        self._workers: list[Worker] = []
        self._arenas: list[Arena] = []
        self._shelves: dict[bytes, Shelf] = {}
        self._answer_bytes = 0
        self._pace = 0.0
        self._ticked = 0.0
        with _limits_told():
            self._nursery: Nursery | None = Nursery.shared()

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs."""
        if len(jobs) < 2:
            yield from self._serial.map(jobs)
            return
        with _limits_told():
            yield from self._side_by_side(jobs)

    def _side_by_side(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        link = _Link(self.work, jobs, self._arena(len(jobs)), self._stocked(jobs))
        for worker in self._workers:
            worker.down = None  # something else may soon lie where it was
        try:
            for place in range(len(jobs)):
                while True:
                    self._hand_out(link)
                    if place in link.visits:
                        break
                    self._wait(link)
                yield link.visits.pop(place)
        finally:
            for worker in [w for w in self._workers if w.place is not None]:
                self._bury(worker)
            link.close()

    def close(self) -> None:
        """End the workers."""
        for worker in list(self._workers):
            self._bury(worker)
        if self._nursery is not None:
            self._nursery = None
            self._parcel.drop()
            self._forget(self._arenas)
            for shelf in self._shelves.values():
                shelf.close()
            self._shelves.clear()

    def _arena(self, rows: int) -> Arena | None:
        """Room for the answers of a link, once it is known how large they are.

        A round holds those of all its links, of which there may be more than files that may be open: each
        arena has room for as many as all before it.
        """
        if not self._answer_bytes:
            return None
        fit = [a for a in self._arenas if a.rows >= rows and a.row_bytes >= self._answer_bytes]
        for arena in fit:
            if arena.has_room:
                return arena
        self._forget([arena for arena in self._arenas if arena.free])
        self._arenas.append(Arena(rows, self._answer_bytes, max(1, sum(a.parts for a in fit))))
        return self._arenas[-1]

    def _forget(self, arenas: list[Arena]) -> None:
        for arena in arenas:
            arena.close()
        self._arenas = [arena for arena in self._arenas if arena not in arenas]

    def _stocked(self, jobs: Sequence[Job]) -> dict[bytes, Shelf]:
        """The shelves for what is sent in a link and for what clients remember, all large enough."""
        federation, downs = self.work.federation, {id(job.down): job.down for job in jobs}
        self._provide(DOWNS, len(downs), max(map(packed_size, downs.values())))
        if DATA not in self._shelves:
            largest = max(range(len(federation)), key=federation.size)
            self._provide(DATA, self.count, packed_size(federation.client(largest)))
        if MEMORIES not in self._shelves:
            with streams.seeded(0, "made up"):
                size = packed_size(self.work.algorithm.remember(jobs[0].down.weights))
            # As much as is kept in RAM, and a link's new ones beside its old ones.
            kept = min(len(federation), CACHE_BYTES // size + 1) if size else 0
            self._provide(MEMORIES, kept + 2 * len(jobs), size)
        return self._shelves

    def _provide(self, name: bytes, places: int, size: int) -> None:
        held = self._shelves.get(name)
        if size == 0 or (held and held.places >= places and held.size >= size):
            return
        if held:
            self._shelves.pop(name).close()
        self._shelves[name] = Shelf(name, places, size)

    def _hand_out(self, link: _Link) -> None:
        """Give every idle worker the longest visit that waits."""
        while link.waiting:
            place = link.waiting[0]
            busy = [w for w in self._workers if w.place is not None]
            # What ended a worker before may have done so for lack of memory: the last time it is alone.
            alone = any(link.ended[p] >= ATTEMPTS - 1 for p in (place, *(w.place for w in busy)))
            if busy and (alone or len(busy) >= self.count):
                return
            idle = [w for w in self._workers if w.place is None]
            if not idle:
                try:
                    idle = [self._hire()]
                except (Gone, EOFError):
                    link.stillborn()
                    self._restart()
                    link.waiting.extendleft(reversed(link.lost(self._workers)))
                    continue
            worker = idle[0]
            try:
                link.send(worker, place)
            except EOFError:  # it died idle, or at its start
                self._bury(worker)
                if not worker.ready:
                    link.stillborn()
                continue
            link.waiting.popleft()

    def _wait(self, link: _Link) -> None:
        """Take in what comes within a tick; see after those of whom nothing comes."""
        busy = [w for w in self._workers if w.place is not None]
        # No descriptor is too large for poll, which needs none itself.
        with selectors.PollSelector() as channels:
            for worker in busy:
                channels.register(worker.channel, selectors.EVENT_READ)
            speaking = [key.fileobj for key, _ in channels.select(TICK)]
        now = time.monotonic()
        tick = now - self._ticked >= TICK
        if tick:
            self._ticked = now
        for worker in busy:
            assert worker.place is not None
            place = worker.place
            if worker.channel in speaking:
                try:
                    parcel = worker.channel.receive()
                    answer = unpack(parcel, link.room(place), copied=True)
                    if isinstance(answer, Visit):
                        answer = answer._replace(memory=link.remembered(place, answer, worker))
                except EOFError:
                    self._lost(worker, link, self._bury(worker))
                    continue
                if isinstance(answer, Failed):
                    worker.place = None
                    raise_again(answer)
                if not worker.ready:
                    worker.ready = True
                    continue
                worker.place = None
                self._answer_bytes = max(self._answer_bytes, parcel.size)
                seconds = time.monotonic() - worker.since
                self._pace = max(self._pace, seconds / link.steps(place))
                link.take(place, answer)
            elif tick and (worker.stands_still() or self._too_long(worker, link.steps(place))):
                self._bury(worker)
                self._lost(worker, link, 0)

    def _too_long(self, worker: Worker, steps: int) -> bool:
        allowed = max(PATIENCE, SLOWER * self._pace * steps) if self._pace else float("inf")
        return time.monotonic() - worker.since > allowed

    def _lost(self, worker: Worker, link: _Link, status: int) -> None:
        """Have a visit made again whose worker is no more."""
        assert worker.place is not None
        link.ended[worker.place] += 1
        if link.ended[worker.place] >= ATTEMPTS:
            client = link.jobs[worker.place].client
            raise (NotNow if status == errno.ENOMEM else OfMachine)(
                f"the visit of client {client} ended its worker process {ATTEMPTS} times, the last time "
                f"{_cause(status)}: use fewer workers or smaller batches if memory ran out, or the serial "
                "backend to see what happens."
            )
        link.waiting.appendleft(worker.place)

    def _hire(self) -> Worker:
        if self._nursery is None:
            raise UserError("this backend was closed.")
        worker = Worker(self._nursery, self._places, self._parcel)
        self._workers.append(worker)
        return worker

    def _bury(self, worker: Worker) -> int:
        worker.channel.close()
        if worker in self._workers:
            self._workers.remove(worker)
        with suppress(Gone):
            if self._nursery is not None:
                return self._nursery.bury(worker.pid)
        return 0

    def _restart(self) -> None:
        """A new nursery in place of one that was killed."""
        if self._nursery is not None:
            self._nursery.close()
        self._nursery = Nursery.shared()


class _Link:
    """The jobs of one link on their way."""

    def __init__(
        self,
        work: Work,
        jobs: Sequence[Job],
        arena: Arena | None = None,
        shelves: Mapping[bytes, Shelf] = MappingProxyType({}),
    ):
        self.work, self.jobs = work, jobs
        self.arena, self.shelves = arena, shelves
        self._first_row = 0
        self._room: Tensor | None = None
        if arena:
            self._first_row, self._room = arena.lend()
        self.waiting = deque(work.longest_first(jobs))
        self.visits: dict[int, Visit] = {}
        self.ended: Counter[int | None] = Counter()
        self._stillborn = 0
        self._spares: dict[int, Tensor] = {}
        """Where on its shelf a worker will put what its client remembers."""
        self._downs: dict[int, tuple[Parcel, Tensor | None]] = {}
        self._data: dict[int, Tensor | None] = {}
        self._uses = Counter(id(job.down) for job in jobs)

    def steps(self, place: int) -> int:
        """Batches in a visit, at least one."""
        return max(1, self.work.steps(self.jobs[place]))

    def stillborn(self) -> None:
        """Count a worker, or a nursery, that died at its start; give up after too many."""
        self._stillborn += 1
        if self._stillborn > ATTEMPTS:
            raise NotStarted(
                "worker processes could not be started; their messages are above. Use the serial backend if "
                "this machine forbids them."
            ) from None

    def lost(self, workers: list[Worker]) -> list[int]:
        """The jobs of workers that ended with their nursery."""
        places = [w.place for w in workers if w.place is not None]
        for worker in workers:
            worker.channel.close()
        workers.clear()
        return places

    def room(self, place: int) -> Tensor | None:
        """Where the answer to a job is, if it is not in memory of its own."""
        return self._room[self.arena.row(place)] if self.arena and self._room is not None else None

    def send(self, worker: Worker, place: int) -> None:
        """Send a job, and what else the worker has not got yet: what the algorithm sends, the arena."""
        job = self.jobs[place]
        for name, shared in ((ANSWERS, self.arena), *self.shelves.items()):
            if shared and worker.knows.get(name) is not shared:
                worker.channel.send(shared.parcel())
                worker.knows[name] = shared
        if worker.down is not job.down:
            if id(job.down) not in self._downs:
                down, kept = self._laid(DOWNS, job.down)
                self._downs[id(job.down)] = pack(("down", down)), kept
            worker.down = None
            worker.channel.send(self._downs[id(job.down)][0])
            worker.down = job.down
        data, self._data[place] = self._laid(DATA, self.work.federation.client(job.client))
        row = self.arena.row(self._first_row + place) if self.arena else None
        memories = self.shelves.get(MEMORIES)
        memory, spare = job.memory, None
        if memories:
            memory = memories.find(memory) or memory
            self._spares.pop(place, None)  # lent to a worker that died with the job
            if lent := memories.lend():
                spare, self._spares[place] = lent
        parcel = pack(("visit", data, memory, job.round, job.client, row, spare))
        try:
            worker.channel.send(parcel)
        finally:
            parcel.drop()
        worker.place, worker.since = place, time.monotonic()

    def _laid(self, name: bytes, value: Any) -> tuple[Any, Tensor | None]:
        """Where a value lies on a shelf, and what keeps it there; the value itself if there is no room."""
        shelf = self.shelves.get(name)
        return (shelf.put(value) if shelf else None) or (value, None)

    def remembered(self, place: int, visit: Visit, worker: Worker) -> Any:
        """A client's new memory, which may stay for long, so it is not left among the answers."""
        if place in self._spares:
            return unpack(worker.channel.receive(), self._spares.pop(place), copied=True)
        return trees.detached(visit.memory)

    def take(self, place: int, visit: Visit) -> None:
        """Keep a result."""
        self.visits[place] = visit
        del self._data[place]
        down = self.jobs[place].down
        self._uses[id(down)] -= 1
        if not self._uses[id(down)]:
            self._drop(id(down))

    def close(self) -> None:
        """Give back the memory of what was sent."""
        for number in list(self._downs):
            self._drop(number)

    def _drop(self, number: int) -> None:
        parcel, _ = self._downs.pop(number, (None, None))
        if parcel:
            parcel.drop()


def raise_again(failed: Failed) -> None:
    """Raise what a worker raised, with where it did so."""
    error = failed.error
    if not isinstance(error, UserError):
        vars(error).pop("__notes__", None)  # which are in the text
        error.add_note(f"{own_faults.ELSEWHERE}{failed.text.rstrip()}")
    raise error


def _cause(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return f"by {signal.Signals(-status).name}"
        return f"by signal {-status}"
    if status == errno.ENOMEM:
        return "because memory ran out"
    return f"with exit code {status}" if status else "without a sign of life"
