"""Over whom secure aggregation has summed each round of a run: noted on disk, by every node and the server.

Visits of a round that is played again are the same visits. If it were summed over other clients then, the
difference of the two sums would be the uploads of those in one of them alone, perhaps of a single client.
"""

from collections.abc import Sequence
from pathlib import Path

from fedrecall import files
from fedrecall.errors import Malformed
from fedrecall.specs import shown

NOTES = "sums.json"
"""The file, in a folder of the run's."""


def noted(folder: Path, round_number: int) -> list[int] | None:
    """The clients over whom this round was summed before, if it was."""
    return _read(folder).get(str(round_number))


def settle(folder: Path, round_number: int, clients: Sequence[int]) -> None:
    """Note that the round is summed over these clients, or raise Malformed if it was over others."""
    held = _read(folder)
    before = held.setdefault(str(round_number), list(clients))
    if before != list(clients):
        raise Malformed(
            f"round {round_number} was summed over the clients {shown(before)} before, and the difference to "
            "a sum over others would be uploads that no mask hides: let these clients take part, or "
            "begin the run anew with another seed and another out"
        )
    files.write_json(folder / NOTES, held)


def forget(folder: Path, round_number: int) -> None:
    """Take the note of a round back over which nobody helped to sum it."""
    held = _read(folder)
    held.pop(str(round_number), None)
    files.write_json(folder / NOTES, held)


def _read(folder: Path) -> dict[str, list[int]]:
    path = folder / NOTES
    held: dict[str, list[int]] = files.read_json(path) if path.exists() else {}
    return held
