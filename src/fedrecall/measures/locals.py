"""How local models do: on everyone's classes, on their own, and on those they do not have."""

from dataclasses import dataclass
from typing import Any

from fedrecall.measures.accuracy import accuracy, class_accuracy, in_local, out_local
from fedrecall.measures.moment import Measure, Moment


@dataclass(frozen=True)
class Locals(Measure):
    """In-local and out-local accuracy before, after local training and after aggregation.

    Costs one evaluation on the test set for every sampled client, and one of the model they got.
    """

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Lists over the round's clients, in the order of `clients`; None: no class of theirs is tested."""
        sent = [class_accuracy(e.confusion) for _, e in moment.received]
        combined = class_accuracy(moment.evaluation.confusion)
        own = [class_accuracy(e.confusion) for e in moment.local_evaluations]
        shares = [moment.distribution(v.client) for v in moment.good]
        tested = moment.evaluation.confusion.sum(1) > 0
        accuracies = [accuracy(e.confusion) for e in moment.local_evaluations]
        return {
            "clients": [v.client for v in moment.good],
            "received_accuracy": [accuracy(e.confusion) for _, e in moment.received],
            "local_accuracy": accuracies,
            "local_average_accuracy": sum(accuracies) / max(len(accuracies), 1),
            "in_local": {
                "before": [in_local(p, a, tested) for p, a in zip(shares, sent, strict=True)],
                "local": [in_local(p, a, tested) for p, a in zip(shares, own, strict=True)],
                "after": [in_local(p, combined, tested) for p in shares],
            },
            "out_local": {
                "before": [out_local(p, a, tested) for p, a in zip(shares, sent, strict=True)],
                "local": [out_local(p, a, tested) for p, a in zip(shares, own, strict=True)],
                "after": [out_local(p, combined, tested) for p in shares],
            },
            "received_class_accuracy": [[float(a) for a in row] for row in sent],
            "class_accuracy": [[float(a) for a in row] for row in own],
        }
