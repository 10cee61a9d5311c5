"""A stack of clients is the same clients one after another, whatever they are and however it is computed."""

import importlib.util
import math
import os
import subprocess
import sys
import textwrap
import weakref
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.cases import CASES, NETS, NORMED, Case, assert_same, data, experiment
from torch import Tensor, nn
from torch.func import grad, vmap

import fedrecall
from fedrecall import config as configs
from fedrecall import trees
from fedrecall.algorithms.fedavg import Anchor, FedAvg
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.backends import open_backend, serial, vectorised
from fedrecall.backends.backend import Job, Work
from fedrecall.backends.serial import Serial
from fedrecall.backends.vectorised import (
    UNRECORDED,
    Options,
    Plan,
    Recorded,
    Vectorised,
    explained,
    for_want_of_memory,
    local_training,
    mixes_examples,
    stacked,
)
from fedrecall.batches import Batch
from fedrecall.data.store import export
from fedrecall.errors import UserError
from fedrecall.ingredients import device_of
from fedrecall.models.model import Model, Params, Student
from fedrecall.training import Begun, Visit

# What vmap cannot map it computes in a loop, with a warning.
pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")

NET = f"{Path(__file__).with_name('vectorised_net.py')}:Net"
HARD = {"model": NET, "augmentation": "crop:1+flip+cutout:2", "partition": "lda:0.5", "rounds": 2}
HARD |= {"training": {"local_epochs": 2, "batch_size": 20, "stragglers": 0.5}}


def ready(algorithm: Any = "fedntd", **settings: Any) -> Work:
    training = {"local_epochs": 2, "batch_size": 10, **settings.pop("training", {})}
    return experiment(algorithm, **{"augmentation": "crop:1+flip", "training": training, **settings}).work


def jobs(work: Work, clients: Any = None) -> list[Job]:
    algorithm, weights = work.algorithm, work.model.initial()
    down = algorithm.broadcast(work.model, algorithm.start(weights), work.federation.auxiliary)
    clients = range(len(work.federation)) if clients is None else clients
    return [Job(g, k, 2, down, algorithm.remember(weights)) for g, k in enumerate(clients)]


def assert_visits_agree(found: Any, expected: Any, tolerance: float = 1e-12, loss: float = 1e-11) -> None:
    found, expected = list(found), list(expected)
    assert [v.client for v in found] == [v.client for v in expected]
    for a, b in zip(found, expected, strict=True):
        assert (a.examples, a.failure) == (b.examples, b.failure)
        if a.failure is None:
            assert math.isclose(a.loss, b.loss, rel_tol=loss)
        assert_same((a.up, a.memory), (b.up, b.memory), tolerance, f"client {a.client}")


NORMS = ("none", "batch", "group")
PAIRS = [(case, norm) for case in CASES for norm in NORMS if norm != "batch" or case in NORMED]


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize(("case", "norm"), PAIRS, ids=[f"{case.spec}-{norm}" for case, norm in PAIRS])
def test_every_algorithm_with_ragged_clients_dropout_augmentation_and_norms(case: Case, norm: str):
    settings = HARD | case.settings | {"model": f"{NET}:norm={norm}"}
    expected, found = (
        experiment(case.spec, **settings),
        experiment(case.spec, backend="vectorised", **settings),
    )
    losses = [r["train_loss"] for r in expected.run().history]
    np.testing.assert_allclose([r["train_loss"] for r in found.run().history], losses, rtol=1e-11)
    assert_same(found.server, expected.server, 1e-12)
    for client in range(6):
        mine, theirs = (e.memories.get(client) for e in (found, expected))
        assert_same(mine, theirs, 1e-12, f"memory of client {client}")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedntd", "fedalign", "fedcurv", "moon"])
def test_in_single_precision_where_weights_have_channels_last(algorithm: str, norm: str):
    work = ready(algorithm, model=f"{NETS}:norm={norm}", precision="float32", training={"local_epochs": 1})
    found, expected = Vectorised(work).map(jobs(work)), Serial(work).map(jobs(work))
    assert_visits_agree(found, expected, tolerance=1e-5, loss=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedalign", "fedntd", "moon"])
def test_running_statistics_that_forward_assigns(algorithm: str):
    work = ready(algorithm, model=f"{NETS}:norm=centred")
    expected = list(Serial(work).map(jobs(work)))
    assert all(v.up.weights.buffers["norm1.mean"].abs().min() > 0 for v in expected)
    assert_visits_agree(Vectorised(work).map(jobs(work)), expected)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedalign", "fedntd", "moon"])
def test_batch_norm_that_averages_over_all_batches(algorithm: str):
    work = ready(algorithm, model=f"{NETS}:norm=cumulative")
    assert_visits_agree(Vectorised(work).map(jobs(work)), Serial(work).map(jobs(work)))


def distance(a: Any, b: Any) -> float:
    """Between two trees, as if each were one vector."""
    left, right = trees.arrays(a), trees.arrays(b)
    gaps = [(x.double() - right[n].double()).square().sum() for n, x in left.items()]
    return float(torch.stack(gaps).sum().sqrt())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedalign", "fedcurv", "cwc"])
def test_in_sixteen_bits_beside_single_precision(algorithm: str, norm: str):
    """Norms keep 32 bits, also where per-example gradients, narrow blocks and stacks compute with them."""
    training = {"local_epochs": 1, "batch_size": 30}  # few steps: rounding grows with them
    settings = {"model": f"{NETS}:norm={norm}", "augmentation": "none", "training": training}
    exact = ready(algorithm, precision="float32", **settings)
    work = ready(algorithm, precision="bfloat16", **settings)
    start = exact.algorithm.start(exact.model.initial()).weights.params
    expected = list(Serial(exact).map(jobs(exact)))
    alone = list(Serial(work).map(jobs(work)))
    stack = list(Vectorised(work).map(jobs(work)))
    for found, reference in [(alone, expected), (stack, alone)]:
        for a, b in zip(found, reference, strict=True):
            assert a.failure is None
            assert a.loss == pytest.approx(b.loss, rel=0.01)
            moved = distance(b.up.weights.params, start)
            assert distance(a.up.weights.params, b.up.weights.params) <= 0.15 * moved
            for part in ("change", "importance"):
                if hasattr(b.up, part):
                    mine, theirs = (getattr(v.up, part) for v in (a, b))
                    assert distance(mine, theirs) <= 0.1 * distance(theirs, trees.zeros(theirs))


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize(
    "options",
    [
        Options(chunk=1),
        Options(chunk=4),
        Options(chunk=2, lanes=2),
        Options(chunk=1, lanes=9),
        Options(convolutions="matmul"),
    ],
    ids=str,
)
def test_options_change_how_but_not_what(options: Options, norm: str):
    work = ready(model=f"{NET}:norm={norm}")
    backend = Vectorised(work, options)
    assert_visits_agree(backend.map(jobs(work)), Serial(work).map(jobs(work)))
    some = [3, 0, 5]
    assert_visits_agree(backend.map(jobs(work, some)), Serial(work).map(jobs(work, some)))
    assert list(backend.map([])) == []


def test_runs_out_of_memory_and_goes_on_with_smaller_stacks(monkeypatch: pytest.MonkeyPatch):
    tried: list[int] = []

    def small(begun: Any, *args: Any) -> Any:
        tried.append(len(begun))
        if len(begun) > 3:
            raise torch.OutOfMemoryError
        return stacked(begun, *args)

    monkeypatch.setattr(vectorised, "stacked", small)
    work = ready("scaffold")
    assert_visits_agree(Vectorised(work).map(jobs(work)), Serial(work).map(jobs(work)))
    assert tried == [6, 3, 3]
    monkeypatch.setattr(vectorised, "stacked", nothing_fits)
    monkeypatch.setattr(serial, "visit", nothing_fits)
    with pytest.raises(torch.OutOfMemoryError):
        list(Vectorised(work, Options(chunk=2)).map(jobs(work)))


@pytest.mark.parametrize("place", ["finish", "local_training"])
def test_memory_that_runs_out_later_halves_the_stack_and_all_before_it_is_free(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    work = ready("scaffold")
    expected = list(Serial(work).map(jobs(work)))
    tried: list[int] = []
    stacks: list[weakref.ref[Tensor]] = []

    def watched(begun: Any, *args: Any) -> Any:
        assert not any(x() is not None for x in stacks)
        made = stacked(begun, *args)
        tried.append(len(begun))
        stacks.append(weakref.ref(made.x))
        return made

    owner: Any = type(work.algorithm) if place == "finish" else vectorised
    real = getattr(owner, place)

    def small(*args: Any) -> Any:
        if tried[-1] > 3:
            raise torch.OutOfMemoryError
        return real(*args)

    monkeypatch.setattr(vectorised, "stacked", watched)
    monkeypatch.setattr(owner, place, small)
    assert_visits_agree(Vectorised(work).map(jobs(work)), expected)
    assert tried == [6, 3, 3]
    if place == "finish":
        monkeypatch.setattr(owner, place, nothing_fits)
        with pytest.raises(torch.OutOfMemoryError):
            list(Vectorised(work).map(jobs(work)))


def nothing_fits(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError


def begun(work: Work, clients: Any = None) -> list[Begun]:
    found = [Vectorised._begin(work, job) for job in jobs(work, clients)]
    return sorted(found, key=lambda b: -b.sgd.steps)


def test_the_model_that_arrived_is_shared_and_not_stacked():
    work = ready()
    plan = Plan(begun(work), 10, False, torch.device("cpu"))
    assert set(plan.shared) == {True}
    given: list[torch.Size] = []

    @dataclass(frozen=True)
    class Looking(FedNTD):
        def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
            given.extend(w.shape for w in anchor.weights.params.values())
            assert not any(torch._C._functorch.is_batchedtensor(w) for w in anchor.weights.params.values())
            return super().loss(model, params, anchor, batch)

    list(Vectorised(replace(work, algorithm=Looking())).map(jobs(work)))
    assert given
    # Two models that arrived are two teachers, stacked.
    two = begun(work, [0, 1])
    other = trees.detached(two[1].anchor)
    assert set(Plan([two[0], two[1]._replace(anchor=other)], 10, False, torch.device("cpu")).shared) == {
        False
    }


def test_a_step_is_taken_by_those_who_still_train_and_by_nobody_else():
    sizes = [25, 20, 7]  # batches of 10: 3, 2 and 1 an epoch
    some = sorted(begun(ready()), key=lambda b: -len(b.data))[:3]
    few = [b._replace(data=_Cut(b.data, n), draws=_cut(b.draws, n)) for b, n in zip(some, sizes, strict=True)]
    few = [b._replace(sgd=b.sgd._replace(steps=2 * -(-n // 10))) for b, n in zip(few, sizes, strict=True)]
    plan = Plan(few, 10, False, torch.device("cpu"))
    rows = [[(p.rows.stop, p.width, p.filled) for p in step] for step in plan.steps]  # type: ignore[union-attr]
    # Widths: 10 10 5 10 10 5 / 10 10 10 10 / 7 7
    assert rows == [
        [(3, 10, True)],
        [(3, 10, True)],
        [(2, 10, True)],
        [(2, 10, False)],
        [(1, 10, False)],
        [(1, 5, False)],
    ]
    plan = Plan(few, 10, True, torch.device("cpu"))
    groups = [[(torch.arange(3)[p.rows].tolist(), p.width) for p in step] for step in plan.steps]
    assert groups == [
        [([0, 1], 10), ([2], 7)],
        [([0, 1], 10), ([2], 7)],
        [([1], 10), ([0], 5)],
        [([0, 1], 10)],
        [([0], 10)],
        [([0], 5)],
    ]


class _Cut:
    """A client with fewer examples."""

    def __init__(self, whole: Any, n: int):
        self.x, self.y = whole.x[:n], whole.y[:n]
        self.augmentation, self.dtype, self.mean, self.std = (
            whole.augmentation,
            whole.dtype,
            whole.mean,
            whole.std,
        )

    def __len__(self) -> int:
        return len(self.y)


def _cut(draws: Any, n: int) -> Any:
    return draws._replace(order=draws.order[:, :n])


def test_a_learning_rate_that_is_a_tensor_is_the_same_rate():
    work = ready("scaffold", model=f"{NET}:norm=batch")

    def train(as_tensor: bool) -> Any:
        plan = Plan(begun(work), 10, True, torch.device("cpu"))
        stack = stacked(begun(work), 10, plan.axes, torch.device("cpu"))
        if as_tensor:  # as in a graph, which takes it from the stack and nowhere else
            plan.sgd = plan.sgd._replace(lr=math.nan)
        return local_training(work.algorithm, work.model, plan, stack, stack.lr if as_tensor else None)

    assert_same(train(True), train(False), 1e-13)


@dataclass(frozen=True)
class Poisoned(FedAvg):
    """Loses its mind at the first example of class 0."""

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        values = super().loss(model, params, anchor, batch)
        mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
        return torch.where(((batch.y == 0) & mask).any(), torch.nan, values)


def test_a_failing_client_harms_nobody_else():
    work = replace(ready(partition="shards:1", clients=6), algorithm=Poisoned())
    found = list(Vectorised(work).map(jobs(work)))
    assert {v.failure is None for v in found} == {True, False}
    assert_visits_agree(found, Serial(work).map(jobs(work)))


class Tabled(FedAvg):
    """Looks up what the model that arrived says of each example, which it asked once."""

    def prepare(self, model: Model, down: Any, memory: Any, data: Any) -> Any:
        return torch.cat([model.frozen(down.weights, batch.x) for batch in data.batches()])

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        logits = model(params, batch.x)
        own = nn.functional.cross_entropy(logits, batch.y, reduction="none")
        return batch.mean(own + (logits - anchor[batch.place]).square().sum(1))


def test_clients_whose_anchors_differ_in_shape_are_each_of_them_alone():
    work = replace(ready(partition="lda:0.5"), algorithm=Tabled())
    sizes = {work.federation.size(k) for k in range(len(work.federation))}
    assert len(sizes) > 2
    assert_visits_agree(Vectorised(work).map(jobs(work)), Serial(work).map(jobs(work)))


@pytest.mark.parametrize("algorithm", ["fedntd", "scaffold"])
def test_a_client_without_examples_is_refused_like_anywhere(algorithm: str):
    work = ready(algorithm)
    parts = [*work.federation.parts[:2], np.empty(0, dtype=np.int64), *work.federation.parts[3:]]
    work = replace(work, federation=replace(work.federation, parts=parts))
    found = list(Vectorised(work).map(jobs(work)))
    assert "no examples" in str(found[2].failure)
    assert_visits_agree(found, Serial(work).map(jobs(work)))
    (alone,) = Vectorised(work).map(jobs(work, [2]))
    assert alone.failure is not None


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedalign", "fedntd"])
def test_batches_of_one_example_where_the_last_map_is_one_pixel(algorithm: str, norm: str):
    work = ready(algorithm, model=f"{NETS}:norm={norm},stride=3")
    examples = np.concatenate(work.federation.parts)
    sizes = [1, 11, 21, 10, 15, 1]  # batches of 10
    parts = [examples[:n] + i for i, n in enumerate(sizes)]
    work = replace(work, federation=replace(work.federation, parts=parts))
    found = list(Vectorised(work).map(jobs(work)))
    assert [(v.examples, v.failure) for v in found] == [(n, None) for n in sizes]
    # Group norm over two values that are nearly alike divides by their difference: a rounding error in the
    # first weights grows to 1e-11 here, in the serial backend alone.
    assert_visits_agree(found, Serial(work).map(jobs(work)), 1e-10 if norm == "group" else 1e-12)


def test_an_upload_does_not_keep_the_stack_alive():
    work = ready("moon")
    for visit in Vectorised(work).map(jobs(work)):
        for name, t in trees.leaves((visit.up, visit.memory)):
            assert t.untyped_storage().nbytes() == t.numel() * t.element_size(), name


def test_the_seconds_of_the_clients_add_up():
    work = ready()
    found: list[Visit] = list(Vectorised(work).map(jobs(work)))
    assert all(v.seconds > 0 for v in found)
    per_step = [v.seconds / work.recipe.steps(v.examples) for v in found]
    assert max(per_step) == pytest.approx(min(per_step))


def test_the_seconds_of_the_clients_are_by_the_passes_that_each_made():
    work = ready("fedavg", partition="iid", training={"local_epochs": 4, "batch_size": 10, "stragglers": 1.0})
    made = list(Vectorised(work).map(jobs(work)))
    epochs = [work.recipe.epochs(work.seed, 2, k) for k in range(len(made))]
    assert len(set(epochs)) > 1
    per_step = [v.seconds / (e * math.ceil(v.examples / 10)) for v, e in zip(made, epochs, strict=True)]
    assert max(per_step) == pytest.approx(min(per_step))
    assert_visits_agree(made, Serial(work).map(jobs(work)))


def test_several_federations_at_once_are_each_of_them_alone():
    works = [
        ready(seed=s, partition=p, training={"lr": lr}) for s, p, lr in [(1, "iid", 0.1), (2, "lda:1", 0.01)]
    ]
    tasks = [
        (w, job)
        for pair in zip(*(jobs(w) for w in works), strict=True)
        for w, job in zip(works, pair, strict=True)
    ]
    found = list(Vectorised(works[0]).map_all(tasks))
    for i, work in enumerate(works):
        assert_visits_agree(found[i::2], Serial(work).map(jobs(work)))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, 3),
        nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
        nn.Conv2d(3, 5, 4, padding="same"),
        nn.Conv2d(3, 5, 3, dilation=2),
        nn.Conv2d(3, 6, 3, groups=3),
        nn.Conv2d(3, 5, 3, padding=1, padding_mode="circular"),
    ],
    ids=str,
)
def test_a_convolution_as_a_matrix_product(layer: nn.Conv2d):
    layer = layer.double()
    plain = Model(nn.Sequential(layer))
    product = vectorised.with_matmul_convolutions(plain)
    kinds = {type(m) for m in product._train.modules()}
    special = layer.groups > 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros"
    assert (vectorised._MatmulConv2d in kinds) != special
    x = torch.randn(4, 3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    params = plain.initial().params

    def wave(model: Model, params: Params, x: Tensor) -> Tensor:
        return model.student({}, torch.tensor(0))(params, x).sin().sum()

    for a, b in [
        (plain.student({}, torch.tensor(0))(params, x), product.student({}, torch.tensor(0))(params, x)),
        (grad(wave, 1)(plain, params, x), grad(wave, 1)(product, params, x)),
        (grad(wave, 2)(plain, params, x), grad(wave, 2)(product, params, x)),
    ]:
        assert_same(a, b, 1e-13)
    stack = trees.stack([params, trees.transform(lambda p: 2 * p, params)])
    images = torch.stack([x, x.flip(0)])
    both = [vmap(grad(lambda p, x, m=m: wave(m, p, x)))(stack, images) for m in (plain, product)]
    assert_same(both[0], both[1], 1e-13)


TIME_FIRST = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, first):
        super().__init__()
        self.first, self.drop, self.out = first, nn.Dropout(0.4), nn.Linear(6, classes)

    def forward(self, x):
        rows = x[:, 0].transpose(0, 1) if self.first else x[:, 0]  # [T, B, E] or [B, T, E]
        return self.out(self.drop(rows).mean(0 if self.first else 1))
"""


@pytest.mark.parametrize("first", [True, False])
def test_a_dropout_whose_examples_are_not_its_first_axis_has_the_masks_of_the_serial_backend(first, tmp_path):
    (tmp_path / "net.py").write_text(TIME_FIRST)
    work = ready("fedavg", model=f"{tmp_path / 'net.py'}:Net:first={first}", partition="lda:0.5")
    assert mixes_examples(work.model) == first
    assert len({len(work.federation.client(k)) % 10 for k in range(len(work.federation))}) > 1
    assert_visits_agree(Vectorised(work).map(jobs(work)), Serial(work).map(jobs(work)))


def test_knows_networks_that_mix_examples():
    assert not mixes_examples(Model(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout())))
    assert not mixes_examples(Model(nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))))
    assert mixes_examples(Model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
    assert mixes_examples(Model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))))


def test_options_follow_the_name():
    backend = open_backend("vectorised:8,convolutions=matmul", ready())
    assert isinstance(backend, Vectorised)
    assert backend.options == Options(8, "matmul")
    with pytest.raises(UserError, match="chunk"):
        open_backend("vectorised:chunk=0", ready())
    with pytest.raises(UserError, match="has no options"):
        open_backend("serial:8", ready())


def test_where_a_run_lives(monkeypatch: pytest.MonkeyPatch):
    def at(device: str, backend: str, gpu: bool) -> str:
        monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
        return str(device_of(configs.make({"device": device, "backend": backend})))

    assert at("auto", "auto", False) == at("auto", "processes", True) == at("auto", "serial", True) == "cpu"
    assert (
        at("auto", "auto", True) == at("auto", "vectorised:8", True) == at("cuda", "serial", True) == "cuda"
    )
    for device, backend, gpu, why in [
        ("cuda", "auto", False, "no GPU"),
        ("cuda", "processes", True, "on the CPU"),
        ("gpu", "auto", True, "auto, cpu or cuda"),
    ]:
        with pytest.raises(UserError, match=why):
            at(device, backend, gpu)


def test_a_graph_needs_a_gpu():
    with pytest.raises(UserError, match="needs a GPU"):
        Vectorised(ready(), Options(graph=True))


def test_trains_where_nothing_but_torch_and_numpy_is_installed(tmp_path: Path):
    """As on a GPU machine: no validation, data, CLI or distribution package; data from an export."""
    export(data(), tmp_path / "data", part_bytes=16 * 2**10)
    assert len(list((tmp_path / "data").glob("*.npz"))) > 4
    script = """
        import sys

        class Blocked:
            NAMES = {"pydantic", "datasets", "ray", "flwr", "typer", "rich", "huggingface_hub", "pyarrow",
                     "matplotlib", "tensorboard", "mlflow"}
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in self.NAMES:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Blocked())
        import fedrecall
        result = fedrecall.run(
            algorithm="fedntd", dataset=f"folder:{sys.argv[1]}", partition="lda:1", model="cnn:8", clients=6,
            sample=3, rounds=2, backend="vectorised", augmentation="crop:1+flip", out=sys.argv[2],
            training={"local_epochs": 1},
        )
        assert len(result.history) == 2 and result.accuracy >= 0
        Blocked.NAMES -= {"typer", "rich"}  # with these two a table is reproduced
        from fedrecall.cli import main
        sys.argv = ["fedrecall", "reproduce", "fedntd/table1", "--columns", "mnist/shard2", "--seeds", "0"]
        sys.exit(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "data"), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "mnist/shard2" in done.stdout


FULL = [Options(), Options(graph=True), Options(graph=True, chunk=1, lanes=6), Options(convolutions="matmul")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("options", FULL, ids=str)
def test_a_gpu_agrees_with_the_cpu(options: Options, monkeypatch: pytest.MonkeyPatch):
    started: Counter[int] = Counter()
    start = Recorded.start

    def counted(self: Recorded, stack: Any) -> Any:
        started[id(self)] += 1
        return start(self, stack)

    monkeypatch.setattr(Recorded, "start", counted)
    # Clients of one size are replayed with other data and another rate, others are recorded each time.
    hard: dict[str, Any] = HARD | ({"partition": "iid", "rounds": 4} if options.graph else {})
    for case in CASES:
        if case.spec.startswith("private") and importlib.util.find_spec("dp_accounting") is None:
            continue
        settings = hard | case.settings
        expected = experiment(case.spec, **settings, device="cpu")
        monkeypatch.setattr("fedrecall.experiment.open_backend", lambda _, work: Serial(work))
        expected.run()
        found = experiment(case.spec, backend="vectorised", device="cuda", **settings)
        monkeypatch.setattr("fedrecall.experiment.open_backend", lambda _, work: Vectorised(work, options))
        found.run()
        here = trees.transform(lambda t: t.cpu(), found.server)
        assert_same(here, expected.server, 1e-9, case.spec)
    assert not options.graph or max(started.values()) > 1


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), False),
        (RuntimeError("my own lookup table ran out of memory"), False),
    ],
)
def test_want_of_memory_is_told_from_other_errors(error, memory):
    assert for_want_of_memory(error) == memory


def test_what_cannot_be_recorded_is_said_in_a_sentence():
    said = r"leave graph=true out.*PyTorch says: CUDA error: operation not"
    with pytest.raises(UserError, match=said), explained(*UNRECORDED):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    with pytest.raises(RuntimeError, match="shapes cannot"), explained(*UNRECORDED):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_visit_alone_is_begun_once(monkeypatch):
    work = ready("fedseq")
    asked: Counter[int] = Counter()
    prepare = type(work.algorithm).prepare
    monkeypatch.setattr(
        type(work.algorithm),
        "prepare",
        lambda self, model, down, memory, data: (
            asked.update([data.number]) or prepare(self, model, down, memory, data)
        ),
    )
    some = jobs(work, [1])
    assert_visits_agree(Vectorised(work).map(some), Serial(work).map(some))
    assert asked == {1: 2}  # by each backend once


def test_a_batch_size_beyond_everybodys_examples_takes_no_room():
    work = ready()
    some = begun(replace(work, recipe=replace(work.recipe, batch_size=10**6)))
    device = torch.device("cpu")
    plan = Plan(some, 10**6, False, device)
    stack = stacked(some, 10**6, plan.axes, device)
    assert stack.place.shape[2] == max(len(b.data) for b in some)
    whole = replace(work, recipe=replace(work.recipe, batch_size=10**6))
    assert_visits_agree(Vectorised(whole).map(jobs(whole)), Serial(whole).map(jobs(whole)))


LOOKS = """
from dataclasses import dataclass
from fedrecall import FedAvg

@dataclass(frozen=True)
class Looks(FedAvg):
    def loss(self, model, params, anchor, batch):
        found = super().loss(model, params, anchor, batch)
        return found * 2 if found.item() > 1 else found
"""
SPECTRAL = """
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(64, 8)), nn.Linear(8, classes))
"""


@pytest.mark.parametrize("what", ["algorithm", "model"])
def test_what_cannot_be_done_to_many_clients_at_once_is_said_in_a_sentence(what, tmp_path):
    (tmp_path / "looks.py").write_text(LOOKS)
    (tmp_path / "spectral.py").write_text(SPECTRAL)
    settings = {"dataset": "digits", "clients": 4, "sample": 2, "rounds": 1}
    settings |= (
        {"algorithm": f"{tmp_path}/looks.py:Looks", "model": "mlp:4"}
        if what == "algorithm"
        else {"model": f"{tmp_path}/spectral.py:net"}
    )
    with pytest.raises(UserError, match="for many clients at once: take the serial backend"):
        fedrecall.run(backend="vectorised", **settings)
    assert fedrecall.run(backend="serial", **settings).history
