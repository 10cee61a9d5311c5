"""FedAlign."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall.algorithms.fedavg import Anchor, FedAvg
from fedrecall.batches import Batch
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Params, Student
from fedrecall.models.slimmable import last_block
from fedrecall.specs import NON_NEGATIVE, Range

POWER_ITERATIONS = 10
TINY = 1e-12


@dataclass(frozen=True)
class FedAlign(FedAvg):
    """Distillation within the network (Mendieta et al., CVPR 2022, and its repository).

    CE + mu (CE / D) D, where D is the mean squared difference between the Lipschitz constants of the
    last block at full and at reduced width, and the factor CE / D, which the repository has and the
    paper has not, is a number without gradient. A block's constant is the spectral norm of the
    matrix F_in F_out^T / (H W) that transmits its input's channels to its output's. The block at
    reduced width is given the first channels of the same input and learns; everything at full width
    is a constant to it.
    """

    mu: Annotated[float, NON_NEGATIVE] = 0.45
    """Weight of the distance between the Lipschitz constants."""
    width: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.25
    """Share of the channels at reduced width."""
    balanced: bool = True
    """Scale the distance to the size of the cross-entropy, as the repository does."""
    clip: Annotated[float, NON_NEGATIVE] = 10.0
    """Longest gradient; longer ones are scaled down to it, as the repository does. 0: none."""

    def equip(self, module: nn.Module) -> nn.Module:
        """Note which layers are the last block."""
        module.last_block = last_block(module)  # type: ignore[assignment]
        return module

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus the distance."""
        block = model.model.module.last_block
        seen = model.traced(params, batch.x, block)  # type: ignore[arg-type]
        supervised = batch.mean(cross_entropy(seen.logits, batch.y))
        given, made = seen.given.detach(), seen.made.detach()
        narrow_given, narrow_made = model.narrow(params, given, block, self.width)  # type: ignore[arg-type]
        distance = lipschitz(narrow_given, narrow_made) - lipschitz(given, made)
        term = batch.mean(distance.square())
        if self.balanced:
            term = term * (supervised.detach() / term.detach().clamp_min(TINY))
        return supervised + self.mu * term

    def correct(self, grads: Params, anchor: Anchor) -> Params:
        """Shorten long gradients."""
        if not self.clip:
            return grads
        length = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        scale = (self.clip / (length + 1e-6)).clamp_max(1.0)
        return {n: g * scale for n, g in grads.items()}


def lipschitz(given: Tensor, made: Tensor) -> Tensor:
    """Spectral norm of each example's transmitting matrix, by ten power iterations, [B].

    Not in half precision, whatever the network computes in: it is part of a loss.
    """
    given, made = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (given, made))
    if given.dim() == 4 and given.shape[-1] > made.shape[-1]:
        given = F.adaptive_avg_pool2d(given, (made.shape[-2], made.shape[-1]))
    given, made = given.flatten(2) if given.dim() > 2 else given[..., None], made
    made = made.flatten(2) if made.dim() > 2 else made[..., None]
    matrix = given @ made.mT / given.shape[-1]  # [B, C_in, C_out]
    v = torch.ones_like(matrix[..., :1])
    for _ in range(POWER_ITERATIONS):
        moved = matrix @ (matrix.mT @ v)
        length = torch.linalg.vector_norm(moved, dim=-2, keepdim=True).clamp_min(TINY)
        v = moved / length
    constant: Tensor = length[:, 0, 0].sqrt()
    return constant
