"""An algorithm whose visits have phases: a client's own layers are trained first, then the shared ones.

    fedrecall run --algorithm examples/fedrep.py:FedRep --measure fairness \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fedper import FedPer
from torch import Tensor, where

from fedrecall import Batch, Weights
from fedrecall.models.model import Params
from fedrecall.specs import Range


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    decay: Tensor


@dataclass(frozen=True)
class FedRep(FedPer):
    """Shared features, a head for each client, trained in turn (Collins et al., ICML 2021)."""

    first: Annotated[float, Range(0, 1)] = 0.5
    """Share of a visit's steps that train the layers that stay with the client; the others train the rest."""

    def turns(self, params: Params, batch: Batch) -> dict[str, Tensor]:
        """Of each parameter, whether this step trains it."""
        own = batch.progress < self.first
        return {n: own if n.startswith(self.keep) else ~own for n in params}

    def prepare(self, model, down, memory, data) -> Anchor:
        """The model that arrived, and the weight decay."""
        some = next(iter(down.weights.params.values()))
        return Anchor(down.weights, some.new_tensor(data.sgd.weight_decay))

    def loss(self, model, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Parameters whose turn it is not have the gradient that weight decay takes away again.

        So that no momentum is gathered.
        """
        turns = self.turns(params, batch)
        at_rest = sum(where(turns[n], p.detach(), p).square().sum() for n, p in params.items())
        active = {n: where(turns[n], p, p.detach()) for n, p in params.items()}
        return super().loss(model, active, anchor, batch) - anchor.decay / 2 * (at_rest - at_rest.detach())

    def settle(self, params: Params, before: Params, anchor: Anchor, batch: Batch) -> Params:
        """And stay just as they were."""
        turns = self.turns(params, batch)
        return {n: where(turns[n], p, before[n]) for n, p in params.items()}
