"""What the papers' tables are about: numbers that follow from a run's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedrecall.papers.results import Outcome


class Question(NamedTuple):
    """What a number is asked of."""

    run: Outcome
    at: int
    """After this many rounds."""
    whole: int
    """How many rounds the paper has."""
    baseline: Outcome | None
    """The run of the table's baseline with the same seed."""
    target: float | None
    """The column's target accuracy in percent."""
    smoothing: float = 0.0
    """Weight of the rounds before in the moving average that the paper reports as accuracy."""


class Quantity(NamedTuple):
    """A kind of number."""

    label: str
    digits: int
    of: Callable[[Question], float | None]
    """None where the run does not say."""
    tolerance: float = 0.0
    """What rounding and counting in whole steps may change, whatever the spread."""
    follows_curve: bool = True
    """Whether it can be had of any round, not of the last alone."""
    to_baseline: bool = False
    """Whether it is of a method beside the table's baseline, and says nothing of the baseline itself."""
    tolerance_of_rounds: float = 0.0
    """`tolerance` as a share of the cell's rounds, where rounds are what is counted."""


def _accuracy(q: Question) -> float | None:
    return 100 * smoothed(q.run.accuracy[: q.at], q.smoothing)


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """An exponential moving average, value by value; without weight, the values themselves."""
    return list(accumulate(values, lambda mean, value: weight * mean + (1 - weight) * value))


def smoothed(values: Sequence[float], weight: float) -> float:
    """The last value of an exponential moving average."""
    return smooth(values, weight)[-1]


def _forgetting(q: Question) -> float | None:
    return q.run.forgetting[q.at - 1]


def _aligned(layer: str, what: str) -> Callable[[Question], float | None]:
    def of(q: Question) -> float | None:
        found = q.run.measures.get("alignment", {}).get("layers", {}).get(layer, {})
        return found.get(what)  # type: ignore[no-any-return]

    return of


def _local_accuracy(q: Question) -> float | None:
    found = q.run.measures.get("locals", {}).get("local_average_accuracy")
    return None if found is None else 100 * float(found)


def first_round(accuracy: list[float], target: float) -> int | None:
    """The first round with at least this accuracy."""
    return next((i for i, a in enumerate(accuracy, start=1) if a >= target), None)


NEVER = math.inf
"""What was to be reached was not, in all rounds that were played."""


def _rounds_to_baseline(q: Question) -> float | None:
    if q.baseline is None or q.baseline.done < q.at or q.baseline.failed is not None:
        return None
    found = first_round(q.run.accuracy[: q.at], q.baseline.accuracy[: q.whole][-1])
    return NEVER if found is None else found


def seconds_to(run: Outcome, target: float) -> float | None:
    """Seconds that clients trained until the model had this accuracy (a share)."""
    number = first_round(run.accuracy, target)
    return None if number is None else sum(run.client_seconds[:number])


def _speedup(q: Question) -> float | None:
    if q.baseline is None or q.target is None or q.baseline.failed is not None:
        return None
    if q.run.machines != q.baseline.machines:  # seconds of two machines have no ratio
        return None
    mine, others = seconds_to(q.run, q.target / 100), seconds_to(q.baseline, q.target / 100)
    if not others:
        return None
    return others / mine if mine else NEVER


QUANTITIES = {
    "accuracy": Quantity("accuracy %", 2, _accuracy),
    "forgetting": Quantity("forgetting", 2, _forgetting, tolerance=0.02),
    "fc1_local": Quantity("fc1, global and local", 3, _aligned("fc1", "local_mean"), 0.03, False),
    "fc1_next_global": Quantity("fc1, global and next", 3, _aligned("fc1", "next_global"), 0.03, False),
    "fc2_local": Quantity("fc2, global and local", 3, _aligned("fc2", "local_mean"), 0.1, False),
    "fc2_next_global": Quantity("fc2, global and next", 3, _aligned("fc2", "next_global"), 0.1, False),
    "local_accuracy": Quantity("local models' accuracy %", 2, _local_accuracy, 0.0, False),
    "rounds_to_baseline": Quantity(
        "rounds to the baseline's accuracy", 0, _rounds_to_baseline, to_baseline=True, tolerance_of_rounds=0.1
    ),
    "speedup": Quantity("times faster than all teachers", 1, _speedup, 0.3, to_baseline=True),
}
