"""FedNTD."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedrecall.algorithms.fedavg import Anchor, FedAvg
from fedrecall.batches import Batch
from fedrecall.losses import cross_entropy, not_true_kl
from fedrecall.models.model import Params, Student
from fedrecall.specs import NON_NEGATIVE, POSITIVE


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Not-true distillation (Lee et al., NeurIPS 2022, eq. 10 and 11).

    The paper's eq. 11 has no tau^2, its authors' code has; at the default tau = 1 they agree.
    """

    beta: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of the distillation term."""
    tau: Annotated[float, POSITIVE] = 1.0
    """Temperature of the not-true softmaxes."""

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus KL between global and local predictions on the not-true classes."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        return batch.mean(
            cross_entropy(student, batch.y) + self.beta * not_true_kl(teacher, student, batch.y, self.tau)
        )
