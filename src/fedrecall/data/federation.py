"""A data set divided among clients, the server's auxiliary examples, and the test set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedrecall import streams
from fedrecall.data.augmentation import AUGMENTATIONS, Augmentation
from fedrecall.data.client import ClientData, TestData
from fedrecall.data.datasets import Dataset
from fedrecall.data.partitions import label_counts
from fedrecall.errors import UserError


@dataclass(frozen=True)
class Federation:
    """Who holds which examples."""

    dataset: Dataset
    parts: Sequence[np.ndarray]
    """Places in the training split of each client's examples."""
    augmentation: Augmentation
    dtype: torch.dtype = torch.float32
    auxiliary_part: np.ndarray | None = None
    """Places of the examples that the server holds for itself; no client has them."""
    test_augmentation: Augmentation = AUGMENTATIONS["none"]

    def __post_init__(self) -> None:
        """Refuse labels that are no class and augmentation without images, wherever they come from."""
        classes = self.dataset.classes
        for name, split in (("training", self.dataset.train), ("test", self.dataset.test)):
            if len(split) and not 0 <= int(split.y.min()) <= int(split.y.max()) < classes:
                raise UserError(
                    f"the {name} split's labels run from {int(split.y.min())} to {int(split.y.max())}, but "
                    f"there are {classes} classes: number them from 0 to {classes - 1}."
                )
        for name in ("augmentation", "test_augmentation"):
            asked = getattr(self, name)
            if asked != AUGMENTATIONS["none"] and self.dataset.train.x.is_floating_point():
                raise UserError(
                    f"{name} = {str(asked)!r} is for images, whole numbers from 0 to 255; the examples of "
                    f"{self.dataset.name} are other numbers, such as a table's: set {name} = 'none'."
                )

    def __len__(self) -> int:
        return len(self.parts)

    def client(self, number: int) -> ClientData:
        """One client's data."""
        return self._data(self.parts[number], self.augmentation)

    def size(self, number: int) -> int:
        """How many examples a client has."""
        return len(self.parts[number])

    @property
    def auxiliary(self) -> ClientData | None:
        """The server's own examples."""
        return None if self.auxiliary_part is None else self._data(self.auxiliary_part, Augmentation())

    @property
    def test(self) -> ClientData:
        """The whole test split."""
        split, d = self.dataset.test, self.dataset
        return TestData(split.x, split.y, d.classes, d.mean, d.std, self.test_augmentation, self.dtype)

    @property
    def counts(self) -> np.ndarray:
        """Examples of each class at each client, [N, C]."""
        return label_counts(self.dataset.train.y.cpu().numpy(), self.parts, self.dataset.classes)

    def _data(self, part: np.ndarray, augmentation: Augmentation) -> ClientData:
        train, d = self.dataset.train, self.dataset
        index = torch.from_numpy(part).to(train.y.device)
        return ClientData(train.x[index], train.y[index], d.classes, d.mean, d.std, augmentation, self.dtype)


def set_apart(labels: np.ndarray, classes: int, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(what clients may share, the server's ``per_class`` examples of each class), both sorted."""
    stream = streams.numpy_stream(seed, "auxiliary")
    chosen = []
    for c in range(classes):
        places = np.flatnonzero(labels == c)
        if len(places) < per_class:
            raise UserError(
                f"the server cannot hold {per_class} auxiliary examples of each class: "
                f"class {c} has {len(places)}."
            )
        chosen.append(stream.choice(places, per_class, replace=False))
    auxiliary = np.sort(np.concatenate(chosen)).astype(np.int64)
    rest = np.setdiff1d(np.arange(len(labels), dtype=np.int64), auxiliary, assume_unique=True)
    return rest, auxiliary
