"""How far clients move the weights, and how far their data are from what the model knows (FedNTD, fig. 8)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.measures.accuracy import class_accuracy, normalised
from fedrecall.measures.moment import Measure, Moment
from fedrecall.models.model import Weights


@dataclass(frozen=True)
class Divergence(Measure):
    """‖w - w_k‖₁ of every client, and ‖Â_G - p_k‖₁ between what w knows and what the client holds.

    w is the global model at the start of the round and Â_G its class-wise accuracies, normalised to
    sum to one. w_k is what client k uploads: of what travels, so that layers that clients keep to
    themselves count 0; and from w on, also of the links of a chain, which were sent other models.
    Costs one evaluation of w on the test set.
    """

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Lists over the round's clients, in the order of `clients`."""
        knows = class_accuracy(moment.evaluation_before.confusion)
        return {
            "clients": [v.client for v in moment.good],
            "weights": [weight_divergence(moment.before, v.up.weights) for v in moment.good],
            "distribution": [
                distribution_distance(knows, moment.distribution(v.client)) for v in moment.good
            ],
        }


def weight_divergence(a: Weights, b: Weights) -> float:
    """The sum of absolute differences of all parameters (running statistics are not parameters)."""
    return float(sum((a.params[n].double() - b.params[n].double()).abs().sum() for n in a.params))


def distribution_distance(class_accuracies: np.ndarray, distribution: np.ndarray) -> float:
    """‖Â - p‖₁, Â the class accuracies normalised to sum to one: from 0 to 2."""
    return float(np.abs(normalised(class_accuracies) - distribution).sum())
