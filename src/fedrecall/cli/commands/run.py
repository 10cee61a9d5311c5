"""`fedrecall run`: one algorithm over one federation."""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import keeps_own
from fedrecall.cli import progress
from fedrecall.cli.app import app, err, out
from fedrecall.cli.options import DataRoot, Set, Settings, gather, with_config
from fedrecall.config import Config
from fedrecall.contracts import promise
from fedrecall.errors import Busy, Interrupted, Missing, UserError, printable
from fedrecall.experiment import Experiment, Result
from fedrecall.records import RunFolder, accuracy_word, sites, worst


@app.command("run")
@with_config()
def run_command(
    config: Annotated[
        Path | None,
        typer.Argument(help="A YAML file of settings; options below override it.", show_default=False),
    ] = None,
    *,
    set_: Set = None,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder (default: a new one under runs/).", show_default=False),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run in --out; with a larger --rounds, extend a finished one."
        ),
    ] = False,
    data_root: DataRoot = None,
    settings: Settings,
) -> None:
    """Train one algorithm over one federation.

    Example: fedrecall run --algorithm fedntd --dataset digits --clients 20 --sample 5 --rounds 20
    """
    if resume and out_ is None:
        raise UserError("--resume goes on with a run: name its folder with --out.")
    try:
        folder, experiment = _open(config, set_, out_, resume, data_root, settings)
    except Missing as error:
        raise UserError(
            f"{error} What has moved since the run was begun is named anew, as with "
            "-s dataset.path=FOLDER or -s algorithm.name=FILE.py:Class."
            if resume
            else str(error)
        ) from error
    try:
        result = experiment.run()
    except Interrupted:
        words = ["fedrecall", "run", "--resume", "--out", str(folder)]
        words += ["--data-root", str(data_root)] if data_root is not None else []
        err.print(f"go on with: {shlex.join(words)}", soft_wrap=True, markup=False)
        raise
    summarise(result)


def _open(
    config: Path | None,
    set_: list[str] | None,
    out_: Path | None,
    resume: bool,
    data_root: Path | None,
    settings: dict[str, Any],
) -> tuple[Path, Experiment]:
    """The run folder, and the run that is begun or gone on with in it."""
    given = gather(config, settings, set_)
    if resume and out_ is not None and RunFolder(out_).started:
        made = configs.begun(gather(config, settings, set_, RunFolder(out_).config()))  # as it was begun
    elif resume and out_ is not None and "algorithm" not in given and not RunFolder(out_).recorded:
        raise UserError(
            f"{out_} holds no run to go on with. To begin one there, say of what: --algorithm NAME."
        )
    else:
        made = configs.make(given)
    busy: set[Path] = set()
    while True:
        folder = out_ if out_ is not None else unused(name_of(made), busy)
        try:
            sinks = [progress.shown(progress.Display(out))]
            return folder, Experiment(made, folder, resume=resume, data_root=data_root, sinks=sinks)
        except Busy:  # begun by somebody else since
            if out_ is not None:
                raise
            busy.add(folder)


def name_of(config: Config) -> Path:
    """A folder name that says what runs."""
    names = [str(config.algorithm["name"]), str(config.dataset["name"]), str(config.partition["name"])]
    tidy = "-".join(Path(name.replace(":", "-")).name for name in names)
    return Path("runs") / f"{tidy}-seed{config.seed}"


def unused(folder: Path, busy: Collection[Path] = ()) -> Path:
    """The folder, or the first of its names with a number in which nothing has been played or begins."""
    candidate, number = folder, 2
    while RunFolder(candidate).recorded or candidate in busy:
        candidate, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return candidate


def summarise(result: Result) -> None:
    """A short table of the end, and where things are."""
    last, evaluated = result.records[-1], [r for r in result.records if "accuracy" in r]
    best = max(evaluated, key=lambda r: r["accuracy"])
    seconds = sum(r["seconds"]["train"] for r in result.records)
    table = Table(show_header=False, box=None, pad_edge=False)
    called = accuracy_word(last)
    table.add_row(f"{called}, last round", f"{last['accuracy']:.2%}")
    table.add_row(f"{called}, best round", f"{best['accuracy']:.2%} (round {best['round']})")
    if keeps_own(ALGORITHMS.make(result.config.algorithm)):
        table.add_row("", progress.OF_WHAT_TRAVELS)
    if (found := sites(last)) is not None:
        where, least = worst(found)
        table.add_row(f"{called}, worst site", Text(f"{least:.2%} ({printable(where)})"))
    table.add_row("forgetting", f"{last['forgetting']:.3f}")
    table.add_row("training", f"{seconds:.1f} s, {seconds / len(result.records):.2f} s a round")
    costs: dict[str, float] = {}
    for record in result.records:
        for measure, cost in record["seconds"].get("measures", {}).items():
            costs[measure] = costs.get(measure, 0.0) + cost
    if costs:
        table.add_row("measures", ", ".join(f"{measure} {cost:.1f} s" for measure, cost in costs.items()))
    down, up = (progress.megabytes(last[way]) for way in ("bytes_down", "bytes_up"))
    table.add_row("sent a round", f"{down} MB down, {up} MB up")
    if (promised := promise(last)) is not None:
        epsilon, delta = promised
        table.add_row("privacy", f"epsilon {epsilon:.2f} at delta {delta:g}, for each client")
    if result.out is not None:
        table.add_row("run folder", Text(str(result.out)))
    out.print(table)
