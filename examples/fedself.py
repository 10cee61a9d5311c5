"""An algorithm whose clients remember: each is taught by the model that it sent last.

    fedrecall run --algorithm examples/fedself.py:FedSelf:beta=1 \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedrecall import Batch, FedAvg, Weights
from fedrecall.algorithms.fedavg import Up
from fedrecall.losses import cross_entropy, kl
from fedrecall.specs import NON_NEGATIVE


class Memory(NamedTuple):
    """What a client keeps between its visits: tensors alone, in named tuples."""

    own: Weights


@dataclass(frozen=True)
class FedSelf(FedAvg):
    """Cross-entropy, and distillation from the client's own last model."""

    beta: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of the distillation."""

    def remember(self, weights: Weights) -> Memory:
        """Before its first visit: the model that arrives then."""
        return Memory(weights)

    def prepare(self, model, down, memory: Memory, data) -> Memory:
        """What `loss` gets as its anchor."""
        return memory

    def loss(self, model, params, anchor: Memory, batch: Batch) -> Tensor:
        """The local objective on one batch."""
        logits, taught = model(params, batch.x), model.frozen(anchor.own, batch.x)
        return batch.mean(cross_entropy(logits, batch.y) + self.beta * kl(taught, logits))

    def finish(self, model, weights: Weights, anchor, memory, data, sgd) -> tuple[Up, Memory]:
        """What is sent back, and what is kept."""
        return Up(weights), Memory(weights)
