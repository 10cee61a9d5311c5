"""How little local gradients agree (FedNTD, eq. 8)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrecall.batches import LocalData
from fedrecall.losses import cross_entropy
from fedrecall.measures.moment import Measure, Moment
from fedrecall.models.model import Model, Weights


@dataclass(frozen=True)
class Diversity(Measure):
    """Gradient diversity of the round's clients at the global model w that the round began with.

    That holds for all links of a chain, whatever model they were sent. Of cross-entropy over all of
    each client's examples, without augmentation, in evaluation mode. A distillation term adds nothing
    there: at w, student and teacher agree. Costs a pass and a backward pass over every sampled
    client's examples.
    """

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """The diversity and the gradients' norms."""
        clients = [v.client for v in moment.good]
        gradients = (full_gradient(moment.model, moment.before, moment.federation.client(k)) for k in clients)
        diversity, norms = gradient_diversity(gradients)
        return {"clients": clients, "diversity": diversity, "norms": norms}


def full_gradient(model: Model, weights: Weights, data: LocalData) -> Tensor:
    """The gradient of the mean cross-entropy over all examples, as one vector in float64."""
    params = {n: p.detach().clone().requires_grad_(True) for n, p in weights.params.items()}
    total = torch.zeros(sum(p.numel() for p in params.values()), dtype=torch.float64)
    for batch in data.batches():
        logits = model.logits(Weights(params, weights.buffers), batch.x)
        loss = cross_entropy(logits, batch.y).sum()
        grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
        total += torch.cat([g.double().flatten() for g in grads]).cpu()
    return total / max(len(data), 1)


def gradient_diversity(gradients: Iterable[Tensor]) -> tuple[float | None, list[float]]:
    """(Λ = mean_k ‖g_k‖² / ‖mean_k g_k‖², the norms); Λ is 1 when all agree and None when the mean is 0."""
    total, norms = None, []
    for g in gradients:
        total = g.clone() if total is None else total.add_(g)
        norms.append(float(g.norm()))
    if total is None:
        return None, norms
    mean_square = sum(n * n for n in norms) / len(norms)
    square_of_mean = float((total / len(norms)).square().sum())
    return (mean_square / square_of_mean if square_of_mean > 0 else None), norms
