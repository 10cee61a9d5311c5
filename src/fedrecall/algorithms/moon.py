"""MOON."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall.algorithms.fedavg import Down, FedAvg, Up
from fedrecall.algorithms.hooks import Sgd
from fedrecall.batches import Batch, LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.models.projection import add_projection
from fedrecall.specs import NON_NEGATIVE, POSITIVE


class Memory(NamedTuple):
    """What a client keeps between its visits."""

    previous: Weights
    """The model it sent back last; before its first visit the one that arrives then."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    previous: Weights


@dataclass(frozen=True)
class Moon(FedAvg):
    """Model-contrastive learning (Li, He and Song, CVPR 2021, eq. 3 and 4).

    CE - mu log( e^{sim(h, h_g)/tau} / (e^{sim(h, h_g)/tau} + e^{sim(h, h_prev)/tau}) ), h the
    features that the classifier sees, sim their cosine. Both frozen models run in evaluation mode, as in the
    authors' code. Before a client's first visit h_prev is h_g, so that the term is mu log 2 and has no
    gradient; their code has none in the first round.
    """

    mu: Annotated[float, NON_NEGATIVE] = 1.0
    """Weight of the contrastive term."""
    tau: Annotated[float, POSITIVE] = 0.5
    """Temperature of the contrastive term."""
    projection: Annotated[int, NON_NEGATIVE] = 0
    """Width of a two-layer projection head put before the classifier (the paper: 256); 0: none."""

    def equip(self, module: nn.Module) -> nn.Module:
        """Put the projection head before the classifier, if there is to be one."""
        return add_projection(module, self.projection) if self.projection else module

    def remember(self, weights: Weights) -> Memory:
        """At first the previous model is the global one."""
        return Memory(weights)

    def prepare(self, model: Model, down: Down, memory: Memory, data: LocalData) -> Anchor:
        """The global model and the client's own last one."""
        return Anchor(down.weights, memory.previous)

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus the contrastive term."""
        student = model.output(params, batch.x)
        near = model.frozen_output(anchor.weights, batch.x).features
        far = model.frozen_output(anchor.previous, batch.x).features
        similarity = F.cosine_similarity(student.features, near), F.cosine_similarity(student.features, far)
        contrast = F.softplus((similarity[1] - similarity[0]) / self.tau)  # -log of the two's softmax
        return batch.mean(cross_entropy(student.logits, batch.y) + self.mu * contrast)

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Memory, data: LocalData, sgd: Sgd
    ) -> tuple[Up, Memory]:
        """Remember the model that is sent."""
        return Up(weights), Memory(weights)
