"""Processes return what serial returns, whatever happens to them."""

import contextlib
import errno
import fcntl
import os
import pickle
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import own_faults, own_modules, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg, Memory
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.algorithms.scaffold import Scaffold
from fedrecall.backends import choose, open_backend, parcels, places, processes
from fedrecall.backends import worker as workers
from fedrecall.backends.backend import Job, Work
from fedrecall.backends.parcels import pack, unpack
from fedrecall.backends.processes import Processes
from fedrecall.backends.serial import Serial
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.federation import Federation
from fedrecall.data.store import Dataset, Split
from fedrecall.errors import NotNow, OfMachine, UserError, of_one_run
from fedrecall.models.model import Model
from fedrecall.models.networks import build
from fedrecall.training import Recipe

SIZES = (12, 40, 7, 25, 31)


def work(algorithm: FedAvg | None = None, dtype: torch.dtype = torch.float64, **settings: Any) -> Work:
    stream = torch.Generator().manual_seed(0)
    n = sum(SIZES)
    x = torch.randint(0, 256, (n, 1, 8, 8), generator=stream).to(torch.uint8)
    y = torch.randint(0, 4, (n,), generator=stream)
    split = Split(x, y)
    dataset = Dataset("toy", ("a", "b", "c", "d"), split, split, torch.tensor([0.5]), torch.tensor([0.3]))
    parts = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    torch.manual_seed(1)
    model = Model(build("cnn:16", (1, 8, 8), 4).to(dtype))
    federation = Federation(dataset, parts, Augmentation.parse("crop:1+flip"), dtype)
    recipe = Recipe(local_epochs=2, batch_size=10, lr=0.05)
    return Work(algorithm or FedNTD(), model, recipe, federation, 3, **settings)


EVERYONE = tuple(range(len(SIZES)))


def jobs(w: Work, clients: Sequence[int] = EVERYONE, number: int = 1) -> list[Job]:
    weights = w.model.initial()
    down = w.algorithm.broadcast(w.model, w.algorithm.start(weights), None)
    return [Job(g, k, number, down, w.algorithm.remember(weights)) for g, k in enumerate(clients)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker has it, so that serial is the same bit for bit
    yield
    torch.set_num_threads(before)


@pytest.fixture
def opened() -> Iterator[Any]:
    made: list[Processes] = []

    def make(w: Work) -> Processes:
        made.append(Processes(w))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def same(found: Any, expected: Any) -> None:
    found, expected = list(found), list(expected)
    assert [v.client for v in found] == [v.client for v in expected]
    for a, b in zip(found, expected, strict=True):
        assert a.examples == b.examples
        assert a.loss == b.loss
        assert a.failure == b.failure
        left, right = trees.arrays((a.up, a.memory)), trees.arrays((b.up, b.memory))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[n], right[n]) and left[n].dtype == right[n].dtype for n in left)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_for_bit_what_serial_returns_in_the_order_of_the_jobs(workers, dtype, opened):
    w = work(dtype=dtype, workers=workers)
    backend = opened(w)
    for number in (1, 2):
        asked = jobs(w, [2, 0, 4, 1, 3], number)
        same(backend.map(asked), Serial(w).map(asked))


def test_answers_lie_in_rows_that_are_used_again_when_nobody_holds_them(opened):
    w = work(Scaffold(), workers=2)
    backend = opened(w)
    asked = [jobs(w, number=number) for number in range(1, 6)]
    list(backend.map(asked[0]))  # how large they are is known after it
    for now in asked[1:3]:
        found = list(backend.map(now))
        stacked = trees.arrays(trees.stack([v.up for v in found], copy=False))
        first = trees.arrays(found[0].up)
        assert all(leaf.data_ptr() == first[name].data_ptr() for name, leaf in stacked.items())
        (arena,) = backend._arenas
        assert not arena.free
        memories = [v.memory for v in found]
        del found, stacked, first
        assert arena.free
    held = list(backend.map(asked[3]))
    same(backend.map(asked[4]), Serial(w).map(asked[4]))
    assert len(backend._arenas) == 2
    same(held, Serial(w).map(asked[3]))
    for memory, visit in zip(memories, Serial(w).map(asked[2]), strict=True):
        torch.testing.assert_close(trees.arrays(memory), trees.arrays(visit.memory), rtol=0, atol=0)


def test_answers_that_outgrow_their_rows_or_are_more_get_other_rows(opened):
    w = work(workers=2)
    backend = opened(w)
    same(backend.map(jobs(w, [0, 1])), Serial(w).map(jobs(w, [0, 1])))
    backend._answer_bytes //= 2  # as if those had been smaller
    for clients in ([0, 1], [0, 1], EVERYONE, [3, 4]):
        same(backend.map(jobs(w, clients)), Serial(w).map(jobs(w, clients)))
        assert len(backend._arenas) == 1
    assert backend._arenas[0].rows == len(EVERYONE)
    assert backend._arenas[0].row_bytes == backend._answer_bytes


def test_the_links_of_a_long_chain_need_few_open_files(opened):
    w = work(workers=2)
    backend = opened(w)
    list(backend.map(jobs(w, [0, 2])))
    before = len(os.listdir("/dev/fd"))
    for number in (1, 2):  # what a round holds of its links goes with it
        asked = [jobs(w, [0, 2], number) for _ in range(40)]
        held = [list(backend.map(link)) for link in asked]
        assert len(os.listdir("/dev/fd")) - before < 16
        arenas = list(backend._arenas)
        expected = list(Serial(w).map(asked[0]))
        for found in held:  # nobody wrote where something lies
            same(found, expected)
        one = trees.arrays(trees.stack([v.up for v in held[-1]], copy=False))
        assert all(t.data_ptr() == trees.arrays(held[-1][0].up)[n].data_ptr() for n, t in one.items())
        del held, found, one
        assert all(arena.free for arena in backend._arenas)
    assert backend._arenas == arenas  # used again


CHAINS = """
import resource
import fedrecall

resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
settings = dict(dataset="synthetic:train=400", model="mlp:4", clients=100, sample=1.0, chains=2)
there, here = (
    fedrecall.run(backend=b, workers=2, rounds=1, partition="iid", progress=False, **settings)
    for b in ("processes", "serial")
)
assert [r["loss"] for r in there.history] == [r["loss"] for r in here.history]
"""


def test_chains_of_many_clients_are_played_where_few_files_may_be_open(tmp_path):
    command = [sys.executable, "-c", CHAINS]
    limits = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=limits, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


class Scribbler(Scaffold):
    """Writes over the memory that it was given, unless it is the first."""

    def finish(self, model, weights, anchor, memory, data, sgd):
        found = super().finish(model, weights, anchor, memory, data, sgd)
        for tensor in memory.variate.values():
            if tensor.any():
                tensor.fill_(7.0)
        return found


def remembering(w: Work, backend: Any, rounds: int, clients: Sequence[int] = EVERYONE) -> list[list[Any]]:
    """Rounds in which every client's memory is that of the round before."""
    asked, found = jobs(w, clients), []
    for number in range(1, rounds + 1):
        asked = [job._replace(round=number) for job in asked]
        found.append(list(backend.map(asked)))
        asked = [job._replace(memory=v.memory) for job, v in zip(asked, found[-1], strict=True)]
    return found


def test_what_clients_remember_stays_on_the_shelf_and_takes_no_more_places_than_there_are_memories(opened):
    w = work(Scaffold(), workers=2)
    backend = opened(w)
    expected = remembering(w, Serial(w), 3)
    found = remembering(w, backend, 3)
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    shelf = backend._shelves[parcels.MEMORIES]
    assert len(shelf._lent) == 3 * len(EVERYONE)
    assert all(shelf.find(v.memory) for row in found for v in row)
    assert shelf.find((found[0][0].memory, found[1][0].memory)) is None  # in two places
    assert shelf.find({n: t.T for n, t in found[0][0].memory.variate.items() if t.dim() == 2}) is None
    del found[:2]
    assert len(shelf._lent) == len(EVERYONE)
    same(found[0], expected[2])  # nobody wrote where something lies
    del found, one, other
    assert not shelf._lent


def test_a_full_shelf_or_memories_that_outgrow_it_cost_no_more_than_copies(opened):
    w = work(Scaffold(), workers=2)
    expected = remembering(w, Serial(w), 3)
    small = opened(w)
    small._shelves[parcels.MEMORIES] = few = parcels.Shelf(parcels.MEMORIES, 2, 10**6)
    outgrown = opened(w)
    outgrown._shelves[parcels.MEMORIES] = tight = parcels.Shelf(parcels.MEMORIES, 20, 100)
    for backend in (small, outgrown):
        for one, other in zip(remembering(w, backend, 3), expected, strict=True):
            same(one, other)
    assert len(few._free) + len(few._lent) == 2
    assert len(tight._free) == 20


class Diary(NamedTuple):
    length: torch.Tensor
    pages: dict[str, torch.Tensor]


class Growing(FedAvg):
    """Remembers nothing at first, and a model from the first visit on."""

    def remember(self, params):
        return Diary(torch.tensor(0), {})

    def finish(self, model, weights, anchor, memory, data, sgd):
        up, _ = super().finish(model, weights, anchor, memory, data, sgd)
        return up, Diary(memory.length + 1, weights.params)


def test_memories_that_outgrow_their_shelf_keep_no_file_open(opened):
    w = work(Growing(), workers=2)
    backend = opened(w)
    remembering(w, backend, 2)  # the nursery, the workers, the rows for answers
    before = len(os.listdir("/dev/fd"))
    clients = 4 * EVERYONE
    found = remembering(w, backend, 2, clients)
    assert len(os.listdir("/dev/fd")) - before < len(clients) / 2
    for one, other in zip(found, remembering(w, Serial(w), 2, clients), strict=True):
        same(one, other)


def test_what_is_held_of_the_first_answers_keeps_no_file_open(opened):
    w = work(workers=2)
    backend = opened(w)
    held = list(backend.map(jobs(w, 4 * EVERYONE)))  # their size was not known, so they had no rows
    before = len(os.listdir("/dev/fd"))
    del held
    assert before - len(os.listdir("/dev/fd")) < 3


@pytest.mark.skipif(sys.platform != "linux", reason="files of another process are Linux's")
def test_a_worker_lets_go_of_rows_that_were_replaced(opened):
    w = work(workers=1)
    backend = opened(w)
    asked, held = jobs(w), []
    for _ in range(6):
        list(backend.map(asked))
        held.append(len(os.listdir(f"/proc/{backend._workers[0].pid}/fd")))
        backend._forget(list(backend._arenas))  # the next ones will be others
    assert held[-1] <= held[1]


def test_what_was_sent_once_may_be_sent_again_after_its_place_went_to_something_else(opened):
    w = work(workers=2)
    backend = opened(w)
    first = jobs(w)
    for scale in (0.5, 0.6, 0.7, 0.8):
        other = trees.transform(lambda t, scale=scale: t * scale, first[0].down)
        asked = [job._replace(down=other) if job.client % 2 else job for job in first]
        same(backend.map(asked), Serial(w).map(asked))


def test_memories_outlive_the_workers_that_wrote_them(opened):
    w = work(Scaffold(), workers=2)
    backend = opened(w)
    expected = remembering(w, Serial(w), 4)
    asked = jobs(w)
    for number, right in enumerate(expected, start=1):
        asked = [job._replace(round=number) for job in asked]
        found = backend.map(asked)
        got = [next(found)]
        os.kill(backend._workers[number % 2].pid, signal.SIGKILL)
        got += list(found)
        same(got, right)
        asked = [job._replace(memory=v.memory) for job, v in zip(asked, got, strict=True)]
    del found, got
    assert len(backend._shelves[parcels.MEMORIES]._lent) == len(EVERYONE)


def test_a_worker_cannot_write_over_what_a_client_remembers(opened):
    w = work(Scribbler(), workers=2)
    backend = opened(w)
    (visits,) = remembering(w, backend, 1)
    assert all(backend._shelves[parcels.MEMORIES].find(visit.memory) for visit in visits)
    before = [trees.detached(v.memory) for v in visits]
    again = [job._replace(round=2, memory=v.memory) for job, v in zip(jobs(w), visits, strict=True)]
    with pytest.raises(UserError, match=r"`finish` changes memory/variate/.* in place"):
        list(backend.map(again))
    for kept, visit in zip(before, visits, strict=True):
        assert all(torch.equal(kept.variate[n], t) for n, t in visit.memory.variate.items())
        assert not any(bool((t == 7.0).all()) for t in visit.memory.variate.values())


def test_longest_visit_first():
    w = work()
    link = processes._Link(w, jobs(w, [2, 0, 4, 1, 3]))
    assert [SIZES[link.jobs[place].client] for place in link.waiting] == sorted(SIZES, reverse=True)


def test_a_killed_worker_is_replaced_and_its_visit_made_again(opened):
    w = work(workers=2)
    backend = opened(w)
    asked = jobs(w)
    same(backend.map(asked), Serial(w).map(asked))
    first = {worker.pid for worker in backend._workers}
    found = backend.map(asked)
    got = [next(found)]
    for worker in list(backend._workers):
        os.kill(worker.pid, signal.SIGKILL)
    got += list(found)
    same(got, Serial(w).map(asked))
    same(backend.map(asked), Serial(w).map(asked))  # one that was idle is found out when it is next asked
    assert not first & {worker.pid for worker in backend._workers}


def test_a_stopped_worker_is_replaced(opened, monkeypatch):
    monkeypatch.setattr(processes, "TICK", 0.1)
    monkeypatch.setattr(processes, "STILL", 30)
    w = work(workers=1)
    backend = opened(w)
    asked = jobs(w)
    list(backend.map(asked))
    stopped = backend._workers[0].pid
    os.kill(stopped, signal.SIGSTOP)
    same(backend.map(asked), Serial(w).map(asked))
    assert not alive(stopped)


@dataclass(frozen=True)
class Roomy(FedNTD):
    def prepare(self, model, down, memory, data):
        torch.empty(1 << 28)  # 1 GB, in address space only
        return super().prepare(model, down, memory, data)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_worker_without_memory_is_replaced_and_its_visit_made_again(opened):
    w = work(Roomy(), workers=2)
    backend = opened(w)
    asked = jobs(w)
    same(backend.map(asked), Serial(w).map(asked))
    poor = backend._workers[0].pid
    resource.prlimit(poor, resource.RLIMIT_AS, (1 << 20, 1 << 20))  # less than it has: nothing more
    same(backend.map(asked), Serial(w).map(asked))
    assert not alive(poor)
    assert len(backend._workers) == 2


@dataclass(frozen=True)
class Solitary(FedAvg):
    """Ends its process where another visit is at work already, as want of memory would."""

    place: str = ""

    def prepare(self, model, down, memory, data):
        mine = open(self.place, "w")  # noqa: SIM115 (held until the visit ends)
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(7)
        time.sleep(0.2)
        mine.close()
        return super().prepare(model, down, memory, data)


def test_the_last_time_a_visit_is_tried_it_is_alone(opened, tmp_path):
    w = work(Solitary(str(tmp_path / "place")), workers=2)
    asked = jobs(w)
    same(opened(w).map(asked), Serial(w).map(asked))


def test_a_visit_has_time_by_its_steps_and_by_the_slowest_so_far(opened):
    w = work(workers=1)
    backend = opened(w)
    asked = jobs(w, [1, 1, 1])
    list(backend.map(asked))
    backend._pace, since = 0.0, time.monotonic()
    list(backend.map(asked))
    assert 0 < backend._pace <= (time.monotonic() - since) / w.recipe.steps(SIZES[1])  # in time a step
    (worker,) = backend._workers
    backend._pace = 2.0
    for waited, number, late in (1700, 1, False), (1900, 1, True), (1900, 10, False), (2100, 10, True):
        worker.since = time.monotonic() - waited
        assert backend._too_long(worker, number) is late
    backend._pace = 0.0  # nothing is known yet
    assert not backend._too_long(worker, 1)


@contextlib.contextmanager
def full_table() -> Iterator[None]:
    """This process may open no file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_may_be_as_large_as_they_get(opened):
    """As in a process that holds many files or connections, a notebook or a service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1300:
        pytest.skip("fewer files may be open here than it takes")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))
    try:
        with contextlib.ExitStack() as held:
            for _ in range(1100):
                held.enter_context(open(os.devnull))
            w = work(workers=2)
            same(opened(w).map(jobs(w)), Serial(w).map(jobs(w)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("number", "said"), [(errno.EAGAIN, "ulimit -u"), (errno.EMFILE, "ulimit -n")])
def test_a_limit_at_the_start_of_workers_is_a_sentence(number, said, opened, monkeypatch):
    def refuse(*_, **__):
        raise OSError(number, "not available")

    monkeypatch.setattr(processes.Nursery, "_shared", None)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(UserError, match=said):
        opened(work(Scaffold(), workers=2))


@pytest.mark.parametrize(
    ("number", "said", "kind"),
    [(errno.EAGAIN, "ulimit -u", OfMachine), (errno.ENOMEM, "limit of memory", NotNow)],
)
def test_a_fork_that_fails_is_a_sentence(number, said, kind, opened, monkeypatch):
    def refuse():
        raise OSError(number, "not available")

    ours, theirs = socket.socketpair()
    with ours, open(os.devnull, "r+b") as nowhere, monkeypatch.context() as here:
        here.setattr(os, "fork", refuse)
        for name in ("signal", "pthread_sigmask"):  # this is no process of its own
            here.setattr(signal, name, lambda *_: None)
        here.setattr(workers.gc, "freeze", lambda: None)
        socket.send_fds(ours, [struct.pack("!q", 0)], [nowhere.fileno()] * 2)
        ours.shutdown(socket.SHUT_WR)
        workers.nursery(theirs.detach())
        (answer,) = struct.unpack("!q", ours.recv(8))
    assert answer == -number
    w = work(workers=2)
    with monkeypatch.context() as here:
        here.setattr(processes.Nursery, "_ask", lambda self, order, descriptors: answer)
        with pytest.raises(UserError, match=said) as caught:
            list(opened(w).map(jobs(w)))
    assert caught.type is kind
    same(opened(w).map(jobs(w)), Serial(w).map(jobs(w)))


def test_what_comes_with_memory_is_not_taken_without_it():
    here, there = map(parcels.Channel, socket.socketpair())
    parcel = pack({"a": torch.ones(1000)})
    here.send(parcel)
    with full_table(), pytest.raises(OSError, match="may not open more files") as caught:
        there.receive()
    assert caught.value.errno == errno.EMFILE
    with pytest.raises(pickle.UnpicklingError, match="without the memory"):
        unpack(parcel._replace(descriptor=-1))
    parcel.drop()
    here.close()
    there.close()


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_the_limit_of_open_files_ends_the_run_in_a_sentence(rounds, opened):
    w = work(Scaffold(), workers=2)
    backend = opened(w)
    list(opened(w).map(jobs(w)))  # the nursery and whatever torch opens once
    for _ in range(rounds):
        list(backend.map(jobs(w)))
    with full_table(), pytest.raises(UserError, match=r"the limit of open files is reached: .*ulimit -n"):
        list(backend.map(jobs(w)))
    same(backend.map(jobs(w)), Serial(w).map(jobs(w)))


def test_answers_are_not_made_up_where_the_limit_of_open_files_is_reached_in_between(opened):
    w = work(workers=1)
    asked = jobs(w, [1, 4, 3, 0, 2])  # longest first, so that many are left when the first has come
    found = opened(w).map(asked)  # in a first link every answer comes in memory of its own
    got = [next(found)]
    with full_table(), pytest.raises(UserError, match="the limit of open files"):
        list(found)
    same(got, list(Serial(w).map(asked[:1])))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_worker_that_may_not_open_files_is_replaced(opened):
    w = work(workers=2)
    backend = opened(w)
    list(backend.map(jobs(w)))
    poor = backend._workers[0].pid
    resource.prlimit(poor, resource.RLIMIT_NOFILE, (1, 1))
    same(backend.map(jobs(w)), Serial(w).map(jobs(w)))  # which begins with the rows for answers
    assert not alive(poor)


def test_a_signal_while_the_nursery_imports_is_not_its_own(capfd):
    nursery = processes.Nursery()
    try:
        for signum in (signal.SIGINT, signal.SIGTERM):
            os.kill(nursery._process.pid, signum)  # which has hardly begun
        with open(os.devnull, "r+b") as nowhere:
            pid = nursery.fork(nowhere.fileno(), nowhere.fileno())
        assert pid > 0
        nursery.bury(pid)
        assert nursery._process.poll() is None
        held = Path(f"/proc/{nursery._process.pid}/status").read_text()
        assert int(held.partition("SigBlk:")[2].split()[0], 16) == 0
    finally:
        nursery._process.kill()
        nursery._process.wait()
    assert "KeyboardInterrupt" not in capfd.readouterr().err
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_workers_survive_the_death_of_the_nursery(opened):
    w = work(workers=2)
    backend = opened(w)
    asked = jobs(w)
    found = backend.map(asked)
    got = [next(found)]
    os.kill(backend._nursery._process.pid, signal.SIGKILL)
    got += list(found)
    same(got, Serial(w).map(asked))


@pytest.mark.parametrize("deaths", [processes.ATTEMPTS, processes.ATTEMPTS + 1])
def test_workers_that_die_at_their_start_are_counted(deaths, opened, monkeypatch):
    hired = []

    class Frail(processes.Worker):
        def __init__(self, *given):
            assert len(hired) <= processes.ATTEMPTS + 1
            super().__init__(*given)
            hired.append(self.pid)
            if len(hired) <= deaths:
                os.kill(self.pid, signal.SIGKILL)
                ended = select.poll()
                ended.register(self.channel, 0)  # for the end of the line alone
                assert ended.poll(10_000)

    monkeypatch.setattr(processes, "Worker", Frail)
    w = work(workers=1)
    backend = opened(w)
    if deaths > processes.ATTEMPTS:
        with pytest.raises(UserError, match="worker processes could not be started"):
            list(backend.map(jobs(w)))
        assert not backend._workers
    same(backend.map(jobs(w)), Serial(w).map(jobs(w)))  # by the worker after those


def test_auto_goes_on_without_workers_where_none_can_be_started(monkeypatch):
    def none(*_):
        raise EOFError

    monkeypatch.setattr("fedrecall.backends.choose", lambda work: "processes")
    monkeypatch.setattr(processes, "Worker", none)
    w = work(workers=2)
    backend = open_backend("auto", w)
    with pytest.warns(RuntimeWarning, match="could not be started.*serial backend trains in their place"):
        same(backend.map(jobs(w)), Serial(w).map(jobs(w)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(backend.map(jobs(w, number=2)), Serial(w).map(jobs(w, number=2)))
    backend.close()


def test_workers_start_under_any_path(tmp_path, monkeypatch, opened):
    folder = tmp_path / "\N{GRINNING FACE} a'b\"c {d}"
    folder.mkdir()
    (folder / "beside.py").write_text("WORDS = 'found'\n")
    monkeypatch.syspath_prepend(str(folder))
    start = "import sys; sys.path[:] = {path}; import beside; print(beside.WORDS)"
    monkeypatch.setattr(processes, "_START", start)
    nursery = processes.Nursery()
    assert nursery._process.wait(10) == 0
    nursery._end.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_closing_leaves_no_worker_and_no_descriptor(opened):
    w = work(workers=2)
    list(opened(w).map(jobs(w)))  # the nursery and whatever torch opens once
    before = len(os.listdir("/proc/self/fd"))
    backend = Processes(w)
    list(backend.map(jobs(w)))
    pids = [worker.pid for worker in backend._workers]
    backend.close()
    assert gone(pids)
    del backend
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_one_that_started_it(signum, tmp_path):
    script, said = tmp_path / "script.py", tmp_path / "said"
    script.write_text(
        textwrap.dedent(f"""
        import faulthandler, signal, sys, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` has switched off
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.backends.test_processes import work, jobs
        from fedrecall.backends.processes import Processes
        w = work(workers=2)
        backend = Processes(w)
        list(backend.map(jobs(w)))
        faulthandler.dump_traceback_later(40)  # where it is, should it not end
        print(backend._nursery._process.pid, *(worker.pid for worker in backend._workers), flush=True)
        while True:
            time.sleep(0.05)  # a signal between two of Python's looks at signals does not cut a sleep short
        """)
    )
    with said.open("w") as errors:
        run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=errors)
    pids = [int(p) for p in run.stdout.readline().split()]
    assert len(pids) == 3, said.read_text()
    os.kill(pids[1], signal.SIGSTOP)  # not even one that cannot hear
    run.send_signal(signum)
    try:
        run.wait(60)
    except subprocess.TimeoutExpired:
        run.kill()
        pytest.fail(said.read_text())
    assert gone(pids)
    run.stdout.close()


class Odd(Exception):
    """Cannot be made again from its pickle."""

    def __init__(self, where, what):
        super().__init__(f"{where}: {what}")


@dataclass(frozen=True)
class Raises(FedAvg):
    kind: str = "plain"

    def prepare(self, model, down, memory, data):
        if self.kind == "user":
            raise UserError("do this instead.")
        if self.kind == "dies":
            os._exit(7)
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "odd":
            raise Odd("prepare", "something to be seen")
        if self.kind == "greedy":
            torch.empty(1 << 56)
        raise ZeroDivisionError("in a hook")


@dataclass(frozen=True)
class Unfindable(FedAvg):
    """Sends what is of a class that only the function knows which made it."""

    def finish(self, model, weights, anchor, memory, data, sgd):
        class Own(NamedTuple):
            weights: Any

        return Own(weights), memory


def test_what_no_other_process_could_read_is_told_of(opened):
    w = work(Unfindable(), workers=2)
    with pytest.raises(
        UserError, match=r"visit returned cannot be sent .*Own.*\. Define the classes .*serial"
    ):
        list(opened(w).map(jobs(w)))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("plain", ZeroDivisionError, "in a hook"),
        ("user", UserError, "do this instead"),
        ("odd", RuntimeError, "prepare: something to be seen"),
        ("dies", UserError, "ended its worker process 3 times, the last time with exit code 7"),
        ("killed", UserError, "ended its worker process 3 times, the last time by SIGKILL"),
        ("greedy", NotNow, "ended its worker process 3 times, the last time because memory ran out"),
    ],
)
def test_an_exception_in_a_hook_arrives(kind, error, words, opened):
    w = work(Raises(kind), workers=2)
    with pytest.raises(error, match=words) as caught:
        list(opened(w).map(jobs(w)))
    assert isinstance(caught.value, NotNow) == (kind == "greedy")  # the same may go well another time
    assert of_one_run(caught.value) == (kind in ("plain", "user", "odd"))
    if kind in ("plain", "odd"):
        told = own_faults.told(caught.value).splitlines()
        (place,) = [text for text in told if text.startswith("  File")]
        assert place.endswith("in prepare")
        line = re.search(r"line (\d+)", place)[1]
        assert told[-1] == f"In `prepare` of test_processes.py:Raises, line {line}."
        assert own_faults.reason(caught.value).endswith(told[-1])


def test_workers_have_the_code_that_was_loaded_whatever_the_file_says_since(tmp_path, opened):
    source = (
        "from dataclasses import dataclass\n"
        "from fedrecall.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    def correct(self, grads, anchor):\n"
        "        return {n: FACTOR * g for n, g in grads.items()}\n"
    )
    path = tmp_path / "edited.py"
    path.write_text(source + "FACTOR = 1.0\n")
    w = work(ALGORITHMS.make(f"{path}:Mine"), workers=2)
    path.write_text(source + "FACTOR = 0.0\n")
    same(opened(w).map(jobs(w)), Serial(w).map(jobs(w)))


def test_workers_find_what_lies_beside_a_users_file(tmp_path, opened):
    beside = f"beside_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{beside}.py").write_text("FACTOR = 0.5\ndef scaled(g):\n    return FACTOR * g\n")
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedrecall.algorithms.fedavg import FedAvg\n"
        f"from {beside} import scaled\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    def correct(self, grads, anchor):\n"
        "        return {n: scaled(g) for n, g in grads.items()}\n"
    )
    w = work(ALGORITHMS.make(f"{tmp_path / 'mine.py'}:Mine"), workers=2)
    same(opened(w).map(jobs(w)), Serial(w).map(jobs(w)))


def in_parts(folder: Path) -> tuple[Work, list[Path]]:
    """Work with an algorithm of several files, and those that it takes names from."""
    unique = folder.name.replace("-", "_")
    (folder / f"rates_{unique}").mkdir()
    (folder / f"loose_{unique}").mkdir()
    package = folder / f"rates_{unique}"
    parts = {
        package / "__init__.py": "from . import _numbers as numbers\n",
        package / "_numbers.py": "HALF = 0.5\n",
        folder / f"late_{unique}.py": "FACTOR = 0.25\n",
        folder / f"loose_{unique}" / "more.py": f"from rates_{unique}.numbers_too import TWICE\n",
        package / "numbers_too.py": "def never():\n    from ...beyond import it\nTWICE = 2.0\n",
    }
    for path, text in parts.items():
        path.write_text(text)
    (folder / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedrecall.algorithms.fedavg import FedAvg\n"
        f"from rates_{unique} import numbers\n"
        f"import loose_{unique}.more as more\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    def correct(self, grads, anchor):\n"
        f"        from late_{unique} import FACTOR\n"
        "        return {n: more.TWICE * numbers.HALF * FACTOR * g for n, g in grads.items()}\n"
    )
    return work(ALGORITHMS.make(f"{folder / 'mine.py'}:Mine"), workers=2), list(parts)


def test_workers_have_what_lies_beside_a_users_file_as_it_was_when_the_run_began(tmp_path, opened):
    w, parts = in_parts(tmp_path)
    backend = opened(w)
    expected = list(Serial(w).map(jobs(w)))
    for path in parts:
        path.write_text("raise RuntimeError('edited')\n")
    same(backend.map(jobs(w)), expected)
    same(opened(w).map(jobs(w)), expected)  # this process goes on with what it imported


def test_workers_have_a_module_as_it_was_imported_whatever_its_file_says_since(tmp_path, opened, monkeypatch):
    names = [f"{part}_{tmp_path.name}".replace("-", "_") for part in ("mine", "rate")]
    mine, rate = (tmp_path / f"{name}.py" for name in names)
    rate.write_text("FACTOR = 0.5\n")
    mine.write_text(
        "from dataclasses import dataclass\n"
        "from fedrecall.algorithms.fedavg import FedAvg\n"
        f"from {names[1]} import FACTOR\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    def correct(self, grads, anchor):\n"
        "        return {n: FACTOR * g for n, g in grads.items()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    w = work(ALGORITHMS.make(f"{names[0]}:Mine"), workers=2)
    for edited in (rate, mine):
        edited.write_text("raise RuntimeError('edited')\n")
        same(opened(w).map(jobs(w)), Serial(w).map(jobs(w)))


def test_of_what_a_file_imports_only_its_neighbours_are_sent(tmp_path, monkeypatch):
    here = tmp_path / "here"
    installed = here / "env" / "lib" / "site-packages"
    for folder, name in ((here, "neighbour"), (installed, "installed_there"), (tmp_path, "elsewhere")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("import json\n")
        monkeypatch.syspath_prepend(str(folder))
    names = "neighbour, installed_there, elsewhere, torch.nn, fedrecall.trees, nowhere, json, missing.part"
    calls = "importlib.import_module('neighbour'), __import__(f'x{1}'), import_module('.part', 'torch')"
    for text in (f"import {names}", calls):
        found = places.beside({here / "mine.py": text.encode()})
        assert found == {"neighbour": places.Source(str(here / "neighbour.py"), b"import json\n", None)}


def test_folders_of_one_name_beside_two_files_are_one_package_there_too(tmp_path, monkeypatch):
    parts, files = f"parts_{tmp_path.name}".replace("-", "_"), {}
    for name, imported in (("one", f"import {parts}.one"), ("two", f"__import__({parts!r} + '.two')")):
        (tmp_path / name / parts).mkdir(parents=True)
        (tmp_path / name / parts / f"{name}.py").write_text("")
        (tmp_path / name / f"{name}.py").write_text(f"import {parts}\n{imported}\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with warnings.catch_warnings(action="error"):
        for name in ("one", "two", "one"):
            path = tmp_path / name / f"{name}.py"
            own_modules.module_at(str(path), "model")
            files[path] = own_modules.loaded_sources[path]
    sent = places.Places.of(files).modules
    assert sent[parts].folders == [str(tmp_path / name / parts) for name in ("one", "two")]


def test_where_code_is_looked_for_may_be_given_as_paths(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # which Python passes over
    monkeypatch.setattr(processes.Nursery, "_shared", None)
    w = work(workers=2)
    same(opened(w).map(jobs(w)), Serial(w).map(jobs(w)))
    processes.Nursery.shared().close()


def test_an_interrupted_question_to_the_nursery_ends_it(opened, monkeypatch):
    w = work(workers=2)
    backend = opened(w)
    same(backend.map(jobs(w)), Serial(w).map(jobs(w)))
    nursery = processes.Nursery.shared()

    class CtrlC(BaseException):
        """Not KeyboardInterrupt, which would end the process that runs the tests."""

    class Interrupted:
        """The end of the line, at which an interrupt arrives between question and answer."""

        def __init__(self, end):
            self.end = end

        def recv(self, *given):
            raise CtrlC

        def __getattr__(self, name):
            return getattr(self.end, name)

    end = nursery._end
    with monkeypatch.context() as patched:
        patched.setattr(nursery, "_end", Interrupted(end))
        patched.setattr(processes.socket, "send_fds", lambda end, *given: None)
        with pytest.raises(CtrlC):
            nursery._ask(0, ())
    assert end.fileno() == -1  # nobody will take that answer for the next question's
    again = opened(w)  # with a nursery of its own
    same(again.map(jobs(w)), Serial(w).map(jobs(w)))


def test_a_visit_that_fails_by_nan_is_reported_as_serial_does(opened):
    w = work(workers=2)
    asked = jobs(w)
    weights = trees.transform(lambda t: t * torch.nan, asked[1].down.weights)
    asked[1] = asked[1]._replace(down=asked[1].down._replace(weights=weights))
    found, expected = list(opened(w).map(asked)), list(Serial(w).map(asked))
    assert [v.failure for v in found] == [v.failure for v in expected]
    assert found[1].failure is not None


def test_giving_up_halfway_leaves_a_backend_that_works(opened):
    w = work(workers=2)
    backend = opened(w)
    half = backend.map(jobs(w))
    next(half)
    half.close()
    asked = jobs(w, number=2)
    same(backend.map(asked), Serial(w).map(asked))


def test_one_visit_is_made_here(opened):
    w = work(workers=2)
    backend = opened(w)
    asked = jobs(w, [1])
    same(backend.map(asked), Serial(w).map(asked))
    assert not backend._workers


def test_auto_takes_processes_for_much_work_side_by_side_only(monkeypatch):
    monkeypatch.setattr("fedrecall.backends.cores", lambda: 4)
    assert choose(work(chains=5)) == "serial"  # too little to do
    assert choose(replace(work(chains=5), recipe=Recipe(20, batch_size=1))) == "processes"  # many steps
    monkeypatch.setattr("fedrecall.backends.WORTH_PROCESSES", 1.0)
    assert choose(work(chains=5)) == "processes"
    assert choose(work(chains=1)) == "serial"
    assert choose(work(chains=5, workers=1)) == "serial"
    monkeypatch.setattr("fedrecall.backends.cores", lambda: 1)
    assert choose(work(chains=5)) == "serial"
    assert isinstance(open_backend("auto:", work()), Serial)  # without options, as every other name
    with pytest.raises(UserError, match="unknown backend 'proceses'"):
        open_backend("proceses", work())


def test_auto_says_why_it_trains_in_one_process(monkeypatch):
    monkeypatch.setattr("fedrecall.backends.cores", lambda: 4)
    monkeypatch.setattr("fedrecall.backends.WORTH_PROCESSES", 1.0)
    made = type("Typed", (FedAvg,), {"__module__": "__main__"})()
    with pytest.warns(RuntimeWarning, match="in this process alone: .* Typed is defined in the script"):
        assert isinstance(open_backend("auto", work(made, chains=5)), Serial)


def test_users_own_classes_reach_the_workers_or_are_explained(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from fedrecall.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    'Mine.'\n    beta: float = 1.0\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, channels, classes):\n"
        "        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))\n"
        "    def forward(self, x):\n        return self.net(x)\n"
    )
    (tmp_path / "other.py").write_text((tmp_path / "mine.py").read_text())
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, fedrecall\n"
        "from pathlib import Path\n"
        "from fedrecall.algorithms import ALGORITHMS\n"
        "ALGORITHMS.make('other.py:Mine')\n"
        "Path('other.py').unlink()  # a file that this run does not need may be gone\n"
        "from dataclasses import dataclass\n"
        "from fedrecall.algorithms import FedAvg\n"
        "settings = dict(clients=4, sample=2, rounds=1, workers=2, partition='iid')\n"
        "mine = dict(algorithm='mine.py:Mine', model='mine.py:Net', **settings)\n"
        "there = fedrecall.run(backend='processes', **mine)\n"
        "here = fedrecall.run(backend='serial', **mine)\n"
        "assert abs(there.history[0]['loss'] - here.history[0]['loss']) < 1e-5\n"
        "@dataclass(frozen=True)\nclass Own(FedAvg):\n    'Own.'\n"
        "try:\n    fedrecall.run(algorithm='__main__:Own', backend='processes', **settings)\n"
        "except fedrecall.UserError as error:\n    print(error)\n"
        "fedrecall.run(algorithm='__main__:Own', **settings)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "put it into a file of its own and name it as file.py:Class" in done.stdout


def test_parcels_keep_values_types_layouts_and_sharing():
    last = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    one = torch.randn(3, dtype=torch.float64)
    value = (
        FedAvg(),
        {"last": last, "a": one, "b": one, "half": one.bfloat16(), "yes": one > 0, "none": torch.empty(0, 3)},
        Memory(),
        [torch.tensor(5), torch.arange(12).view(3, 4).t(), None, "text", nn.Parameter(torch.ones(2))],
    )
    parcel = pack(value)
    algorithm, named, memory, (scalar, turned, nothing, text, parameter) = unpack(parcel)
    assert (algorithm, memory, nothing, text) == (FedAvg(), Memory(), None, "text")
    assert isinstance(parameter, nn.Parameter)
    assert torch.equal(parameter, torch.ones(2))
    assert torch.equal(scalar, torch.tensor(5))
    assert torch.equal(turned, torch.arange(12).view(3, 4).t())
    for name, tensor in named.items():
        assert tensor.dtype == value[1][name].dtype
        assert torch.equal(tensor, value[1][name])
    assert named["last"].is_contiguous(memory_format=torch.channels_last)
    assert named["a"].data_ptr() == named["b"].data_ptr()
    named["a"].zero_()  # a receiver's own affair
    assert one.any()


def test_a_parcel_that_there_is_no_room_for_keeps_no_file_open(monkeypatch):
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(parcels._Pickler, "fill", full)
    before = os.listdir("/dev/fd")
    with pytest.raises(MemoryError):
        pack(torch.ones(5))
    assert len(os.listdir("/dev/fd")) == len(before)


def test_a_copied_parcel_keeps_no_file_open():
    parcels_ = [pack({"a": torch.full((1000,), float(i))}) for i in range(3)]
    held = len(os.listdir("/dev/fd"))
    values = [unpack(parcel, copied=True) for parcel in parcels_]
    assert len(os.listdir("/dev/fd")) == held - 3
    assert [float(v["a"].sum()) for v in values] == [0.0, 1000.0, 2000.0]


def test_what_a_dead_worker_was_lent_is_not_waited_for():
    class Shelf:
        left = 1

        def __bool__(self):
            return True

        def parcel(self):
            return pack(None)

        def put(self, value):
            return None

        def find(self, value):
            return None

        def lend(self):
            self.left -= 1
            return (slice(0, 8), torch.empty(8, dtype=torch.uint8)) if self.left >= 0 else None

    class Channel:
        def send(self, parcel):
            pass

    class Stub:
        def __init__(self):
            self.channel, self.knows, self.down, self.place, self.since = Channel(), {}, None, None, 0.0

    w = work(Scaffold())
    link = processes._Link(w, jobs(w), shelves={processes.MEMORIES: Shelf()})
    link.send(Stub(), 0)
    assert 0 in link._spares
    link.send(Stub(), 0)  # to another worker, for which there is no room
    assert 0 not in link._spares
