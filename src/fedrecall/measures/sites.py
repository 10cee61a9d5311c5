"""At which site the global model is good or bad."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.data.federation import Federation
from fedrecall.errors import UserError
from fedrecall.measures.moment import Measure, Moment


@dataclass(frozen=True)
class Sites(Measure):
    """How the global model does on the test examples of each place, person or site that they are from.

    Costs no evaluation: it looks at what the round's own one predicted.
    """

    def check(self, federation: Federation) -> None:
        """Raise UserError unless the test examples say where they are from."""
        dataset = federation.dataset
        if dataset.test.origin is None:
            raise UserError(
                f"measure sites: the test examples of {dataset.name} do not say where they are from; read a "
                "folder with origin=COLUMN, or give from_arrays origin (and origin_test with x_test)."
            )

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """Lists over the sites that have test examples, in the order of `sites`."""
        self.check(moment.federation)
        dataset, predicted = moment.federation.dataset, moment.evaluation.predicted
        assert dataset.test.origin is not None
        assert predicted is not None
        y, origin = dataset.test.y.cpu().numpy(), dataset.test.origin.numpy()
        there, place = np.unique(origin, return_inverse=True)
        shape = len(there), dataset.classes
        cells = place * dataset.classes + y
        tested = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        right = np.bincount(cells[predicted == y], minlength=shape[0] * shape[1]).reshape(shape)
        return by_site([dataset.origins[o] for o in there], right, tested)


def by_client(confusions: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """What a record has of clients each of which evaluates at its own site: `by_site` of their confusions."""
    clients = sorted(k for k, counts in confusions.items() if counts.any())
    right = np.stack([np.diag(confusions[k]) for k in clients])
    return by_site([f"client {k}" for k in clients], right, np.stack([confusions[k].sum(1) for k in clients]))


def by_site(names: Sequence[str], right: np.ndarray, tested: np.ndarray) -> dict[str, Any]:
    """What a record has of sites that have ``tested`` examples of each class, of which a model gets so many
    ``right``, both [S, C].

    ``balanced_accuracy`` is the mean of the class accuracies of the classes that a site has. The worst site
    is the one of least accuracy, the first of equals.
    """
    accuracy = right.sum(1) / tested.sum(1)
    balanced = (right / np.maximum(tested, 1)).sum(1) / (tested > 0).sum(1)
    worst = int(accuracy.argmin())
    return {
        "sites": list(names),
        "examples": tested.sum(1).tolist(),
        "accuracy": accuracy.tolist(),
        "balanced_accuracy": balanced.tolist(),
        "worst": names[worst],
        "worst_accuracy": float(accuracy[worst]),
    }
