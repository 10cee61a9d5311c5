"""SCAFFOLD on two quadratics: where it must converge, what its variates must be."""

import pytest
from tests.algorithms.cases import assert_same, experiment
from tests.algorithms.quadratics import CURVATURE, OPTIMUM, Federated, quadratic, recipe

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.scaffold import Scaffold

BEST = sum(a * o for a, o in zip(CURVATURE, OPTIMUM, strict=True)) / sum(CURVATURE)
STEPS, LR = 10, 0.02


def drift_fixed_point() -> float:
    """Where w = mean_k o_k + r_k^K (w - o_k): what averaging alone converges to."""
    keep = [(1 - LR * a) ** STEPS for a in CURVATURE]
    return sum((1 - r) * o for r, o in zip(keep, OPTIMUM, strict=True)) / sum(1 - r for r in keep)


def test_fedavg_stops_elsewhere():
    run = Federated(quadratic(FedAvg)(), recipe(STEPS, LR))
    for _ in range(200):
        run.play([0, 1])
    assert run.w == pytest.approx(drift_fixed_point(), abs=1e-9)
    assert abs(run.w - BEST) > 0.05


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize(("momentum", "uniform"), [(0.0, True), (0.5, False)])
def test_reaches_the_optimum_of_the_sum(momentum, uniform):
    run = Federated(quadratic(Scaffold)(uniform=uniform), recipe(STEPS, LR, momentum))
    for _ in range(250):
        run.play([0, 1])
    assert run.w == pytest.approx(BEST, abs=1e-6)
    # The variates have become the clients' gradients there, and c their mean, which is 0.
    for k in (0, 1):
        gradient = CURVATURE[k] * (BEST - OPTIMUM[k])
        assert float(run.memory(k).variate["w"]) == pytest.approx(gradient, abs=1e-4)
    assert float(run.server.variate["w"]) == pytest.approx(0, abs=1e-6)


def test_one_step_measures_the_gradient_exactly():
    run = Federated(quadratic(Scaffold)(), recipe(1, LR))
    w = run.w
    run.play([0, 1])
    for k in (0, 1):
        assert float(run.memory(k).variate["w"]) == pytest.approx(CURVATURE[k] * (w - OPTIMUM[k]), rel=1e-12)


def test_momentum_is_divided_out():
    # A loss so flat that the gradient is the same at every step: c_k must be that gradient.
    for aware, times in ((True, 1.0), (False, (1 + 1.9 + 2.71) / 3)):  # lengths of v with rho = 0.9
        run = Federated(quadratic(Scaffold)(momentum_aware=aware), recipe(3, 1e-9, 0.9))
        w = run.w
        run.play([0, 1])
        gradient = CURVATURE[1] * (w - OPTIMUM[1])
        assert float(run.memory(1).variate["w"]) == pytest.approx(times * gradient, rel=1e-6)


@pytest.mark.parametrize("chains", [None, 2])
def test_the_servers_variate_is_the_mean_of_all_clients(chains):
    run = Federated(quadratic(Scaffold)(), recipe(3, 0.01, 0.9), sizes=(4, 6, 2, 5, 3))
    for sampled in ([0, 1, 2, 3, 4], [4, 1, 0], [2, 3, 1], [0, 4, 2, 1, 3]):
        run.play(sampled, chains)
        mean = sum(float(run.memory(k).variate["w"]) for k in range(5)) / 5
        assert float(run.server.variate["w"]) == pytest.approx(mean, rel=1e-12)


def test_the_first_round_is_fedavgs():
    assert_same(experiment("scaffold", rounds=1).run().weights, experiment("fedavg", rounds=1).run().weights)


def test_steps_that_underflow_leave_the_variates_as_they_are():
    run = Federated(quadratic(Scaffold)(), recipe(STEPS, LR), sizes=(4, 6))
    run.play([0, 1])
    before, server = [run.memory(k) for k in (0, 1)], run.server
    run.backend = Federated(quadratic(Scaffold)(), recipe(STEPS, 1e-310), sizes=(4, 6)).backend
    played = run.play([0, 1])
    assert [v.failure for v in played.visits] == [None, None]
    assert [run.memory(k) for k in (0, 1)] == before
    assert run.server == server
    settings = {"rounds": 60, "training": {"local_epochs": 1, "lr_decay": 0.1}, "precision": "float32"}
    assert not any(r["failures"] for r in experiment("scaffold", **settings).run().history)
