"""Running what a table needs: what is missing, in a sensible order, each run resumable on its own."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedrecall import config as configs
from fedrecall import files, own_digest, provenance
from fedrecall.config import Config
from fedrecall.data import datasets
from fedrecall.data.datasets import DATASETS, Dataset
from fedrecall.errors import Diverged, NothingYet, UserError
from fedrecall.experiment import Experiment, Result, Sink
from fedrecall.ingredients import device_of
from fedrecall.papers.paper import Cell, Table, Variant, load_paper
from fedrecall.papers.results import (
    APART,
    PRECISIONS,
    Keeper,
    Outcome,
    Results,
    codes,
    identity,
    of_run,
    path_of,
    read,
    run_folder,
    save,
)
from fedrecall.records import RunFolder
from fedrecall.reports.runs import Run, duration
from fedrecall.together import play, stackable

Say = Callable[[str], None]

NEEDS = {
    "fc1_local": "alignment",
    "fc1_next_global": "alignment",
    "fc2_local": "alignment",
    "fc2_next_global": "alignment",
    "local_accuracy": "locals",
}
"""What must have been measured for a quantity."""


@dataclass(frozen=True)
class Plan:
    """One run to make."""

    cells: tuple[Cell, ...]
    """Those that it serves."""
    config: Config
    folder: Path

    @property
    def label(self) -> str:
        """What it is of, for messages."""
        return f"{self.cells[0].key}, seed {self.config.seed}"


def plan(
    table: Table,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    results: Results,
    out: Path,
    variant: Variant | None = None,
    **changes: Any,
) -> list[Plan]:
    """The runs that are missing, at this precision: one seed of every cell first, then the next one.

    Nothing is missing where a finer precision has all that is asked for of a column: runs in two of them are
    not averaged, nor is a method in one compared with a baseline in another. ``changes`` are config values
    that say how to compute, and ``rounds``.
    """
    needed = {NEEDS[q] for q in table.quantities if q in NEEDS}
    wanted: dict[tuple[str, int], tuple[Config, list[Cell]]] = {}
    for seed in seeds:
        for cell in cells:
            config = cell.config(seed, variant, **changes)
            wanted.setdefault((identity(config), seed), (config, []))[1].append(cell)

    def found(config: Config, precision: str) -> Outcome | None:
        run = results.of(config, precision).get(config.seed)
        return run if run is not None and (run.failed is not None or run.done >= config.rounds) else None

    def done(config: Config, precision: str) -> bool:
        run, folder = found(config, precision), folder_of(table, config, out)
        drawable = table.figure is None or config.seed != DRAWN or _played(folder) >= config.rounds
        return run is not None and (run.failed is not None or (needed <= run.measures.keys() and drawable))

    columns: dict[str, list[Config]] = defaultdict(list)
    for config, served in wanted.values():
        columns[served[0].column].append(config)
    settled = {
        column: any(all(done(config, p) for config in configs) for p in _finer(configs[0].precision))
        for column, configs in columns.items()
    }
    plans = []
    for config, served in wanted.values():
        if settled[served[0].column] or done(config, config.precision):
            continue
        folder = folder_of(table, config, out)
        if table.figure is None and found(config, config.precision) is not None:
            # Finished, but nobody looked: a finished run cannot be resumed, so it is made anew.
            folder = folder.with_name(f"{folder.name}-measured")
        plans.append(Plan(tuple(served), config, folder))
    return plans


def _finer(precision: str) -> tuple[str, ...]:
    return PRECISIONS[PRECISIONS.index(precision) + 1 :]


DRAWN = 0
"""The seed whose runs a figure is drawn from."""


def check_code(cells: Sequence[Cell], results: Results, variant: Variant | None = None) -> None:
    """Raise UserError if what was measured of somebody's own algorithm is of other code than it has now."""
    for cell in cells:
        config = cell.config(variant=variant)
        for run in results.of(config).values():
            _check_code(cell, config, run)


def _check_code(cell: Cell, config: Config, run: Outcome) -> None:
    now = own_digest.code(configs.what(config))
    then = run.made.get("code", now)
    if changed := [
        name for name, digest in now.items() if own_digest.differs(then.get(name, digest), digest)
    ]:
        raise UserError(
            f"{cell.key}, seed {run.seed} was measured with other code than {changed[0]} has now: "
            "put that back, or give another --out (and --results) for what the new code does."
        )


def folder_of(table: Table, config: Config, out: Path) -> Path:
    """Where a run of the table is kept: a figure's in a folder of its own, as it needs its last model."""
    folder = run_folder(config, out)
    return folder if table.figure is None else folder.with_name(f"{folder.name}-{table.name}")


def _played(folder: Path) -> int:
    try:
        return of_run(folder).done if RunFolder(folder).started else 0
    except NothingYet:
        return 0


def stacks(plans: Sequence[Plan]) -> list[list[Plan]]:
    """The plans as they are run: all seeds of a cell as one stack where a GPU takes them, else one by one."""
    found: dict[str, list[Plan]] = {}
    for p in plans:
        key = identity(p.config) if stackable(p.config) else str(p.folder)
        found.setdefault(key, []).append(p)
    return list(found.values())


class Pace:
    """How far all runs together are, and about how long the rest will take.

    A method's rounds cost what those of its own have cost so far, of whatever seed; one that has not begun,
    what all have cost on average.
    """

    EVERY = 60.0

    def __init__(self, say: Say, plans: Sequence[Plan], clock: Callable[[], float] = time.monotonic):
        self._say, self._clock = say, clock
        self._left = {p.folder: p.config.rounds for p in plans}
        self._kinds = {p.folder: identity(p.config) for p in plans}
        self._played: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self._last = self._told = clock()

    def of(self, made: Plan) -> Sink:
        """A sink that counts a run's rounds."""
        return _Counted(self, made)

    def begin(self, made: Plan, done: int) -> None:
        """A run starts, or goes on after so many rounds, which need not be played."""
        self._left[made.folder] = made.config.rounds - done

    def round(self, made: Plan) -> None:
        """A round of a run was played."""
        now, kind = self._clock(), self._kinds[made.folder]
        self._left[made.folder] -= 1
        self._played[kind] += 1
        self._seconds[kind] += now - self._last
        self._last = now
        if now - self._told >= self.EVERY:
            self._told = now
            self._say(self.text())

    def over(self, stack: Sequence[Plan]) -> None:
        """Of these runs nothing is played any more."""
        for made in stack:
            self._left[made.folder] = 0
        self._last = self._clock()

    def text(self) -> str:
        """How far, and how long still."""
        left, played = sum(self._left.values()), self._played.total()
        if not played:
            return f"{left:,} rounds to play"
        usual = sum(self._seconds.values()) / played
        cost = {kind: self._seconds[kind] / n for kind, n in self._played.items()}
        seconds = sum(n * cost.get(self._kinds[folder], usual) for folder, n in self._left.items())
        return f"{played:,} of {played + left:,} rounds played, about {duration(seconds)} left"


class _Counted(Sink):
    def __init__(self, pace: Pace, made: Plan):
        self._pace, self._made = pace, made

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        self._pace.begin(self._made, len(history))

    def record(self, record: Mapping[str, Any]) -> None:
        self._pace.round(self._made)

    def end(self) -> None:
        pass


class LeftOut(NamedTuple):
    """Why runs were not made, in sentences."""

    data: list[str]
    """Of data sets that could not be had, each once."""
    runs: list[str]
    """Of runs that were refused, or broke off for another reason than that they diverged."""


def carry_out(
    plans: Sequence[Plan],
    results: Path,
    say: Say,
    shown: Callable[[Plan], Sink],
    data_root: Path | None = None,
) -> LeftOut:
    """Make the runs; returns why some could not be made. What is done is saved at every moment.

    None is made on other data than the paper's: a part of them, say, under their name. ``shown``: who shows
    how a run goes.
    """
    left_out = LeftOut([], [])
    pace = Pace(say, plans)
    loaded: dict[str, Dataset | None] = {}
    for stack in stacks(plans):
        dataset = _load(stack[0], loaded, left_out.data, data_root)
        if dataset is None:
            pace.over(stack)
            continue
        labels = ", ".join(p.label for p in stack)
        say(f"{labels}: {stack[0].folder.parent.name}; {pace.text()}")
        try:
            _run(stack, dataset, results, pace, shown, say)
        except UserError as error:  # of this setup: others may be fine
            left_out.runs.append(f"{labels}: {error}")
        pace.over(stack)
    return left_out


def _load(
    made: Plan, loaded: dict[str, Dataset | None], left_out: list[str], root: Path | None
) -> Dataset | None:
    """The data set of a run, on the device: once there for all of its runs."""
    key, device = json.dumps(made.config.dataset, sort_keys=True), device_of(made.config)
    if key not in loaded:
        for other, kept in list(loaded.items()):
            if kept is not None:  # one at a time in memory; what could not be had is known
                del loaded[other]
        try:
            found = datasets.load(made.config.dataset, root=root)
            if strange := unlike(made.config, provenance.facts(found)):
                raise UserError(f"what was found is {strange}: name a folder that has it with --data-root.")
            loaded[key] = found.to(device)
        except UserError as error:
            loaded[key] = None
            left_out.append(str(error))
    return loaded[key]


def _run(
    stack: Sequence[Plan],
    dataset: Dataset,
    results: Path,
    pace: Pace,
    shown: Callable[[Plan], Sink],
    say: Say,
) -> None:
    experiments, keepers = [], []
    for p in stack:
        keeper = Keeper(p.config, results, partial(_starts, p.folder, provenance.facts(dataset)))
        sinks = [keeper, pace.of(p), shown(p)]
        experiments.append(Experiment(p.config, p.folder, resume=True, dataset=dataset, sinks=sinks))
        keepers.append(keeper)

    def ended(number: int, end: Result | Exception) -> None:
        if isinstance(end, Exception) and not isinstance(end, Diverged):
            raise end
        if isinstance(end, Diverged):
            keepers[number].failed(str(end))
            pace.over([stack[number]])
            say(f"{stack[number].label} failed: {end}")

    play(experiments, ended)


def _starts(folder: Path, data: dict[str, Any]) -> list[dict[str, Any]]:
    *earlier, last = Run(folder).made
    return [*earlier, {**last, "data": data}]


def unlike(config: Config, data: Mapping[str, Any]) -> str | None:
    """In words, what these data are if they are not those that the config names, as far as that is known."""
    name, sizes = config.dataset["name"], DATASETS.make(config.dataset).sizes
    train, test = data.get("train"), data.get("test")
    if data.get("name") != name:
        return f"{data.get('name')}, not the paper's {name}"
    if sizes is not None and not all(map(_fits, (train, test), sizes)):
        wanted = " and ".join(f"{n[0]} to {n[-1]}" if isinstance(n, range) else str(n) for n in sizes)
        return f"{name} of {train} and {test} examples, not the paper's of {wanted}"
    return None


def _fits(found: Any, wanted: int | range) -> bool:
    return found in wanted if isinstance(wanted, range) else bool(found == wanted)


class Adopted(NamedTuple):
    """A run folder that was taken as a result."""

    path: Path
    """The result's file."""
    outcome: Outcome
    """What it holds: that of the run, unless the same one went further elsewhere."""
    cell: Cell
    variant: Variant | None
    """With which the cell was run."""


def adopt(table: Table, folder: Path, results: Path, others: Sequence[Cell] = ()) -> Adopted:
    """Take a run folder that somebody made as the result of one of the table's cells, or of ``others``.

    Its config must be the cell's in everything that matters, its code what the cell's is now, and its data
    the paper's, where it says what they were. It does not replace another run that went as far.
    """
    found = of_run(folder)
    closest: tuple[int, str] | None = None
    paper = load_paper(table.paper)
    for cell in (*table.cells, *others):
        as_published = identity(cell.config()) == identity(found.config)
        variant = None if as_published else paper.reading(cell, found.config)
        if as_published or variant is not None:
            said = [start["data"] for start in Run(folder).made if isinstance(start.get("data"), dict)]
            if said and (strange := unlike(found.config, said[-1])):
                raise UserError(f"{folder} is a run on {strange}.")
            _check_code(cell, cell.config(variant=variant), found)
            path = path_of(found.config, results)
            if files.found(path):
                kept = read(path, codes(found.config.algorithm))
                if kept.done >= found.done and _begun(kept) != _begun(found):
                    raise UserError(
                        f"{path} holds {kept.done} rounds of another run of {cell.key}, seed {found.seed}: "
                        f"delete it to have {folder} in its place."
                    )
            save(found, results)
            return Adopted(path, read(path, codes(found.config.algorithm)), cell, variant)
        for variant in (None, *filter(cell.changed_by, paper.variants.values())):
            differing = differences(cell.config(found.seed, variant), found.config)
            if closest is None or len(differing) < closest[0]:
                closest = len(differing), f"{cell.key} has {'; '.join(differing)}"
    assert closest is not None
    raise UserError(f"{folder} is not a run of {table.paper}/{table.name}: the nearest cell, {closest[1]}.")


def _begun(run: Outcome) -> Any:
    return run.starts[0].get("started")


def differences(wanted: Config, given: Config) -> list[str]:
    """In words, where a config is not what is wanted; how and how far it was computed is left out."""
    return [
        f"{key} = {a!r}, not {b!r}"
        for key, a, b in configs.differing(configs.as_dict(wanted), configs.as_dict(given))
        if key.partition(".")[0] not in APART
    ]
