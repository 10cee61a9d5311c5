"""The run folder: what made a run, what it measured, and where it can go on from.

config.json       the effective config
made.json         versions, hardware, git revision, command of every start
partition.json    who holds which examples
metrics.jsonl     one line a round
checkpoints/      round-000010.json names the arrays, their checksum and the clients' memories
memories/         what clients remember, for algorithms whose clients do
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedrecall import files
from fedrecall.errors import UserError

KEPT = 2  # checkpoints: if the last is damaged the one before is used


class Checkpoint(NamedTuple):
    """A point that a run can go on from."""

    round_number: int
    arrays: dict[str, Tensor]
    memories: dict[str, str]


class RunFolder:
    """One run's files. Only one process at a time may write to it."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.json").exists()

    def acquire(self) -> None:
        """Take the folder for this process, or raise UserError if another one has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise UserError(f"another run is writing to {self.path}: choose another --out.") from None

    def release(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def config(self) -> dict[str, Any]:
        """The config that the folder was begun with."""
        found = files.read_json(self.path / "config.json")
        if not isinstance(found, dict):
            raise UserError(f"{self.path / 'config.json'} does not hold a config.")
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """Every round's record; a line cut short by a crash at the end is left out."""
        return list(read_metrics(self.path / "metrics.jsonl"))

    def append(self, record: dict[str, Any]) -> None:
        """Add a round's record; it is on disk when this returns."""
        with open(self.path / "metrics.jsonl", "ab") as file:
            file.write((json.dumps(record, separators=(",", ":"), allow_nan=True) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, round_number: int) -> list[dict[str, Any]]:
        """Drop the records after a round; returns those that stay."""
        path = self.path / "metrics.jsonl"
        kept = [r for r in self.metrics() if r["round"] <= round_number]
        lines = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in kept)
        files.write(path, lines.encode())
        return kept

    def save(self, checkpoint: Checkpoint) -> set[str]:
        """Write a checkpoint and delete the oldest; returns the memory files still named by any."""
        folder = self.path / "checkpoints"
        stem = f"round-{checkpoint.round_number:06d}"
        digest = files.write_arrays(folder / f"{stem}.safetensors", checkpoint.arrays)
        manifest = {"round": checkpoint.round_number, "arrays": digest, "memories": checkpoint.memories}
        files.write_json(folder / f"{stem}.json", {**manifest, "checksum": _digest(manifest)})
        manifests = sorted(folder.glob("round-*.json"))
        for old in manifests[:-KEPT]:
            old.unlink(missing_ok=True)
            old.with_suffix(".safetensors").unlink(missing_ok=True)
        used: set[str] = set()
        for path in manifests[-KEPT:]:
            try:
                used |= set(_manifest(path)["memories"].values())
            except UserError:
                continue
        return used

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints that can be read whole, newest first."""
        for path in sorted((self.path / "checkpoints").glob("round-*.json"), reverse=True):
            try:
                found = _manifest(path)
                arrays = files.read_arrays(path.with_suffix(".safetensors"), found["arrays"])
                if not all((self.path / "memories" / name).is_file() for name in found["memories"].values()):
                    raise UserError(f"{path} names memories that are not there.")
            except UserError:
                continue
            yield Checkpoint(found["round"], arrays, found["memories"])


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
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                raise ValueError("not a round's record")
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it: the writer was cut short
                return
            raise UserError(f"{path}, line {number}: {error}.") from error
        yield record


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A round's numbers by name, such as ``seconds/train`` and ``measures/locals/in_local/after``.

    Lists of numbers become their mean, but the class accuracies, which keep one each; what identifies
    rather than measures (chains, clients) and matrices are left out.
    """
    found: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, (int, float)):
            found[name] = float(value)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if key not in ("clients", "chains", "round") or (name, key) == ("seconds", "clients"):
                    add(f"{name}/{key}" if name else str(key), inner)
        elif name == "class_accuracy" and isinstance(value, list):
            for c, share in enumerate(value):
                add(f"{name}/{c}", share)
        elif isinstance(value, list) and value and all(type(v) in (int, float) for v in value):
            found[name] = sum(value) / len(value)

    add("", record)
    return found


def _manifest(path: Path) -> dict[str, Any]:
    found = files.read_json(path)
    try:
        digest = found.pop("checksum")
        sound = _digest(found) == digest and isinstance(found["memories"], dict)
    except (AttributeError, KeyError, TypeError):
        sound = False
    if not sound:
        raise UserError(f"{path} is damaged.")
    return dict(found)


def _digest(manifest: dict[str, Any]) -> str:
    text = json.dumps(manifest, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
