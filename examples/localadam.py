"""An algorithm whose steps keep numbers of their own: clients train with Adam.

    fedrecall run --algorithm examples/localadam.py:LocalAdam --momentum 0 --lr 0.001 \
        --dataset digits --clients 20 --sample 5 --rounds 10 --batch-size 10
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedrecall import Batch, FedAvg, Weights
from fedrecall.models.model import Params
from fedrecall.specs import POSITIVE, Range


class Moments(NamedTuple):
    """What a client holds on to from step to step."""

    first: Params
    second: Params
    steps: Tensor


@dataclass(frozen=True)
class LocalAdam(FedAvg):
    """Adam (Kingma and Ba, ICLR 2015) in every visit, begun afresh; to be had with `--momentum 0`."""

    beta1: Annotated[float, Range(0, 1, open_high=True)] = 0.9
    """What a step leaves of the mean of the gradients."""
    beta2: Annotated[float, Range(0, 1, open_high=True)] = 0.999
    """What a step leaves of the mean of their squares."""
    eps: Annotated[float, POSITIVE] = 1e-8
    """What is added to the root that the gradient is divided by."""

    def prepare(self, model, down, memory, data) -> Moments:
        """Before the first step: nothing."""
        zeros = {n: torch.zeros_like(p) for n, p in down.weights.params.items()}
        return Moments(zeros, zeros, next(iter(zeros.values())).new_zeros(()))

    def moments(self, anchor: Moments, grads: Params) -> Moments:
        """The means with a step's gradients."""
        first = {n: self.beta1 * anchor.first[n] + (1 - self.beta1) * g for n, g in grads.items()}
        second = {n: self.beta2 * anchor.second[n] + (1 - self.beta2) * g * g for n, g in grads.items()}
        return Moments(first, second, anchor.steps + 1)

    def correct(self, grads: Params, anchor: Moments) -> Params:
        """The step that the learning rate multiplies."""
        first, second, steps = self.moments(anchor, grads)
        unbiased, whole = 1 - self.beta1**steps, 1 - self.beta2**steps
        return {n: (m / unbiased) / ((second[n] / whole).sqrt() + self.eps) for n, m in first.items()}

    def advance(self, anchor: Moments, weights: Weights, grads: Params, batch: Batch) -> Moments:
        """What the next step finds."""
        return self.moments(anchor, grads)
