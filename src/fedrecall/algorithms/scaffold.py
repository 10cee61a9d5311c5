"""SCAFFOLD."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from fedrecall import trees
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import LocalData
from fedrecall.models.model import Model, Params, Weights


class Server(NamedTuple):
    """What the server keeps between rounds, and sends."""

    weights: Weights
    variate: Params
    """c, the mean of all clients' control variates."""


class Memory(NamedTuple):
    """What a client keeps between its visits."""

    variate: Params
    """c_k, the client's estimate of its own gradient."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    shift: Params
    """c - c_k, added to every gradient."""


class Up(NamedTuple):
    """What travels back."""

    weights: Weights
    change: Params
    """c_k after the visit minus c_k before."""


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Control variates (Karimireddy et al., ICML 2020, algorithm 1, option II).

    Gradients are corrected by c - c_k; after K steps of size lr
    c_k+ = c_k - c + (w - w_k) / (K lr) and c <- c + sum_k (c_k+ - c_k) / N. The paper has no local
    momentum; with it (w - w_k) / lr is as long as the effective steps, more than K, and dividing by
    K alone makes the variates up to 1 / (1 - rho) times too large. Models are averaged by numbers of
    examples, in the paper uniformly. The server's step is 1. Running statistics have no variates
    and are averaged as in FedAvg. Steps too short to divide by leave the variates as they are.
    """

    every_link: ClassVar[bool] = True  # every client's variate has changed, whatever its place in a chain

    momentum_aware: bool = True
    """Divide by the effective steps that momentum gives, not by the number of steps."""
    uniform: bool = False
    """Average models with equal weights, as the paper does."""

    def start(self, weights: Weights) -> Server:
        """Variates start at zero."""
        return Server(weights, trees.zeros(weights.params))

    def remember(self, weights: Weights) -> Memory:
        """Variates start at zero."""
        return Memory(trees.zeros(weights.params))

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Server:
        """The model and the mean variate."""
        return server

    def prepare(self, model: Model, down: Server, memory: Memory, data: LocalData) -> Anchor:
        """The difference of the variates."""
        return Anchor(down.weights, {n: c - memory.variate[n] for n, c in down.variate.items()})

    def correct(self, grads: Params, anchor: Anchor) -> Params:
        """g - c_k + c."""
        return {n: g + anchor.shift[n] for n, g in grads.items()}

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Memory, data: LocalData, sgd: Sgd
    ) -> tuple[Up, Memory]:
        """Estimate the client's gradient anew from how far it has moved."""
        length = sgd.effective_steps(self.momentum_aware) * sgd.lr
        before = anchor.weights.params
        if length < torch.finfo(next(iter(before.values())).dtype).tiny:
            return Up(weights, trees.zeros(before)), memory
        variate = {n: (before[n] - w) / length - anchor.shift[n] for n, w in weights.params.items()}
        change = {n: c - memory.variate[n] for n, c in variate.items()}
        return Up(weights, change), Memory(variate)

    def aggregate(self, server: Server, ups: Up, cohort: Cohort) -> Server:
        """Average the models; move c so that it stays the mean of all N variates."""
        params = cohort.mean(ups.weights.params, cohort.uniform() if self.uniform else None)
        weights = Weights(params, cohort.mean(ups.weights.buffers))
        moved = cohort.sum(ups.change, [1 / cohort.population] * len(cohort.clients))
        return Server(weights, {n: c + moved[n] for n, c in server.variate.items()})
