"""What a figure is, and what all of them look like."""

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Page
from matplotlib.ticker import FixedLocator, MaxNLocator

from fedrecall import files
from fedrecall.reports.runs import (
    Group,
    Run,
    arrange,
    data_in_words,
    failures,
    left_out,
    unfinished,
    validated,
)

Data = dict[str, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart with every common colour vision."""
DASHES = ("-", "--", "-.", ":")
CLASSES = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#117733",
    "#999933",
    "#DDCC77",
    "#CC6677",
    "#882255",
    "#AA4499",
    "#888888",
)
"""Tol's muted scheme, for up to ten classes."""
SHARES = "viridis"
COUNTED = ("round", "client", "client in sequence", "local epoch")
"""Labels of axes that have no values between whole numbers."""
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
}


class Drawn(NamedTuple):
    """What came of drawing a figure."""

    name: str
    caption: str
    files: list[Path]
    """The PNG, the PDF, and the numbers as JSON."""
    data: Data
    """The numbers that were drawn."""
    notes: list[str]
    """Sentences about runs that are not finished or were left out; also in `data`, if there are any."""


@dataclass(frozen=True)
class Figure(ABC):
    """One recipe: which runs it needs, the commands that make them, and how they are drawn."""

    caption: ClassVar[str]
    """What it shows."""
    needs: ClassVar[str]
    """Which runs it is drawn from."""
    commands: ClassVar[tuple[str, ...]]
    """Commands that make those runs as the paper has them; [a|b] stands for one run each."""

    @abstractmethod
    def plot(self, runs: Sequence[Run]) -> tuple[Page, Data]:
        """The page and the numbers on it."""


def save(name: str, figure: Figure, runs: Sequence[Run], out: Path, dpi: int = 150) -> Drawn:
    """Draw into ``out`` as PNG, PDF and JSON."""
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc does not change what a figure looks like
        mpl.rcParams.update(STYLE)
        groups = arrange(runs)
        told = failures(runs)
        out_of = [run for group in groups for run in (*(run for run, _ in group.left_out), *group.failed)]
        runs = [run for run in runs if run not in out_of]
        page, data = figure.plot(runs)
        for axes in page.axes:
            if axes.get_xlabel() in COUNTED and not isinstance(axes.xaxis.get_major_locator(), FixedLocator):
                axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        notes = [f"{said}." for said in (*told, *unfinished(runs), *validated(runs), *left_out(groups))]
        data = plain(data | {"notes": notes} if notes else data)
        stem = out / name.replace("/", "-").replace(":", "-")
        paths = []
        for kind in ("png", "pdf"):
            content = io.BytesIO()
            meta = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            page.savefig(content, format=kind, dpi=dpi, metadata=meta)
            paths.append(stem.with_name(f"{stem.name}.{kind}"))
            with files.placing(paths[-1]):
                files.write(paths[-1], content.getvalue())
    paths.append(stem.with_name(f"{stem.name}.json"))
    with files.placing(paths[-1]):
        files.write_json(paths[-1], data)
    return Drawn(name, figure.caption, paths, data, notes)


def by_dataset(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """The runs of every data set, arranged by themselves: labels say what differs within one."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(data_in_words(run.complete["dataset"]), []).append(run)
    return {name: arrange(own) for name, own in members.items()}


def plain(value: Any) -> Any:
    """Numbers and lists that JSON can hold; what is not a number is null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (np.floating, float)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def page(
    rows: int, columns: int, width: float = 2.4, height: float = 1.9, share: bool = False
) -> tuple[Page, np.ndarray]:
    """A page and its axes, [rows, columns]; ``share``: one scale of x in a column and of y in a row."""
    made = Page(figsize=(width * columns + 0.3, height * rows + 0.3))
    sides = {"sharex": "col", "sharey": "row"} if share else {}
    return made, made.subplots(rows, columns, squeeze=False, **sides)  # type: ignore[call-overload]


def colours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a dash for every name, in the order of their first occurrence."""
    kinds = list(dict.fromkeys(names))
    n = len(COLOURS)
    return {name: (COLOURS[i % n], DASHES[i // n % len(DASHES)]) for i, name in enumerate(kinds)}


def class_colours(count: int) -> list[Any]:
    """One colour a class."""
    if count <= len(CLASSES):
        return list(CLASSES[:count])
    return [mpl.colormaps["turbo"](i / (count - 1)) for i in range(count)]


def legend_below(made: Page, *panels: Axes) -> None:
    """One legend for the whole page, with all that any of the panels shows."""
    shown: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    if handles := list(shown.values()):
        labels = list(shown)
        room = int(made.get_figwidth() / (0.6 + 0.06 * max(map(len, labels))))
        made.legend(handles, labels, loc="outside lower center", ncols=max(1, min(room, len(handles))))


def band(
    axes: Axes, x: Any, values: np.ndarray, label: str | None, colour: str, dash: str = "-", **more: Any
) -> None:
    """The mean over the rows of ``values``, and one standard deviation around it if there are several."""
    values = np.asarray(values, dtype=float)
    mean = values.mean(0)
    axes.plot(x, mean, color=colour, linestyle=dash, label=label, **more)
    if len(values) > 1:
        std = values.std(0, ddof=1)
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)


def heat(axes: Axes, values: np.ndarray, x: Any = None, **options: Any) -> Any:
    """A matrix as colours; its columns are at ``x`` (rounds), each as wide as to halfway to the next."""
    values = np.asarray(values, dtype=float)
    axes.grid(visible=False)
    options = {"cmap": SHARES, **options}
    if x is None:
        return axes.imshow(values, **{"aspect": "auto", "interpolation": "nearest", **options})
    x = np.asarray(x, dtype=float)
    half = np.diff(x) / 2 if len(x) > 1 else np.array([0.5])
    edges = np.array([x[0] - half[0], *(x[:-1] + half[: len(x) - 1]), x[-1] + half[-1]])
    rows = np.arange(values.shape[0] + 1) - 0.5
    image = axes.pcolormesh(edges, rows, values, rasterized=True, **options)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(rows[-1], rows[0]))
    return image


def short(text: str, width: int = 34) -> str:
    """A title that fits over a small panel."""
    return text if len(text) <= width else text[: width - 1] + "…"
