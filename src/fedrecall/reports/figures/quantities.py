"""Numbers a round that a curve can show."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedrecall.errors import UserError
from fedrecall.records import AT_HOME
from fedrecall.reports.runs import Group, Run

Series = tuple[np.ndarray, np.ndarray]
"""Rounds, and a value for each."""


def mean(found: Any) -> float:
    """Of a number or of those of a list that are known; not a number if none is."""
    values = np.atleast_1d(np.array(found, float))
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else math.nan


class Quantity(NamedTuple):
    """Something a run has in every round."""

    label: str
    of: Callable[[Run], Series]


def _record(key: str) -> Callable[[Run], Series]:
    return lambda run: (run.rounds, run.series(key))


def _measure(name: str, pick: Callable[[dict[str, Any]], Any]) -> Callable[[Run], Series]:
    def of(run: Run) -> Series:
        found = run.measured(name)
        return np.array([n for n, _ in found]), np.array([mean(pick(m)) for _, m in found])

    return of


def _personal(key: str) -> Callable[[Run], Series]:
    def of(run: Run) -> Series:
        found = [(n, m[key]) for n, m in run.measured("personal") if key in m]
        if not found:
            raise UserError(
                f"{run.path} was measured by an earlier version, on clients' mixture of classes and not on "
                "the test examples from where they are: measure it anew."
            )
        return np.array([n for n, _ in found]), np.array([mean(values) for _, values in found])

    return of


QUANTITIES = {
    "accuracy": Quantity("global accuracy", _record("accuracy")),
    "forgetting": Quantity("forgetting F", _record("forgetting")),
    "consistency": Quantity("cosine with round before", _record("consistency")),
    "local average": Quantity(
        "mean accuracy of local models", _measure("locals", lambda m: m["local_average_accuracy"])
    ),
    "in-local": Quantity("local models, in-local", _measure("locals", lambda m: m["in_local"]["local"])),
    "out-local": Quantity("local models, out-local", _measure("locals", lambda m: m["out_local"]["local"])),
    "local train": Quantity("local models, own training data", _measure("personal", lambda m: m["train"])),
    "personalised": Quantity("local models, own mixture", _personal("personalised")),
    "at home": Quantity("local models, at home", _personal(AT_HOME)),
    "weight divergence": Quantity("‖w − w_k‖₁", _measure("divergence", lambda m: m["weights"])),
    "distribution distance": Quantity("‖Â_G − p_k‖₁", _measure("divergence", lambda m: m["distribution"])),
}


def as_measured(group: Group, name: str) -> str:
    """The quantity, or what there is in its place where the data say whose the test examples are."""
    if name == "personalised" and any(AT_HOME in m for r in group.runs for _, m in r.measured("personal")):
        return "at home"
    return name


def over_seeds(group: Group, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values [seed, round]) over the rounds that all runs of the group have."""
    found = [QUANTITIES[name].of(run) for run in group.runs]
    rounds = sorted(set.intersection(*(set(r.tolist()) for r, _ in found)))
    if not rounds:
        raise UserError(f"the runs of {group.label} have no measured round in common.")
    return np.array(rounds), np.stack([v[np.isin(r, rounds)] for r, v in found])
