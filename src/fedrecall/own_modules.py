"""Modules and files of somebody's own: loaded, found again in other processes, and what they are called."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from fedrecall import own_code
from fedrecall.errors import Missing, UserError, shown
from fedrecall.own_faults import WHOLE

loaded_files: dict[Path, types.ModuleType] = {}
"""The module of every user's file that was loaded."""
loaded_sources: dict[Path, bytes] = {}
"""The content of every user's file that was loaded, for machines that do not have it."""


def loaded(place: str) -> types.ModuleType | None:
    """The module of somebody's own that was loaded from this file or by this name."""
    if place.endswith(".py"):
        return loaded_files.get(Path(place).resolve())
    return None if place.partition(".")[0] == "fedrecall" else sys.modules.get(place)


def module_at(place: str, user: str) -> types.ModuleType:
    """The module of that name, or of a user's file; a UserError that begins with ``user``, who names it."""
    if place.endswith(".py"):
        return _load_file(Path(place), user)
    if not all(part.isidentifier() for part in place.split(".")):
        raise UserError(f"{user}: {shown(place)} is neither a module nor a file that ends in .py.")
    try:
        found = importlib.import_module(place)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{place}.".startswith(f"{error.name}."):
            raise UserError(
                f"{user}: there is no module {place!r} to import; a file's path ends in .py."
            ) from error
        raise UserError(f"{user}: {_not_imported(place, error)}") from error
    if source := own_code.read(place):
        _tell_changed({place: source} | own_code.closure(source.text, own_code.package_of(place)))
    return found


def _tell_changed(sources: Mapping[str, own_code.Source]) -> None:
    for source in own_code.changed(sources).values():
        _warn_changed(source.path)


def _warn_changed(path: Path | str) -> None:
    warnings.warn(
        f"{path} has changed since it was loaded: this process goes on with what it was. Start another "
        "one (a notebook: restart its kernel) for what it is.",
        RuntimeWarning,
        stacklevel=2,
    )


def _not_imported(what: str, error: Exception) -> str:
    """Why somebody's own code could not be imported, by which of its lines."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_file()]
    theirs = [f for f in frames if f.filename not in (__file__, importlib.__file__)]
    if isinstance(error, SyntaxError) and error.filename is not None:  # no line of theirs has been run
        place = f" ({Path(error.filename).name}, line {error.lineno})"
    elif theirs:
        last = [f for f in theirs if f.filename == theirs[0].filename][-1]
        place = f" ({Path(last.filename).name}, line {last.lineno})"
    else:
        place = ""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{what} could not be imported: {type(error).__name__}: {said}{place}; {WHOLE}"


def _load_file(path: Path, user: str) -> types.ModuleType:
    path = path.resolve()
    try:
        source = path.read_bytes()
    except OSError:
        if path in loaded_files:  # deleted since, or of another machine
            return loaded_files[path]
        raise Missing(f"{user}: there is no file {path}.") from None
    if loaded_sources.get(path, source) != source:
        _warn_changed(path)
    if path not in loaded_files:
        _look_in(path.parent)
        _check_neighbours(path, source, user)
    found = load_source(path, source)
    _tell_changed(own_code.closure(loaded_sources[path]))
    return found


def _check_neighbours(path: Path, source: bytes, user: str) -> None:
    """Raise UserError if the file would be given another folder's module for one that lies beside it."""

    def lies_beside(name: str, found: own_code.Source) -> bool:
        place = own_code.beside(path.parent, name)
        if place is None:
            return False
        if place.resolve() != Path(found.path).resolve() and place.read_bytes() != found.text:
            raise UserError(
                f"{user}: {name}, which {path.name} imports, is {place} beside it, but in this process "
                f"{found.path}: give one of them another name, or use each in a process of its own."
            )
        return True

    own_code.closure(source, where=lies_beside)


def _look_in(folder: Path) -> None:
    """Let what lies in this folder be imported, after what is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load_source(path: Path, source: bytes) -> types.ModuleType:
    """The module of a user's file with this content, which may lie on another machine.

    It may import what lies beside it, after what is installed.
    """
    if path not in loaded_files:
        _look_in(path.parent)
        name = f"fedrecall_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            exec(compile(source, str(path), "exec"), module.__dict__)
        except Exception as error:
            del sys.modules[name]
            raise UserError(_not_imported(str(path), error)) from error
        loaded_files[path], loaded_sources[path] = module, source
    return loaded_files[path]


def origin(made: Callable[..., Any]) -> str:
    """What a class or a function is found by: ``file.py:Class`` or ``package.module:Class``."""
    for path, module in loaded_files.items():
        if module.__name__ == made.__module__:
            return f"{path}:{made.__qualname__}"
    return f"{made.__module__}:{made.__qualname__}"


def absolute(spec: str) -> str:
    """The spec with the whole path of the file that it names: in another folder it would name another one."""
    place, colon, rest = spec.partition(":")
    return f"{Path(place).resolve()}:{rest}" if colon and place.endswith(".py") else spec


def findable(kind: str, made: Callable[..., Any], find: Callable[[str], Any], name: str) -> None:
    """Raise UserError unless its name leads to this class or function, and to no other."""
    if "<" in made.__qualname__:  # <lambda>, or f.<locals>.Class
        raise UserError(
            f"{kind} {made.__name__} is made within a function or is a lambda, which no other process could "
            "find: write it at the top of its file."
        )
    if find(name) is not made:
        what = "class" if isinstance(made, type) else "function"
        raise UserError(f"{kind} {name} is not the {what} that was given any more: give it anew.")


def named(spec: str) -> str:
    """A class or function of somebody's own by what it is called wherever its file lies; else the spec."""
    place, colon, rest = spec.partition(":")
    return f"{Path(place).name}:{rest.partition(':')[0]}" if colon else spec


def placeless(value: Any, noted: Container[str]) -> Any:
    """The value without the folders of what it names of somebody's own, as far as its code was noted."""
    if isinstance(value, str):
        place, colon, rest = value.partition(":")
        return f"{Path(place).name}:{rest}" if colon and named(value) in noted else value
    if isinstance(value, Mapping):
        return {key: placeless(inner, noted) for key, inner in value.items()}
    return [placeless(inner, noted) for inner in value] if isinstance(value, list) else value
