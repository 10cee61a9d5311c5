import itertools
import math

import numpy as np
import pytest

from fedrecall.errors import UserError
from fedrecall.reports import statistics as S


def test_mean_and_sample_deviation_by_hand():
    # (1, 2, 6): mean 3, squares 4 + 1 + 9 = 14, divided by n - 1 = 2.
    found = S.summary([1, 2, 6])
    assert found.mean == pytest.approx(3)
    assert found.std == pytest.approx(math.sqrt(7))
    assert found.text(digits=1) == "3.0 ± 2.6"


def test_one_value_has_no_spread():
    assert S.summary([0.5]) == (0.5, None, 1)
    assert S.summary([0.5]).text(100, 1) == "50.0"
    one = S.paired_difference([0.5], [0.75])
    assert (one.mean, one.low, one.high, one.p, one.test) == (0.25, None, None, None, None)


def test_interval_is_repeatable_and_brackets_the_mean():
    values = [1.0, 2.0, 4.0, 8.0]
    low, high = S.bootstrap_interval(values)
    assert (low, high) == S.bootstrap_interval(values)
    assert 1 <= low < np.mean(values) < high <= 8
    narrow = S.bootstrap_interval(values, confidence=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_interval_against_all_resamples():
    # With three values there are 27 equally likely resamples: the exact bootstrap distribution.
    values = np.array([0.0, 1.0, 10.0])
    means = np.sort([np.mean(c) for c in itertools.product(values, repeat=3)])
    low, high = S.bootstrap_interval(list(values), confidence=0.6)
    exact = np.quantile(np.repeat(means, 1000), [0.2, 0.8])
    assert (low, high) == pytest.approx(exact, abs=1e-9)


def test_interval_of_a_normal_sample_is_that_of_the_textbook():
    values = np.random.default_rng(3).normal(5, 2, 400)
    low, high = S.bootstrap_interval(list(values))
    half = 1.96 * values.std(ddof=1) / math.sqrt(400)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_no_interval_holds_everything_or_nothing(confidence):
    with pytest.raises(UserError, match=rf"confidence = {confidence} must be in \(0, 1\)"):
        S.bootstrap_interval([1.0, 2.0], confidence)


def test_wilcoxon_by_enumerating_signs():
    d = [3.0, -1.0, 4.0, 2.0, 7.0, 5.5, 6.25]
    ranks = np.argsort(np.argsort(np.abs(d))) + 1
    seen = sum(r for r, v in zip(ranks, d, strict=True) if v > 0)
    total, centre = 0, ranks.sum() / 2
    for signs in itertools.product([0, 1], repeat=len(d)):
        total += abs(np.dot(signs, ranks) - centre) >= abs(seen - centre)
    assert S.wilcoxon(d) == pytest.approx(total / 2 ** len(d))


def test_differences_that_are_equal_but_for_rounding_are_ties():
    a, b = [0.51, 0.61, 0.3, 0.20, 0.30, 0.40, 0.50], [0.52, 0.62, 0.1 + 0.2, 0.23, 0.34, 0.45, 0.56]
    found = S.paired_difference(a, b)
    assert (found.wins, found.ties) == (6, 1)
    assert found.p == S.wilcoxon([1, 1, 0, 3, 4, 5, 6])
    assert S.wilcoxon([0.52 - 0.51, 0.61 - 0.62, 0.3, 0.4, 0.5, 0.6]) == S.wilcoxon([1, -1, 30, 40, 50, 60])


def test_no_test_below_six_pairs_and_its_name_from_there():
    five = S.paired_difference([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert five.p is None
    assert five.test is None
    six = S.paired_difference([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12])
    assert six.p == pytest.approx(2 / 64)  # all six positive, two-sided: the least there is
    assert "Wilcoxon" in six.test


def test_direction_wins_and_ties():
    found = S.paired_difference([1.0, 1.0, 1.0], [2.0, 1.0, 0.5])
    assert found.mean == pytest.approx(0.5 / 3)
    assert (found.wins, found.ties, found.n) == (1, 1, 3)
    other = S.paired_difference([2.0, 1.0, 0.5], [1.0, 1.0, 1.0])
    assert other.mean == -found.mean
    assert S.paired_difference([1.0] * 6, [1.0] * 6).p == 1.0


def test_pairing_is_what_makes_it_narrow():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 10, 8)
    found = S.paired_difference(list(base), list(base + 1 + rng.normal(0, 0.1, 8)))
    assert found.low > 0.8
    assert found.high < 1.2


@pytest.mark.parametrize("bad", [([1, 2], [1]), ([], []), ([1.0], [math.nan])])
def test_what_cannot_be_compared_is_refused(bad):
    with pytest.raises(UserError):
        S.paired_difference(*bad)


def test_correlation():
    assert S.correlation([1, 2, 3], [-2, -4, -6]) == pytest.approx(-1)
    assert S.correlation([1, 1, 1], [1, 2, 3]) is S.correlation([1, 2, 3], [1, 1, 1]) is None
    assert S.correlation([1], [2]) is None


def test_numbers_are_scaled_with_their_spread():
    assert S.summary([0.5, 0.7]).text(100, 1) == "60.0 ± 14.1"


def test_small_differences_are_not_ties():
    found = S.paired_difference([0.5] * 6, [0.50001, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert (found.wins, found.ties) == (1, 5)
