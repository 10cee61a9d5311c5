"""FedAvgM, FedNova and FedDyn: the server's step against plain formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.algorithms.cases import assert_same, experiment
from tests.algorithms.quadratics import CURVATURE, OPTIMUM, Federated, quadratic, recipe

from fedrecall import trees
from fedrecall.algorithms.fedavg import Up
from fedrecall.algorithms.fedavgm import FedAvgM
from fedrecall.algorithms.feddyn import FedDyn
from fedrecall.algorithms.fednova import FedNova, Steps
from fedrecall.algorithms.hooks import Cohort
from fedrecall.models.model import Weights


def weights(*values: float) -> Weights:
    return Weights(
        {"w": torch.tensor(values, dtype=torch.float64)},
        {"mean": torch.tensor(values, dtype=torch.float64) + 10},
    )


def cohort(shares: list[float], population: int = 4) -> Cohort:
    n = len(shares)
    return Cohort(list(range(n)), shares, population, n, [0] * n, list(range(n)))


def test_equal_weights_are_of_the_chains_that_count():
    assert cohort([0.0, 0.25, 0.0, 0.75]).uniform() == [0, 0.5, 0, 0.5]
    assert cohort([0.2, 0.8]).uniform() == [0.5, 0.5]


def test_server_momentum_by_hand():
    algorithm = FedAvgM(beta=0.5)
    server = algorithm.start(weights(1.0))
    # Round 1: mean 0.25 * 0 + 0.75 * 0.8 = 0.6, v = 0.4, w = 0.6. Round 2: mean 0.5, v = 0.3, w = 0.3.
    server = algorithm.aggregate(
        server, trees.stack([Up(weights(0.0)), Up(weights(0.8))]), cohort([0.25, 0.75])
    )
    assert server.weights.params["w"].item() == pytest.approx(0.6)
    assert server.weights.buffers["mean"].item() == pytest.approx(10.6)
    server = algorithm.aggregate(server, trees.stack([Up(weights(0.5))]), cohort([1.0]))
    assert server.velocity["w"].item() == pytest.approx(0.3)
    assert server.weights.params["w"].item() == pytest.approx(0.3)
    assert server.weights.buffers["mean"].item() == pytest.approx(10.5)


def test_normalised_average_against_its_formula():
    rng = np.random.default_rng(0)
    old, new, p, a = rng.normal(size=3), rng.normal(size=(3, 3)), np.array([0.5, 0.3, 0.2]), [1.0, 7.5, 40.0]
    ups = [Steps(weights(*w), torch.tensor(s, dtype=torch.float64)) for w, s in zip(new, a, strict=True)]
    algorithm = FedNova()
    found = algorithm.aggregate(algorithm.start(weights(*old)), trees.stack(ups), cohort(list(p)))
    expected = old - (p @ a) * sum(p[k] * (old - new[k]) / a[k] for k in range(3))
    np.testing.assert_allclose(found.weights.params["w"], expected, rtol=1e-12)
    np.testing.assert_allclose(found.weights.buffers["mean"], p @ new + 10, rtol=1e-12)


def test_recoil_by_a_plain_loop():
    # Released code's half of variance reduction, g - d_k, on the two quadratics, in numbers.
    steps, lr, rho, sizes = 3, 0.02, 0.5, (4, 8)
    run = Federated(quadratic(FedNova)(recoil=True), recipe(steps, lr, rho), sizes=sizes)
    effective = steps - rho * (1 - rho**steps) / (1 - rho)
    effective /= 1 - rho
    w, last = run.w, [0.0, 0.0]
    for sampled in ([0, 1], [1], [0], [1, 0]):
        ends = []
        for k in sampled:
            x = w
            v = 0.0
            for _ in range(steps):
                v = rho * v + CURVATURE[k] * (x - OPTIMUM[k]) - last[k]
                x -= lr * v
            last[k] = (w - x) / (lr * effective)
            ends.append(x)
        shares = [sizes[k] / sum(sizes[j] for j in sampled) for k in sampled]
        w = sum(p * x for p, x in zip(shares, ends, strict=True))
        run.play(sampled)
        assert run.w == pytest.approx(w, rel=1e-12)
        assert [float(run.memory(k).direction["w"]) for k in sampled] == pytest.approx(
            [last[k] for k in sampled], rel=1e-9
        )


def test_steps_that_underflow_leave_the_direction_as_it_is():
    run = Federated(quadratic(FedNova)(recoil=True), recipe(3, 0.02))
    run.play([0, 1])
    before, w = [run.memory(k) for k in (0, 1)], run.w
    run.backend = Federated(quadratic(FedNova)(recoil=True), recipe(3, 1e-310)).backend
    assert [v.failure for v in run.play([0, 1]).visits] == [None, None]
    assert [run.memory(k) for k in (0, 1)] == before
    assert run.w == w


def test_recoil_begins_with_the_second_visit():
    settings = {"rounds": 1, "sample": 6}
    plain, recoiling = (experiment(a, **settings).run().weights for a in ("fednova", "fednova:recoil=true"))
    assert_same(plain, recoiling)
    settings["rounds"] = 2
    plain, recoiling = (experiment(a, **settings).run().weights for a in ("fednova", "fednova:recoil=true"))
    with pytest.raises(AssertionError, match="differs"):
        assert_same(plain, recoiling, 1e-3)


def test_normalised_average_of_equal_clients_is_the_average():
    even = {"partition": "iid", "clients": 6}
    assert_same(
        experiment("fednova", **even).run().weights, experiment("fedavg", **even).run().weights, 1e-12
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_effective_steps_are_how_far_a_constant_gradient_moves(momentum):
    chosen = recipe(7, 0.1, momentum)
    moved = velocity = 0.0
    for _ in range(7):
        velocity = momentum * velocity + 1.0
        moved += velocity
    assert chosen.sgd(1, 50).effective_steps() == pytest.approx(moved, rel=1e-12)


def test_steps_are_counted_along_a_chain():
    run = Federated(quadratic(FedNova)(), recipe(3, 0.01), sizes=(4, 4, 4))
    played = run.play([0, 1, 2], 1)
    assert [float(v.up.steps) for v in played.visits] == [3.0, 6.0, 9.0]
    assert run.w == pytest.approx(float(played.visits[-1].up.weights.params["w"]), rel=1e-12)


def test_dynamic_regularisation_reaches_the_optimum_of_the_mean():
    # Local problems solved to the end: the theory's condition.
    run = Federated(quadratic(FedDyn)(alpha=2.0), recipe(40, 0.1))
    for _ in range(60):
        run.play([0, 1])
    best = sum(a * o for a, o in zip(CURVATURE, OPTIMUM, strict=True)) / sum(CURVATURE)
    assert run.w == pytest.approx(best, abs=1e-6)
    for k in (0, 1):
        assert float(run.memory(k).gradient["w"]) == pytest.approx(
            CURVATURE[k] * (best - OPTIMUM[k]), abs=1e-4
        )


@pytest.mark.parametrize("chains", [None, 2])
def test_the_servers_h_is_the_mean_of_all_clients(chains):
    run = Federated(quadratic(FedDyn)(), recipe(4, 0.02, 0.5), sizes=(4, 6, 2, 5, 3))
    for sampled in ([4, 1, 0], [2, 3, 1], [0, 4, 2, 1, 3]):
        before = run.w
        played = run.play(sampled, chains)
        mean = sum(float(run.memory(k).gradient["w"]) for k in range(5)) / 5
        assert float(run.server.correction["w"]) == pytest.approx(mean, rel=1e-12)
        if chains is None:
            average = np.mean([float(v.up.weights.params["w"]) for v in played.visits])
            assert run.w == pytest.approx(average - mean / 0.1, rel=1e-12)
        assert run.w != before


def test_the_servers_h_moves_by_the_clients_that_came_through():
    """Two uploads of three clients that were asked, of four: h - alpha 2/4 (mean - old)."""
    algorithm = FedDyn(alpha=0.5)
    ups = trees.stack([Up(weights(2.0)), Up(weights(4.0))])
    here = replace(cohort([0.5, 0.5]), sampled=3)
    found = algorithm.aggregate(algorithm.start(weights(1.0)), ups, here)
    assert float(found.correction["w"]) == pytest.approx(-0.5 * 2 / 4 * 2)
    assert float(found.weights.params["w"]) == pytest.approx(3 + 0.5 / 0.5)


def test_dynamic_local_objective_against_its_formula():
    run = experiment("feddyn:alpha=0.3", rounds=2)
    run.run()
    model, server = run.model, run.server
    memory = run.memories.get(run.history[-1]["chains"][0][0])
    batch = next(iter(run.federation.client(0).batches(9)))
    down = run.algorithm.broadcast(model, server, None)
    anchor = run.algorithm.prepare(model, down, memory, run.federation.client(0))
    params = {n: p + 0.1 for n, p in server.weights.params.items()}
    z = model.logits(Weights(params, {}), batch.x).detach().numpy()
    ce = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(9), batch.y.numpy()])
    linear = sum(float((memory.gradient[n] * p).sum()) for n, p in params.items())
    square = 0.1**2 * sum(p.numel() for p in params.values())
    found = run.algorithm.loss(model.student({}, torch.tensor(0)), params, anchor, batch)
    assert float(found) == pytest.approx(ce - linear + 0.15 * square, rel=1e-10)


def test_a_sum_is_a_mean_with_weights_of_any_size():
    three, stream = cohort([0.2, 0.5, 0.3]), torch.Generator().manual_seed(0)
    stacked = {
        "w": torch.randn(3, 5, generator=stream, dtype=torch.float64),
        "n": torch.tensor([1, 2, 4]),
    }
    weights = [0.2, 0.5, 0.3]
    assert_same(three.sum(stacked, weights), three.mean(stacked, weights))
    assert_same(three.sum(stacked), {"w": stacked["w"].sum(0), "n": torch.tensor(7)}, 1e-15)
    assert_same(three.sum(stacked, np.array([2.0, 0, -1])), three.sum(stacked, torch.tensor([2, 0, -1])))
    assert three.sum(stacked, [2.0, 0, -1])["n"].item() == -2
