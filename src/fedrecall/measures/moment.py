"""What a measure may look at: one round, seen from everywhere."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch

from fedrecall import contracts, trees
from fedrecall.algorithms.fedavg import FedAvg, keeps_own
from fedrecall.data.federation import Federation
from fedrecall.measures.accuracy import Evaluation, evaluate
from fedrecall.models.model import Model, Weights
from fedrecall.specs import AT_LEAST_ONE
from fedrecall.training import Visit


@dataclass(frozen=True)
class Moment:
    """A round that has just been played."""

    round_number: int
    model: Model
    federation: Federation
    before: Weights
    """The global model at the start of the round."""
    after: Weights
    """The global model at its end."""
    chains: Sequence[Sequence[int]]
    """The clients of the round, chain by chain in the order of their visits."""
    visits: Sequence[Visit]
    """What they did, in the order of the chains; failed visits have no upload."""
    sent: Sequence[Weights]
    """The model that arrived at each of them."""
    evaluation: Evaluation
    """`after` on the test set."""
    algorithm: FedAvg
    memories: Sequence[Any] = ()
    """What the visits' clients remembered before, where they train another model than what they are sent."""
    remembered: Callable[[int], Any] | None = None
    """What any client remembers now; None before its first visit."""

    @cached_property
    def good(self) -> list[Visit]:
        """The visits that did not fail."""
        return [v for v in self.visits if v.failure is None]

    @cached_property
    def local_evaluations(self) -> list[Evaluation]:
        """Each good visit's model on the test set; computed once, whoever asks."""
        return [evaluate(self.model, self.trained(v), self.federation.test) for v in self.good]

    @cached_property
    def received(self) -> list[tuple[Weights, Evaluation]]:
        """What each good visit's client was sent, and how that does on the test set (once a model)."""
        known = {_places(self.trained(v)): e for v, e in zip(self.good, self.local_evaluations, strict=True)}
        found = []
        for visit, sent in zip(self.visits, self.sent, strict=True):
            if visit.failure is None:
                if (place := _places(sent)) not in known:
                    same = place == _places(self.before)
                    test = self.federation.test
                    known[place] = self.evaluation_before if same else evaluate(self.model, sent, test)
                found.append((sent, known[place]))
        return found

    @cached_property
    def begun(self) -> list[Weights]:
        """The model that each good visit's client used before it."""
        sent = [w for v, w in zip(self.visits, self.sent, strict=True) if v.failure is None]
        if not self.memories:
            return sent
        kept = [m for v, m in zip(self.visits, self.memories, strict=True) if v.failure is None]
        return [self._own(*both) for both in zip(sent, kept, strict=True)]

    def _own(self, sent: Weights, memory: Any) -> Weights:
        with torch.random.fork_rng(devices=[]):  # a first memory may be drawn; here it is another one then
            kept = self.algorithm.remember(sent) if memory is None else memory
        return contracts.deployed(self.algorithm, sent, kept)

    def own(self, client: int) -> Weights:
        """The model that any client has of `after`: that itself where clients keep no layers of their own."""
        if self.remembered is None or not keeps_own(self.algorithm):
            return self.after
        return self._own(self.after, self.remembered(client))

    def right_at_home(self, client: int, weights: Weights) -> np.ndarray:
        """Which of the test examples from where a client is a model gets right; where that is known."""
        assert self.federation.at_home is not None
        places = self.federation.at_home[client]
        test = self.federation.test
        known = self.evaluation.predicted
        if weights is self.after and known is not None:
            predicted = known[places]
        else:
            mine = test.part(torch.from_numpy(places).to(test.y.device))
            predicted = evaluate(self.model, weights, mine).predicted
        return np.asarray(predicted == test.y.cpu().numpy()[places])

    @cached_property
    def at_home(self) -> list[np.ndarray] | None:
        """`right_at_home` of every client with the model that it has; None if that is not known of any."""
        if self.federation.at_home is None:
            return None
        return [self.right_at_home(client, self.own(client)) for client in range(len(self.federation))]

    def trained(self, visit: Visit) -> Weights:
        """What training made of the model in a good visit."""
        return self.model.part(self.algorithm.personal(visit.up.weights, visit.memory))

    def used(self, visit: Visit) -> Weights:
        """The model that a client uses after a good visit."""
        return contracts.deployed(self.algorithm, visit.up.weights, visit.memory)

    @cached_property
    def used_evaluations(self) -> list[Evaluation]:
        """What is used after each good visit on the test set."""
        found = []
        for v, trained in zip(self.good, self.local_evaluations, strict=True):
            used = self.used(v)
            same = _places(used) == _places(self.trained(v))
            found.append(trained if same else evaluate(self.model, used, self.federation.test))
        return found

    @cached_property
    def evaluation_before(self) -> Evaluation:
        """`before` on the test set."""
        return evaluate(self.model, self.before, self.federation.test)

    def distribution(self, client: int) -> np.ndarray:
        """A client's label distribution p^k."""
        return np.asarray(self.federation.client(client).distribution.cpu().numpy())


def _places(weights: Weights) -> tuple[int, ...]:
    """Where a model's numbers lie: two with the same places are one model."""
    return tuple(tensor.data_ptr() for _, tensor in trees.leaves(weights))


@dataclass(frozen=True)
class Measure(ABC):
    """Something recorded on demand: its fields are its options; it maps a moment to JSON."""

    every: Annotated[int, AT_LEAST_ONE] = 1
    """Rounds from one time to the next; the last round is always measured.

    It counts all rounds, and is looked at in evaluated ones only.
    """

    def check(self, federation: Federation) -> None:  # noqa: B027
        """Raise UserError if it cannot be measured on these data: asked before the first round."""

    @abstractmethod
    def __call__(self, moment: Moment) -> dict[str, Any]:
        """What to record under the measure's name."""
