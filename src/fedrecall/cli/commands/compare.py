"""`fedrecall compare`: several algorithms over the same federation."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedrecall import config as configs
from fedrecall import files
from fedrecall.cli import options, progress
from fedrecall.cli.app import BROKEN, FAILED, NOT_NOW, app, err, out
from fedrecall.cli.options import DataRoot, Set, Settings, gather, several, with_config
from fedrecall.comparison import Comparison, End, Row, combinations, difference
from fedrecall.errors import UserError
from fedrecall.models.networks import MODELS
from fedrecall.reports import tables as written
from fedrecall.reports.statistics import summary

WHOLE_NAME = 24
"""Letters of a name for which a column has room where others would have to go to another table."""
SHORTEST_NAME = 8
"""Letters of a name for which there is room in any case."""


@app.command("compare")
@with_config(without=("algorithm",))
def compare_command(
    algorithms: Annotated[
        list[str],
        typer.Argument(
            help="Algorithms with their settings, such as fedavg fedntd fedprox:mu=0.01.", show_default=False
        ),
    ],
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="A YAML file of settings.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with seeds from --seed upwards.")] = 1,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="Compare them with each of these values of a setting, such as lr=0.01,0.1; of several "
            "--over, with every combination.",
            show_default=False,
        ),
    ] = None,
    set_: Set = None,
    out_: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the run folders; finished and begun runs there are resumed. The same command "
            "may run several times at once: each plays what no other does.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the table's numbers here.")] = None,
    table: options.Table = None,
    data_root: DataRoot = None,
    settings: Settings,
) -> None:
    """Train several algorithms over the same federation and print them side by side.

    A run that diverges, or that an error in an algorithm of your own ends, is shown as failed, and the others
    go on.

    Example: fedrecall compare fedavg fedntd --dataset digits --clients 20 --sample 5 --rounds 20 --seeds 3
    --over partition=iid,lda:0.1 --over lr=0.01,0.1
    """
    base = gather(config, settings, set_)
    settings_ = combinations(map(_axis, over or ()))
    if json is not None:
        files.check_writable(json)
    if table is not None:
        written.check(table)
    made = Comparison(algorithms, base, seeds, settings_, out_, data_root=data_root)
    display = progress.Display(out, len(made.plans))
    try:
        made.play(lambda planned: [progress.shown(display, planned.setting)])
    finally:  # what stops the comparison does not take what was found before
        rows = made.rows
        if json is not None:  # before anything is printed, which may fail
            with files.placing(json):
                files.write_json(json, _numbers(made, settings_))
        if table is not None:
            written.write(table, made.entries)
        _tell(made)
        for name, traceback in made.errors.items():
            err.print(f"{name}:\n{traceback}", markup=False, highlight=False, soft_wrap=True, end="")
    for folder in made.elsewhere:
        said = "is being played by another process; the same command, given again, has its numbers."
        out.print(f"{folder} {said}", markup=False, soft_wrap=True)
    if json is not None:
        out.print(f"numbers: {json}", markup=False)
    if table is not None:
        out.print(f"table: {table}", markup=False)
    if out_ is not None:
        out.print(f"run folders: {out_}", markup=False)
    if made.errors:
        raise typer.Exit(BROKEN)
    if any(r.known("failed") for of in rows.values() for r in of):
        raise typer.Exit(FAILED)
    if made.elsewhere:
        raise typer.Exit(NOT_NOW)


def _axis(given: str) -> tuple[str, list[str], str]:
    """A setting that varies, its values, and how its mistakes are spoken of."""
    said = f"--over {shlex.quote(given)}"
    key, equals, text = given.partition("=")
    (key,) = configs.in_full({key.strip(): None})
    registry = {**configs.REGISTRIES, "model": MODELS}.get(key)
    values = [value for value in several(text, registry.entries if registry else ()) if value]
    if not equals or not key or not values:
        raise UserError(f"{said}: give key=value,value, such as lr=0.01,0.1.")
    return key, values, said


def _tell(made: Comparison) -> None:
    """Print the tables, why runs failed, and what the numbers depend on."""
    found = made.rows
    for setting, rows in found.items():
        if any(map(_played, rows)):
            split = next(p.made.split for p in made.plans if p.setting == setting)
            for shown in tables(rows, made.seeds, setting, out.width, split):
                out.print(shown)
        for r in rows:
            for seed, why in enumerate(r.each("failed"), start=made.plans[0].made.seed):
                if why is not None:
                    at = f", {setting}" if setting else ""
                    out.print(f"{r.name}{at}, seed {seed} failed: {why}", markup=False, soft_wrap=True)
    if any(_played(r) for rows in found.values() for r in rows):
        for note in made.notes:
            out.print(note, markup=False, highlight=False, soft_wrap=True)


def _numbers(made: Comparison, settings: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """What --json holds: rows, or where settings vary the rows of each combination."""
    config = configs.as_dict(made.plans[0].made)
    told = [[_all(r) for r in rows] for rows in made.rows.values()]
    if settings == [{}]:
        return {"config": config, "rows": told[0]}
    varied = [{"over": setting, "rows": rows} for setting, rows in zip(settings, told, strict=True)]
    return {"config": config, "tables": varied}


def _all(r: Row) -> dict[str, Any]:
    """A row, of every number a list over seeds."""
    return {"name": r.name, **{of: r.each(of) for of in End._fields}}


Column = tuple[str, list[str | Text]]
"""A heading, and a cell for each row."""


def tables(rows: Sequence[Row], seeds: int, setting: str, width: int, split: str = "test") -> list[Table]:
    """What came of the comparison: one table, or as many as it takes where letters a line are few."""
    made: list[list[Column]] = [[]]
    for group in _columns(rows, seeds, split):
        if made[-1] and _least_width(rows, made[-1] + group) > width:
            made.append([])
        made[-1] += group
    of = f"last round, mean ± std over {seeds} seeds" if seeds > 1 else "last round, one seed"
    titles = [Text(f"{setting}: {of}" if setting else of), *itertools.repeat(None, len(made) - 1)]
    return [_table(rows, columns, title, width) for columns, title in zip(made, titles, strict=True)]


def _columns(rows: Sequence[Row], seeds: int, split: str) -> list[list[Column]]:
    """Accuracy and forgetting and the paired difference to the first algorithm; clients; cost."""
    first = rows[0]
    ends = {1: "", 2: "\n[both seeds]"}.get(seeds, "\n[95 % interval]")  # of two pairs it is the two values
    of = "" if split == "test" else f"{split}\n"

    def against(what: str, field: str) -> list[Column]:
        told: list[str | Text] = [Text(_against(first, r, seeds, field)) for r in rows]
        return [(f"{what} - {first.name}{ends}", told)] if any(told) else []

    found: list[list[Column]] = [
        [
            (f"{of}accuracy %", [_accuracies(r, seeds) for r in rows]),
            ("forgetting", [_mean(r, seeds, "forgetting", digits=3) for r in rows]),
            *against("accuracy", "accuracy"),
        ]
    ]
    if any(r.known("clients_mean") for r in rows):
        found.append(
            [
                ("clients %", [_mean(r, seeds, "clients_mean", 100) for r in rows]),
                ("worst tenth\nof clients %", [_mean(r, seeds, "worst_tenth", 100) for r in rows]),
                *against("clients", "clients_mean"),
            ]
        )
    found.append(
        [
            ("training s", [_mean(r, seeds, "seconds", digits=1) for r in rows]),
            ("MB down", ["".join(map(progress.megabytes, r.known("bytes_down")[-1:])) for r in rows]),
            ("MB up", ["".join(map(progress.megabytes, r.known("bytes_up")[-1:])) for r in rows]),
        ]
    )
    if any(r.known("epsilon") for r in rows):
        found[-1].append(("epsilon", [_weakest(r, seeds) for r in rows]))
    return found


def _table(rows: Sequence[Row], columns: Sequence[Column], title: Text | None, width: int) -> Table:
    """Names, which may be those of files, have the room that numbers leave."""
    shown = Table(title=title)
    left = max(SHORTEST_NAME, width - _least_width([], columns))
    shown.add_column("algorithm", overflow="fold", width=min(left, _longest(rows)))
    for column in columns:
        shown.add_column(Text(column[0]), justify="right", overflow="fold", width=_room(column))
    for number, r in enumerate(rows):
        shown.add_row(Text(r.name), *(cells[number] for _, cells in columns))
    return shown


def _least_width(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    """Letters a line with which names, up to a length, and numbers are whole; without rows beside names."""
    names = min(WHOLE_NAME, _longest(rows)) if rows else 0
    return names + sum(map(_room, columns)) + 3 * (len(columns) + 1) + 1  # lines and what is beside them


def _longest(rows: Sequence[Row]) -> int:
    return max(len("algorithm"), *(len(r.name) for r in rows))


def _room(column: Column) -> int:
    heading, cells = column
    return max(*map(len, cells), min(WHOLE_NAME, max(map(len, heading.splitlines()))))


def _accuracies(r: Row, seeds: int) -> str:
    failed = len(r.known("failed"))
    left = seeds - failed - len(r.known("accuracy"))
    lacking = (f"{failed} failed" if failed else "", f"{left} not run" if left else "")
    return ", ".join(filter(None, (_mean(r, seeds, "accuracy", 100), *lacking)))


def _played(r: Row) -> bool:
    return bool(r.known("accuracy") or r.known("failed"))


def _mean(r: Row, seeds: int, of: str, scale: float = 1.0, digits: int = 2) -> str:
    known = r.known(of)
    return summary(known).text(scale, digits) + _of_fewer(r, seeds, len(known)) if known else ""


def _weakest(r: Row, seeds: int) -> str:
    """The weakest of the seeds' promises: their mean would promise nothing."""
    both = zip(r.each("epsilon"), r.each("delta"), strict=True)
    promised = [(epsilon, delta) for epsilon, delta in both if epsilon is not None and delta is not None]
    if not promised:
        return "none"
    epsilon, delta = max(promised)
    return f"{epsilon:.2f} at {delta:g}{_of_fewer(r, seeds, len(promised))}"


def _of_fewer(r: Row, seeds: int, count: int) -> str:
    """How many seeds have a number, where that is not all whose runs went through."""
    return f" ({count} of {seeds})" if count < len(r.known("accuracy")) else ""


def _against(first: Row, other: Row, seeds: int, of: str) -> str:
    """Over the seeds whose runs both have one."""
    d = None if other is first else difference(first, other, of)
    if d is None:
        return ""
    interval = "" if d.low is None or d.high is None else f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    values = ": both values" if d.n == 2 else ""
    fewer = f" ({d.n} of {seeds}{values})" if d.n < seeds else ""
    return f"{100 * d.mean:+.2f}{interval}{fewer}"
