"""Whom the federation serves badly: the spread of accuracy over all of its clients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.measures.accuracy import class_accuracy, evaluate, in_local
from fedrecall.measures.moment import Measure, Moment
from fedrecall.records import AT_HOME


@dataclass(frozen=True)
class Fairness(Measure):
    """Accuracy of every client's model on its own test examples, and how unlike clients fare.

    Those are the ones from where its training examples are, recorded as ``at_home``; where the data do not
    tell, all, weighted by its mixture of classes. Of all clients, whether they were drawn or not. Their model
    is the global one, with what each keeps to itself where an algorithm gives clients layers of their own:
    then it costs an evaluation of every client's on these examples, else none.
    """

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Mean and standard deviation over clients, who count alike; the worst, and a tenth of them."""
        if (home := moment.at_home) is not None:
            fares = {client: float(right.mean()) for client, right in enumerate(home) if len(right)}
            return {AT_HOME: spread(fares)}
        found: dict[int, float] = {}
        for client, counts in enumerate(moment.federation.counts):
            if not counts.sum():
                continue
            model = moment.own(client)
            known = moment.evaluation
            if model is not moment.after:
                known = evaluate(moment.model, model, moment.federation.test)
            tested = known.confusion.sum(1) > 0
            own = in_local(counts / counts.sum(), class_accuracy(known.confusion), tested)
            if own is not None:
                found[client] = own
        return spread(found)


def spread(found: Mapping[int, float]) -> dict[str, Any]:
    """What is recorded of clients' own accuracies."""
    if not found:
        return {}
    worst = min(found, key=found.__getitem__)
    ordered = np.sort(list(found.values()))
    tenth = math.ceil(len(ordered) / 10)
    return {
        "mean": float(ordered.mean()),
        "deviation": float(ordered.std()),
        "worst": f"client {worst}",
        "worst_accuracy": found[worst],
        "worst_tenth": float(ordered[:tenth].mean()),
        "best_tenth": float(ordered[-tenth:].mean()),
    }
