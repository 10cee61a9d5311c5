"""Data sets by name: decoded once to tensors, cached, the same wherever they came from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Examples and their labels."""

    x: Tensor
    """uint8 ``[n, C, H, W]`` of images, float32 ``[n, F]`` of tables."""
    y: Tensor
    """int64 ``[n]``."""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split with what is needed to normalise them. Its tensors are read only."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    mean: Tensor
    """float32 ``[C]``: the training images' channel means on the scale 0 to 1 (tables: of the columns)."""
    std: Tensor
    """float32 ``[C]``: their standard deviations; 1 for a channel that never varies."""

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example: (C, H, W), or (F,) of a table."""
        return tuple(self.train.x.shape[1:])
