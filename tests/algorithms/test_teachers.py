"""Who teaches and by how much: hand-worked numbers, plain numpy and brute force."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance as scipy_distance

from fedrecall import streams
from fedrecall.algorithms.teachers import (
    at_random,
    complementary,
    disclosed,
    discrepancy,
    distance_to_uniform,
    far_weights,
    near_weights,
    normalised,
    uniform_weights,
)

EPSILON = 1e-4


def t(*rows):
    return torch.tensor(rows if len(rows) > 1 else rows[0], dtype=torch.float64)


def test_distances_by_hand():
    p, q = t([0.5, 0.5, 0.0]), t([0.0, 0.5, 0.5])
    assert float(discrepancy(p, q, "l1", EPSILON)) == pytest.approx(1.0)
    assert float(discrepancy(p, q, "l2", EPSILON)) == pytest.approx(math.sqrt(0.5))
    # m = (.25, .5, .25): each half gives .5 ln 2.
    assert float(discrepancy(p, q, "js", EPSILON)) == pytest.approx(0.5 * math.log(2))
    # With epsilon 1: p = (1.5, 1.5, 1)/4, q = (1, 1.5, 1.5)/4.
    assert float(discrepancy(p, q, "kl", 1.0)) == pytest.approx((0.375 - 0.25) * math.log(1.5))


@pytest.mark.parametrize("metric", ["l1", "l2", "kl", "js"])
def test_distances_against_scipy(metric):
    stream = np.random.default_rng(4)
    p, q = stream.dirichlet([0.3] * 7, 5), stream.dirichlet([0.3] * 7, 5)
    p[0, 2] = q[1, 3] = 0.0
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    found = discrepancy(torch.from_numpy(p), torch.from_numpy(q), metric, EPSILON).numpy()
    for a, b, d in zip(p, q, found, strict=True):
        expected = {
            "l1": lambda a=a, b=b: scipy_distance.cityblock(a, b),
            "l2": lambda a=a, b=b: scipy_distance.euclidean(a, b),
            "kl": lambda a=a, b=b: stats.entropy(a + EPSILON, b + EPSILON),
            "js": lambda a=a, b=b: scipy_distance.jensenshannon(a, b) ** 2,
        }[metric]()
        assert d == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["l1", "l2", "kl", "js"])
def test_equal_distributions_are_at_zero_and_others_are_not(metric):
    p = t([0.2, 0.8, 0.0])
    assert float(discrepancy(p, p, metric, EPSILON)) == 0.0
    assert float(discrepancy(p, t([0.3, 0.7, 0.0]), metric, EPSILON)) > 1e-3


def test_kl_takes_the_teacher_first_and_survives_classes_that_nobody_has():
    teacher, student = t([0.9, 0.1, 0.0, 0.0]), t([0.5, 0.5, 0.0, 0.0])
    forth, back = (
        float(discrepancy(a, b, "kl", EPSILON)) for a, b in ((teacher, student), (student, teacher))
    )
    assert forth == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), rel=1e-2)
    assert back == pytest.approx(0.5 * math.log(5 / 9) + 0.5 * math.log(5), rel=1e-2)


def test_weights_by_hand():
    d = t([1.0, 3.0, 0.0])
    torch.testing.assert_close(far_weights(d), t([0.25, 0.75, 0.0]))
    # 1/(d + 1) = 1/2, 1/4, 1: over 7/4.
    torch.testing.assert_close(near_weights(d, 1.0), t([2 / 7, 1 / 7, 4 / 7]))
    torch.testing.assert_close(uniform_weights(d), t([1 / 3] * 3))


def test_weights_of_equally_distributed_clients_are_uniform():
    for d in (t([0.0] * 4), t([1e-17] * 4), t([3e-16, 0.0, 1e-17, 2e-13])):  # what rounding leaves of 0
        torch.testing.assert_close(far_weights(d), t([0.25] * 4))
        torch.testing.assert_close(near_weights(d, EPSILON), t([0.25] * 4), rtol=1e-7, atol=0)


@pytest.mark.parametrize("d", [0.0, 1e-9, 0.3, 8.5])
def test_a_single_teacher_has_all_the_weight(d):
    for weights in (far_weights(t([d])), near_weights(t([d]), EPSILON), uniform_weights(t([d]))):
        torch.testing.assert_close(weights, torch.ones(1, dtype=torch.float64))


def distributions(rows, classes):
    shares = st.lists(st.integers(0, 5), min_size=classes, max_size=classes)
    return st.lists(shares, min_size=rows, max_size=rows).map(
        lambda v: normalised(torch.tensor(v, dtype=torch.float64))
    )


@settings(deadline=None, max_examples=60)
@given(distributions(5, 4), st.sampled_from(["l1", "l2", "kl", "js"]), st.integers(0, 6))
def test_greedy_is_what_algorithm_1_says(found, metric, count):
    d = found.numpy()
    chosen, total = [], np.zeros(4)
    for _ in range(min(count, 5)):
        best, nearest = None, math.inf
        for i in range(5):
            if i in chosen:
                continue
            agg = (total + d[i]) / (total + d[i]).sum()
            gap = float(discrepancy(torch.from_numpy(agg), t([0.25] * 4), metric, EPSILON))
            if gap < nearest - 1e-12:  # strictly better only: ties stay with the earlier client
                best, nearest = i, gap
        chosen.append(best)
        total += d[best]
    assert complementary(found, count, metric, EPSILON) == chosen


def test_ties_go_to_the_earlier_client_whatever_rounding_does():
    # The same shares in another order are equally far from uniform, but not in floating point.
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=torch.float64)
    rows = torch.stack([shares[list(order)] for order in itertools.permutations(range(5))])
    for metric in ("l1", "l2", "kl", "js"):
        assert complementary(rows, 1, metric, EPSILON) == [0]


def test_complementary_clients_are_found():
    classes = torch.eye(4, dtype=torch.float64)
    rows = classes[[0, 0, 1, 0, 1, 2, 3]]
    assert complementary(rows, 4, "kl", EPSILON) == [0, 2, 5, 6]
    assert float(distance_to_uniform(rows[[0, 2, 5, 6]], "kl", EPSILON)) == 0.0


def test_greedy_never_beats_brute_force_and_often_reaches_it():
    stream = np.random.default_rng(0)
    reached = []
    for _ in range(20):
        rows = torch.from_numpy(stream.dirichlet([0.3] * 5, 7))
        greedy = distance_to_uniform(rows[complementary(rows, 3, "kl", EPSILON)], "kl", EPSILON)
        best = min(
            float(distance_to_uniform(rows[list(c)], "kl", EPSILON))
            for c in itertools.combinations(range(7), 3)
        )
        assert float(greedy) >= best - 1e-12
        reached.append(float(greedy) <= best + 1e-12)
    assert any(reached)
    assert not all(reached)  # it is a heuristic


@settings(deadline=None, max_examples=30)
@given(distributions(4, 3), st.integers(1, 2))
def test_one_teacher_is_optimal_and_all_are_all(found, extra):
    one = complementary(found, 1, "kl", EPSILON)
    gaps = distance_to_uniform(found.unsqueeze(1), "kl", EPSILON)
    assert float(gaps[one[0]]) <= float(gaps.min()) + 1e-12
    assert sorted(complementary(found, 3 + extra, "kl", EPSILON))[:3] in (
        [0, 1, 2],
        [0, 1, 3],
        [0, 2, 3],
        [1, 2, 3],
    )
    assert sorted(complementary(found, 9, "kl", EPSILON)) == [0, 1, 2, 3]


def test_random_teachers_are_drawn_evenly_and_kept_in_their_order():
    assert at_random(3, 5) == [0, 1, 2]
    counts = np.zeros(6)
    with streams.seeded(1):
        for _ in range(3000):
            drawn = at_random(6, 2)
            assert drawn == sorted(set(drawn))
            counts[drawn] += 1
    assert stats.chisquare(counts).pvalue > 1e-4


def test_exact_and_grid_shares():
    p = t([0.5, 0.3, 0.15, 0.05])
    assert torch.equal(disclosed(p, "exact", 9.0, 4), p)
    # Multiples of 1/4: 2, 1.2, 0.6, 0.2 -> 2, 1, 1, 0.
    torch.testing.assert_close(disclosed(p, "grid", 0.0, 4), t([0.5, 0.25, 0.25, 0.0]))
    # Nothing rounds up to a share: nothing is known.
    torch.testing.assert_close(disclosed(t([0.1] * 10), "grid", 0.0, 2), t([0.1] * 10))


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("share", ["laplace", "gaussian"])
def test_noise_has_the_stated_distribution(share, secret):
    n = 20_000
    far = torch.full((n,), 1000.0, dtype=torch.float64)  # nothing is cut off; renormalised, sum is n 1000
    with streams.seeded(3):
        said = disclosed(far, share, 2.0, 1, secret)
    noise = (said * 1000 * n - 1000).numpy()  # the renormalisation shifts by the mean noise, about 0.02
    law = {"laplace": stats.laplace(scale=2), "gaussian": stats.norm(scale=2)}[share]
    assert stats.kstest(noise + 0.0, law.cdf).statistic < 0.015
    assert noise.std() == pytest.approx(law.std(), rel=0.05)


@pytest.mark.parametrize("share", ["laplace", "gaussian", "grid"])
@pytest.mark.parametrize("noise", [0.0, 0.05, 100.0])
def test_what_is_disclosed_is_a_distribution(share, noise):
    for seed in range(20):
        with streams.seeded(seed):
            said = disclosed(t([0.6, 0.4, 0.0, 0.0]), share, noise, 3)
        assert float(said.sum()) == pytest.approx(1.0)
        assert bool((said >= 0).all())
        if noise == 0 and share != "grid":
            torch.testing.assert_close(said, t([0.6, 0.4, 0.0, 0.0]))
