"""An algorithm whose visits have phases: a client's own layers are trained first, then the shared ones.

    fedrecall run --algorithm examples/fedrep.py:FedRep --measure fairness \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated

from fedper import FedPer
from torch import Tensor, where

from fedrecall import Batch
from fedrecall.models.model import Params
from fedrecall.specs import Range


@dataclass(frozen=True)
class FedRep(FedPer):
    """Shared features, a head for each client, trained in turn (Collins et al., ICML 2021)."""

    first: Annotated[float, Range(0, 1)] = 0.5
    """Share of a visit's steps that train the layers that stay with the client; the others train the rest."""

    def turns(self, params: Params, batch: Batch) -> dict[str, Tensor]:
        """Of each parameter, whether this step trains it."""
        own = batch.progress < self.first
        return {n: own if n.startswith(self.keep) else ~own for n in params}

    def loss(self, model, params: Params, anchor, batch: Batch) -> Tensor:
        """Of parameters whose turn it is not the gradient is zero, so that no momentum is gathered."""
        turns = self.turns(params, batch)
        return super().loss(
            model, {n: where(turns[n], p, p.detach()) for n, p in params.items()}, anchor, batch
        )

    def settle(self, params: Params, before: Params, anchor, batch: Batch) -> Params:
        """And neither weight decay moves them."""
        turns = self.turns(params, batch)
        return {n: where(turns[n], p, before[n]) for n, p in params.items()}
