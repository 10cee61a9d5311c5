"""`fedrecall predict`: what a run's model says of images or rows that it has not seen."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.progress import track
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedrecall import files
from fedrecall.cli.app import app, err, out
from fedrecall.data import folders
from fedrecall.data.datasets import DATASETS
from fedrecall.data.images import decode
from fedrecall.errors import Missing, UserError, printable
from fedrecall.models.trained import CHUNK, Inputs, Trained
from fedrecall.reports.runs import Run

SHOWN = 40
"""Rows of the table on the screen."""


@app.command("predict")
def predict_command(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    examples: Annotated[
        list[Path], typer.Argument(help="Image files, or CSV files of a table.", show_default=False)
    ],
    *,
    round_: Annotated[
        int | None,
        typer.Option(
            "--round",
            help="The model of this round; the last two are kept, and those of --keep-every.",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        int | None,
        typer.Option(
            "--client",
            help="This client's model, where clients have layers of their own.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        Path | None,
        typer.Option(
            "--memory",
            help="At that client's node of a federation: the folder that the node's memory names.",
            show_default=False,
        ),
    ] = None,
    csv_: Annotated[
        Path | None,
        typer.Option("--csv", help="Write every class's probability here.", show_default=False),
    ] = None,
    resize: Annotated[
        bool,
        typer.Option(
            "--resize",
            help="Resize images to the model's size. Those of a data set that was resized always are; of a "
            "federation's nodes the run folder does not tell.",
        ),
    ] = False,
) -> None:
    """Say which class a trained model takes images, or rows of a table, for.

    Example: fedrecall predict runs/fedntd photo.png
    """
    opened = Run(run)
    if csv_ is not None:
        files.check_writable(csv_)
    trained = opened.trained(round_, client, memory)
    was = _side(opened.config["dataset"])
    names, found = [], []
    chunks = [examples[i : i + CHUNK] for i in range(0, len(examples), CHUNK)]
    for chunk in track(chunks, "predicting", console=err, transient=True, disable=len(chunks) < 2):
        if trained.inputs.image:
            names += [str(path) for path in chunk]
            found.append(trained.probabilities(_images(chunk, trained.inputs, resize or bool(was))))
        else:
            for path in chunk:
                where, rows = _rows(path, trained)
                names += where
                found.append(trained.probabilities(rows))
    shares = torch.cat(found)
    out.print(_table(names, shares, trained.inputs))
    if csv_ is not None:
        with files.placing(csv_):
            files.write(
                csv_, _written(names, shares, trained.inputs).encode(errors="replace")
            )  # names of files
        out.print(f"probabilities: {csv_}", markup=False)


def _side(dataset: Mapping[str, Any]) -> int:
    """What images were resized to; 0: they were not, or by somebody's own data set, which may be gone."""
    name = dataset["name"]
    own = getattr(DATASETS.cls(name), "size", 0) if name in DATASETS else 0
    return int(dataset.get("size", own))


def _images(paths: Sequence[Path], inputs: Inputs, resized: bool) -> Tensor:
    channels, height, width = inputs.shape
    if resized and height != width:
        raise UserError(
            f"the model was trained on {width}x{height} pixels, and images are made square alone."
        )
    pixels = np.empty((len(paths), *inputs.shape), np.uint8)
    for place, path in enumerate(paths):
        image = decode(_content(path), str(path), height if resized else 0, channels)
        if image.shape[:2] != (height, width):
            there = f"{image.shape[1]}x{image.shape[0]}"
            remedy = "; --resize makes it so" if height == width else ""
            raise UserError(
                f"{path} is {there} pixels, but the model was trained on {width}x{height}{remedy}."
            )
        pixels[place] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    return torch.from_numpy(pixels)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Missing(f"there is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _rows(path: Path, trained: Trained) -> tuple[list[str], Tensor]:
    if path.suffix.lower() != ".csv":
        raise UserError(f"the model was trained on a table: give CSV files, not {path}.")
    where, rows = list[str](), list[np.ndarray]()
    for header, line, cells, decimals in folders.csv_lines(path):
        wanted = trained.inputs.columns or header
        missing = next((column for column in wanted if column not in header), None)
        if missing is not None:
            raise UserError(f"{path} has no column {missing!r}, which the model was trained on.")
        values = dict(zip(header, cells, strict=True))
        where.append(f"{path} line {line}")
        rows.append(folders.numbers({column: values[column] for column in wanted}, where[-1], decimals))
    if not rows:
        raise UserError(f"{path} has no rows.")
    return where, torch.from_numpy(np.stack(rows))


def _table(names: Sequence[str], shares: Tensor, inputs: Inputs) -> Table:
    shown = Table("example", "class", "probability", box=None, pad_edge=False)
    for name, share in zip(names[:SHOWN], shares, strict=False):
        best = int(share.argmax())
        named = inputs.class_names[best]
        shown.add_row(Text(printable(name)), Text(printable(named)), f"{float(share[best]):.1%}")
    if len(names) > SHOWN:
        shown.add_row(f"... and {len(names) - SHOWN} more: see them with --csv FILE")
    return shown


def _written(names: Sequence[str], shares: Tensor, inputs: Inputs) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["example", "class", *inputs.class_names])
    for name, share in zip(names, shares, strict=True):
        best = inputs.class_names[int(share.argmax())]
        writer.writerow([name, best, *(f"{p:.6f}" for p in share.tolist())])
    return text.getvalue()
