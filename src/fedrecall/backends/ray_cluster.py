"""Visits on a Ray cluster: actors of one thread each, on every node that has room.

The training data are put into Ray's object store once; every node fetches one copy, which all its
actors read where it lies. What the algorithm sends is put once for each distinct message of a
round. The longest visit starts first, an actor takes the next when it is done, and a result is
passed on as soon as it and those before it have come.

An actor that dies, alone or with its node, is replaced, and its visit is made again with the same
result, because all that is random about a visit is a function of seed, round and client. Actors
stay for the next run of the same process, since starting one takes longer than many a round; what
they hold of a run is freed when it ends.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch

from fedrecall import own_modules, streams, trees
from fedrecall.backends.backend import Job, Work
from fedrecall.backends.parcels import Folded, Unsendable, fold, unfold
from fedrecall.backends.places import Places
from fedrecall.backends.processes import ATTEMPTS, PATIENCE, SLOWER, raise_again
from fedrecall.backends.worker import Failed, told, unsent
from fedrecall.errors import OfMachine, UserError, lacks_memory
from fedrecall.processors import cores
from fedrecall.specs import POSITIVE
from fedrecall.training import Visit, visit

TICK = 1.0
"""Seconds between looks at actors that are silent."""
FREEING = 15.0
"""Seconds that another run's CPUs may take to become free after it has ended."""
STARTING = 300.0
"""Seconds without any actor at work in which one must have started."""
PROCESS_BYTES = 512 * 2**20
"""What an actor takes before it holds any model: Python with torch."""
MODELS_HELD = 8
"""Weights, gradients, momentum, teacher, upload and what is underway between them."""
_GRAIN = 2**28  # runs of similar models can use each other's actors


@dataclass(frozen=True)
class Options:
    """Which cluster, and what an actor may take of it."""

    address: str = "auto"
    """The cluster: auto (the one that runs here or that RAY_ADDRESS names), local (one that is started for
    this process) or the address of its head, HOST:PORT."""
    memory: Annotated[float | None, POSITIVE] = None
    """GiB of memory reserved for each actor; by default 0.5 and eight times the model."""


class Actor:
    """What runs on the cluster: makes visits for one run at a time."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._fixed: Any = None
        self._down: tuple[int, Any] = (-1, None)

    def take_up(self, code: Places, work: Folded, data: Folded) -> Folded:
        """Begin with a run."""
        try:
            sys.path.extend(path for path in code.path if path not in sys.path)
            code.load()  # where a user's own classes are defined
            self._fixed = (*unfold(work), unfold(data, copy=False))
        except Exception as error:
            return _answer(_told(error))
        return _answer(None)

    def put_down(self) -> None:
        """Free what belongs to the run."""
        self._fixed, self._down = None, (-1, None)

    def visit(self, number: int, down: Folded, memory: Folded, round_number: int, client: int) -> Folded:
        """Make a visit; ``number`` tells one message of the server from another."""
        try:
            if self._down[0] != number:
                self._down = (-1, None)  # two models at once are not needed
                self._down = (number, unfold(down))
            algorithm, model, recipe, seed, federation = self._fixed
            made: Any = visit(
                algorithm,
                model,
                recipe,
                federation.client(client),
                self._down[1],
                unfold(memory),
                seed=seed,
                round_number=round_number,
                client=client,
            )
        except Exception as error:
            made = _told(error)
        return _answer(made)


def _told(error: Exception) -> Failed:
    _leave_without_memory(error)
    return told(error)


def _leave_without_memory(error: Exception) -> None:
    """End this process if there is no memory left for it: another one tries."""
    if lacks_memory(error):
        os._exit(errno.ENOMEM)


def _answer(made: Any) -> Folded:
    try:
        return fold(made)
    except Exception as error:
        _leave_without_memory(error)
        return fold(unsent(error))


class Member:
    """One actor as this process sees it."""

    def __init__(self, ray: Any, memory: int):
        cls = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Actor)
        self.memory = memory
        self.handle = cls.options(memory=memory, scheduling_strategy="SPREAD").remote()
        self.ready = False
        """Whether it has said that it understood the work."""
        self.place: int | None = None
        """The job at work, by its place in the link; None when idle."""
        self.answer: Any = None
        """Ray's reference to what it will have said."""
        self.link: Any = None
        """The link in which it was last seen alive."""
        self.since = 0.0


class Cluster:
    """This process's connection to Ray, and the actors that wait for a run."""

    _shared: ClassVar[Cluster | None] = None

    def __init__(self, ray: Any, asked: str, ours: bool):
        self.ray, self.asked, self.ours = ray, asked, ours
        self.session = session(ray)
        self.idle: list[Member] = []

    @classmethod
    def shared(cls, address: str) -> Cluster:
        """The connection there is, if it is the one asked for, or a new one."""
        try:
            ray = importlib.import_module("ray")
        except ImportError:
            raise UserError(
                "the ray backend needs Ray, which is not installed: pip install 'fedrecall[ray]'."
            ) from None
        held = cls._shared
        if ray.is_initialized():
            if held is None or held.session != session(ray):
                cls._shared = held = cls(ray, "", ours=False)  # the caller has connected: that is the cluster
            elif held.ours and held.asked != address:
                raise UserError(
                    f"this process is connected to Ray as {held.asked!r}, not {address!r}: it can be in one "
                    "cluster only; call ray.shutdown() before."
                )
            return held
        connect(ray, address)
        cls._shared = held = cls(ray, address, ours=True)
        return held

    def room(self, memory: int) -> tuple[int, int, int]:
        """(CPUs, actors that CPUs and memory allow together, actors for which both are free now)."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        cpus = [int(n.get("CPU", 0)) for n in nodes]
        fit = [min(c, int(n.get("memory", 0)) // memory) for c, n in zip(cpus, nodes, strict=True)]
        free = self.ray.available_resources()
        now = min(int(free.get("CPU", 0)), int(free.get("memory", 0)) // memory)
        return sum(cpus), sum(fit), now + len(self.idle)

    def hire(self, memory: int) -> Member:
        """An actor that waits, or a new one."""
        return self.idle.pop() if self.idle else Member(self.ray, memory)

    def park(self, member: Member) -> None:
        """Keep an actor for the next run."""
        member.ready, member.place, member.link = False, None, None
        member.answer = member.handle.put_down.remote()
        self.idle.append(member)

    def kill(self, member: Member) -> None:
        """End an actor."""
        with suppress(self.ray.exceptions.RayError, ValueError):
            self.ray.kill(member.handle)


def session(ray: Any) -> tuple[str, str]:
    """What tells this connection from any other: every cluster numbers its jobs from one."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def connect(ray: Any, address: str) -> None:
    """Join the cluster at this address, or start one."""
    if address.startswith("ray://"):
        raise UserError(
            f"address = {address!r} is Ray's client proxy, through which data cannot be shared: start the "
            "run on a node of the cluster (ray job submit) with address=auto."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the default-to-be, without a warning
    settings: dict[str, Any] = {"logging_level": "warning", "log_to_driver": False}
    if address == "local":
        settings |= {"num_cpus": cores(), "include_dashboard": False}
    elif address != "auto" and ":" not in address:
        address = f"{address}:6379"
    with _own_signals():
        try:
            ray.init(address=address, **settings)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(
                f"there is no Ray cluster at address = {address!r} ({reason}): start one with `ray start "
                "--head`, or have one started for this run with --backend ray:local."
            ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: Ray puts its own in the place of SIGTERM's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class RayCluster:
    """Visits side by side on the CPUs of a cluster."""

    def __init__(self, work: Work, options: Options | None = None):
        options = options or Options()
        self.work = work
        weights = work.model.initial()
        held = MODELS_HELD * trees.size_in_bytes(weights)
        with streams.seeded(0, "made up"):
            held += 4 * trees.size_in_bytes(work.algorithm.remember(weights))
        need = options.memory * 2**30 if options.memory else PROCESS_BYTES + held
        self._memory = -(-int(need) // _GRAIN) * _GRAIN
        code = Places.of(own_modules.loaded_sources)
        try:
            fixed = fold((work.algorithm, work.model, work.recipe, work.seed))
            data = fold(_training_data(work.federation))
        except Unsendable as error:
            raise UserError(
                f"actors cannot load your algorithm or model: {error}; put it into a file of its own and "
                "name it as file.py:Class, or use the serial backend."
            ) from error
        self._cluster = Cluster.shared(options.address)
        self._ray = self._cluster.ray
        self.count = self._size()
        self._check_store(data)
        self._orders = [self._ray.put(part) for part in (code, fixed, data)]
        self._members: list[Member] = []
        self._numbers = itertools.count()
        self._pace = 0.0
        self._closed = False

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs."""
        link = _Link(self.work, jobs)
        try:
            for place in range(len(jobs)):
                while True:
                    self._hand_out(link)
                    if place in link.visits:
                        break
                    self._wait(link)
                yield link.visits.pop(place)
        finally:
            for member in [m for m in self._members if m.place is not None]:
                self._dismiss(member)

    def close(self) -> None:
        """Free what belongs to this run; its actors wait for another."""
        for member in self._members:
            if member.ready and member.place is None:
                self._cluster.park(member)
            else:
                self._cluster.kill(member)
        self._members, self._orders, self._closed = [], [], True

    def _size(self) -> int:
        """How many actors: as many as were asked for, or else as the cluster has room for."""
        for member in [m for m in self._cluster.idle if m.memory < self._memory]:
            self._cluster.kill(member)
            self._cluster.idle.remove(member)
        asked, each = self.work.workers, f"{self._memory / 2**30:.1f} GiB of memory"
        until = time.monotonic() + FREEING
        while True:
            cpus, fit, free = self._cluster.room(self._memory)
            if asked is not None and asked > cpus:
                raise UserError(
                    f"workers = {asked}, but the Ray cluster has {cpus} CPUs: ask for fewer, or add nodes."
                )
            if fit < (asked or 1):
                raise UserError(
                    f"the Ray cluster has room for {fit} actors of {each} each, not for {asked or 1}: ask "
                    "for fewer workers, add nodes, or say with --backend ray:memory=GIB that they need less."
                )
            if free >= (asked or fit) or (time.monotonic() > until and free and asked is None):
                return min(asked or fit, free)
            if time.monotonic() > until:
                raise UserError(
                    f"{free} of the Ray cluster's {cpus} CPUs are free with {each} each, and {asked or 1} "
                    "are needed: wait for the others' work to end, or ask for fewer workers."
                )
            time.sleep(0.2)

    def _check_store(self, data: Folded) -> None:
        stores = [n["Resources"].get("object_store_memory", 0) for n in self._ray.nodes() if n["Alive"]]
        if data.tensors.nbytes > 0.8 * min(stores):
            raise UserError(
                f"the training data take {data.tensors.nbytes / 2**20:.0f} MiB and a node's object store has "
                f"{min(stores) / 2**20:.0f}: start Ray's nodes with a larger --object-store-memory."
            )

    def _hand_out(self, link: _Link) -> None:
        """Give every idle actor the longest visit that waits, and hire while visits wait for actors."""
        if self._closed:
            raise OfMachine("this backend was closed.")
        for member in [m for m in self._members if m.ready and m.place is None]:
            if not link.waiting or self._must_wait(link):
                return
            self._send(member, link, link.waiting.popleft())
        starting = sum(not m.ready for m in self._members)
        while len(self._members) < self.count and starting < len(link.waiting):
            member = self._cluster.hire(self._memory)
            member.answer = member.handle.take_up.remote(*self._orders)
            member.link, member.since = None, time.monotonic()
            self._members.append(member)
            starting += 1

    def _must_wait(self, link: _Link) -> bool:
        """Whether the next visit ended its actors for lack of memory, perhaps: the last time it is alone."""
        busy = [m.place for m in self._members if m.place is not None]
        return bool(busy) and any(link.ended[p] >= ATTEMPTS - 1 for p in (link.waiting[0], *busy))

    def _send(self, member: Member, link: _Link, place: int) -> None:
        job = link.jobs[place]
        if id(job.down) not in link.downs:
            link.downs[id(job.down)] = (next(self._numbers), self._ray.put(fold(job.down)))
        member.answer = member.handle.visit.remote(
            *link.downs[id(job.down)], fold(job.memory), job.round, job.client
        )
        member.place, member.since = place, time.monotonic()

    def _wait(self, link: _Link) -> None:
        """Take in what comes within a tick; see after those of whom nothing comes."""
        pending = {m.answer: m for m in self._members if m.place is not None or not m.ready}
        answered, _ = self._ray.wait(list(pending), num_returns=1, timeout=TICK)
        for answer in answered:
            member = pending[answer]
            try:
                made = unfold(self._ray.get(answer))
            except self._ray.exceptions.RayTaskError as error:
                raise _explained(error) from None
            except self._ray.exceptions.RayError as error:
                self._lost(member, link, error)
                continue
            finally:
                member.answer = None
            link.alive, member.link = time.monotonic(), link
            place, member.place = member.place, None
            if isinstance(made, Failed):
                if place is None:
                    self._dismiss(member)
                raise_again(made)
            if place is None:
                member.ready = True
            else:
                self._pace = max(self._pace, (time.monotonic() - member.since) / link.steps(place))
                link.take(place, made)
        if not answered:
            self._look_after(link)

    def _look_after(self, link: _Link) -> None:
        now = time.monotonic()
        busy = [m for m in self._members if m.place is not None]
        for member in busy:
            assert member.place is not None
            allowed = max(PATIENCE, SLOWER * self._pace * link.steps(member.place))
            if self._pace and now - member.since > allowed:
                self._lost(member, link, None)
        if not busy and now - max(link.alive, *(m.since for m in self._members)) > STARTING:
            _, fit, free = self._cluster.room(self._memory)
            raise OfMachine(
                f"Ray started no actor within {STARTING:.0f} s: the cluster now has room for {fit} of "
                f"{self._memory / 2**30:.1f} GiB of memory each, and {free} are free. Look at `ray status`."
            )

    def _lost(self, member: Member, link: _Link, error: Exception | None) -> None:
        """Have a visit made again whose actor is no more."""
        place, hired_here = member.place, not member.ready or member.link is link
        self._dismiss(member)
        if place is None:
            link.stillborn += 1
            if link.stillborn > ATTEMPTS * self.count:
                raise OfMachine(f"Ray could not start actors: {_first_lines(error)}")
            return
        link.waiting.appendleft(place)
        if not hired_here:  # it may have died long before it was asked
            return
        link.ended[place] += 1
        if link.ended[place] >= ATTEMPTS:
            raise OfMachine(
                f"the visit of client {link.jobs[place].client} ended its actor {ATTEMPTS} times, the last "
                f"time so: {_first_lines(error)} Use fewer workers or smaller batches if memory ran out, or "
                "the serial backend to see what happens."
            )

    def _dismiss(self, member: Member) -> None:
        self._cluster.kill(member)
        member.answer = None
        if member in self._members:
            self._members.remove(member)


class _Link:
    """The jobs of one link on their way."""

    def __init__(self, work: Work, jobs: Sequence[Job]):
        self.work, self.jobs = work, jobs
        self.waiting = deque(work.longest_first(jobs))
        self.visits: dict[int, Visit] = {}
        self.ended: Counter[int | None] = Counter()
        self.stillborn = 0
        self.alive = time.monotonic()
        """When an actor was last heard of."""
        self.downs: dict[int, tuple[int, Any]] = {}
        """What the algorithm sends, by identity: a number of its own, and Ray's reference to it."""
        self._uses = Counter(id(job.down) for job in jobs)

    def steps(self, place: int) -> int:
        """Batches in a visit, at least one."""
        return max(1, self.work.steps(self.jobs[place]))

    def take(self, place: int, visit: Visit) -> None:
        """Keep a result, and no longer what has been sent to all who were to get it."""
        self.visits[place] = visit._replace(memory=trees.detached(visit.memory))
        down = id(self.jobs[place].down)
        self._uses[down] -= 1
        if not self._uses[down]:
            self.downs.pop(down, None)


def _training_data(federation: Any) -> Any:
    """The federation without what clients never see: test split and the server's own examples."""
    train, test = federation.dataset.train, federation.dataset.test
    dataset = replace(federation.dataset, train=train, test=test.part(slice(0)))
    return replace(federation, dataset=dataset, auxiliary_part=None)


def _explained(error: Any) -> OfMachine:
    return OfMachine(
        f"an actor could not be used: {_first_lines(error)} fedrecall and its requirements must be installed "
        "on every node of the cluster, in the same versions."
    )


def _first_lines(error: Exception | None) -> str:
    if error is None:
        return "it gave no sign of life."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:1] + lines[-1:] if len(lines) > 1 else lines).rstrip(".") + "."
