"""A model whose logits are its input, so that what it predicts can be written down in a test."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedrecall.algorithms.fedavg import Down
from fedrecall.batches import Batch
from fedrecall.models.model import Model, Weights


class Readable(nn.Module):
    """Multiplies its input by one number, and adds one in training mode, where no teacher may be."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + (torch.arange(x.shape[-1]) if self.training else 0)


class Local:
    """Examples given by what the model says of them, in batches of ``size``."""

    augmented = False

    def __init__(self, probabilities: Sequence[Sequence[float]], y: Sequence[int], size: int = 2):
        self.x = torch.tensor([[math.log(p) for p in row] for row in probabilities], dtype=torch.float64)
        self.y = torch.tensor(y)
        self.classes = self.x.shape[-1]
        self.size = size

    def __len__(self) -> int:
        return len(self.y)

    @property
    def counts(self) -> Tensor:
        return torch.bincount(self.y, minlength=self.classes)

    @property
    def distribution(self) -> Tensor:
        return self.counts.double() / len(self)

    def batches(self, size: int = 100) -> Iterator[Batch]:
        for start in range(0, len(self), self.size):
            rows = slice(start, start + self.size)
            yield Batch(self.x[rows], self.y[rows], torch.arange(len(self))[rows])

    def batch(self) -> Batch:
        return Batch(self.x, self.y, torch.arange(len(self)))


def model() -> tuple[Model, Weights]:
    readable = Model(Readable())
    return readable, readable.initial()


def down() -> Down:
    return Down(model()[1])
