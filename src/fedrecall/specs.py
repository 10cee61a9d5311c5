"""Named, validated, documented parameters: algorithms, partitions, models, augmentations, config.

Each of these is a frozen dataclass whose fields are its parameters. This module turns text
(``lda:0.1,balance=false``) or a mapping (from YAML) into such an instance and back; what a field
may hold is in `fields`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Self, TypeVar

from fedrecall.errors import UserError, alike, nearest, shown
from fedrecall.fields import AT_LEAST_ONE as AT_LEAST_ONE
from fedrecall.fields import NON_NEGATIVE as NON_NEGATIVE
from fedrecall.fields import POSITIVE as POSITIVE
from fedrecall.fields import UNIT as UNIT
from fedrecall.fields import Field, check, fields, from_json, holds, in_file, remedy, same, valued, written
from fedrecall.fields import Range as Range
from fedrecall.own_modules import findable, module_at, origin

ALIKE = 0.85
"""How much of two names must be the same, of 1, for one to be the other misspelt."""

BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))

T = TypeVar("T")


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

    def make(self, spec: Any) -> Any:
        """An instance from ``name``, ``name:value,key=value``, a mapping with a ``name``, a class, or one."""
        name, values = self.placed(spec)
        cls = self.cls(name)
        made: Any = build(cls, values, f"{self.kind} {name}")
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
        values = {f.name: written(f, thing, what) for f in fields(type(thing))}
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
        before = from_json(found.get(head, known[head].default))
        if isinstance(before, Mapping) or found.get(head) is None:
            found[head] = {**_by_text(before), key: value}
            del found[name]
    return found


def _by_text(mapping: Any) -> dict[str, Any]:
    """A mapping's values by their keys as JSON writes them; of what is no mapping none."""
    return in_file({str(k): v for k, v in valued(mapping).items()}) if isinstance(mapping, Mapping) else {}


def _check_made_again(what: str, thing: Any, make: Callable[[], Any]) -> None:
    """Raise UserError if an instance is another than those that are made of its fields' values.

    What differs between these, too, such as a time, is no setting that anybody gave.
    """
    made = make()
    for field in fields(type(thing)):
        before, after = (holds(field, each, what) for each in (thing, made))
        if same(before, after) or not same(after, holds(field, make(), what)):
            continue
        if _alike(in_file(before), in_file(after)):
            raise UserError(f"{what}: {field.name} = {shown(before)} {remedy(field, before, after)}")
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
        elif in_file(given) != in_file(field.default):
            words.append(f"{field.name}={_within(registry, given)}")
    return f"{spec['name']}:{','.join(words)}" if words else str(spec["name"])


def short_text(registry: Registry, spec: Mapping[str, Any]) -> str:
    """As `spec_text`, but the name alone if all fields are at their defaults."""
    try:
        known = fields(registry.cls(spec["name"]))
        usual = all(in_file(spec.get(f.name, f.default)) == in_file(f.default) for f in known)
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
        return json.dumps(valued(value), default=str)
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
    """The signature of an ``__init__`` that no decorator made, or made to take more than fields."""
    init = next(vars(part)["__init__"] for part in cls.__mro__ if "__init__" in vars(part))
    made = getattr(getattr(init, "__code__", None), "co_filename", "") == "<string>"
    signature = inspect.signature(init)
    known = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return None if made and known.issuperset([*signature.parameters][1:]) else signature


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
        f"class, as in {lost[0]}: float = 1.0, in place of __init__ or InitVar, and {_decorate(cls.__name__)}"
    )


def _decorate(name: str) -> str:
    return f"write @dataclass(frozen=True) above class {name}."
