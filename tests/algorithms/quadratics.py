"""Two clients with one quadratic loss each, trained by the real rounds, so that optima are known."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall import rounds
from fedrecall.backends.backend import Work
from fedrecall.backends.serial import Serial
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.datasets import Dataset, Split
from fedrecall.data.federation import Federation
from fedrecall.memories import Memories
from fedrecall.models.model import Model
from fedrecall.training import Recipe

CURVATURE = (1.0, 9.0)
OPTIMUM = (0.0, 1.0)


class Point(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x))


def quadratic(base: type) -> type:
    """The algorithm with (a/2) (w - x)^2 in place of cross-entropy, a by the example's label."""

    @dataclass(frozen=True)
    class Quadratic(base):  # type: ignore[misc]
        def loss(self, model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
            a = torch.tensor(CURVATURE, dtype=torch.float64)[batch.y]
            own = batch.mean(a / 2 * (model(params, batch.x) - batch.x[:, 0]) ** 2)
            return own + (base.loss(self, Flat(), params, anchor, batch))

    return Quadratic


class Flat:
    """A network whose cross-entropy is constant, so that only an algorithm's own terms are left."""

    def __call__(self, params: Any, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 2, dtype=torch.float64)


class Federated:
    """A federation of the two, client k with ``sizes[k]`` times the same example."""

    def __init__(self, algorithm: Any, recipe: Recipe, sizes: tuple[int, ...] = (4, 4), seed: int = 0):
        kinds = [k % 2 for k, n in enumerate(sizes) for _ in range(n)]
        x = torch.tensor([[OPTIMUM[k]] for k in kinds], dtype=torch.float32)
        split = Split(x, torch.tensor(kinds))
        dataset = Dataset("quadratics", ("flat", "steep"), split, split, torch.zeros(1), torch.ones(1))
        ends = np.cumsum(sizes)
        parts = [np.arange(e - n, e) for e, n in zip(ends, sizes, strict=True)]
        self.federation = Federation(dataset, parts, Augmentation(), torch.float64)
        self.algorithm, self.model, self.recipe = algorithm, Model(Point()), recipe
        self.server = algorithm.start(self.model.initial())
        self.memories = Memories(algorithm.remember(self.model.initial()), None)
        self.backend = Serial(Work(algorithm, self.model, recipe, self.federation, seed))
        self.number = 0

    @property
    def w(self) -> float:
        """The global model."""
        return float(self.server.weights.params["w"])

    def play(self, sampled: list[int], chains: int | None = None) -> Any:
        """One round."""
        self.number += 1
        played = rounds.play(
            self.algorithm,
            self.model,
            self.server,
            self.memories,
            self.backend,
            None,
            population=len(self.federation),
            sampled=sampled,
            chain_count=chains or len(sampled),
            round_number=self.number,
        )
        self.server = played.server
        return played

    def memory(self, client: int) -> Any:
        """What a client remembers."""
        return self.memories.get(client) or self.algorithm.remember(self.server.weights)


def recipe(epochs: int, lr: float, momentum: float = 0.0) -> Recipe:
    """Whole-batch gradient steps at a constant rate."""
    return Recipe(epochs, 100, lr, 1.0, momentum, 0.0)
