"""An algorithm whose clients train a model of their own beside the shared one, and use that.

    fedrecall compare fedavg examples/ditto.py:Ditto --measure fairness \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from fedrecall import Batch, FedAvg, Weights
from fedrecall.algorithms.fedavg import Up
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Params
from fedrecall.specs import NON_NEGATIVE

OWN = "own "
"""Before the names of the parameters that are a client's own."""


class Memory(NamedTuple):
    """What a client keeps between its visits."""

    own: Params


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, and for each client a model that is held near the shared one (Li et al., 2021).

    For networks without running statistics, such as resnet10:norm=group: both models' passes would update
    the same ones, and what is shared would not be FedAvg's.
    """

    lam: Annotated[float, NON_NEGATIVE] = 0.1
    """Weight of the distance."""

    def remember(self, weights: Weights) -> Memory:
        """Before its first visit: the model that arrives then."""
        return Memory(weights.params)

    def personal(self, weights: Weights, memory: Memory) -> Weights:
        """What a client trains: both models' parameters."""
        return weights._replace(params=weights.params | {OWN + n: p for n, p in memory.own.items()})

    def deploy(self, weights: Weights, memory: Memory) -> Weights:
        """What it uses."""
        return weights._replace(params=memory.own)

    def loss(self, model, params: Params, anchor, batch: Batch) -> Tensor:
        """The sum of two objectives that share no parameters."""
        shared = anchor.weights.params
        own = {n: params[OWN + n] for n in shared}
        both = [cross_entropy(model(p, batch.x), batch.y) for p in ({n: params[n] for n in shared}, own)]
        away = sum(((own[n] - p) ** 2).sum() for n, p in shared.items())
        return batch.mean(sum(both)) + self.lam / 2 * away

    def finish(self, model, weights: Weights, anchor, memory, data, sgd) -> tuple[Up, Memory]:
        """The shared one is sent back."""
        shared = {n: weights.params[n] for n in anchor.weights.params}
        return Up(weights._replace(params=shared)), Memory({n: weights.params[OWN + n] for n in shared})
