"""Accuracy and forgetting, as functions of confusion matrices and class-wise accuracies."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedrecall.batches import LocalData
from fedrecall.data.partitions import out_local_distribution
from fedrecall.errors import lacks_memory
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Weights

BATCH = {"cpu": 100}  # the fastest on a CPU: its activations stay in cache
LARGE_BATCH = 2000  # elsewhere
_fitting: WeakKeyDictionary[Model, int] = WeakKeyDictionary()
"""Of a model for which memory ran out, how many examples there was room for."""


class Evaluation(NamedTuple):
    """A model on a data set."""

    confusion: np.ndarray
    """[C, C] counts: true class by predicted class."""
    loss: float
    """Mean cross-entropy."""
    missing: Sequence[str] = ()
    """Whose examples are not among them, and why: of a federation that is not all there."""
    predicted: np.ndarray | None = None
    """[n] classes, in the order of the examples; None where these are at nodes."""
    by_client: Mapping[int, np.ndarray] | None = None
    """The confusion matrices whose sum it is, of the clients that evaluated, where each may be told."""
    sent: tuple[int, int] | None = None
    """Bytes to and from the clients that evaluated; None where nobody did."""
    own: np.ndarray | None = None
    """As ``confusion``, of the models that clients have; None where that is the same, or is not known."""
    own_by_client: Mapping[int, np.ndarray] | None = None
    """The confusion matrices whose sum ``own`` is, where each may be told."""


def evaluate(model: Model, weights: Weights, data: LocalData, batch: int | None = None) -> Evaluation:
    """Run the model in evaluation mode over all examples, where the model's weights are.

    ``batch``: how many at once; half as many, again and again, where its device has no memory for them.
    """
    usual = batch or BATCH.get(model.device.type, LARGE_BATCH)
    while True:
        size = max(1, min(usual, _fitting.get(model, usual), len(data)))
        try:
            return _evaluated(model, weights, data, size)
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not (isinstance(error, torch.OutOfMemoryError) or lacks_memory(error)):
                raise
        # Only here is what the attempt held free.
        _fitting[model] = size // 2
        if model.device.type == "cuda":
            torch.cuda.empty_cache()


def _evaluated(model: Model, weights: Weights, data: LocalData, batch: int) -> Evaluation:
    device = model.device
    confusion = torch.zeros(data.classes**2, dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    predicted = [torch.empty(0, dtype=torch.int64, device=device)]
    for b in data.batches(batch):
        logits = model.frozen(weights, b.x)
        predicted.append(logits.argmax(-1))
        cells = b.y * data.classes + predicted[-1]
        confusion.index_add_(0, cells, torch.ones_like(cells))  # bincount would wait for the device
        loss += cross_entropy(logits, b.y).sum()
    return Evaluation(
        confusion.view(data.classes, -1).cpu().numpy(),
        loss.item() / max(len(data), 1),
        predicted=torch.cat(predicted).cpu().numpy(),
    )


def accuracy(confusion: np.ndarray) -> float:
    """Share of examples predicted right."""
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def class_accuracy(confusion: np.ndarray) -> np.ndarray:
    """A_c, share of each class's examples predicted right, [C]; 0 for a class with no example."""
    return np.asarray(np.diag(confusion) / np.maximum(confusion.sum(1), 1))


def forgetting(history: np.ndarray) -> float:
    """F = mean_c max_{t<T} (A_c^(t) - A_c^(T)) (FedNTD, eq. 5) of class accuracies [T, C]."""
    if len(history) < 2:
        return 0.0
    return float((history[:-1].max(0) - history[-1]).mean())


class Recall:
    """Forgetting and consistency, round by round, without keeping what they were computed from."""

    def __init__(self) -> None:
        self._best: np.ndarray | None = None
        self._last: np.ndarray | None = None

    def step(self, classes: np.ndarray, tested: np.ndarray | None = None) -> tuple[float, float | None]:
        """`forgetting` and `consistency` after a round with these class accuracies.

        ``tested``: which classes there were examples of, [C]; of the others nothing is known to be forgotten.
        """
        best, last = self._best, self._last
        self._best, self._last = classes if best is None else np.maximum(best, classes), classes
        if best is None or last is None:
            return 0.0, None
        lost = best - classes
        lost = lost if tested is None or tested.all() else lost[tested]
        return float(lost.mean()) if len(lost) else 0.0, consistency(last, classes)


def consistency(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine similarity of two vectors of class accuracies; 0 if one of them is all zeros."""
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms else 0.0


def normalised(class_accuracies: np.ndarray) -> np.ndarray:
    """A_c / sum_c A_c; uniform where no class is ever right."""
    total = class_accuracies.sum(-1, keepdims=True)
    uniform = np.full_like(class_accuracies, 1 / class_accuracies.shape[-1])
    return np.where(total > 0, class_accuracies / np.where(total > 0, total, 1), uniform)


def in_local(
    distribution: np.ndarray, class_accuracies: np.ndarray, tested: np.ndarray | None = None
) -> float | None:
    """Sum_c p_c A_c: accuracy on the client's own mixture of classes.

    ``tested``: which classes there are test examples of, [C]; of the others nothing is known, and the mixture
    is of those that are. None for a client that has no such class.
    """
    return _on_mixture(distribution, class_accuracies, tested)


def out_local(
    distribution: np.ndarray, class_accuracies: np.ndarray, tested: np.ndarray | None = None
) -> float | None:
    """Sum_c (1 - p_c) / (C - 1) A_c: accuracy on what the client does not have (eq. 7); see `in_local`."""
    return _on_mixture(out_local_distribution(distribution), class_accuracies, tested)


def _on_mixture(shares: np.ndarray, accuracies: np.ndarray, tested: np.ndarray | None) -> float | None:
    if tested is None or tested.all():
        return float(shares @ accuracies)
    known = shares[tested].sum()
    return float(shares[tested] @ accuracies[tested] / known) if known else None


def credibility(confusion: np.ndarray) -> np.ndarray:
    """A[i, j] = P(predicted j | true i) (FedSSD); a row of zeros for a class with no example."""
    return np.asarray(confusion / np.maximum(confusion.sum(1, keepdims=True), 1))
