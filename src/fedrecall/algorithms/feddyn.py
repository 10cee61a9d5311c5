"""FedDyn."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor

from fedrecall import trees
from fedrecall.algorithms.fedavg import Down, FedAvg, Up
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import Batch, LocalData
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.penalties import inner, quadratic
from fedrecall.specs import POSITIVE


class Server(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights
    correction: Params
    """h, the mean of all clients' h_k."""


class Memory(NamedTuple):
    """What a client keeps between its visits."""

    gradient: Params
    """h_k, the gradient of the client's loss where its last visit ended."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    gradient: Params


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Dynamic regularisation (Acar et al., ICLR 2021, algorithm 1).

    Clients minimise CE - <h_k, w> + (alpha/2) ||w - w_g||^2 and then set h_k <- h_k - alpha (w_k - w_g);
    the server sets h <- h - (alpha/N) sum_k (w_k - w_g) and w <- mean w_k - h / alpha, the mean with
    equal weights. Running statistics are averaged by numbers of examples, as in FedAvg.
    """

    mirrors: ClassVar[bool] = True
    alpha: Annotated[float, POSITIVE] = 0.1
    """Strength of the regularisation."""

    def start(self, weights: Weights) -> Server:
        """h = 0."""
        return Server(weights, trees.zeros(weights.params))

    def remember(self, weights: Weights) -> Memory:
        """h_k = 0."""
        return Memory(trees.zeros(weights.params))

    def prepare(self, model: Model, down: Down, memory: Memory, data: LocalData) -> Anchor:
        """The model that arrived and the client's h_k."""
        return Anchor(down.weights, memory.gradient)

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy, minus the linear term, plus the proximal term."""
        linear = inner(params, anchor.gradient)
        drift = quadratic(params, anchor.weights.params)
        return super().loss(model, params, anchor, batch) - linear + self.alpha / 2 * drift

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Memory, data: LocalData, sgd: Sgd
    ) -> tuple[Up, Memory]:
        """Where the objective is minimal its gradient is 0, so h_k - alpha (w_k - w_g) is that of CE."""
        arrived = anchor.weights.params
        return Up(weights), Memory(
            {n: h - self.alpha * (weights.params[n] - arrived[n]) for n, h in memory.gradient.items()}
        )

    def aggregate(self, server: Server, ups: Up, cohort: Cohort) -> Server:
        """Average, and correct by h for those who did not take part."""
        old, mean = server.weights.params, cohort.mean(ups.weights.params, cohort.uniform())
        present = len(cohort.clients) / cohort.population
        h = {n: h - self.alpha * present * (mean[n] - old[n]) for n, h in server.correction.items()}
        params = {n: w - h[n] / self.alpha for n, w in mean.items()}
        return Server(Weights(params, cohort.mean(ups.weights.buffers)), h)
