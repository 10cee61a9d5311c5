"""What one client sees of its data, and how a visit walks through it."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedrecall import streams
from fedrecall.data.augmentation import Augmentation, plain


class Batch(NamedTuple):
    """Examples for one step."""

    x: Tensor  # [B, C, H, W], normalised and augmented
    y: Tensor  # [B]
    index: Tensor  # [B], each example's place in the client's data
    mask: Tensor | None = None  # [B], False where an example only fills up a batch

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the examples of ``values`` ([B], one number an example)."""
        if self.mask is None:
            return values.mean()
        zero = torch.zeros((), dtype=values.dtype, device=values.device)
        return torch.where(self.mask, values, zero).sum() / self.mask.sum()


class Draws(NamedTuple):
    """All that is random about the order and the augmentation of one visit."""

    order: Tensor  # [E, n], a permutation of the client's examples for every epoch
    augmentation: tuple[Tensor, ...]  # Augmentation's draws, each [E, n, …], in batch order
    key: Tensor  # [], what dropout masks are hashed from


class ClientData:
    """One client's examples, as raw tensors, with what turns them into batches."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        classes: int,
        mean: Tensor,
        std: Tensor,
        augmentation: Augmentation | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        self.x, self.y, self.classes = x, y, classes
        self.mean, self.std, self.dtype = mean, std, dtype
        self.augmentation = augmentation or Augmentation()

    def __len__(self) -> int:
        return len(self.y)

    @property
    def augmented(self) -> bool:
        """Whether an example looks different each time it is drawn."""
        return self.augmentation != Augmentation()

    @property
    def counts(self) -> Tensor:
        """Examples of each class, [C]."""
        return torch.bincount(self.y, minlength=self.classes)

    @property
    def distribution(self) -> Tensor:
        """The client's label distribution p^k (eq. 6 of FedNTD), [C], float64."""
        return self.counts.double() / max(len(self), 1)

    def batches(self, size: int = 100) -> Iterator[Batch]:
        """All examples once, in order, without augmentation."""
        for index in torch.arange(len(self), device=self.y.device).split(size):
            x = plain(self.x[index], self.mean, self.std, self.dtype)
            yield Batch(x, self.y[index], index)

    def draw(self, epochs: int, seed: int, round_number: int, client: int) -> Draws:
        """The visit's own random numbers: they depend on nothing but these four."""
        stream = streams.torch_stream(seed, "visit", round_number, client)
        n = len(self)
        order = [torch.randperm(n, generator=stream) for _ in range(epochs)]
        draws = self.augmentation.draw(stream, epochs * n)
        return Draws(
            torch.stack(order) if order else torch.empty(0, n, dtype=torch.int64),
            tuple(d.view(epochs, n, *d.shape[1:]) for d in draws),
            torch.tensor(streams.key(seed, "dropout", round_number, client)),
        )

    def training_batches(self, draws: Draws, size: int) -> Iterator[Batch]:
        """Every epoch's batches in order; the last one of an epoch may be smaller."""
        kind = type(self.augmentation.draw(torch.Generator(), 0))
        for epoch in range(len(draws.order)):
            for start in range(0, len(self), size):
                rows = slice(start, start + size)
                index = draws.order[epoch, rows]
                drawn = kind(*(d[epoch, rows] for d in draws.augmentation))
                x = self.augmentation.apply(self.x[index], drawn, self.mean, self.std, self.dtype)
                yield Batch(x, self.y[index], index)
