"""An algorithm that invites whom it likes: clients on whose data the global model does badly, more often.

    fedrecall run --algorithm examples/fedhard.py:FedHard:power=2 --dataset digits --partition lda:0.1 \
        --clients 20 --sample 5 --rounds 10 --batch-size 10

As in active federated learning (Goetz et al., 2019), by each client's loss when it last took part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedrecall import FedAvg, Weights
from fedrecall.losses import cross_entropy
from fedrecall.specs import NON_NEGATIVE


class Server(NamedTuple):
    """What the server keeps."""

    weights: Weights
    losses: Tensor  # [N], on the CPU, -1 of whom it never met; [0] before the first round


class Up(NamedTuple):
    """What a client sends."""

    weights: Weights
    loss: Tensor


@dataclass(frozen=True)
class FedHard(FedAvg):
    """FedAvg among clients that are drawn by the global model's loss on their data."""

    every_link: ClassVar[bool] = True  # in chains, too, all losses arrive
    power: Annotated[float, NON_NEGATIVE] = 1.0
    """A client is drawn with its loss to this power; whom nobody has met counts like the worst one known."""

    def start(self, weights: Weights) -> Server:
        """Nobody is known."""
        return Server(weights, torch.zeros(0))

    def invite(self, server: Server, population: int, count: int, round_number: int) -> Sequence[int] | None:
        """Different clients; at random in the first round."""
        if not len(server.losses):
            return None
        losses = torch.where(server.losses < 0, server.losses.max(), server.losses).double()
        shares = (losses.clamp_min(1e-6) / losses.max().clamp_min(1e-6)) ** self.power
        return torch.multinomial(shares.clamp_min(1e-300), count).tolist()

    def finish(self, model, weights: Weights, anchor, memory, data, sgd) -> tuple[Up, NamedTuple]:
        """The trained model, and how the one that arrived did."""
        losses = [cross_entropy(model.frozen(anchor.weights, b.x), b.y) for b in data.batches()]
        return Up(weights, torch.cat(losses).mean().float()), memory

    def aggregate(self, server: Server, ups: Up, cohort) -> Server:
        """The mean of the models, and what was learnt of those who took part."""
        losses = server.losses.new_full((cohort.population,), -1.0)
        losses[: len(server.losses)] = server.losses
        losses[list(cohort.clients)] = ups.loss.cpu()
        return Server(cohort.mean(ups.weights), losses)
