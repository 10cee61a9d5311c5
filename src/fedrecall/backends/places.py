"""Where another process finds the code of a run: what can be imported, and what is somebody's own.

Own code is sent as it was when this process read it: by then it may be another one, and another machine
does not have it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fedrecall import own_code, own_modules
from fedrecall.own_code import Source


class Places(NamedTuple):
    """What a process needs to find the code."""

    path: list[str]
    """Where to import from."""
    files: dict[Path, bytes]
    """The files that were loaded by path, with their content."""
    modules: dict[str, Source]
    """What these import of what lies beside them, and what was edited since it was imported here."""

    @classmethod
    def of(cls, files: Mapping[Path, bytes]) -> Places:
        """What finds these files and all that they import, as far as that is not installed everywhere."""
        return cls(importable(), dict(files), own_code.changed() | beside(files))

    def load(self) -> None:
        """Load the files, in a process that may have none of them."""
        _sent.modules |= self.modules
        if _sent not in sys.meta_path:
            sys.meta_path.insert(0, _sent)
        for path, source in self.files.items():
            own_modules.load_source(path, source)


def importable() -> list[str]:
    """Where this process imports from; it passes over what is no text there, such as a Path."""
    return [place for place in sys.path if isinstance(place, str)]


def beside(files: Mapping[Path, bytes]) -> dict[str, Source]:
    """The modules in the files' folders that these import, and that those import, and so on."""
    found: dict[str, Source] = {}
    for path, text in files.items():
        found |= own_code.closure(text, where=partial(_lies_in, path.parent))
    return found


def _lies_in(folder: Path, name: str, source: Source) -> bool:
    path = Path(source.path)
    return path.is_relative_to(folder) or path.resolve().is_relative_to(folder)


class _Sent(importlib.abc.MetaPathFinder):
    """Finds modules in what was sent of them, before what may lie here by their names."""

    def __init__(self) -> None:
        self.modules: dict[str, Source] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self.modules.get(fullname)
        if source is None:
            return None
        loader = _Loader(source)
        return importlib.util.spec_from_file_location(
            fullname, source.path, loader=loader, submodule_search_locations=source.folders
        )


class _Loader(importlib.abc.ExecutionLoader):
    def __init__(self, source: Source):
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return self._source.path

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source.text)


_sent = _Sent()
