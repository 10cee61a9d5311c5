"""`fedrecall reproduce`: a paper's table or figure, published beside measured; `fedrecall list papers`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Shown
from rich.text import Text

from fedrecall.cli import progress
from fedrecall.cli.app import app, out
from fedrecall.cli.options import DataRoot
from fedrecall.errors import UserError
from fedrecall.papers import PAPERS, Cell, Table, load_paper, table
from fedrecall.papers.paper import Variant
from fedrecall.papers.quantities import NEVER, QUANTITIES
from fedrecall.papers.reproduction import DRAWN, adopt, carry_out, check_code, folder_of, plan
from fedrecall.papers.results import FOLDER, Results, codes, of_run, path_of
from fedrecall.papers.verdicts import Verdict, gain, judge, tried
from fedrecall.records import RunFolder

RUNS, RESULTS = Path("runs/reproduction"), "results"
SETTING = re.compile(r"\w+=|[-+.\d]+(e-?\d+)?$")
"""What follows a comma within an algorithm's settings: a name with its value, or a number in its place."""

ResultsFolder = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Where results are kept, one small file a run (default: `results` in --out).",
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
    if name.partition("/")[2] and _only_drawn(name):
        _explain_figure(name)
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
    own = _own(cells)
    known = Results.load(results, own)
    check_code(cells, known, variant)
    plans = plan(chosen, cells, range(seeds), known, out_, variant, **changes)
    if seeds and not plans:
        _say("nothing is missing: all of it has been run.")
    for kept in (r for c in cells for r in known.of(c.config(variant=variant)).values() if r.failed):
        _say(f"a run failed ({kept.failed}); to try it again, delete {path_of(kept.config, results)}")
    left_out: list[str] = []
    try:
        if plans:
            display = progress.Display(out, len(plans))
            left_out = carry_out(plans, results, _say, lambda _: progress.shown(display), data_root)
    finally:
        out.print(comparison(chosen, cells, Results.load(results, own), variant))
    for reason in left_out:
        _say(f"left out: {reason}")
    if left_out and len(left_out) == len({str(p.config.dataset) for p in plans}):
        raise UserError("no data set that this needs could be had.")
    if chosen.figure is not None and seeds:
        _draw(chosen, cells, out_, variant, {"precision": precision}, data_root)


def _adopt(chosen: Table, cells: list[Cell], folders: list[Path], results: Path, out_: Path) -> None:
    adopted: dict[str, tuple[Variant | None, list[Cell]]] = {}
    for folder in folders:
        made = adopt(chosen, folder, results, cells)
        found, cell = made.outcome, made.cell
        reading = f" with {made.variant.name}" if made.variant else ""
        rounds = f"{found.done} of {found.config.rounds} rounds in {made.path}"
        _say(f"{cell.key}{reading}, seed {found.seed}: {rounds}")
        _say(f"to go on with it here, move it to {folder_of(chosen, found.config, out_)}")
        taken = adopted.setdefault(reading, (made.variant, []))[1]
        if cell not in taken:
            taken.append(cell)
    for variant, taken in adopted.values():
        shown = [c for c in cells if c in taken] + [c for c in taken if c not in cells]
        out.print(comparison(chosen, shown, Results.load(results, _own(shown)), variant))


def comparison(chosen: Table, cells: list[Cell], results: Results, variant: Variant | None = None) -> Shown:
    """Published beside measured, cell by cell."""
    paper = load_paper(chosen.paper)
    shown = Shown(
        title=f"{chosen.paper}/{chosen.name}: {chosen.title}" + (f" ({variant.name})" if variant else "")
    )
    for heading in ("column", "method", "what", "published", "measured", "n", "rounds", "off by"):
        shown.add_column(heading, justify="left" if heading in ("column", "method", "what") else "right")
    shown.add_column("in its spread")
    shown.add_column("verdict")
    runs = [r for cell in cells for r in results.of(cell.config(variant=variant)).values()]
    precisions = sorted({r.config.precision for r in runs})
    if precisions not in ([], ["float32"]):
        shown.caption = f"Computed in {' or '.join(precisions)}, each cell in one."
    for cell in cells:
        for quantity in chosen.quantities:
            v = judge(paper, chosen, cell, quantity, results, variant)
            shown.add_row(
                Text(cell.column),
                Text(cell.method),
                QUANTITIES[quantity].label,
                published_text(cell, quantity),
                measured_text(v, quantity),
                str(v.measured.summary.n) if v.measured else "",
                f"{v.measured.rounds} of {cell.settings['rounds']}" if v.measured else "",
                difference_text(v, quantity),
                {True: "yes", False: "no", None: ""}[v.within],
                v.text + _excluded(v),
            )
        g = gain(chosen, cell, results, variant)
        if g is not None:
            text = f"{g.measured.mean:+.2f} at round {g.rounds}"
            published = "–" if g.published is None else f"{g.published:+.2f}"
            shown.add_row(Text(cell.column), Text(cell.method), f"over {chosen.baseline}", published, text)
    return shown


def _excluded(v: Verdict) -> str:
    said = f" ({v.failed} failed)" if v.failed else ""
    return said + (f" ({v.left_out:,} visits left out)" if v.left_out else "")


def published_text(cell: Cell, quantity: str) -> str:
    """The paper's number with its spread."""
    p = cell.published.get(quantity)
    if cell.failed and quantity == "accuracy":
        return "failed"
    if p is None or p.value is None:
        return "–"
    if p.value == NEVER:
        return "never"
    digits = QUANTITIES[quantity].digits
    return f"{p.value:.{digits}f}" + (f" ± {p.std:.{digits}f}" if p.std is not None else "")


def measured_text(v: Verdict, quantity: str) -> str:
    """Our number with its spread."""
    if v.measured is None:
        return "failed" if v.failed else ""
    return v.measured.text(QUANTITIES[quantity].digits)


def difference_text(v: Verdict, quantity: str) -> str:
    """Measured minus published."""
    return "" if v.difference is None else f"{v.difference:+.{QUANTITIES[quantity].digits}f}"


def list_papers(*folders: Path) -> Shown:
    """Every table and figure, how much of it has been measured, with a switch or without, and on what.

    Measured, that is, in these folders: by default with the repository's results and those of `reproduce`.
    """
    from fedrecall.reports.figures import FIGURES

    found = Results(r for folder in folders or (FOLDER, RUNS / RESULTS) for r in Results.load(folder))
    shown = Shown(box=None, pad_edge=False)
    shown.add_column("name", style="bold", no_wrap=True)
    for heading in ("cells", "begun", "finished"):
        shown.add_column(heading, justify="right")
    shown.add_column("on what")
    shown.add_column("what it is")
    for paper in PAPERS:
        held = load_paper(paper)
        for t in held.tables.values():
            configs = [[c.config(variant=v) for v in (None, *tried(held, c, found))] for c in t.cells]
            runs = [[r for one in several for r in found.of(one).values()] for several in configs]
            finished = sum(
                any(r.done >= c.settings["rounds"] or r.failed for r in mine)
                for c, mine in zip(t.cells, runs, strict=True)
            )
            machines = sorted({m for mine in runs for r in mine for m in r.machines})
            shown.add_row(
                f"{paper}/{t.name}",
                str(len(t.cells)),
                str(sum(map(bool, runs))),
                str(finished),
                Text(", ".join(machines)),
                Text(t.title),
            )
        for name in FIGURES:
            if name.startswith(f"{paper}/") and name.partition("/")[2] not in held.tables:
                title = (FIGURES.cls(name).__doc__ or "").strip().splitlines()[0]
                shown.add_row(name, "", "", "", Text("drawn from runs"), Text(title))
    return shown


def _only_drawn(name: str) -> bool:
    paper, _, rest = name.partition("/")
    if rest in load_paper(paper).tables:
        return False  # and nothing that draws is needed, which a machine that only trains may lack
    from fedrecall.reports.figures import FIGURES

    return name in FIGURES.entries


def _explain_figure(name: str) -> None:
    from fedrecall.reports.figures import FIGURES

    figure: Any = FIGURES.cls(name)
    _say(f"{name}: {figure.caption}")
    _say(f"It is drawn from runs ({figure.needs}). Make them with")
    for command in figure.commands:
        _say(f"  {command}")
    _say(f"and draw it with: fedrecall figure {name} RUN ...")


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
        _say(f"no figure: there is no run folder of seed {DRAWN} under {out_}.")
        return
    for folder in folders:
        done = of_run(folder).done
        if done > chosen.rounds:
            _say(
                f"no figure: it is of a model of {chosen.rounds} rounds, and {folder} has gone on to {done};"
                " make it in a folder of its own (--out)."
            )
            return
    drawn = draw(str(chosen.figure), folders, out_ / "figures", data_root)
    for note in drawn.notes:
        _say(note)
    for path in drawn.files:
        _say(f"figure: {path}")


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


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
