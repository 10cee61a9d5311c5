"""FedCAD."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedrecall.algorithms.fedavg import Down, FedAvg
from fedrecall.batches import Batch, LocalData
from fedrecall.errors import UserError
from fedrecall.losses import cross_entropy, is_true, soft_cross_entropy
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import POSITIVE, UNIT


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    """The model that arrived, the teacher."""
    alpha: Tensor  # [C]
    """Weight of the teacher against the label for the examples of each class."""


@dataclass(frozen=True)
class FedCAD(FedAvg):
    """Class-wise adaptive self-distillation (He et al., AAAI 2022 student abstract, eq. 1 to 3).

    (1 - alpha_y) CE + alpha_y L_d, where alpha_y = beta + (gamma - beta) E[p^g_y | y] says how well
    the global model knows class y: the paper's (gamma - beta)/2 E[phi] + (gamma + beta)/2, since
    phi = p^g_y - sum of the others = 2 p^g_y - 1. The expectation is over the client's own examples
    as they are, without augmentation, and p^g has the distillation's temperature, as in the paper.
    """

    beta: Annotated[float, UNIT] = 0.25
    """Weight of distillation for a class that the global model never recognises."""
    gamma: Annotated[float, UNIT] = 0.5
    """Weight of distillation for a class that the global model is always sure of; at least beta."""
    tau: Annotated[float, POSITIVE] = 1.0
    """Temperature of the softmaxes in the distillation term and in alpha."""

    def __post_init__(self) -> None:
        """Refuse bounds in the wrong order."""
        if self.beta > self.gamma:
            raise UserError(f"fedcad: beta = {self.beta} must not be above gamma = {self.gamma}.")

    def prepare(self, model: Model, down: Down, memory: Any, data: LocalData) -> Anchor:
        """Measure how much the arriving model is worth on each of the client's classes."""
        sure = torch.zeros(data.classes, dtype=torch.float64)
        for batch in data.batches():
            p = (model.frozen(down.weights, batch.x) / self.tau).softmax(-1)
            sure = sure.to(p.device) + torch.where(is_true(p, batch.y), p, 0.0).sum(0).double()
        mean = sure / data.counts.clamp(min=1)  # a class without examples is never asked for
        like = next(iter(down.weights.params.values()))
        return Anchor(down.weights, (self.beta + (self.gamma - self.beta) * mean).to(like))

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """The label's cross-entropy mixed with the teacher's, in each class's own proportion."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        alpha = anchor.alpha[batch.y]
        return batch.mean(
            (1 - alpha) * cross_entropy(student, batch.y)
            + alpha * soft_cross_entropy(teacher, student, self.tau)
        )
