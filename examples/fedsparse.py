"""An algorithm that sends less than a model: the numbers that moved most, and where they are.

    fedrecall run --algorithm examples/fedsparse.py:FedSparse:share=0.05 \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10

As in sparsified SGD with memory (Stich et al., 2018), of a whole visit's update.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedrecall import FedAvg, Weights
from fedrecall.algorithms.fedavg import Up
from fedrecall.specs import Range


class Sparse(NamedTuple):
    """What a client sends."""

    places: Tensor  # int32 [k], in all parameters one after the other
    values: Tensor  # [k], by how much those moved
    buffers: dict[str, Tensor]


class Memory(NamedTuple):
    """What a client keeps."""

    unsent: Tensor  # [parameters], what it has not said so far


def flat(params: dict[str, Tensor]) -> Tensor:
    """All parameters one after the other."""
    return torch.cat([p.flatten() for p in params.values()])


@dataclass(frozen=True)
class FedSparse(FedAvg):
    """FedAvg of updates of which the largest entries travel, and the others when they have grown."""

    share: Annotated[float, Range(0, 1, open_low=True)] = 0.1
    """How many of its update's entries a client sends; at least one."""

    def remember(self, weights: Weights) -> Memory:
        """Nothing is left to say before the first visit."""
        return Memory(torch.zeros_like(flat(weights.params)))

    def finish(self, model, weights: Weights, anchor, memory: Memory, data, sgd) -> tuple[Sparse, Memory]:
        """The largest entries of the update and what was left of earlier ones, and the rest."""
        moved = flat(weights.params) - flat(anchor.weights.params) + memory.unsent
        places = moved.abs().topk(max(1, round(self.share * len(moved)))).indices
        return Sparse(places.int(), moved[places], weights.buffers), Memory(moved.index_fill(0, places, 0))

    def unpack(self, up: Sparse, down) -> Up:
        """The model that arrived, with what moved."""
        before = down.weights.params
        moved = torch.zeros_like(flat(before)).index_put((up.places.long(),), up.values)
        parts = moved.split([p.numel() for p in before.values()])
        params = {n: p + d.view_as(p) for (n, p), d in zip(before.items(), parts, strict=True)}
        return Up(Weights(params, up.buffers))
