"""What every algorithm must satisfy, driven over the table in `cases.py`."""

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.cases import (
    BATCH_NORM,
    CASES,
    CHAINED,
    NETS,
    NORMED,
    VARIANTS,
    Case,
    assert_same,
    each,
    experiment,
    with_values,
)
from tests.backends.clusters import two_nodes
from torch.func import grad, vmap

from fedrecall import files, rounds, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import Up
from fedrecall.backends import BACKENDS
from fedrecall.backends.backend import Work
from fedrecall.backends.serial import Serial
from fedrecall.batches import Batch
from fedrecall.models.model import Weights
from fedrecall.training import visit

OTHERS = [b for b in BACKENDS if b not in ("auto", "serial")]


def test_every_algorithm_is_in_the_table():
    assert set(ALGORITHMS) == {case.name for case in CASES}


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize(**each(c for c in CASES + VARIANTS if c.equals))
def test_equals_the_simpler_algorithm_when_its_term_is_off(case: Case):
    on = experiment(case.spec, **case.settings)
    # What the server holds for itself is missing at the clients, so it must be so for both.
    per_class = on.algorithm.auxiliary_per_class
    off = experiment(with_values(case.spec, case.equals), **case.settings).run()
    plain = experiment(case.like, auxiliary_per_class=per_class, **case.settings).run()
    assert_same(off.weights, plain.weights, 1e-12)
    params = on.run().weights.params
    assert any(not torch.equal(params[n], p) for n, p in plain.weights.params.items())


@functools.cache
def serial_run(spec: str) -> tuple[Any, list[float]]:
    run = experiment(spec)
    losses = [r["train_loss"] for r in run.run().history]
    return run.server, losses


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the ray extra is not installed: pip install fedrecall[ray]")
    with two_nodes():
        yield


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize(**each())
def test_backends_agree(case: Case, backend: str, request: pytest.FixtureRequest):
    if backend == "ray":
        request.getfixturevalue("cluster")
    server, losses = serial_run(case.spec)
    run = experiment(case.spec, backend=backend, workers=2)
    found = [r["train_loss"] for r in run.run().history]
    assert_same(run.server, server, 1e-12)
    np.testing.assert_allclose(found, losses, rtol=1e-11)


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize(**each())
def test_resuming_is_as_if_never_stopped(case: Case, stop: int, tmp_path):
    server, losses = serial_run(case.spec)
    experiment(case.spec, tmp_path / "run", rounds=stop).run()
    again = experiment(case.spec, tmp_path / "run", resume=True)
    assert len(again.history) == stop
    assert [r["train_loss"] for r in again.run().history] == losses
    assert_same(again.server, server)


def play(run: Any, sampled: list[int], chains: int, number: int = 1, population: int | None = None) -> Any:
    work = Work(run.algorithm, run.model, run.config.training, run.federation, run.config.seed)
    return rounds.play(
        run.algorithm,
        run.model,
        run.server,
        run.memories,
        Serial(work),
        run.federation.auxiliary,
        population=population or len(run.federation),
        sampled=sampled,
        chain_count=chains,
        round_number=number,
    )


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize(**each())
def test_company_and_order_change_nobodys_visit(case: Case):
    few, more = experiment(case.spec), experiment(case.spec)
    for number in (1, 2):  # the second round with memories, from the same server state
        a = {v.client: v for v in play(few, [0, 1, 2], 3, number).visits}
        b = {v.client: v for v in play(more, [4, 2, 1, 0], 4, number).visits}
        for k in (0, 1, 2):
            assert_same(a[k].up, b[k].up, what=f"client {k}'s upload")
            assert_same(a[k].memory, b[k].memory, what=f"client {k}'s memory")


@pytest.mark.parametrize(**each(CHAINED))
def test_is_the_local_objective_of_chains(case: Case):
    run = experiment(case.spec, sample=5, chains=2, rounds=2)
    result = run.run()
    assert [list(map(len, r["chains"])) for r in result.history] == [[3, 2], [3, 2]]
    assert trees.finite(run.server)
    assert all(not r["failures"] for r in result.history)
    # A link is what its client makes alone of what the one before passes on.
    one, two = second_round(case), second_round(case)
    down = two.algorithm.broadcast(two.model, two.server, two.federation.auxiliary)
    for found in play(one, [0, 1, 2], 1, number=2).visits:
        alone = visit(
            two.algorithm,
            two.model,
            two.config.training,
            two.federation.client(found.client),
            down,
            two.memories.get(found.client),
            seed=two.config.seed,
            round_number=2,
            client=found.client,
        )
        assert_same(found.up, alone.up, what=f"client {found.client}'s upload")
        down = two.algorithm.relay(down, alone.up)


def moment(run: Any, client: int = 0) -> tuple[Any, Any, Any, Batch]:
    """(down, memory, data, first batch) of a first visit."""
    down = run.algorithm.broadcast(run.model, run.server, run.federation.auxiliary)
    memory = run.algorithm.remember(down.weights)
    local = run.federation.client(client)
    draws = local.draw(1, 0, 1, client)
    return down, memory, local, next(iter(local.training_batches(draws, 10)))


def second_round(case: Case, **settings: Any) -> Any:
    """A run after one round, so that servers, memories and teachers hold something."""
    run = experiment(case.spec, **{**case.settings, **settings})
    run.server = play(run, [0, 1, 2], 1 if run.algorithm.sequential else 3).server
    return run


@pytest.mark.parametrize(**each(CASES + VARIANTS))
def test_gradients_under_vmap_are_those_of_each_client(case: Case):
    run = second_round(case, partition="iid")  # clients of one size, whose anchors can be stacked
    model, algorithm = run.model, run.algorithm
    anchors, batches, started = [], [], []
    for client in (0, 1):
        down, memory, local, batch = moment(run, client)
        memory = run.memories.get(client) or memory
        anchors.append(algorithm.prepare(model, down, memory, local))
        batches.append(batch._replace(mask=torch.ones_like(batch.y, dtype=torch.bool)))
        noise = torch.Generator().manual_seed(client)
        shaken = trees.transform(
            lambda p, noise=noise: p + 0.1 * torch.randn(p.shape, generator=noise, dtype=p.dtype),
            down.weights.params,
        )
        started.append(Weights(shaken, down.weights.buffers))
    key = torch.tensor(5)

    def gradient(weights: Weights, anchor: Any, batch: Batch) -> Any:
        def objective(params: Any) -> Any:
            return algorithm.loss(model.student(weights.buffers, key), params, anchor, batch)

        return algorithm.correct(grad(objective)(weights.params), anchor)

    alone = [gradient(w, a, b) for w, a, b in zip(started, anchors, batches, strict=True)]
    together = vmap(gradient)(trees.stack(started), trees.stack(anchors), trees.stack(batches))
    for i, expected in enumerate(alone):
        assert_same(trees.take(together, i), expected, 1e-12, "gradient")
    # A batch that is filled up, as when clients of unequal sizes train side by side.
    full = batches[0]
    filled = Batch(
        torch.cat([full.x, torch.full_like(full.x[:3], 7.0)]),
        torch.cat([full.y, torch.zeros_like(full.y[:3])]),
        torch.cat([full.place, torch.zeros_like(full.place[:3])]),
        torch.arange(len(full.y) + 3) < len(full.y),
    )
    assert_same(gradient(started[0], anchors[0], filled), alone[0], 1e-12, "gradient with filling")


@pytest.mark.parametrize(**each())
def test_tuples_hold_tensors_and_survive_a_file(case: Case, tmp_path):
    run = second_round(case)
    down, memory, local, _ = moment(run)
    anchor = run.algorithm.prepare(run.model, down, memory, local)
    config = run.config
    done = visit(
        run.algorithm,
        run.model,
        config.training,
        local,
        down,
        memory,
        seed=1,
        round_number=2,
        client=0,
    )
    assert isinstance(down.weights, Weights)
    assert isinstance(done.up.weights, Weights)
    tuples = {"server": run.server, "down": down, "memory": done.memory, "anchor": anchor, "up": done.up}
    for what, value in tuples.items():
        assert isinstance(value, tuple), what
        assert hasattr(value, "_fields"), what
        assert only_tensors(value), f"{what} holds something that is not a tensor"
        files.write_arrays(tmp_path / "x.safetensors", trees.arrays(value))
        assert_same(trees.restore(value, files.read_arrays(tmp_path / "x.safetensors")), value)
    # What a client remembers keeps its structure, so that memories can be stored by a template.
    assert trees.arrays(done.memory).keys() == trees.arrays(memory).keys()
    assert run.memory_bytes == trees.size_in_bytes(done.memory)


def only_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        return all(isinstance(k, str) and only_tensors(v) for k, v in value.items())
    return isinstance(value, tuple) and all(map(only_tensors, value))


# Batch normalisation.


@pytest.mark.parametrize(**each(NORMED))
def test_running_statistics_are_averaged(case: Case):
    run = experiment(case.spec, model=BATCH_NORM)
    before = run.server.weights
    played = play(run, [0, 1, 2], 1 if run.algorithm.sequential else 3)
    last = played.visits[-1:] if run.algorithm.sequential else played.visits
    total = sum(v.examples for v in last)
    for name, buffer in played.server.weights.buffers.items():
        mean = sum(v.up.weights.buffers[name].double() * v.examples / total for v in last)
        expected = mean if buffer.is_floating_point() else mean.round().to(buffer.dtype)
        torch.testing.assert_close(buffer, expected, rtol=1e-12, atol=1e-12)
        assert not torch.equal(buffer, before.buffers[name])


@pytest.mark.parametrize(**each(NORMED + VARIANTS))
def test_the_teacher_is_in_evaluation_mode_with_its_own_statistics(case: Case):
    run = second_round(case, model=BATCH_NORM)
    down, _, local, batch = moment(run)
    other = trees.transform(lambda b: b * 2 + 1, down.weights.buffers)

    def loss(teacher_buffers: Any, student_buffers: Any) -> tuple[float, Any]:
        sent = down._replace(weights=down.weights._replace(buffers=teacher_buffers))
        memory = run.memories.get(0) or run.algorithm.remember(sent.weights)
        anchor = run.algorithm.prepare(run.model, sent, memory, local)
        student = run.model.student(student_buffers, torch.tensor(0))
        shaken = {n: p * 1.1 + 0.02 for n, p in down.weights.params.items()}
        return float(run.algorithm.loss(student, shaken, anchor, batch)), student.buffers

    own = down.weights.buffers
    normal, after = loss(own, own)
    # The student normalises by its batch: nobody may look at its running statistics.
    assert loss(own, other)[0] == normal
    # The teacher normalises by running statistics, and by those that came with it.
    changed, after_other = loss(other, own)
    assert (changed != normal) == case.teacher
    # The student's statistics are those of one pass over the batch, whatever the teacher saw.
    assert_same(after, after_other)
    reference = run.model.student(own, torch.tensor(0))
    reference({n: p * 1.1 + 0.02 for n, p in down.weights.params.items()}, batch.x)
    assert_same(after, reference.buffers)


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize(**each(NORMED))
def test_frozen_parameters_stay_as_they_are_and_in_the_model(case: Case, precision: str, tmp_path):
    settings = case.settings | {"model": f"{BATCH_NORM},frozen=last", "precision": precision, "rounds": 2}
    runs = [
        experiment(case.spec, tmp_path / backend, backend=backend, **settings)
        for backend in ("serial", "vectorised")
    ]
    constants = {"last.0.weight", "last.0.bias", "last.1.weight", "last.1.bias"}
    for run in runs:
        start = run.model.initial()
        run.run()
        after, saved = run.server.weights, next(run.folder.checkpoints()).arrays
        assert constants <= after.buffers.keys() - after.params.keys()
        for name, buffer in start.buffers.items():
            assert torch.equal(after.buffers[name], buffer) == (name in constants), name
            assert torch.equal(saved[f"weights/buffers/{name}"], after.buffers[name])
        assert not any(torch.equal(after.params[name], p) for name, p in start.params.items())
    if precision == "float64":
        assert_same(runs[1].server, runs[0].server, 1e-12)


def test_frozen_parameters_that_come_back_changed_are_not_taken():
    run = experiment("fedavg", model=f"{NETS}:frozen=first")

    class Lossy(Serial):
        def map(self, jobs: Any) -> Iterator[Any]:
            for made in super().map(jobs):
                shaken = {n: b * 1.01 for n, b in made.up.weights.buffers.items()}
                yield made._replace(up=Up(made.up.weights._replace(buffers=shaken)))

    played = rounds.play(
        run.algorithm,
        run.model,
        run.server,
        run.memories,
        Lossy(run.work),
        None,
        population=6,
        sampled=[0, 1, 2, 3],
        chain_count=2,
        round_number=1,
    )
    assert_same(played.server.weights.buffers, run.model.initial().buffers)


@pytest.mark.parametrize(**each(NORMED))
def test_takes_a_step_with_resnet10(case: Case):
    run = experiment(
        case.spec,
        model="resnet10:width=8",
        rounds=1,
        sample=2,
        training={"local_epochs": 1, "batch_size": 100},
    )
    result = run.run()
    assert trees.finite(run.server)
    assert result.history[0]["failures"] == []
