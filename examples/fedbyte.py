"""An algorithm whose clients are sent less than a model: a byte for each number of it.

    fedrecall run --algorithm examples/fedbyte.py:FedByte \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedrecall import FedAvg, Weights
from fedrecall.algorithms.fedavg import Down
from fedrecall.models.model import Params


class Bytes(NamedTuple):
    """What a client is sent."""

    levels: Params  # uint8, of each number the nearest of 256 in equal distances
    least: Params  # [], what the lowest level stands for
    step: Params  # [], from each level to the next
    buffers: dict[str, Tensor]


@dataclass(frozen=True)
class FedByte(FedAvg):
    """FedAvg whose clients begin with the model in 256 levels, and send what they make of it in full."""

    def wrap(self, down: Down) -> Bytes:
        """The levels of each parameter."""
        params, buffers = down.weights
        least = {n: p.min() for n, p in params.items()}
        step = {n: (p.max() - least[n]) / 255 for n, p in params.items()}
        levels = {
            n: ((p - least[n]) / torch.where(step[n] > 0, step[n], 1)).round().to(torch.uint8)
            for n, p in params.items()
        }
        return Bytes(levels, least, step, buffers)

    def unwrap(self, sent: Bytes) -> Down:
        """What they stand for."""
        params = {n: sent.least[n] + sent.step[n] * levels for n, levels in sent.levels.items()}
        return Down(Weights(params, sent.buffers))
