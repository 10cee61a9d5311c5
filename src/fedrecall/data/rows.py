"""Examples as a source has them, and what they must have in common to become a data set."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecall.data.images import Pixels
from fedrecall.data.store import Columns, Dataset, Split, statistics
from fedrecall.errors import UserError
from fedrecall.streams import numpy_stream

Label = str | int


@dataclass
class Rows:
    """One split as it is read: examples in order and their labels."""

    x: list[Pixels | NDArray[np.float64]] = field(default_factory=list)
    """Images ``[H, W]`` or ``[H, W, 3]``; rows of numbers ``[F]``."""
    y: list[Label] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    """Of each example, for an error message."""
    key: list[Any] = field(default_factory=list)
    """Of each example, what tells whether two are the same."""
    origin: list[str] = field(default_factory=list)
    """Of each example, who or where it is from."""
    unit: list[str] = field(default_factory=list)
    """Of each example, what it may not be parted from: all of a unit are trained on, or none is."""

    def keep(self, wanted: Iterable[int]) -> Rows:
        """Some of the examples."""
        places = list(wanted)
        columns = (getattr(self, f.name) for f in fields(self))
        return Rows(*([column[i] for i in places] if column else [] for column in columns))


class Told(NamedTuple):
    """The columns that tell more of an example than what it is; an empty name is of none."""

    origin: str = ""
    undivided: str = ""
    ignored: str = ""
    """Columns of which nothing is to be learnt, nor anything noted, joined by +."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(dict.fromkeys(name for name in (self.origin, self.undivided) if name))

    def ignoring(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns that are ignored: one that is called so, or several."""
        if self.ignored in columns:
            return (self.ignored,)
        return tuple(name.strip() for name in self.ignored.split("+") if name.strip())

    def note(self, rows: Rows, values: Mapping[str, Any], where: str) -> None:
        """Add what an example's cells say about where it is from and what it stays with."""
        for name, column in ((self.origin, rows.origin), (self.undivided, rows.unit)):
            if name:
                column.append(identifier(values[name], where, name))


def identifier(value: Any, where: str, name: str) -> str:
    """A site or a patient as text: the same for the ways in which files write the same one.

    Those are 7 and 7.0 (which a column of numbers becomes once one is missing), and é as one sign or as two.
    """
    if value is None or (isinstance(value, float) and value != value):
        value = ""
    written = unicodedata.normalize("NFC", str(value)).strip()
    if written in ("", "nan", "NaN", "<NA>", "None"):
        raise UserError(f"{where} has no {name!r}.")
    return written.partition(".")[0] if re.fullmatch(r"[0-9]+\.0+", written) else written


@dataclass
class Source:
    """What a reader found."""

    splits: dict[str, Rows]
    """``train`` and perhaps ``test``."""
    names: list[str] | None = None
    """The classes' names when the source lists them and labels are their numbers."""
    features: tuple[str, ...] = ()
    """What a table's columns are called."""


def join(
    name: str,
    found: Source,
    source: str,
    held_out: float,
    seed: int,
    standardise: bool = True,
    part: bool = False,
) -> Dataset:
    """Check and join what was read; without a test split hold some of every class out.

    ``standardise``: the columns of a table, by the training split. ``part``: others have the rest of the
    data, so that a class may be in the test split alone, and nothing at all if ``held_out`` is 0.
    """
    names = found.names
    train, test = found.splits["train"], found.splits.get("test", Rows())
    if not train.y:
        raise UserError(f"{source} has no training examples.")
    if not test.y and not (part and held_out == 0):
        if held_out == 0:
            raise UserError(f"{source} has no test split, and held_out = 0 holds none of it out.")
        train, test = hold_out(train, held_out, seed)
        if not test.y:
            remedy = "; with held_out=0 all of them are trained on" if part else ""
            if train.unit:
                remedy += "; more of them, or files named train and test, would do"
            few = "examples" if not train.unit else "of what stays together"
            raise UserError(f"{source} has no test split and too few {few} to hold some out{remedy}.")
    elif shared := sorted(set(train.unit) & set(test.unit)):
        raise UserError(
            f"{source} has {shared[0]!r} in the training and in the test split (and {len(shared) - 1} more "
            "like it), but undivided is to keep each in one: divide the files otherwise."
        )
    class_names, code = _classes([*train.y, *test.y] if part else train.y, names)
    tensors = []
    for rows in (train, test):
        for label, where in zip(rows.y, rows.where, strict=True):
            if label not in code:
                raise UserError(f"{where} has the label {label!r}, which {_expected(class_names, names)}.")
        tensors.append(torch.tensor([code[label] for label in rows.y], dtype=torch.int64))
    image, table, moved = train.x[0].dtype == np.uint8, train.x[0].ndim == 1, None
    if image:
        grey = all(image.ndim == 2 for rows in (train, test) for image in rows.x)
        height, width = train.x[0].shape[:2]
        shape = (1 if grey else 3, height, width)
        x_train, x_test = (torch.from_numpy(stack(rows, shape)) for rows in (train, test))
        mean, std = statistics(x_train)
    elif not table:
        numbers = np.stack(train.x)
        x_train = torch.from_numpy(numbers)
        x_test = torch.from_numpy(np.stack(test.x)) if test.x else x_train[:0]
        mean, std = _of_all(numbers) if standardise else (torch.zeros(1), torch.ones(1))
    else:
        # In double precision: a column of time stamps would lose its digits as float32.
        wide_train = np.stack(train.x).astype(np.float64)
        columns = wide_train.shape[1]
        wide_test = np.stack(test.x).astype(np.float64) if test.x else np.empty((0, columns))
        centre, spread = np.zeros(columns), np.ones(columns)
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at
            if standardise:
                moved = _columns(wide_train)
                centre, spread = np.array(moved.mean), np.array(moved.std)
                spread[spread == 0] = 1
            x_train, x_test = (
                torch.from_numpy(((wide - centre) / spread).astype(np.float32))
                for wide in (wide_train, wide_test)
            )
        _check_range(found, (x_train, x_test), wide_train, spread)
        mean, std = torch.zeros(columns), torch.ones(columns)
    origins = _origins(train, test)
    splits = (
        Split(x_train, tensors[0], _places(train.origin, origins)),
        Split(x_test, tensors[1], _places(test.origin, origins)),
    )
    named = found.features, origins
    return Dataset(name, tuple(class_names), *splits, mean, std, moved, *named, undivided=bool(train.unit))


def _origins(train: Rows, test: Rows) -> tuple[str, ...]:
    """Where training examples are from, and after these where others alone are that are tested on."""
    trained, tested = set(train.origin), set(test.origin)
    return (*sorted(trained, key=_in_order), *sorted(tested - trained, key=_in_order))


def _places(origin: list[str], origins: Sequence[str]) -> Tensor | None:
    """Of each example the place of its origin among all; None where that is not known."""
    number = {name: i for i, name in enumerate(origins)}
    return torch.tensor([number[name] for name in origin], dtype=torch.int64) if origin else None


def _in_order(name: str) -> tuple[bool, int, str]:
    """Numbers as numbers, before names."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def _check_range(
    found: Source, splits: Iterable[Tensor], wide: NDArray[np.float64], spread: NDArray[np.float64]
) -> None:
    """Name a column whose numbers are too large, or too small, to be computed with."""
    varies = (wide != wide[0]).any(0)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = wide.std(0)
    sound = np.isfinite(spread) & np.isfinite(deviation) & (~varies | (deviation > 0))
    for x in splits:
        sound &= torch.isfinite(x).all(0).numpy()
    if not sound.all():
        place = int(np.flatnonzero(~sound)[0])
        name = found.features[place] if found.features else f"number {place + 1}"
        raise UserError(
            f"the column {name} has values from {wide[:, place].min():g} to {wide[:, place].max():g}, which "
            "cannot be computed with in single precision: scale it, or replace what stands for missing ones."
        )


def _of_all(examples: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Mean and deviation of all numbers, in double precision; 1 if they never vary."""
    mean = float(np.mean([x.mean(dtype=np.float64) for x in examples]))
    square = float(np.mean([np.square(x - mean, dtype=np.float64).mean() for x in examples]))
    return torch.tensor([mean]), torch.tensor([square**0.5 or 1.0])


def _columns(wide: NDArray[np.float64]) -> Columns:
    """Means and deviations; 0 of a column that never varies, whatever rounding makes of it."""
    constant = (wide == wide[0]).all(0)
    mean, std = np.where(constant, wide[0], wide.mean(0)), np.where(constant, 0.0, wide.std(0))
    return Columns(mean.tolist(), std.tolist())


def _classes(labels: list[Label], names: list[str] | None) -> tuple[list[str], dict[Label, int]]:
    if names is not None:
        return names, dict(zip(range(len(names)), range(len(names)), strict=True))
    found = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    return [str(label) for label in found], {label: i for i, label in enumerate(found)}


def _expected(class_names: list[str], names: list[str] | None) -> str:
    if names is not None:
        return f"is not one of the {len(names)} classes 0 to {len(names) - 1}"
    shown = ", ".join(class_names[:10]) + (", ..." if len(class_names) > 10 else "")
    return f"no training example has ({shown})"


def hold_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """(train, test): the same share of every class by a keyed stream, but never its only example.

    Where examples form units, whole ones are held out, and the shares are met as nearly as these allow.
    """
    stream = numpy_stream(seed, "hold out")
    if rows.unit:
        out = _whole_units(rows, share, stream)
        return rows.keep(np.flatnonzero(~out).tolist()), rows.keep(np.flatnonzero(out).tolist())
    chosen = some_of_each(rows.y, rows.origin, share, stream)
    return rows.keep(i for i in range(len(rows.y)) if i not in chosen), rows.keep(sorted(chosen))


def some_of_each(
    labels: Sequence[Label], origins: Sequence[Any], share: float, stream: np.random.Generator
) -> set[int]:
    """Places of the same share of every class, but never of its only example, or of all of an origin's."""
    places: dict[Label, list[int]] = {}
    for i, label in enumerate(labels):
        places.setdefault(label, []).append(i)
    chosen: set[int] = set()
    for label in sorted(places, key=str):
        mine = places[label]
        count = min(max(round(share * len(mine)), 1), len(mine) - 1)
        chosen.update(stream.permutation(mine)[:count].tolist())
    by_origin: dict[Any, list[int]] = {}
    for i, origin in enumerate(origins):
        by_origin.setdefault(origin, []).append(i)
    for mine in by_origin.values():
        if chosen.issuperset(mine):
            chosen.remove(mine[0])
    return chosen


def _whole_units(rows: Rows, share: float, stream: np.random.Generator) -> NDArray[np.bool_]:
    """Whether each example is held out: in a random order units that fit into the classes' shares, then those
    that bring these nearer. None takes the last of a class, or of an origin, that could be trained on."""
    units, unit = np.unique(rows.unit, return_inverse=True)
    classes, label = np.unique([f"{type(y).__name__} {y}" for y in rows.y], return_inverse=True)
    counts = np.zeros((len(units), len(classes)), np.int64)
    np.add.at(counts, (unit, label), 1)
    origins, origin = np.unique(rows.origin or [""] * len(rows.y), return_inverse=True)
    kinds = np.zeros((len(units), len(classes) + len(origins)), np.int64)  # of which some must be left
    kinds[:, : len(classes)] = counts
    np.add.at(kinds, (unit, len(classes) + origin), 1)
    total, left = counts.sum(0), kinds.sum(0)
    lacking = share * total
    held = np.zeros(len(units), bool)
    order = stream.permutation(len(units))
    for closely in (True, False):
        for u in order[~held[order]]:
            own = counts[u]
            after = lacking - own
            wanted = (after >= 0).all() if closely else (after**2 / total).sum() < (lacking**2 / total).sum()
            if wanted and (left > kinds[u])[kinds[u] > 0].all():
                held[u] = True
                lacking, left = after, left - kinds[u]
    if share and not held.any():  # all are larger than is asked for: better the smallest than none
        spare = [u for u in order if (left > kinds[u])[kinds[u] > 0].all()]
        held[sorted(spare, key=lambda u: int(counts[u].sum()))[:1]] = True
    found: NDArray[np.bool_] = held[unit]
    return found


def stack(rows: Rows, shape: tuple[int, ...] | None) -> Pixels:
    """Images of one size as uint8 ``[n, C, H, W]``; ``shape`` is what another split has."""
    channels = shape[0] if shape else max(1 if image.ndim == 2 else 3 for image in rows.x)
    height, width = shape[1:] if shape else rows.x[0].shape[:2]
    out = np.empty((len(rows.x), channels, height, width), np.uint8)
    for i, image in enumerate(rows.x):
        if image.shape[:2] != (height, width):
            found = f"{image.shape[1]}x{image.shape[0]}"
            raise UserError(
                f"{rows.where[i]} is {found} pixels and others are {width}x{height}: "
                "give size=SIDE to resize all of them."
            )
        out[i] = image if image.ndim == 2 else image.transpose(2, 0, 1)
        rows.x[i] = out[i]  # so that an image is held once
    return out
