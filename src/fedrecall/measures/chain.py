"""Forgetting inside a round of sequential learning: what each client of a chain undoes of the last one's."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.measures.accuracy import (
    Evaluation,
    accuracy,
    class_accuracy,
    consistency,
    evaluate,
    forgetting,
)
from fedrecall.measures.moment import Measure, Moment
from fedrecall.training import Visit


@dataclass(frozen=True)
class Chain(Measure):
    """Class-wise accuracy, consistency, forgetting and drift along every chain (SFedKD, figure 1).

    Costs one evaluation on the test set for every client of the round, and two on the training
    examples of every client but the last of its chain.
    """

    drift: bool = True
    """Whether to measure the accuracy on a client's own examples before and after the next client."""

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """For every chain, lists over its clients that did not fail."""
        evaluations, received = iter(moment.local_evaluations), iter(moment.received)
        visits = iter(moment.visits)
        found = []
        for chain in moment.chains:
            good = [v for v in (next(visits) for _ in chain) if v.failure is None]
            sent = [next(received)[1] for _ in good]
            found.append(self._along(moment, good, [*sent[:1], *(next(evaluations) for _ in good)]))
        return {"chains": found}

    def _along(self, moment: Moment, visits: list[Visit], evaluations: list[Evaluation]) -> dict[str, Any]:
        """``evaluations``: of the model that the chain began with, and of each client's."""
        start = evaluations or [moment.evaluation_before]
        curve = np.array([class_accuracy(e.confusion) for e in start])
        record: dict[str, Any] = {
            "clients": [v.client for v in visits],
            "accuracy": [accuracy(e.confusion) for e in evaluations[1:]],
            "class_accuracy": curve[1:].tolist(),
            # The first client is compared with the model that the chain started from.
            "consistency": [consistency(a, b) for a, b in itertools.pairwise(curve)],
            "forgetting": forgetting(curve[:, moment.evaluation.confusion.sum(1) > 0]),
        }
        if self.drift:
            record["drift"] = {
                "own": [self._on_own(moment, v, v) for v in visits[:-1]],
                "next": [self._on_own(moment, v, w) for v, w in itertools.pairwise(visits)],
            }
        return record

    @staticmethod
    def _on_own(moment: Moment, visit: Visit, trained: Visit) -> float:
        data = moment.federation.client(visit.client)
        return accuracy(evaluate(moment.model, moment.trained(trained), data).confusion)
