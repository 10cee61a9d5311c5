"""FedNova."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedrecall import trees
from fedrecall.algorithms.fedavg import FedAvg, Server
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import LocalData
from fedrecall.models.model import Model, Params, Weights


class Steps(NamedTuple):
    """A model and how far it has been trained: what travels both ways."""

    weights: Weights
    steps: Tensor
    """Effective steps since the server sent it, []; 0 when it comes from the server."""


class Memory(NamedTuple):
    """What a client keeps between its visits if it recoils."""

    direction: Params
    """Its way at the last visit, a step's worth."""


class Anchor(NamedTuple):
    """What a client holds on to while it trains."""

    weights: Weights
    steps: Tensor
    """As they arrived."""
    direction: Params
    """Taken from every gradient; empty without recoil."""


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging (Wang et al., NeurIPS 2020, eq. 8 and 9).

    a_k are client k's effective steps, with momentum rho (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho):
    w <- w - (sum_k p_k a_k) sum_k p_k (w - w_k) / a_k. Weight decay is part of the gradients, and a_k is not
    corrected for it, as in the authors' code. Running statistics are averaged as in FedAvg. In a
    chain of clients a_k counts the steps of the whole chain.
    """

    recoil: bool = False
    """Take from every gradient the client's own mean one of its last visit.

    This is half of that paper's variance reduction. The other half, adding the mean over all clients,
    stays zero in the code that FedNTD's authors released, whose configuration switches it on.
    """

    def remember(self, weights: Weights) -> Any:
        """No direction yet."""
        return Memory(trees.zeros(weights.params)) if self.recoil else super().remember(weights)

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Steps:
        """The model, not trained yet this round."""
        example = next(iter(server.weights.params.values()))
        return Steps(server.weights, torch.zeros((), dtype=torch.float64, device=example.device))

    def prepare(self, model: Model, down: Steps, memory: Any, data: LocalData) -> Anchor:
        """What arrived, and the last visit's direction."""
        return Anchor(down.weights, down.steps, memory.direction if self.recoil else {})

    def correct(self, grads: Params, anchor: Anchor) -> Params:
        """The gradient, less the last visit's if the client recoils."""
        return {n: g - anchor.direction[n] for n, g in grads.items()} if self.recoil else grads

    def finish(
        self, model: Model, weights: Weights, anchor: Anchor, memory: Any, data: LocalData, sgd: Sgd
    ) -> tuple[Steps, Any]:
        """Count this client's steps, and note where they have led if it matters."""
        steps = sgd.effective_steps()
        if self.recoil:
            before, length = anchor.weights.params, steps * sgd.lr
            if length >= torch.finfo(next(iter(before.values())).dtype).tiny:  # else there is no way to see
                memory = Memory({n: (before[n] - w) / length for n, w in weights.params.items()})
        return Steps(weights, anchor.steps + steps), memory

    def relay(self, down: Steps, up: Steps) -> Steps:
        """The next client goes on counting."""
        return up

    def aggregate(self, server: Server, ups: Steps, cohort: Cohort) -> Server:
        """Average the directions, each divided by its length in steps."""
        shares = torch.tensor(cohort.shares, dtype=torch.float64)
        steps = ups.steps.cpu()
        scales = ((shares @ steps) * shares / steps).tolist()  # with equal steps: the shares
        old = server.weights.params
        drift = {n: old[n] - w for n, w in ups.weights.params.items()}  # [clients, ...]
        moved = cohort.sum(drift, scales)
        return Server(
            Weights({n: p - moved[n] for n, p in old.items()}, cohort.mean(ups.weights.buffers)),
        )
