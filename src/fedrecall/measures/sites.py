"""At which site the global model is good or bad."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.algorithms.fedavg import keeps_own
from fedrecall.data.federation import Federation
from fedrecall.errors import UserError
from fedrecall.measures.accuracy import accuracy
from fedrecall.measures.moment import Measure, Moment
from fedrecall.records import OF_OWN, worst


@dataclass(frozen=True)
class Sites(Measure):
    """How the global model does on the test examples of each place, person or site that they are from.

    Costs no evaluation: it looks at what the round's own one predicted. Where an algorithm gives clients
    layers of their own, also how the model of each site's client does there: an evaluation of each.
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
        personal = keeps_own(moment.algorithm) and moment.at_home is not None
        own = _of_own_models(moment, place, len(there)) if personal else None
        return by_site([dataset.origins[o] for o in there], right, tested, own)


def _of_own_models(moment: Moment, place: np.ndarray, sites: int) -> list[float | None]:
    """At each site the accuracy of the model that its client has; None where no client is."""
    assert moment.at_home is not None
    assert moment.federation.at_home is not None
    right = np.full(len(place), np.nan)
    for places, ours in zip(moment.federation.at_home, moment.at_home, strict=True):
        right[places] = ours
    means = [float(right[place == site].mean()) for site in range(sites)]
    return [None if np.isnan(mean) else mean for mean in means]


def by_client(
    confusions: Mapping[int, np.ndarray], own: Mapping[int, np.ndarray] | None = None
) -> dict[str, Any]:
    """What a record has of clients each of which evaluates at its own site: `by_site` of their confusions.

    ``own``: those of the models that clients have, where these are others.
    """
    clients = sorted(k for k, counts in confusions.items() if counts.any())
    right = np.stack([np.diag(confusions[k]) for k in clients])
    tested = np.stack([confusions[k].sum(1) for k in clients])
    theirs = [accuracy(own[k]) if k in own else None for k in clients] if own else None
    return by_site([f"client {k}" for k in clients], right, tested, theirs)


def by_site(
    names: Sequence[str], right: np.ndarray, tested: np.ndarray, own: Sequence[float | None] | None = None
) -> dict[str, Any]:
    """What a record has of sites that have ``tested`` examples of each class, of which a model gets so many
    ``right``, both [S, C].

    ``balanced_accuracy`` is the mean of the class accuracies of the classes that a site has, ``own`` the
    accuracy of the model that each site's client has. The worst site is `worst`.
    """
    found = {
        "sites": list(names),
        "examples": tested.sum(1).tolist(),
        "accuracy": (right.sum(1) / tested.sum(1)).tolist(),
        "balanced_accuracy": ((right / np.maximum(tested, 1)).sum(1) / (tested > 0).sum(1)).tolist(),
        **({} if own is None else {OF_OWN: list(own)}),
    }
    name, least = worst(found)
    return {**found, "worst": name, "worst_accuracy": least}
