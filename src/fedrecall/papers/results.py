"""What was measured: one small JSON file a run, which a table's cells find by their config.

A file holds the config, the accuracy and the forgetting of every round, the class accuracies of the
last one, and what made them. It is replaced as a run goes, whole each time, so that an interrupted run
leaves what it has; ``rounds`` says how many of the planned ones that is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedrecall import config as configs
from fedrecall import files, specs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.config import Config
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.fields import fields
from fedrecall.measures import MEASURES
from fedrecall.own_modules import named
from fedrecall.reports.runs import ELSEWHERE, RESULT, Run
from fedrecall.specs import spec_text
from fedrecall.training import Recipe

FOLDER = Path("benchmarks/results/reproduction")
"""Where the project's own results are kept, seen from the repository."""
PACKED = Path(__file__).with_name("committed")
"""Where a wheel has them."""
FORMAT = "fedrecall reproduction 1"
PAUSE = 5.0
"""Least seconds from one replacement of a file to the next."""
PRECISIONS = ("bfloat16", "float32", "float64")
"""From the coarsest to the finest."""
APART = (*ELSEWHERE, "seed", "rounds", "precision")
"""What does not make it another experiment: the seed, how far, and how it was computed."""
KEPT_OF_START = (
    "versions",
    "python",
    "platform",
    "cpu",
    "gpu",
    "tensor floats",
    "threads",
    "git",
    "started",
    "data",
    "code",
)
KEPT_OF_EARLIER = ("versions", "cpu", "gpu", "git", "started")


def committed() -> Path:
    """Where the project's own results lie for whoever imports it, wherever that is done."""
    return PACKED if PACKED.is_dir() else Path(__file__).parents[3] / FOLDER


@dataclass(frozen=True)
class Outcome:
    """One run, finished or not."""

    config: Config
    accuracy: list[float]
    """Of the global model on the test split, every round; shares of one."""
    forgetting: list[float]
    class_accuracy: list[float]
    """After the last round."""
    client_seconds: list[float]
    """Seconds that the round's clients trained, every round."""
    bytes_down: int
    bytes_up: int
    """Of the last round."""
    failures: int
    """Visits that were left out because of NaN."""
    measures: Mapping[str, Any] = field(default_factory=dict)
    """What else was measured after the last round."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """Versions, machine, revision, time and data of the last start, a digest of the code if it is somebody's
    own, and ``earlier`` starts; older results say neither data nor earlier starts."""
    failed: str | None = None
    """Why the run cannot go on, if it cannot."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.seed

    @property
    def done(self) -> int:
        """Rounds played."""
        return len(self.accuracy)

    @property
    def starts(self) -> list[Mapping[str, Any]]:
        """What made it, start by start."""
        return [*self.made.get("earlier", ()), self.made]

    @property
    def machines(self) -> list[str]:
        """What it was computed on, one after the other."""
        return list(dict.fromkeys(map(machine_of, self.starts)))

    @cached_property
    def identity(self) -> str:
        """What experiment it is a run of."""
        return identity(self.config)

    def as_dict(self) -> dict[str, Any]:
        """As the file holds it."""
        return {
            "format": FORMAT,
            "rounds": {"done": self.done, "planned": self.config.rounds},
            "failed": self.failed,
            "seed": self.seed,
            "config": _kept_of(self.config),
            "made": dict(self.made),
            "failures": self.failures,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "class_accuracy": [round(a, 4) for a in self.class_accuracy],
            "accuracy": [round(a, 4) for a in self.accuracy],
            "forgetting": [round(f, 4) for f in self.forgetting],
            "client_seconds": [round(s, 1) for s in self.client_seconds],
            "measures": dict(self.measures),
        }


def _kept_of(config: Config) -> dict[str, Any]:
    """As it can be read anywhere: no places of somebody's own code, nor what only looked on or was told."""
    measures = [m for m in config.measures if MEASURES.parse(m)[0] in MEASURES.entries]
    apart = {"algorithm": _placeless(config.algorithm), "measures": measures, "sinks": []}
    return configs.as_dict(config) | apart


def machine_of(start: Mapping[str, Any]) -> str:
    """What a run's rounds are computed on from this start on."""
    return str(start.get("gpu") or start.get("cpu") or "an unknown machine")


def identity(config: Config) -> str:
    """A digest of what a config computes, the seed left out."""
    return files.checksum(json.dumps(unusual(config), sort_keys=True).encode())[:10]


def unusual(config: Config) -> dict[str, Any]:
    """What a config computes, as far as it differs from the defaults.

    Settings that say how it is computed do not enter, nor does one at its default, be it the config's or
    an algorithm's own, so that a new one does not make old results strangers.
    """
    mine, usual = _compared(config), _usual()
    found = {k: _unusual(k, v) for k, v in mine.items() if k not in APART and v != usual.get(k)}
    return found | ({"algorithm": _placeless(found["algorithm"])} if "algorithm" in found else {})


@cache
def _usual() -> dict[str, Any]:
    return _compared(Config())


def _compared(config: Config) -> dict[str, Any]:
    return {**configs.as_dict(config), "sample": config.sampled}


def _unusual(key: str, value: Any) -> Any:
    """A config's value, without the fields of its own that are at their defaults."""
    if key == "training":
        known = fields(Recipe)
    elif key in configs.REGISTRIES:
        known = fields(configs.REGISTRIES[key].cls(value["name"]))
    else:
        return value
    usual = {f.name: f.default for f in known}
    return {k: v for k, v in value.items() if k not in usual or v != usual[k]}


def name(config: Config) -> str:
    """A readable name of an experiment, the same for all seeds: what it is of, then its identity."""
    algorithm = spec_text(ALGORITHMS, config.algorithm)
    for called, place in codes(config.algorithm).items():
        algorithm = algorithm.replace(place, called)
    words = [str(config.dataset["name"]), spec_text(PARTITIONS, config.partition), algorithm]
    tidy = "-".join("".join(c if c.isalnum() or c in ".+=" else "_" for c in word) for word in words)
    return f"{tidy[:80]}-{identity(config)}"


def stem(config: Config) -> str:
    """The name of a run's file or folder within its experiment's."""
    precision = "" if config.precision == "float32" else f"-{config.precision}"
    return f"seed{config.seed}{precision}"


def path_of(config: Config, folder: Path = FOLDER) -> Path:
    """Where a run's result is kept."""
    return folder / name(config) / f"{stem(config)}.json"


def run_folder(config: Config, out: Path) -> Path:
    """Where a run itself is kept."""
    return out / name(config) / stem(config)


def outcome(
    config: Config,
    history: Sequence[Mapping[str, Any]],
    starts: Sequence[Mapping[str, Any]] = (),
    failed: str | None = None,
) -> Outcome:
    """What there is to keep of a run's rounds; ``starts`` are what the run folder says of each."""
    gap = next((i for i, r in enumerate(history, start=1) if r["round"] != i or "accuracy" not in r), None)
    if gap is not None:
        raise UserError(
            f"round {gap} was not evaluated: forgetting needs every round, so give --evaluate-every 1."
        )
    last: Mapping[str, Any] = history[-1] if history else {}
    made = _kept(starts[-1], KEPT_OF_START) if starts else {}
    if len(starts) > 1:
        made["earlier"] = [_kept(start, KEPT_OF_EARLIER) for start in starts[:-1]]
    return Outcome(
        config=config,
        accuracy=[float(r["accuracy"]) for r in history],
        forgetting=[float(r["forgetting"]) for r in history],
        class_accuracy=[float(a) for a in last.get("class_accuracy", [])],
        client_seconds=[float(sum(r["seconds"]["clients"])) for r in history],
        bytes_down=int(last.get("bytes_down", 0)),
        bytes_up=int(last.get("bytes_up", 0)),
        failures=sum(len(r["failures"]) for r in history),
        measures=rounded(last.get("measures", {})),
        made=made,
        failed=failed,
    )


def _kept(start: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {k: start[k] for k in keys if k in start}


def rounded(value: Any) -> Any:
    """Fractions to four digits, however deep."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def save(result: Outcome, folder: Path) -> Path:
    """Write a result, unless one of the same run that went further, or failed there, is kept; says where."""
    path = path_of(result.config, folder)
    if files.found(path):
        kept = read(path, codes(result.config.algorithm))
        if (kept.done, kept.failed is not None) > (result.done, result.failed is not None):
            return path
    lines = [f'"{key}": {json.dumps(value)}' for key, value in result.as_dict().items()]
    with files.writing(folder):
        files.write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return path


def read(path: Path, own: Mapping[str, str] = MappingProxyType({})) -> Outcome:
    """A result, checked. One of an algorithm of somebody's own is read if ``own``, as `codes` has it, says
    where that is: no code is loaded because a result names it."""
    held = _held(path)
    if others := _codes(held).keys() - own.keys():
        raise UserError(f"{path} is of {min(others)}, which was not asked for.")
    return _checked(path, held, own)


def codes(algorithm: Any) -> dict[str, str]:
    """The classes of somebody's own that an algorithm's spec names, however deep.

    By what each is called wherever its file lies, its name with the place.
    """
    found: dict[str, str] = {}

    def note(name: str) -> str:
        found[named(name)] = name
        return name

    _renamed(algorithm, note)
    return found


def _codes(held: Mapping[str, Any]) -> dict[str, str]:
    config = held.get("config")
    return codes(config.get("algorithm")) if isinstance(config, Mapping) else {}


def _placeless(algorithm: Mapping[str, Any]) -> Any:
    return _renamed(algorithm, named)


def _renamed(algorithm: Any, rename: Callable[[str], str]) -> Any:
    if not isinstance(algorithm, Mapping):
        return algorithm
    return {
        k: rename(v) if k == "name" and isinstance(v, str) and ":" in v else _renamed(v, rename)
        for k, v in algorithm.items()
    }


def _held(path: Path) -> dict[str, Any]:
    held = files.read_json(path)
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise UserError(f"{path} is not a result: its format is not {FORMAT!r}.")
    return held


def _checked(path: Path, held: Mapping[str, Any], own: Mapping[str, str]) -> Outcome:
    try:
        algorithm = _renamed(held["config"]["algorithm"], lambda name: own[named(name)])
        with specs.registered_only(*own.values(), remedy="a result is read without anybody's code."):
            config = configs.begun({**held["config"], "algorithm": algorithm})
        found = Outcome(
            config=config,
            accuracy=[float(a) for a in held["accuracy"]],
            forgetting=[float(f) for f in held["forgetting"]],
            class_accuracy=[float(a) for a in held["class_accuracy"]],
            client_seconds=[float(s) for s in held["client_seconds"]],
            bytes_down=int(held["bytes_down"]),
            bytes_up=int(held["bytes_up"]),
            failures=int(held["failures"]),
            measures=dict(held["measures"]),
            made=dict(held["made"]),
            failed=held["failed"],
        )
        sound = found.done == held["rounds"]["done"] == len(found.forgetting) == len(found.client_seconds)
        earlier = found.made.get("earlier", [])
        if not isinstance(earlier, list) or not all(isinstance(start, dict) for start in earlier):
            raise ValueError("earlier starts that are none")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a whole result: {error!r}.") from error
    if not sound:
        raise UserError(f"{path} is damaged: its curves and its number of rounds do not agree.")
    return found


class Results:
    """All results in a folder, by experiment, precision and seed."""

    def __init__(self, outcomes: Iterable[Outcome] = ()):
        self._by_identity: dict[str, dict[str, dict[int, Outcome]]] = {}
        self._by_subject: dict[tuple[str, str], set[str]] = {}
        for found in outcomes:
            self.add(found)

    @classmethod
    def load(cls, folder: Path, own: Mapping[str, str] = MappingProxyType({})) -> Results:
        """Those in a folder; there need not be one. Those of code that ``own`` does not name are left out."""
        paths = sorted(folder.glob(f"*/{RESULT}")) if files.found(folder) else ()
        held = ((path, _held(path)) for path in paths)
        return cls(_checked(path, found, own) for path, found in held if _codes(found).keys() <= own.keys())

    def add(self, found: Outcome) -> None:
        """Keep it, unless the same run went further."""
        self._by_subject.setdefault(subject(found.config), set()).add(found.identity)
        precisions = self._by_identity.setdefault(found.identity, {})
        seeds = precisions.setdefault(found.config.precision, {})
        kept = seeds.get(found.seed)
        if kept is None or found.done > kept.done:
            seeds[found.seed] = found

    def of(self, config: Config, precision: str | None = None) -> dict[int, Outcome]:
        """By seed, the runs of this config, all in one precision: this one, or else that of most rounds.

        Runs in two of them are not averaged, nor taken for a pair.
        """
        held = self._by_identity.get(identity(config), {})

        def covered(precision: str) -> tuple[int, int]:
            played = sum(min(run.done, config.rounds) for run in held[precision].values())
            return played, PRECISIONS.index(precision)

        if precision is None and held:
            precision = max(held, key=covered)
        return dict(sorted(held.get(precision or "", {}).items()))

    def precisions(self, config: Config) -> list[str]:
        """In which this config was run, that of most rounds first."""
        first = {run.config.precision for run in self.of(config).values()}
        held = self._by_identity.get(identity(config), {})
        return sorted(held, key=lambda p: (p not in first, PRECISIONS.index(p)))

    def only(self, precision: str) -> Results:
        """Those in one precision."""
        return Results(run for run in self if run.config.precision == precision)

    def about(self, config: Config) -> list[Outcome]:
        """The runs on this data set with this algorithm, in whatever setup."""
        return [run for i in sorted(self._by_subject.get(subject(config), ())) for run in self._runs(i)]

    def _runs(self, identity: str) -> Iterator[Outcome]:
        return (run for seeds in self._by_identity[identity].values() for run in seeds.values())

    def __iter__(self) -> Iterator[Outcome]:
        return (run for identity in self._by_identity for run in self._runs(identity))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def subject(config: Config) -> tuple[str, str]:
    """What no switch changes: the data set and the algorithm, whatever its settings."""
    return config.dataset["name"], config.algorithm["name"]


def of_run(folder: Path) -> Outcome:
    """What a run folder holds, be it still running."""
    run = Run(folder)
    return outcome(configs.make(run.config), run.records, run.made)


class Keeper:
    """A sink that keeps a run's result up to date on disk."""

    def __init__(self, config: Config, folder: Path, starts: Callable[[], Sequence[Mapping[str, Any]]]):
        """``starts`` is asked once the run has begun, what made it."""
        self._config, self._folder, self._asked = config, folder, starts
        self._starts: Sequence[Mapping[str, Any]] = ()
        self._history: list[Mapping[str, Any]] = []
        self._last, self._saved = 0.0, 0

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """The run starts."""
        self._starts, self._history = self._asked(), list(history)

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played."""
        self._history.append(record)
        if time.monotonic() - self._last >= PAUSE:
            self._save()

    def end(self) -> None:
        """The run is over, finished or not."""
        self._save()

    def failed(self, reason: str) -> None:
        """The run cannot go on."""
        save(outcome(self._config, self._history, self._starts, reason), self._folder)

    def _save(self) -> None:
        self._last = time.monotonic()
        if len(self._history) > self._saved:
            save(outcome(self._config, self._history, self._starts), self._folder)
            self._saved = len(self._history)
