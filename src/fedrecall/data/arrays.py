"""A data set from arrays that a program has already: NumPy's, torch's, or lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedrecall.data.rows import Rows, Source, join
from fedrecall.data.store import Dataset
from fedrecall.errors import UserError


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    name: str = "arrays",
    origin: Any = None,
    undivided: Any = None,
    held_out: float = 0.2,
    seed: int = 0,
    standardise: bool = True,
) -> Dataset:
    """A data set of images or rows and their labels.

    Images are whole numbers from 0 to 255, [n, H, W], [n, H, W, C] or [n, C, H, W] with 1 or 3 channels;
    rows are numbers [n, F], moved and scaled by the training split unless ``standardise`` is false. Labels
    are whole numbers or names. Without a test split ``held_out`` of every class is tested on. ``origin`` and
    ``undivided`` say of every training example who or where it is from and what is held out whole, as
    `folder` has them.
    """
    if (x_test is None) != (y_test is None):
        raise UserError("from_arrays: give x_test and y_test, or neither.")
    splits = {"train": _rows("training", x, y, origin, undivided)}
    if x_test is not None:
        splits["test"] = _rows("test", x_test, y_test, None, None)
    shapes = [rows.x[0].shape for rows in splits.values() if rows.x]
    if len(set(shapes)) > 1 and min(map(len, shapes)) == 1:  # of images what is wrong is said below
        raise UserError(
            f"from_arrays: a test example is of shape {list(shapes[1])}, a training example of "
            f"{list(shapes[0])}: give both alike."
        )
    return join(name, Source(splits), name, held_out, seed, standardise)


def _rows(split: str, x: Any, y: Any, origin: Any, unit: Any) -> Rows:
    held = _array(x)
    if held.dtype == np.uint8 and held.ndim in (3, 4):
        held = _images(split, held)
    elif held.ndim == 2 and held.dtype.kind in "fiu":
        held = held.astype(np.float64)
        if not np.isfinite(held).all():
            raise UserError(f"from_arrays: the {split} rows have numbers that are not finite.")
    else:
        raise UserError(
            f"from_arrays: the {split} examples are {held.dtype} of shape {list(held.shape)}; give images as "
            "uint8 of [n, H, W], [n, H, W, C] or [n, C, H, W], and rows as numbers of [n, F]."
        )
    columns = {"labels": _array(y), "origins": _array(origin), "undivided": _array(unit)}
    for what, column in columns.items():
        if column.ndim and column.shape != held.shape[:1]:
            raise UserError(f"from_arrays: {len(held)} {split} examples have {what} of {list(column.shape)}.")
    if columns["labels"].dtype.kind not in "iuU" or not columns["labels"].ndim:
        raise UserError(
            f"from_arrays: the {split} labels are {columns['labels'].dtype}; give whole numbers or names."
        )
    told = [[str(v) for v in columns[what].tolist()] if columns[what].ndim else [] for what in _TOLD]
    where = [f"{split} example {i}" for i in range(len(held))]
    return Rows(list(held), columns["labels"].tolist(), where, [], *told)


_TOLD = ("origins", "undivided")


def _array(values: Any) -> np.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    found = np.asarray(values)
    if found.dtype == object and found.ndim:  # as pandas has its text
        found = np.asarray([str(v) for v in found.reshape(-1)]).reshape(found.shape)
    return found


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
