"""A user's own folder: images in a folder per class, CSV or parquet files."""

from __future__ import annotations

import csv
import glob
import hashlib
import math
import os
import re
import stat
import tempfile
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall import files
from fedrecall.data import hub
from fedrecall.data.images import decode
from fedrecall.data.rows import Rows, Source, Told
from fedrecall.errors import UserError, nearest

TRAIN_WORDS = ("train", "training")
TEST_WORDS = ("test", "testing", "eval", "evaluation", "validation", "valid", "val", "dev")
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_OTHER_IMAGES = {".jfif", ".jpe", ".avif", ".heic", ".jp2", ".dcm", ".svg"}


def read_folder(folder: Path, files: list[Path], label: str, image: str, told: Told, size: int) -> Source:
    """A user's folder: parquet or CSV files, or images in a folder per class."""
    for ending, read in ((".parquet", read_parquet), (".csv", read_csv)):
        found = [f for f in files if f.suffix.lower() == ending]
        if found:
            groups = by_split(folder, found)
            _tell_unread(folder, found, [*groups["train"], *groups["test"]])
            return read(folder, found, label, image, told, size)
    made = read_images(folder, [f for f in files if f.suffix.lower() in _IMAGES], told, size)
    seen = [Path(where) for rows in made.splits.values() for where in rows.where]
    _tell_unread(folder, [f for f in files if f.suffix.lower() in _IMAGES | _OTHER_IMAGES], seen)
    return made


def _tell_unread(folder: Path, there: list[Path], read: list[Path]) -> None:
    """Warn of files that look like data and are not read, unless they are named as further test files."""
    top, known = folder.resolve(), set(read)
    left = [path for path in there if path not in known and split_of(path.relative_to(top)) != "test"]
    if left:
        warnings.warn(
            f"{len(left)} of {len(there)} files in {folder} are not read, such as "
            f"{left[0].relative_to(top)}: files and folders for training and testing are named train and "
            "test, images end in "
            f"{', '.join(sorted(_IMAGES))}.",
            RuntimeWarning,
        )


def by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Files for training and, if some are named so, for testing ("test" before "validation")."""
    top = folder.resolve()
    groups: dict[str, list[Path]] = {"train": [], "test": [], "other": []}
    for path in files:
        groups[split_of(path.relative_to(top)) or "other"].append(path)
    if not groups["train"]:
        groups["train"] = groups["other"]
    if not groups["train"] and groups["test"]:
        raise _for_testing_alone(folder, groups["test"][0].relative_to(top))
    proper = [p for p in groups["test"] if not words(p.relative_to(top)).isdisjoint(TEST_WORDS[:2])]
    return {"train": groups["train"], "test": proper or groups["test"]}


def read_images(folder: Path, files: list[Path], told: Told, size: int) -> Source:
    """``train/CLASS/*.png`` and ``test/CLASS/*.png``, or ``CLASS/*.png`` alone; where origins are asked for,
    ``ORIGIN/CLASS`` in the place of ``CLASS``."""
    if not files:
        raise UserError(f"{folder} has no images in a folder per class, no parquet and no CSV files.")
    if told.ignored:
        raise UserError(f"{folder} has images in folders, and no columns to ignore: leave out ignore.")
    if len(told.columns) > 1:
        raise UserError(
            f"{folder} has images in folders, of which one alone is above that of the class: give origin and "
            "undivided the same name, or list the images in a CSV file."
        )
    depth = 2 + len(told.columns)
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
        if len(parts) == depth + 1 and not has_splits and heads <= set(TEST_WORDS):
            raise _for_testing_alone(folder, path.relative_to(top))
        if len(parts) != depth:
            above = f"in one named after its {told.columns[0]}, " if told.columns else ""
            raise UserError(
                f"{path} does not lie in a folder named after its class, {above}right below {folder}."
            )
        rows = splits[split]
        told.note(rows, dict.fromkeys(told.columns, parts[0]), str(path))
        rows.x.append(decode(_bytes(path), str(path), size))
        rows.y.append(unicodedata.normalize("NFC", parts[-2]))  # é may be one sign or two
        rows.where.append(str(path))
    return Source(splits)


def _for_testing_alone(folder: Path, name: Path) -> UserError:
    return UserError(f"{folder} has no file to train on: {name} is named as one for testing. Rename it.")


def _bytes(path: Path, where: str = "") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        named = f"{where} names {path}, which" if where else f"{path}"
        raise UserError(f"{named} cannot be read: {error.strerror}.") from error


def read_parquet(folder: Path, files: list[Path], label: str, image: str, told: Told, size: int) -> Source:
    """A user's parquet files."""
    hub.check_parquet(files, label, *told.columns)
    splits = by_split(folder, files)
    named = {split: [glob.escape(str(p)) for p in paths] for split, paths in splits.items() if paths}
    with tempfile.TemporaryDirectory() as scratch:

        def use(datasets: Any) -> Source:
            tables = datasets.load_dataset("parquet", data_files=named, cache_dir=scratch)
            splits = {
                split: hub.table_rows(table, f"{folder} ({split})", label, image, size, told=told)
                for split, table in tables.items()
            }
            return Source(splits, hub.label_names(tables["train"], label))

        found: Source = hub.hugging_face(use, str(folder))
        return found


def read_csv(folder: Path, files: list[Path], label: str, image: str, told: Told, size: int) -> Source:
    """A label column beside an image-path column or columns of numbers.

    A file that is itself named for neither training nor testing may list images in folders that are.
    """
    groups, top = by_split(folder, files), folder.resolve()
    columns: list[str] = []
    splits: dict[str, Rows] = {}
    for split, paths in groups.items():
        splits.setdefault(split, Rows())
        for path in paths:
            listing = split_of(path.relative_to(top)) is None
            for header, line, cells, decimals in csv_lines(path):
                if not columns:
                    columns = header
                    besides = *told.columns, *told.ignoring(columns)
                    pictured = image in columns and image not in told.ignoring(columns)
                    lacking = next((n for n in (label, *besides) if n not in columns), None)
                    if lacking is not None:
                        raise UserError(f"{path} has no column {lacking!r}; {nearest(lacking, columns)}")
                elif header != columns:
                    raise UserError(f"{path} has the columns {header}, but others have {columns}.")
                where = f"{path} line {line}"
                values = dict(zip(columns, cells, strict=True))
                written = values.pop(label).strip()
                if not written:
                    raise UserError(f"{where} has no {label!r}.")
                picture = values.get(image, "")
                part = (pictured and listing and _part_of(top, path, picture)) or split
                rows = splits.setdefault(part, Rows())
                rows.y.append(decimals.of_label(written))
                rows.where.append(where)
                told.note(rows, values, where)
                for name in besides:
                    values.pop(name, None)
                if pictured:
                    rows.x.append(decode(_bytes(_inside(folder, path, picture), where), where, size))
                else:
                    rows.x.append(
                        numbers(values, where, decimals, "; ignore=COLUMN+COLUMN leaves columns out")
                    )
    splits = _for_testing(folder, splits)
    _whole_numbers(splits, label)
    left = told.ignoring(columns)
    table = image not in columns or image in left
    features = tuple(c for c in columns if c not in (label, *told.columns, *left)) if table else ()
    return Source(splits, features=features)


def _part_of(top: Path, table: Path, written: str) -> str | None:
    """``train``, ``test`` or ``validation`` if the image lies in a folder that is named so."""
    above = Path(os.path.normpath(table.parent / written)).parent
    if not above.is_relative_to(top):
        return None
    found = split_of(above.relative_to(top))
    validates = found == "test" and words(above.relative_to(top)).isdisjoint(TEST_WORDS[:2])
    return "validation" if validates else found


def _for_testing(folder: Path, splits: dict[str, Rows]) -> dict[str, Rows]:
    """The rows for training and for testing: those for validation only if no others are for that."""
    validation = splits.pop("validation", Rows())
    if validation.y and splits["test"].y:
        warnings.warn(
            f"{len(validation.y)} images that are listed in {folder} lie in folders for validation, such as "
            f"{validation.where[0]}: there are others for testing, and these are not read.",
            RuntimeWarning,
        )
    elif validation.y:
        splits["test"] = validation
    if splits["test"].y and not splits["train"].y:
        raise UserError(f"{folder} has no image to train on: all that are listed lie in folders for testing.")
    return splits


_DECIMAL = re.compile(r"[+-]?[0-9]*[.,][0-9]+([eE][+-]?[0-9]+)?")


@dataclass
class Decimals:
    """How one file writes decimals: with points, or, if commas do not separate its cells, all with commas."""

    commas: bool
    """Whether they may be commas."""
    seen: dict[str, str] = field(default_factory=dict)
    """Where each of the two was seen first."""

    def pointed(self, written: str, where: str) -> str:
        """A number with a point, or UserError where the file has both: 1.234 may be a thousand there."""
        if not self.commas or not _DECIMAL.fullmatch(written.strip()):
            return written
        self.seen.setdefault("," if "," in written else ".", f"{where} ({written.strip()})")
        if len(self.seen) == 2:
            raise UserError(
                f"{self.seen[',']} has a decimal comma and {self.seen['.']} a point: write all numbers of a "
                "file alike, and no points between thousands."
            )
        return written.replace(",", ".")

    def of_label(self, written: str) -> str:
        """A label, with a point if it is a number: names, and codes such as 250.0, may have either."""
        return written.replace(",", ".") if self.commas and _DECIMAL.fullmatch(written) else written


def _separator(line: str, path: Path) -> str:
    """What separates the cells of a file with this first line: without a comma semicolons or tabs may.

    Spreadsheets write these where the comma is for decimals.
    """
    bare = re.sub('"[^"]*"', "", line)
    found = [mark for mark in ";\t" if mark in bare and "," not in bare]
    if len(found) == 2:
        raise UserError(
            f"{path} has semicolons and tabs in its first line: separate all cells by one of them."
        )
    return found[0] if found else ","


def csv_lines(path: Path) -> Iterator[tuple[list[str], int, list[str], Decimals]]:
    """Of every line after the header: the header, the line's number, its cells, how decimals are written."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            separator = _separator(file.readline(), path)
            file.seek(0)
            reader, decimals = csv.reader(file, strict=True, delimiter=separator), Decimals(separator != ",")
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
                yield header, reader.line_num, cells, decimals
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason}.") from error
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file: {error}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _inside(folder: Path, table: Path, written: str) -> Path:
    path = table.parent / written
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # links in a circle, a null character
        raise UserError(f"{table} names {written!r}, which is no file: {error}.") from error
    if not inside:
        raise UserError(f"{table} names {written!r}, which lies outside {folder}.")
    plain = Path(os.path.normpath(path))  # with links, which `walk` sees, as they are written
    plain = plain if plain.is_relative_to(folder.resolve()) else path.resolve()
    if any(part.startswith(".") for part in plain.relative_to(folder.resolve()).parts):
        raise UserError(
            f"{table} names {written!r}, which is hidden: it would not be noticed when it changes. Rename it."
        )
    return path


def numbers(values: dict[str, str], where: str, decimals: Decimals, remedy: str = "") -> Any:
    """The columns' values as numbers."""
    if not values:
        raise UserError(f"{where} has a label and nothing to learn it from.")
    out = np.empty(len(values), np.float64)
    for i, (column, written) in enumerate(values.items()):
        number = decimals.pointed(written, f"{where}: {column}")
        try:
            out[i] = float(number) if "_" not in written else math.nan  # 1_0 is 10 in Python alone
        except ValueError:
            out[i] = math.nan
        if not math.isfinite(out[i]):
            raise UserError(f"{where}: {column} = {written!r} is not a finite number{remedy}.")
    return out


def _whole_numbers(splits: dict[str, Rows], label: str) -> None:
    """Labels that are all whole numbers become so, and sort as such; fractions are not classes."""
    numbers: dict[str, int | float] = {}
    for rows in splits.values():
        for written in map(str, rows.y):
            try:
                numbers[written] = _number(written)
            except ValueError:
                return
    if any(re.match("[+-]?0[0-9]", written) for written in numbers):
        return  # codes such as 01, which are called so elsewhere, too
    fraction = next((w for w, n in numbers.items() if isinstance(n, float) and not n.is_integer()), None)
    if fraction is not None:
        raise UserError(f"the column {label!r} has {fraction}: a label is a class, a whole number or a name.")
    for rows in splits.values():
        rows.y = [int(numbers[str(written)]) for written in rows.y]


def _number(written: str) -> int | float:
    """The number that is written; whole ones exactly, however large. None is written as 1_000."""
    if "_" in written:
        raise ValueError
    try:
        return int(written)
    except ValueError:
        number = float(written)
        if abs(number) >= 2**53:  # from here on others are the same number
            raise
        return number


# Files.


def walk(folder: Path) -> list[Path]:
    """All files under a folder in a fixed order, hidden ones aside.

    Refuses what could leave the folder (a link to elsewhere), cannot be written down (a name
    that is not UTF-8), is no file to read (a pipe, which nobody may ever write to) or hides files (a
    folder that may not be listed).
    """
    top = folder.resolve()
    found: list[Path] = []
    for here, folders, names in os.walk(top, onerror=_unlisted):
        folders[:] = sorted(n for n in folders if not n.startswith("."))
        for entry in [*folders, *names]:
            path = Path(here) / entry
            try:
                entry.encode("utf-8")
            except UnicodeEncodeError:
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                raise UserError(f"the file name {shown} is not UTF-8: rename it.") from None
            if os.path.islink(path):
                try:
                    aim = path.resolve()
                except (OSError, RuntimeError):  # links in a circle
                    raise UserError(f"{path} is a link that leads back to itself: take it away.") from None
                if not aim.is_relative_to(top):
                    raise UserError(f"{path} is a link to a place outside {folder}: copy the file instead.")
                if not files.found(aim, stat.S_ISREG):
                    raise UserError(f"{path} is a link, but not to a file: copy what it stands for instead.")
        found += [Path(here) / n for n in sorted(names) if not n.startswith(".")]
    special = next((path for path in found if not files.found(path, stat.S_ISREG)), None)
    if special is not None:
        raise UserError(f"{special} is neither a file nor a folder: take it away.")
    return found


def _unlisted(error: OSError) -> None:
    raise UserError(
        f"{error.filename} cannot be listed: {error.strerror}. Allow it to be read, or take it away."
    ) from error


def fingerprint_of(folder: Path, files: list[Path]) -> list[tuple[str, int, int, int]]:
    """What changes when a file does: relative name, size and times of every file; that of the last change
    as well, since archives may bring back the other."""
    top = folder.resolve()
    stats = [(path, path.stat()) for path in files]
    return [(path.relative_to(top).as_posix(), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats]


def contents_of(folder: Path, files: list[Path]) -> list[tuple[str, str]]:
    """What changes when a file holds something else: its relative name and a digest, for which it is read."""
    top, found = folder.resolve(), []
    for path in files:
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "blake2b").hexdigest()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        found.append((path.relative_to(top).as_posix(), digest))
    return found


def split_of(relative: Path) -> str | None:
    """``train`` or ``test`` if a folder or the file is named so, as the hub's loader would have it."""
    for part in relative.parts:
        found = words(Path(part))
        if not found.isdisjoint(TRAIN_WORDS):
            return "train"
        if not found.isdisjoint(TEST_WORDS):
            return "test"
    return None


def words(path: Path) -> set[str]:
    """What a path's names are made of, in small letters."""
    return set(re.split(r"[^a-z0-9]+|(?<=[a-z])(?=[0-9])", path.as_posix().lower()))
