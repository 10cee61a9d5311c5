"""FedLSD."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedrecall.algorithms.fedavg import Anchor, FedAvg
from fedrecall.batches import Batch
from fedrecall.losses import cross_entropy, soft_cross_entropy
from fedrecall.models.model import Params, Student
from fedrecall.specs import POSITIVE, UNIT


@dataclass(frozen=True)
class FedLSD(FedAvg):
    """Local self-distillation (Lee et al., arXiv 2106.03097, as He et al. state it in FedCAD, eq. 1 and 2).

    (1 - alpha) CE + alpha L_d, L_d the cross-entropy of the student with the teacher's soft labels,
    without tau^2. No source gives alpha; the default is FedCAD's lower bound.
    """

    alpha: Annotated[float, UNIT] = 0.25
    """Weight of the teacher's soft labels against the true ones."""
    tau: Annotated[float, POSITIVE] = 1.0
    """Temperature of both softmaxes in the distillation term."""

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy with the labels mixed with cross-entropy with the global model's predictions."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        return batch.mean(
            (1 - self.alpha) * cross_entropy(student, batch.y)
            + self.alpha * soft_cross_entropy(teacher, student, self.tau)
        )
