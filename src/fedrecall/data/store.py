"""A data set in memory and on disk: as one memory-mapped cache file, or in parts to carry elsewhere."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedrecall import files
from fedrecall.errors import UserError


@dataclass(frozen=True)
class Split:
    """Examples and their labels."""

    x: Tensor
    """uint8 ``[n, C, H, W]`` of images, float32 ``[n, F]`` of tables."""
    y: Tensor
    """int64 ``[n]``."""
    origin: Tensor | None = None
    """int64 ``[n]``, who or where each is from, if that is known: a place in the data set's ``origins``."""

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"<Split of {len(self)} examples {list(self.x.shape[1:])}>"

    def part(self, places: slice | Tensor) -> Split:
        """Some of the examples, in their order."""
        return Split(self.x[places], self.y[places], None if self.origin is None else self.origin[places])


class Columns(NamedTuple):
    """What a table's columns were like before they were standardised, in double precision."""

    mean: list[float]
    std: list[float]
    """0 of a column that never varies, which was only moved."""


@dataclass(frozen=True)
class Dataset:
    """A training and a test split with what is needed to normalise them. Its tensors are read only."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    mean: Tensor
    """float32 ``[C]``: the training images' channel means on the scale 0 to 1 (tables: of the columns; other
    numbers: one of all, or those along the last axis)."""
    std: Tensor
    """float32 ``[C]``: their standard deviations; 1 for a channel that never varies."""
    columns: Columns | None = None
    """By what the examples themselves, a table's, have been moved and scaled; None: they were not."""
    features: tuple[str, ...] = ()
    """What a table's columns are called, in their order, if that is known."""
    origins: tuple[str, ...] = ()
    """What the examples' origins are called: sites, writers, patients."""
    undivided: bool = False
    """Whether units of several examples, such as patients, were kept whole when the splits were made."""

    def __repr__(self) -> str:
        sizes = f"{len(self.train)} training and {len(self.test)} test examples {list(self.shape)}"
        return f"<Dataset {self.name}: {sizes} of {self.classes} classes>"

    @property
    def standardised(self) -> bool:
        """Whether the examples themselves have been moved and scaled by the training split."""
        return self.columns is not None

    def restandardised(self, mean: Sequence[float], std: Sequence[float]) -> Dataset:
        """The data set as if all of these had been the statistics of its images, or of its columns."""
        centre, scale = (np.asarray(values, np.float64) for values in (mean, std))
        if self.columns is not None:
            own = np.asarray(self.columns.std)
            own = np.where(own > 0, own, 1.0)
            centre, scale = (centre - self.columns.mean) / own, scale / own
        made = [torch.from_numpy(values.astype(np.float32)) for values in (centre, scale)]
        return replace(self, mean=made[0].to(self.mean.device), std=made[1].to(self.mean.device))

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example: (C, H, W), or (F,) of a table."""
        return tuple(self.train.x.shape[1:])

    @property
    def floats(self) -> bool:
        """Whether its examples are any numbers, not pixels from 0 to 255."""
        return self.train.x.is_floating_point()

    def fixed(self, mapped: bool = True) -> Dataset:
        """The data set with a mean and a deviation in which no example has a part."""
        mean, std = fixed_statistics(self.shape, mapped, self.floats)
        return replace(self, mean=mean.to(self.mean.device), std=std.to(self.std.device))

    def to(self, device: torch.device) -> Dataset:
        """The data set with its examples on this device; itself, if they are there."""
        train, test = (replace(s, x=s.x.to(device), y=s.y.to(device)) for s in (self.train, self.test))
        if train.x is self.train.x and test.x is self.test.x:
            return self
        return replace(self, train=train, test=test, mean=self.mean.to(device), std=self.std.to(device))


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 images, on the scale 0 to 1."""
    histogram = torch.zeros(x.shape[1], 256, dtype=torch.float64)
    for start in range(0, len(x), 4096):  # bincount widens what it counts
        chunk = x[start : start + 4096]
        for channel in range(x.shape[1]):
            histogram[channel] += torch.bincount(chunk[:, channel].flatten(), minlength=256)
    value = torch.arange(256, dtype=torch.float64) / 255
    share = histogram / histogram.sum(1, keepdim=True)
    mean = share @ value
    std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt()
    return mean.float(), torch.where(std > 0, std, 1.0).float()


def pixels(shape: Sequence[int], floats: bool) -> bool:
    """Whether examples of this shape are an image's pixels from 0 to 255, not ``floats``."""
    return len(shape) == 3 and not floats


def channels(shape: Sequence[int], floats: bool) -> tuple[int, ...]:
    """How many means there may be of examples: one of each channel or column; of other numbers one of all,
    or those along the last axis."""
    return (shape[0],) if len(shape) == 1 or pixels(shape, floats) else (1, shape[-1])


def fixed_statistics(
    shape: Sequence[int], mapped: bool = True, floats: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean and deviation for examples of this shape, whatever they are.

    An image's pixels, on the scale 0 to 1, become -1 to 1 if they are to be ``mapped``; of other numbers,
    such as a table's columns, nothing is known, so they stay as they are.
    """
    mapped, size = mapped and pixels(shape, floats), channels(shape, floats)[:1]
    return torch.full(size, 0.5 if mapped else 0.0), torch.full(size, 0.5 if mapped else 1.0)


_ARRAYS = ("train.x", "train.y", "test.x", "test.y", "mean", "std")
_ORIGINS = ("train.origin", "test.origin")
"""Those that there need not be."""


def _arrays(dataset: Dataset) -> dict[str, Tensor]:
    """As they are kept: numbers as float32, labels as int64, of one mean for all channels one for each."""
    d, size = dataset, channels(dataset.shape, dataset.floats)[0]
    splits = ((s.x.float() if s.x.is_floating_point() else s.x, s.y.long()) for s in (d.train, d.test))
    statistics = (v.expand(size) if len(v) == 1 else v for v in (d.mean, d.std))
    held = (*(t for split in splits for t in split), *statistics)
    found = dict(zip(_ARRAYS, held, strict=True))
    for name, split in zip(_ORIGINS, (d.train, d.test), strict=True):
        if split.origin is not None:
            found[name] = split.origin
    return {name: t.contiguous() for name, t in found.items()}


def _dataset(
    name: str,
    class_names: Any,
    arrays: dict[str, Tensor],
    standardised: Any = None,
    features: Any = (),
    origins: Any = (),
    undivided: Any = False,
) -> Dataset:
    """Put together what was read, or a ValueError when it does not fit together."""
    if not isinstance(class_names, list) or not all(isinstance(c, str) for c in class_names):
        raise ValueError("no class names")
    if set(arrays) - set(_ORIGINS) != set(_ARRAYS):
        raise ValueError("arrays missing")
    train, test = (
        Split(arrays[f"{part}.x"], arrays[f"{part}.y"], arrays.get(f"{part}.origin"))
        for part in ("train", "test")
    )
    for split in (train, test):
        if split.x.dtype not in (torch.uint8, torch.float32) or split.y.dtype != torch.int64:
            raise ValueError("wrong types")
        if split.y.ndim != 1 or len(split.x) != len(split.y) or split.x.shape[1:] != train.x.shape[1:]:
            raise ValueError("wrong shapes")
        if len(split) and not 0 <= int(split.y.min()) <= int(split.y.max()) < len(class_names):
            raise ValueError("labels out of range")
    sizes = channels(train.x.shape[1:], train.x.is_floating_point()) if train.x.ndim > 1 else ()
    if any(arrays[n].ndim != 1 or len(arrays[n]) not in sizes for n in ("mean", "std")):
        raise ValueError("wrong shapes")
    if train.x.ndim != 4 and not train.x.is_floating_point():
        raise ValueError("wrong types")
    columns = _columns(standardised, train.x)
    if features and not (len(features) == train.x.shape[1] and all(isinstance(f, str) for f in features)):
        raise ValueError("columns' names that are not the table's")
    _check_origins((train, test), origins)
    if not isinstance(undivided, bool):
        raise ValueError("undivided is neither true nor false")
    statistics, named = (arrays["mean"], arrays["std"]), (tuple(features), tuple(origins))
    return Dataset(name, tuple(class_names), train, test, *statistics, columns, *named, undivided)


def _check_origins(splits: Sequence[Split], names: Any) -> None:
    if not all(isinstance(n, str) for n in names):
        raise ValueError("names of origins that are not text")
    if names and all(split.origin is None for split in splits):
        raise ValueError("names of origins that no example has")
    for origin, y in ((split.origin, split.y) for split in splits):
        if origin is None:
            continue
        if origin.dtype != torch.int64 or origin.shape != y.shape:
            raise ValueError("origins that are not the examples'")
        if len(y) and not 0 <= int(origin.min()) <= int(origin.max()) < len(names):
            raise ValueError("origins out of range")


def _columns(noted: Any, x: Tensor) -> Columns | None:
    """What was noted of a table's columns; earlier, only whether they were standardised, or not even that."""
    if noted is None:
        noted = x.is_floating_point()  # then every table was
    if noted is True:  # by what is not known, so as if they had been so from the first
        return Columns([0.0] * x.shape[1], [1.0] * x.shape[1])
    if noted is False:
        return None
    found = Columns(*([float(v) for v in values] for values in noted))
    if not len(found.mean) == len(found.std) == x.shape[1] or min(found.std) < 0:
        raise ValueError("columns that are not the table's")
    return found


def save(path: Path, dataset: Dataset, content: str | None = None) -> None:
    """Write a cache file, whole or not at all; ``content``: what `take_over` knows it by."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    metadata = {
        "sums": json.dumps(_sums(_arrays(dataset))),
        "name": dataset.name,
        "class_names": json.dumps(dataset.class_names),
        "standardised": json.dumps(dataset.columns or False),
        "features": json.dumps(dataset.features),
        "origins": json.dumps(dataset.origins),
        "undivided": json.dumps(dataset.undivided),
        **({} if content is None else {"content": content}),
    }
    with files.replacing(path) as temporary:
        save_file(_arrays(dataset), temporary, metadata)


def take_over(others: Iterable[Path], path: Path, content: str) -> bool:
    """Give one of the other cache files this path, if it was made of the same content.

    It is the same file, and stays where it is mapped.
    """
    for other in others:
        with suppress(OSError, safetensors.SafetensorError):
            with safetensors.safe_open(other, framework="pt") as file:
                same = (file.metadata() or {}).get("content") == content
            if same:
                os.replace(other, path)
                return True
    return False


UNUSED = 7 * 86400.0
"""Seconds after which a cache file that nobody has opened may go. Not before: it may be that of other
settings, and where another host has it mapped from a network's disk, that run would end."""


def delete_unused(path: Path) -> None:
    """Delete a cache file that nobody has opened for long."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > UNUSED:
            path.unlink()


def load(path: Path) -> Dataset | None:
    """Map a cache file into memory; None when it is missing or damaged."""
    with suppress(OSError):  # it is another's, or not there
        os.utime(path)  # it is in use, see `delete_unused`
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        standardised = json.loads(metadata.get("standardised", "null"))
        if standardised is True:  # an earlier version did not note by what: made anew, it does
            return None
        features = json.loads(metadata.get("features", "[]"))
        if standardised and "features" not in metadata:  # nor what the columns are called
            return None
        names, arrays = json.loads(metadata["class_names"]), load_file(path)
        if json.loads(metadata.get("sums", "null")) != _sums(arrays):  # earlier ones had none
            return None
        origins = json.loads(metadata.get("origins", "[]"))
        undivided = json.loads(metadata.get("undivided", "false"))
        return _dataset(metadata["name"], names, arrays, standardised, features, origins, undivided)
    except (OSError, safetensors.SafetensorError, ValueError, TypeError, KeyError, RuntimeError):
        return None


def _sums(arrays: dict[str, Tensor]) -> dict[str, int]:
    """Each array's content as one number, at the speed of memory: what a disk spoils is to be noticed."""
    found = {}
    for name, array in arrays.items():
        content = array.contiguous().numpy().reshape(-1).view(np.uint8)
        words = content[: len(content) // 8 * 8].view(np.uint64)
        rest = int.from_bytes(content[len(words) * 8 :].tobytes())
        found[name] = (int(words.sum(dtype=np.uint64)) + rest) % 2**64
    return found


ABANDONED = 3600.0
"""Seconds after which a file that nobody has gone on writing is taken for that of a killed process."""


def _sweep(folder: Path) -> None:
    """Delete what killed processes left half written among the caches; others may be writing there."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


_INDEX = "dataset.json"
_FORMAT = "fedrecall dataset 1"


def export(dataset: Dataset, folder: Path, part_bytes: int = 60 * 2**20) -> list[Path]:
    """Write a data set as compressed parts, none larger than ``part_bytes``; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _INDEX).unlink(missing_ok=True)  # else one that is cut short would leave a mixture of two
    arrays = _arrays(dataset)
    written, parts = [], []
    for name in (n for n in arrays if n not in ("mean", "std")):
        array = arrays[name].numpy()
        row = max(array[:1].nbytes, 1)
        rows = int(part_bytes * 0.99 - 1024) // row  # what does not compress grows by less than a hundredth
        if rows < 1:
            raise UserError(f"parts of {part_bytes} bytes cannot hold one example of {row} bytes.")
        for start in range(0, max(len(array), 1), rows):  # of an empty split its shape
            path = folder / f"{name}-{start // rows:04d}.npz"
            with files.replacing(path) as temporary, open(temporary, "wb") as file:
                np.savez_compressed(file, array=array[start : start + rows])
            written.append(path)
            parts.append([name, path.name])
    index = {
        "format": _FORMAT,
        "name": dataset.name,
        "class_names": dataset.class_names,
        "mean": arrays["mean"].tolist(),
        "std": arrays["std"].tolist(),
        "standardised": dataset.columns or False,
        "features": dataset.features,
        "origins": dataset.origins,
        "undivided": dataset.undivided,
        "parts": parts,
    }
    files.write_json(folder / _INDEX, index)  # last: a folder without it is not an export
    return [*written, folder / _INDEX]


def is_export(folder: Path) -> bool:
    """Whether ``export`` wrote this folder."""
    return files.found(folder / _INDEX, stat.S_ISREG)


def exported_name(folder: Path) -> str | None:
    """What the data set is called that ``export`` wrote there; None where there is none that can be read."""
    try:
        name = files.read_json(folder / _INDEX)["name"] if is_export(folder) else None
    except (UserError, LookupError, TypeError):  # `load_export` says what is wrong
        return None
    return name if isinstance(name, str) else None


def load_export(folder: Path) -> Dataset:
    """Join the parts that ``export`` wrote."""
    index = files.read_json(folder / _INDEX)
    try:
        if index["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if not isinstance(index["name"], str):
            raise ValueError("its name is not text")
        found: dict[str, list[np.ndarray[Any, Any]]] = {}
        for name, file in index["parts"]:
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not a file name")
            with np.load(folder / file, allow_pickle=False) as held:
                found.setdefault(name, []).append(held["array"])
        arrays = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in found.items()}
        for name in ("mean", "std"):
            arrays[name] = torch.tensor(index[name], dtype=torch.float32)
        columns = index.get("standardised"), index.get("features", ())
        told = index.get("origins", ()), index.get("undivided", False)
        return _dataset(str(index["name"]), index["class_names"], arrays, *columns, *told)
    except Exception as error:  # a damaged archive makes zipfile, zlib and numpy raise nearly anything
        raise UserError(f"the exported data set {folder} cannot be read: {error}.") from error
