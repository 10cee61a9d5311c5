"""A data set divided among clients, the server's auxiliary examples, and the test set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedrecall import streams
from fedrecall.data.augmentation import AUGMENTATIONS, Augmentation
from fedrecall.data.client import ClientData, TestData
from fedrecall.data.datasets import Dataset
from fedrecall.data.partitions import label_counts
from fedrecall.data.store import channels
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
        """Refuse what are no examples or labels, and augmentation without images, wherever they come from."""
        object.__setattr__(self, "dataset", sound(self.dataset))
        for name in ("augmentation", "test_augmentation"):
            asked = getattr(self, name)
            if asked != AUGMENTATIONS["none"] and self.dataset.train.x.is_floating_point():
                raise UserError(
                    f"{name} = {str(asked)!r} is for images, whole numbers from 0 to 255; the examples of "
                    f"{self.dataset.name} are other numbers, such as a table's: set {name} = 'none'."
                )

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        sizes = [len(part) for part in self.parts]
        held = f"{min(sizes, default=0)} to {max(sizes, default=0)} examples"
        return f"<Federation on {self.dataset.name}: {len(self)} clients with {held} each>"

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

    @property
    def origins(self) -> list[list[str]] | None:
        """Where each client's examples are from; None if the data do not tell, or clients share an origin."""
        held, names = self._origins, self.dataset.origins
        return None if held is None else [[names[o] for o in own] for own in held]

    @cached_property
    def at_home(self) -> list[np.ndarray] | None:
        """Places in the test split of the examples that are from where each client's own are.

        None if that is not known, see `origins`, or if no test example is from where a client is.
        """
        held, tested = self._origins, self.dataset.test.origin
        if held is None or tested is None:
            return None
        client = np.full(len(self.dataset.origins), -1)
        client[np.concatenate(held)] = np.repeat(np.arange(len(held)), [len(own) for own in held])
        owner = client[tested.numpy()]
        if not (owner >= 0).any():
            return None
        sizes = np.bincount(owner + 1, minlength=len(held) + 1)
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])[1:]

    @cached_property
    def _origins(self) -> list[np.ndarray] | None:
        """`origins` by their places in the data set's."""
        origin = self.dataset.train.origin
        if origin is None:
            return None
        held = [np.unique(origin.numpy()[part]) for part in self.parts]
        return None if len(np.unique(np.concatenate(held))) < sum(map(len, held)) else held

    def _data(self, part: np.ndarray, augmentation: Augmentation) -> ClientData:
        train, d = self.dataset.train, self.dataset
        index = torch.from_numpy(part).to(train.y.device)
        return ClientData(train.x[index], train.y[index], d.classes, d.mean, d.std, augmentation, self.dtype)


def sound(dataset: Dataset) -> Dataset:
    """The data set with labels as int64, or a UserError that says what its splits hold instead."""
    held = {"training": dataset.train, "test": dataset.test}
    for name, split in held.items():
        if not len(split) and not len(split.x):
            continue  # at nodes of which only the shape is known
        where, x, y = f"the {name} split", split.x, split.y
        if y.ndim != 1 or y.dtype == torch.bool or y.is_floating_point() or y.is_complex():
            raise UserError(f"{where}'s labels are {_described(y)}: give one whole number an example, [n].")
        if len(x) != len(y):
            raise UserError(f"{where} has {len(x)} examples and {len(y)} labels: give as many of both.")
        if x.shape[1:] != dataset.train.x.shape[1:]:
            raise UserError(
                f"{where}'s examples are {list(x.shape[1:])}, but those for training "
                f"{list(dataset.train.x.shape[1:])}: make all of one shape."
            )
        if not x.is_floating_point() and (x.dtype != torch.uint8 or x.ndim != 4):
            raise UserError(
                f"{where}'s examples are {_described(x)}: give images as uint8 of [n, channels, height, "
                "width], pixels from 0 to 255, and all else, such as a table's rows [n, columns], as float32."
            )
        sizes = {1, *channels(x.shape[1:], x.is_floating_point())}
        if any(v.ndim != 1 or len(v) not in sizes for v in (dataset.mean, dataset.std)):
            wanted = f"one a channel, {x.shape[1]} in all"
            if x.is_floating_point():
                wanted = f"one of all, or {x.shape[-1]}, one for each place along the last axis"
                wanted += "; pixels as uint8 have one a channel" if x.ndim == 4 else ""
            raise UserError(
                f"{where}'s examples are {_described(x)}, but the means are {list(dataset.mean.shape)} and "
                f"the deviations {list(dataset.std.shape)}: give {wanted}."
            )
        if split.origin is not None and (
            split.origin.shape != y.shape
            or split.origin.dtype != torch.int64
            or not 0 <= int(split.origin.min()) <= int(split.origin.max()) < len(dataset.origins)
        ):
            raise UserError(
                f"{where}'s origins are {_described(split.origin)}, beside {len(dataset.origins)} names: "
                "give each example the place of its own in the data set's origins, as int64 of [n]."
            )
        if not 0 <= int(y.min()) <= int(y.max()) < dataset.classes:
            raise UserError(
                f"{where}'s labels run from {int(y.min())} to {int(y.max())}, but "
                f"there are {dataset.classes} classes: number them from 0 to {dataset.classes - 1}."
            )
    if all(split.y.dtype == torch.int64 for split in held.values()):
        return dataset
    train, test = (replace(split, y=split.y.to(torch.int64)) for split in held.values())
    return replace(dataset, train=train, test=test)


def _described(values: torch.Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {list(values.shape)}"


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
