"""What one client sees of its data, and how a visit walks through it."""

import copy
from collections.abc import Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedrecall import streams, trees
from fedrecall.batches import Batch, Sgd
from fedrecall.data.augmentation import Augmentation, plain
from fedrecall.data.augmentation import Draws as AugmentationDraws


class Draws(NamedTuple):
    """All that is random about the order and the augmentation of one visit."""

    order: Tensor  # [E, n], a permutation of the client's examples for every epoch
    augmentation: AugmentationDraws  # each [E, n, ...], in batch order
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
        self.number = 0
        self.sgd: Sgd | None = None

    def __len__(self) -> int:
        return len(self.y)

    def numbered(self, client: int, sgd: Sgd | None = None) -> Self:
        """The same examples, saying whose they are and how they are trained on."""
        mine = copy.copy(self)
        mine.number, mine.sgd = client, sgd
        return mine

    def part(self, places: Tensor) -> Self:
        """Some of the examples."""
        mine = copy.copy(self)
        mine.x, mine.y = self.x[places], self.y[places]
        return mine

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
        """All examples once, in order, without augmentation; labels are the client's own, images copies."""
        places = torch.arange(len(self), device=self.y.device)
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield Batch(plain(self.x[rows], self.mean, self.std, self.dtype), self.y[rows], places[rows])

    def draw(self, epochs: int, seed: int, round_number: int, client: int) -> Draws:
        """The visit's own random numbers: they depend on nothing but these four."""
        stream = streams.torch_stream(seed, "visit", round_number, client)
        n = len(self)
        order = [torch.randperm(n, generator=stream) for _ in range(epochs)]
        draws = self.augmentation.draw(stream, epochs * n)
        return Draws(
            torch.stack(order) if order else torch.empty(0, n, dtype=torch.int64),
            trees.transform(lambda d: d.view(epochs, n, *d.shape[1:]), draws),
            torch.tensor(streams.key(seed, "dropout", round_number, client)),
        )

    def training_batches(self, draws: Draws, size: int) -> Iterator[Batch]:
        """Every epoch's batches in order; the last one of an epoch may be smaller."""
        draws = trees.transform(lambda d: d.to(self.x.device), draws)
        starts = range(0, len(self), size)
        progress = iter(shares(len(draws.order) * len(starts), self.dtype, self.x.device))
        for epoch in range(len(draws.order)):
            for start in starts:
                rows = slice(start, start + size)
                place = draws.order[epoch, rows]
                drawn = trees.transform(lambda d, e=epoch, r=rows: d[e, r], draws.augmentation)
                x = self.augmentation.apply(self.x[place], drawn, self.mean, self.std, self.dtype)
                yield Batch(x, self.y[place], place, progress=next(progress))


def shares(steps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of a visit's steps, what share came before each, [steps]."""
    return torch.arange(steps, dtype=dtype, device=device) / max(steps, 1)


class TestData(ClientData):
    """The test split; if it is augmented, then in the same way whenever it is looked at."""

    __test__ = False  # it is no test
    _drawn: AugmentationDraws | None = None

    def part(self, places: Tensor) -> Self:
        """Some of the examples, looking as they do among all."""
        mine = super().part(places)
        mine._drawn = trees.take(self._draws(), places) if self.augmented else None
        return mine

    def _draws(self) -> AugmentationDraws:
        if self._drawn is not None:
            return self._drawn
        draws = self.augmentation.draw(streams.torch_stream(0, "test"), len(self))
        return trees.transform(lambda d: d.to(self.x.device), draws)

    def batches(self, size: int = 100) -> Iterator[Batch]:
        """All examples once, in order, as they are tested."""
        if not self.augmented:
            yield from super().batches(size)
            return
        draws = self._draws()
        places = torch.arange(len(self), device=self.y.device)
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            drawn = trees.take(draws, rows)
            x = self.augmentation.apply(self.x[rows], drawn, self.mean, self.std, self.dtype)
            yield Batch(x, self.y[rows], places[rows])
