"""FedNova."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedrecall.algorithms.fedavg import FedAvg, Server
from fedrecall.algorithms.hooks import Cohort, Sgd
from fedrecall.batches import LocalData
from fedrecall.models.model import Model, Weights


class Steps(NamedTuple):
    """A model and how far it has been trained: what travels both ways, and what a client starts from."""

    weights: Weights
    steps: Tensor
    """Effective steps since the server sent it, []; 0 when it comes from the server."""


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging (Wang et al., NeurIPS 2020, eq. 8 and 9).

    a_k are client k's effective steps, with momentum rho (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho):
    w <- w - (sum_k p_k a_k) sum_k p_k (w - w_k) / a_k. Weight decay and the correction of a_k for it
    are left out, as in the paper's experiments. Running statistics are averaged as in FedAvg. In a
    chain of clients a_k counts the steps of the whole chain.
    """

    def broadcast(self, model: Model, server: Server, auxiliary: LocalData | None) -> Steps:
        """The model, not trained yet this round."""
        example = next(iter(server.weights.params.values()))
        return Steps(server.weights, torch.zeros((), dtype=torch.float64, device=example.device))

    def prepare(self, model: Model, down: Steps, memory: Any, data: LocalData) -> Steps:
        """What arrived."""
        return down

    def finish(
        self, model: Model, weights: Weights, anchor: Steps, memory: Any, data: LocalData, sgd: Sgd
    ) -> tuple[Steps, Any]:
        """Count this client's steps."""
        return Steps(weights, anchor.steps + sgd.effective_steps()), memory

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
        moved = cohort.mean(drift, scales)
        return Server(
            Weights({n: p - moved[n] for n, p in old.items()}, cohort.mean(ups.weights.buffers)),
        )
