"""The hand-written loop that speed is compared with computes what fedrecall does, of whom it is given."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import Pipe
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks.bench import W1, Product, synthetic
from benchmarks.floor import BATCH, Floor, Trainer, network

from benchmarks import floor as by_hand
from fedrecall import streams, trees
from fedrecall.algorithms.multi_teacher import Down
from fedrecall.algorithms.teachers import discrepancy, far_weights, near_weights
from fedrecall.models.networks import build
from fedrecall.training import visit

THREADS = SimpleNamespace(Pipe=Pipe, Process=Thread)
SMALL, SHAPE = "lenet_cifar", (3, 16, 16)
LR, WITHIN = 0.01, 1e-12


@pytest.fixture
def small(monkeypatch):
    """Floors train a small network, in this process."""
    monkeypatch.setattr(by_hand.mp, "get_context", lambda how: THREADS)
    monkeypatch.setattr(by_hand, "network", lambda kernels: build(SMALL, SHAPE, 10))


@contextmanager
def alike(dtype: torch.dtype) -> Iterator[None]:
    """Clients' images come in one order, and are augmented the same; what says no type is of this one."""

    def visits(seed, what, number, client):
        return torch.Generator().manual_seed(number * 1000 + client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "torch_stream", visits)
        # Drawn from nothing: the floor orders an epoch when it comes to it, fedrecall all of them at first,
        # and what comes after is to be the same.
        patch.setattr(torch, "randperm", lambda n, generator: torch.arange(n).flip(0))
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def product(algorithm: str, precision: str) -> Product:
    half = torch.full((3,), 128 / 255, dtype=torch.float64)  # x / 128 - 1: exact in single precision, too
    exact = replace(synthetic(150, SHAPE), mean=half, std=half)
    settings = W1 | {"clients": 3, "sample": 2, "partition": "dirichlet:10", "model": SMALL}
    return Product(exact, "serial", algorithm=algorithm, precision=precision, **settings)


def listed(weights) -> list[torch.Tensor]:
    return list(weights.params.values())


def largest(a, b) -> float:
    return max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True))


@pytest.mark.usefixtures("small")
def test_a_round_may_have_fewer_clients_than_there_is_room_for():
    data, parts = synthetic(60, SHAPE), [np.arange(20 * k, 20 * k + 20) for k in range(3)]
    weights = [p.detach() for p in build(SMALL, SHAPE, 10).parameters()]
    found = []
    for room in (2, 3):
        with closing(Floor("fedavg", False, False, data, parts, weights, room, 1)) as floor:
            floor.round([0, 2], LR, 1)
            found.append([w.clone() for w in floor.shared["weights"]])
    assert not torch.equal(found[0][0], weights[0])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_the_network_is_fedrecalls():
    x, weights = torch.randn(5, 3, 32, 32), list(build("cnn", (3, 32, 32), 10).parameters())
    found = []
    for kernels in (False, True):
        net = network(kernels)
        by_hand.load(net, weights)
        found.append(net(x).detach())
    torch.testing.assert_close(*found)
    assert found[0].std() > 0.01


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedntd", "scaffold"])
def test_rounds_are_fedrecalls(algorithm):
    """In double precision, as single precision's rounding now and then opens or closes a rectifier."""
    with closing(product(algorithm, "float64")) as ours, alike(torch.float64):
        data, parts = ours.run.federation.dataset, ours.run.federation.parts
        assert len({len(part) for part in parts}) == len(parts)
        assert max(map(len, parts)) > BATCH
        before = listed(ours.run.server.weights)
        with closing(Floor(algorithm, False, False, data, parts, before, 2, 2)) as floor:
            for number, sampled in enumerate(([0, 1], [1, 2]), start=1):
                loss = floor.round(sampled, LR * 0.99 ** (number - 1), number)
                assert abs(ours.round(number, sampled=sampled) - loss) < WITHIN
                now = listed(ours.run.server.weights)
                assert largest(floor.shared["weights"], now) < WITHIN
                assert largest(before, now) > 1e-3
                before = now
            if algorithm == "scaffold":
                assert largest(floor.shared["variate"], ours.run.server.variate.values()) < WITHIN


@pytest.mark.usefixtures("small")
def test_a_visit_with_several_teachers_is_fedrecalls():
    with closing(product("sfedkd", "float64")) as ours, alike(torch.float64):
        run, data = ours.run, ours.run.federation.client(1)
        start = run.server.weights
        teachers = [trees.transform(lambda w: w + 0.1 * torch.randn_like(w), start) for _ in range(3)]
        said = torch.rand(3, 10).softmax(1)
        down = Down(start, trees.transform(lambda *w: torch.stack(w), *teachers), said)
        recipe, named = run.config.training, {"seed": 0, "round_number": 1, "client": 1}
        visited = visit(run.algorithm, run.model, recipe, data, down, (), **named)

        trainer = Trainer("sfedkd", False, False, data.mean, data.std)
        trainer.teach([listed(t) for t in teachers])
        distances = discrepancy(said, data.distribution, "kl", run.algorithm.epsilon)
        shares = far_weights(distances), near_weights(distances, run.algorithm.epsilon)
        loss = trainer.train(data.x, data.y, listed(start), LR, 1001, shares=shares)
    assert abs(visited.loss - loss) < WITHIN
    assert largest(trainer.master.parameters(), listed(visited.up.weights)) < WITHIN
    assert largest(listed(start), listed(visited.up.weights)) > 1e-3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedntd"])
def test_in_bfloat16_it_differs_by_rounding(algorithm):
    with closing(product(algorithm, "bfloat16")) as ours, alike(torch.float32):
        before = [w.clone() for w in listed(ours.run.server.weights)]
        data, parts = ours.run.federation.dataset, ours.run.federation.parts
        ours.round(1, sampled=[0, 1])
        with closing(Floor(algorithm, True, False, data, parts, before, 2, 1)) as floor:
            floor.round([0, 1], LR, 1)
        moved = [
            torch.cat([(a - b).flatten() for a, b in zip(now, before, strict=True)])
            for now in (floor.shared["weights"], listed(ours.run.server.weights))
        ]
    assert 0 < (moved[0] - moved[1]).norm() < 0.05 * moved[1].norm()
