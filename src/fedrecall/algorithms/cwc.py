"""CWC."""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedrecall import trees
from fedrecall.algorithms.fedseq import FedSeq
from fedrecall.algorithms.fisher import diagonal_fisher
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import Batch, LocalData
from fedrecall.models.model import Model, Params, Student, Weights
from fedrecall.penalties import quadratic
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, UNIT


class Server(NamedTuple):
    """What the server keeps between rounds."""

    weights: Weights
    importance: Params
    """Omega, how much each parameter has mattered so far."""


class Down(NamedTuple):
    """What travels to a client, and on to the next one of its chain."""

    weights: Weights
    importance: Params


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    """The model that arrived, w^in."""
    importance: Params


class Up(NamedTuple):
    """What travels back."""

    weights: Weights
    importance: Params


@dataclass(frozen=True)
class CWC(FedSeq):
    """Cyclical weight consolidation (Song et al., arXiv 2405.10647), as SFedKD's paper names it.

    CE + (lambda/2) sum_i Omega_i (w_i - w_i^in)^2. The importance Omega travels along: every client
    adds its diagonal Fisher information, normalised to mean 1 so that lambda means the same for
    every model and at any stage of training; a round starts with sigma Omega. Chains that train
    side by side each carry their own, which are averaged like the models. No entry grows beyond
    1 / (lr lambda), with which one step takes a parameter all the way back: where a few parameters
    have nearly all of the Fisher information, as in a deep network that still predicts chance,
    their pull would else throw them further away with every step.
    """

    lam: Annotated[float, NON_NEGATIVE] = 1e-3
    """lambda, weight of the pull towards the model that arrived."""
    sigma: Annotated[float, UNIT] = 0.5
    """What is left of the importance from one round to the next."""
    s: Annotated[int | None, AT_LEAST_ONE] = None
    """Most examples that a client's Fisher information is computed from; by default all."""

    def start(self, weights: Weights) -> Server:
        """Nothing matters yet."""
        return Server(weights, trees.zeros(weights.params))

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Down:
        """The model and what is left of the importance."""
        return Down(server.weights, {n: self.sigma * o for n, o in server.importance.items()})

    def prepare(self, model: Model, down: Down, memory: object, data: LocalData) -> Anchor:
        """The model that arrived, and what mattered to it."""
        return Anchor(down.weights, down.importance)

    def loss(self, model: Student, params: Params, anchor: Anchor, batch: Batch) -> Tensor:
        """Cross-entropy plus the pull on what mattered."""
        pull = quadratic(params, anchor.weights.params, anchor.importance)
        return super().loss(model, params, anchor, batch) + self.lam / 2 * pull

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: object, data: LocalData, sgd: Sgd
    ) -> tuple[Up, object]:
        """Omega + F, F normalised to mean 1, as far as steps of this length can follow its pull."""
        fisher = diagonal_fisher(model, weights, data, self.s)
        tiny = torch.finfo(torch.float32).tiny  # 1 / a number below is infinite
        mean = sum(f.sum() for f in fisher.values()) / sum(f.numel() for f in fisher.values())
        scale = 1 / mean if mean >= tiny else 0.0  # a client whose every example is certain adds nothing
        step = sgd.lr * self.lam
        most = 1 / step if step >= tiny else math.inf
        importance = {n: (o + scale * fisher[n]).clamp(max=most) for n, o in anchor.importance.items()}
        return Up(weights, importance), memory

    def relay(self, down: Down, up: Up) -> Down:
        """Model and importance go on together."""
        return Down(up.weights, up.importance)

    def aggregate(self, server: Server, ups: Up, cohort: Cohort) -> Server:
        """The mean over the chains."""
        return Server(cohort.mean(ups.weights), cohort.mean(ups.importance))
