"""The fields of a dataclass: what each may hold, and how a value is read, checked and kept in a file.

What is said of them in types, ranges and docstrings is what help pages show. Nothing beyond the standard
library is needed, so that training code never depends on a validation package.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import json
import math
import operator
import re
import textwrap
import types
import typing
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from functools import cache, reduce
from typing import Any

from fedrecall.errors import UserError, shown

LISTS = (list, tuple, Sequence, Collection, Iterable)
MAPPINGS = (dict, Mapping, MutableMapping)
WRITTEN = "numbers, texts, and lists and mappings of them"
UNWRITTEN = f"cannot be written down: give {WRITTEN}, of a tensor or an array its .tolist()."
UNIONS = (typing.Union, types.UnionType)


@dataclasses.dataclass(frozen=True)
class Range:
    """What a number may be, written beside its type: ``Annotated[float, Range(0, 1)]``."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'> ' if self.open_low else '>= '}{self.low:g}"
        if self.low == -math.inf:
            return f"{'< ' if self.open_high else '<= '}{self.high:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"in {left}{self.low:g}, {self.high:g}{right}"


POSITIVE = Range(0, open_low=True)
NON_NEGATIVE = Range(0)
AT_LEAST_ONE = Range(1)
UNIT = Range(0, 1)


@dataclasses.dataclass(frozen=True)
class Field:
    """One parameter as a help page shows it."""

    name: str
    type: Any
    range: Range | None
    default: Any
    owner: type

    @property
    def doc(self) -> str:
        """The docstring under it, read from the source only when it is asked for."""
        return _field_docs(self.owner).get(self.name, "")

    @property
    def allowed(self) -> str:
        """In words, what values the field takes."""
        return " and ".join(filter(None, [_words(self.type), str(self.range or "")]))

    @property
    def how(self) -> str:
        """To be said after `allowed`: how a list or a mapping is written as a text."""
        if _inside(self.type, MAPPINGS) is not None:
            dotted = f"{self.name}.KEY=VALUE or " if self.names_entries else ""
            return f', written as {dotted}{{"KEY": VALUE}}'
        if (inner := _inside(self.type, LISTS)) is not None:
            two = {float: ("0.1", "0.2"), int: ("1", "2"), bool: ("true", "false")}
            places = inner if _is_fixed(inner) else (*inner[:1], *inner[:1]) or (str, str)
            samples = (two.get(_unmarked(place)[0], ("a", "b")) for place in places)
            return f", written as {'+'.join(pair[i % 2] for i, pair in enumerate(samples))}"
        return ""

    @property
    def names_entries(self) -> bool:
        """Whether what follows its name and a dot is a key, as of a mapping to what are no mappings."""
        held = _inside(self.type, MAPPINGS) or (Any, Any)
        return held[1] is not Any and _inside(held[1], MAPPINGS) is None


def fields(cls: type) -> tuple[Field, ...]:
    """The parameters of a dataclass: type, range, default, and the docstring under each."""
    if cls not in _known_fields:
        _known_fields[cls] = _read_fields(cls)
    return _known_fields[cls]


_known_fields: dict[type, tuple[Field, ...]] = {}


def _read_fields(cls: type) -> tuple[Field, ...]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise UserError(
            f"class {cls.__qualname__}: a type of its fields names {error.name!r}, which its file lacks when "
            "it runs: import that there, and not only for type checkers."
        ) from error
    found = []
    for f in dataclasses.fields(cls):
        if not f.init:
            continue
        hint, limit = _unmarked(hints[f.name])
        default = f.default
        if default is dataclasses.MISSING and f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        found.append(Field(f.name, hint, limit, default, cls))
    return tuple(found)


def _unmarked(hint: Any) -> tuple[Any, Range | None]:
    """A type without the name and the marks that it was given, and the range that is one of these."""
    hint = dict[str, Any] if typing.is_typeddict(hint) else getattr(hint, "__supertype__", hint)
    if typing.get_origin(hint) is typing.Final:
        (hint,) = typing.get_args(hint)
    if typing.get_origin(hint) is not typing.Annotated:
        return hint, None
    hint, *marks = typing.get_args(hint)
    return hint, next((m for m in marks if isinstance(m, Range)), None)


def _inside(hint: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a type of one of these kinds, or one in a union, holds: of a mapping keys and values."""
    hint, _ = _unmarked(hint)
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in UNIONS:
        return next((held for part in inner if (held := _inside(part, kinds)) is not None), None)
    return inner if kind in kinds else None


@cache
def _field_docs(cls: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # made in a prompt: no source to read
            continue
        body = typing.cast(ast.ClassDef, tree.body[0]).body
        for line, below in itertools.pairwise(body):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[line.target.id] = inspect.cleandoc(below.value.value)
    return docs


def check(field: Field, value: Any, where: str) -> Any:
    """The value in the field's type, or a UserError naming key, value and what is allowed."""
    try:
        fitted = _fit(field.type, value)
    except (TypeError, ValueError, OverflowError):
        how = field.how if isinstance(value, str) else ""
        if not _can_be_written(field.type):
            how = f", which cannot be written down: write its type as that of {WRITTEN}"
        raise UserError(f"{where}: {field.name} = {shown(value)} is not {field.allowed}{how}.") from None
    if _is_outside(field.range, fitted):
        raise UserError(f"{where}: {field.name} = {shown(value)} must be {field.range}.")
    return fitted


def _is_outside(limit: Range | None, fitted: Any) -> bool:
    number = isinstance(fitted, (int, float)) and not isinstance(fitted, bool)
    return limit is not None and number and fitted not in limit


def _fit(hint: Any, value: Any) -> Any:
    hint, limit = _unmarked(hint)
    if limit is not None:
        if _is_outside(limit, fitted := _fit(hint, value)):
            raise ValueError
        return fitted
    origin = typing.get_origin(hint)
    kind, inner = origin or hint, typing.get_args(hint)
    if hint is Any:
        return value
    if origin in UNIONS:
        options = [o for o in typing.get_args(hint) if o is not type(None)]
        # The word none stands for nothing, unless the field takes words, of which it may be one.
        if value is None or (value in ("none", "None", "null") and str not in options):
            if type(None) in typing.get_args(hint):
                return None
            raise ValueError
        if isinstance(value, float) and float in options:  # 1.0 is not 1 where both are allowed
            return _fit(float, value)
        for option in sorted(options, key=lambda o: (o is str, o is float)):  # narrowest first
            try:
                return _fit(option, value)
            except (TypeError, ValueError, OverflowError):
                continue
        raise ValueError
    if origin is typing.Literal:
        for option in typing.get_args(hint):
            if value == option or (isinstance(value, str) and value == str(option)):
                return option
        raise ValueError
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "on", "1"):
            return True
        if isinstance(value, str) and value.lower() in ("false", "no", "off", "0"):
            return False
        raise ValueError
    if hint is int:
        if isinstance(value, bool):
            raise ValueError
        if hasattr(value, "__index__"):  # numpy's and others' whole numbers
            value = operator.index(value)
        if isinstance(value, (int, float, str)):
            number = int(value)
            if (isinstance(value, str) or number == value) and abs(number) < 2**63:
                return number
        raise ValueError
    if hint is float:
        if isinstance(value, bool):
            raise ValueError
        real = float(value)
        if not math.isfinite(real):
            raise ValueError
        return real
    if hint is str:
        if isinstance(value, str):
            return value
        raise ValueError
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            for member in hint:  # as JSON has its value, or as a text
                if value in (in_file(member.value), str(member.value)):
                    return member
            raise
    if kind in LISTS:
        items = from_json(value)
        if isinstance(items, Mapping):
            raise ValueError
        items = items.split("+") if isinstance(items, str) else [*items]
        places = inner if _is_fixed(inner) else (*inner[:1], Any)[:1] * len(items)
        return (list if kind is list else tuple)(_fit(*pair) for pair in zip(places, items, strict=True))
    if kind in MAPPINGS:
        entries = from_json(value)
        if not isinstance(entries, Mapping):
            raise ValueError
        keys, values = inner or (Any, Any)
        fitted = {_fit(keys, k): _fit(values, v) for k, v in entries.items()}
        if len(fitted) < len(entries):  # 1 and "1"
            raise ValueError
        return fitted
    try:
        fits = isinstance(value, kind)
    except TypeError:  # a TypeVar, or a protocol: nothing can be checked
        return value
    if not fits:
        raise ValueError
    return value


def _is_fixed(inner: tuple[Any, ...]) -> bool:
    """Whether a list's type has one for each place, as ``tuple[int, float]`` has."""
    return len(inner) > 1 and inner[-1] is not ...


def _can_be_written(hint: Any) -> bool:
    """Whether a file can hold more than none of a type."""
    hint, _ = _unmarked(hint)
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in UNIONS:
        return any(part is not type(None) and _can_be_written(part) for part in inner)
    held = kind in (*LISTS, *MAPPINGS) or not isinstance(kind, type)
    return held or issubclass(kind, (bool, int, float, str, enum.Enum))


def from_json(value: Any) -> Any:
    """The list or the mapping that a text writes as JSON does; anything else as it is."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _words(hint: Any) -> str:
    hint, limit = _unmarked(hint)
    if limit is not None:
        return f"{_words(hint)} {limit}"
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Literal:
        return "one of " + ", ".join(map(str, inner))
    if kind in UNIONS:
        return " or ".join(map(_words, inner))
    if kind in LISTS:
        of = " and ".join(map(_words, inner if _is_fixed(inner) else inner[:1]))
        of = "names or mappings" if of == "anything" else of
        return f"a list of {of}" if of else "a list"
    if kind in MAPPINGS:
        return f"a mapping from {_words(inner[0])} to {_words(inner[1])}" if inner else "a mapping"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if hint is type(None):
        return "none"
    if hint is Any:
        return "anything"
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


def valued(value: Any) -> Any:
    """With the values of enums in their places."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {valued(k): valued(v) for k, v in value.items()}
    return type(value)(map(valued, value)) if type(value) in (list, tuple) else value


def in_file(value: Any) -> Any:
    """A value as a JSON file gives it back; what cannot be written as it is."""
    try:
        return json.loads(json.dumps(valued(value)))
    except (TypeError, ValueError, RecursionError):
        return value


def holds(field: Field, thing: Any, what: str) -> Any:
    """What an instance has in a field, in its type; of an enum the member, which may be a number, too."""
    given = getattr(thing, field.name)
    return given if isinstance(given, enum.Enum) else check(field, given, what)


def written(field: Field, thing: Any, what: str) -> Any:
    """What an instance has in a field as a file gives it back, or UserError if none does."""
    held = check(field, getattr(thing, field.name), what)
    read = in_file(held)
    try:
        known = same(read, json.loads(json.dumps(read)))  # NaN is never
    except (TypeError, ValueError, RecursionError):
        known = False
    if not known:
        raise UserError(f"{what}: {field.name} = {shown(held)} {UNWRITTEN}")
    return read


def remedy(field: Field, before: Any, after: Any) -> str:
    """Of a value that a file makes another one what to do."""
    wanted = _type_of(before)
    try:
        found = same(before, _fit(wanted, in_file(before)))
    except (TypeError, ValueError, OverflowError):
        found = False
    if not found:
        return UNWRITTEN
    annotation = re.sub(r"(\w+\.)+(?=\w)", "", inspect.formatannotation(wanted))  # without modules
    return f"would be {shown(after)} in the run: write its type as {field.name}: {annotation}."


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, but for rounding, and of one kind: a list is no tuple."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return same([*one.items()], [*other.items()])
    if isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        return all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=1e-9):
        return True
    return bool(one == other) and isinstance(one, enum.Enum) == isinstance(other, enum.Enum)


def _type_of(value: Any) -> Any:
    """The type that says what a value holds, as a field would have it."""
    if isinstance(value, Mapping) and value:
        return types.GenericAlias(dict, (_any_of(value), _any_of(value.values())))
    if isinstance(value, list) and value:
        return types.GenericAlias(list, _any_of(value))
    if isinstance(value, tuple) and value:
        places = tuple(map(_type_of, value))
        return types.GenericAlias(tuple, places if len(set(places)) > 1 else (places[0], ...))
    return None if value is None else type(value)


def _any_of(values: Iterable[Any]) -> Any:
    return reduce(operator.or_, dict.fromkeys(map(_type_of, values)))
