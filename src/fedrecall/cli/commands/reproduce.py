"""`fedrecall reproduce`: a paper's table or figure, published beside measured."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table as Shown
from rich.text import Text

from fedrecall.cli import progress
from fedrecall.cli.app import app, out
from fedrecall.cli.options import DataRoot
from fedrecall.cli.papers import RESULTS, RUNS, explain_figure, only_drawn, say, which
from fedrecall.errors import UserError
from fedrecall.papers import Cell, Paper, Table, load_paper, table
from fedrecall.papers.paper import Variant
from fedrecall.papers.quantities import QUANTITIES
from fedrecall.papers.reproduction import (
    DRAWN,
    LeftOut,
    Plan,
    adopt,
    carry_out,
    check_code,
    folder_of,
    plan,
)
from fedrecall.papers.results import Results, codes, committed, of_run, path_of
from fedrecall.papers.verdicts import (
    NOT_RUN,
    REPRODUCED,
    Verdict,
    closest,
    difference_text,
    gain,
    judge,
    measured_text,
    published_text,
    readings,
    tried,
    unpaired,
)
from fedrecall.records import RunFolder

SETTING = re.compile(r"\w+=|[-+.\d]+(e-?\d+)?$")
"""What follows a comma within an algorithm's settings: a name with its value, or a number in its place."""

ResultsFolder = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Where results are kept, one small file a run (default: `results` in --out). Only what is there "
        "counts as done; what the project has measured is printed below it, and said to be that.",
        show_default=False,
    ),
]


@app.command("reproduce")
def reproduce_command(
    name: Annotated[str, typer.Argument(help="A table or figure: fedntd/table1, fedcad/fig1, ...")],
    *,
    columns: Annotated[
        str | None, typer.Option(help="Only these columns, with commas between.", show_default=False)
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Only these methods, with commas between. Any other algorithm, yours too, may stand among "
            "them: it is played in the same setup.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seeds 0, 1, ... of each cell, the first of all cells first; 0: run nothing (default: the "
            "paper's trials, else 3).",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Stop earlier than the paper.", show_default=False)
    ] = None,
    switch: Annotated[
        str | None,
        typer.Option(
            help="Another reading of what the paper leaves open, by name; several with + between.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="Where clients are trained.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers of the backend.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "float32",
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Rounds from one checkpoint to the next.")] = 1,
    out_: Annotated[
        Path, typer.Option("--out", help="Where run folders are; those there are resumed.")
    ] = RUNS,
    results: ResultsFolder = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Take this run folder's rounds as a result, finished or not; run nothing."
        ),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Run a paper's table in exactly its setup, and print published beside measured.

    What is done is skipped, what was begun is resumed. Example: fedrecall reproduce fedntd/table1
    --columns cifar10/shard2 --methods fedavg,fedntd --seeds 3
    One of yours beside them: --methods fedavg,fedntd,mine.py:Mine:margin=0.5
    """
    if name.partition("/")[2] and only_drawn(name):
        explain_figure(name)
        return
    chosen = table(name)
    paper = load_paper(chosen.paper)
    cells = chosen.choose(_split(columns), named_methods(methods, chosen))
    variant = paper.variant(switch) if switch is not None else None
    if variant is not None:
        cells = [c for c in cells if c.changed_by(variant)]
        if not cells:
            raise UserError(f"the switch {variant.name} changes nothing in these cells of {name}.")
    seeds = seeds if seeds is not None else paper.trials or 3
    results = results or out_ / RESULTS
    if from_:
        _adopt(chosen, cells, from_, results, out_)
        return
    changes: dict[str, Any] = {
        "backend": backend,
        "device": device,
        "precision": precision,
        "checkpoint_every": checkpoint_every,
    }
    changes |= {k: v for k, v in (("workers", workers), ("rounds", rounds)) if v is not None}
    for cell in unpaired(chosen, cells, variant):
        say(
            f"{cell.key}: the server holds examples that {chosen.baseline}'s clients hold here, so what is "
            "gained cannot be told from what other data do; `fedrecall compare` deals both the same."
        )
    own = _own(cells)
    known = Results.load(results, own)
    check_code(cells, known, variant)
    plans = plan(chosen, cells, range(seeds), known, out_, variant, **changes)
    if seeds and not plans:
        say("nothing is missing: all of it has been run.")
    for kept in (r for c in cells for r in known.of(c.config(variant=variant)).values() if r.failed):
        say(f"a run failed ({kept.failed}); to try it again, delete {path_of(kept.config, results)}")
    left_out = LeftOut([], [])
    try:
        if plans:
            say(_extent(plans))
            display = progress.Display(out, len(plans))
            left_out = carry_out(plans, results, say, lambda _: progress.shown(display), data_root)
    finally:
        _compare(chosen, cells, results, own, variant)
    for reason in (*left_out.data, *left_out.runs):
        say(f"left out: {reason}")
    if left_out.data and len(left_out.data) == len({str(p.config.dataset) for p in plans}):
        raise UserError("no data set that this needs could be had.")
    if chosen.figure is not None and seeds:
        _draw(chosen, cells, out_, variant, {"precision": precision}, data_root)
    if left_out.runs:
        raise UserError(f"{len(left_out.runs)} of the runs could not be made: {left_out.runs[0]}")


def _extent(plans: Sequence[Plan]) -> str:
    """How much there is to play, and how to ask for less."""
    rounds = sum(p.config.rounds for p in plans)
    runs = f"{len(plans)} runs" if len(plans) > 1 else "1 run"
    return f"{runs}, {rounds:,} rounds at most; --columns, --methods, --seeds and --rounds ask for fewer."


def _compare(
    chosen: Table, cells: list[Cell], folder: Path, own: Mapping[str, str], variant: Variant | None
) -> None:
    """Print published beside measured: by what the folder has, then, apart, by what the project has of it."""
    paper = load_paper(chosen.paper)

    def known(results: Results) -> list[Cell]:
        return [
            c
            for c in cells
            if results.of(c.config(variant=variant)) or (not variant and tried(paper, c, results))
        ]

    mine = Results.load(folder, own)
    kept = committed()
    of_project = Results() if folder.resolve() == kept.resolve() else Results.load(kept, own)
    theirs = known(of_project)
    if theirs and not known(mine):
        say(f"Nothing of this has been run here: there is no result of it in {folder}.")
        theirs = cells
    else:
        _print_comparison(chosen, cells, mine, variant)
    if theirs:
        _print_comparison(chosen, theirs, of_project, variant, "measured by the project, not run here")


def _print_comparison(
    chosen: Table, cells: list[Cell], results: Results, variant: Variant | None, whose: str = ""
) -> None:
    out.print(comparison(chosen, cells, results, variant, whose))
    if variant is None:
        for line in with_switches(chosen, cells, results):
            say(line)


def with_switches(chosen: Table, cells: list[Cell], results: Results) -> list[str]:
    """Which cells that are not reproduced as the paper says are with a switch, or were tried with one."""
    paper = load_paper(chosen.paper)
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        variant, verdict = _best_reading(paper, chosen, cell, results)
        if variant is not None:
            found.setdefault((verdict.word or "measured", variant.name), []).append(cell)
    order = sorted(found.items(), key=lambda item: item[0][0] != REPRODUCED)
    return [f"{word} with --switch {name}: {which(chosen, own)}" for (word, name), own in order]


def _best_reading(
    paper: Paper, chosen: Table, cell: Cell, results: Results
) -> tuple[Variant | None, Verdict]:
    """The nearest of what was played to the end; without any, the first of what was begun."""
    begun = [r for r in readings(paper, chosen, cell, results) if r[1].word != NOT_RUN]
    plain = None, judge(paper, chosen, cell, chosen.quantities[0], results)
    return closest(paper, chosen, cell, results) or next(iter(begun), plain)


def _adopt(chosen: Table, cells: list[Cell], folders: list[Path], results: Path, out_: Path) -> None:
    adopted: dict[str, tuple[Variant | None, list[Cell]]] = {}
    for folder in folders:
        made = adopt(chosen, folder, results, cells)
        found, cell = made.outcome, made.cell
        reading = f" with {made.variant.name}" if made.variant else ""
        rounds = f"{found.done} of {found.config.rounds} rounds in {made.path}"
        say(f"{cell.key}{reading}, seed {found.seed}: {rounds}")
        say(f"to go on with it here, move it to {folder_of(chosen, found.config, out_)}")
        taken = adopted.setdefault(reading, (made.variant, []))[1]
        if cell not in taken:
            taken.append(cell)
    for variant, taken in adopted.values():
        shown = [c for c in cells if c in taken] + [c for c in taken if c not in cells]
        out.print(comparison(chosen, shown, Results.load(results, _own(shown)), variant))


def comparison(
    chosen: Table, cells: list[Cell], results: Results, variant: Variant | None = None, whose: str = ""
) -> Group:
    """Published beside measured, column by column; ``whose``: which results these are, if not one's own."""
    said = [f"({text})" for text in (variant.name if variant else "", whose) if text]
    parts: list[Text | Shown] = [
        Text(" ".join([f"{chosen.paper}/{chosen.name}: {chosen.title}", *said]), "bold")
    ]
    for column in dict.fromkeys(cell.column for cell in cells):
        own = [cell for cell in cells if cell.column == column]
        parts += [Text(), _beside(chosen, column, own, results, variant)]
    runs = [r for cell in cells for r in results.of(cell.config(variant=variant)).values()]
    precisions = sorted({r.config.precision for r in runs})
    if precisions not in ([], ["float32"]):
        parts += [Text(f"\nComputed in {' or '.join(precisions)}, each cell in one.")]
    return Group(*parts)


def _beside(
    chosen: Table, column: str, cells: list[Cell], results: Results, variant: Variant | None
) -> Shown:
    """Published beside measured of one of the table's columns."""
    paper = load_paper(chosen.paper)
    apart = (0, 2 if out.width > 90 else 1, 0, 0)  # so that 80 letters a line have room for all of it
    shown = Shown(title=column, title_justify="left", box=None, pad_edge=False, padding=apart)
    for heading in ("method", "what", "published", "measured", "n", "off by", "in its\nspread", "verdict"):
        words = heading in ("method", "what", "verdict")
        shown.add_column(
            heading, justify="left" if words else "right", overflow="fold", no_wrap=not words, vertical="top"
        )
    for cell in cells:
        for quantity in chosen.quantities:
            v = judge(paper, chosen, cell, quantity, results, variant)
            shown.add_row(
                Text(cell.method),
                QUANTITIES[quantity].label,
                published_text(cell, quantity) or "–",
                measured_text(v, quantity) or "–",
                str(v.measured.summary.n) if v.measured else "–",
                difference_text(v, quantity) or "–",
                {True: "yes", False: "no", None: "–"}[v.within],
                _judged(v, cell.settings["rounds"]) or "–",
            )
        g = gain(chosen, cell, results, variant)
        if g is not None:
            published = "–" if g.published is None else f"{g.published:+.2f}"
            early = "" if g.rounds >= cell.settings["rounds"] else f"at round {g.rounds}"
            gained = f"{g.measured.mean:+.2f}", str(g.measured.n)
            shown.add_row(
                Text(cell.method), f"over {chosen.baseline}", published, *gained, "–", "–", early or "–"
            )
    return shown


def _judged(v: Verdict, rounds: int) -> str:
    """The verdict, with what it is not of."""
    said = v.text
    if v.measured is not None and v.measured.rounds < rounds:
        said += f"{': ' if said else ''}{v.measured.rounds} of {rounds} rounds"
    said += f" ({v.failed} failed)" if v.failed else ""
    said += f" ({v.left_out:,} visits left out)" if v.left_out else ""
    return said.strip()


def _draw(
    chosen: Table,
    cells: list[Cell],
    out_: Path,
    variant: Variant | None,
    how: Mapping[str, Any],
    data_root: Path | None,
) -> None:
    from fedrecall.reports.figures import draw

    folders = [folder_of(chosen, c.config(DRAWN, variant, **how), out_) for c in cells]
    folders = [f for f in folders if RunFolder(f).started and RunFolder(f).metrics()]
    if not folders:
        say(f"no figure: there is no run folder of seed {DRAWN} under {out_}.")
        return
    for folder in folders:
        done = of_run(folder).done
        if done > chosen.rounds:
            say(
                f"no figure: it is of a model of {chosen.rounds} rounds, and {folder} has gone on to {done};"
                " make it in a folder of its own (--out)."
            )
            return
    drawn = draw(str(chosen.figure), folders, out_ / "figures", data_root)
    for note in drawn.notes:
        say(note)
    for path in drawn.files:
        say(f"figure: {path}")


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def _own(cells: list[Cell]) -> dict[str, str]:
    """The classes of somebody's own among the methods, by what results call them."""
    found: dict[str, str] = {}
    for called, place in (item for c in cells for item in codes(c.config().algorithm).items()):
        if found.setdefault(called, place) != place:
            raise UserError(
                f"{found[called]} and {place} are one and the same in results: rename a file or class."
            )
    return found


def named_methods(text: str | None, table: Table) -> list[str] | None:
    """As `_split`, but the settings of an algorithm, which have commas between as well, stay with it."""
    found: list[str] = []
    for part in _split(text) or ():
        if found and ":" in found[-1] and part not in table.methods and SETTING.match(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return None if text is None else found
