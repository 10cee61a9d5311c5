"""Who teaches the next round, and by how much each teacher counts: functions of label distributions."""

from typing import Literal

import torch
from torch import Tensor

from fedrecall import streams

Metric = Literal["l1", "l2", "kl", "js"]
Share = Literal["exact", "laplace", "gaussian", "grid"]

# Distances closer than this are equal: rounding shall not choose between equally good teachers,
# nor make a weight out of the distance of two equal distributions.
TINY = 1e-12


def discrepancy(p: Tensor, q: Tensor, metric: Metric, epsilon: float) -> Tensor:
    """d(p, q) of distributions over the last axis; the others broadcast.

    ``kl`` is KL(p || q) with epsilon added to every share of both and renormalised, so that a
    class which only one of them has counts much and not infinitely; ``js`` needs no smoothing.
    """
    if metric == "l1":
        return (p - q).abs().sum(-1)
    if metric == "l2":
        return (p - q).square().sum(-1).sqrt()
    if metric == "kl":
        p, q = normalised(p + epsilon), normalised(q + epsilon)
        return (p * (p.log() - q.log())).sum(-1).clamp(min=0)
    middle = (p + q) / 2
    parts = [torch.xlogy(a, a) - torch.xlogy(a, middle) for a in (p, q)]
    return ((parts[0] + parts[1]).sum(-1) / 2).clamp(min=0)


def normalised(shares: Tensor) -> Tensor:
    """Shares that sum to one over the last axis; uniform where there is nothing to share."""
    total = shares.sum(-1, keepdim=True)
    return torch.where(total > 0, shares / torch.where(total > 0, total, 1), 1 / shares.shape[-1])


def far_weights(distances: Tensor) -> Tensor:
    """g_j = d_j / sum d: more from teachers whose client saw other classes; uniform if none did. [K]."""
    return normalised(torch.where(distances > TINY, distances, 0.0))


def near_weights(distances: Tensor, epsilon: float) -> Tensor:
    """h_j = (1 / (d_j + eps)) / sum 1 / (d + eps): more from teachers whose client saw the same. [K]."""
    return normalised(1 / (distances + epsilon))


def uniform_weights(distances: Tensor) -> Tensor:
    """1 / K. [K]."""
    return torch.full_like(distances, 1 / distances.shape[0])


def distance_to_uniform(chosen: Tensor, metric: Metric, epsilon: float) -> Tensor:
    """d of the normalised sum of distributions [..., K, C] from uniform: what selection minimises (eq. 6)."""
    total = normalised(chosen.sum(-2))
    return discrepancy(total, torch.full_like(total, 1 / total.shape[-1]), metric, epsilon)


def complementary(distributions: Tensor, count: int, metric: Metric, epsilon: float) -> list[int]:
    """Greedy selection (SFedKD, algorithm 1): rows of ``distributions`` [M, C] in the order chosen.

    Each time the client that brings the sum closest to uniform; the earlier one of equally good ones.
    """
    chosen: list[int] = []
    total = torch.zeros_like(distributions[0])
    left = list(range(len(distributions)))
    while left and len(chosen) < count:
        distances = distance_to_uniform((total + distributions[left]).unsqueeze(-2), metric, epsilon)
        first = int(torch.nonzero(distances <= distances.min() + TINY)[0, 0])
        total = total + distributions[left[first]]
        chosen.append(left.pop(first))
    return chosen


def at_random(population: int, count: int) -> list[int]:
    """Teachers drawn from torch's own stream without looking at anything, in their own order."""
    return sorted(torch.randperm(population)[:count].tolist())


def disclosed(distribution: Tensor, share: Share, noise: float, grid: int, secret: bool = False) -> Tensor:
    """What a client says of its label distribution [C]: with noise on every share, or coarsely.

    Negative shares are cut off and the rest renormalised; nothing left is said as uniform.
    Noise is drawn from torch's own stream, or, where ``secret``, so that nobody can draw it again.
    """
    if share == "exact":
        return distribution
    if share == "grid":
        return normalised((distribution * grid).round())
    exact = distribution.cpu()
    hidden = streams.secret_uniforms(exact.numel()).view(exact.shape) if secret else None
    if share == "laplace":
        drawn = torch.rand(exact.shape, dtype=exact.dtype) if hidden is None else hidden
        uniform = drawn.to(exact.dtype) - 0.5
        # The inverse of the distribution function; 1 - 2|u| is in (0, 1].
        drawn = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16))
    elif hidden is None:
        drawn = torch.randn(exact.shape, dtype=exact.dtype)
    else:
        drawn = torch.special.ndtri(hidden).to(exact.dtype)
    return normalised((exact + noise * drawn).clamp(min=0)).to(distribution.device)
