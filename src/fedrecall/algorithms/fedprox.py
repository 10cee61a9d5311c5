"""FedProx."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedrecall.algorithms.fedavg import Anchor, FedAvg
from fedrecall.batches import Batch
from fedrecall.models.model import Params, Student
from fedrecall.penalties import quadratic
from fedrecall.specs import NON_NEGATIVE


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Proximal term (Li et al., MLSys 2020, eq. 2): CE + (mu/2) ||w_k - w||^2."""

    mu: Annotated[float, NON_NEGATIVE] = 0.1
    """Strength of the pull towards the model that arrived."""

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus the proximal term."""
        drift = quadratic(params, anchor.weights.params)
        return super().loss(model, params, anchor, batch) + self.mu / 2 * drift
