"""What the hooks of an algorithm are given, besides its own tuples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedrecall import trees
from fedrecall.batches import Sgd
from fedrecall.errors import UserError

__all__ = ["Cohort", "Sgd"]

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Cohort:
    """Who the stacked uploads of a round come from."""

    clients: Sequence[int]
    """Number of the client behind each upload."""
    shares: Sequence[float]
    """Weight of each upload: its chain's examples over those of all chains; they sum to one."""
    population: int
    """N, how many clients the federation has."""
    sampled: int
    """M, how many clients took part in the round, in all chains together."""
    link: Sequence[int]
    """Place of each upload's client in its chain."""
    chain: Sequence[int]
    """Chain of each upload's client."""

    def mean(self, stacked: Tree, shares: Sequence[float] | None = None) -> Tree:
        """The weighted mean over the leading axis, as `sum` adds.

        ``shares``: other ones than the cohort's, which sum to one as they do. With the cohort's the mean of
        equal tensors is that tensor: no rounding moves what nobody has changed.
        """
        if shares is not None:
            if not math.isclose(total := sum(map(float, shares)), 1, abs_tol=1e-4):
                raise UserError(
                    f"cohort.mean is given shares that sum to {total:g} and not to one: divide them by their "
                    "sum, or take cohort.sum, which weighs uploads with any numbers."
                )
            return self.sum(stacked, shares)
        return trees.transform(lambda t: t[0].clone() if _all_equal(t) else _sum(t, self.shares), stacked)

    def sum(self, stacked: Tree, weights: Sequence[float] | None = None) -> Tree:
        """The sum over the leading axis, each upload times its weight, which is 1 if none are given.

        Integers are rounded to the nearest. Summed in the uploads' order, whatever the number of threads:
        bit for bit repeatable.
        """
        count = len(self.clients)
        each = [1.0] * count if weights is None else [float(weight) for weight in weights]
        if len(each) != count:
            raise UserError(f"aggregate weighs {count} uploads with {len(each)} numbers: give one for each.")
        return trees.transform(lambda t: _sum(t, each), stacked)

    def uniform(self) -> list[float]:
        """Equal shares for all that have a share: each chain's last upload."""
        counted = sum(share > 0 for share in self.shares)
        return [(share > 0) / counted for share in self.shares]


def _sum(values: Tensor, weights: Sequence[float]) -> Tensor:
    exact = values if values.is_floating_point() else values.double()
    total = torch.zeros_like(exact[0])
    for value, weight in zip(exact, weights, strict=True):
        total.add_(value, alpha=weight)
    return total if values.is_floating_point() else total.round().to(values.dtype)


def _all_equal(values: Tensor) -> bool:
    """Whether all along the leading axis are the same; a GPU is waited for once."""
    if values.device.type == "cpu":  # where the first two are enough to tell in most cases
        return all(torch.equal(values[0], other) for other in values[1:])
    return bool((values == values[:1]).all())
