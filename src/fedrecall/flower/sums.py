"""Over whom secure aggregation has summed each round of a run: noted on disk, by every node and the server.

Visits of a round that is played again are the same visits. If it were summed over other clients then, the
difference of the two sums would be the uploads of those in one of them alone, perhaps of a single client.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from fedrecall import files
from fedrecall.errors import Refused, UserError, shown

NOTES = "sums.jsonl"
"""The file, in a folder of the run's: a line of JSON for each round."""
EARLIER = "sums.json"
"""The file of earlier versions, which goes on to count."""


class OtherSum(Refused):
    """A round was summed over others before, and over whom."""

    def __init__(self, reason: str, clients: Sequence[int]):
        super().__init__(reason)
        self.clients = list(clients)


def noted(folder: Path, round_number: int) -> list[int] | None:
    """The clients over whom this round was summed before, if it was."""
    for number, clients in _notes(folder / NOTES):
        if number == round_number:
            return clients
    earlier = folder / EARLIER
    held: dict[str, list[int]] = files.read_json(earlier) if earlier.exists() else {}
    return held.get(str(round_number))


def settle(folder: Path, round_number: int, clients: Sequence[int]) -> None:
    """Note that the round is summed over these clients, or raise OtherSum if it was over others."""
    before = noted(folder, round_number)
    if before is None:
        _append(folder / NOTES, _line(round_number, clients))
    elif before != list(clients):
        raise OtherSum(
            f"round {round_number} was summed over the clients {shown(before)} before, and the difference to "
            "a sum over others would be uploads that no mask hides: let these clients take part, or "
            "begin the run anew with another seed and another out",
            before,
        )


def correct(folder: Path, round_number: int, clients: Sequence[int] | None) -> None:
    """Note that the round was summed over these clients, or not at all, whatever was noted of it before."""
    kept = [note for note in _notes(folder / NOTES) if note[0] != round_number]
    if clients is not None:
        kept.append((round_number, list(clients)))
    files.write(folder / NOTES, b"".join(_line(*note) for note in kept))


def clear(folder: Path) -> None:
    """Forget every round: they are another run's."""
    for name in (NOTES, EARLIER):
        (folder / name).unlink(missing_ok=True)


def _line(round_number: int, clients: Sequence[int]) -> bytes:
    return json.dumps({"round": round_number, "clients": list(clients)}).encode() + b"\n"


def _whole(path: Path) -> bytes:
    """All lines but one that was cut short: its writer has not gone on to act on it."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def _notes(path: Path) -> list[tuple[int, list[int]]]:
    try:
        notes = [json.loads(line) for line in _whole(path).splitlines()]
        return [(note["round"], note["clients"]) for note in notes]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: bring the file back, or begin the run anew.") from error


def _append(path: Path, line: bytes) -> None:
    """Add a line; it is on disk when this returns."""
    whole = len(_whole(path))
    with open(path, "ab") as file:
        file.truncate(whole)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if not whole:
        files.sync_folder(path.parent)
