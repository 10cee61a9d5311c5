"""`fedrecall compare`: several algorithms over the same federation."""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from fedrecall import config as configs
from fedrecall import files
from fedrecall.algorithms import ALGORITHMS
from fedrecall.cli import progress
from fedrecall.cli.app import app, out
from fedrecall.cli.options import DataRoot, Set, Settings, gather, several, with_config
from fedrecall.config import Config
from fedrecall.data.datasets import Dataset, load
from fedrecall.errors import Diverged, UserError
from fedrecall.experiment import Experiment, Result, check, device_of
from fedrecall.models.networks import MODELS
from fedrecall.records import RunFolder
from fedrecall.reports.statistics import paired_difference, summary
from fedrecall.together import play, stacks


class End(NamedTuple):
    """What a run has to show: numbers, or why there are none; neither of one that did not come to its end."""

    accuracy: float | None = None
    forgetting: float | None = None
    seconds: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    epsilon: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Row:
    """One algorithm's runs, an entry a seed: None where the run failed, or was not played to its end."""

    name: str
    accuracy: list[float | None]
    forgetting: list[float | None]
    seconds: list[float | None]
    bytes_down: list[int | None]
    bytes_up: list[int | None]
    epsilon: list[float | None]
    """What `private` spent; None of a run that promises nothing."""
    failed: list[str | None]
    """Why, where a run failed."""


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
        typer.Option("--out", help="Folder for the run folders; finished and begun runs there are resumed."),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the table's numbers here.")] = None,
    data_root: DataRoot = None,
    settings: Settings,
) -> None:
    """Train several algorithms over the same federation and print them side by side.

    A run that diverges is shown as failed, and the others go on.

    Example: fedrecall compare fedavg fedntd --dataset digits --clients 20 --sample 5 --rounds 20 --seeds 3
    --over partition=iid,lda:0.1 --over lr=0.01,0.1
    """
    if len(set(algorithms)) < len(algorithms):
        raise UserError("compare: an algorithm is named twice.")
    base = gather(config, settings, set_)
    if "algorithm" in base:
        raise UserError(
            "compare takes an algorithm's settings with its name, such as fedntd:beta=3: "
            "leave algorithm out of -s and --config."
        )
    settings_ = combinations(over or ())
    plans = [planned for setting in settings_ for planned in plan(algorithms, base, seeds, setting)]
    if json is not None:
        files.check_writable(json)
    datasets = Loaded(data_root)
    folders = [run_folder(planned, out_) for planned in plans]
    for planned, folder in zip(plans, folders, strict=True):
        check(planned.made, folder, datasets.of(planned.made))
        _check_alike(planned.made, folder)
    display = progress.Display(out, len(plans))
    ends: dict[int, End] = {}
    try:
        for stack in stacks([planned.made for planned in plans]):
            _play({i: (plans[i], folders[i]) for i in stack}, datasets, display, ends)
    finally:  # what stops the comparison does not take what was found before
        tables = rows_of(plans, ends)
        if json is not None:  # before anything is printed, which may fail
            with files.placing(json):
                files.write_json(json, _numbers(plans[0].made, tables, settings_))
        for setting, rows in tables.items():
            if _played(rows[0]):
                out.print(table(rows, seeds, setting))
            for r in rows:
                for seed, why in enumerate(r.failed, start=plans[0].made.seed):
                    if why is not None:
                        at = f", {setting}" if setting else ""
                        out.print(f"{r.name}{at}, seed {seed} failed: {why}", markup=False, soft_wrap=True)
    if json is not None:
        out.print(f"numbers: {json}", markup=False)
    if out_ is not None:
        out.print(f"run folders: {out_}", markup=False)
    if any(_known(r.failed) for rows in tables.values() for r in rows):
        raise typer.Exit(2)


class Loaded:
    """Data sets, each loaded and moved to the device once while runs of the same one follow each other."""

    def __init__(self, root: Path | None):
        self._root = root
        self._spec: Any = None
        self._held: Dataset | None = None

    def of(self, config: Config) -> Dataset:
        """That of a run."""
        if self._held is None or self._spec != config.dataset:
            self._held, self._spec = load(config.dataset, root=self._root), config.dataset
        self._held = self._held.to(device_of(config))
        return self._held


def _numbers(
    first: Config, tables: Mapping[str, Sequence[Row]], settings: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """What --json holds: rows, or where settings vary the rows of each combination."""
    told = [[vars(r) for r in rows] for rows in tables.values()]
    if settings == [{}]:
        return {"config": configs.as_dict(first), "rows": told[0]}
    varied = [{"over": setting, "rows": rows} for setting, rows in zip(settings, told, strict=True)]
    return {"config": configs.as_dict(first), "tables": varied}


def _check_alike(made: Config, folder: Path | None) -> None:
    """Raise UserError if the run in the folder was looked at after other rounds."""
    if folder is None or not RunFolder(folder).started:
        return
    every = RunFolder(folder).config().get("evaluate_every", made.evaluate_every)
    if every != made.evaluate_every:
        raise UserError(
            f"{folder} was evaluated every {every} rounds, not every {made.evaluate_every}, and forgetting "
            f"depends on it: give --evaluate-every {every}, or another --out."
        )


class Planned(NamedTuple):
    """One run of the comparison."""

    name: str
    """Its algorithm, as it was named."""
    setting: str
    """What else tells it from others, in words; "" where nothing does."""
    made: Config


_INSTEAD = {
    "algorithm": "name an algorithm once for each, such as fedntd:beta=1 fedntd:beta=3",
    "seed": "say how many with --seeds",
}


def combinations(over: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the values that settings are to have, by their dotted keys."""
    axes: dict[str, list[str]] = {}
    for given in over:
        said = f"--over {shlex.quote(given)}"
        named, equals, text = given.partition("=")
        (key,) = configs.in_full({named.strip(): None})
        registry = {**configs.REGISTRIES, "model": MODELS}.get(key)
        values = [value for value in several(text, registry.entries if registry else ()) if value]
        if not equals or not named.strip() or not values:
            raise UserError(f"{said}: give key=value,value, such as lr=0.01,0.1.")
        if instead := _INSTEAD.get(key.partition(".")[0]):
            raise UserError(f"{said}: {instead}.")
        if key in axes or len(set(values)) < len(values):
            raise UserError(f"{said}: {key} or one of its values is there twice.")
        axes[key] = values
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def plan(
    algorithms: list[str], base: dict[str, Any], seeds: int, setting: Mapping[str, str] = MappingProxyType({})
) -> list[Planned]:
    """Every run of a setting; the federation is the same for all algorithms of a seed."""
    base = configs.override(base, setting)
    words = ", ".join(f"{key.removeprefix('training.')}={value}" for key, value in setting.items())
    needed = max(ALGORITHMS.make(name).auxiliary_per_class for name in algorithms)
    first = configs.make({**base, "algorithm": algorithms[0], "auxiliary_per_class": needed}).seed
    return [
        Planned(
            name,
            words,
            configs.make({"auxiliary_per_class": needed, **base, "algorithm": name, "seed": first + k}),
        )
        for k in range(seeds)
        for name in algorithms
    ]


def run_folder(planned: Planned, out: Path | None) -> Path | None:
    """Where a run of the comparison is kept, if it is."""
    words = f"{planned.name} {planned.setting}".strip() if planned.setting else planned.name
    called = re.sub("[:/]", "-", words.replace(", ", "-").replace(" ", "-"))
    return None if out is None else out / f"{called}-seed{planned.made.seed}"


def _play(
    runs: Mapping[int, tuple[Planned, Path | None]],
    datasets: Loaded,
    display: progress.Display,
    ends: dict[int, End],
) -> None:
    """Play one of the stacks; what its runs came to is noted at once, whatever comes of the others."""
    dataset = datasets.of(next(iter(runs.values()))[0].made)
    experiments = []
    for planned, folder in runs.values():
        sinks = [progress.shown(display, planned.setting)]
        experiments.append(Experiment(planned.made, folder, resume=True, dataset=dataset, sinks=sinks))
    places = list(runs)

    def ended(number: int, found: Result | Diverged) -> None:
        ends[places[number]] = end(found)

    play(experiments, ended)


def end(result: Result | Diverged) -> End:
    """The numbers of a run that went through, or why it did not."""
    if isinstance(result, Diverged):
        return End(failed=str(result))
    last = result.history[-1]
    seconds = sum(h["seconds"]["train"] for h in result.history)
    sent = last["bytes_down"], last["bytes_up"]
    return End(result.accuracy, result.forgetting, seconds, *sent, last.get("epsilon"))


def rows_of(plans: Sequence[Planned], ends: Mapping[int, End]) -> dict[str, list[Row]]:
    """The rows of every setting, of the runs at these places that have ended."""
    found: dict[str, dict[str, list[End]]] = {}
    for i, planned in enumerate(plans):
        found.setdefault(planned.setting, {}).setdefault(planned.name, []).append(ends.get(i, End()))
    return {setting: [row(*item) for item in named.items()] for setting, named in found.items()}


def row(name: str, ends: Sequence[End]) -> Row:
    """What the table shows of an algorithm."""
    return Row(name, **{field: [getattr(e, field) for e in ends] for field in End._fields})


def table(rows: Sequence[Row], seeds: int, setting: str = "") -> Table:
    """Accuracy, forgetting, cost, and the paired difference against the first algorithm."""
    first = rows[0]
    of = f"last round, mean ± std over {seeds} seeds" if seeds > 1 else "last round, one seed"
    shown = Table(title=Text(f"{setting}: {of}" if setting else of))
    shown.add_column("algorithm", no_wrap=True)
    for heading in ("accuracy %", "forgetting", "training s", "MB down", "MB up"):
        shown.add_column(heading, justify="right", overflow="fold")
    private = any(_known(r.epsilon) for r in rows)
    if private:
        shown.add_column("epsilon", justify="right", overflow="fold")
    ends = {1: "", 2: " [both seeds]"}.get(seeds, " [95 % interval]")  # of two pairs it is the two values
    shown.add_column(Text(f"accuracy - {first.name}{ends}"), overflow="fold", min_width=8)
    for r in rows:
        failed = len(_known(r.failed))
        left = seeds - failed - len(_known(r.accuracy))
        lacking = (f"{failed} failed" if failed else "", f"{left} not run" if left else "")
        shown.add_row(
            Text(r.name),
            ", ".join(filter(None, (_mean(r.accuracy, 100), *lacking))),
            _mean(r.forgetting, digits=3),
            _mean(r.seconds, digits=1),
            *("".join(map(progress.megabytes, _known(sent)[-1:])) for sent in (r.bytes_down, r.bytes_up)),
            *([_mean(r.epsilon) or "none"] if private else []),
            Text("" if r is first else _against(first, r, seeds)),
        )
    return shown


def _played(r: Row) -> bool:
    return bool(_known(r.accuracy) or _known(r.failed))


def _known(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if v is not None]


def _mean(values: Sequence[float | None], scale: float = 1.0, digits: int = 2) -> str:
    known = _known(values)
    return summary(known).text(scale, digits) if known else ""


def _against(first: Row, other: Row, seeds: int) -> str:
    """Over the seeds whose runs both went through."""
    both = zip(first.accuracy, other.accuracy, strict=False)
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    if not pairs:
        return ""
    d = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    interval = "" if d.low is None or d.high is None else f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    values = ": both values" if len(pairs) == 2 else ""
    fewer = f" ({len(pairs)} of {seeds}{values})" if len(pairs) < seeds else ""
    return f"{100 * d.mean:+.2f}{interval}{fewer}"
