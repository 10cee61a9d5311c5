"""The values that somebody's own code looks up as it runs, as far as they are settings of it.

What it looks up is read off its compiled functions, which also a prompt's have.
"""

import argparse
import dataclasses
import dis
import enum
import math
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import count, pairwise
from typing import Any

import numpy as np
from torch import Tensor

from fedrecall import own_code

Path = tuple[str, ...]
"""What code says for a value: a module, a name in it, and the attributes and entries that follow."""
CHANGES = re.compile(
    r"append(left)?|extend(left)?|insert|add|(\w+_)?update|setdefault|pop(item|left)?|remove|discard|clear|sort|"
    r"reverse|rotate|fill|__setitem__|__delitem__|\w*[^\W_]_|register\w*|load_state_dict|train|eval"
)
"""The methods that change Python's containers, and torch's tensors and modules."""


def looked_up(thing: Any, sinks: Iterable[type] = ()) -> dict[Path, str]:
    """The settings that a class or a function of somebody's own looks up, and those that its classes have.

    What its functions or those of ``sinks`` assign or change is none, as it may be notes that hooks take.
    """
    found, constants = dict[Path, Any](), dict[Path, Any]()
    for part in _reached([thing]):
        if isinstance(part, type):
            constants |= _constants(part)
        else:
            found |= _uses(part)[0]
    functions = [part for part in _reached([thing, *sinks]) if isinstance(part, types.FunctionType)]
    changed = {path for function in functions for path in _uses(function)[1]}
    kept = {f".{name}" for function in functions for name in _kept(function)}
    found |= {path: value for path, value in constants.items() if path[-1] not in kept}
    told = {
        path: _setting(value)
        for path, value in _unchanged(found, changed).items()
        if not path[1].startswith((_CELL, ".__"))
    }
    own_names = {path: ("".join(path[1:])[1:],) for path in told}
    return {p: repr(value) for p, value in told.items() if value not in (_NONE, own_names[p])}


def own(module: str) -> bool:
    """Whether this is the program that was started, or a module in Python that is nobody's package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    nobodys = file and module.partition(".")[0] != "fedrecall" and not own_code.installed(file)
    return module == "__main__" or bool(nobodys)


def _reached(things: Iterable[Any]) -> Iterator[type | types.FunctionType]:
    """Somebody's own classes and functions that these are, are made of and look up, and so on."""
    todo, seen = list(things), set[int]()
    for thing in todo:  # which grows
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type):
            if own(thing.__module__):
                yield thing
                todo += (*thing.__mro__, *vars(thing).values())
        elif type(thing).__module__ not in ("builtins", "functools"):
            todo.append(type(thing))
        elif not isinstance(thing, types.ModuleType):
            todo += [getattr(thing, part, None) for part in _PARTS]
            if _is_own(thing):
                yield thing
                todo += _uses(thing)[0].values()


_PARTS = ("__func__", "__wrapped__", "fget", "fset", "func")
"""Where methods, properties, partial functions and what decorators make have a function."""


def _is_own(thing: Any) -> bool:
    """Whether it is a function that somebody's own module defines; what wraps one may only say so."""
    if not isinstance(thing, types.FunctionType) or not own(thing.__module__ or ""):
        return False
    return vars(sys.modules[thing.__module__]) is thing.__globals__


def _uses(function: types.FunctionType) -> tuple[dict[Path, Any], set[Path]]:
    """What a function looks up beside its own variables, and what of that it assigns or changes."""
    module, looked, changed = function.__module__, dict[Path, Any](), set[Path]()
    path: Path
    named = {"GLOBAL": (".", function.__globals__), "DEREF": (_CELL, _cells(function))}
    begun: dict[Any, tuple[Path, Any]] = {}
    steps = [step for step in _steps(function) if step.opname not in ("COPY", "SWAP")]
    at = 0
    while at < len(steps):
        step, at = steps[at], at + 1
        does, _, where = step.opname.partition("_")
        mark, names = named.get(where, ("", {}))
        place = step.positions and step.positions[::2]  # where the whole expression begins: line and column
        if does == "LOAD" and mark and step.argval in names:
            path, value = (module, mark + step.argval), names[step.argval]
            while further := _entry(path, value, steps[at : at + 2]):
                path, value, taken = further
                at += taken
            looked[path], begun[place] = value, (path, value)
        elif does in ("STORE", "DELETE") and mark:
            changed.add((module, mark + step.argval))
        elif place in begun and (said := _changes(step, steps[at - 2], begun[place][1])) is not None:
            changed.add((*begun[place][0], *said))
    return looked, changed


_CELL = "cell "
"""Before a name that is a function's own, but of the function that it was made in."""


def _cells(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    """That of a function, and of those that are defined within it."""
    codes = [function.__code__]
    for code in codes:  # which grows
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        yield code


def _steps(function: types.FunctionType) -> list[dis.Instruction]:
    return [step for code in _codes(function) for step in dis.get_instructions(code)]


_ATTRIBUTES, _TEXTS = ("LOAD_ATTR", "LOAD_METHOD"), ("LOAD_CONST", "LOAD_SMALL_INT")


def _subscript(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or step.argrepr == "[]"


def _entry(path: Path, value: Any, ahead: list[dis.Instruction]) -> tuple[Path, Any, int] | None:
    """The attribute or entry of a value that the next steps look up by its name, and in how many steps."""
    if not ahead:
        return None
    first, *then = ahead
    if first.opname in _ATTRIBUTES:
        mark, held = f".{first.argval}", _attributes(value)
    elif isinstance(value, dict) and first.opname in _TEXTS and then and _subscript(then[0]):
        mark, held = f"[{first.argval!r}]", value
    else:
        return None
    if first.argval not in held:
        return None
    path = (value.__name__,) if isinstance(value, types.ModuleType) else path
    return (*path, mark), held[first.argval], 1 + len(then) * (mark[0] == "[")


def _changes(step: dis.Instruction, before: dis.Instruction, value: Any) -> Path | None:
    """What of a value a step changes that begins with it: all of it, or one attribute or entry."""
    if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
        return (f".{step.argval}",)
    if callable(value):  # what it returns is changed
        return None
    if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        return (f"[{before.argval!r}]",) if before.opname in _TEXTS else ()
    method = step.argval if step.opname in _ATTRIBUTES else ""
    return () if step.opname == "STORE_SLICE" or CHANGES.fullmatch(method) else None


def _unchanged(found: Mapping[Path, Any], changed: Iterable[Path]) -> dict[Path, Any]:
    """Without what was changed in whole or in part, or is part of that."""
    return {p: v for p, v in found.items() if not any(p[: len(c)] == c[: len(p)] for c in changed)}


def _attributes(value: Any) -> Mapping[str, Any]:
    """What a module or a class of somebody's own has, or what `_record` is of."""
    if isinstance(value, types.ModuleType):
        return vars(value) if own(value.__name__) else {}
    if isinstance(value, type):
        parents = [vars(parent) for parent in reversed(value.__mro__) if own(value.__module__)]
        return {name: inner for parent in parents for name, inner in parent.items()}
    record = _record(value)
    return {} if record is None else {**_attributes(type(value)), **record}


def _record(value: Any) -> dict[str, Any] | None:
    """The attributes of what is but a record: of a dataclass, or of somebody's own class without methods.

    What functions of the class, as `__call__`, assign, change or cache is none of it.
    """
    kind: type = type(value)
    has = [(name, inner) for parent in kind.__mro__ for name, inner in vars(parent).items()]
    plain = own(kind.__module__) and not any(callable(inner) and name[0] != "_" for name, inner in has)
    if dataclasses.is_dataclass(kind):
        held = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(kind)}
    elif plain or kind in (argparse.Namespace, types.SimpleNamespace):
        held = getattr(value, "__dict__", {})
    else:
        return None
    return {name: inner for name, inner in held.items() if name not in _notes(kind)}


@cache
def _notes(kind: type) -> set[str]:
    has = [(name, inner) for parent in kind.__mro__ for name, inner in vars(parent).items()]
    functions = [getattr(inner, "__wrapped__", inner) for _, inner in has]
    found = {name for function in functions if _is_own(function) for name in _kept(function)}
    return found | {name for name, inner in has if isinstance(inner, cached_property)}


def _kept(function: types.FunctionType) -> Iterator[str]:
    """The attributes that a function assigns or changes, but for those that it gives what it makes."""
    makes, begun = function.__name__ in ("__init__", "__post_init__"), dict[Any, str]()
    for before, step in pairwise(_steps(function)):
        place = step.positions and step.positions[::2]
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            if not (makes and before.opname.startswith("LOAD_FAST")):
                yield step.argval
        elif place in begun and _changes(step, before, None) is not None and not makes:
            yield begun[place]
        if step.opname in _ATTRIBUTES:
            begun[place] = step.argval


def _constants(cls: type) -> dict[Path, Any]:
    """What a class has for all its objects, which nothing need assign: neither fields nor containers."""
    fields = getattr(cls, "__dataclass_fields__", {})
    return {
        (cls.__module__, f".{cls.__qualname__}", f".{name}"): value
        for name, value in vars(cls).items()
        if name not in fields and not name[0] == name[-1] == "_" and not isinstance(value, _CHANGEABLE)
    }


_CHANGEABLE = (list, dict, set, np.ndarray, Tensor)
_NONE = object()
"""What is no setting."""
_LARGE = 10_000
"""Who holds as many numbers holds data, and is passed over in what holds it, up to ten times as many."""


def _setting(value: Any) -> Any:
    """What is equal for equal values wherever they are made; of what holds others, as far as these have it.

    It is of numbers, texts that are no places on a machine, functions and classes by their names.
    """
    try:
        return _told(value, (), count())
    except RecursionError:  # too deep, or so much of it that looking would not end
        return _NONE


def _told(value: Any, within: tuple[int, ...], looked_at: Iterator[int]) -> Any:
    def parts(values: Iterable[Any]) -> list[Any]:
        told = (_told(v, (*within, id(value)), looked_at) for v in values)
        return [part for part in told if part is not _NONE]

    if next(looked_at) > 10 * _LARGE:
        raise RecursionError
    if id(value) in within:
        return _NONE
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        if math.prod(value.shape) >= _LARGE:
            return _NONE
        with suppress(RuntimeError):  # of a tensor that is sparse or nowhere
            value = value.tolist()
    if isinstance(value, _HOLDERS) and len(value) >= _LARGE:
        return _NONE
    if isinstance(value, str):
        return _NONE if "/" in value or "\\" in value or value.startswith(("cpu", "cuda")) else str(value)
    if value is None or isinstance(value, (bool, complex, bytes)):
        return value
    if isinstance(value, (int, float)):  # 1.0 is 1, and another machine may round otherwise
        return int(value) if value == value // 1 else float(f"{value:.7g}")
    if isinstance(value, dict):
        return tuple(sorted((tuple(pair) for pair in map(parts, value.items()) if len(pair) == 2), key=repr))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(parts(value), key=repr))
    if isinstance(value, (list, tuple, range)):
        return tuple(parts(value))
    if isinstance(value, partial):
        return tuple(parts((value.func, value.args, value.keywords)))
    if callable(value) and isinstance(name := getattr(value, "__qualname__", None), str):
        return (name, *(tuple(parts(_made_with(value))) if _is_own(value) else ()))
    if isinstance(value, enum.Enum):
        return (type(value).__qualname__, *parts([value.value]))
    record = _record(value)
    return _NONE if record is None else tuple(parts([record]))


_HOLDERS = (list, tuple, range, set, frozenset, dict)


def _made_with(function: types.FunctionType) -> Iterator[Any]:
    """What tells functions of one name from each other: defaults, what they have of where they were made."""
    looked, changed = _uses(function)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from (value for value in defaults if not isinstance(value, _CHANGEABLE))
    for path, value in _unchanged(looked, changed).items():
        if path[1].startswith(_CELL) and path[1] != f"{_CELL}__class__":
            yield path[1:], value
    if "<lambda>" in function.__qualname__:
        for code in _codes(function):
            yield code.co_code, code.co_names, code.co_consts
