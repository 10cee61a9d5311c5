"""`fedrecall compare`: several algorithms over the same federation."""

import hashlib
import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from fedrecall.algorithms.fedavg import keeps_own
from fedrecall.cli import options, progress
from fedrecall.cli.app import FAILED, NOT_NOW, app, out
from fedrecall.cli.options import DataRoot, Set, Settings, gather, several, with_config
from fedrecall.config import Config
from fedrecall.contracts import promise
from fedrecall.data.datasets import Dataset, load
from fedrecall.errors import Busy, Diverged, UserError
from fedrecall.experiment import Experiment, Result, check, device_of
from fedrecall.models.networks import MODELS
from fedrecall.records import AT_HOME, RunFolder, how_often, looked_back_on, steps
from fedrecall.reports import tables as written
from fedrecall.reports.statistics import Difference, paired_difference, summary
from fedrecall.reports.tables import Entry
from fedrecall.together import play, stacks

WHOLE_NAME = 24
"""Letters of a name for which a column has room where others would have to go to another table."""
SHORTEST_NAME = 8
"""Letters of a name for which there is room in any case."""


class End(NamedTuple):
    """What a run has to show: numbers, or why there are none; neither of one that did not come to its end."""

    accuracy: float | None = None
    forgetting: float | None = None
    seconds: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    clients_mean: float | None = None
    worst_tenth: float | None = None
    at_home: bool | None = None
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
    """What `private` spent, at ``delta``; None of a run that promises nothing."""
    delta: list[float | None]
    clients_mean: list[float | None]
    """Of all clients' own accuracies, as is ``worst_tenth``, where the measure `fairness` recorded them."""
    worst_tenth: list[float | None]
    at_home: list[bool | None]
    """Whether these are on the test examples from where clients are, not by their mixture of classes."""
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
    if table is not None:
        written.check(table)
    datasets = Loaded(data_root)
    folders = [run_folder(planned, out_) for planned in plans]
    _check_apart(plans, folders)
    for planned, folder in zip(plans, folders, strict=True):
        check(planned.made, folder, datasets.of(planned.made))
        _check_alike(planned.made, folder)
    display = progress.Display(out, len(plans))
    ends: dict[int, End] = {}
    left = dict(enumerate(zip(plans, folders, strict=True)))
    try:
        for _ in range(2):  # a run that another process plays may be over when the others are
            places = list(left)
            for stack in stacks([planned.made for planned, _ in left.values()]):
                _play({places[k]: left[places[k]] for k in stack}, datasets, display, ends)
            left = {i: run for i, run in left.items() if i not in ends}
    finally:  # what stops the comparison does not take what was found before
        found = rows_of(plans, ends)
        if json is not None:  # before anything is printed, which may fail
            with files.placing(json):
                files.write_json(json, _numbers(plans[0].made, found, settings_))
        if table is not None:
            made = {planned.setting: planned.made for planned in plans}
            written.write(table, [e for s, rows in found.items() for e in entries(rows, s, made[s])])
        for setting, rows in found.items():
            if any(map(_played, rows)):
                split = next(p.made.split for p in plans if p.setting == setting)
                for shown in tables(rows, seeds, setting, out.width, split):
                    out.print(shown)
            for r in rows:
                for seed, why in enumerate(r.failed, start=plans[0].made.seed):
                    if why is not None:
                        at = f", {setting}" if setting else ""
                        out.print(f"{r.name}{at}, seed {seed} failed: {why}", markup=False, soft_wrap=True)
        if any(_played(r) for rows in found.values() for r in rows):
            _tell_of_what_accuracy_is(plans)
    for _, folder in left.values():
        said = "is being played by another process; the same command, given again, has its numbers."
        out.print(f"{folder} {said}", markup=False, soft_wrap=True)
    if json is not None:
        out.print(f"numbers: {json}", markup=False)
    if table is not None:
        out.print(f"table: {table}", markup=False)
    if out_ is not None:
        out.print(f"run folders: {out_}", markup=False)
    if any(_known(r.failed) for rows in found.values() for r in rows):
        raise typer.Exit(FAILED)
    if left:
        raise typer.Exit(NOT_NOW)


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
    records = RunFolder(folder).metrics()
    looked, every = looked_back_on(records), made.evaluate_every
    wanted = list(range(every, len(records), every))
    if looked != wanted:
        said, found = how_often(looked), steps(looked)
        same = f"--evaluate-every {found[0][0]}, or " if len(found) == 1 else ""
        raise UserError(
            f"{folder} was evaluated {said}, not {how_often([every])}, and forgetting depends on it: give "
            f"{same}another --out."
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
    words = f"{_seen(planned.name)} {planned.setting}" if planned.setting else _seen(planned.name)
    called = re.sub("[:/]", "-", words.replace(", ", "-").replace(" ", "-"))
    return None if out is None else out / f"{called}-seed{planned.made.seed}"


def _seen(name: str) -> str:
    """An algorithm's name as that of a folder that is not hidden.

    Of a file in another folder than this one or those in it, a digest stands for where it is.
    """
    place, _, rest = name.partition(":")
    if not place.endswith(".py"):
        return name
    from_here = os.path.normpath(place)
    if not from_here.startswith((".", "/")):
        return f"{from_here}:{rest}"
    path = Path(place).resolve()
    digest = hashlib.blake2b(os.fsencode(path), digest_size=3).hexdigest()
    return f"{path.name.lstrip('.')}-{digest}:{rest}"


def _check_apart(plans: Sequence[Planned], folders: Sequence[Path | None]) -> None:
    """Raise UserError if two runs would be kept in one folder."""
    known: dict[Path, Planned] = {}
    for planned, folder in zip(plans, folders, strict=True):
        if folder is not None and (other := known.setdefault(folder, planned)) is not planned:
            raise UserError(
                f"compare: {other.name} and {planned.name} would be kept in one folder, {folder}: leave one "
                "out."
            )


def _tell_of_what_accuracy_is(plans: Sequence[Planned]) -> None:
    """Name the algorithms whose clients have other models than what is evaluated, if there are any."""
    own = dict.fromkeys(p.name for p in plans if keeps_own(ALGORITHMS.make(p.made.algorithm)))
    if own:
        told = f"accuracy of {' and '.join(own)}: {progress.OF_WHAT_TRAVELS}"
        out.print(told, markup=False, highlight=False, soft_wrap=True)


def _play(
    runs: Mapping[int, tuple[Planned, Path | None]],
    datasets: Loaded,
    display: progress.Display,
    ends: dict[int, End],
) -> None:
    """Play one of the stacks, but for runs that another process has; what its runs came to is noted at once,
    whatever comes of the others."""
    dataset = datasets.of(next(iter(runs.values()))[0].made)
    experiments: dict[int, Experiment] = {}
    for i, (planned, folder) in runs.items():
        sinks = [progress.shown(display, planned.setting)]
        with suppress(Busy):
            experiments[i] = Experiment(planned.made, folder, resume=True, dataset=dataset, sinks=sinks)
    places = list(experiments)

    def ended(number: int, found: Result | Diverged) -> None:
        ends[places[number]] = end(found)

    if experiments:
        play(list(experiments.values()), ended)


def end(result: Result | Diverged) -> End:
    """The numbers of a run that went through, or why it did not."""
    if isinstance(result, Diverged):
        return End(failed=str(result))
    last = result.records[-1]
    seconds = sum(h["seconds"]["train"] for h in result.records)
    sent = last["bytes_down"], last["bytes_up"]
    fares = last.get("measures", {}).get("fairness", {})
    at_home = AT_HOME in fares if fares else None
    fares = fares.get(AT_HOME, fares)
    of_clients = fares.get("mean"), fares.get("worst_tenth"), at_home
    epsilon, delta = promise(last) or (None, None)
    return End(result.accuracy, result.forgetting, seconds, *sent, epsilon, delta, *of_clients)


def rows_of(plans: Sequence[Planned], ends: Mapping[int, End]) -> dict[str, list[Row]]:
    """The rows of every setting, of the runs at these places that have ended."""
    found: dict[str, dict[str, list[End]]] = {}
    for i, planned in enumerate(plans):
        found.setdefault(planned.setting, {}).setdefault(planned.name, []).append(ends.get(i, End()))
    return {
        setting: [row(name, _of_one_kind(own, named)) for name, own in named.items()]
        for setting, named in found.items()
    }


def _of_one_kind(own: Sequence[End], all_: Mapping[str, Sequence[End]]) -> list[End]:
    """Without how clients fare by mixture of classes, as earlier versions had it, where others have it at
    home."""
    if not any(end.at_home for ends in all_.values() for end in ends):
        return list(own)
    return [e if e.at_home else e._replace(clients_mean=None, worst_tenth=None) for e in own]


def row(name: str, ends: Sequence[End]) -> Row:
    """What the table shows of an algorithm."""
    return Row(name, **{field: [getattr(e, field) for e in ends] for field in End._fields})


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
    found: list[list[Column]] = [
        [
            (f"{of}accuracy %", [_accuracies(r, seeds) for r in rows]),
            ("forgetting", [_mean(r, seeds, r.forgetting, digits=3) for r in rows]),
            (
                f"accuracy - {first.name}{ends}",
                [Text("" if r is first else _against(first, r, seeds)) for r in rows],
            ),
        ]
    ]
    if any(_known(r.clients_mean) for r in rows):
        found.append(
            [
                ("clients %", [_mean(r, seeds, r.clients_mean, 100) for r in rows]),
                ("worst tenth\nof clients %", [_mean(r, seeds, r.worst_tenth, 100) for r in rows]),
            ]
        )
    found.append(
        [
            ("training s", [_mean(r, seeds, r.seconds, digits=1) for r in rows]),
            ("MB down", ["".join(map(progress.megabytes, _known(r.bytes_down)[-1:])) for r in rows]),
            ("MB up", ["".join(map(progress.megabytes, _known(r.bytes_up)[-1:])) for r in rows]),
        ]
    )
    if any(_known(r.epsilon) for r in rows):
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
    failed = len(_known(r.failed))
    left = seeds - failed - len(_known(r.accuracy))
    lacking = (f"{failed} failed" if failed else "", f"{left} not run" if left else "")
    return ", ".join(filter(None, (_mean(r, seeds, r.accuracy, 100), *lacking)))


def _played(r: Row) -> bool:
    return bool(_known(r.accuracy) or _known(r.failed))


def _known(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if v is not None]


def _mean(r: Row, seeds: int, values: Sequence[float | None], scale: float = 1.0, digits: int = 2) -> str:
    known = _known(values)
    return summary(known).text(scale, digits) + _of_fewer(r, seeds, len(known)) if known else ""


def _weakest(r: Row, seeds: int) -> str:
    """The weakest of the seeds' promises: their mean would promise nothing."""
    both = zip(r.epsilon, r.delta, strict=True)
    promised = [(epsilon, delta) for epsilon, delta in both if epsilon is not None and delta is not None]
    if not promised:
        return "none"
    epsilon, delta = max(promised)
    return f"{epsilon:.2f} at {delta:g}{_of_fewer(r, seeds, len(promised))}"


def _of_fewer(r: Row, seeds: int, count: int) -> str:
    """How many seeds have a number, where that is not all whose runs went through."""
    return f" ({count} of {seeds})" if count < len(_known(r.accuracy)) else ""


def _against(first: Row, other: Row, seeds: int) -> str:
    """Over the seeds whose runs both went through."""
    d = _difference(first, other)
    if d is None:
        return ""
    interval = "" if d.low is None or d.high is None else f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    values = ": both values" if d.n == 2 else ""
    fewer = f" ({d.n} of {seeds}{values})" if d.n < seeds else ""
    return f"{100 * d.mean:+.2f}{interval}{fewer}"


def _difference(first: Row, other: Row) -> Difference | None:
    both = zip(first.accuracy, other.accuracy, strict=False)
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    return paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def entries(rows: Sequence[Row], setting: str, made: Config) -> list[Entry]:
    """The rows of a setting as lines of a table in a file."""
    found = []
    for r in rows:
        accuracy, forgetting = _known(r.accuracy), _known(r.forgetting)
        entry = Entry(setting, r.name, made.rounds, accuracy, forgetting, split=made.split)
        found.append(entry._replace(failed=len(_known(r.failed))))
        if r is not rows[0]:
            found[-1] = found[-1]._replace(against=rows[0].name, difference=_difference(rows[0], r))
    return found
