"""Command-line options made from the config's fields, so that the two can never differ."""

import functools
import inspect
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.config import Config
from fedrecall.errors import UserError
from fedrecall.fields import Field, fields
from fedrecall.training import Recipe

Settings = dict[str, Any]

_PANELS = {
    "Federation": (
        "dataset",
        "partition",
        "clients",
        "sample",
        "chains",
        "augmentation",
        "normalisation",
        "auxiliary_per_class",
        "validation",
    ),
    "Training": (
        "algorithm",
        "model",
        "initial",
        "rounds",
        *(f.name for f in fields(Recipe)),
        "precision",
    ),
    "Randomness": ("seed", "partition_seed", "global_seed"),
    "Measuring": ("evaluate_every", "test_augmentation", "measures", "sinks"),
    "Running": ("backend", "workers", "device", "checkpoint_every", "keep_every", "on_failure"),
}
_SINGULAR = {"measures": "measure", "sinks": "sink"}


def several(text: str, names: Container[str]) -> list[str]:
    """The specs in one option; a comma begins another one unless it separates values of the one before.

    Neither does it within a path, which has a slash: ``./a,b.py:Mine``.
    """
    found: list[str] = []
    for part in text.split(","):
        last = found[-1] if found else ""
        if _is_cut(last, names) or (_has_values(last, names) and not _begins(part.strip(), names)):
            found[-1] += f",{part}"
        else:
            found.append(part.strip())
    return found


def _listed(text: str, names: Container[str]) -> list[str]:
    """As `several`, of what may also be joined by + as the values of any other setting are."""
    return [one for part in text.split("+") for one in several(part, names)]


def _begins(part: str, names: Container[str]) -> bool:
    """Whether it names one of these or a class of somebody's own, which http://host:80 does not."""
    place, _, rest = part.partition(":")
    cls = rest.partition(":")[0]
    if place in names or not cls.isidentifier() or "=" in place:
        return place in names
    in_module = all(word.isidentifier() for word in place.split(".")) and cls.lstrip("_")[:1].isupper()
    return place.endswith(".py") or in_module


def _has_values(spec: str, names: Container[str]) -> bool:
    """Whether values of it have begun: the first colon in file.py:Class is not theirs."""
    place, colon, rest = spec.partition(":")
    return bool(colon) if place in names else ":" in rest


def _is_cut(spec: str, names: Container[str]) -> bool:
    """Whether it can only be the beginning of a path that has a comma."""
    return "/" in spec and ":" not in spec and spec not in names and not spec.endswith(".py")


def _shown(default: Any) -> str:
    if isinstance(default, Mapping):
        return str(default.get("name"))
    return str(default)


def _option(field: Field, panel: str) -> inspect.Parameter:
    name = _SINGULAR.get(field.name, field.name)
    many = field.name in _SINGULAR
    default = "" if field.default in (None, ()) else f" (default: {_shown(field.default)})"
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=field.doc.splitlines()[0] + default,
        metavar="NAME" if many else _metavar(field),
        rich_help_panel=panel,
        show_default=False,
    )
    kind = list[str] | None if many else str | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _metavar(field: Field) -> str:
    words = field.allowed
    if "whole number" in words:
        return "COUNT" if "a number" not in words else "COUNT|SHARE"
    if words.startswith("one of "):
        return words.removeprefix("one of ").replace(", ", "|")
    return "NUMBER" if "a number" in words else "NAME"


def with_config(*, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every option of the config; they reach it as one argument ``settings``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        known = {f.name: f for f in (*fields(Config), *fields(Recipe)) if f.name != "training"}
        added = [
            _option(known[name], panel)
            for panel, names in _PANELS.items()
            for name in names
            if name not in without
        ]
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]

        @functools.wraps(command)
        def wrapped(**values: Any) -> None:
            given = {p.name: values.pop(p.name) for p in added}
            for name, registry in configs.LISTS.items():
                if given.get(name):
                    given[name] = [one for text in given[name] for one in several(text, registry.entries)]
            command(settings={k: v for k, v in given.items() if v is not None}, **values)

        parameters = [*own, *added]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate


Runs = Annotated[
    list[Path],
    typer.Argument(
        help="Run folders, or folders that hold some, up to three levels down.",
        metavar="RUN...",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", help="Any key of a config: -s partition.s=3 -s lr=0.1.", metavar="KEY=VALUE"),
]
Table = Annotated[
    Path | None,
    typer.Option(
        "--table",
        help="Also write means, deviations and paired differences here: a .tex, .csv or .md file.",
        show_default=False,
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        help="Folder that mirrors the hub's layout (default: $FEDRECALL_DATA, else the hub).",
        show_default=False,
    ),
]


def gather(
    file: Path | None, settings: Settings, assignments: Sequence[str] | None, begun: Settings | None = None
) -> Settings:
    """The config's values: of a run that was begun, from a file, then the options, then the assignments."""
    if file is not None and str(file).partition(":")[0] in ALGORITHMS and not file.exists():
        raise UserError(f"there is no config {file}; an algorithm is named as --algorithm {file}.")
    values = configs.merged(begun or {}, configs.nested(configs.load(file) if file is not None else {}))
    dotted = configs.in_full(settings)
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"-s {shlex.quote(assignment)}: give key=value, such as -s training.lr=0.1.")
        given = _listed(value, configs.LISTS[key].entries) if key in configs.LISTS else value
        dotted |= configs.in_full({key: given})
    return configs.override(values, dotted)
