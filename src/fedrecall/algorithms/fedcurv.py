"""FedCurv."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor

from fedrecall import trees
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.fisher import diagonal_fisher
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import Batch, LocalData
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.penalties import inner, quadratic
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE


class Curvature(NamedTuple):
    """A sum of quadratic forms (w - w_j)^T F_j (w - w_j), as all that their gradient needs."""

    importance: Params
    """Sum of F_j."""
    weighted: Params
    """Sum of F_j w_j."""


class Server(NamedTuple):
    """What the server keeps between rounds, and sends."""

    weights: Weights
    all: Curvature
    """U and V, over the latest visit of every client seen."""


class Memory(NamedTuple):
    """What a client keeps between its visits."""

    own: Curvature
    """F_k and F_k w_k of its last visit, as the server has them; 0 before the first."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    others: Curvature
    """Of all clients but this one."""


class Up(NamedTuple):
    """What travels back."""

    weights: Weights
    change: Curvature
    """The client's own curvature after the visit minus that before, so that the server only adds."""


@dataclass(frozen=True)
class FedCurv(FedAvg):
    """Elastic weight consolidation across clients (Shoham et al., 2019, eq. 4 and 5).

    CE + lambda sum_{j != k} sum_i F_{j,i} (w_i - w_{j,i})^2. F_j is the diagonal empirical Fisher
    information at the end of j's last visit: the mean square of single examples' gradients. The
    penalty is computed without its constant sum_j F_j w_j^2, so the recorded loss may be negative.
    """

    every_link: ClassVar[bool] = True  # every client's curvature has changed, whatever its place in a chain

    lam: Annotated[float, NON_NEGATIVE] = 1.0
    """lambda, weight of the penalty."""
    s: Annotated[int, AT_LEAST_ONE] = 500
    """Most examples that a client's Fisher information is computed from, spread evenly over its data."""
    together: Annotated[int, AT_LEAST_ONE] = 1
    """Examples whose mean gradient is squared: 1 by the definition, a mini-batch in FedNTD's code."""

    def start(self, weights: Weights) -> Server:
        """Nobody has been visited."""
        return Server(weights, _nothing(weights))

    def remember(self, weights: Weights) -> Memory:
        """The client has contributed nothing."""
        return Memory(_nothing(weights))

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Server:
        """The model, U and V."""
        return server

    def prepare(self, model: Model, down: Server, memory: Memory, data: LocalData) -> Anchor:
        """What is left of U and V without this client's own part."""
        return Anchor(down.weights, trees.transform(lambda a, b: a - b, down.all, memory.own))

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus lambda sum_i (U_i w_i^2 - 2 V_i w_i)."""
        u, v = anchor.others
        penalty = quadratic(params, curvature=u) - 2 * inner(params, v)
        return super().loss(model, params, anchor, batch) + self.lam * penalty

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Memory, data: LocalData, sgd: Sgd
    ) -> tuple[Up, Memory]:
        """Compute the client's curvature where it stopped."""
        fisher = diagonal_fisher(model, weights, data, self.s, self.together)
        own = Curvature(fisher, {n: f * weights.params[n] for n, f in fisher.items()})
        change = trees.transform(lambda new, old: new - old, own, memory.own)
        return Up(weights, change), Memory(own)

    def aggregate(self, server: Server, ups: Up, cohort: Cohort) -> Server:
        """Average the models, sum the curvatures."""
        added = cohort.sum(ups.change)
        return Server(cohort.mean(ups.weights), trees.transform(lambda a, b: a + b, server.all, added))


def _nothing(weights: Weights) -> Curvature:
    return Curvature(trees.zeros(weights.params), trees.zeros(weights.params))
