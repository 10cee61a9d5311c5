"""Where another process finds the code of a run: what can be imported, and what is somebody's own.

Own code is sent as it was when this process read it: by then it may be another one, and another machine
does not have it.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fedrecall import specs


class Source(NamedTuple):
    """A module that lies beside a user's file."""

    path: str
    """Its file."""
    text: bytes
    folders: list[str] | None
    """Where a package's parts are."""


class Places(NamedTuple):
    """What a process needs to find the code."""

    path: list[str]
    """Where to import from."""
    files: dict[Path, bytes]
    """The files that were loaded by path, with their content."""
    modules: dict[str, Source]
    """What these import of what lies beside them."""

    @classmethod
    def of(cls, files: Mapping[Path, bytes]) -> Places:
        """What finds these files and all that they import, as far as that is not installed everywhere."""
        return cls(importable(), dict(files), beside(files))

    def load(self) -> None:
        """Load the files, in a process that may have none of them."""
        _sent.modules |= self.modules
        if _sent not in sys.meta_path:
            sys.meta_path.insert(0, _sent)
        for path, source in self.files.items():
            specs.load_source(path, source)


def importable() -> list[str]:
    """Where this process imports from; it passes over what is no text there, such as a Path."""
    return [place for place in sys.path if isinstance(place, str)]


def beside(files: Mapping[Path, bytes]) -> dict[str, Source]:
    """The modules in the files' folders that these import, and that those import, and so on."""
    found: dict[str, Source] = {}
    for path, text in files.items():
        names = list(_imported(text))
        for name in names:  # which grows
            within = name.rpartition(".")[0]
            if name in found or (within and within not in found):
                continue
            source = _source(name, path.parent)
            if source is not None:
                found[name] = source
                names += _imported(source.text, name if source.folders else within)
    return found


def _imported(text: bytes, package: str = "") -> Iterator[str]:
    """What source code may import wherever in it, each after the packages that it is in."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # who imports it is told
        return
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            try:
                start = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # from outside of its package
                continue
            names = [f"{start}.{name}" for name in names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


_read: dict[str, tuple[ModuleSpec | None, Source]] = {}
"""What was read of each module, whose file may have changed since, and of which import if it was imported."""


def _source(name: str, folder: Path) -> Source | None:
    """The module if it lies in this folder and is somebody's own."""
    spec = _spec(name)
    if spec is None or name.partition(".")[0] in _PYTHONS or not _lies_in(folder, spec):
        return None
    of, known = _read.get(name, (None, None))
    if known is not None and (of is None or of is spec):
        return known
    source = _reading(spec)
    if source is not None:
        _read[name] = spec if name in sys.modules else None, source
    return source


_PYTHONS = {"fedrecall", "__main__", *sys.stdlib_module_names}


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is from, or would be from; nothing is imported for it."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    package = name.rpartition(".")[0]
    if not package:
        return PathFinder.find_spec(name)
    within = _spec(package)
    return PathFinder.find_spec(name, _folders(within)) if within is not None else None


def _lies_in(folder: Path, spec: ModuleSpec) -> bool:
    """Whether it is somewhere in the folder, and in no environment of installed packages there."""
    here = [spec.origin] if spec.has_location and spec.origin else _folders(spec)
    return bool(here) and all(
        any(path.is_relative_to(folder) for path in (Path(place), Path(place).resolve()))
        and not {"site-packages", "dist-packages"} & set(Path(place).parts)
        for place in here
    )


def _folders(spec: ModuleSpec) -> list[str]:
    return list(spec.submodule_search_locations or ())


def _reading(spec: ModuleSpec) -> Source | None:
    """Its source; None if it is not written in Python."""
    if not spec.has_location:  # a folder without a file of its own
        return Source(str(Path(_folders(spec)[0], "__init__.py")), b"", _folders(spec))
    path = Path(spec.origin or "")
    try:
        text = path.read_bytes() if path.suffix == ".py" else None
    except OSError:
        return None
    return None if text is None else Source(str(path), text, _folders(spec) or None)


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
