"""FedAvg, and by inheritance what every algorithm does where it says nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import Batch, LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import Declared


class Server(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights


class Down(NamedTuple):
    """What travels to a client."""

    weights: Weights


class Memory(NamedTuple):
    """What a client keeps between its visits: nothing."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    """The model that arrived, the teacher of distillation."""


class Up(NamedTuple):
    """What travels back."""

    weights: Weights


@dataclass(frozen=True)
class FedAvg(Declared):
    """Federated averaging (McMahan et al., AISTATS 2017).

    Clients minimise cross-entropy; the server averages their models by numbers of examples.
    """

    sequential: ClassVar[bool] = False
    """Whether a round is one chain of all sampled clients unless the user says otherwise."""
    every_link: ClassVar[bool] = False
    """Whether `aggregate` is given every client's upload rather than each chain's last."""
    remembers_once: ClassVar[bool] = False
    """Whether what a client remembers of its first visit stays, even if the round is played again."""
    mirrors: ClassVar[bool] = False
    """Whether the server's state must agree with what clients remember, from which noise would part it."""
    protects: ClassVar[bool] = False
    """Whether it promises clients something that statistics of all their data would break."""

    @property
    def auxiliary_per_class(self) -> int:
        """Examples of each class that the server holds for itself; a field where it can be chosen."""
        return 0

    @property
    def secret(self) -> bool:
        """Whether chance comes from the operating system where a seed would tell too much."""
        return False

    def equip(self, module: nn.Module) -> nn.Module:
        """The user's network with what this algorithm adds to it."""
        return module

    def start(self, weights: Weights) -> Any:
        """The server's state before the first round."""
        return Server(weights)

    def recount(self, server: Any, rounds: int) -> Any:
        """The server's state after it went back, where ``secret``: so many rounds were played by now, those
        that are played again among them."""
        return server

    def remember(self, weights: Weights) -> Any:
        """A client's memory before its first visit, given the weights that arrive then."""
        return Memory()

    def personal(self, weights: Weights, memory: Any) -> Weights:
        """The model that a client trains: of one that travels, with what it keeps to itself."""
        return weights

    def deploy(self, weights: Weights, memory: Any) -> Weights:
        """The model that a client uses, if that is another than the one that it trains."""
        return self.personal(weights, memory)

    def invite(self, server: Any, population: int, count: int, round_number: int) -> Sequence[int] | None:
        """So many different clients that take part, of 0 to ``population`` - 1; None: a random draw."""
        return None

    def arrange(self, sampled: Sequence[int], round_number: int) -> Sequence[int]:
        """The order in which the sampled clients (a random one, or that of `invite`) form the chains."""
        return sampled

    def broadcast(self, model: Model, server: Any, auxiliary: LocalData | None) -> Any:
        """What the server sends at the start of a round."""
        return Down(server.weights)

    def wrap(self, down: Any) -> Any:
        """What is sent of what travels to a client, if that is less."""
        return down

    def unwrap(self, sent: Any) -> Any:
        """What the client makes of it: all that travels to it, in the forms that it had."""
        return sent

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Any:
        """What the client holds on to while it trains."""
        return Anchor(down.weights)

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        """The local objective on one batch."""
        return batch.mean(cross_entropy(model(params, batch.x), batch.y))

    def correct(self, grads: Params, anchor: Any) -> Params:
        """The gradient that the optimiser is given (weight decay and momentum come after)."""
        return grads

    def settle(self, params: Params, before: Params, anchor: Any, batch: Batch) -> Params:
        """What a step leaves of the parameters that the optimiser made of those before."""
        return params

    def advance(self, anchor: Any, weights: Weights, grads: Params, batch: Batch) -> Any:
        """What the client holds on to after a step, which made ``weights``, by the loss's ``grads``."""
        return anchor

    def finish(
        self, model: Model, weights: Weights, anchor: Any, memory: Any, data: LocalData, sgd: Sgd
    ) -> tuple[Any, Any]:
        """What the client sends back and what it keeps."""
        return Up(weights), memory

    def unpack(self, up: Any, down: Any) -> Any:
        """The upload, with a field ``weights``, that what a client sends stands for; it was sent ``down``."""
        return up

    def relay(self, down: Any, up: Any) -> Any:
        """What the next client of a chain receives."""
        return down._replace(weights=up.weights)

    def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
        """The server's state after the round."""
        return server._replace(weights=cohort.mean(ups.weights))

    def refine(self, model: Model, server: Any, auxiliary: LocalData | None) -> Any:
        """The server's state after what the server itself learns, once it has aggregated."""
        return server

    def report(self, server: Any) -> dict[str, float]:
        """What the record of an evaluated round says of the server's state, by name."""
        return {}


def settles(algorithm: FedAvg) -> bool:
    """Whether it has a word after each step; if not, nothing is kept of the parameters before."""
    return type(_protected(algorithm)).settle is not FedAvg.settle


def advances(algorithm: FedAvg) -> bool:
    """Whether what its clients hold on to changes from step to step."""
    return type(_protected(algorithm)).advance is not FedAvg.advance


def packs(algorithm: FedAvg) -> bool:
    """Whether what its clients send is not yet what they say: ``unpack`` makes that of it."""
    return type(algorithm).unpack is not FedAvg.unpack


def wraps(algorithm: FedAvg) -> bool:
    """Whether what is sent to its clients is not yet what it says: ``unwrap`` makes that of it."""
    kind = type(algorithm)
    return (kind.wrap, kind.unwrap) != (FedAvg.wrap, FedAvg.unwrap)


def keeps_own(algorithm: FedAvg) -> bool:
    """Whether its clients have another model than the one that travels and is evaluated."""
    kind = type(_protected(algorithm))
    return (kind.personal, kind.deploy) != (FedAvg.personal, FedAvg.deploy)


def _protected(algorithm: FedAvg) -> FedAvg:
    """The algorithm that `private` protects, or itself."""
    return algorithm.inner if algorithm.protects else algorithm  # type: ignore[attr-defined]
