"""Named, validated, documented parameters: algorithms, partitions, models, augmentations, config.

Each of these is a frozen dataclass whose fields are its parameters. This module turns text
(``lda:0.1,balance=false``) or a mapping (from YAML) into such an instance and back, and reads
the fields' types, ranges and docstrings for help pages. It needs nothing beyond the standard
library, so that training code never depends on a validation package.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import importlib
import importlib.util
import inspect
import itertools
import json
import math
import operator
import os
import re
import sys
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, reduce
from typing import Any, Self, TypeVar

from fedrecall.errors import UserError, alike, nearest, shown
from fedrecall.own_modules import findable, module_at, origin

ALIKE = 0.85
"""How much of two names must be the same, of 1, for one to be the other misspelt."""

LISTS = (list, tuple, Sequence, Collection, Iterable)
MAPPINGS = (dict, Mapping, MutableMapping)
WRITTEN = "numbers, texts, and lists and mappings of them"
UNWRITTEN = f"cannot be written down: give {WRITTEN}, of a tensor or an array its .tolist()."
UNIONS = (typing.Union, types.UnionType)
BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))

T = TypeVar("T")


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
    hints = typing.get_type_hints(cls, include_extras=True)
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


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of ``cls`` from outside values, each checked against its field.

    ``where`` names the place in an error message (``training``, ``algorithm fedntd``).
    """
    known = {f.name: f for f in fields(cls)}
    checked = {}
    for key, value in values.items():
        if key not in known:
            _check_init(cls, (), {key: value})
            others = nearest(str(key), known) if known else "it has no settings."
            raise UserError(f"{where} has no {key!r}; {others}")
        checked[key] = check(known[key], value, where)
    for f in known.values():
        if f.default is dataclasses.MISSING and f.name not in checked:
            raise UserError(f"{where} needs {f.name!r} ({f.allowed}).")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UserError(f"{where} does not define {', '.join(missing)}.")
    try:
        return cls(**checked)
    except UserError:
        raise
    except ValueError as error:  # a dataclass's own __post_init__
        raise UserError(f"{where}: {error}") from error


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
                if value in (_in_file(member.value), str(member.value)):
                    return member
            raise
    if kind in LISTS:
        items = _from_json(value)
        if isinstance(items, Mapping):
            raise ValueError
        items = items.split("+") if isinstance(items, str) else [*items]
        places = inner if _is_fixed(inner) else (*inner[:1], Any)[:1] * len(items)
        return (list if kind is list else tuple)(_fit(*pair) for pair in zip(places, items, strict=True))
    if kind in MAPPINGS:
        entries = _from_json(value)
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


def _from_json(value: Any) -> Any:
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


class _Closed(typing.NamedTuple):
    besides: tuple[str, ...]
    remedy: str


_closed: ContextVar[_Closed | None] = ContextVar("registered_only", default=None)


@contextmanager
def registered_only(*besides: str, remedy: str) -> Iterator[None]:
    """In this block nothing is imported for a name that is not registered, however deep it is nested.

    For specs from somebody else. ``besides``: names that may be; ``remedy`` ends the error message.
    """
    token = _closed.set(_Closed(besides, remedy))
    try:
        yield
    finally:
        _closed.reset(token)


@contextmanager
def anything() -> Iterator[None]:
    """In this block `registered_only` is lifted."""
    token = _closed.set(None)
    try:
        yield
    finally:
        _closed.reset(token)


def permit(kind: str, name: str) -> None:
    """A UserError where code that is not registered may not be imported; to be called before it is."""
    closed = _closed.get()
    if closed is not None and name not in closed.besides:
        raise UserError(f"the {kind} {shown(name)} is not one of fedrecall's: {closed.remedy}")


class Registry:
    """Names of one kind of thing, each a dataclass loaded when first asked for.

    ``entries`` maps a name to ``module:Class``. A user's own class is reached as
    ``path/to/file.py:Class`` or ``package.module:Class`` without being registered.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        base: str | None = None,
        instead: Mapping[str, str] = types.MappingProxyType({}),
    ):
        """``base``: the ``module:Class`` that a user's own class must derive from, if there is one.

        ``instead`` says of words that are no names, but might be taken for some, what stands for them.
        """
        self.kind = kind
        self.instead = dict(instead)
        self.entries = dict(entries)
        self.base = base
        self._known: dict[str, type] = {}

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self.entries)

    def cls(self, name: str) -> type:
        """The class behind a name."""
        target = self.entries.get(name)
        if target in self._known:
            return self._known[target]
        if target is None:
            if ":" not in name:
                if name.endswith(".py"):
                    raise UserError(f"{self.kind} {name!r}: name a class in it, as in {name}:MyClass.")
                hint = self.instead.get(name) or nearest(name, self.entries)
                raise UserError(f"unknown {self.kind} {name!r}; {hint}")
            permit(self.kind, name)
            self._check_module(name.partition(":")[0])
            target = name
        found = _load(target, self.kind)
        if self.base is not None and not issubclass(found, _load(self.base, self.kind)):
            raise UserError(f"{self.kind} {name} does not derive from {self.base.replace(':', '.')}.")
        if self.base is not None:
            _check_hooks(f"{self.kind} {name}", found, _load(self.base, self.kind))
            _tell_unused(self.kind, found)
        if target.startswith("fedrecall."):  # of others the file may change
            self._known[target] = found
        return found

    def _check_module(self, word: str) -> None:
        """Raise UserError if what should be a module is none, but resembles a name: shard:2."""
        close = None if "." in word or os.sep in word else alike(word, self.entries)
        if close is not None and word not in sys.modules and importlib.util.find_spec(word) is None:
            raise UserError(
                f"unknown {self.kind} {word!r}, nor is there a module of that name; did you mean {close!r}?"
            )

    def make(self, spec: Any, **overrides: Any) -> Any:
        """An instance from ``name``, ``name:value,key=value``, a mapping with a ``name``, a class, or one."""
        name, values = self.placed(spec)
        cls = self.cls(name)
        made: Any = build(cls, values | overrides, f"{self.kind} {name}")
        if self.base is not None:
            _tell_init(cls)
        return made

    def placed(self, spec: Any) -> tuple[str, dict[str, Any]]:
        """Name and values of a spec, these by their fields' names; they may be wrong or too few."""
        name, positional, values = self.parse(spec)
        cls = self.cls(name)
        names = [f.name for f in fields(cls)]
        if len(positional) > len(names):
            _check_init(cls, positional, {})
            raise UserError(f"{self.kind} {name} takes at most {len(names)} values, got {len(positional)}.")
        placed = dict(zip(names, positional, strict=False))
        twice = next((key for key in placed if key in values), None)
        if twice is not None:
            raise UserError(f"{self.kind} {spec!r} says {twice} twice.")
        return name, gathered(cls, placed | values)

    def parse(self, spec: Any) -> tuple[str, list[str], dict[str, Any]]:
        """Name, positional values and keyed values of a spec, unchecked."""
        if dataclasses.is_dataclass(spec):
            spec = self.said(spec)
        if isinstance(spec, Mapping):
            values = dict(spec)
            name = values.pop("name", None)
            if not isinstance(name, str):
                raise UserError(
                    f"a {self.kind} given as a mapping needs a 'name'; {nearest('', self.entries)}"
                )
            return name, [], values
        if not isinstance(spec, str) or not spec:
            raise UserError(
                f"{self.kind}: a name, a mapping or a dataclass is wanted, not {shown(spec)}; "
                f"{nearest('', self.entries)}"
            )
        name, _, rest = spec.partition(":")
        if name not in self.entries and rest:  # file.py:Class or package.module:Class[:values]
            attribute, _, rest = rest.partition(":")
            name = f"{name}:{attribute}"
        positional: list[str] = []
        keyed: dict[str, Any] = {}
        for part in filter(None, _parts(rest)):
            key, value = _keyed(part)
            if _is_open(value):
                raise UserError(f"{self.kind} {spec!r}: the bracket of {value!r} is not closed.")
            value = value[1:-1] if value[:1] == "(" and value[-1] == ")" else value
            if key is not None:
                if key in keyed:
                    raise UserError(f"{self.kind} {spec!r} says {key} twice.")
                keyed[key] = value
            elif keyed:
                raise UserError(f"{self.kind} {spec!r}: {part!r} comes after a key=value.")
            else:
                positional.append(value)
        return name, positional, keyed

    def said(self, thing: Any) -> dict[str, Any]:
        """The mapping for a class or an instance that somebody holds, where its name finds it again."""
        cls = thing if isinstance(thing, type) else type(thing)
        name = self.name(cls)
        findable(self.kind, cls, self.cls, name)
        return {"name": name} if cls is thing else self.spec(thing)

    def name(self, cls: type) -> str:
        """What the class is called by."""
        target = f"{cls.__module__}:{cls.__qualname__}"
        return next((n for n, t in self.entries.items() if t == target), origin(cls))

    def spec(self, thing: Any) -> dict[str, Any]:
        """The mapping, as a file gives it back, that makes this instance again; UserError if it would not."""
        name = self.name(type(thing))
        what = f"{self.kind} {name}"
        values = {f.name: _written(f, thing, what) for f in fields(type(thing))}
        spec = {"name": name, **values}
        _check_made_again(what, thing, lambda: self.make(spec))
        return spec


def gathered(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of a mapping's entries, such as ``rates.fc1.weight``, in that mapping."""
    known = {f.name: f for f in fields(cls)}
    found = dict(values)
    for name, value in values.items():
        head, _, key = str(name).partition(".")
        if not (key and head in known and known[head].names_entries):
            continue
        before = _from_json(found.get(head, known[head].default))
        if isinstance(before, Mapping) or found.get(head) is None:
            found[head] = {**_by_text(before), key: value}
            del found[name]
    return found


def _by_text(mapping: Any) -> dict[str, Any]:
    """A mapping's values by their keys as JSON writes them; of what is no mapping none."""
    return _in_file({str(k): v for k, v in _plain(mapping).items()}) if isinstance(mapping, Mapping) else {}


def _check_made_again(what: str, thing: Any, make: Callable[[], Any]) -> None:
    """Raise UserError if an instance is another than those that are made of its fields' values.

    What differs between these, too, such as a time, is no setting that anybody gave.
    """
    made = make()
    for field in fields(type(thing)):
        before, after = (_held(field, each, what) for each in (thing, made))
        if _same(before, after) or not _same(after, _held(field, make(), what)):
            continue
        if _alike(_in_file(before), _in_file(after)):
            raise UserError(f"{what}: {field.name} = {shown(before)} {_lost(field, before, after)}")
        raise UserError(
            f"{what}: made again of its settings it has {field.name} = {shown(after)}, not "
            f"{shown(before)}: let it keep what it is given, and make more of that where it is used."
        )
    if _is_given_fields_alone(type(thing)):
        return
    settings = {f.name for f in fields(type(thing))}
    for name, value in getattr(thing, "__dict__", {}).items():
        if name in settings:
            continue
        kept = inspect.getattr_static(made, name, value)  # a method may have noted what is not there yet
        try:
            lost = not _alike(value, kept) and _alike(kept, inspect.getattr_static(make(), name, kept))
        except (TypeError, ValueError):  # of what is neither number nor text nothing is known
            continue
        if lost:
            raise UserError(
                f"{what}: its {name} = {shown(value)} is no setting, so that no run would have it: make it a "
                "field of the dataclass."
            )


def _is_given_fields_alone(cls: type) -> bool:
    """Whether all else that its instances have is what the class itself makes of its fields, or notes."""
    decorated: Any = vars(cls).get("__dataclass_params__")
    return decorated is not None and decorated.frozen and _own_init(cls) is None


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are written alike, but for rounding, as of weights that are made to sum to 1."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9) or json.dumps(one) == json.dumps(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return all(map(_alike, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        json.dumps([one, other])  # of what it cannot write nothing is known
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return json.dumps(one) == json.dumps(other)


def _plain(value: Any) -> Any:
    """With the values of enums in their places."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(k): _plain(v) for k, v in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _in_file(value: Any) -> Any:
    """A value as a JSON file gives it back; what cannot be written as it is."""
    try:
        return json.loads(json.dumps(_plain(value)))
    except (TypeError, ValueError, RecursionError):
        return value


def _held(field: Field, thing: Any, what: str) -> Any:
    """What an instance has in a field, in its type; of an enum the member, which may be a number, too."""
    given = getattr(thing, field.name)
    return given if isinstance(given, enum.Enum) else check(field, given, what)


def _written(field: Field, thing: Any, what: str) -> Any:
    """What an instance has in a field as a file gives it back, or UserError if none does."""
    held = check(field, getattr(thing, field.name), what)
    read = _in_file(held)
    try:
        known = _same(read, json.loads(json.dumps(read)))  # NaN is never
    except (TypeError, ValueError, RecursionError):
        known = False
    if not known:
        raise UserError(f"{what}: {field.name} = {shown(held)} {UNWRITTEN}")
    return read


def _lost(field: Field, before: Any, after: Any) -> str:
    """Of a value that a file makes another one what to do."""
    wanted = _type_of(before)
    try:
        found = _same(before, _fit(wanted, _in_file(before)))
    except (TypeError, ValueError, OverflowError):
        found = False
    if not found:
        return UNWRITTEN
    annotation = re.sub(r"(\w+\.)+(?=\w)", "", inspect.formatannotation(wanted))  # without modules
    return f"would be {shown(after)} in the run: write its type as {field.name}: {annotation}."


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, but for rounding, and of one kind: a list is no tuple."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _same([*one.items()], [*other.items()])
    if isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        return all(map(_same, one, other))
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


def _parts(values: str) -> list[str]:
    """What commas separate, but for those of a value in brackets: a spec with settings, or JSON."""
    found: list[str] = []
    for part in values.split(","):
        if found and _is_open(_keyed(found[-1])[1]):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _keyed(part: str) -> tuple[str | None, str]:
    """Key, if it has one, and value of ``key=value`` or ``value``."""
    key, equals, value = part.partition("=")
    keyed = equals and not any(bracket in key for bracket, _ in BRACKETS)
    return (key.strip(), value.strip()) if keyed else (None, part.strip())


def _is_open(value: str) -> bool:
    return any(value.startswith(a) and value.count(a) > value.count(b) for a, b in BRACKETS)


def plain(thing: Any) -> dict[str, Any]:
    """A dataclass's fields as values that YAML and JSON can hold."""
    return {f.name: getattr(thing, f.name) for f in fields(type(thing))}


def spec_text(registry: Registry, spec: Mapping[str, Any]) -> str:
    """``lda:0.1`` of lda's fields: the first one, and of the others what is not the default."""
    try:
        known = fields(registry.cls(spec["name"]))
    except UserError:  # a class of the user's that is no longer there
        return str(spec["name"])
    words = []
    for i, field in enumerate(known):
        given = spec.get(field.name, field.default)
        if isinstance(given, Mapping) and not is_spec(given):
            words += _entries(field, _by_text(given))
        elif i == 0 and given is not None:
            words.append(_within(registry, given))
        elif _in_file(given) != _in_file(field.default):
            words.append(f"{field.name}={_within(registry, given)}")
    return f"{spec['name']}:{','.join(words)}" if words else str(spec["name"])


def short_text(registry: Registry, spec: Mapping[str, Any]) -> str:
    """As `spec_text`, but the name alone if all fields are at their defaults."""
    try:
        known = fields(registry.cls(spec["name"]))
        usual = all(_in_file(spec.get(f.name, f.default)) == _in_file(f.default) for f in known)
    except UserError:  # a class of the user's that is no longer there
        usual = True
    return str(spec["name"]) if usual else spec_text(registry, spec)


def _entries(field: Field, given: Mapping[str, Any]) -> list[str]:
    """Of a mapping the entries that are not the default's, or all of them where one of those is gone."""
    usual = _by_text(field.default)
    if given == usual:
        return []
    if not (field.names_entries and usual.keys() <= given.keys()):
        return [f"{field.name}={word(given)}"]
    changed = {k: v for k, v in given.items() if k not in usual or v != usual[k]}
    return [assignment(field.name, changed)]


def assignment(name: str, value: Any) -> str:
    """How a spec gives a value, of a mapping each of its entries: ``rates.fc1=0.1,rates.fc2=0.2``."""
    named = isinstance(value, Mapping) and not is_spec(value) and bool(value)
    if named and all(_is_bare(str(key)) for key in value):
        return ",".join(assignment(f"{name}.{key}", inner) for key, inner in value.items())
    return f"{name}={word(value)}"


def _is_bare(key: str) -> bool:
    """Whether it can stand in a spec without quotes."""
    return re.fullmatch(r"[\w.-]+", key) is not None


def is_spec(value: Any) -> bool:
    """Whether a value is a mapping that names something."""
    return isinstance(value, Mapping) and isinstance(value.get("name"), str)


def _within(registry: Registry, given: Any) -> str:
    """A field's value; of one that is itself a spec with settings, in brackets, which no spec has."""
    if not is_spec(given):
        return word(given)
    text = short_text(registry, given)
    return text if text == given["name"] else f"({text})"


def word(value: Any) -> str:
    """A value as it is written in a spec: short, but no other one is written so."""
    if is_spec(value):
        settings = ",".join(assignment(k, v) for k, v in value.items() if k != "name")
        return f"{value['name']}({settings})" if settings else str(value["name"])
    if isinstance(value, Mapping):
        return json.dumps(_plain(value), default=str)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "+".join(map(word, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _load(target: str, kind: str) -> type:
    place, _, attribute = target.rpartition(":")
    module = module_at(place, f"{kind} {shown(target)}")
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        held = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
        why = "."
        if isinstance(found, type):
            why = f": {_decorate(attribute)}"
        elif place == "__main__":
            why = ": it was made in a notebook or a script, which alone can go on with it."
        elif held:
            why = f"; {nearest(attribute, held)}"
        raise UserError(f"{kind} {target!r}: {place} has no dataclass {attribute!r}{why}")
    if "name" in (f.name for f in dataclasses.fields(found)):
        raise UserError(f"{kind} {target!r}: its field 'name' is what it is called by: name it otherwise.")
    _check_declared(f"{kind} {target!r}", found)
    return found


class Declared:
    """Makes no instance of a class that lacks its decorator, as what is given would be no settings of it."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """What was given is for the dataclass's own ``__init__``."""
        kind: Any = cls
        _check_declared(f"class {cls.__qualname__}", kind)
        if given or named:
            _check_init(kind, given, named)
        return super().__new__(cls)


def _check_hooks(what: str, cls: type, base: type) -> None:
    """Raise UserError if a class replaces what its base calls by what cannot be called so."""
    settings = {f.name for f in dataclasses.fields(cls)}
    for name, hook in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(hook):
            continue
        if name in settings:
            raise UserError(
                f"{what}: its field {name!r} takes the place of the hook {name}: name it otherwise."
            )
        own = inspect.getattr_static(cls, name)
        names = [*inspect.signature(hook).parameters]
        if isinstance(own, staticmethod):
            own, names = own.__func__, names[1:]
        if not inspect.isfunction(own):
            continue
        try:
            inspect.signature(own).bind(*names)
        except TypeError as error:
            both = (inspect.signature(own).parameters, names)
            taken, given = (", ".join(n for n in each if n != "self") for each in both)
            raise UserError(
                f"{what}: its {name} takes ({taken}) and is called with ({given}): give it these parameters."
            ) from error


@cache  # to tell it once
def _tell_unused(kind: str, cls: type) -> None:
    """Warn of what a user's own class has that nobody asks it for, and that is nearly what somebody does; and
    of one that changes nothing of what it derives from, as hooks of another framework's names do not."""
    ours = [part for part in cls.__mro__ if part is object or part.__module__.startswith("fedrecall.")]
    known, own = ({n for part in parts for n in vars(part)} for parts in (ours, {*cls.__mro__} - {*ours}))
    changed = {n for n in own & known if not n.startswith("__")} | own & {"__call__", "__post_init__"}
    known, own = ({n for n in names if not n.startswith("_")} for names in (known, own))
    told = False
    for name in sorted(own - known):
        near = [*difflib.get_close_matches(name, known, cutoff=ALIKE), *_begun_alike(name, known)]
        if meant := [n for n in near if n not in own]:
            told = True
            warnings.warn(
                f"{kind} {cls.__name__} has {name!r}, which nobody asks it for: did you mean {meant[0]!r}?",
                RuntimeWarning,
                stacklevel=2,
            )
    if cls not in ours and not (told or changed or _own_init(cls)):
        warnings.warn(
            f"{kind} {cls.__name__} overrides nothing of {ours[0].__name__}, so it does the same.",
            RuntimeWarning,
            stacklevel=2,
        )


def _begun_alike(name: str, known: set[str]) -> list[str]:
    """Of one word what begins as another one: aggregation, aggregate."""
    if len(name) < 5 or "_" in name:
        return []
    return sorted(n for n in known if n.startswith(name[:5]) and "_" not in n)


@cache
def _check_declared(what: str, cls: type) -> None:
    """Raise UserError if a class has settings as if it were a dataclass, which a base of it may be."""
    if "__dataclass_fields__" in vars(cls):
        return
    hints = inspect.get_annotations(cls)
    if unheard := [name for name, hint in hints.items() if "ClassVar" not in str(hint)]:
        raise UserError(f"{what}: its {', '.join(unheard)} would be no settings: {_decorate(cls.__name__)}")


@cache
def _own_init(cls: type) -> inspect.Signature | None:
    """The signature of an ``__init__`` that no decorator made."""
    init = next(vars(part)["__init__"] for part in cls.__mro__ if "__init__" in vars(part))
    made = getattr(getattr(init, "__code__", None), "co_filename", "") == "<string>"
    return None if made else inspect.signature(init)


def _check_init(cls: type, given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise UserError if an ``__init__`` is given what is no field: made again, it will not be given it."""
    if (init := _own_init(cls)) is None:
        return
    try:
        taken = list(init.bind_partial(None, *given, **named).arguments)[1:]
    except TypeError:  # as it will say itself
        return
    if said := _unheard(cls, init, taken):
        raise UserError(said)


@cache  # to tell it once
def _tell_init(cls: type) -> None:
    """Warn of an ``__init__`` that could be given what is no field."""
    init = _own_init(cls)
    if init is not None and (said := _unheard(cls, init, list(init.parameters)[1:])):
        warnings.warn(said, RuntimeWarning, stacklevel=2)


def _unheard(cls: type, init: inspect.Signature, taken: Sequence[str]) -> str:
    """The sentence for those parameters of an ``__init__`` that are no fields, if there are any."""
    known = {f.name for f in fields(cls)} if dataclasses.is_dataclass(cls) else set()
    several = {n for n, p in init.parameters.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    lost = [name for name in taken if name not in known | several]
    if not lost:
        return ""
    return (
        f"class {cls.__qualname__}: its {', '.join(lost)} would be no settings: make them fields of the "
        f"class, as in {lost[0]}: float = 1.0, in place of __init__, and {_decorate(cls.__name__)}"
    )


def _decorate(name: str) -> str:
    return f"write @dataclass(frozen=True) above class {name}."
