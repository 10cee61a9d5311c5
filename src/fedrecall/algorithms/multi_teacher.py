"""Sequential federated learning from several teachers: what SFedKD and its rivals have in common."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedrecall import trees
from fedrecall.algorithms.fedavg import Memory
from fedrecall.algorithms.fedseq import FedSeq
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.algorithms.teachers import Metric, Share, at_random, complementary, disclosed, discrepancy
from fedrecall.batches import Batch, LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE


class Server(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights
    teachers: Weights
    """The chosen models of the last round, stacked: [K, ...]; at first K is 0."""
    distributions: Tensor
    """What the teachers' clients said of their label distributions, [K, C], or [K, 0]."""
    round: Tensor
    """How many rounds were played."""


class Down(NamedTuple):
    """What travels to a client, and on to the next one of its chain."""

    weights: Weights
    teachers: Weights  # [K, ...]
    distributions: Tensor  # [K, C] or [K, 0]


class Said(NamedTuple):
    """What a client keeps so as to say the same whenever it is asked."""

    distribution: Tensor
    """Its label distribution with noise, [C]; empty before it was asked."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains: teachers, or what they say of every example."""

    teachers: Weights
    """[K, ...] where an example looks different each time, else nothing."""
    logits: Tensor
    """[n, K, C] where it does not, else nothing."""
    distances: Tensor
    """d(D^{T_j}, D^S) of every teacher's client from this one, [K], float64."""


class Up(NamedTuple):
    """What travels back, from every client of a chain."""

    weights: Weights
    distribution: Tensor
    """What the client says of its label distribution, [C]; empty where nobody asks."""


def _nobody(weights: Weights, *shape: int) -> Tensor:
    """No client's label distributions, where clients' will be: what is resumed is put there."""
    return torch.empty(shape, dtype=torch.float64, device=next(iter(weights.params.values())).device)


@dataclass(frozen=True)
class MultiTeacher(FedSeq):
    """FedSeq whose clients also learn from K models of the round before; a subclass says how.

    In the first round there are no teachers and clients minimise plain cross-entropy. With several
    chains the models of all of them are candidates. A teacher whose own client is the student
    stays a teacher. The teachers' logits are computed once per example and visit unless the data
    are augmented.
    """

    every_link: ClassVar[bool] = True
    remembers_once: ClassVar[bool] = True  # a second draw of the noise would halve what it hides

    teachers: Annotated[int, NON_NEGATIVE] = 5
    """K, how many models of the round before teach; at most as many as there are. 0: none, however chosen."""
    selection: Literal["greedy", "random", "all"] = "greedy"
    """Teachers: those whose label distributions complement one another, random ones, or all, not K."""
    metric: Metric = "kl"
    """Distance between label distributions, for the selection and for weights."""
    epsilon: Annotated[float, POSITIVE] = 1e-4
    """Smoothing of that distance and of weights."""
    tau: Annotated[float, POSITIVE] = 1.0
    """Temperature of teachers' and student's softmaxes; losses are multiplied by its square."""
    share: Share = "exact"
    """How clients say their label distribution: exactly, with noise, or rounded to a grid."""
    noise: Annotated[float, NON_NEGATIVE] = 0.05
    """Size of that noise on every share: Laplace's scale, or the Gaussian's standard deviation."""
    grid: Annotated[int, AT_LEAST_ONE] = 4
    """Shares are rounded to multiples of one over this."""
    secret_noise: bool = False
    """Draw noise that does not follow from the run's seed, as a real federation must; runs then differ."""

    @property
    def by_distance(self) -> bool:
        """Whether `distil` looks at distances."""
        return False

    @property
    def asks(self) -> bool:
        """Whether anything depends on clients' label distributions; if nothing does, none is sent."""
        return self.teachers > 0 and (self.selection == "greedy" or self.by_distance)

    @abstractmethod
    def distil(self, teachers: Tensor, student: Tensor, y: Tensor, distances: Tensor) -> Tensor:
        """The distillation term, [B], of logits [K, B, C] and [B, C]; K is at least one."""

    def start(self, weights: Weights) -> Server:
        """No teachers yet."""
        nobody: Weights = trees.transform(lambda t: t.new_empty(0, *t.shape), weights)
        return Server(weights, nobody, _nobody(weights, 0, 0), torch.tensor(0))

    def remember(self, weights: Weights) -> Any:
        """Noise is drawn once per client: fresh draws would average out over rounds."""
        if self.asks and self.share in ("laplace", "gaussian"):
            return Said(_nobody(weights, 0))
        return Memory()

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Down:
        """The model, the teachers, and what their clients' data are like."""
        return Down(server.weights, server.teachers, server.distributions)

    def prepare(self, model: Model, down: Down, memory: Any, data: LocalData) -> Anchor:
        """How far each teacher's client is, and if it can be, what the teachers say of the data."""
        nothing = _nobody(down.weights, 0).float()
        if len(down.distributions) == 0:
            return Anchor(Weights({}, {}), nothing, _nobody(down.weights, 0))
        if self.asks:
            distances = discrepancy(down.distributions, data.distribution, self.metric, self.epsilon)
        else:
            distances = _nobody(down.weights, len(down.distributions)).zero_()
        if data.augmented:
            return Anchor(down.teachers, nothing, distances)
        said = [model.frozen_many(down.teachers, batch.x).transpose(0, 1) for batch in data.batches()]
        return Anchor(Weights({}, {}), torch.cat(said), distances)

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy, and the distillation term if there are teachers."""
        student = model(params, batch.x)
        loss = cross_entropy(student, batch.y)
        if anchor.distances.shape[0]:
            if anchor.teachers.params:
                teachers = model.frozen_many(anchor.teachers, batch.x)  # [K, B, C]
            else:
                teachers = anchor.logits[batch.place].transpose(0, 1)
            loss = loss + self.distil(teachers, student, batch.y, anchor.distances)
        return batch.mean(loss)

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Any, data: LocalData, sgd: Sgd
    ) -> tuple[Up, Any]:
        """The model, and what the client says of its labels."""
        if not self.asks:
            return Up(weights, _nobody(weights, 0)), memory
        if not isinstance(memory, Said):
            return Up(weights, disclosed(data.distribution, self.share, self.noise, self.grid)), memory
        if len(memory.distribution) == 0:
            said = disclosed(data.distribution, self.share, self.noise, self.grid, self.secret_noise)
            memory = Said(said)
        return Up(weights, memory.distribution), memory

    def aggregate(self, server: Server, ups: Up, cohort: Cohort) -> Server:
        """The mean of the chains' last models, and the next round's teachers among all models."""
        said = ups.distribution.clamp(0, 1)  # whatever a client says: a share
        chosen = torch.tensor(self.choose(said), dtype=torch.int64)
        teachers: Weights = trees.transform(lambda t: t[chosen.to(t.device)], ups.weights)
        return Server(
            cohort.mean(ups.weights),
            teachers,
            said[chosen.to(said.device)],
            server.round + 1,
        )

    def choose(self, distributions: Tensor) -> list[int]:
        """Which of the round's models, whose clients have these label distributions [M, C], teach next."""
        candidates = len(distributions)
        if self.selection == "all":
            return list(range(candidates if self.teachers else 0))
        if self.selection == "random":
            return at_random(candidates, self.teachers)
        return complementary(distributions, self.teachers, self.metric, self.epsilon)
