"""Examples that are neither pixels nor rows: signals, volumes, and images of any numbers."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fedrecall.data.datasets import Dataset, Recipe, Split


@dataclass(frozen=True)
class Series(Recipe):
    shape: str = "2x10"
    along: bool = False
    """Whether there is a mean for each place along the last axis, not one of all."""

    def read(self, name: str, root: Path | None) -> Dataset:
        shape = [int(n) for n in self.shape.split("x")]
        stream = torch.Generator().manual_seed(0)
        y = torch.arange(90) % 3
        x = 40 * torch.randn(90, *shape, generator=stream) + 30 * y.view(-1, *[1] * len(shape)) - 100
        known = x[:60].flatten(0, -2) if self.along else x[:60].flatten()
        mean, std = known.mean(0).view(-1), known.std(0, correction=0).view(-1)
        return Dataset(name, ("0", "1", "2"), Split(x[:60], y[:60]), Split(x[60:], y[60:]), mean, std)
