"""Combinations of the papers' ideas, tried out: not part of the package until one has won.

fedrecall run --algorithm benchmarks/beyond/combinations.py:ClassWiseNTD --dataset cifar10
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedrecall import trees
from fedrecall.algorithms import scaffold
from fedrecall.algorithms.calibrated import log_shares
from fedrecall.algorithms.fedavgm import FedAvgM
from fedrecall.algorithms.fedcad import FedCAD
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.algorithms.fedssd import FedSSD
from fedrecall.algorithms.fedtrio import FedTrio
from fedrecall.algorithms.hooks import Cohort
from fedrecall.batches import Batch, LocalData
from fedrecall.errors import UserError
from fedrecall.losses import cross_entropy, is_true, weighted_square
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, UNIT, Range


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    """The model that arrived, the teacher."""
    trust: Tensor  # [C]
    """Weight of the distillation term for the examples, or the logit, of each class."""


@dataclass(frozen=True)
class ClassWiseNTD(FedNTD):
    """FedNTD whose term counts the more in a class, the better the global model knows that class (FedCAD).

    CE + beta w_y L_NTD, w_y = low + (high - low) E[p^g_y | y] over the client's own examples. A teacher that
    does not recognise what it sees has little to say about what else it might be.
    """

    low: Annotated[float, NON_NEGATIVE] = 0.5
    """w of a class that the global model never recognises."""
    high: Annotated[float, NON_NEGATIVE] = 1.5
    """w of a class that the global model is always sure of."""

    def __post_init__(self) -> None:
        """Refuse bounds in the wrong order."""
        if self.low > self.high:
            raise UserError(f"low = {self.low} must not be above high = {self.high}.")

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Anchor:
        """Measure how well the arriving model knows each of the client's classes, as FedCAD does."""
        sure = FedCAD(beta=0.0, gamma=1.0, tau=self.tau).prepare(model, down, memory, data)
        return Anchor(down.weights, self.low + (self.high - self.low) * sure.alpha)

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        """Cross-entropy plus the not-true term in each class's own proportion."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        kept = self.beta * anchor.trust[batch.y] * self.distil(teacher, student, batch.y)
        return batch.mean(cross_entropy(student, batch.y) + kept)


@dataclass(frozen=True)
class CredibleNTD(FedNTD):
    """FedNTD on logits, of which each counts as far as the global model is credible in its class (FedSSD).

    CE + beta / (C - 1) sum over i != y of M_i (z^g_i - z_i)^2, M_i = floor + (1 - floor) M_class[i] (FedSSD's
    eq. 4) from a confusion matrix on the server's own examples. What the global model mixes up is not kept.
    """

    floor: Annotated[float, UNIT] = 0.0
    """M of a class in which the global model is not credible at all."""
    auxiliary_per_class: Annotated[int, AT_LEAST_ONE] = 64
    """Examples of each class that the server holds to measure credibility."""

    def broadcast(self, model: Model, server: Any, auxiliary: LocalData | None) -> Any:
        """The global model with its confusion matrix."""
        return FedSSD().broadcast(model, server, auxiliary)

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Any:
        """A weight for each class's logit."""
        anchor = FedSSD().prepare(model, down, memory, data)
        return Anchor(down.weights, self.floor + (1 - self.floor) * anchor.class_weights)

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        """Cross-entropy plus the pull towards the credible ones of the global model's not-true logits."""
        student = model(params, batch.x)
        teacher = model.frozen(anchor.weights, batch.x)
        weights = torch.where(is_true(student, batch.y), 0.0, anchor.trust)
        kept = self.beta * weighted_square(teacher, student, weights) / (student.shape[-1] - 1)
        return batch.mean(cross_entropy(student, batch.y) + kept)


@dataclass(frozen=True)
class MomentumNTD(FedNTD):
    """FedNTD at the clients, momentum at the server (FedAvgM)."""

    server_momentum: Annotated[float, Range(0, 1, open_high=True)] = 0.5
    """How much of the last rounds' steps is added to this one's."""

    def start(self, weights: Weights) -> Any:
        """No velocity yet."""
        return FedAvgM(self.server_momentum).start(weights)

    def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
        """Move by the velocity."""
        return FedAvgM(self.server_momentum).aggregate(server, ups, cohort)


class Averaged(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights
    """The average over the last rounds' models: what is evaluated and delivered."""
    live: Weights
    """This round's model, from which clients go on."""


class WithTeacher(NamedTuple):
    """What travels to a client."""

    weights: Weights
    teacher: Weights


class Calibrated(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    """The teacher."""
    log_prior: Tensor  # [C]


@dataclass(frozen=True)
class SteadyNTD(FedNTD):
    """FedNTD without two things that make it forget: lopsided labels, and what a round happened to draw.

    A client adds calibration * log((n_c + 1) / (n + C)) to its logits in cross-entropy, so that classes that
    it does not have are not pushed down for being rare (logit adjustment, Menon et al. 2021), while not-true
    distillation ties them to the others. The server delivers an exponential moving average of its rounds'
    models; clients start from the last one and, with `old_teacher`, are taught by the average.
    """

    calibration: Annotated[float, UNIT] = 1.0
    """How far a client's labels are taken out of its cross-entropy; 0: not at all."""
    keep: Annotated[float, Range(0, 1, open_high=True)] = 0.8
    """How much of the average stays in every round; 0: the last model."""
    old_teacher: bool = False
    """Whether the average is the teacher, which travels, too, or the model that arrives."""

    def start(self, weights: Weights) -> Any:
        """The average of one model."""
        return Averaged(weights, weights)

    def broadcast(self, model: Model, server: Any, auxiliary: LocalData | None) -> Any:
        """The last model, and the teacher if it is another one."""
        if not self.old_teacher:
            return super().broadcast(model, server._replace(weights=server.live), auxiliary)
        return WithTeacher(server.live, server.weights)

    def prepare(self, model: Model, down: Any, memory: Any, data: LocalData) -> Calibrated:
        """The teacher and the client's own label distribution, with one example more of each class."""
        return Calibrated(
            down.teacher if self.old_teacher else down.weights,
            self.calibration * log_shares(data, like=down.weights),
        )

    def loss(self, model: Student, params: Params, anchor: Any, batch: Batch) -> Tensor:
        """Cross-entropy of the adjusted logits plus the not-true term of those as they are."""
        student = model(params, batch.x)
        total = cross_entropy(student + anchor.log_prior, batch.y)
        if self.beta:
            teacher = model.frozen(anchor.weights, batch.x)
            total = total + self.beta * self.distil(teacher, student, batch.y)
        return batch.mean(total)

    def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
        """Average over clients, then over rounds."""
        live = cohort.mean(ups.weights)

        def blend(old: Tensor, new: Tensor) -> Tensor:
            return torch.lerp(new, old, self.keep) if new.is_floating_point() else new

        return Averaged(trees.transform(blend, server.weights, live), live)


class Moving(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights
    variate: Params
    velocity: Params


@dataclass(frozen=True)
class MomentumScaffoldNTD(FedTrio):
    """FedNTD's loss, SCAFFOLD's variates, momentum at the server."""

    calibration: Annotated[float, UNIT] = 0.0
    """How far a client's label shares are taken out of its cross-entropy; 0: not at all."""

    server_momentum: Annotated[float, Range(0, 1, open_high=True)] = 0.5
    """How much of the last rounds' steps is added to this one's."""

    def start(self, weights: Weights) -> Any:
        """No variate and no velocity yet."""
        return Moving(weights, trees.zeros(weights.params), trees.zeros(weights.params))

    def broadcast(self, model: Model, server: Any, auxiliary: LocalData | None) -> Any:
        """The model and the mean variate; the velocity stays."""
        return scaffold.Server(server.weights, server.variate)

    def aggregate(self, server: Any, ups: Any, cohort: Cohort) -> Any:
        """SCAFFOLD's step, to which those before it are added."""
        stepped = super().aggregate(scaffold.Server(server.weights, server.variate), ups, cohort)
        old, new = server.weights.params, stepped.weights.params
        velocity = {n: self.server_momentum * v + (new[n] - old[n]) for n, v in server.velocity.items()}
        moved = {n: old[n] + v for n, v in velocity.items()}
        return Moving(Weights(moved, stepped.weights.buffers), stepped.variate, velocity)
