"""`fedrecall list papers` and `show paper`: which cells of the papers have been measured, and on what."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import quote
from string import ascii_lowercase
from typing import Any

from rich.table import Table as Shown
from rich.text import Text

from fedrecall.cli.app import out
from fedrecall.papers import PAPERS, Cell, Paper, Table, load_paper, table
from fedrecall.papers.paper import Variant
from fedrecall.papers.results import Outcome, Results, committed
from fedrecall.papers.verdicts import NOT_RUN, PARTIAL, STAND_IN_ALONE, best, guests, judge, tried

RUNS, RESULTS = Path("runs/reproduction"), "results"
"""Where `reproduce` keeps run folders, and within it their results."""
FINISHED = "finished"


def overview(papers: Iterable[str] = PAPERS, folders: Sequence[Path] = ()) -> Shown:
    """Every table and figure: which of its cells have been measured, and on what.

    Measured, that is, in these folders: by default those of the project's own results and of `reproduce`.
    """
    from fedrecall.reports.figures import FIGURES

    found = _found(folders)
    shown = Shown("name", "what it is, and which of its cells have been measured", box=None, pad_edge=False)
    shown.columns[0].style, shown.columns[0].no_wrap = "bold", True
    for name in papers:
        paper = load_paper(name)
        for t in paper.tables.values():
            shown.add_row(f"{name}/{t.name}", Text("\n".join([t.title, *_states(paper, t, found)])))
        for figure in FIGURES:
            if figure.startswith(f"{name}/") and figure.partition("/")[2] not in paper.tables:
                title = (FIGURES.cls(figure).__doc__ or "").strip().splitlines()[0]
                shown.add_row(figure, Text(f"{title} (drawn from runs)"))
    return shown


def _found(folders: Sequence[Path]) -> Results:
    return Results(r for folder in folders or (committed(), RUNS / RESULTS) for r in Results.load(folder))


def _states(paper: Paper, t: Table, found: Results) -> list[str]:
    """In lines, which cells are in which state, and on what their runs were made."""
    states: dict[str, list[Cell]] = {FINISHED: [], PARTIAL: [], STAND_IN_ALONE: [], NOT_RUN: []}
    for cell in t.cells:
        states[_state(paper, t, cell, found)].append(cell)
    if len(states.pop(NOT_RUN)) == len(t.cells):
        return [f"none of {len(t.cells)} cells run"]
    lines = [
        f"{len(cells)} of {len(t.cells)} cells {state}: {which(t, cells)}"
        for state, cells in states.items()
        if cells
    ]
    runs = [run for cell in t.cells for _, of in _setups(paper, cell, found) for run in of]
    return [*lines, f"on {' and '.join(_machines(runs))}"]


def _state(paper: Paper, t: Table, cell: Cell, found: Results) -> str:
    """How far a cell is, as the page of results counts it."""
    word = best(paper, t, cell, found)
    return word if word in (PARTIAL, STAND_IN_ALONE, NOT_RUN) else FINISHED


def which(t: Table, cells: Sequence[Cell]) -> str:
    """Cells in words: a column by its name where all its methods are meant."""
    said = []
    for column in t.columns:
        methods = [c.method for c in cells if c.column == column]
        if methods:
            whole = set(t.methods) <= set(methods)
            said.append(column if whole else f"{column} ({', '.join(methods)})")
    return ", ".join(said)


def _setups(paper: Paper, cell: Cell, found: Results) -> list[tuple[Variant | None, list[Outcome]]]:
    """The setups in which a cell has runs, the paper's first, then those with switches."""
    setups = (
        (v, list(found.of(cell.config(variant=v)).values())) for v in (None, *tried(paper, cell, found))
    )
    return [(variant, runs) for variant, runs in setups if runs]


def _machines(runs: Iterable[Outcome]) -> list[str]:
    return sorted({machine for run in runs for machine in run.machines})


def show(name: str) -> None:
    """Print how far each cell of a table is; of a paper, each of its tables; of a figure, what it needs."""
    if "/" not in name:
        paper = load_paper(name)
        say(f"{paper.title}\n{paper.authors}, {paper.venue}")
        out.print(overview([name]))
        say(pointer(name))
    elif only_drawn(name):
        explain_figure(name)
    else:
        t = table(name)
        shown, notes = states(t)
        out.print(shown)
        for note in notes:
            say(note)


def pointer(paper: str = PAPERS[0]) -> str:
    """How to see the cells of a table."""
    first = next(iter(load_paper(paper).tables))
    return f"\nCell by cell, with seeds, rounds and verdicts: fedrecall show paper {paper}/{first}"


def states(t: Table) -> tuple[Shown, list[str]]:
    """The cells of a table that have runs, setup by setup, and what else there is to say of it."""
    paper, found = load_paper(t.paper), _found(())
    name = f"{t.paper}/{t.name}"
    shown = Shown(title=f"{name}: {t.title}", box=None, pad_edge=False, title_justify="left")
    for heading in ("column", "method", "with", "seeds", "rounds", "on", "verdict"):
        shown.add_column(heading, overflow="fold", no_wrap=heading == "column")
    letters: dict[str, str] = {}
    begun = []
    for cell in (*t.cells, *guests(paper, t, found)):
        setups = _setups(paper, cell, found)
        begun += [cell] * bool(setups)
        for variant, runs in setups:
            letter = letters.setdefault(variant.name, ascii_lowercase[len(letters)]) if variant else ""
            shown.add_row(*map(Text, _row(paper, t, cell, found, variant, runs, letter)))
    notes = [f"{letter}: --switch {switch}" for switch, letter in letters.items()]
    if rest := [cell for cell in t.cells if cell not in begun]:
        notes.append(f"not run: {which(t, rest)}")
    part = f"--columns {quote(t.columns[0])} --methods {quote(t.methods[0])} --seeds 1"
    return shown, [
        *notes,
        f"\nPublished beside measured, nothing is run: fedrecall reproduce {name} --seeds 0",
        f"To measure one cell yourself: fedrecall reproduce {name} {part}",
        f"(Without these three options it is all {len(t.cells)} cells, {paper.trials or 3} seeds of each, "
        f"{t.rounds:,} rounds a run.)",
    ]


def _row(
    paper: Paper,
    t: Table,
    cell: Cell,
    found: Results,
    variant: Variant | None,
    runs: Sequence[Outcome],
    letter: str,
) -> list[str]:
    of = cell.settings["rounds"]
    precisions = {run.config.precision for run in runs} - {"float32"}
    verdict = judge(paper, t, cell, t.quantities[0], found, variant)
    failed = f" ({verdict.failed} failed)" if verdict.failed else ""
    done = sorted({min(run.done, of) for run in runs})
    return [
        cell.column,
        cell.method,
        letter,
        ", ".join(str(run.seed) for run in runs),
        str(of) if done == [of] else f"{' to '.join(map(str, (done[0], done[-1])[: len(done)]))} of {of}",
        ", ".join([*_machines(runs), *sorted(precisions)]),
        (verdict.text or "measured") + failed,
    ]


def only_drawn(name: str) -> bool:
    """Whether it is a figure that has no runs of its own."""
    paper, _, rest = name.partition("/")
    if rest in load_paper(paper).tables:
        return False  # and nothing that draws is needed, which a machine that only trains may lack
    from fedrecall.reports.figures import FIGURES

    return name in FIGURES.entries


def explain_figure(name: str) -> None:
    """Print what a figure is drawn from, and how that is made."""
    from fedrecall.reports.figures import FIGURES

    figure: Any = FIGURES.cls(name)
    say(f"{name}: {figure.caption}")
    say(f"It is drawn from runs ({figure.needs}). Make them with")
    for command in figure.commands:
        say(f"  {command}")
    say(f"and draw it with: fedrecall figure {name} RUN ...")


def say(text: str) -> None:
    """Print text as it is."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)
