"""FedNTD."""

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from fedrecall.algorithms.fedavg import Anchor, FedAvg
from fedrecall.batches import Batch
from fedrecall.losses import cross_entropy, kl, not_true_kl, not_true_square, weighted_square
from fedrecall.models.model import Params, Student
from fedrecall.specs import NON_NEGATIVE, POSITIVE, UNIT


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Not-true distillation (Lee et al., NeurIPS 2022, eq. 10 and 11).

    CE + beta tau^2 KL(q~_g || q~): q~ is the softmax over the C - 1 classes that are not the label, at
    temperature tau, of the client's model, q~_g that of the model that arrived.
    The paper's eq. 11 has no tau^2 (its eq. 3 has), its authors' code has; at the default tau = 1 they
    agree, and `tau_squared` chooses.
    """

    beta: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of the distillation term."""
    tau: Annotated[float, POSITIVE] = 1.0
    """Temperature of the softmaxes in the distillation term; mse has none."""
    distance: Literal["kl", "mse"] = "kl"
    """KL of the not-true softmaxes, or mean squared difference of the not-true logits (appendix L)."""
    kd_mix: Annotated[float, UNIT] = 1.0
    """The lambda of eq. 18: share of the not-true term; the rest is the same over all classes."""
    tau_squared: bool = True
    """Whether KL is multiplied by tau^2, which keeps its gradient's size at every temperature."""

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus the distance from the global model's predictions on not-true classes."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        return batch.mean(
            cross_entropy(student, batch.y) + self.beta * self.distil(teacher, student, batch.y)
        )

    def distil(self, teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
        """L(lambda) = (1 - lambda) KD + lambda NTD (eq. 18), [B]."""
        term = self.kd_mix * self._not_true(teacher, student, y)
        if self.kd_mix < 1:
            term = term + (1 - self.kd_mix) * self._all_classes(teacher, student)
        return term

    def _not_true(self, teacher: Tensor, student: Tensor, y: Tensor) -> Tensor:
        if self.distance == "mse":
            return not_true_square(teacher, student, y)
        return not_true_kl(teacher, student, y, self.tau, tau_squared=self.tau_squared)

    def _all_classes(self, teacher: Tensor, student: Tensor) -> Tensor:
        if self.distance == "mse":
            return weighted_square(teacher, student) / student.shape[-1]
        return kl(teacher, student, self.tau, tau_squared=self.tau_squared)
