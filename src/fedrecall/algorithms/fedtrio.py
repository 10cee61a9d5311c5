"""FedTrio."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from fedrecall.algorithms import scaffold
from fedrecall.algorithms.calibrated import log_shares
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.algorithms.scaffold import Scaffold
from fedrecall.batches import Batch, LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import UNIT


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    shift: Params
    """c - c_k, added to every gradient."""
    offset: Tensor  # [C]
    """What its labels add to the logits of cross-entropy."""


@dataclass(frozen=True)
class FedTrio(FedNTD, Scaffold):
    """Three remedies of forgetting at once, each for what the others leave: this package's own.

    CE(z + calibration log p_k) + beta NTD(z), with gradients corrected by c - c_k. A client adds the
    logarithm of its label shares p_k to the logits of cross-entropy (logit adjustment, Menon et al., ICLR
    2021), so that classes that it lacks are not pushed down for being rare. Control variates take out what
    is left of its drift (SCAFFOLD), and not-true distillation keeps what the model that arrived knows of
    other classes (FedNTD).
    """

    calibration: Annotated[float, UNIT] = 1.0
    """How far a client's label shares are taken out of its cross-entropy; 0: not at all."""

    def prepare(self, model: Model, down: scaffold.Server, memory: scaffold.Memory, data: LocalData) -> Any:
        """The difference of the variates, and what the client's labels add to its logits."""
        held = super().prepare(model, down, memory, data)
        return Anchor(held.weights, held.shift, self.calibration * log_shares(data, like=down.weights))

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        """Cross-entropy of the adjusted logits plus the not-true term of those as they are."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        fit = cross_entropy(student + anchor.offset, batch.y)
        return batch.mean(fit + self.beta * self.distil(teacher, student, batch.y))
