"""From files to arrays: the hub's tables of images, image folders and CSV, each error in one sentence.

A reader returns every split as images (or rows of numbers) beside labels as they are written in
the source; what they have in common is checked in ``arrays``.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrecall.data.store import Dataset, Split, statistics
from fedrecall.errors import UserError, nearest
from fedrecall.streams import numpy_stream

Pixels = NDArray[np.uint8]
Label = str | int

TRAIN_WORDS = ("train", "training")
TEST_WORDS = ("test", "testing", "eval", "evaluation", "validation", "valid", "val", "dev")
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass
class Rows:
    """One split as it is read: examples in order and their labels."""

    x: list[Pixels] = field(default_factory=list)
    """Images ``[H, W]`` or ``[H, W, 3]``; rows of numbers ``[F]``."""
    y: list[Label] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    """Of each example, for an error message."""
    key: list[Any] = field(default_factory=list)
    """Of each example, what tells whether two are the same."""

    def keep(self, wanted: Iterable[int]) -> Rows:
        """Some of the examples."""
        places = list(wanted)
        return Rows(
            [self.x[i] for i in places],
            [self.y[i] for i in places],
            [self.where[i] for i in places],
            [self.key[i] for i in places] if self.key else [],
        )


@dataclass
class Source:
    """What a reader found."""

    splits: dict[str, Rows]
    """``train`` and perhaps ``test``."""
    names: list[str] | None = None
    """The classes' names when the source lists them and labels are their numbers."""


# Images.


def decode(content: bytes, where: str, size: int = 0, channels: int = 0) -> Pixels:
    """An image's pixels: grey stays ``[H, W]`` unless three channels are asked for."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as opened:
            image: Image.Image = opened
            image.load()
            if image.format in ("JPEG", "MPO"):
                image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise UserError(f"{where} has pixels of more than 16 bits, which cannot be used.")
            grey = image.mode in ("1", "L", "LA") if not channels else channels == 1
            image = image.convert("L" if grey else "RGB")
            if size:
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(image)
    except UserError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on a broken file
        raise UserError(f"{where} is not an image that can be decoded: {error}.") from error


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


# From rows to a data set.


def dataset(name: str, found: Source, source: str, held_out: float, seed: int) -> Dataset:
    """Check and join what was read; without a test split hold some of every class out."""
    names = found.names
    train, test = found.splits["train"], found.splits.get("test", Rows())
    if not train.y:
        raise UserError(f"{source} has no training examples.")
    if not test.y:
        train, test = hold_out(train, held_out, seed)
        if not test.y:
            raise UserError(f"{source} has no test split and too few examples to hold some out.")
    class_names, code = _classes(train, source, names)
    tensors = []
    for rows in (train, test):
        for label, where in zip(rows.y, rows.where, strict=True):
            if label not in code:
                raise UserError(f"{where} has the label {label!r}, which {_expected(class_names, names)}.")
        tensors.append(torch.tensor([code[label] for label in rows.y], dtype=torch.int64))
    if train.x[0].dtype == np.uint8:
        grey = all(image.ndim == 2 for rows in (train, test) for image in rows.x)
        height, width = train.x[0].shape[:2]
        shape = (1 if grey else 3, height, width)
        x_train, x_test = (torch.from_numpy(stack(rows, shape)) for rows in (train, test))
        mean, std = statistics(x_train)
    else:
        # In double precision: a column of time stamps would lose its digits as float32.
        wide_train, wide_test = np.stack(train.x).astype(np.float64), np.stack(test.x).astype(np.float64)
        centre, spread = wide_train.mean(0), wide_train.std(0)
        spread[spread == 0] = 1
        x_train, x_test = (
            torch.from_numpy(((wide - centre) / spread).astype(np.float32))
            for wide in (wide_train, wide_test)
        )
        mean, std = torch.zeros(len(centre)), torch.ones(len(centre))
    return Dataset(name, tuple(class_names), Split(x_train, tensors[0]), Split(x_test, tensors[1]), mean, std)


def _classes(train: Rows, source: str, names: list[str] | None) -> tuple[list[str], dict[Label, int]]:
    if names is not None:
        return names, dict(zip(range(len(names)), range(len(names)), strict=True))
    found = sorted(set(train.y), key=lambda label: (isinstance(label, str), label))
    if len(found) < 2:
        raise UserError(f"{source} has only the class {str(found[0])!r}; at least two are needed.")
    return [str(label) for label in found], {label: i for i, label in enumerate(found)}


def _expected(class_names: list[str], names: list[str] | None) -> str:
    if names is not None:
        return f"is not one of the {len(names)} classes 0 to {len(names) - 1}"
    shown = ", ".join(class_names[:10]) + (", ..." if len(class_names) > 10 else "")
    return f"no training example has ({shown})"


def hold_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """(train, test): the same share of every class by a keyed stream, but never its only example."""
    stream = numpy_stream(seed, "hold out")
    places: dict[Label, list[int]] = {}
    for i, label in enumerate(rows.y):
        places.setdefault(label, []).append(i)
    chosen: set[int] = set()
    for label in sorted(places, key=str):
        mine = places[label]
        count = min(max(round(share * len(mine)), 1), len(mine) - 1)
        chosen.update(stream.permutation(mine)[:count].tolist())
    return rows.keep(i for i in range(len(rows.y)) if i not in chosen), rows.keep(sorted(chosen))


# Files.


def walk(folder: Path) -> list[Path]:
    """All files under a folder in a fixed order, hidden ones aside.

    Refuses what could leave the folder (a link to elsewhere) or cannot be written down (a name
    that is not UTF-8).
    """
    top = folder.resolve()
    found: list[Path] = []
    for here, folders, names in os.walk(top):
        folders[:] = sorted(n for n in folders if not n.startswith("."))
        for entry in [*folders, *names]:
            path = Path(here) / entry
            try:
                entry.encode("utf-8")
            except UnicodeEncodeError:
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                raise UserError(f"the file name {shown} is not UTF-8: rename it.") from None
            if path.is_symlink() and not path.resolve().is_relative_to(top):
                raise UserError(f"{path} is a link to a place outside {folder}: copy the file instead.")
        found += [Path(here) / n for n in sorted(names) if not n.startswith(".")]
    return found


def fingerprint_of(folder: Path, files: list[Path]) -> list[tuple[str, int, int]]:
    """What changes when a file does: relative name, size and time of every file."""
    top = folder.resolve()
    stats = [(path, path.stat()) for path in files]
    return [(path.relative_to(top).as_posix(), s.st_size, s.st_mtime_ns) for path, s in stats]


def split_of(relative: Path) -> str | None:
    """``train`` or ``test`` if a folder or the file is named so, as the hub's loader would have it."""
    for part in relative.parts:
        words = re.split(r"[^a-z0-9]+|(?<=[a-z])(?=[0-9])", part.lower())
        if any(w in TRAIN_WORDS for w in words):
            return "train"
        if any(w in TEST_WORDS for w in words):
            return "test"
    return None


def read_folder(folder: Path, files: list[Path], label: str, image: str, size: int) -> Source:
    """A user's folder: parquet or CSV files, or images in a folder per class."""
    for ending, read in ((".parquet", read_parquet), (".csv", read_csv)):
        found = [f for f in files if f.suffix.lower() == ending]
        if found:
            return read(folder, found, label, image, size)
    return read_images(folder, [f for f in files if f.suffix.lower() in _IMAGES], size)


def by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Files for training and, if some are named so, for testing ("test" before "validation")."""
    top = folder.resolve()
    groups: dict[str, list[Path]] = {"train": [], "test": [], "other": []}
    for path in files:
        groups[split_of(path.relative_to(top)) or "other"].append(path)
    if not groups["train"]:
        groups["train"] = groups["other"]
    proper = [p for p in groups["test"] if re.search(r"test", p.relative_to(top).as_posix().lower())]
    return {"train": groups["train"], "test": proper or groups["test"]}


def read_images(folder: Path, files: list[Path], size: int) -> Source:
    """``train/CLASS/*.png`` and ``test/CLASS/*.png``, or ``CLASS/*.png`` alone."""
    if not files:
        raise UserError(f"{folder} has no images in a folder per class, no parquet and no CSV files.")
    top = folder.resolve()
    heads = {path.relative_to(top).parts[0].lower() for path in files if path.parent != top}
    has_splits = bool(heads & set(TRAIN_WORDS))
    splits = {"train": Rows(), "test": Rows()}
    if has_splits:
        tests = sorted(heads & set(TEST_WORDS), key=lambda head: TEST_WORDS.index(head))[:1]
    for path in files:
        parts = path.relative_to(top).parts
        split = "train"
        if has_splits:
            head = parts[0].lower()
            if head not in (*TRAIN_WORDS, *tests):
                continue
            split = "train" if head in TRAIN_WORDS else "test"
            parts = parts[1:]
        if len(parts) != 2:
            raise UserError(f"{path} does not lie in a folder named after its class, right below {folder}.")
        rows = splits[split]
        rows.x.append(decode(_bytes(path), str(path), size))
        rows.y.append(parts[0])
        rows.where.append(str(path))
    return Source(splits)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


# CSV.


def read_csv(folder: Path, files: list[Path], label: str, image: str, size: int) -> Source:
    """A label column beside an image-path column or columns of numbers."""
    groups = by_split(folder, files)
    columns: list[str] = []
    splits = {}
    for split, paths in groups.items():
        rows = splits[split] = Rows()
        for path in paths:
            for header, line, cells in _csv_lines(path):
                if not columns:
                    columns = header
                    if label not in columns:
                        raise UserError(f"{path} has no column {label!r}; {nearest(label, columns)}")
                elif header != columns:
                    raise UserError(f"{path} has the columns {header}, but others have {columns}.")
                where = f"{path} line {line}"
                values = dict(zip(columns, cells, strict=True))
                written = values.pop(label).strip()
                if not written:
                    raise UserError(f"{where} has no {label!r}.")
                rows.y.append(written)
                rows.where.append(where)
                if image in values:
                    rows.x.append(decode(_bytes(_inside(folder, path, values[image])), where, size))
                else:
                    rows.x.append(_numbers(values, where))
    _whole_numbers(splits, label)
    return Source(splits)


def _csv_lines(path: Path) -> Iterator[tuple[list[str], int, list[str]]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None:
                raise UserError(f"{path} is empty.")
            header = [cell.strip() for cell in header]
            if len(set(header)) != len(header):
                raise UserError(f"{path} has two columns of the same name.")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise UserError(
                        f"{path} line {reader.line_num} has {len(cells)} cells, not {len(header)}."
                    )
                yield header, reader.line_num, cells
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason}.") from error
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file: {error}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _inside(folder: Path, table: Path, written: str) -> Path:
    path = table.parent / written
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{table} names {written}, which lies outside {folder}.")
    return path


def _numbers(values: dict[str, str], where: str) -> Any:
    if not values:
        raise UserError(f"{where} has a label and nothing to learn it from.")
    out = np.empty(len(values), np.float64)
    for i, (column, written) in enumerate(values.items()):
        try:
            out[i] = float(written)
        except ValueError:
            out[i] = math.nan
        if not math.isfinite(out[i]):
            raise UserError(f"{where}: {column} = {written!r} is not a finite number.")
    return out


def _whole_numbers(splits: dict[str, Rows], label: str) -> None:
    """Labels that are all whole numbers become so, and sort as such; fractions are not classes."""
    numbers: dict[str, float] = {}
    for rows in splits.values():
        for written in map(str, rows.y):
            try:
                numbers[written] = float(written)
            except ValueError:
                return
    fraction = next((w for w, n in numbers.items() if not math.isfinite(n) or n != int(n)), None)
    if fraction is not None:
        raise UserError(f"the column {label!r} has {fraction}: a label is a class, a whole number or a name.")
    for rows in splits.values():
        rows.y = [int(numbers[str(written)]) for written in rows.y]


# Tables of images, as the hub keeps them.


def read_parquet(folder: Path, files: list[Path], label: str, image: str, size: int) -> Source:
    """A user's parquet files."""
    check_parquet(files)
    named = {split: [str(p) for p in paths] for split, paths in by_split(folder, files).items() if paths}
    with tempfile.TemporaryDirectory() as scratch:

        def use(datasets: Any) -> Source:
            tables = datasets.load_dataset("parquet", data_files=named, cache_dir=scratch)
            splits = {
                split: table_rows(table, f"{folder} ({split})", label, image, size)
                for split, table in tables.items()
            }
            return Source(splits, label_names(tables["train"], label))

        found: Source = hugging_face(use, str(folder))
        return found


def check_parquet(files: Iterable[Path]) -> None:
    """Name the file that is cut short, which the library would not."""
    for path in files:
        try:
            with open(path, "rb") as file:
                head = file.read(4)
                file.seek(-4, os.SEEK_END)
                whole = head == file.read(4) == b"PAR1"
        except OSError:
            whole = False
        if not whole:
            raise UserError(f"{path} is not a whole parquet file: copy it again.")


def hugging_face(use: Callable[[Any], Any], source: str) -> Any:
    """Call into ``datasets``, quietly, with whatever it raises as one sentence."""
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "10")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"{source} has to be decoded first, which needs the package 'datasets'.") from error
    shown = datasets.utils.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        return use(datasets)
    except UserError:
        raise
    except Exception as error:  # its errors share no base class
        cause = error.__cause__ or error
        said = " ".join(str(cause).split())[:300]
        raise UserError(f"{source} cannot be read: {type(cause).__name__}: {said}.") from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def label_names(table: Any, label: str) -> list[str] | None:
    """The names of a label column that has them."""
    names = getattr(table.features.get(label), "names", None)
    return list(names) if names else None


def table_rows(
    table: Any, source: str, label: str, image: str, size: int, channels: int = 0, key: str | None = None
) -> Rows:
    """The images and labels of one split of a ``datasets`` table."""
    import datasets

    features = table.features
    pictures = [n for n, f in features.items() if isinstance(f, datasets.Image)]
    column = next((n for n in (image, "image", "img", *pictures) if n in features), None)
    if column is None:
        raise UserError(f"{source} has no column {image!r} of images; {nearest(image, features)}")
    if label not in features:
        raise UserError(f"{source} has no column {label!r}; {nearest(label, features)}")
    if isinstance(features[column], datasets.Image):
        table = table.cast_column(column, datasets.Image(decode=False))
    wanted = [column, label, *([key] if key and key in features else [])]
    rows = Rows()
    for batch in table.select_columns(wanted).iter(batch_size=512):
        for i, (held, written) in enumerate(zip(batch[column], batch[label], strict=True)):
            where = f"{source}, row {len(rows.y)}"
            content = held.get("bytes") if isinstance(held, dict) else held
            if not isinstance(content, bytes):
                raise UserError(f"{where} has no image in the column {column!r}.")
            if isinstance(held, dict) and held.get("path"):
                where += f" ({held['path']})"
            rows.x.append(decode(content, where, size, channels))
            rows.y.append(_label(written, where, label))
            rows.where.append(where)
            if len(wanted) > 2:
                rows.key.append(batch[key][i])
    return rows


def _label(written: Any, where: str, label: str) -> Label:
    if written is None or written == "":
        raise UserError(f"{where} has no {label!r}.")
    if isinstance(written, bool) or not isinstance(written, (str, int, float)):
        raise UserError(f"{where}: {label} = {written!r} is neither a whole number nor a name.")
    if isinstance(written, float):
        if not written.is_integer():
            raise UserError(f"{where}: {label} = {written!r} is neither a whole number nor a name.")
        return int(written)
    return written
