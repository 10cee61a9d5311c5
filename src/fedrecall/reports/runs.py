"""A run folder as a report sees it: what was asked, what was recorded, who held what, the last model.

`Run` reads files only when asked for them and holds no lock, so a run that is still going can be
looked at. `arrange` puts many runs in order: seeds of one experiment together, each named by what
sets it apart from the others.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from fedrecall import config as configs
from fedrecall import contracts, files, own_digest, own_modules, provenance, secrecy, specs, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg, keeps_own
from fedrecall.config import Config
from fedrecall.data.augmentation import default_for
from fedrecall.data.datasets import DATASETS, Dataset, load
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import Gone, Malformed, NothingYet, UserError, shown
from fedrecall.fields import fields
from fedrecall.ingredients import auxiliary_per_class, make_model, normalised
from fedrecall.initial import saved
from fedrecall.memories import AtNode, Memories
from fedrecall.models.model import Model, Weights
from fedrecall.models.trained import Inputs, Trained
from fedrecall.records import AGREED, INPUTS, Checkpoint, Fault, RunFolder, scalars, whole

SEEDS = ("seed", "partition_seed")
ELSEWHERE = (*(key for key in configs.MAY_CHANGE if key != "rounds"), "on_failure")
"""Config keys that say how a run was computed or watched, not what it computes."""
HELD = "auxiliary_per_class"
"""Config key for what the server holds, which clients do not: another number of it is another deal."""
NODES = "nodes' data"
"""Key in the data set of `Run.complete` for what tells a federation's data from another's."""
MOST_UNTESTED = 5
"""Nodes that a sentence names without which a run was tested."""
RESULT = "seed*.json"
"""What the files are called that `reproduce` keeps of runs: their numbers, without the run folders."""
LEVELS = 3
"""How many folders down runs are found: `reproduce` makes runs/reproduction/EXPERIMENT/seed0."""

P = ParamSpec("P")
T = TypeVar("T")


def from_files(show: Callable[P, T]) -> Callable[P, T]:
    """What makes something of run folders: if that fails for what they hold, a sentence says so."""

    @wraps(show)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return show(*args, **kwargs)
        except UserError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise UserError(
                "the runs' files hold something that cannot be shown "
                f"({type(error).__name__}: {shown(str(error))}): were they changed by hand? "
                "fedrecall --debug shows where."
            ) from error

    return guarded


_HERE = {"backend": "serial", "device": "cpu", "measures": [], "sinks": []}
"""Settings of whoever looks at a run that was made elsewhere."""


class Run:
    """One run's files."""

    def __init__(self, path: Path | str, name: str | None = None, data_root: Path | None = None):
        """``name``: what to call it; by default the folder's name. ``data_root``: as `load` takes it."""
        self.path = files.expanded(path)
        self.name = name or self.path.resolve().name
        self.folder = RunFolder(self.path)
        self._data_root = data_root
        if not self.folder.started:
            raise Gone(f"{self.path} is not a run: it has no config.json.")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The effective config, as saved but for passwords in its sinks' addresses."""
        found, usual = self.folder.config(), configs.as_dict(Config())
        for key, value in usual.items():
            if key not in found and key not in configs.NEEDED:
                continue  # a setting that a later version added
            given = found.get(key)
            sound = isinstance(given, (int, float)) if key == "sample" else isinstance(given, type(value))
            if key in configs.REGISTRIES or key == "training":
                sound = isinstance(given, dict) and (
                    "name" not in value or isinstance(given.get("name"), str)
                )
            if value is not None and key != "model" and not sound:
                raise UserError(f"{self.path / 'config.json'} is damaged: {key} = {shown(given)}.")
        if "sinks" in found:
            found["sinks"] = [secrecy.in_text(str(sink)) for sink in found["sinks"]]
        return configs.without_gone(found)

    @cached_property
    def complete(self) -> dict[str, Any]:
        """The config with what it was saved without: settings added later, and which data the nodes have.

        A user's own class is not loaded for it. What the run noted a digest of is called the same wherever it
        lies: own code, data and a partition's file, and by the digest alone the model that was ``initial``.
        Numbers that are equal are written alike, a share of clients as their number, and what the server
        holds as what it is where that was left to the algorithm.
        """
        given, usual = self.config, configs.as_dict(Config())
        found = {k: v for k, v in usual.items() if k not in configs.NEEDED}
        found |= {"normalisation": "data", "augmentation": str(default_for(given["dataset"]["name"]))}
        found |= given
        clients = {key: found[key] for key in ("clients", "sample")}
        found["sample"] = configs.begun({**usual, **clients}).sampled
        found["training"] = {**usual["training"], **given["training"]}
        for kind, registry in configs.REGISTRIES.items():
            if given[kind]["name"] in registry:
                known = fields(registry.cls(given[kind]["name"]))
                usual_here = {f.name: f.default for f in known if f.default is not dataclasses.MISSING}
                found[kind] = {**usual_here, **given[kind]}
        found[HELD] = found[HELD] or self._needed
        found["initial"] = self.begun_with or found["initial"]
        for kind, told in (("dataset", self._data_noted), ("partition", self._deal_noted)):
            if told is not None and isinstance(path := found[kind].get("path"), str):
                found[kind] = {**found[kind], "path": Path(path).name}
        if self.agreed is not None:
            found["dataset"] = {**found["dataset"], NODES: _data_of(self.agreed)}
            if "secure" in self.agreed:
                found["secure"] = self.agreed["secure"]
        plain = json.loads(json.dumps(found, default=str), parse_float=_number)
        code = self.made[-1].get("code") if self.made else None
        noted = code.items() if isinstance(code, dict) else ()
        return dict(own_modules.placeless(plain, {name for name, d in noted if d != own_digest.UNKNOWN}))

    @property
    def _needed(self) -> int | None:
        """Examples of each class that the server holds if it holds what the algorithm needs.

        What an algorithm of somebody's own needs the partition says; None if that is not there.
        """
        if self._registered is not None:
            return auxiliary_per_class(Config(algorithm=self._registered), self._registered)
        try:
            return int(self.partition["auxiliary"]) // max(len(self.class_names), 1)
        except UserError:  # nodes have the data
            return None

    @cached_property
    def _registered(self) -> FedAvg | None:
        """The algorithm; None if it takes somebody's own code, which is not loaded, or cannot be made."""
        with specs.registered_only(remedy="it is not loaded here."):
            try:
                made: FedAvg = ALGORITHMS.make(self.config["algorithm"])
            except UserError:
                return None
        return made

    @property
    def may_keep_layers(self) -> bool:
        """Whether clients may have other models than what is evaluated; of an older run of somebody's own
        algorithm it is only known whether they keep anything."""
        if self._registered is not None:
            return keeps_own(self._registered)
        if self.made and "own models" in self.made[-1]:
            return bool(self.made[-1]["own models"])
        return any(record.get("memory_bytes") for record in self.records)

    @cached_property
    def agreed(self) -> dict[str, Any] | None:
        """What the nodes of a federation agreed on, as its server noted it; None of any other run."""
        path = self.path / AGREED
        if not path.exists():
            return None
        found = files.read_json(path)
        if not isinstance(found, dict):
            raise UserError(f"{path} does not say what the nodes agreed on.")
        return found

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One record a round; own measures are called as now, of which earlier versions noted the folder."""
        found = self.folder.metrics()
        if not found:
            raise NothingYet(f"{self.path} has no finished round yet.")
        records = list(whole(found, self.path / "metrics.jsonl"))
        for part in (part for r in records for part in (r, r["seconds"]) if "measures" in part):
            part["measures"] = {own_modules.named(name): value for name, value in part["measures"].items()}
        return records

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A flat dict a round: whose it is, and its numbers by name, such as ``seconds/train``; none before
        the first.

        A table of all: ``pandas.DataFrame(row for run in fedrecall.open_runs("runs") for row in run.rows)``.
        """
        try:
            records = self.records
        except NothingYet:
            return []
        of = self.complete["algorithm"]
        text = specs.short_text(ALGORITHMS, of) if of["name"] in ALGORITHMS else specs.word(of)
        split = "validation" if self.complete["validation"] else "test"
        whose = {"run": self.name, "algorithm": text, "seed": self.seed, "split": split}
        return [{**whose, "round": r["round"], **scalars(r)} for r in records]

    @cached_property
    def made(self) -> list[dict[str, Any]]:
        """Command, versions and machine of every start; of commands what is secret is left out."""
        path = self.path / "made.json"
        found = files.read_json(path) if path.exists() else []
        starts = [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []
        return [
            m | {"command": secrecy.in_command(m["command"])} if isinstance(m.get("command"), str) else m
            for m in starts
        ]

    @cached_property
    def noted(self) -> dict[str, str]:
        """What the last start noted of somebody's own ``code`` and of the ``data``: a digest of each.

        Not of the values in a module, which its code says: earlier versions noted a script's alone.
        """
        code = self.made[-1].get("code") if self.made else None
        found = {}
        if isinstance(code, dict) and code:
            found["code"] = " ".join(
                f"{name}={str(digest)[:8]}"
                for name, digest in sorted(code.items())
                if (own_digest.looking_up(name) or "__main__:").startswith("__main__:")
            )
        if told := list(filter(None, (self._data_noted, self._deal_noted))):
            found["data"] = " ".join(told)
        return found

    @property
    def _data_noted(self) -> str | None:
        data = self.made[-1].get("data") if self.made else None
        if not isinstance(data, dict) or "digest" not in data:
            return None
        told = [str(data[k]) for k in ("digest", "origins") if k in data]
        return f"data {data.get('train')}+{data.get('test')} {' '.join(told)}"

    @property
    def _deal_noted(self) -> str | None:
        """What a partition's file dealt, that may be written anew."""
        if self.config["partition"]["name"] != "file" or not files.found(self.path / "partition.json"):
            return None
        return f"dealt as {self._divided.get('clients')}"

    @property
    def begun_with(self) -> str | None:
        """A digest of the model that was `initial`, if the run noted it."""
        digest = self.made[-1].get("initial") if self.made else None
        return digest[:8] if isinstance(digest, str) else None

    @cached_property
    def _divided(self) -> dict[str, Any]:
        """What partition.json says, with a digest of the clients' examples in place of these."""
        found = files.read_json(self.path / "partition.json")
        said = dict(found) if isinstance(found, dict) else {}
        if "clients" in said:
            clients = json.dumps(said["clients"]).encode()
            said["clients"] = hashlib.blake2b(clients, digest_size=4).hexdigest()
        return said

    @property
    def dealt(self) -> str | None:
        """What tells which examples the clients hold from others; None where no file says it."""
        try:
            meta = self.partition
        except UserError:
            return None
        return self._divided.get("clients") or json.dumps([meta["counts"], meta["auxiliary"]])

    @cached_property
    def partition(self) -> dict[str, Any]:
        """What partition.json says beside the examples: counts, class_names, auxiliary."""
        meta = self._divided.get("meta")
        if not isinstance(meta, dict) or not {"counts", "class_names", "auxiliary"} <= meta.keys():
            raise UserError(
                f"{self.path / 'partition.json'} does not say how many examples of each class the clients "
                "hold."
            )
        return meta

    @property
    def counts(self) -> np.ndarray:
        """Examples of each class at each client, [N, C]."""
        told = self.partition["counts"]
        try:
            counts = np.asarray(told, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            counts = np.empty(0, dtype=np.int64)
        if counts.ndim != 2 or counts.shape[1] != len(self.class_names) or (counts < 0).any():
            raise UserError(f"{self.path / 'partition.json'}: counts are not whole numbers, a row a client.")
        return counts

    @property
    def distributions(self) -> np.ndarray:
        """p^k of every client, [N, C]."""
        counts = self.counts
        return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1))

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""
        inputs, divided = self.path / INPUTS, self.path / "partition.json"
        if inputs.exists() and not divided.exists():  # the clients' data are elsewhere
            return list(Inputs.load(inputs).class_names)
        return [str(name) for name in self.partition["class_names"]]

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def seeds(self) -> tuple[int, int]:
        """The run's seed and its partition's."""
        given = (self.config.get(key) for key in ("global_seed", "partition_seed"))
        return self.seed, next((int(seed) for seed in given if seed is not None), self.seed)

    @property
    def algorithm(self) -> str:
        """The algorithm's name: somebody's own is called the same wherever its file lies."""
        return own_modules.named(str(self.config["algorithm"]["name"]))

    @property
    def data_name(self) -> str:
        """The data set in a few words: somebody's own is called the same wherever its file lies."""
        name = str(self.config["dataset"]["name"])
        if name in DATASETS:
            # The settings name what was there unasked where data were given from Python.
            data = self.made[-1].get("data") if self.made else None
            return str(data.get("name", name)) if isinstance(data, dict) else name
        return own_modules.named(name) if self.agreed is None else data_in_words(self.complete["dataset"])

    @property
    def partition_name(self) -> str:
        """The partition as it is written, such as shards:2; of somebody's own the name alone."""
        spec = self.config["partition"]
        own = spec["name"] not in PARTITIONS
        return own_modules.named(str(spec["name"])) if own else specs.spec_text(PARTITIONS, spec)

    @property
    def finished(self) -> bool:
        """Whether it came to its end, as `through` says."""
        return through(self.records, self.fault, self.config)

    @cached_property
    def fault(self) -> Fault | None:
        """The error that ended the run, if one did and it has not gone on since."""
        found = self.folder.fault
        return None if found is None else found._replace(reason=secrecy.in_text(found.reason))

    @cached_property
    def evaluated(self) -> list[dict[str, Any]]:
        """The records of the rounds that were evaluated."""
        return [r for r in self.records if "accuracy" in r]

    @property
    def rounds(self) -> np.ndarray:
        """Numbers of the evaluated rounds."""
        return np.array([r["round"] for r in self.evaluated])

    def series(self, key: str) -> np.ndarray:
        """A number (or a row of them) of every evaluated round: accuracy, forgetting, class_accuracy."""
        return np.array([r[key] for r in self.evaluated], dtype=float)  # None becomes NaN

    def measured(self, measure: str) -> list[tuple[int, dict[str, Any]]]:
        """(round, what the measure recorded), or a UserError that says how to have it recorded."""
        name = own_modules.named(measure)
        found = [(r["round"], r["measures"][name]) for r in self.records if name in r.get("measures", {})]
        if not found:
            raise UserError(
                f"{self.path} was not measured with {measure!r}: run it with --measure {measure}."
            )
        return found

    # What needs more than the records.

    @cached_property
    def settings(self) -> Config:
        """The config, checked and as objects; to be computed on this machine's CPU, whatever the run had."""
        return configs.begun({**self.config, **_HERE})

    @cached_property
    def _trained_by(self) -> Config:
        """As much of the settings as the model needs, whether or not its data are where they were."""
        return configs.begun({**self.config, **_HERE, "dataset": "digits", "partition": "iid"})

    @cached_property
    def dataset(self) -> Dataset:
        """The data set that the config names, if it is what the run was begun on.

        A UserError says where it is looked for, or that it is not.
        """
        found = load(self.settings.dataset, root=self._data_root)
        remedy = "bring the run's own data back, or name their folder with --data-root."
        provenance.check_data(self.path, self._starts, provenance.facts(found), remedy)
        return found

    def checkpoint(self, round_number: int | None = None) -> Checkpoint:
        """The newest checkpoint, or that of a round: the last two are kept, and those of ``keep_every``."""
        refused = list[str]()
        for checkpoint in self.folder.checkpoints(refused, remembering=False, of=round_number):
            if refused and round_number is None:
                warnings.warn(f"{refused[0]} Taking round {checkpoint.round_number}'s.", RuntimeWarning)
            return checkpoint
        wanted = "checkpoint" if round_number is None else f"checkpoint of round {round_number}"
        others = [] if round_number is None else [n for n in self.folder.saved_rounds() if n != round_number]
        there = f", only of {_enumerated(others)}" if others else ""
        raise UserError(" ".join([f"{self.path} has no {wanted}{there}.", *refused[:1]]))

    @cached_property
    def inputs(self) -> Inputs:
        """What the network is given, as the run noted it; of earlier versions' runs the data set says it."""
        path = self.path / INPUTS
        return Inputs.load(path) if path.exists() else Inputs.of(normalised(self.settings, self.dataset))

    @cached_property
    def model(self) -> Model:
        """The network's structure, of the code that the run was begun with."""
        settings = self._trained_by
        found = make_model(settings, self.inputs, self._algorithm)
        made = own_digest.code(configs.what(settings))
        # No model depends any more on the values that its code looked up.
        provenance.check_code(self.path, self._starts, made, "", values=False)
        return found

    @cached_property
    def _algorithm(self) -> FedAvg:
        made: FedAvg = ALGORITHMS.make(self._trained_by.algorithm)
        return made

    @property
    def _starts(self) -> list[dict[str, Any]]:
        """What every start noted of its data and code, as `provenance` checks it."""
        return provenance.starts(self.path / "made.json")

    def trained(
        self, round_number: int | None = None, client: int | None = None, memory: Path | str | None = None
    ) -> Trained:
        """The global model after the last saved round, or after this one, or what a client has of it.

        ``memory``: the folder in which that client's node of a federation has its memories.
        """
        if memory is not None and client is None:
            raise UserError("memory is a client's: say which with --client (client=...).")
        weights = self.weights(round_number) if client is None else self.own(client, round_number, memory)
        return Trained(self.model, weights, self.inputs)

    def own(self, client: int, round_number: int | None = None, memory: Path | str | None = None) -> Weights:
        """The global model with what a client keeps; before its first visit, with what it begins with."""
        algorithm = self._algorithm
        if not keeps_own(algorithm):
            raise UserError(f"clients of {self.path} have no model of their own: theirs is the global one.")
        self.check_client(client)
        if self.agreed is not None and memory is None:
            raise UserError(
                f"{self.path} was a federation: what client {client} keeps is at its node alone. There, name "
                "the node's folder for memories with --memory (memory=...)."
            )
        if self.agreed is None and memory is not None:
            raise UserError(f"{self.path} was no federation, and has what clients keep: leave memory out.")
        checkpoint = self.checkpoint(round_number)
        weights = self.weights(checkpoint.round_number)
        with torch.random.fork_rng(devices=[]):  # a first memory may be drawn
            first = algorithm.remember(weights)
        there = self.agreed is not None
        memories = Memories({"round": torch.tensor(0)} if there else first, self.path / "memories")
        last, named = self.folder.kept_rounds(), checkpoint.memories.get(str(client), "")
        if checkpoint.round_number not in last and not files.found(memories.folder / named):
            raise UserError(
                f"{self.path} has the global model of round {checkpoint.round_number} alone; what clients "
                f"keep is there of rounds {_enumerated(last)}."
            )
        memories.load(checkpoint.memories)
        kept = memories.get(client)
        if self.agreed is not None and memory is not None:  # the server has in which round it last was there
            visited = 0 if kept is None else int(kept["round"])
            try:
                node = AtNode(memory, str(self.agreed.get("run")), client, algorithm.remembers_once)
            except Malformed as error:
                raise UserError(f"{self.path / AGREED} is damaged: {error}.") from error
            kept = node.get(visited, first)
        return contracts.deployed(algorithm, weights, first if kept is None else kept)

    def check_client(self, client: int) -> None:
        """Raise UserError unless there is such a client."""
        count = int(self.config["clients"])
        if not 0 <= client < count:
            raise UserError(f"there is no client {client}, only 0 to {count - 1}.")

    def weights(self, round_number: int | None = None) -> Weights:
        """The global model after the last saved round, or after this one."""
        initial = self.model.initial()
        flat = saved(self._algorithm, initial, self.checkpoint(round_number).arrays)
        if {n: t.shape for n, t in trees.leaves(initial)} != {n: t.shape for n, t in flat.items()}:
            raise UserError(f"the checkpoint of {self.path} is not of the model that the config names.")
        return trees.restore(initial, flat, f"the checkpoint of {self.path}")


def trained(
    run: Path | str,
    round_number: int | None = None,
    client: int | None = None,
    memory: Path | str | None = None,
) -> Trained:
    """The model of a run folder, to be used: ``fedrecall.trained("runs/mine").predict(images)``.

    ``round_number``: of which round, of those that are kept; by default the last. ``client``: whose, where
    an algorithm gives clients layers of their own; by default the global one. ``memory``: at that client's
    node of a federation, the folder in which the node has its memories.
    """
    return Run(run).trained(round_number, client, memory)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    runs: tuple[Run, ...]
    algorithm: str
    """The algorithm, with those of its hyperparameters that differ between the groups."""
    settings: dict[str, str]
    """Whatever else differs between the groups, in words and by its key."""
    left_out: tuple[tuple[Run, Run], ...] = ()
    """(run, the run that is kept) of those whose seeds another one has: copies, and reruns elsewhere."""
    failed: tuple[Run, ...] = ()
    """Runs that an error ended, where others went on; where none did they are ``runs``, as far as in step."""
    astray: tuple[tuple[Run, str], ...] = ()
    """Runs that `in_step` left out, and why, in words."""

    @property
    def setup(self) -> str:
        """The settings one after the other: ``shards:2, clients=100``; may be empty."""
        return ", ".join(self.settings.values())

    @property
    def label(self) -> str:
        """What sets the group apart."""
        return f"{self.algorithm} ({self.setup})" if self.setup else self.algorithm

    @property
    def seeds(self) -> list[int]:
        """The runs' seeds."""
        return [run.seed for run in self.runs]

    @property
    def names(self) -> list[str]:
        """Each run's seed in words, and its partition's where another run has the same seed."""
        return [
            f"seed {own}" if self.seeds.count(own) == 1 else f"seed {own}, partition {of_partition}"
            for own, of_partition in (run.seeds for run in self.runs)
        ]

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(rounds, values [seed, round, ...]) over the rounds that all runs of the group evaluated."""
        rounds = sorted(set.intersection(*(set(run.rounds.tolist()) for run in self.runs)))
        if not rounds:
            raise UserError(f"the runs of {self.label} have no evaluated round in common.")
        rows = [run.series(key)[np.isin(run.rounds, rounds)] for run in self.runs]
        return np.array(rounds), np.stack(rows)

    def last(self, key: str) -> list[float]:
        """The value after the last evaluated round, one a seed."""
        return [float(run.series(key)[-1]) for run in self.runs]


def open_runs(paths: Path | str | Iterable[Path | str], data_root: Path | None = None) -> list[Run]:
    """Runs by folder, each once; a folder that is no run stands for all in it, up to `LEVELS` down.

    ``open_runs("runs")`` gives their `config`, `records` and `rows`, which pandas takes.

    Runs whose folders have the same name are called by their parents' names, too.
    """
    once: dict[Path, Path] = {}
    for path in map(files.expanded, [paths] if isinstance(paths, (str, Path)) else paths):
        found = [path] if files.found(path / "config.json") else list(_within(path, LEVELS))
        if not found:
            raise Gone(_no_run(path))
        for folder in found:
            once.setdefault(folder.resolve(), folder)
    if not once:
        raise UserError("name at least one run.")
    return [Run(folder, name, data_root) for folder, name in zip(once.values(), _names(once), strict=True)]


def _no_run(path: Path) -> str:
    if path.match(RESULT) or any(True for level in range(LEVELS) for _ in path.glob("*/" * level + RESULT)):
        return (
            f"{path} holds results of reproduce, the numbers of runs without the runs: they are printed by "
            "fedrecall reproduce PAPER/TABLE --seeds 0 --results FOLDER, the repository's are in "
            "docs/reproduction.md as well. Name run folders, such as those that reproduce leaves in --out."
        )
    return (
        f"{path} is neither a run nor a folder of runs: there is no config.json in it, nor up to "
        f"{LEVELS} folders down."
    )


def any_in(path: Path) -> bool:
    """Whether `open_runs` finds a run there."""
    return any(True for _ in _within(files.expanded(path), LEVELS))


def _within(folder: Path, levels: int) -> Iterator[Path]:
    """The folder if it is a run, else the runs in it; hidden folders are passed over."""
    if os.path.exists(folder / "config.json"):  # no error where that may not be read
        yield folder
    elif levels:
        for inner in sorted(folder.glob("[!.]*/"), key=lambda path: naturally(path.name)):
            yield from _within(inner, levels - 1)


def naturally(name: str) -> list[int | str]:
    """What to sort names by so that run 9 comes before run 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _names(folders: Iterable[Path]) -> list[str]:
    """The folders' names, all with as many parents' in front as it takes to tell each from the others."""
    parts = [folder.parts for folder in folders]
    length = next(n for n in itertools.count(1) if len({p[-n:] for p in parts}) == len(parts))
    return [str(Path(*p[-length:])) for p in parts]


def arrange(runs: Sequence[Run]) -> list[Group]:
    """The runs by experiment, in the order in which each first occurs, seeds sorted.

    Runs of one config are two experiments if they noted different code of somebody's own or data. An
    experiment has one run of a seed: one that did not fail, then the one that is furthest, the first of
    equals.
    """
    members: dict[tuple[str, ...], dict[tuple[int, int], list[Run]]] = {}
    for run in runs:
        key = _identity(run), *map(str, run.noted.items())
        members.setdefault(key, {}).setdefault(run.seeds, []).append(run)
    firsts = [next(iter(same.values()))[0] for same in members.values()]
    configs_ = [run.complete for run in firsts]
    apart = [noted_apart(run, firsts) for run in firsts]
    settings = [
        in_words(c) | {k: v for k, v in noted.items() if k != "code"}
        for c, noted in zip(configs_, apart, strict=True)
    ]
    models: dict[str, str] = {}  # each called as where it was first begun with
    for run, mine in zip(firsts, settings, strict=True):
        if (digest := run.begun_with) is not None:
            called = f"initial={Path(str(run.config.get('initial'))).name} {digest}"
            mine["initial"] = models.setdefault(digest, called)
    varying = [
        k for k in dict.fromkeys(k for s in settings for k in s) if len({s.get(k) for s in settings}) > 1
    ]
    groups, names = [], list(dict.fromkeys(str(c["algorithm"]["name"]) for c in configs_))
    for same, config, mine, noted in zip(members.values(), configs_, settings, apart, strict=True):
        algorithm = config["algorithm"]
        others = [c["algorithm"] for c in configs_ if c["algorithm"]["name"] == algorithm["name"]]
        own = [specs.assignment(k, v) for k, v in algorithm.items() if any(o.get(k) != v for o in others)]
        called = str(algorithm["name"])
        if [own_modules.named(n) for n in names].count(own_modules.named(called)) == 1:
            called = own_modules.named(called)
        name = " ".join([called, *own, *([noted["code"]] if "code" in noted else [])])
        differing = {k: mine[k] for k in varying if k in mine}
        kept = {
            seeds: max(those, key=_worth) if len(those) > 1 else those[0] for seeds, those in same.items()
        }
        rest = [
            (run, kept[seeds]) for seeds, those in same.items() for run in those if run is not kept[seeds]
        ]
        ordered = [kept[seeds] for seeds in sorted(kept)]
        whole = [run for run in ordered if run.fault is None] or ordered
        failed = [run for run in ordered if run not in whole]
        groups.append(Group(tuple(whole), name, differing, tuple(rest), tuple(failed)))
    return groups


def noted_apart(run: Run, others: Iterable[Run]) -> dict[str, str]:
    """What a run noted (see `Run.noted`) that some of the others of the same config noted otherwise."""
    alike = [other.noted for other in others if _identity(other) == _identity(run)]
    return {k: v for k, v in run.noted.items() if any(noted.get(k) != v for noted in alike)}


def in_step(groups: Iterable[Group]) -> list[Group]:
    """The groups without runs that would cut the others short: these are ``astray``, or ``failed``.

    They have no evaluated round in common with the others of their group, or less than half as many rounds
    as half of these have.
    """
    kept = []
    for group in groups:
        places = in_common([run.rounds.tolist() if _far(run)[0] else [] for run in group.runs])
        others = [run for i, run in enumerate(group.runs) if i not in places]
        out = [(run, "has no evaluated round in common with") for run in others]
        runs = [group.runs[i] for i in places]
        far = sorted((_far(run)[0] for run in runs), reverse=True)[: (len(runs) + 1) // 2]
        behind = [run for run in runs if 2 * _far(run)[0] < far[-1]]
        out += [(run, f"is only at round {_far(run)[0]} and would cut short") for run in behind]
        on = tuple(run for run in runs if run not in behind)
        failed = (*group.failed, *(run for run, _ in out if run.fault is not None))
        told = [(run, f"{why} the other seeds of its experiment") for run, why in out if run not in failed]
        kept.append(dataclasses.replace(group, runs=on, failed=failed, astray=tuple(told)))
    return kept


def in_common(rounds: Sequence[Collection[int]]) -> list[int]:
    """Which of these have one in common: all that have any, without as many of the youngest as it takes."""
    places = [i for i, own in enumerate(rounds) if own]
    while places and not set.intersection(*(set(rounds[i]) for i in places)):
        places.remove(min(places, key=lambda i: max(rounds[i])))
    return places


def unfinished(runs: Iterable[Run]) -> list[str]:
    """A sentence for every run whose last record is not that of its last round, of those that may go on."""
    return [
        f"{run.name} stands at round {_far(run)[0]} of {run.config['rounds']}"
        for run in runs
        if run.fault is None and 0 < _far(run)[0] < run.config["rounds"]
    ]


def failures(runs: Iterable[Run]) -> list[str]:
    """A sentence for every run that an error ended."""
    return [f"{run.name} {failure(run.fault, run.config)}" for run in runs if run.fault is not None]


def through(records: Sequence[Mapping[str, Any]], fault: Fault | None, config: Mapping[str, Any]) -> bool:
    """Whether all rounds were played and no error ended the run, be it after the last round's record."""
    return fault is None and bool(records) and records[-1]["round"] >= config["rounds"]


def failure(fault: Fault, config: Mapping[str, Any]) -> str:
    """When a run failed and why, in words that end a sentence without its full stop."""
    return f"failed at round {fault.round_number} of {config['rounds']}: {fault.reason.rstrip('.')}"


def duration(seconds: float) -> str:
    """Roughly how long, in words: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def left_out(groups: Iterable[Group]) -> list[str]:
    """A sentence for every run that `arrange` did not count."""
    return [
        f"{run.name} is the same experiment with the same seed as {kept.name} and is left out"
        for group in groups
        for run, kept in group.left_out
    ]


def validated(runs: Iterable[Run]) -> list[str]:
    """A sentence for every run that was evaluated on held-out training examples."""
    return [
        f"{run.name} was evaluated on held-out training examples (validation = {share:g}), not the test split"
        for run in runs
        if (share := run.config.get("validation"))
    ]


def partly_tested(runs: Iterable[Run]) -> list[str]:
    """A sentence for each run that was tested in a round without a node of its federation or by nobody."""
    said = []
    for run in runs:
        due = [record for record in run.records if "accuracy" in record or record.get("untested")]
        rounds = [record["round"] for record in due]
        without: dict[str, list[int]] = {}
        for place, record in enumerate(due):
            for why in record.get("untested", ()) if "accuracy" in record else ():
                without.setdefault(str(why).partition(",")[0], []).append(place)
        shown = [f"{who} in {_spans(rounds, places)}" for who, places in without.items()]
        if len(shown) > MOST_UNTESTED:
            shown[MOST_UNTESTED:] = [f"{len(shown) - MOST_UNTESTED} others"]
        parts = [f"without {', '.join(shown)}"] if shown else []
        if nobody := [place for place, record in enumerate(due) if "accuracy" not in record]:
            parts.append(f"by nobody in {_spans(rounds, nobody)}")
        if parts:
            said.append(f"{run.name} was tested {' and '.join(parts)}")
    return said


def _spans(rounds: Sequence[int], places: Sequence[int]) -> str:
    """``rounds 5 to 6 and 9``: of the rounds that were to be evaluated those at these places."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    spans = [str(rounds[r[0]]) + (f" to {rounds[r[-1]]}" if len(r) > 1 else "") for r in runs]
    return f"round{'s' if len(places) > 1 else ''} {_enumerated(spans)}"


def _enumerated(parts: Sequence[Any]) -> str:
    """``1, 2 and 3``."""
    *others, last = map(str, parts)
    return " and ".join(filter(None, (", ".join(others), last)))


def value(config: dict[str, Any], key: str) -> Any:
    """A setting by its dotted key: ``algorithm.beta``, ``training.local_epochs``, ``clients``."""
    found: Any = config
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            raise UserError(f"the runs have no setting {key!r}.")
        found = found[part]
    return found


def in_words(config: dict[str, Any]) -> dict[str, str]:
    """What a setup consists of, each in words."""
    found = {}
    for key, given in config.items():
        if key in ("algorithm", *SEEDS, *ELSEWHERE):
            continue
        if key == "dataset":
            found[key] = data_in_words(given)
        elif key == "partition" and NODES in config["dataset"]:
            found[key] = f"{written(PARTITIONS, given)} where nodes divide"
        elif key in configs.REGISTRIES:
            found[key] = written(configs.REGISTRIES[key], given)
        elif key == "training":
            found |= {k: f"{k}={specs.word(v)}" for k, v in given.items()}
        elif key in ("model", "augmentation"):
            found[key] = specs.word(given)
        else:
            found[key] = f"{key}={specs.word(given)}"
    return found


def written(registry: specs.Registry, spec: dict[str, Any]) -> str:
    """A spec as `specs.spec_text` has it; of somebody's own, which is not loaded, with every setting."""
    return specs.spec_text(registry, spec) if spec["name"] in registry else specs.word(spec)


def data_in_words(dataset: dict[str, Any]) -> str:
    """The data set of a `Run.complete` with its settings, and what is known of a federation's own data."""
    named = written(DATASETS, {k: v for k, v in dataset.items() if k != NODES})
    if NODES not in dataset:
        return named
    held = dataset[NODES]
    parts = [
        "x".join(map(str, held["shape"])) if held["shape"] else "",
        f"{len(held['classes'])} classes" if held["classes"] else "",
        f"{held['examples']:,} examples" if held["examples"] else "",
        f"digest {held['digest']}",
    ]
    nodes = f"nodes' data ({', '.join(filter(None, parts))})"
    return f"{named} and {nodes}" if dataset["name"] in DATASETS else nodes


def _data_of(agreed: dict[str, Any]) -> dict[str, Any]:
    """What tells the data of a federation's nodes from others', as far as its server noted it.

    Of how many examples each node has the sum: where nodes divide the data, every seed does so anew.
    """
    names = agreed.get("class_names", agreed.get("classes"))
    statistics = agreed.get("statistics")
    if statistics is None:  # earlier versions noted the statistics themselves
        statistics = [[f"{v:.4g}" for v in agreed.get(part) or ()] for part in ("mean", "std")]
    examples = agreed.get("examples")
    held = {
        "shape": agreed.get("shape"),
        "classes": names,
        "columns": agreed.get("columns"),
        "examples": None if examples is None else sum(examples),
    }
    said = json.dumps([*held.values(), statistics])
    return held | {"digest": hashlib.blake2b(said.encode(), digest_size=4).hexdigest()}


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _far(run: Run) -> tuple[int, int]:
    try:
        return int(run.records[-1]["round"]), len(run.evaluated)
    except NothingYet:
        return 0, 0


def _worth(run: Run) -> tuple[bool, int, int]:
    return run.fault is None, *_far(run)


def _identity(run: Run) -> str:
    what = {k: v for k, v in run.complete.items() if k not in (*SEEDS, *ELSEWHERE)}
    return json.dumps(what, sort_keys=True)
