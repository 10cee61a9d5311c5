"""`fedrecall compare`: several algorithms over the same federation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedrecall import config as configs
from fedrecall import files
from fedrecall.algorithms import ALGORITHMS
from fedrecall.cli import progress
from fedrecall.cli.app import app, out
from fedrecall.cli.options import DataRoot, Set, Settings, gather, with_config
from fedrecall.config import Config
from fedrecall.data.datasets import load
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment, Result, check
from fedrecall.reports.statistics import paired_difference, summary


@dataclass(frozen=True)
class Row:
    """One algorithm's runs, a number a seed."""

    name: str
    accuracy: list[float]
    forgetting: list[float]
    seconds: list[float]
    bytes_down: list[int]
    bytes_up: list[int]


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
    set_: Set = None,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the run folders; finished and begun runs there are resumed."),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the table's numbers here.")] = None,
    data_root: DataRoot = None,
    settings: Settings,
) -> None:
    """Train several algorithms over the same federation and print them side by side.

    Example: fedrecall compare fedavg fedntd --dataset digits --clients 20 --sample 5 --rounds 20 --seeds 3
    """
    if len(set(algorithms)) < len(algorithms):
        raise UserError("compare: an algorithm is named twice.")
    base = gather(config, settings, set_)
    if "algorithm" in base:
        raise UserError(
            "compare takes an algorithm's settings with its name, such as fedntd:beta=3: "
            "leave algorithm out of -s and --config."
        )
    plans = plan(algorithms, base, seeds)
    if json is not None:
        files.check_writable(json)
    dataset = load(plans[0][1].dataset, root=data_root)
    folders = [run_folder(name, made, out_) for name, made in plans]
    for (_, made), folder in zip(plans, folders, strict=True):
        check(made, folder, dataset)
    sink = progress.shown(out, len(plans))
    results: dict[str, list[Result]] = {name: [] for name in algorithms}
    for (name, made), folder in zip(plans, folders, strict=True):
        experiment = Experiment(made, folder, resume=True, dataset=dataset, sinks=[sink])
        results[name].append(experiment.run())
    rows = [row(name, runs) for name, runs in results.items()]
    out.print(table(rows))
    if json is not None:
        with files.placing(json):
            files.write_json(json, {"config": configs.as_dict(plans[0][1]), "rows": [vars(r) for r in rows]})
        out.print(f"numbers: {json}", markup=False)
    if out_ is not None:
        out.print(f"run folders: {out_}", markup=False)


def plan(algorithms: list[str], base: dict[str, Any], seeds: int) -> list[tuple[str, Config]]:
    """Every run's name and config; the federation is the same for all algorithms of a seed."""
    needed = max(ALGORITHMS.make(name).auxiliary_per_class for name in algorithms)
    first = configs.make({**base, "algorithm": algorithms[0], "auxiliary_per_class": needed}).seed
    return [
        (name, configs.make({"auxiliary_per_class": needed, **base, "algorithm": name, "seed": first + k}))
        for k in range(seeds)
        for name in algorithms
    ]


def run_folder(name: str, made: Config, out: Path | None) -> Path | None:
    """Where a run of the comparison is kept, if it is."""
    return None if out is None else out / f"{name.replace(':', '-').replace('/', '-')}-seed{made.seed}"


def row(name: str, runs: list[Result]) -> Row:
    """What the table shows of an algorithm."""
    last = [r.history[-1] for r in runs]
    return Row(
        name,
        [r.accuracy for r in runs],
        [r.forgetting for r in runs],
        [sum(h["seconds"]["train"] for h in r.history) for r in runs],
        [h["bytes_down"] for h in last],
        [h["bytes_up"] for h in last],
    )


def table(rows: list[Row]) -> Table:
    """Accuracy, forgetting, cost, and the paired difference against the first algorithm."""
    first, n = rows[0], len(rows[0].accuracy)
    shown = Table(title=f"last round, mean ± std over {n} seeds" if n > 1 else "last round, one seed")
    shown.add_column("algorithm", no_wrap=True)
    for heading in ("accuracy %", "forgetting", "training s", "MB down", "MB up"):
        shown.add_column(heading, justify="right")
    shown.add_column(f"accuracy - {first.name}" + (" [95 % interval]" if n > 1 else ""))
    for r in rows:
        shown.add_row(
            r.name,
            summary(r.accuracy).text(100),
            summary(r.forgetting).text(digits=3),
            summary(r.seconds).text(digits=1),
            f"{r.bytes_down[-1] / 1e6:.2f}",
            f"{r.bytes_up[-1] / 1e6:.2f}",
            Text("" if r is first else _against(first, r)),
        )
    return shown


def _against(first: Row, other: Row) -> str:
    d = paired_difference(first.accuracy, other.accuracy)
    interval = "" if d.low is None or d.high is None else f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    return f"{100 * d.mean:+.2f}{interval}"
