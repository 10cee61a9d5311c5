"""A data set from arrays that a program has already: NumPy's, torch's, or lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedrecall.data.rows import Label, Rows, Source, identifier, join
from fedrecall.data.store import Dataset
from fedrecall.errors import UserError, shown

OF_OTHERS = (
    'from_arrays(ds["image"], ds["label"]) of a Hugging Face data set, from_arrays(*ds.tensors) of a '
    "TensorDataset."
)
"""How what other libraries hold is given, for an error message."""


def from_arrays(
    x: Any,
    y: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    *,
    name: str = "arrays",
    class_names: Any = None,
    origin: Any = None,
    origin_test: Any = None,
    undivided: Any = None,
    held_out: float = 0.2,
    seed: int = 0,
    standardise: bool = True,
) -> Dataset:
    """A data set of images, rows or signals and their labels.

    Images are whole numbers from 0 to 255, [n, H, W], [n, H, W, C] or [n, C, H, W] with 1 or 3 channels; rows
    are numbers [n, F], moved and scaled by the training split unless ``standardise`` is false. Floating
    numbers of more dimensions, such as signals [n, C, length], volumes or images of other ranges, keep their
    values, and their axes but for one case: of [n, H, W, C] whose last axis is 1 or 3 long, and the second is
    not, the last is taken for an image's channels and becomes the second. Networks see them moved and scaled
    by one mean and deviation of the training split, unless ``standardise`` is false. Labels are whole numbers
    or names; ``class_names`` names the classes 0, 1, ..., or says the order of the names that labels have.
    Without a test split ``held_out`` of every class is tested on; with an empty one nothing is, as at a
    federation's node: a run on one machine needs ``validation`` then. ``origin`` and ``undivided`` say of
    every training example who or where it is from and what is held out whole, as `folder` has them;
    ``origin_test`` says of those of ``x_test`` who or where they are from.
    """
    if y is None:
        raise UserError(f"from_arrays: there are no labels: give from_arrays(x, y), that is {OF_OTHERS}")
    if (x_test is None) != (y_test is None):
        raise UserError("from_arrays: give x_test and y_test, or neither.")
    if x_test is not None and undivided is not None:
        raise UserError(
            "from_arrays: undivided says what is held out whole, and x_test has been: leave one out."
        )
    if x_test is None and origin_test is not None:
        raise UserError(
            "from_arrays: origin_test is of x_test, which is not given: leave it out, for origin says where "
            "the examples are from that are held out."
        )
    if not 0 <= held_out < 1:
        raise UserError(f"from_arrays: held_out = {held_out:g} must be in [0, 1).")
    splits = {"train": _rows("training", x, y, origin, undivided)}
    if x_test is not None:
        splits["test"] = _rows("test", x_test, y_test, origin_test, None)
    kinds = [(rows.x[0].shape, rows.x[0].dtype) for rows in splits.values() if rows.x]
    images = all(dtype == np.uint8 for _, dtype in kinds)  # of which what is wrong is said below
    if len(set(kinds)) > 1 and not images:
        (train, whole), (test, real) = kinds
        raise UserError(
            f"from_arrays: a test example is {real} of shape {list(test)}, a training example {whole} of "
            f"{list(train)}: give both alike."
        )
    names = None if class_names is None else _names(class_names)
    if names is not None:
        for rows in splits.values():
            rows.y = [_number(label, names, where) for label, where in zip(rows.y, rows.where, strict=True)]
    untested = x_test is not None and not splits["test"].y
    share = 0.0 if untested else held_out
    return join(name, Source(splits, names), name, share, seed, standardise, part=untested)


def _names(given: Any) -> list[str]:
    """Names of classes, each once."""
    found = [] if isinstance(given, (str, Mapping)) else np.ravel(_array(given)).tolist()
    if (
        len(found) < 2
        or not all(isinstance(n, str) and n.strip() for n in found)
        or len({*found}) < len(found)
    ):
        raise UserError(
            f"from_arrays: class_names = {shown(given)}: give a list of the classes' names, each once, in "
            "the order of their numbers."
        )
    return found


def _number(label: Label, names: list[str], where: str) -> Label:
    """The class's number, where its name stands for it."""
    if isinstance(label, str) and label not in names:
        raise UserError(f"from_arrays: {where} has the label {label!r}, which is not one of class_names.")
    return names.index(label) if isinstance(label, str) else label


def _rows(split: str, x: Any, y: Any, origin: Any, unit: Any) -> Rows:
    held = _array(x)
    if held.dtype.kind in "iu" and held.ndim in (3, 4):
        held = _images(split, _pixels(split, held))
    elif held.ndim == 2 and held.dtype.kind in "fiu":
        held = _finite(split, held.astype(np.float64))
    elif held.ndim > 2 and held.dtype.kind == "f":
        with np.errstate(over="ignore"):
            held = _finite(split, held.astype(np.float32))
        if held.ndim == 4 and _channels_last(held):
            held = held.transpose(0, 3, 1, 2)
    else:
        raise UserError(
            f"from_arrays: the {split} examples are {held.dtype} of shape {list(held.shape)}; give images as "
            "whole numbers from 0 to 255 of [n, H, W], [n, H, W, C] or [n, C, H, W], rows as numbers of "
            "[n, F], and signals or volumes as floating numbers of [n, C, length] or more dimensions."
        )
    where = [f"{split} example {i}" for i in range(len(held))]
    labels = _column(split, "labels", y, len(held))
    if labels.dtype == object and all(type(v) is int for v in labels):
        labels = labels.astype(np.int64)
    elif labels.dtype == object:  # as pandas has its text
        labels = np.array([identifier(v, w, "label") for v, w in zip(labels, where, strict=True)])
    if labels.dtype.kind not in "iuU" and len(labels):  # an empty list has any
        how = f", as numpy.asarray({_LABELS[split]}).astype(int) has them" if _whole(labels) else ""
        raise UserError(
            f"from_arrays: the {split} labels are {labels.dtype}; give whole numbers or names{how}."
        )
    told = []
    of = "origin_test" if split == "test" else "origin"
    for what, given in ((of, origin), ("undivided", unit)):
        column = [] if given is None else _column(split, what, given, len(held)).tolist()
        told.append([identifier(v, w, what) for v, w in zip(column, where, strict=given is not None)])
    return Rows(list(held), labels.tolist(), where, [], *told)


_LABELS = {"training": "y", "test": "y_test"}


def _whole(labels: np.ndarray[Any, Any]) -> bool:
    """Whether these are truth values, or floating numbers without a fraction."""
    if labels.dtype.kind not in "fb":
        return False
    wide = labels.astype(np.float64)
    return bool((np.isfinite(wide) & (wide == np.floor(wide))).all())


def _column(split: str, what: str, values: Any, count: int) -> np.ndarray[Any, Any]:
    found = _array(values)
    if found.shape != (count,):
        shown = repr(values) if found.ndim == 0 else f"of {list(found.shape)}"
        flat = f", as numpy.ravel({_LABELS[split] if what == 'labels' else what}) has them"
        how = flat if found.size == count and found.ndim > 1 else ""
        raise UserError(f"from_arrays: {count} {split} examples have {what} {shown}: give one of each{how}.")
    return found


def _array(values: Any) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(f"from_arrays: what is given is no array: {error}.") from error


def _finite(split: str, held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not np.isfinite(held).all():
        what = "rows have" if held.ndim == 2 else "examples have"
        raise UserError(f"from_arrays: the {split} {what} numbers that are not finite.")
    return held


def _channels_last(held: np.ndarray[Any, Any]) -> bool:
    return held.shape[3] in (1, 3) and held.shape[1] not in (1, 3)


def _pixels(split: str, held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As uint8, whatever holds them."""
    if held.size and not 0 <= held.min() <= held.max() <= 255:
        raise UserError(
            f"from_arrays: the {split} images have values from {held.min()} to {held.max()}: give whole "
            "numbers from 0 to 255."
        )
    return held.astype(np.uint8, copy=False)


def _images(split: str, held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[n, H, W], or [n, H, W, 3]."""
    if held.ndim == 3:
        return held
    last, first = held.shape[3] in (1, 3), held.shape[1] in (1, 3)
    if not last and not first:
        raise UserError(
            f"from_arrays: the {split} images are {list(held.shape)}, of which no axis is that of 1 or 3 "
            "channels; for others make a fedrecall.Dataset."
        )
    held = held if last else held.transpose(0, 2, 3, 1)
    return held[..., 0] if held.shape[3] == 1 else held
