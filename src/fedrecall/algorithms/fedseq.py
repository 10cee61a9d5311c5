"""FedSeq."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrecall.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedSeq(FedAvg):
    """Sequential federated learning (Li & Lyu, NeurIPS 2023): each client goes on where the last stopped."""

    sequential: ClassVar[bool] = True

    order: Literal["random", "fixed", "cyclic"] = "random"
    """Order of the sampled clients: random; by number; or by number with another one first each round."""

    def arrange(self, sampled: Sequence[int], round_number: int) -> Sequence[int]:
        """The sampled clients in the chosen order."""
        if self.order == "random":
            return sampled
        ordered = sorted(sampled)
        first = round_number % len(ordered) if self.order == "cyclic" else 0
        return ordered[first:] + ordered[:first]
