"""How local models do for their own clients (FedNTD, figures 11 and 12)."""

from dataclasses import dataclass
from typing import Any

from fedrecall.measures.accuracy import accuracy, class_accuracy, evaluate, in_local
from fedrecall.measures.moment import Measure, Moment
from fedrecall.records import AT_HOME


@dataclass(frozen=True)
class Personal(Measure):
    """Accuracy of each local model on its client's own training examples and own test examples.

    The latter are those from where its training examples are (``at_home``); where the data do not tell, all,
    weighted by its mixture of classes (``personalised``).

    Where clients have models of their own, these are what they use, before a visit (``train_before``) and
    after it; a record's ``accuracy`` is of what travels. Of sampled clients only.

    Costs an evaluation on those test examples and two on the training examples of every sampled client.
    """

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Lists over the round's clients, in the order of `clients`."""
        found: dict[str, Any] = {
            "clients": [v.client for v in moment.good],
            "train_before": [],
            "train": [],
        }
        for v, begun in zip(moment.good, moment.begun, strict=True):
            data = moment.federation.client(v.client)
            before = evaluate(moment.model, begun, data)
            own = evaluate(moment.model, moment.used(v), data)
            found["train_before"].append(accuracy(before.confusion))
            found["train"].append(accuracy(own.confusion))
        if moment.federation.at_home is not None:
            return found | {AT_HOME: _at_home(moment)}
        return found | {"personalised": _on_own_mixture(moment)}


def _at_home(moment: Moment) -> list[float | None]:
    """Of the round's clients, how each one's model does where it is; None of one that is not tested."""
    rights = [moment.right_at_home(v.client, moment.used(v)) for v in moment.good]
    return [float(right.mean()) if len(right) else None for right in rights]


def _on_own_mixture(moment: Moment) -> list[float | None]:
    """How they do on the test examples of the classes that each client has, in its proportions."""
    found = []
    for v, tested in zip(moment.good, moment.used_evaluations, strict=True):
        seen = tested.confusion
        found.append(in_local(moment.distribution(v.client), class_accuracy(seen), seen.sum(1) > 0))
    return found
