"""Tables of images as the hub keeps them, read with Hugging Face ``datasets`` and quietly."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrecall.data.images import decode
from fedrecall.data.rows import Label, Rows, Told
from fedrecall.errors import UserError, nearest


def check_parquet(files: Sequence[Path], *columns: str) -> None:
    """Name the file that is cut short or missing, or that numbers its classes otherwise: the library
    would read the others, and all with the names of the first."""
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
    there = set(files)
    for path in files:
        if part := _PART.fullmatch(path.name):
            start, _, total, end = part.groups()
            for number in range(int(total)):
                other = path.with_name(f"{start}-{number:0{len(total)}d}-of-{total}{end}")
                if other not in there:
                    raise UserError(
                        f"{other} is missing, of which {path.name} is another part: copy it, too."
                    )
    for column in columns:
        named = [(path, names) for path in files if (names := _names(path, column))]
        for path, names in named[1:]:
            if names != named[0][1]:
                what = "its classes" if column == columns[0] else repr(column)
                raise UserError(
                    f"{path} numbers {what} otherwise than {named[0][0]} ({', '.join(names[:5])}, ... and "
                    f"{', '.join(named[0][1][:5])}, ...): write both with the same names, in the same order."
                )


_PART = re.compile(r"(.+)-(\d+)-of-(\d+)(\..+)")


def _names(path: Path, label: str) -> list[str] | None:
    """What a file calls the classes that its label column numbers, if it does."""
    import pyarrow.parquet

    try:
        held = json.loads((pyarrow.parquet.read_schema(path).metadata or {})[b"huggingface"])
        names = held["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, OSError, pyarrow.ArrowException):
        return None  # what is wrong with the file, its reader says
    return [str(name) for name in names]


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
    table: Any,
    source: str,
    label: str,
    image: str,
    size: int,
    channels: int = 0,
    key: str | None = None,
    told: Told | None = None,
) -> Rows:
    """The images and labels of one split of a ``datasets`` table."""
    import datasets

    told = told or Told()
    features = table.features
    pictures = [n for n, f in features.items() if isinstance(f, datasets.Image)]
    column = next((n for n in (image, "image", "img", *pictures) if n in features), None)
    if column is None:
        raise UserError(f"{source} has no column {image!r} of images; {nearest(image, features)}")
    besides = *told.columns, *told.ignoring(list(features))
    lacking = next((name for name in (label, *besides) if name not in features), None)
    if lacking is not None:
        raise UserError(f"{source} has no column {lacking!r}; {nearest(lacking, features)}")
    if isinstance(features[column], datasets.Image):
        table = table.cast_column(column, datasets.Image(decode=False))
    keyed = [key] if key and key in features else []
    wanted = list(dict.fromkeys([column, label, *keyed, *told.columns]))
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
            rows.key.extend(batch[k][i] for k in keyed)
            told.note(rows, {n: _named(features[n], batch[n][i]) for n in told.columns}, where)
    return rows


def _named(feature: Any, value: Any) -> Any:
    """What a number of a column that has names stands for."""
    names = getattr(feature, "names", None)
    if not names or value is None:
        return value
    return names[value] if 0 <= value < len(names) else None


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


def reach(hub_id: str) -> None:
    """Ask the hub one question with a time limit, for the library would go on asking for minutes."""
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:  # else what the library has downloaded before still works
        HfApi().dataset_info(hub_id, timeout=10)
