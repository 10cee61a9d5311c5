"""The run folder: what made a run, what it measured, and where it can go on from.

config.json       the effective config
made.json         versions, hardware, git revision, command of every start
again.json        how many rounds were played again, where these have other noise then
inputs.json       what the model is given, and what its answers are called
federation.json   a federation's name at its nodes, and what they agreed on; no other run has one
partition.json    who holds which examples
metrics.jsonl     one line a round
failed.json       in which round an error ended the run, and which; gone when it goes on
pending.json      the record of a round whose model others are asked to evaluate, until they have
checkpoints/      round-000010.json names the arrays, their checksum and the clients' memories
memories/         what clients remember, for algorithms whose clients do
"""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex, overload

from torch import Tensor

from fedrecall import contracts, files, memories
from fedrecall.errors import Busy, Gone, OfMachine, UserError

AGREED = "federation.json"
AGAIN = "again.json"
INPUTS = "inputs.json"
FAILED = "failed.json"
PENDING = "pending.json"
KEPT = 2  # checkpoints, besides those that stay: if the last is damaged the one before is used


class Checkpoint(NamedTuple):
    """A point that a run can go on from."""

    round_number: int
    arrays: dict[str, Tensor]
    memories: dict[str, str]
    stays: bool = False
    """Whether its model is kept when it is none of the last ones any more."""


class Fault(NamedTuple):
    """The error that ended a run."""

    round_number: int
    reason: str


class RunFolder:
    """One run's files. Only one process at a time may write to it."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None
        self._staying: set[str] = set()  # older checkpoints that were read to stay, once for all saves

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return files.found(self.path / "config.json")

    @property
    def recorded(self) -> bool:
        """Whether anything of a round is here: its record, though damaged, or a checkpoint."""
        rounds = self.path / "metrics.jsonl"
        noted = (files.found(rounds) and rounds.stat().st_size > 0) or files.found(self.path / PENDING)
        return noted or any((self.path / "checkpoints").glob("round-*"))

    def forget(self) -> None:
        """Let a run that has recorded nothing be begun anew, by this process alone."""
        for name in ("config.json", "partition.json", "made.json", AGAIN, FAILED):
            (self.path / name).unlink(missing_ok=True)

    def acquire(self) -> None:
        """Take the folder for this process, unless it has it, or raise UserError if another one does."""
        if self._lock is not None:
            self._check_held()
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise files.refusal(error)(f"cannot write to {self.path}: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if isinstance(error, BlockingIOError):
                raise Busy(f"another run is writing to {self.path}: choose another --out.") from None
            raise OfMachine(
                f"{self.path} cannot be locked ({error.strerror}): give an --out on a disk that knows locks."
            ) from error
        for folder in (self.path, self.path / "checkpoints", self.path / "memories"):
            files.sweep(folder)

    def release(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_held(self) -> None:
        """Raise UserError if what this process took is not there any more: another may have begun anew."""
        if self._lock is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), os.stat(self.path / ".lock")):
                return
        raise OfMachine(
            f"{self.path} was removed or replaced while this run wrote to it; nothing more is written there."
        )

    def config(self) -> dict[str, Any]:
        """The config that the folder was begun with."""
        found = files.read_json(self.path / "config.json")
        if not isinstance(found, dict):
            raise UserError(f"{self.path / 'config.json'} does not hold a config.")
        return found

    @property
    def fault(self) -> Fault | None:
        """The error that ended the run, if one did and it has not gone on since."""
        path = self.path / FAILED
        try:
            held = files.read_json(path)
        except Gone:
            return None
        if not isinstance(held, dict) or type(held.get("round")) is not int:
            raise UserError(f"{path} does not say in which round the run failed: delete it.")
        return Fault(held["round"], str(held.get("reason")))

    def fail(self, fault: Fault) -> None:
        """Note the error that ends the run."""
        self._check_held()
        files.write_json(self.path / FAILED, {"round": fault.round_number, "reason": fault.reason})

    def go_on(self) -> None:
        """Forget the error that ended the run."""
        (self.path / FAILED).unlink(missing_ok=True)

    def metrics(self) -> list[dict[str, Any]]:
        """Every round's record; a line cut short by a crash at the end is left out."""
        records = list(read_metrics(self.path / "metrics.jsonl"))
        pending = _pending(self.path / PENDING)
        # Of a round that has its line, or that a run which went back had, it means nothing any more.
        if pending is not None and pending["round"] == len(records) + 1:
            records.append(pending)
        return records

    def hold(self, record: dict[str, Any]) -> None:
        """Keep a round's record apart until it is whole; it is on disk when this returns."""
        self._check_held()
        files.write(self.path / PENDING, _line(record))

    def append(self, record: dict[str, Any]) -> None:
        """Add a round's record, which is held no longer; it is on disk when this returns."""
        self._check_held()
        with open(self.path / "metrics.jsonl", "ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
        (self.path / PENDING).unlink(missing_ok=True)

    def rewind(
        self, round_number: int, records: Sequence[dict[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Drop the records and checkpoints after a round; returns the records that stay.

        ``records``: those that are there, if they have been read.
        """
        kept = [r for r in (self.metrics() if records is None else records) if r["round"] <= round_number]
        files.write(self.path / "metrics.jsonl", b"".join(map(_line, kept)))
        (self.path / PENDING).unlink(missing_ok=True)  # it is among them, or after the round
        for later in (self.path / "checkpoints").glob("round-*.json"):
            # Else a damaged checkpoint would count as one of those to keep, in place of a sound one.
            if _number(later) > round_number:
                later.unlink(missing_ok=True)
        return kept

    def amend(self, record: dict[str, Any]) -> None:
        """Put this in place of the last record, that of the same round.

        All are written anew, so it is not for every round: see `hold`.
        """
        self._check_held()
        path = self.path / "metrics.jsonl"
        content = path.read_bytes()
        start = content.rstrip(b"\n").rfind(b"\n") + 1
        assert json.loads(content[start:])["round"] == record["round"]
        files.write(path, content[:start] + _line(record))

    def save(self, checkpoint: Checkpoint) -> set[str]:
        """Write a checkpoint and delete the oldest unless it stays; returns the memory files still needed."""
        self._check_held()
        folder = self.path / "checkpoints"
        stem = _stem(checkpoint.round_number)
        digest = files.write_arrays(folder / f"{stem}.safetensors", checkpoint.arrays)
        manifest = {"round": checkpoint.round_number, "arrays": digest, "memories": checkpoint.memories}
        manifest |= {"stays": True} if checkpoint.stays else {}
        files.write_json(folder / f"{stem}.json", {**manifest, "checksum": _digest(manifest)})
        return self.tidy()

    def tidy(self) -> set[str]:
        """Delete all but the last checkpoints and those that stay, and what a kill left of others; returns
        the memory files that the last ones name: what stays is the server's state alone."""
        folder = self.path / "checkpoints"
        manifests = sorted(folder.glob("round-*.json"), key=_number)
        kept = manifests[-KEPT:]
        older = manifests[:-KEPT]
        self._staying = {path.stem for path in older if path.stem in self._staying or _stays(path)}
        stems = {path.stem for path in kept} | self._staying
        for path in sorted(folder.glob("round-*")):  # a manifest before its arrays
            if path.stem not in stems:
                path.unlink(missing_ok=True)
        used: set[str] = set()
        for path in kept:
            try:
                used |= set(_manifest(path)["memories"].values())
            except UserError:
                continue
        return used

    def kept_rounds(self) -> tuple[int, int]:
        """The rounds of the two checkpoints that a run may go back to, the older first; 0 is its start."""
        older, newer = [0, 0, *self.saved_rounds()][-KEPT:]
        return older, newer

    def saved_rounds(self) -> list[int]:
        """The rounds of all checkpoints, the first one first."""
        return sorted(map(_number, (self.path / "checkpoints").glob("round-*.json")))

    def checkpoints(
        self, refused: list[str] | None = None, remembering: bool = True, of: int | None = None
    ) -> Iterator[Checkpoint]:
        """The checkpoints that can be read whole, newest first; ``refused`` gets why others cannot be.

        ``remembering``: with what clients remember, which a run needs to go on, and its model does not.
        ``of``: of this round alone.
        """
        for path in sorted((self.path / "checkpoints").glob("round-*.json"), key=_number, reverse=True):
            if of not in (None, _number(path)):
                continue
            try:
                found = _manifest(path)
                arrays = files.read_arrays(path.with_suffix(".safetensors"), found["arrays"])
                named = found["memories"].values() if remembering else ()
                if not all(memories.intact(self.path / "memories", n) for n in named):
                    raise UserError(f"{path} names memories that are damaged or not there.")
            except UserError as error:
                if refused is not None:
                    refused.append(str(error))
                continue
            yield Checkpoint(found["round"], arrays, found["memories"], "stays" in found)


class History(Sequence[dict[str, Any]]):
    """The records of a run folder, read when they are looked at, so that a long run does not fill memory."""

    def __init__(self, folder: RunFolder, played: Sequence[dict[str, Any]] = ()):
        """``played``: those that the folder has."""
        self._path = folder.path / "metrics.jsonl"
        self._count = len(played)
        self._last = played[-1] if played else None

    def append(self, record: dict[str, Any]) -> None:
        """Count a record that was appended to the folder."""
        self._count += 1
        self._last = record

    def amend(self, record: dict[str, Any]) -> None:
        """Know the last record as it was amended in the folder."""
        self._last = record

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        read = 0
        for record in islice(read_metrics(self._path), self._count):
            read += 1
            yield record
        if read < self._count:
            raise UserError(f"{self._path} lacks rounds that were played: was it changed or deleted?")

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        if self._last is not None and index in (-1, self._count - 1):
            return self._last
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics file, one a round."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _as_it_was(json.loads(line))
            _check(record)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it: the writer was cut short
                return
            raise UserError(f"{path}, line {number}: {error}.") from error
        yield record


def _pending(path: Path) -> dict[str, Any] | None:
    """The record that is held apart, if one is."""
    try:
        record = _as_it_was(files.read_json(path))
    except Gone:
        return None
    try:
        _check(record)
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from error
    return dict(record)


_NUMBER = (int, float)
_PARTS: dict[str, tuple[type, ...]] = {
    "lr": _NUMBER,
    "chains": (list,),
    "train_loss": _NUMBER,
    "failures": (list,),
    "bytes_down": _NUMBER,
    "bytes_up": _NUMBER,
    "seconds": (dict,),
}
_EVALUATED: dict[str, tuple[type, ...]] = {
    "accuracy": _NUMBER,
    "loss": _NUMBER,
    "class_accuracy": (list,),
    "forgetting": _NUMBER,
    "consistency": (*_NUMBER, type(None)),
}
_OTHERS: dict[str, tuple[type, ...]] = {
    "memory_bytes": _NUMBER,
    "own_accuracy": _NUMBER,
    "bytes_evaluation_down": _NUMBER,
    "bytes_evaluation_up": _NUMBER,
    "measures": (dict,),
    "untested": (list,),
    "split": (str,),
    "sites": (dict,),
}
_OF_SITES = ("examples", "accuracy", "balanced_accuracy")
OF_OWN = "own_accuracy"
"""Of sites, that of each one's client's own model where clients have such; None where no client is."""
AT_HOME = "at_home"
"""Of clients, accuracies on the test examples from where each is: those by mixture of classes are others."""


def _check(record: Any) -> None:
    """Raise ValueError unless what is there of a record has its type."""
    if not isinstance(record, dict) or type(record.get("round")) is not int:
        raise ValueError("not a round's record")
    for name, types in (_PARTS | _EVALUATED | _OTHERS).items():
        if name in record and (not isinstance(record[name], types) or isinstance(record[name], bool)):
            raise ValueError(f"{name} is {type(record[name]).__name__}, which it cannot be")
    if not isinstance(record.get("off_grid", True), bool):
        raise ValueError("off_grid is neither true nor false")
    if "sites" in record and sites(record) is None:
        raise ValueError("sites are not names and as many numbers of each kind")
    if not _numbers(record.get("class_accuracy", [])):
        raise ValueError("class_accuracy holds something else than numbers")
    for chain in record.get("chains", []):
        if not isinstance(chain, list) or not all(type(k) is int for k in chain):
            raise ValueError("chains holds something else than clients")
    seconds = record.get("seconds", {})
    measures = seconds.get("measures", {})
    single = [seconds[n] for n in ("train", "evaluate") if n in seconds]
    if not (isinstance(measures, dict) and _numbers([*single, *measures.values()])):
        raise ValueError("seconds holds something else than numbers")
    if not _numbers(seconds.get("clients", [])):
        raise ValueError("seconds holds something else than numbers")


def _numbers(values: Any) -> bool:
    """Whether it is a list of numbers."""
    return isinstance(values, list) and all(
        isinstance(v, _NUMBER) and not isinstance(v, bool) for v in values
    )


def accuracy_word(record: Mapping[str, Any]) -> str:
    """What a record's accuracy is called: that of a run with ``validation`` is no test result."""
    return "validation accuracy" if record.get("split") == "validation" else "accuracy"


def sites(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the round's model does at each site: of a federation's nodes, or as the measure `sites` has it."""
    found = record["sites"] if "sites" in record else record.get("measures", {}).get("sites")
    names = found.get("sites") if isinstance(found, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    parts = [found.get(part) for part in _OF_SITES]
    if OF_OWN in found:
        own = found[OF_OWN]
        parts.append([0.0 if v is None else v for v in own] if isinstance(own, list) else own)
    sound = all(_numbers(part) and len(part) == len(names) for part in parts)
    return dict(found) if sound else None


def used(found: Mapping[str, Any]) -> list[float | None]:
    """Of what `sites` gives each site's accuracy of the model that is used there: where clients have own
    ones its client's, None where no client is."""
    own = found.get(OF_OWN, ())
    return list(own if any(v is not None for v in own) else found["accuracy"])


def worst(found: Mapping[str, Any]) -> tuple[str, float]:
    """Of what `sites` gives the site of least accuracy, as `used` has it, the first of equals."""
    by = used(found)
    least = min(v for v in by if v is not None)
    return found["sites"][by.index(least)], least


def whole(records: Sequence[dict[str, Any]], where: Path) -> Sequence[dict[str, Any]]:
    """The records, or a UserError unless they are of rounds 1, 2, ... and each has all of its parts."""
    classes = None
    for number, record in enumerate(records, start=1):
        evaluated = "accuracy" in record
        missing = [n for n in (*_PARTS, *(_EVALUATED if evaluated else ())) if n not in record]
        if record["round"] != number:
            raise UserError(f"{where}: the record of round {record['round']} stands where {number} should.")
        if missing or not {"train", "clients"} <= record["seconds"].keys():
            raise UserError(f"{where}: the record of round {number} lacks {(missing or ['seconds'])[0]!r}.")
        if sum(map(len, record["chains"])) != len(record["seconds"]["clients"]):
            raise UserError(f"{where}: the record of round {number} has seconds of other clients.")
        if evaluated and classes not in (None, len(record["class_accuracy"])):
            raise UserError(f"{where}: the record of round {number} has another number of classes.")
        classes = len(record["class_accuracy"]) if evaluated else classes
    return records


def looked_back_on(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """The evaluated rounds that forgetting looks back on, up to the last but one round.

    One that was evaluated because the run was to end there is none of them.
    """
    return [r["round"] for r in records[:-1] if "accuracy" in r and not r.get("off_grid")]


def steps(rounds: Sequence[int]) -> list[tuple[int, int]]:
    """(so many rounds from one to the next, up to this one): [(3, 6), (1, 8)] of 3, 6, 7 and 8."""
    found: list[tuple[int, int]] = []
    for before, after in zip([0, *rounds], rounds, strict=False):
        if found and found[-1][0] == after - before:
            found.pop()
        found.append((after - before, after))
    return found


def how_often(rounds: Sequence[int]) -> str:
    """The same in words: every 3 rounds up to round 6, then every round."""
    said = ["every round" if step == 1 else f"every {step} rounds" for step, _ in steps(rounds)]
    if not said:
        return "at the end alone"
    ends = [f" up to round {end}" for _, end in steps(rounds)[:-1]] + [""]
    return ", then ".join(map("".join, zip(said, ends, strict=True)))


_IDENTIFIES = ("clients", "chains", "round", "sizes", "neurons")
"""What in a record says of whom or of what its numbers are."""


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A round's numbers by name, such as ``seconds/train`` and ``measures/locals/in_local/after``.

    Lists over clients, sites and chains become their mean; of class accuracies and of other lists there is
    one number each. What identifies rather than measures and matrices are left out.
    """
    found: dict[str, float] = {}

    def add(name: str, value: Any, averaged: bool = False) -> None:
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, (int, float)):
            found[name] = float(value)
        elif isinstance(value, Mapping):
            averaged = averaged or "clients" in value or isinstance(value.get("sites"), list)
            for key, inner in value.items():
                if key == "chains" and name:  # a record each
                    several(name, inner)
                elif key not in _IDENTIFIES or (name, key) == ("seconds", "clients"):
                    add(f"{name}/{key}" if name else str(key), inner, averaged)
        elif isinstance(value, list) and averaged and any(v is not None for v in value):
            known = [v for v in value if v is not None]  # of a client of whom nothing is
            if all(type(v) in (int, float) for v in known):
                found[name] = sum(known) / len(known)
        elif isinstance(value, list) and value and all(type(v) in (int, float) for v in value):
            found.update({f"{name}/{i}": float(v) for i, v in enumerate(value)})

    def several(name: str, parts: Any) -> None:
        each = [scalars({name: part}) for part in parts] if isinstance(parts, list) else []
        for key in dict.fromkeys(key for part in each for key in part):
            known = [part[key] for part in each if key in part]
            found[key] = sum(known) / len(known)

    add("", record)
    return found


_LOSSES = ("train_loss", "loss")


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(contracts.finite(record), separators=(",", ":"), allow_nan=False) + "\n").encode()


def _as_it_was(record: Any) -> Any:
    """A record that was read, its losses as numbers: one that was not finite is written as nothing."""
    if not isinstance(record, dict):
        return record
    return {n: math.nan if v is None and n in _LOSSES else v for n, v in record.items()}


def _manifest(path: Path) -> dict[str, Any]:
    found = files.read_json(path)
    try:
        digest = found.pop("checksum")
        sound = _digest(found) == digest and type(found["round"]) is int and found["round"] > 0
        sound = sound and isinstance(found["arrays"], str)
        sound = sound and all(k.isdecimal() and isinstance(n, str) for k, n in found["memories"].items())
    except (AttributeError, KeyError, TypeError):
        sound = False
    if not sound:
        raise UserError(f"{path} is damaged.")
    return dict(found)


def _stays(path: Path) -> bool:
    try:
        return "stays" in _manifest(path)
    except UserError:
        return False


def _stem(round_number: int) -> str:
    return f"round-{round_number:06d}"


def _number(path: Path) -> int:
    """The round in a checkpoint's name, as a number: text would put the millionth before the others."""
    number = path.stem.removeprefix("round-")
    return int(number) if number.isdecimal() else 0


def _digest(manifest: dict[str, Any]) -> str:
    return files.checksum(json.dumps(manifest, sort_keys=True).encode())
