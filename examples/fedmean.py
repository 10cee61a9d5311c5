"""An algorithm with a teacher that follows the student: the running mean of the client's own models.

    fedrecall run --algorithm examples/fedmean.py:FedMean:beta=1,keep=0.9 \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedrecall import Batch, FedAvg, Weights
from fedrecall.algorithms.fedavg import Anchor
from fedrecall.losses import cross_entropy, kl
from fedrecall.models.model import Params
from fedrecall.specs import NON_NEGATIVE, Range


@dataclass(frozen=True)
class FedMean(FedAvg):
    """Cross-entropy, and distillation from a mean teacher (Tarvainen and Valpola, NeurIPS 2017)."""

    beta: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of the distillation."""
    keep: Annotated[float, Range(0, 1)] = 0.9
    """What a step leaves of the teacher: 1 is the global model, 0 the student as it is."""

    def loss(self, model, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """The local objective on one batch."""
        logits, taught = model(params, batch.x), model.frozen(anchor.weights, batch.x)
        return batch.mean(cross_entropy(logits, batch.y) + self.beta * kl(taught, logits))

    def advance(self, anchor: Anchor, weights: Weights, grads: Params, batch: Batch) -> Anchor:
        """The teacher goes a part of the way to what the step made, and takes over its running statistics."""
        teacher = anchor.weights.params
        params = {n: self.keep * teacher[n] + (1 - self.keep) * p for n, p in weights.params.items()}
        return anchor._replace(weights=weights._replace(params=params))
