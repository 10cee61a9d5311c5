"""What clients remember between visits, for many more clients than fit in RAM.

A memory exists from a client's first visit on. The most recently used ones are kept in RAM, the
others as safetensors files. A file is never written over, its name counts versions, so that a
checkpoint is no more than a list of names and going back to it needs no copying. The name also holds
the content's checksum, so that the list says what the files must be.
"""

import re
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrecall import contracts, files, trees
from fedrecall.errors import Malformed, UserError

CACHE_BYTES = 512 * 2**20
_NAME = re.compile(r"client-\d+-(\d+)-([0-9a-f]{32})\.safetensors")


def intact(folder: Path, name: str) -> bool:
    """Whether a memory of this name is there and is what was written."""
    match = _NAME.fullmatch(name)
    return match is not None and files.intact(folder / name, match[2])


class Memories:
    """A map from client to memory, in RAM up to a size and in a folder beyond it."""

    def __init__(self, template: Any, folder: Path | None = None, cache_bytes: int = CACHE_BYTES):
        """``template``: any memory of the algorithm, for its structure."""
        self.template = template
        self.cache_bytes = cache_bytes
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="fedrecall-memories-")
        self.folder = folder or Path(self._own.name)  # type: ignore[union-attr]
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._cached = 0
        self._unwritten: set[int] = set()
        self._unsynced = False  # whether files were written since their folder was on disk
        self._files: dict[int, str] = {}
        self._saved: set[str] = set()  # files that a checkpoint may name

    @property
    def empty(self) -> bool:
        """Whether the algorithm's clients remember nothing."""
        return not trees.arrays(self.template)

    def get(self, client: int) -> Any:
        """A client's memory; None before its first visit."""
        if self.empty:
            return self.template
        if client in self._cache:
            self._cache.move_to_end(client)
            return self._cache[client]
        if client in self._files:
            name = self._files[client]
            match = _NAME.fullmatch(name)
            flat = files.read_arrays(self.folder / name, match[2] if match else "")
            return self._keep(client, trees.restore(self.template, flat, f"memory of client {client}"))
        return None

    def put(self, client: int, memory: Any) -> None:
        """Replace a client's memory."""
        contracts.alike(memory, self.template, "finish", "a client's memory", "remember")
        if not self.empty:
            self._unwritten.add(client)
            self._keep(client, memory)

    def save(self) -> dict[str, str]:
        """Write what is new; returns the file of every client, which `load` takes."""
        for client in sorted(self._unwritten):
            self._write(client)
        if self._unsynced:
            with files.writing(self.folder):
                files.sync_folder(self.folder)
            self._unsynced = False
        self._saved = set(self._files.values())
        return {str(client): name for client, name in sorted(self._files.items())}

    def load(self, saved: Mapping[str, str]) -> None:
        """Go back to what `save` returned."""
        self._cache.clear()
        self._unwritten.clear()
        self._cached = 0
        self._files = {int(client): name for client, name in saved.items()}
        self._saved = set(self._files.values())

    def prune(self, used: set[str]) -> None:
        """Delete files that neither these lists nor the present state name."""
        if self.empty:
            return
        keep = used | set(self._files.values())
        for path in self.folder.glob("client-*.safetensors"):
            if path.name not in keep:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete the folder if it was made for this run alone."""
        if self._own is not None:
            self._own.cleanup()

    def _keep(self, client: int, memory: Any) -> Any:
        old = self._cache.pop(client, None)
        self._cached += trees.size_in_bytes(memory) - trees.size_in_bytes(old)
        self._cache[client] = memory
        while self._cached > self.cache_bytes and len(self._cache) > 1:
            oldest = next(iter(self._cache))
            if oldest in self._unwritten:
                self._write(oldest)
            self._cached -= trees.size_in_bytes(self._cache.pop(oldest))
        return memory

    def _write(self, client: int) -> None:
        # Never over the file of before: a checkpoint may still name it.
        before = self._files.get(client)
        match = _NAME.fullmatch(before) if before else None
        version = int(match[1]) + 1 if match else 1
        content = files.packed(trees.arrays(self._cache[client]))
        name = f"client-{client:06d}-{version:06d}-{files.checksum(content)}.safetensors"
        with files.writing(self.folder):
            files.write(self.folder / name, content, folder_later=True)
        self._unsynced = True
        self._files[client] = name
        self._unwritten.discard(client)
        if before and before not in self._saved:  # spilled since the last checkpoint, and now out of date
            (self.folder / before).unlink(missing_ok=True)


class AtNode:
    """One client's memories of one run at its node of a federation, a file for each of its visits."""

    def __init__(self, folder: Path | str, run: str, client: int, once: bool = False):
        """``folder``: the node's own for memories; ``once``: what is remembered never changes."""
        if not re.fullmatch("[0-9a-f]{32}", run):  # it becomes a folder's name
            raise Malformed("the run's name is not 32 hexadecimal digits")
        self.folder = files.expanded(folder) / run / f"client-{client:06d}"
        self.once = once

    def get(self, round_number: int, first: Any) -> Any:
        """The memory after the visit of this round; ``first`` if there was none (round 0)."""
        if not trees.arrays(first):
            return first
        if self.once and (rounds := self._rounds()):
            round_number = rounds[-1]
        if round_number == 0:
            return first
        remedy = "bring the folder back, or begin the run anew."
        path = max(self._paths(round_number), key=lambda p: p.stat().st_mtime, default=None)
        if path is None:
            raise UserError(
                f"what it remembered after round {round_number} is not in {self.folder}: {remedy}"
            )
        try:
            return trees.restore(first, files.read_arrays(path, path.stem.split("-")[-1]), f"{path}")
        except UserError as error:
            raise UserError(f"{error} {remedy[0].upper()}{remedy[1:]}") from error

    def _rounds(self) -> list[int]:
        return sorted(int(p.stem.split("-")[1]) for p in self.folder.glob("round-*-*.safetensors"))

    def _paths(self, round_number: int) -> list[Path]:
        """The file of a round, if there is one; its name has its checksum."""
        return sorted(self.folder.glob(f"round-{round_number:06d}-*.safetensors"))
