"""An algorithm whose clients keep layers to themselves: training and evaluation go with their own.

    fedrecall run --algorithm examples/fedper.py:FedPer --measure fairness,personal \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import NamedTuple

from fedrecall import FedAvg, UserError, Weights
from fedrecall.algorithms.fedavg import Up
from fedrecall.models.model import Params


class Memory(NamedTuple):
    """What a client keeps between its visits."""

    own: Params


@dataclass(frozen=True)
class FedPer(FedAvg):
    """Shared features, a head for each client (Arivazhagan et al., 2019)."""

    keep: str = "fc2."
    """How the names of the layers begin that stay with a client; fc2 is the last of `cnn` and `mlp`."""

    def remember(self, weights: Weights) -> Memory:
        """Before its first visit: those that arrive then."""
        own = {n: p for n, p in weights.params.items() if n.startswith(self.keep)}
        if not own:
            raise UserError(f"no layer's name begins with {self.keep!r}: {', '.join(weights.params)}")
        return Memory(own)

    def personal(self, weights: Weights, memory: Memory) -> Weights:
        """The model that a client trains, and has."""
        return weights._replace(params=weights.params | memory.own)

    def finish(self, model, weights: Weights, anchor, memory: Memory, data, sgd) -> tuple[Up, Memory]:
        """Of the layers that stay those that came are sent back, as every upload has all of them."""
        sent = {n: anchor.weights.params[n] for n in memory.own}
        own = {n: weights.params[n] for n in memory.own}
        return Up(weights._replace(params=weights.params | sent)), Memory(own)
