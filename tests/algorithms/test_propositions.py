"""The three propositions of FedNTD (Lee et al., NeurIPS 2022), as numbers."""

import itertools

import numpy as np
import pytest
import torch

from fedrecall.losses import kl
from fedrecall.measures.diversity import gradient_diversity

CLASSES = 5
RNG = np.random.default_rng


def out_local(p: np.ndarray) -> np.ndarray:
    """Eq. 7."""
    return (1 - p) / (p.shape[-1] - 1)


# Proposition 1: gradient diversity falls as knowledge on the out-local distribution is preserved.


def clients(seed: int) -> np.ndarray:
    """[K, C] label distributions which average to the uniform one, as the proof's step (26) needs."""
    start = RNG(seed).dirichlet(np.full(CLASSES, 0.3), size=2)
    return np.concatenate([[np.roll(p, shift) for shift in range(CLASSES)] for p in start])


def diversity(p: np.ndarray, beta: float, seed: int) -> float:
    """Lambda of the local gradients (p^k + beta p~^k) . g, class gradients g orthogonal and of one length."""
    g = np.linalg.qr(RNG(seed).normal(size=(12, 12)))[0][:CLASSES] * 2.5
    local = torch.from_numpy((p + beta * out_local(p)) @ g)
    found, _ = gradient_diversity(local)
    assert found is not None
    return found


def constant(p: np.ndarray) -> float:
    """M of eq. 9: K^2 times the paper's, whose eq. 20 leaves out the 1/K of the mean in eq. 8."""
    k, c = p.shape
    return float(2 * c**3 / (k * (c - 1) ** 2) * p.var(1).sum())


@pytest.mark.parametrize("seed", range(5))
def test_proposition_1_diversity_falls_at_least_at_the_stated_rate(seed: int):
    p, step = clients(seed), 1e-5
    for beta in np.linspace(step, CLASSES / 2 - 1, 12):
        slope = (diversity(p, beta + step, seed) - diversity(p, beta - step, seed)) / (2 * step)
        exact = -constant(p) * (CLASSES / (1 + beta) ** 3 - 1 / (1 + beta) ** 2)  # eq. 30
        assert slope == pytest.approx(exact, rel=1e-5)
        assert slope <= -constant(p) / (1 + beta) ** 2 + 1e-7  # eq. 9


@pytest.mark.parametrize("seed", range(5))
def test_proposition_1_from_clients_apart_to_clients_alike(seed: int):
    p = clients(seed)
    curve = [diversity(p, beta, seed) for beta in np.linspace(0, CLASSES - 1, 20)]
    assert all(b < a for a, b in itertools.pairwise(curve))
    assert curve[-1] == pytest.approx(1)  # p + (C - 1) p~ is one vector for everyone
    assert diversity(p, CLASSES + 1, seed) > 1  # and beyond it diversity grows again


def test_proposition_1_has_nothing_to_gain_where_clients_are_alike():
    p = np.full((4, CLASSES), 1 / CLASSES)
    assert [diversity(p, beta, 0) for beta in (0, 0.5, 1.5)] == pytest.approx([1, 1, 1])


# Proposition 2: what is matched on true classes counts by p, on the others by p~.


@pytest.mark.parametrize("tau", [1.0, 2.0])
@pytest.mark.parametrize("labels", [[0, 0, 1, 3, 3, 3, 4, 2], [0, 0, 1, 3, 3, 1, 4, 0], [2, 2, 2]])
def test_proposition_2_divergence_over_a_data_set_splits_into_in_local_and_out_local(
    labels: list[int], tau: float
):
    y, stream = np.array(labels), RNG(len(labels))
    t, s = 3 * stream.normal(size=(2, len(y), CLASSES))
    p = np.bincount(y, minlength=CLASSES) / len(y)
    q_g, q_l = (np.exp(z / tau) / np.exp(z / tau).sum(1, keepdims=True) for z in (t, s))
    summand = -q_g * np.log(q_l / q_g)  # [i, c]
    true = not_true = 0.0
    for c in range(CLASSES):
        own = y == c
        if own.any():
            true += p[c] * summand[own, c].mean()
        if not own.all():  # where all are of class c, p~_c is 0
            not_true += (CLASSES - 1) * out_local(p)[c] * summand[~own, c].mean()
    is_true = np.eye(CLASSES, dtype=bool)[y]
    assert true == pytest.approx(np.where(is_true, summand, 0).sum() / len(y))  # eq. 13, left
    assert not_true == pytest.approx(np.where(is_true, 0, summand).sum() / len(y))  # eq. 13, right
    whole = kl(torch.from_numpy(t), torch.from_numpy(s), tau, tau_squared=False).mean()
    assert whole.item() == pytest.approx(true + not_true)  # eq. 12


# Proposition 3: with optima of classes at equal distances and clients of any kind, the uniform
# distribution is the safest place for the global model to be.


def worst_distance(p: np.ndarray, measures: list[tuple[np.ndarray, np.ndarray]], w: np.ndarray) -> float:
    """sup over the measures of E ||w_p' - w_p||; a measure is (weights [A], distributions [A, C])."""
    return max(float(weights @ np.linalg.norm((atoms - p) @ w, axis=1)) for weights, atoms in measures)


def closed_under_permutation(seed: int, classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """A few random measures on distributions, with every renaming of the classes."""
    stream, found = RNG(seed), []
    for _ in range(3):
        weights = stream.dirichlet(np.ones(3))
        atoms = stream.dirichlet(np.full(classes, 0.4), size=3)
        found += [(weights, atoms[:, list(order)]) for order in itertools.permutations(range(classes))]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_proposition_3_nothing_is_safer_than_uniform(seed: int):
    classes, stream = 4, RNG(100 + seed)
    measures = closed_under_permutation(seed, classes)
    w = np.linalg.qr(stream.normal(size=(6, 6)))[0][:classes] * 1.7  # [C, d], equally far apart
    value = worst_distance(np.full(classes, 1 / classes), measures, w)
    near = np.full((40, classes), 1 / classes) + 0.02 * stream.normal(size=(40, classes))
    rivals = np.concatenate([stream.dirichlet(np.ones(classes), size=100), np.eye(classes), near])
    assert all(worst_distance(p / p.sum(), measures, w) >= value - 1e-12 for p in rivals)


def test_proposition_3_s_value_where_clients_have_one_class_each():
    classes = 4
    measures = [(np.ones(1), np.eye(classes)[[c]]) for c in range(classes)]
    value = worst_distance(np.full(classes, 1 / classes), measures, np.eye(classes))
    assert value == pytest.approx(np.sqrt(1 - 1 / classes))  # from the centre of a simplex to a corner
    tilted = np.array([0.3, 0.25, 0.25, 0.2])
    assert worst_distance(tilted, measures, np.eye(classes)) > value


def test_proposition_3_needs_optima_of_classes_at_equal_distances():
    # The paper's proof (45) replaces ||w_p' - w_p|| by ||p' - p||. With optima at 0, 0 and 1 on a line
    # these differ, and the middle (where the uniform distribution is not) is the safest place.
    w, measures = np.array([[0.0], [0.0], [1.0]]), [(np.ones(1), np.eye(3)[[c]]) for c in range(3)]
    assert worst_distance(np.full(3, 1 / 3), measures, w) == pytest.approx(2 / 3)
    assert worst_distance(np.array([0.25, 0.25, 0.5]), measures, w) == pytest.approx(1 / 2)
