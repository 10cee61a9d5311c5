"""FedAvg with calibrated labels."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.batches import Batch, LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import UNIT


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    offset: Tensor  # [C]
    """What its labels add to the logits of cross-entropy."""


@dataclass(frozen=True)
class Calibrated(FedAvg):
    """FedAvg whose clients take their labels' shares out of cross-entropy.

    CE(z + calibration log p_k): a client adds the logarithm of its label shares p_k to its logits z (logit
    adjustment, Menon et al., ICLR 2021; FedLC is a relative), so that classes that it lacks are not pushed
    down for being rare.
    """

    calibration: Annotated[float, UNIT] = 1.0
    """How far a client's label shares are taken out of its cross-entropy; 0: not at all."""

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Anchor:
        """What the client's labels add to its logits."""
        return Anchor(self.calibration * log_shares(data, like=down.weights))

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy of the adjusted logits."""
        return batch.mean(cross_entropy(model(params, batch.x) + anchor.offset, batch.y))


def log_shares(data: LocalData, like: Weights) -> Tensor:
    """log((n_c + 1) / (n + C)) of each class, which is finite for those that are lacking, too."""
    counts = data.counts.double() + 1
    return (counts / counts.sum()).log().to(next(iter(like.params.values())))
