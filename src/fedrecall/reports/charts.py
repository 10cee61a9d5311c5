"""Charts as HTML and SVG: drawn here, so that a page needs no script to show them.

Lines are an SVG stretched over a box; everything with a text in it is HTML placed by percentages, so
that letters keep their size on a phone. The table under a chart holds every number that it shows: the
page's script reads those tables for its read-outs and its CSV files, and nothing is said twice.
"""

import base64
import io
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrecall.reports.markup import Html, tag

MOST_POINTS = 400
"""Of one line; longer ones are thinned evenly."""
_DASH = ("", "7 3", "2 3", "9 3 2 3", "14 3", "9 3 2 3 2 3", "2 7")
COLOURS, DASHES = 6, len(_DASH)
"""As many groups as there are dash patterns need no colour to be told apart; as the two numbers have no
divisor in common, only groups as far apart as their product look the same."""


@dataclass(frozen=True)
class Line:
    """One group's values along a chart."""

    group: int
    """Its number, which gives colour, dash pattern and what switches it off."""
    name: str
    x: np.ndarray
    """Where the values stand."""
    mean: np.ndarray
    spread: np.ndarray | None = None
    """Half the height of the band."""
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    """More columns of the table."""


def swatch(group: int) -> Html:
    """A piece of the group's line, for legends."""
    line = tag(
        "line", x1=0, y1=5, x2=28, y2=5, class_=f"line c{group % COLOURS}", stroke_dasharray=dash(group)
    )
    return tag("svg", line, class_="swatch", viewBox="0 0 28 10", aria_hidden="true")


def dash(group: int) -> str | None:
    """The group's dash pattern."""
    return _DASH[group % DASHES] or None


def lines(
    title: str,
    note: str,
    rows: Sequence[Line],
    *,
    identity: str,
    x_name: str = "round",
    own_x: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    unit: str = "",
    digits: int = 2,
) -> Html:
    """Values along rounds (or anything else), a line a group, spread as a band.

    ``own_x``: the lines' values stand at places of their own, so each gets a column for them.
    ``bounds``: what the values cannot leave, though a band may; the picture ends there.
    """
    rows = [r for r in rows if np.isfinite(r.mean).any()]
    if not rows:
        return Html("")
    low_x, high_x = _span(np.concatenate([r.x for r in rows]))
    reach = [_band(r) for r in rows]
    low, high, ticks = _nice(np.concatenate([v for pair in reach for v in pair]).clip(*bounds))
    parts = []
    for tick in ticks:
        y = _place(tick, low, high, 1000, flip=True)
        parts.append(tag("path", class_="grid", d=f"M0 {y}H1000"))
    for r, (bottom, top) in zip(rows, reach, strict=True):
        px = [_place(v, low_x, high_x, 1000) for v in r.x]
        dots = [_place(v, low, high, 1000, flip=True) for v in r.mean]
        shape = [
            tag(
                "path", class_=f"line c{r.group % COLOURS}", stroke_dasharray=dash(r.group), d=_path(px, dots)
            )
        ]
        if r.spread is not None:
            edge = [_place(v, low, high, 1000, flip=True) for v in top]
            back = [_place(v, low, high, 1000, flip=True) for v in bottom]
            shape.insert(0, tag("path", class_=f"band c{r.group % COLOURS}", d=_closed(px, edge, back)))
        parts.append(tag("g", *shape, class_=f"g{r.group}"))
    svg = tag("svg", *parts, viewBox="0 0 1000 1000", preserveAspectRatio="none", aria_hidden="true")
    labels = [
        tag("span", _number(t), class_="y", style=f"bottom:{_place(t, low, high, 100)}%") for t in ticks
    ]
    labels += _x_labels(low_x, high_x)
    plot = tag(
        "div",
        svg,
        *labels,
        tag("span", x_name, class_="axis"),
        class_="plot",
        tabindex=0,
        role="group",
        aria_roledescription="line chart",
        aria_label=f"{title}. Left and right arrow keys read the values out.",
        data_kind="lines",
        data_x=f"{low_x:g} {high_x:g}",
        data_y=f"{low:g} {high:g}",
        data_unit=unit,
    )
    legend = tag("div", *(key(r.group, r.name) for r in rows), class_="legend", aria_hidden="true")
    return figure(title, note, identity, Html(plot + legend), _line_table(rows, x_name, own_x, digits))


def key(group: int, name: str) -> Html:
    """A group's entry in a legend."""
    return tag("span", swatch(group), name, class_=f"key g{group}")


def heat(
    title: str,
    note: str,
    values: np.ndarray,
    *,
    identity: str,
    rows: Sequence[str],
    columns: Sequence[Any],
    row_name: str,
    column_name: str,
    low: float = 0.0,
    high: float = 100.0,
    digits: int = 1,
    unit: str = "",
    group: int | None = None,
    numbers: np.ndarray | None = None,
    square: bool = False,
) -> Html:
    """A matrix as a picture: dark is low, bright is high. ``numbers`` replaces what the table says."""
    shown = values if numbers is None else numbers
    n, m = values.shape
    wordy = max(len(str(c)) for c in columns) > 3
    picture = tag("img", src=_png(values, low, high), alt="", width=m, height=n)
    every_row, every_column = max(1, math.ceil(n / 26)), max(1, math.ceil(m / (20 if square else 10)))
    labels = [
        tag("span", rows[i], class_="y", style=f"top:{100 * (i + 0.5) / n:.2f}%")
        for i in range(0, n, every_row)
    ]
    labels += [
        tag("span", columns[j], class_="x", style=f"left:{100 * (j + 0.5) / m:.2f}%")
        for j in range(0, m, every_column)
    ]
    plot = tag(
        "div",
        picture,
        *labels,
        tag("span", column_name, class_="axis"),
        class_=f"plot heat{' square' if square else ''}{' long' if square and wordy else ''}",
        style=f"--rows:{min(max(n, 4), 60)}",
        tabindex=0,
        role="group",
        aria_roledescription="heat map",
        aria_label=f"{title}. Arrow keys read the values out.",
        data_kind="heat",
        data_unit=unit,
        data_rows=n,
        data_columns=m,
    )
    scale = tag(
        "div",
        tag("span", f"{low:g}{unit}"),
        tag("img", src=_png(np.linspace(0, 1, 64)[None], 0, 1), alt="", class_="ramp"),
        tag("span", f"{high:g}{unit}"),
        class_="scale",
        aria_hidden="true",
    )
    head = [
        [
            tag("th", f"{row_name} \\ {column_name}", scope="col"),
            *(tag("th", c, scope="col") for c in columns),
        ]
    ]
    body = [
        [tag("th", name, scope="row"), *(tag("td", _cell(v, digits)) for v in line)]
        for name, line in zip(rows, shown, strict=True)
    ]
    return figure(title, note, identity, Html(plot + scale), table(head, body), group=group)


def bars(title: str, note: str, values: Sequence[float], *, identity: str, x_name: str, y_name: str) -> Html:
    """A bar for each of many things in a row."""
    _, top, ticks = _nice(np.array([0.0, *values]))
    n = len(values)
    wide = 1000 / n
    gap = wide * 0.12 if n <= 200 else 0
    shapes = [
        tag(
            "rect",
            x=f"{i * wide + gap:.1f}",
            y=f"{1000 - 1000 * v / top:.1f}",
            width=f"{wide - 2 * gap:.1f}",
            height=f"{1000 * v / top:.1f}",
        )
        for i, v in enumerate(values)
    ]
    grid = [tag("path", class_="grid", d=f"M0 {1000 - 1000 * t / top:.1f}H1000") for t in ticks]
    svg = tag("svg", *grid, *shapes, viewBox="0 0 1000 1000", preserveAspectRatio="none", aria_hidden="true")
    labels = [tag("span", _number(t), class_="y", style=f"bottom:{100 * t / top:.2f}%") for t in ticks]
    labels += [
        tag("span", i, class_="x", style=f"left:{100 * (i + 0.5) / n:.2f}%")
        for i in range(0, n, max(1, math.ceil(n / 10)))
    ]
    plot = tag(
        "div",
        svg,
        *labels,
        tag("span", x_name, class_="axis"),
        class_="plot bars",
        tabindex=0,
        role="group",
        aria_roledescription="bar chart",
        aria_label=f"{title}. Left and right arrow keys read the values out.",
        data_kind="bars",
        data_columns=n,
    )
    head = [[tag("th", x_name, scope="col"), tag("th", y_name, scope="col")]]
    body = [[tag("th", i, scope="row"), tag("td", _cell(v, 0))] for i, v in enumerate(values)]
    return figure(title, note, identity, plot, table(head, body))


@dataclass(frozen=True)
class Interval:
    """A difference and how sure one may be of it."""

    group: int
    name: str
    middle: float
    low: float | None
    high: float | None


def intervals(
    title: str, note: str, rows: Sequence[Interval], *, identity: str, x_name: str, numbers: Html
) -> Html:
    """A dot and a whisker each, beside a line at zero."""
    ends = [v for r in rows for v in (r.low, r.middle, r.high, 0.0) if v is not None]
    low, high, ticks = _nice(np.array(ends))
    drawn = []
    for r in rows:
        at = _place(r.middle, low, high, 100)
        inner = [tag("i", class_=f"dot c{r.group % COLOURS}", style=f"left:{at}%")]
        if r.low is not None and r.high is not None:
            a, b = _place(r.low, low, high, 100), _place(r.high, low, high, 100)
            inner.insert(
                0,
                tag(
                    "i",
                    class_=f"whisker c{r.group % COLOURS}",
                    style=f"left:{a}%;width:{float(b) - float(a):.2f}%",
                ),
            )
        zero = tag("i", class_="zero", style=f"left:{_place(0, low, high, 100)}%")
        drawn.append(
            tag(
                "div", tag("span", r.name), tag("div", zero, *inner, class_="track"), class_=f"row g{r.group}"
            )
        )
    axis = [
        tag("span", _number(t, signed=True), style=f"left:{_place(t, low, high, 100)}%", class_="x")
        for t in ticks
    ]
    drawn.append(
        tag(
            "div",
            tag("span", x_name),
            tag("div", *axis, class_="track ends"),
            class_="row",
            aria_hidden="true",
        )
    )
    return figure(
        title,
        note,
        identity,
        tag("div", *drawn, class_="forest", role="img", aria_label=title),
        numbers,
        wide=True,
    )


def figure(
    title: str,
    note: str,
    identity: str,
    drawing: Html,
    numbers: Html,
    *,
    group: int | None = None,
    wide: bool = False,
) -> Html:
    """A chart with its caption and its numbers, folded unless it is as wide as the page."""
    classes = ["chart", *(["wide"] if wide else []), *([] if group is None else [f"g{group}"])]
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", note) if note else None),
        tag("div", drawing),
        tag(
            "details",
            tag("summary", "Numbers"),
            download(identity),
            scroller(numbers),
            class_="numbers",
            open=wide,
        ),
        id=identity,
        class_=" ".join(classes),
    )


def download(identity: str) -> Html:
    """A button that saves the nearest table; it shows itself where there is a script to press it."""
    return tag("button", "Download CSV", type="button", class_="csv", data_name=identity, hidden=True)


def scroller(numbers: Html) -> Html:
    """A table that may be wider than the page."""
    return tag("div", numbers, class_="scroll", tabindex=0, role="region", aria_label="Numbers")


def table(
    head: Iterable[Iterable[Html]], body: Iterable[Iterable[Html]], groups: Iterable[int] | None = None
) -> Html:
    """A table of cells; ``groups``: of each row of the body the one whose switch hides it."""
    classes: Iterable[str | None] = itertools.repeat(None) if groups is None else (f"g{n}" for n in groups)
    return tag(
        "table",
        tag("thead", *(tag("tr", *row) for row in head)),
        tag("tbody", *(tag("tr", *row, class_=own) for row, own in zip(body, classes, strict=False))),
    )


def thin(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Places of at most so many of ``count`` things, evenly spread, the last one always among them."""
    step = max(1, math.ceil(count / most))
    return np.arange(count - 1, -1, -step)[::-1]


def _line_table(rows: Sequence[Line], x_name: str, own_x: bool, digits: int) -> Html:
    head, columns = [], []
    every = np.unique(np.concatenate([r.x for r in rows]))
    height = max(len(r.x) for r in rows) if own_x else len(every)
    if not own_x:  # a row for every x that any group has
        head.append(tag("th", x_name, scope="col", data_r="x"))
        columns.append([tag("th", _plain(v), scope="row") for v in every])
    for r in rows:
        g = {"class_": f"g{r.group}", "data_g": r.group, "scope": "col"}
        found: dict[str, tuple[str, np.ndarray, int]] = {}
        if own_x:
            found["x"] = (f"{r.name}: {x_name}", r.x, digits)
        found["mean"] = (r.name if r.spread is None else f"{r.name}: mean", r.mean, digits)
        if r.spread is not None:
            found["std"] = (f"{r.name}: std", r.spread, digits)
        for name, more in r.extra.items():
            found[name] = (f"{r.name}: {name}", more, digits)
        for role, (name, values, places) in found.items():
            head.append(tag("th", name, data_r=role, **g))
            if own_x:
                cells = list(values)
            else:
                lookup = dict(zip(r.x.tolist(), values.tolist(), strict=True))
                cells = [lookup.get(v, math.nan) for v in every.tolist()]
            cells += [math.nan] * (height - len(cells))
            columns.append([tag("td", _cell(v, places), class_=g["class_"]) for v in cells])
    return table([head], zip(*columns, strict=True))


def _band(r: Line) -> tuple[np.ndarray, np.ndarray]:
    spread = np.zeros_like(r.mean) if r.spread is None else r.spread
    return r.mean - spread, r.mean + spread


def _span(values: np.ndarray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if size < 1e-12:  # nothing but zeros, to rounding
        return -0.5, 0.5
    if high - low <= 1e-9 * size:  # one value, to rounding
        return low - 0.05 * size, high + 0.05 * size
    return low, high


def _nice(values: np.ndarray) -> tuple[float, float, list[float]]:
    """(low, high, ticks): round numbers that hold the values."""
    low, high = _span(values)
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next((f for f in (1, 2, 5) if (high - low) / (f * step) <= 6), 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(k * step, 12) for k in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _x_labels(low: float, high: float) -> list[Html]:
    _, _, ticks = _nice(np.array([low, high]))
    whole = [t for t in ticks if low <= t <= high and (t == round(t) or high - low < 3)]
    return [tag("span", _number(t), class_="x", style=f"left:{_place(t, low, high, 100)}%") for t in whole]


def _place(value: float, low: float, high: float, size: int, flip: bool = False) -> str:
    if not math.isfinite(value):
        return "nan"
    share = (value - low) / (high - low)
    return f"{size * (1 - share if flip else share):.{1 if size >= 1000 else 2}f}".removesuffix(".0")


def _path(xs: Sequence[str], ys: Sequence[str]) -> str:
    """A line through the points, broken where one is missing; a lone point gets a dash of its own."""
    found, open_ = [], False
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y == "nan":
            open_ = False
            continue
        found.append(f"{'L' if open_ else 'M'}{x} {y}")
        if not open_ and (i + 1 == len(ys) or ys[i + 1] == "nan"):
            found.append("h1")
        open_ = True
    return "".join(found)


def _closed(xs: Sequence[str], top: Sequence[str], bottom: Sequence[str]) -> str:
    good = [(x, a, b) for x, a, b in zip(xs, top, bottom, strict=True) if "nan" not in (a, b)]
    there = "L".join(f"{x} {a}" for x, a, _ in good)
    back = "L".join(f"{x} {b}" for x, _, b in reversed(good))
    return f"M{there}L{back}Z" if good else ""


def _cell(value: float, digits: int) -> str:
    if value == 0:
        return "0"  # most cells of a large matrix
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def _plain(value: float) -> str:
    return f"{value:g}" if value != int(value) else str(int(value))


def _number(value: float, signed: bool = False) -> str:
    """A tick's label: short, and in thousands or millions where it is large."""
    size = abs(value)
    for unit, word in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            scale = 1e3 if word == "k" else unit
            return f"{value / scale:{'+' if signed else ''}g}{word}"
    return f"{value:{'+' if signed and value else ''}g}"


def _png(values: np.ndarray, low: float, high: float) -> str:
    """The matrix in viridis, a pixel a cell, as a data: address; what is not a number is grey."""
    from matplotlib import colormaps
    from PIL import Image

    share = np.clip((values - low) / ((high - low) or 1), 0, 1)
    indices = np.where(np.isfinite(values), np.nan_to_num(share) * 254, 255).round().astype(np.uint8)
    image = Image.fromarray(indices, mode="P")
    palette = (colormaps["viridis"](np.linspace(0, 1, 255))[:, :3] * 255).round().astype(np.uint8)
    image.putpalette([*palette.flatten().tolist(), 128, 128, 128])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
