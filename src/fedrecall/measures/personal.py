"""How local models do for their own clients (FedNTD, figures 11 and 12)."""

from dataclasses import dataclass
from typing import Any

from fedrecall.measures.accuracy import accuracy, class_accuracy, evaluate, in_local
from fedrecall.measures.moment import Measure, Moment


@dataclass(frozen=True)
class Personal(Measure):
    """Accuracy of each local model on its own training examples and on its own mixture of test examples.

    Where clients have layers of their own, this is what they have, before a visit (``train_before``) and
    after it; a record's ``accuracy`` is of what travels. Of sampled clients only.

    Costs an evaluation on the test set and two on the training examples of every sampled client.
    """

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Lists over the round's clients, in the order of `clients`."""
        found: dict[str, Any] = {
            "clients": [v.client for v in moment.good],
            "train_before": [],
            "train": [],
            "personalised": [],
        }
        for v, tested, begun in zip(moment.good, moment.local_evaluations, moment.begun, strict=True):
            data = moment.federation.client(v.client)
            before = evaluate(moment.model, begun, data)
            own = evaluate(moment.model, moment.trained(v), data)
            found["train_before"].append(accuracy(before.confusion))
            found["train"].append(accuracy(own.confusion))
            share = moment.distribution(v.client)
            seen = tested.confusion
            found["personalised"].append(in_local(share, class_accuracy(seen), seen.sum(1) > 0))
        return found
