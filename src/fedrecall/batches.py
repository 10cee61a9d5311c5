"""What an algorithm's hooks see of a client's examples, and of how they are trained on."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedrecall.errors import UserError


class Batch(NamedTuple):
    """Examples for one step."""

    x: Tensor  # [B, C, H, W], normalised and augmented
    y: Tensor  # [B]
    place: Tensor  # [B], each example's place in the client's data
    mask: Tensor | None = None  # [B], False where an example only fills up a batch
    progress: Tensor | None = None  # [], share of the visit's steps that came before; in steps alone

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the examples of ``values`` ([B], one number an example)."""
        if getattr(values, "shape", None) != self.y.shape:
            found = (
                f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            )
            raise UserError(
                f"batch.mean is given {found}, and takes one number an example, {list(self.y.shape)}: "
                "sum or average each example's own numbers first, as with .sum(1), .mean(1) or [:, 0]."
            )
        if self.mask is None:
            return values.mean()
        zero = torch.zeros((), dtype=values.dtype, device=values.device)
        return torch.where(self.mask, values, zero).sum() / self.mask.sum()


class Sgd(NamedTuple):
    """The optimiser of one visit."""

    lr: float
    """Learning rate of this round."""
    momentum: float
    weight_decay: float
    steps: int
    """Number of batches the visit trains on, K."""

    def effective_steps(self, momentum_aware: bool = True) -> float:
        """By how many gradients' length K steps move: with momentum more than K.

        (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho), FedNova's ||a||_1 for momentum rho.
        """
        rho, k = self.momentum, self.steps
        if not momentum_aware or rho == 0:
            return float(k)
        return (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)


class LocalData(Protocol):
    """A client's examples as `prepare` and `finish` see them."""

    classes: int
    number: int
    """The client's number, to key what it draws for itself."""
    sgd: Sgd | None
    """The optimiser of the client's visit; None of examples that the server holds."""

    def __len__(self) -> int:
        """How many examples there are."""

    @property
    def augmented(self) -> bool:
        """Whether an example looks different each time training draws it."""

    @property
    def counts(self) -> Tensor:
        """Examples of each class, [C]."""

    @property
    def distribution(self) -> Tensor:
        """The label distribution p^k, [C], float64."""

    def batches(self, size: int = 100) -> Iterator[Batch]:
        """All examples once, in order, without augmentation."""
