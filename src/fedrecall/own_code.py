"""Modules of somebody's own: what they import, and what they said when this process loaded them.

A module is read when it is first seen, and anew only if it has been imported anew: its file may say something
else by now. Nothing is imported here.
"""

import ast
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    """A module as it was read."""

    path: str
    """Its file."""
    text: bytes
    folders: list[str] | None
    """Where a package's parts are."""


def closure(
    text: bytes, package: str = "", where: Callable[[str, Source], bool] = lambda name, source: True
) -> dict[str, Source]:
    """What source code in this package imports of somebody's own, and what those import, and so on.

    ``where`` says which are meant; what others import is not looked at.
    """
    found: dict[str, Source] = {}
    todo = list(imports(text, package))
    for name, source in todo:  # which grows
        if name not in found and where(name, source):
            found[name] = source
            todo += imports(source.text, package_of(name))
    return found


def imports(text: bytes, package: str = "") -> Iterator[tuple[str, Source]]:
    """What source code in this package may import of somebody's own wherever in it, with their packages."""
    others = set[str]()
    for name in _imported(text, package):
        source = None if name.rpartition(".")[0] in others else read(name)
        if source is None:
            others.add(name)
        else:
            yield name, source


@cache
def _imported(text: bytes, package: str) -> tuple[str, ...]:
    """The modules that source code may import, each after the packages that it is in."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # who imports it is told
        return ()
    found: dict[str, None] = {}
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            start = taken_from(node, package)
            names = [f"{start}.{name}" for name in names if start is not None]
        if isinstance(node, ast.Call) and _IMPORTS.search(ast.unparse(node.func)) and node.args:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            names = [name] if isinstance(name, str) and not name.startswith(".") else []
        for name in names:
            parts = name.split(".")
            found |= dict.fromkeys(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return tuple(found)


def taken_from(statement: ast.ImportFrom, package: str) -> str | None:
    """The module that a statement in this package takes names from; None if that is outside of it."""
    with suppress(ImportError):
        return importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
    return None


_IMPORTS = re.compile(r"\b(import_module|__import__)$")

_read: dict[str, tuple[ModuleSpec | None, Source]] = {}
"""What was read of each module, and of which import if it was imported."""


def read(name: str) -> Source | None:
    """What a module of somebody's own said when it was loaded, or says if it is not; None of any other."""
    spec = spec_of(name)
    if spec is None or not _own(name, spec):
        return None
    now = spec if name in sys.modules else None
    of, source = _read.get(name, (None, None))
    # A folder without a file of its own may have been joined by others of its name.
    if source is None or now is None or not spec.has_location or (of is not None and of is not now):
        source = _reading(spec)
    if source is not None:
        _read[name] = now, source
    return source


def changed(sources: Mapping[str, Source] | None = None) -> dict[str, Source]:
    """Of these, or of all that were read, what is loaded here and not what its file says by now."""
    found = {name: source for name, (_, source) in _read.items()} if sources is None else sources
    loaded = {name: spec_of(name) for name in found if name in sys.modules}
    now = {name: _reading(spec) for name, spec in loaded.items() if spec is not None}
    return {n: found[n] for n, source in now.items() if source is None or source.text != found[n].text}


def spec_of(name: str) -> ModuleSpec | None:
    """Where a module is from, or would be from."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    package = name.rpartition(".")[0]
    if not package:
        return _found(name, None)
    within = spec_of(package)
    return _found(name, _folders(within)) if within is not None else None


def _found(name: str, folders: list[str] | None) -> ModuleSpec | None:
    """As an import would find it: packages that are installed to be edited have finders of their own."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    with suppress(ImportError):  # of what a finder refuses to whoever imports it
        return next((spec for f in finders if (spec := f.find_spec(name, folders, None)) is not None), None)
    return None


def package_of(name: str) -> str:
    """The package that a module's relative imports start from."""
    spec = spec_of(name)
    return (spec.parent or "") if spec is not None else ""


def beside(folder: Path, name: str) -> Path | None:
    """The file in this folder that would be the module."""
    place = folder.joinpath(*name.split("."))
    return next((p for p in (place / "__init__.py", place.with_suffix(".py")) if p.is_file()), None)


def installed(place: str) -> bool:
    """Whether a file came with Python or lies where packages are installed."""
    return place.startswith(_PACKAGES) or bool({"site-packages", "dist-packages"} & {*Path(place).parts})


_PACKAGES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PYTHONS = {"fedrecall", "__main__", *sys.stdlib_module_names}


def _own(name: str, spec: ModuleSpec) -> bool:
    places = [spec.origin] if spec.has_location and spec.origin else _folders(spec)
    return bool(places) and name.partition(".")[0] not in _PYTHONS and not any(map(installed, places))


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
