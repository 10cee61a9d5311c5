"""FedSSD."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.batches import Batch, LocalData
from fedrecall.errors import UserError
from fedrecall.losses import cross_entropy, kl, weighted_square
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import NON_NEGATIVE

THRESHOLD = 0.1  # eq. 4: what is less credible than this is not distilled at all


class Down(NamedTuple):
    """What travels to a client."""

    weights: Weights
    credibility: Tensor  # [C, C]
    """A, share of the auxiliary examples of each class (row) predicted as each class (column)."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    """The model that arrived, the teacher."""
    class_weights: Tensor  # [C]
    """M_class, how credible the teacher's logit of each class is."""


def credibility(model: Model, weights: Weights, data: LocalData) -> Tensor:
    """The row-normalised confusion matrix, [C, C]; a row of zeros for a class without examples (eq. 2)."""
    c = data.classes
    cells = [b.y * c + model.frozen(weights, b.x).argmax(-1) for b in data.batches()]
    counts = torch.bincount(torch.cat(cells), minlength=c * c).view(c, c)
    return counts.to(next(iter(weights.params.values()))) / counts.sum(1, keepdim=True).clamp(min=1)


def class_weights(matrix: Tensor) -> Tensor:
    """M_class[i] = A[i, i] (1 - max over j != i of A[j, i]) (eq. 4), [C]."""
    own = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    mistaken = torch.where(own, 0.0, matrix).amax(0)
    return matrix.diagonal() * (1 - mistaken)


def sample_weights(teacher: Tensor, y: Tensor) -> Tensor:
    """M_sample(x) = 1 - sqrt(1 - p^g(x)[y]) (eq. 4), [B]."""
    return 1 - (-torch.expm1(-cross_entropy(teacher, y))).clamp(min=0).sqrt()


@dataclass(frozen=True)
class FedSSD(FedAvg):
    """Selective self-distillation (He et al., IEEE Transactions on Big Data, eq. 2 to 6).

    CE + mean ||M . z^g - M . z||^2, M(x)[i] = m_max max(M_class[i] M_sample(x) - 0.1, 0). Written so,
    M enters squared, at most 1e-4 at the default; `square_weights=False` has M itself as the weight.
    In a chain the matrix stays the global model's, while the teacher is the model that arrived.

    Deviation: the default of m_max does not follow the data set.
    """

    m_max: Annotated[float, NON_NEGATIVE] = 0.01
    """Upper bound of the distillation weights: on any data the paper's best for CIFAR-10, which for CIFAR-100
    and Tiny-ImageNet is 0.001. With `distillation` mse or kl, the constant weight itself."""
    square_weights: bool = True
    """Whether M stands inside the square, as in eq. 3, or outside it; mse and kl have no M."""
    distillation: Literal["selective", "mse", "kl"] = "selective"
    """Selective as above, or table 3's ablations: m_max times the squared difference of the logits or
    times the KL of the softmaxes, for all classes and examples alike."""
    auxiliary_per_class: Annotated[int, NON_NEGATIVE] = 64
    """Examples of each class that the server holds to measure credibility; with mse and kl it does not look
    at them, and they are set apart so that all train on the same."""

    def __post_init__(self) -> None:
        """Refuse to measure credibility on nothing."""
        if self.distillation == "selective" and self.auxiliary_per_class < 1:
            raise UserError(
                "fedssd: auxiliary_per_class = 0 leaves no example to measure the global model's credibility "
                "on; set it to 1 or more (the paper: 64), or choose distillation = mse or kl."
            )

    def broadcast(self, model: Model, server: Any, auxiliary: LocalData | None) -> Any:
        """The global model with its credibility on the server's own examples."""
        if self.distillation != "selective":
            return super().broadcast(model, server, auxiliary)
        if auxiliary is None:
            raise UserError(
                "fedssd measures the global model's credibility on the server's own examples, and it has "
                "none: set some apart with auxiliary_per_class (the paper: 64)."
            )
        return Down(server.weights, credibility(model, server.weights, auxiliary))

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Any:
        """Turn the matrix into a weight for each class's logit."""
        if self.distillation != "selective":
            return super().prepare(model, down, memory, data)
        return Anchor(down.weights, class_weights(down.credibility))

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        """Cross-entropy plus the pull towards those of the global model's logits that are credible."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        return batch.mean(cross_entropy(student, batch.y) + self._distil(teacher, student, anchor, batch.y))

    def _distil(self, teacher: Tensor, student: Tensor, anchor: Any, y: Tensor) -> Tensor:
        if self.distillation == "kl":
            return self.m_max * kl(teacher, student)
        if self.distillation == "mse":
            return weighted_square(teacher, student, self.m_max)
        weights = self.weights(teacher, anchor.class_weights, y)
        return weighted_square(teacher, student, weights.square() if self.square_weights else weights)

    def weights(self, teacher: Tensor, class_weights: Tensor, y: Tensor) -> Tensor:
        """M(x) (eq. 4), [B, C]."""
        product = class_weights * sample_weights(teacher, y).unsqueeze(-1)
        return self.m_max * (product - THRESHOLD).clamp(min=0)
