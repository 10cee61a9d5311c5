"""The loss around a model: how fast it rises, and in which directions most (FedNTD, figure 14)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vjp

from fedrecall import streams
from fedrecall.batches import Batch, LocalData
from fedrecall.data.client import ClientData
from fedrecall.losses import cross_entropy
from fedrecall.measures.moment import Measure, Moment
from fedrecall.models.model import Model, Params, Weights
from fedrecall.specs import AT_LEAST_ONE

SIZES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05)


@dataclass(frozen=True)
class Landscape(Measure):
    """Loss of the global model under Gaussian noise on its weights, and its Hessian's eigenvalues.

    Of these the two that are largest in magnitude. On test examples spread evenly over the split.
    Costs about ``len(sizes) * draws`` passes and ``2 * iterations`` Hessian-vector products (each some
    five passes) over them.
    """

    examples: Annotated[int, AT_LEAST_ONE] = 500
    """Test examples to take the loss on."""
    sizes: tuple[float, ...] = SIZES
    """Standard deviations of the noise."""
    draws: Annotated[int, AT_LEAST_ONE] = 3
    """Directions of noise to average over."""
    iterations: Annotated[int, AT_LEAST_ONE] = 30
    """At most this many steps of power iteration an eigenvalue."""

    def __call__(self, moment: Moment) -> dict[str, Any]:
        """The curve (mean over the draws) and the eigenvalues."""
        loss = Loss(moment.model, moment.after, subset(moment.federation.test, self.examples))
        curve = perturbation_curve(loss, self.sizes, self.draws)
        spectrum = top_eigenvectors(loss, 2, self.iterations)
        return {
            "sizes": list(self.sizes),
            "loss": [float(v) for v in curve.mean(0)],
            "eigenvalues": spectrum.values,
            "converged": spectrum.converged,
        }


def subset(data: ClientData, count: int) -> ClientData:
    """At most ``count`` examples, evenly spread over the data's order."""
    if count >= len(data):
        return data
    places = np.linspace(0, len(data) - 1, count).round().astype(np.int64)
    return data.part(torch.from_numpy(places).to(data.y.device))


class Loss:
    """Mean cross-entropy on fixed examples in evaluation mode, as a function of the parameters."""

    def __init__(self, model: Model, weights: Weights, data: LocalData):
        self.model, self.weights = model, weights
        self.batches = list(data.batches())
        self.examples = len(data)

    def sum(self, params: Params, batch: Batch) -> Tensor:
        """The sum over one batch."""
        return cross_entropy(self.model.logits(Weights(params, self.weights.buffers), batch.x), batch.y).sum()

    def at(self, params: Params) -> float:
        """The loss there."""
        with torch.no_grad():
            return sum(float(self.sum(params, b)) for b in self.batches) / self.examples

    def hessian_times(self, vector: Params) -> Params:
        """Hv at the weights: the gradient of the gradient's product with v (H is symmetric)."""
        total = {n: torch.zeros_like(p) for n, p in vector.items()}
        for batch in self.batches:
            product = vjp(grad(partial(self.sum, batch=batch)), self.weights.params)[1]
            (found,) = product(vector)
            total = {n: total[n] + found[n] for n in total}
        return {n: t / self.examples for n, t in total.items()}


def shifted(params: Params, *steps: tuple[float, Params]) -> Params:
    """w + a u + b v + ..."""
    return {n: p + sum(size * direction[n] for size, direction in steps) for n, p in params.items()}


def noise(params: Params, seed: int, *path: int | str) -> Params:
    """Standard normal numbers in the parameters' shapes."""
    stream = streams.torch_stream(seed, *path)
    return {n: torch.randn(p.shape, generator=stream, dtype=torch.float64).to(p) for n, p in params.items()}


def perturbation_curve(loss: Loss, sizes: Sequence[float], draws: int, seed: int = 0) -> np.ndarray:
    """Loss at w + size * noise, [draws, sizes]: one direction a draw, walked to every size."""
    params = loss.weights.params
    rows = []
    for draw in range(draws):
        direction = noise(params, seed, "perturbation", draw)
        rows.append([loss.at(shifted(params, (size, direction))) for size in sizes])
    return np.array(rows)


class Spectrum(NamedTuple):
    """Eigenvalues of largest magnitude, in the order found, and their unit eigenvectors."""

    values: list[float]
    vectors: list[Params]
    converged: list[bool]


def top_eigenvectors(loss: Loss, count: int = 2, iterations: int = 50, tolerance: float = 1e-3) -> Spectrum:
    """Power iteration on Hessian-vector products, each vector kept orthogonal to those before it."""
    return power_iteration(loss.hessian_times, loss.weights.params, count, iterations, tolerance)


def power_iteration(
    times: Callable[[Params], Params],
    like: Params,
    count: int,
    iterations: int,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Spectrum:
    """The eigenvectors of largest magnitude of a symmetric operator on vectors shaped ``like``."""
    found = Spectrum([], [], [])
    for k in range(count):
        v = _unit(_without(noise(like, seed, "eigenvector", k), found.vectors))
        value, converged = 0.0, False
        for _ in range(iterations):
            product = _without(times(v), found.vectors)
            before, value = value, dot(v, product)
            if dot(product, product) == 0:  # v is in the kernel, and so is all that is left
                converged = True
                break
            v = _unit(product)
            if abs(value - before) <= tolerance * abs(value):
                converged = True
                break
        found.values.append(value)
        found.vectors.append(v)
        found.converged.append(converged)
    return found


def surface(loss: Loss, directions: Sequence[Params], a: Sequence[float], b: Sequence[float]) -> np.ndarray:
    """Loss at w + a_i u + b_j v, [len(a), len(b)]."""
    u, v = directions
    params = loss.weights.params
    return np.array([[loss.at(shifted(params, (i, u), (j, v))) for j in b] for i in a])


def dot(a: Params, b: Params) -> float:
    """The inner product of two vectors."""
    return float(sum((a[n].double() * b[n].double()).sum() for n in a))


def _unit(v: Params) -> Params:
    length = dot(v, v) ** 0.5
    return {n: t / length for n, t in v.items()}


def _without(v: Params, others: Sequence[Params]) -> Params:
    for other in others:
        v = shifted(v, (-dot(v, other), other))
    return v
