"""FedAvgM."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from fedrecall import trees
from fedrecall.algorithms.fedavg import FedAvg, Up
from fedrecall.algorithms.hooks import Cohort
from fedrecall.models.model import Params, Weights
from fedrecall.specs import Range


class Server(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights
    velocity: Params
    """v, the momentum of the global model."""


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """Server momentum (Hsu et al., 2019): v <- beta v + (w - mean w_k), w <- w - v.

    Running statistics are averaged without momentum.
    """

    beta: Annotated[float, Range(0, 1, open_high=True)] = 0.9
    """Server momentum."""

    def start(self, weights: Weights) -> Server:
        """No velocity yet."""
        return Server(weights, trees.zeros(weights.params))

    def aggregate(self, server: Server, ups: Up, cohort: Cohort) -> Any:
        """Move by the velocity, to which this round's mean update is added."""
        mean, old = cohort.mean(ups.weights), server.weights.params
        velocity = {n: self.beta * v + (old[n] - mean.params[n]) for n, v in server.velocity.items()}
        moved = {n: old[n] - v for n, v in velocity.items()}
        return Server(Weights(moved, mean.buffers), velocity)
