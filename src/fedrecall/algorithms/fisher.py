"""The diagonal empirical Fisher information: how much each parameter matters to a client's data."""

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedrecall import trees
from fedrecall.batches import LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Params, Weights

# Per-example gradients made at a time: on a CPU what stays in cache, else what fills the device.
CPU_BYTES, DEVICE_BYTES = 2**23, 2**30


def diagonal_fisher(model: Model, weights: Weights, data: LocalData, limit: int | None = None) -> Params:
    """F_i = mean over examples of (d CE(x) / d w_i)^2, in evaluation mode.

    Squares are taken example by example: the square of a batch's mean gradient is another, much
    smaller quantity. ``limit`` is how many examples enter at most, spread evenly over the data.
    """

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        logits = model.logits(Weights(params, weights.buffers), x.unsqueeze(0))
        return cross_entropy(logits, y.unsqueeze(0)).squeeze(0)

    params = {n: p.detach() for n, p in weights.params.items()}
    per_example = vmap(grad(loss), in_dims=(None, 0, 0))
    on_cpu = next(iter(params.values())).device.type == "cpu"
    chunk = max(1, (CPU_BYTES if on_cpu else DEVICE_BYTES) // trees.size_in_bytes(params))
    total = {n: torch.zeros_like(p) for n, p in params.items()}
    used = len(data) if limit is None else min(limit, len(data))
    wanted = torch.arange(used) * len(data) // max(used, 1)
    for batch in data.batches():
        first = int(batch.place[0])
        rows = wanted[(wanted >= first) & (wanted < first + len(batch.y))] - first
        for part in torch.split(rows.to(batch.y.device), chunk):
            for n, g in per_example(params, batch.x[part], batch.y[part]).items():
                for one in g:
                    total[n].addcmul_(one, one)
    return {n: t / max(used, 1) for n, t in total.items()}
