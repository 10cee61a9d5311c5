"""A backend is a map over the clients of one link."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.data.federation import Federation
from fedrecall.errors import OfMachine
from fedrecall.models.model import Model
from fedrecall.training import Recipe, Visit


class NotStarted(OfMachine):
    """Worker processes could not be started."""


class Job(NamedTuple):
    """One visit to make."""

    chain: int
    client: int
    round: int
    down: Any
    """What the algorithm sends; the same object in all jobs that receive the same."""
    memory: Any
    """What the client remembers; None before its first visit, which makes it where the client is trained."""
    sent: Any = None
    """What another host is sent, which makes ``down`` of it; the same object where that is."""


@dataclass(frozen=True)
class Work:
    """What stays the same over a run."""

    algorithm: FedAvg
    model: Model
    recipe: Recipe
    federation: Federation
    seed: int
    chains: int = 1
    """Chains that train side by side."""
    workers: int | None = None
    """How many workers, where a backend has them; by default what the machine has."""

    def epochs(self, job: Job) -> int:
        """Passes over its examples that the client makes."""
        return self.recipe.epochs(self.seed, job.round, job.client)

    def steps(self, job: Job) -> int:
        """Batches in the visit."""
        return self.recipe.steps(self.federation.size(job.client), self.epochs(job))

    def longest_first(self, jobs: Sequence[Job]) -> list[int]:
        """The jobs' places: whoever is asked first for those of most work waits least for the last."""
        return sorted(
            range(len(jobs)), key=lambda i: -self.epochs(jobs[i]) * self.federation.size(jobs[i].client)
        )


class Backend(Protocol):
    """Where visits are made. Every backend returns what `serial` returns."""

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs."""

    def close(self) -> None:
        """Free what the backend holds."""
