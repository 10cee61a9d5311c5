"""What may be said about a few seeds: mean and spread, a paired interval, a test where n allows one.

Nothing here draws a star: a significance mark stands only beside the name of its test.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedrecall import streams
from fedrecall.errors import UserError

RESAMPLES = 10_000
ENOUGH = 6
"""Pairs from which the Wilcoxon test can be below 0.05 at all: with five its least p is 1/16."""
WILCOXON = "Wilcoxon signed-rank, two-sided"
DECIMALS = 9
"""To which differences are rounded before they are ranked: 0.52 - 0.51 and 0.62 - 0.61 are a tie."""


class Summary(NamedTuple):
    """Values of several seeds."""

    mean: float
    std: float | None
    """Sample standard deviation (divisor n - 1); None for a single value."""
    n: int

    def text(self, scale: float = 1.0, digits: int = 2) -> str:
        """``52.61 ± 0.43``, or the mean alone for a single value."""
        mean = f"{self.mean * scale:.{digits}f}"
        return mean if self.std is None else f"{mean} ± {self.std * scale:.{digits}f}"


class Difference(NamedTuple):
    """How much higher b is than a, over pairs that share everything but what is compared."""

    mean: float
    """Mean of b - a."""
    std: float | None
    """Sample standard deviation of b - a; None for one pair."""
    low: float | None
    """Lower end of the bootstrap interval of the mean; None for one pair."""
    high: float | None
    n: int
    wins: int
    """Pairs in which b is higher."""
    ties: int
    test: str | None
    """Name of the test behind `p`; None where there are too few pairs for one."""
    p: float | None


def summary(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation."""
    found = _numbers(values, "summary")
    return Summary(float(found.mean()), _std(found), len(found))


def bootstrap_interval(
    values: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean, the same at every call; None for a single value.

    With few values it is too narrow: of normal samples of 3, 5 and 10 a nominal 95 % interval holds
    the true mean in 74 %, 87 % and 92 % of cases.
    """
    found = _numbers(values, "an interval")
    if not 0 < confidence < 1:
        raise UserError(f"confidence = {confidence} must be in (0, 1).")
    if len(found) < 2:
        return None
    stream = streams.numpy_stream(seed, "bootstrap", len(found))
    means = found[stream.integers(len(found), size=(RESAMPLES, len(found)))].mean(1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilcoxon(differences: Sequence[float]) -> float | None:
    """p of the two-sided Wilcoxon signed-rank test; None with fewer than six differences."""
    found = _numbers(differences, "a test").round(DECIMALS)
    if len(found) < ENOUGH:
        return None
    if not found.any():  # nothing differs: the test drops zeros and would have nothing left
        return 1.0
    from scipy import stats  # which takes a second to import, and most comparisons have too few pairs

    return float(stats.wilcoxon(found).pvalue)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """b - a over pairs (same seed, same partition): mean, interval and, from six pairs on, a test."""
    if len(a) != len(b):
        raise UserError(
            f"a paired comparison needs as many runs on both sides, not {len(a)} and {len(b)}: "
            "give the same seeds to both."
        )
    difference = _numbers(b, "a comparison") - _numbers(a, "a comparison")
    interval = bootstrap_interval(difference.tolist())
    p = wilcoxon(difference.tolist())
    rounded = difference.round(DECIMALS)
    return Difference(
        mean=float(difference.mean()),
        std=_std(difference),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        n=len(difference),
        wins=int((rounded > 0).sum()),
        ties=int((rounded == 0).sum()),
        test=WILCOXON if p is not None else None,
        p=p,
    )


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's r; None where one side does not vary or there are fewer than two pairs."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _std(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None


def _numbers(values: Sequence[float], what: str) -> np.ndarray:
    found = np.asarray(values, dtype=float)
    if found.ndim != 1 or not len(found):
        raise UserError(f"{what} needs at least one value.")
    bad = [v for v in found if not math.isfinite(v)]
    if bad:
        raise UserError(f"{what} cannot be made of {bad[0]}: leave that run out.")
    return found
