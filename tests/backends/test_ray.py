"""A Ray cluster returns what serial returns, whatever happens to its actors and nodes."""

import contextlib
import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.backends.clusters import NODE, descendants, gone, two_nodes
from tests.backends.test_processes import SIZES, Raises, in_parts, jobs, same, work

from fedrecall import trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.scaffold import Scaffold
from fedrecall.backends import OPTIONS, open_backend, ray_cluster
from fedrecall.backends.backend import Work
from fedrecall.backends.parcels import Folded, fold, unfold
from fedrecall.backends.places import Places
from fedrecall.backends.ray_cluster import Actor, Cluster, Options, RayCluster
from fedrecall.backends.serial import Serial
from fedrecall.data.store import Split
from fedrecall.errors import UserError
from fedrecall.models.model import Weights

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="the ray extra is not installed: pip install fedrecall[ray]",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as found:
        yield found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as an actor has it, so that serial is the same bit for bit
    yield
    torch.set_num_threads(before)


@pytest.fixture
def opened(cluster) -> Iterator[Any]:
    made: list[Any] = []

    def make(w: Work, options: str = "") -> Any:
        made.append(open_backend(f"ray{options}", w))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def where(backend: RayCluster) -> list[tuple[int, str]]:
    """Process and node of every actor that lives."""
    import ray

    def ask(_: Any) -> tuple[int, str]:
        return os.getpid(), ray.get_runtime_context().get_node_id()

    found = []
    for member in backend._members:
        with contextlib.suppress(ray.exceptions.RayError):  # it is dead, which nobody has noticed yet
            if member.ready:
                found.append(ray.get(member.handle.__ray_call__.remote(ask)))
    return found


@needs_ray
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_for_bit_what_serial_returns_in_the_order_of_the_jobs(dtype, opened):
    w = work(Scaffold(), dtype=dtype, workers=2)
    backend = opened(w)
    for number in (1, 2):
        asked = jobs(w, [2, 0, 4, 1, 3], number)
        same(backend.map(asked), Serial(w).map(asked))


@dataclass(frozen=True)
class Slow(FedAvg):
    """Visits that can be interrupted, and that say who made them."""

    seconds: float = 0.5

    def prepare(self, model, down, memory, data):
        time.sleep(self.seconds)
        return super().prepare(model, down, memory, data)


@needs_ray
def test_one_copy_of_the_message_and_of_the_data_and_longest_first(opened, monkeypatch):
    w = work(workers=1)
    backend = opened(w)
    put, sent = [], []
    monkeypatch.setattr(backend._ray, "put", lambda v, put=backend._ray.put: sent.append(v) or put(v))
    send = backend._send
    monkeypatch.setattr(backend, "_send", lambda *a: put.append(a[1].jobs[a[2]].client) or send(*a))
    asked = jobs(w)
    other = trees.transform(lambda t: t / 2, asked[0].down)
    asked[1:3] = [job._replace(down=other) for job in asked[1:3]]
    same(backend.map(asked), Serial(w).map(asked))
    assert [SIZES[k] for k in put] == sorted(SIZES, reverse=True)
    assert len(sent) == 2  # distinct messages, not clients
    assert len(backend._orders) == 3

    def mapped(actor: Any) -> str:
        """The line of the process's memory map in which the training images lie."""
        address = actor._fixed[4].dataset.train.x.data_ptr()
        for line in Path("/proc/self/maps").read_text().splitlines():
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line
        return ""

    (member,) = backend._members
    assert "plasma" in backend._ray.get(member.handle.__ray_call__.remote(mapped))


@needs_ray
def test_a_killed_actor_is_replaced_in_the_middle_of_a_round(opened):
    w = work(Slow(), workers=2)
    backend = opened(w)
    list(backend.map(jobs(w)))
    killed = {pid for pid, _ in where(backend)}
    asked = jobs(w, [1, 4, 3, 0, 2], 2)  # longest first, so that many are left when the first has come
    found = backend.map(asked)
    got = [next(found)]
    assert any(member.place is not None for member in backend._members)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    got += list(found)
    same(got, Serial(w).map(asked))
    assert not killed & {pid for pid, _ in where(backend)}


@dataclass(frozen=True)
class Stuck(FedAvg):
    """The longest client's first visit never ends by itself."""

    marker: str = ""

    def prepare(self, model, down, memory, data):
        if len(data) == max(SIZES) and not Path(self.marker).exists():
            Path(self.marker).touch()
            time.sleep(600)
        return super().prepare(model, down, memory, data)


@needs_ray
def test_a_visit_that_does_not_end_is_made_again_elsewhere(opened, monkeypatch, tmp_path):
    w = work(Stuck(str(tmp_path / "stuck")), workers=2)
    backend = opened(w)
    monkeypatch.setattr(ray_cluster, "PATIENCE", 1.0)
    monkeypatch.setattr(ray_cluster, "SLOWER", 0.0)
    asked = jobs(w)
    found = list(backend.map(asked))
    assert (tmp_path / "stuck").exists()
    same(found, Serial(w).map(asked))


@dataclass(frozen=True)
class Deadly(FedAvg):
    """Whoever reads it ends."""

    state: int = 1

    def __setstate__(self, state):
        os._exit(3)


@needs_ray
def test_actors_that_die_at_their_start_are_not_started_without_end(opened, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ATTEMPTS", 1)
    w = work(Deadly(), workers=1)
    with pytest.raises(UserError, match="Ray could not start actors: The actor died"):
        list(opened(w).map(jobs(w)))


@needs_ray
def test_a_lost_node_is_done_without_until_there_is_another(cluster, opened):
    w = work(workers=2)
    backend = opened(w)
    asked = jobs(w)
    list(backend.map(asked))
    until = time.monotonic() + 60  # the first round may have been too short for both to start
    while len({node for _, node in where(backend)}) < 2 and time.monotonic() < until:
        list(backend.map(jobs(w)))
    assert len({node for _, node in where(backend)}) == 2
    (other,) = cluster.worker_nodes
    cluster.remove_node(other, allow_graceful=False)
    for number in (2, 3):
        asked = jobs(w, number=number)
        same(backend.map(asked), Serial(w).map(asked))
    assert len({node for _, node in where(backend)}) == 1
    cluster.add_node(**NODE)
    until = time.monotonic() + 60
    while len({node for _, node in where(backend)}) < 2 and time.monotonic() < until:
        asked = jobs(w, number=4)
        same(backend.map(asked), Serial(w).map(asked))
    assert len({node for _, node in where(backend)}) == 2


@needs_ray
@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("plain", ZeroDivisionError, "in a hook"),
        ("user", UserError, "do this instead"),
        ("dies", UserError, "ended its actor 2 times"),
        ("greedy", UserError, "ended its actor 2 times"),
    ],
)
def test_an_exception_in_a_hook_arrives(kind, error, words, opened, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ATTEMPTS", 2)
    w = work(Raises(kind), workers=1)
    with pytest.raises(error, match=words):
        list(opened(w).map(jobs(w)))


def test_what_no_actor_could_send_is_told_of():
    class Own(NamedTuple):
        weights: Any

    told = unfold(ray_cluster._answer(Own(torch.zeros(2)))).error
    assert isinstance(told, UserError)
    assert "returned cannot be sent between processes" in str(told)


@pytest.mark.parametrize(
    "step",
    [
        lambda: Actor().take_up(Places([], {}, {}), fold(None), fold(None)),
        lambda: Actor().visit(1, fold(None), fold(None), 1, 0),
        lambda: ray_cluster._answer(None),
    ],
    ids=["take_up", "visit", "answer"],
)
def test_an_actor_that_is_refused_memory_ends_so_that_another_one_tries(step, monkeypatch):
    class Left(BaseException):
        """In place of this process's end."""

    def leave(code: int) -> None:
        raise Left(code)

    def refuse(*given: Any, **named: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(ray_cluster, "unfold", refuse)
    monkeypatch.setattr(ray_cluster, "fold", refuse)
    with pytest.raises(Left) as caught:
        step()
    assert caught.value.args == (errno.ENOMEM,)


@needs_ray
def test_giving_up_halfway_leaves_a_backend_that_works(opened):
    w = work(workers=2)
    backend = opened(w)
    half = backend.map(jobs(w))
    next(half)
    half.close()
    asked = jobs(w, number=2)
    same(backend.map(asked), Serial(w).map(asked))


@needs_ray
def test_the_next_run_takes_over_the_actors(opened):
    w = work(workers=1)
    first = opened(w)
    list(first.map(jobs(w)))
    before = {pid for pid, _ in where(first)}
    first.close()
    again = opened(replace(w, algorithm=Scaffold(), seed=5))
    asked = jobs(again.work)
    same(again.map(asked), Serial(again.work).map(asked))
    assert {pid for pid, _ in where(again)} <= before


class Heavy(NamedTuple):
    weights: Weights
    ballast: torch.Tensor


@dataclass(frozen=True)
class Ballast(FedAvg):
    """A MiB travels along, down and up."""

    def broadcast(self, model, server, auxiliary):
        return Heavy(server.weights, torch.zeros(2**18))

    def finish(self, model, weights, anchor, memory, data, sgd):
        return Heavy(weights, torch.ones(2**18)), memory


def resident(pid: int | str = "self") -> int:
    """Bytes of memory of a process that are nobody else's."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


@needs_ray
def test_memory_is_flat_over_a_hundred_rounds(opened):
    import ray

    w = work(Ballast(), workers=1)
    w = replace(w, recipe=replace(w.recipe, local_epochs=1))
    backend = opened(w)

    def play(number: int) -> None:
        list(backend.map(jobs(w, [0, 2], number)))

    sizes, total = [], ray.cluster_resources()["object_store_memory"]
    for number in range(1, 101):
        play(number)
        if number in (40, 100):
            (pid, _), *_ = where(backend)
            sizes.append((resident(), resident(pid)))
    # A MiB kept for each of 60 rounds would be 60 MiB here or there.
    assert sizes[1][0] - sizes[0][0] < 30 * 2**20
    assert sizes[1][1] - sizes[0][1] < 30 * 2**20
    until = time.monotonic() + 10
    while (held := total - ray.available_resources()["object_store_memory"]) > 20 * 2**20:
        assert time.monotonic() < until, f"{held} bytes in the object store"
        time.sleep(0.2)


@needs_ray
def test_a_users_file_reaches_machines_that_do_not_have_it(opened, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from fedrecall.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    'Mine.'\n    beta: float = 1.0\n"
        "    def loss(self, model, params, anchor, batch):\n"
        "        return self.beta * super().loss(model, params, anchor, batch)\n"
    )
    w = work(ALGORITHMS.make(f"{path}:Mine:0.5"), workers=2)
    backend = opened(w)
    path.unlink()
    asked = jobs(w)
    same(backend.map(asked), Serial(w).map(asked))


@needs_ray
def test_what_a_users_file_imports_from_its_folder_reaches_machines_that_do_not_have_it(opened, tmp_path):
    folder = tmp_path / "apart"
    folder.mkdir()
    w, _ = in_parts(folder)
    backend, expected = opened(w), list(Serial(w).map(jobs(w)))
    shutil.rmtree(folder)
    same(backend.map(jobs(w)), expected)


# What cannot work is said before it is tried.


@needs_ray
@pytest.mark.parametrize(
    ("workers", "options", "words"),
    [
        (3, "", "workers = 3, but the Ray cluster has 2 CPUs: ask for fewer, or add nodes"),
        (1, ":memory=9999", r"room for 0 actors of 9999\.0 GiB of memory each, not for 1"),
        (1, ":memory=-1", "memory"),
    ],
)
def test_too_many_actors_are_refused(workers, options, words, opened):
    with pytest.raises(UserError, match=words):
        opened(work(workers=workers), options)


@needs_ray
def test_cpus_that_others_use_are_not_waited_for_without_end(opened, monkeypatch):
    import ray

    cluster = Cluster.shared("auto")
    while cluster.idle:
        cluster.kill(cluster.idle.pop())
    monkeypatch.setattr(ray_cluster, "FREEING", 3.0)

    @ray.remote(num_cpus=1)
    class Other:
        def here(self) -> None: ...

    others = [Other.remote(), Other.remote()]
    ray.get([o.here.remote() for o in others])
    for workers, needed in ((2, 2), (None, 1)):
        with pytest.raises(
            UserError, match=f"0 of the Ray cluster's 2 CPUs are free .* and {needed} are needed"
        ):
            opened(work(workers=workers))
    ray.kill(others[0])
    assert opened(work()).count == 1  # what there is, where no number was asked for


@needs_ray
def test_more_data_than_a_node_can_hold_are_refused(opened):
    w = work(workers=1)
    big = Split(torch.zeros(90, 1, 1024, 1024, dtype=torch.uint8), torch.zeros(90, dtype=torch.int64))
    dataset = replace(w.federation.dataset, train=big, test=Split(big.x[:1], big.y[:1]))
    with pytest.raises(UserError, match=r"training data take 90 MiB .* larger --object-store-memory"):
        opened(replace(w, federation=replace(w.federation, dataset=dataset)))


class Fake:
    """Ray as far as connecting goes."""

    def __init__(self, error: Exception | None = None):
        self.error, self.asked = error, {}

    def init(self, **settings: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.asked = settings
        if self.error:
            raise self.error


def test_connecting_keeps_this_processs_signal_handlers_and_says_what_is_wrong():
    before = signal.getsignal(signal.SIGTERM)
    fake = Fake()
    ray_cluster.connect(fake, "head.example")
    assert fake.asked["address"] == "head.example:6379"
    ray_cluster.connect(fake, "local")
    assert fake.asked["include_dashboard"] is False
    assert signal.getsignal(signal.SIGTERM) == before
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    with pytest.raises(UserError, match=r"no Ray cluster at address = 'auto' .* --backend ray:local"):
        ray_cluster.connect(Fake(ConnectionError("nobody there\nmore")), "auto")
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(UserError, match="ray job submit"):
        ray_cluster.connect(fake, "ray://head:10001")


def test_without_ray_installed_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'fedrecall\[ray\]'"):
        open_backend("ray:local", work())


def test_options_follow_the_name():
    assert OPTIONS.make("ray:10.0.0.1:6379,memory=2") == Options("10.0.0.1:6379", 2.0)
    assert OPTIONS.make("ray:address=local") == Options("local")


@needs_ray
def test_one_process_is_in_one_cluster(cluster, monkeypatch):
    held = Cluster.shared("auto")  # the one that the caller connected to, whatever it is called
    assert Cluster.shared("local") is held
    monkeypatch.setattr(held, "ours", True)
    monkeypatch.setattr(held, "asked", "auto")
    with pytest.raises(UserError, match=r"connected to Ray as 'auto', not 'local'"):
        Cluster.shared("local")


def test_folded_values_keep_types_layouts_and_sharing():
    last = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    one = torch.randn(3, dtype=torch.float64)
    value = {"last": last, "a": one, "b": one, "half": one.bfloat16(), "none": torch.empty(0, 3), "n": 5}
    folded = fold(value)
    assert folded.tensors.dtype.name == "uint8"
    folded.tensors.flags.writeable = False  # as Ray hands it out
    for copy in (True, False):
        found = unfold(Folded(*folded), copy=copy)
        for name, tensor in value.items():
            if name != "n":
                assert found[name].dtype == tensor.dtype
                assert torch.equal(found[name], tensor)
        assert found["last"].is_contiguous(memory_format=torch.channels_last)
        assert found["a"].data_ptr() == found["b"].data_ptr()
        begin, end = folded.tensors.ctypes.data, folded.tensors.ctypes.data + folded.tensors.nbytes
        assert (begin <= found["a"].data_ptr() < end) != copy
    unfold(folded)["a"].zero_()  # a copy is the receiver's own affair
    assert torch.equal(unfold(folded)["a"], one)
    assert unfold(fold("text")) == "text"


@pytest.mark.slow
@needs_ray
def test_no_process_outlives_the_one_that_started_the_cluster(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.backends.test_processes import work, jobs
        from fedrecall.backends import open_backend
        w = work(workers=1)
        backend = open_backend("ray:local", w)
        list(backend.map(jobs(w)))
        print("ready", flush=True)
        time.sleep(120)
        """)
    )
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert run.stdout.readline() == b"ready\n"
    pids = descendants(run.pid)
    assert len(pids) >= 3
    run.kill()
    run.wait(60)
    assert gone(pids, 150)  # Ray's agents look after their parent only now and then
    run.stdout.close()
