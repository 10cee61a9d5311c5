"""Several algorithms over the same federation: their runs planned, checked, played and put side by side."""

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedrecall import config as configs
from fedrecall import files, own_faults, own_modules, specs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg, keeps_own
from fedrecall.config import Config
from fedrecall.contracts import promise
from fedrecall.data.datasets import Dataset, load
from fedrecall.errors import Busy, Diverged, UserError
from fedrecall.experiment import Experiment, Result, Sink, check
from fedrecall.fields import fields
from fedrecall.ingredients import device_of
from fedrecall.models.networks import named
from fedrecall.records import AT_HOME, RunFolder, how_often, looked_back_on, scalars, steps
from fedrecall.reports import tables
from fedrecall.reports.statistics import Difference, paired_difference
from fedrecall.reports.tables import Entry
from fedrecall.together import play, stacks

LONGEST = 255
"""Bytes that file systems take for a name."""
NOTEBOOKS = "__main__:"
"""Before the name of what the program that was started has itself; Markdown reads it as something else."""


class End(NamedTuple):
    """What a run has to show: numbers, or why there are none; neither of one that did not come to its end."""

    accuracy: float | None = None
    forgetting: float | None = None
    seconds: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    epsilon: float | None = None
    """What `private` spent, at ``delta``; None of a run that promises nothing."""
    delta: float | None = None
    clients_mean: float | None = None
    """Of all clients' own accuracies, as is ``worst_tenth``, where the measure `fairness` recorded them."""
    worst_tenth: float | None = None
    at_home: bool | None = None
    """Whether these are on the test examples from where clients are, not by their mixture of classes."""
    failed: str | None = None
    """Why, where the run failed."""


class Row(NamedTuple):
    """One algorithm's runs."""

    name: str
    ends: Sequence[End]
    """One a seed."""

    def each(self, of: str) -> list[Any]:
        """What `End` calls so, of every run."""
        return [getattr(end, of) for end in self.ends]

    def known(self, of: str) -> list[Any]:
        """The same of the runs that have one."""
        return [value for value in self.each(of) if value is not None]


class Planned(NamedTuple):
    """One run of the comparison."""

    name: str
    """Its algorithm, as it was named."""
    setting: str
    """What else tells it from others, in words; "" where nothing does."""
    made: Config
    over: Mapping[str, Any] = MappingProxyType({})
    """Those settings by their names."""


class Comparison:
    """Runs of several algorithms over the same federation, perhaps with each of several settings.

    It prints as a table; `runs` and `rounds` are flat dicts, which pandas takes.
    """

    def __init__(
        self,
        algorithms: Sequence[Any],
        base: Mapping[str, Any],
        seeds: int = 1,
        settings: Sequence[Mapping[str, Any]] = ({},),
        out: Path | None = None,
        *,
        data_root: Path | None = None,
        dataset: Dataset | None = None,
    ):
        """Check every run before the first is played.

        ``base``: the settings of all. ``settings``: what else some have, see `combinations`. ``out``: the
        folder for run folders, where runs that were begun earlier are gone on with. ``dataset``: the data of
        all, in the place of what the settings name.
        """
        if "algorithm" in base:
            raise UserError(
                "compare takes an algorithm's settings with its name, such as fedntd:beta=3: "
                "leave algorithm out of -s and --config, in Python out of the settings."
            )
        named = called(algorithms)
        _check_whose(named, [base, *settings])
        self.seeds = seeds
        self.plans = [run for setting in settings for run in plan(named, base, seeds, setting)]
        self._folders = [run_folder(planned, out) for planned in self.plans]
        self._datasets = _Loaded(data_root, dataset)
        self._ends: dict[int, End] = {}
        self._rounds: dict[int, list[dict[str, Any]]] = {}
        self.errors: dict[str, str] = {}
        """By algorithms' names, what ended the first of their runs that an error in their code has ended."""
        _check_apart(self.plans, self._folders)
        for planned, folder in zip(self.plans, self._folders, strict=True):
            check(planned.made, folder, self._datasets.of(planned.made))
            _check_alike(planned.made, folder)

    def play(self, sinks: Callable[[Planned], Sequence[Sink]]) -> None:
        """Play every run but those that another process plays; ``sinks`` gives whoever is told of one.

        A run that diverges, or that an error in its algorithm's code ends, has failed, and the others go on.
        """
        for _ in range(2):  # a run that another process plays may be over when the others are
            places = self._left
            for stack in stacks([self.plans[i].made for i in places]):
                self._play([places[k] for k in stack], sinks)
        self._datasets.let_go()

    def _play(self, places: Sequence[int], sinks: Callable[[Planned], Sequence[Sink]]) -> None:
        """Play one of the stacks, but for runs that another process has; what its runs came to is noted at
        once, whatever comes of the others."""
        dataset = self._datasets.of(self.plans[places[0]].made)
        experiments: dict[int, Experiment] = {}
        with ExitStack() as made:  # if one cannot be made, the others let go of their folders
            for i in places:
                planned, place = self.plans[i], self._folders[i]
                folder = RunFolder(place) if place is not None else None
                with suppress(Busy):
                    if folder is not None:
                        folder.acquire()
                    resume = folder is not None and folder.recorded  # with nothing recorded it is begun anew
                    experiments[i] = Experiment(
                        planned.made, folder, resume=resume, dataset=dataset, sinks=sinks(planned)
                    )
                    made.callback(experiments[i].close)
            made.pop_all()
        begun = list(experiments)

        def ended(number: int, found: Result | Exception) -> None:
            self._ends[begun[number]] = end(found)
            if isinstance(found, Result):
                self._rounds[begun[number]] = [{"round": r["round"], **scalars(r)} for r in found.records]
            elif not isinstance(found, Diverged):
                said = f"{found}\n" if isinstance(found, UserError) else own_faults.told(found)
                self.errors.setdefault(self.plans[begun[number]].name, said)

        if experiments:
            play(list(experiments.values()), ended)

    @property
    def _left(self) -> list[int]:
        return [i for i in range(len(self.plans)) if i not in self._ends]

    @property
    def elsewhere(self) -> list[Path]:
        """The folders of runs that have not ended here: after `play`, those that another process plays."""
        return [folder for i in self._left if (folder := self._folders[i]) is not None]

    @property
    def rows(self) -> dict[str, list[Row]]:
        """A row for each algorithm, of every setting, by its words."""
        return rows_of(self.plans, self._ends)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """A flat dict a run: algorithm, settings that vary, seed, and its numbers after the last round.

        Of a run that failed there is why, ``failed``; all other numbers are None.
        """
        return [{**whose, **self._ends.get(i, End())._asdict()} for i, whose in enumerate(self._whose)]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """A flat dict for every round of every run that has come to its end, for curves."""
        whose = self._whose  # whose names are those of settings, though a round may have such numbers, too
        return [
            {**whose[i], **numbers, **whose[i]}
            for i in range(len(self.plans))
            for numbers in self._rounds.get(i, ())
        ]

    @property
    def _whose(self) -> list[dict[str, Any]]:
        return [
            {"algorithm": p.name, **p.over, "seed": p.made.seed, "split": p.made.split} for p in self.plans
        ]

    @property
    def entries(self) -> list[Entry]:
        """A line for each algorithm of every setting, with its difference to the first algorithm."""
        made = {planned.setting: planned.made for planned in self.plans}
        return [entry for s, rows in self.rows.items() for entry in entries(rows, s, made[s])]

    def write(self, path: Path | str) -> None:
        """Write `entries` as a .tex, .md or .csv file."""
        path = files.expanded(path)
        tables.check(path)
        tables.write(path, self.entries)

    @property
    def notes(self) -> list[str]:
        """What the numbers depend on, or are of, that no setting says."""
        found = []
        if own := self._names(keeps_own):
            known = any(end.clients_mean is not None for end in self._ends.values())
            where = "the columns of clients" if known else "the measure fairness"
            found.append(f"Accuracy of {own}: of what travels; of clients' own models see {where}.")
        normalised = {(p.setting, p.made.normalisation) for p in self.plans}
        if len(dict(normalised)) < len(normalised):  # more than one of a setting
            private = self._names(lambda algorithm: algorithm.protects)
            found.append(
                f"Inputs of {private} are normalised by fixed statistics, the others' by those of clients' "
                "data, which differences are of, too: with normalisation = fixed all are alike."
            )
        needy = self._names(lambda algorithm: algorithm.auxiliary_per_class > 0)
        held = {p.made.auxiliary_per_class or 0 for p in self.plans}
        if needy not in ("", self._names(lambda _: True)) and held != {0}:
            many = " or ".join(map(str, sorted(held)))
            found.append(
                f"In all runs the server holds {many} training examples of each class, which no client has, "
                f"for {needy}: without it the others' clients have these, too."
            )
        return found

    def _names(self, of: Callable[[FedAvg], bool]) -> str:
        """Those of such algorithms, in words."""
        return " and ".join(
            dict.fromkeys(p.name for p in self.plans if of(ALGORITHMS.make(p.made.algorithm)))
        )

    def __str__(self) -> str:
        return "\n".join([tables.markdown(self.entries), *self.notes])

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return str(self)

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(p.name for p in self.plans))
        return f"<Comparison of {names}: {len(self._ends)} of {len(self.plans)} runs>"


class _Loaded:
    """Data sets, each loaded and moved to the device once while runs of the same one follow each other."""

    def __init__(self, root: Path | None, given: Dataset | None):
        """``given``: the only one, in the place of what the settings name."""
        self._root, self._given, self._held = root, given, given
        self._spec: Any = None

    def let_go(self) -> None:
        """Hold nothing that was loaded or moved."""
        self._held = self._given

    def of(self, config: Config) -> Dataset:
        """That of a run."""
        if self._held is None or (self._given is None and self._spec != config.dataset):
            self._held, self._spec = load(config.dataset, root=self._root), config.dataset
        self._held = self._held.to(device_of(config))
        return self._held


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


_INSTEAD = {
    "algorithm": "name an algorithm once for each, such as fedntd:beta=1 fedntd:beta=3",
    "seed": "say how many with --seeds, in Python seeds=",
}


def combinations(over: Iterable[tuple[str, Sequence[Any], str]]) -> list[dict[str, Any]]:
    """Every combination of the values that settings are to have, by their dotted keys.

    ``over``: a setting, its values, and how its mistakes are spoken of.
    """
    axes: dict[str, Sequence[Any]] = {}
    for given, values, said in over:
        (key,) = configs.in_full({given: None})
        if instead := _INSTEAD.get(key.partition(".")[0]):
            raise UserError(f"{said}: {instead}.")
        if key in axes or len({_words(key, value) for value in values}) < len(values):
            raise UserError(f"{said}: {key} or one of its values is there twice.")
        axes[key] = values
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _check_whose(named: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError if one of the settings of all runs is that of an algorithm."""
    of_all = {field.name for field in fields(Config)}
    for key in dict.fromkeys(key for some in settings for key in some if key not in of_all):
        values = [some[key] for some in settings if key in some]
        for name, algorithm in named.items():
            made = ALGORITHMS.make(algorithm)
            if key in (field.name for field in fields(type(made))):
                if isinstance(algorithm, str):
                    alone = ALGORITHMS.placed(algorithm)[0]
                else:
                    alone = _short(ALGORITHMS.spec(made)["name"], algorithm)
                said = " ".join(dict.fromkeys(f"{alone}:{key}={_words(key, value)}" for value in values))
                raise UserError(
                    f"{key} is a setting of {name}, not of all runs: give it with the name, such as {said}."
                )


def _words(key: str, value: Any) -> str:
    """A setting's value in words, those of a text its own."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):  # 1.0 of sample is all clients, 1 is one
        return str(value)
    if key in configs.REGISTRIES:
        registry = configs.REGISTRIES[key]
        return specs.short_text(registry, registry.spec(registry.make(value)))
    if key == "model":
        return specs.word(named(value)).removeprefix(NOTEBOOKS)
    return specs.word(value)


def called(algorithms: Sequence[Any]) -> dict[str, Any]:
    """Algorithms by what they are called here: as they were named, or what would name them.

    Files of those that are given as such are without their folders, and a notebook's own classes by their
    names alone, where that tells all apart.
    """
    if not algorithms:
        raise UserError("compare: name at least one algorithm.")
    whole = [_words("algorithm", algorithm) for algorithm in algorithms]
    short = [
        text if isinstance(a, str) else _short(text, a) for text, a in zip(whole, algorithms, strict=True)
    ]
    names = short if len(set(short)) == len(short) else whole
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(f"compare: {twice} is named twice.")
    return dict(zip(names, algorithms, strict=True))


def _short(text: str, algorithm: Any) -> str:
    for place in _own(ALGORITHMS.spec(ALGORITHMS.make(algorithm))):
        text = text.replace(place, own_modules.named(place).removeprefix(NOTEBOOKS))
    return text


def _own(spec: Mapping[str, Any]) -> Iterator[str]:
    """The names in a spec, and in those within it, of classes of somebody's own."""
    if spec["name"] not in ALGORITHMS:
        yield spec["name"]
    for value in spec.values():
        if specs.is_spec(value):
            yield from _own(value)


def plan(
    algorithms: Mapping[str, Any],
    base: Mapping[str, Any],
    seeds: int,
    setting: Mapping[str, Any] = MappingProxyType({}),
) -> list[Planned]:
    """Every run of a setting; the federation is the same for all algorithms of a seed."""
    base = configs.override(base, setting)
    over: dict[str, Any] = {}
    for key, value in setting.items():
        number = value is None or isinstance(value, (int, float))
        over[key.removeprefix("training.")] = value if number else _words(key, value)
    said = ", ".join(f"{key}={_words(key, value)}" for key, value in over.items())
    needed = max(ALGORITHMS.make(algorithm).auxiliary_per_class for algorithm in algorithms.values())
    held = base.get("auxiliary_per_class")  # None is as if nothing were said
    base = {**base, "auxiliary_per_class": needed if held is None else held}
    first = configs.make({**base, "algorithm": next(iter(algorithms.values()))}).seed
    return [
        Planned(
            name,
            said,
            configs.make({**base, "algorithm": algorithm, "seed": first + k}),
            over,
        )
        for k in range(seeds)
        for name, algorithm in algorithms.items()
    ]


def run_folder(planned: Planned, out: Path | None) -> Path | None:
    """Where a run of the comparison is kept, if it is."""
    words = f"{_seen(planned.name)} {planned.setting}" if planned.setting else _seen(planned.name)
    called = re.sub("[:/]", "-", words.replace(", ", "-").replace(" ", "-"))
    return None if out is None else out / _fitting(called, f"-seed{planned.made.seed}")


def _fitting(called: str, seed: str) -> str:
    """The name of a folder, that a digest stands for the end of where no file system would take it all."""
    whole = os.fsencode(called)
    if len(whole) + len(seed) <= LONGEST:
        return f"{called}{seed}"
    digest = hashlib.blake2b(whole, digest_size=4).hexdigest()
    return f"{whole[:100].decode(errors='ignore')}-{digest}{seed}"


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
    kept: dict[Path, Planned] = {}
    for planned, folder in zip(plans, folders, strict=True):
        if folder is not None and (other := kept.setdefault(folder, planned)) is not planned:
            raise UserError(
                f"compare: {other.name} and {planned.name} would be kept in one folder, {folder}: leave one "
                "out."
            )


def end(result: Result | Exception) -> End:
    """The numbers of a run that went through, or why it did not."""
    if isinstance(result, Exception):
        return End(failed=own_faults.reason(result))
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
        setting: [Row(name, _of_one_kind(own, named)) for name, own in named.items()]
        for setting, named in found.items()
    }


def _of_one_kind(own: Sequence[End], all_: Mapping[str, Sequence[End]]) -> list[End]:
    """Without how clients fare by mixture of classes, as earlier versions had it, where others have it at
    home."""
    if not any(end.at_home for ends in all_.values() for end in ends):
        return list(own)
    return [e if e.at_home else e._replace(clients_mean=None, worst_tenth=None) for e in own]


def difference(first: Row, other: Row, of: str = "accuracy") -> Difference | None:
    """How much higher that of the other is over the seeds whose runs both have one."""
    both = zip(first.each(of), other.each(of), strict=False)
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    return paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def entries(rows: Sequence[Row], setting: str, made: Config) -> list[Entry]:
    """The rows of a setting as lines of a table in a file."""
    found = []
    for r in rows:
        entry = Entry(setting, r.name, made.rounds, r.known("accuracy"), r.known("forgetting"))
        entry = entry._replace(split=made.split, failed=len(r.known("failed")))
        entry = entry._replace(clients=r.known("clients_mean"), worst_tenth=r.known("worst_tenth"))
        if r is not rows[0]:
            gained, forgotten, fared = (
                difference(rows[0], r, of) for of in ("accuracy", "forgetting", "clients_mean")
            )
            entry = entry._replace(against=rows[0].name, difference=gained, forgotten=forgotten, fared=fared)
        found.append(entry)
    return found
