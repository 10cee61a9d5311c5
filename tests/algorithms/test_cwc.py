"""CWC: the importance that travels along."""

import pytest
import torch
from tests.algorithms.cases import experiment
from tests.algorithms.test_all import moment, play

from fedrecall.algorithms.fisher import diagonal_fisher
from fedrecall.algorithms.hooks import Sgd


def normalised_fisher(run, visit):
    f = diagonal_fisher(run.model, visit.up.weights, run.federation.client(visit.client))
    flat = torch.cat([v.flatten() for v in f.values()])
    return {n: v / flat.mean() for n, v in f.items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for n, value in expected.items():
        torch.testing.assert_close(found[n], value, rtol=1e-10, atol=1e-12)


def test_every_client_adds_what_mattered_to_it_and_a_round_starts_with_a_share():
    run = experiment("cwc:lam=0.01,sigma=0.25")
    first = play(run, [3, 0, 1], 1)
    total = {n: torch.zeros_like(p) for n, p in run.server.weights.params.items()}
    for visit in first.visits:
        fisher = normalised_fisher(run, visit)
        assert float(torch.cat([f.flatten() for f in fisher.values()]).mean()) == pytest.approx(1)
        total = {n: o + fisher[n] for n, o in total.items()}
        assert_equal(visit.up.importance, total)
    assert_equal(first.server.importance, total)
    run.server = first.server
    (visit,) = play(run, [2], 1, number=2).visits
    fisher = normalised_fisher(run, visit)
    assert_equal(visit.up.importance, {n: 0.25 * o + fisher[n] for n, o in total.items()})


def test_importance_too_small_to_be_scaled_is_none(monkeypatch):
    run = experiment("cwc:lam=0.01,sigma=0.25", precision="float32")
    faint = {n: torch.full_like(p, 1e-39) for n, p in run.server.weights.params.items()}
    monkeypatch.setattr("fedrecall.algorithms.cwc.diagonal_fisher", lambda *given: faint)
    (visit,) = play(run, [1], 1).visits
    assert visit.failure is None
    assert all(not o.any() for o in visit.up.importance.values())


def test_loss_by_hand():
    run = experiment("cwc:lam=0.6")
    down, memory, local, batch = moment(run)
    stream = torch.Generator().manual_seed(1)
    params = down.weights.params
    importance = {n: torch.rand(p.shape, generator=stream, dtype=p.dtype) for n, p in params.items()}
    anchor = run.algorithm.prepare(run.model, down._replace(importance=importance), memory, local)
    moved = {n: p + 0.1 for n, p in params.items()}
    student = run.model.student(down.weights.buffers, torch.tensor(0))
    found = run.algorithm.loss(student, moved, anchor, batch)
    plain = torch.nn.functional.cross_entropy(student(moved, batch.x), batch.y)
    expected = plain + 0.3 * 0.01 * sum(o.sum() for o in importance.values())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_chains_average_their_importance():
    run = experiment("cwc:lam=0.01")
    played = play(run, [3, 0, 1, 2], 2)
    last = [played.visits[1], played.visits[3]]
    examples = [sum(v.examples for v in played.visits[:2]), sum(v.examples for v in played.visits[2:])]
    for n, value in played.server.importance.items():
        expected = sum(v.up.importance[n] * e for v, e in zip(last, examples, strict=True)) / sum(examples)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)


def test_a_client_that_is_certain_of_everything_adds_nothing():
    run = experiment("cwc")
    down, memory, local, _ = moment(run)
    anchor = run.algorithm.prepare(run.model, down, memory, local)
    params = dict(down.weights.params)
    last = list(params)[-2:]  # of the last layer: huge logits for the only class the client has
    params[last[0]] = torch.zeros_like(params[last[0]])
    params[last[1]] = torch.tensor([1e4, 0.0, 0.0, 0.0], dtype=torch.float64)
    local.y = torch.zeros_like(local.y)
    weights, sgd = down.weights._replace(params=params), Sgd(lr=0.1, momentum=0.0, weight_decay=0.0, steps=1)
    up, _ = run.algorithm.finish(run.model, weights, anchor, memory, local, sgd)
    assert all(bool((o == 0).all()) for o in up.importance.values())


def test_no_importance_grows_beyond_what_a_step_can_follow():
    """With lr lambda Omega > 2 every step would end further from the model that arrived than it began."""
    run = experiment("cwc:lam=1e6", training={"momentum": 0.0, "lr": 0.1})
    for visit in play(run, [3, 0, 1], 1).visits:
        assert visit.failure is None
        greatest = max(float(o.max()) for o in visit.up.importance.values())
        assert greatest == pytest.approx(1 / (0.1 * 1e6), rel=1e-12)


def test_the_greatest_importance_takes_a_parameter_back_in_one_step():
    run = experiment("cwc:lam=1e6", training={"momentum": 0.0, "lr": 0.1})
    down, memory, local, batch = moment(run)
    greatest = {n: torch.full_like(p, 1 / (0.1 * 1e6)) for n, p in down.weights.params.items()}
    anchor = run.algorithm.prepare(run.model, down._replace(importance=greatest), memory, local)
    moved = {n: (p + 0.3).requires_grad_() for n, p in down.weights.params.items()}
    student = run.model.student(down.weights.buffers, torch.tensor(0))
    plain = torch.nn.functional.cross_entropy(student(moved, batch.x), batch.y)
    pull = run.algorithm.loss(student, moved, anchor, batch) - plain
    gradients = torch.autograd.grad(pull, list(moved.values()))
    for p, gradient, arrived in zip(moved.values(), gradients, down.weights.params.values(), strict=True):
        torch.testing.assert_close(p - 0.1 * gradient, arrived, rtol=1e-9, atol=1e-9)
