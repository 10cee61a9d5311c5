"""A paper's tables as cells, each with its config and the published numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import combinations
from statistics import median
from typing import Any

import yaml

from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.config import Config
from fedrecall.errors import UserError, nearest
from fedrecall.fields import fields
from fedrecall.papers.quantities import QUANTITIES
from fedrecall.papers.results import APART, identity

PAPERS = ("fedntd", "fedcad", "fedssd", "sfedkd")

Settings = dict[str, Any]
"""Config values; a dotted key sets one value inside another (``training.lr``, ``algorithm.beta``)."""


@dataclass(frozen=True)
class Published:
    """One number of a paper."""

    value: float | None
    """In the table's unit; None: not reported, infinite: what was to be reached never was."""
    std: float | None = None
    """Standard deviation over the paper's trials, where it is given."""


@dataclass(frozen=True)
class Variant:
    """Another reading of what a paper leaves open."""

    name: str
    about: str
    settings: Settings
    """What it sets; ``=augmentation`` is what the cell has for ``augmentation``."""
    algorithm: str | None = None
    """The only algorithm it means anything to."""
    partitions: Sequence[str] = ()
    """The only partitions it means anything to, if not all."""
    datasets: Sequence[str] = ()
    """The only data sets it means anything to, if not all."""
    table: str | None = None
    """The only table it means anything to."""
    not_in: str | None = None
    """A table it means nothing to."""
    stand_in: bool = False
    """Whether it is no reading of the paper but a cheaper setup: its gains compare, its numbers do not."""
    parts: tuple[Variant, ...] = ()
    """Those that it combines, each of which counts where it means something; empty: it is one."""

    def applies(self, config: Config) -> bool:
        """Whether it means anything to this config."""
        return (
            self.algorithm in (None, config.algorithm["name"])
            and (not self.partitions or config.partition["name"] in self.partitions)
            and (not self.datasets or config.dataset["name"] in self.datasets)
        )

    def in_force(self, cell: Cell, held: Settings) -> bool:
        """Whether all that it changes in the cell's setup is so in a config (``flat``)."""
        try:
            if not cell.changed_by(self):
                return False
        except UserError:  # which the algorithm does not go with
            return False
        plain, changed = cell.changes(self)
        for key, value in self.settings.items():
            if isinstance(value, str) and value.startswith("="):
                # What it is there, which another variant may have changed.
                changed = {**changed, key: held.get(value[1:])}
        told = {k: v for k, v in changed.items() if v != plain.get(k)}
        return bool(told) and all(held.get(k) == v for k, v in told.items())


@dataclass(frozen=True)
class Cell:
    """One method in one column of one table."""

    paper: str
    table: str
    column: str
    method: str
    settings: Settings
    """Everything that the config needs but the seed."""
    published: Mapping[str, Published]
    """By quantity."""
    failed: bool = False
    """Whether the paper says that the run failed."""
    target: float | None = None
    """Accuracy to be reached, in percent, where the table is about reaching one."""

    @property
    def key(self) -> str:
        """Its name in notes and messages."""
        return f"{self.paper}/{self.table} {self.column} {self.method}"

    @property
    def _place(self) -> str:
        """What its setup is looked up by: other settings of an algorithm may go by a method's name."""
        return f"{self.key} {self.settings['algorithm']!r}"

    def config(self, seed: int = 0, variant: Variant | None = None, **changes: Any) -> Config:
        """The paper's setup with this seed; ``changes`` are plain config values."""
        settings = self._settings_with(variant)
        if changes:
            return _config({**settings, **changes, "seed": seed})
        key = self._place, seed, variant.name if variant else None
        if key not in _made:
            _made[key] = _config({**settings, "seed": seed})
        return _made[key]

    def _settings_with(self, variant: Variant | None) -> Settings:
        if variant is None:
            return self.settings
        settings = dict(self.settings)
        for part in variant.parts or (variant,):
            if not variant.parts or self.changed_by(part):
                settings |= part.settings
        return {
            key: settings[value[1:]] if isinstance(value, str) and value.startswith("=") else value
            for key, value in settings.items()
        }

    def changed_by(self, variant: Variant) -> bool:
        """Whether the variant, or one of those that it combines, is another setup than the paper's."""
        if variant.parts:
            return any(map(self.changed_by, variant.parts))
        if variant.table not in (None, self.table) or variant.not_in == self.table:
            return False
        if not variant.applies(self.config()):
            return False
        return bool(self.changes(variant)[1])

    def changes(self, variant: Variant) -> tuple[Settings, Settings]:
        """The paper's setup (``flat``), and of the variant's what is not in it."""
        key = self._place, variant.name
        if key not in _changes:
            plain, other = flat(self.config()), flat(self.config(variant=variant))
            _changes[key] = plain, {k: v for k, v in other.items() if k not in plain or v != plain[k]}
        return _changes[key]

    def config_with(self, variant: Variant | None) -> Config:
        """The setup with the variant, or the paper's where the variant changes nothing."""
        return self.config(variant=variant if variant is not None and self.changed_by(variant) else None)


_made: dict[tuple[str, int, str | None], Config] = {}  # checking a config costs more than looking it up
_changes: dict[tuple[str, str], tuple[Settings, Settings]] = {}


@dataclass(frozen=True)
class Table:
    """A table of a paper, or a figure that is drawn from runs of its own."""

    paper: str
    name: str
    title: str
    also: tuple[str, ...]
    """Other names in the paper for the same runs."""
    columns: tuple[str, ...]
    methods: tuple[str, ...]
    quantities: tuple[str, ...]
    cells: tuple[Cell, ...]
    setups: Mapping[str, Settings]
    """By column, what it is of whatever the method."""
    baseline: str | None
    """The method that others are compared with."""
    rounds: int
    """Rounds of the paper, the most of any column."""
    figure: str | None
    """What draws it, if it is a figure."""
    smoothing: float
    """Weight of the rounds before in the moving average that it reports as accuracy; 0: the last round's."""
    of_something_else: frozenset[str]
    """Quantities that the paper gives of something that its own setup does not have."""
    rows: Mapping[str, Sequence[float]]
    """Published numbers that no run can be compared with cell by cell."""

    def choose(self, columns: Iterable[str] | None, methods: Iterable[str] | None) -> list[Cell]:
        """The cells of these columns and methods, and those of other algorithms that are named as methods.

        A UserError names the nearest one that there is.
        """
        wanted = {}
        for what, chosen, known in (
            ("column", columns, self.columns),
            ("method", methods, self.methods),
        ):
            wanted[what] = list(dict.fromkeys(chosen if chosen is not None else known))
            if not wanted[what]:
                raise UserError(f"name at least one {what}: {', '.join(known)}.")
            for name in wanted[what]:
                if name not in known and (what == "column" or not _of_an_algorithm(name)):
                    near = nearest(name, {*known, *(ALGORITHMS if what == "method" else ())})
                    raise UserError(f"{self.paper}/{self.name} has no {what} {name!r}; {near}")
        own = [c for c in self.cells if c.column in wanted["column"] and c.method in wanted["method"]]
        others = [m for m in wanted["method"] if m not in self.methods]
        return own + [self.guest(column, m) for column in wanted["column"] for m in others]

    def guest(self, column: str, method: str, algorithm: Mapping[str, Any] | None = None) -> Cell:
        """An algorithm that is none of its methods, in a column's setup; nothing of it is published.

        ``algorithm`` is what the method is, if that is more than its name says.
        """
        name, given = ALGORITHMS.placed(algorithm or method)
        open_ = {f.name for f in fields(ALGORITHMS.cls(name))} - given.keys()
        settings = {
            k: v
            for k, v in self.setups[column].items()
            if not k.startswith("algorithm.") or k.removeprefix("algorithm.") in open_
        }
        target = settings.pop("target", None)
        settings = {"algorithm": algorithm or method, **settings}
        return Cell(self.paper, self.name, column, method, settings, {}, target=target)

    def cell(self, column: str, method: str) -> Cell:
        """One cell."""
        return self.choose([column], [method])[0]


@dataclass(frozen=True)
class Paper:
    """What a paper says, and where it leaves something open."""

    name: str
    title: str
    authors: str
    venue: str
    trials: int | None
    """How many seeds its numbers are means of, if it says so."""
    gaps: tuple[str, ...]
    variants: Mapping[str, Variant]
    tables: Mapping[str, Table]

    @cached_property
    def usual_std(self) -> float | None:
        """The median of its published standard deviations of accuracy, where it gives none."""
        given = [
            p.std
            for t in self.tables.values()
            for c in t.cells
            for q, p in c.published.items()
            if q == "accuracy" and p.std
        ]
        return median(given) if given else None

    def spread(self, cell: Cell, quantity: str) -> float | None:
        """The published standard deviation, or what another table gives the same number of the same runs.

        The same, that is, to the digits that it has here. None of 0.00: several trainings that end alike to
        all digits are a slip.
        """
        published = cell.published.get(quantity)
        if published is None or published.value is None:
            return None
        if published.std is not None:
            return published.std or None
        digits = len(repr(float(published.value)).partition(".")[2])
        elsewhere = self._spreads.get((identity(cell.config()), quantity), {})
        return next((std for v, std in elsewhere.items() if round(v, digits) == published.value), None)

    @cached_property
    def _spreads(self) -> dict[tuple[str, str], dict[float, float]]:
        found: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
        for c in (c for t in self.tables.values() for c in t.cells):
            for q, p in c.published.items():
                if p.value is not None and p.std:
                    found[identity(c.config()), q][p.value] = p.std
        return found

    def variant(self, name: str) -> Variant:
        """A variant by its name, or several by their names with a + between."""
        names = name.split("+")
        for part in names:
            if part not in self.variants:
                raise UserError(f"{self.name} has no switch {part!r}; {nearest(part, self.variants)}")
        found = [v for n, v in self.variants.items() if n in names]  # in one order, however they are named
        if len(found) != len(names):
            raise UserError(f"--switch {name}: name one switch, or different ones with a + between.")
        for one, other in combinations(found, 2):
            if shared := sorted(one.settings.keys() & other.settings.keys()):
                raise UserError(f"--switch {name}: {one.name} and {other.name} both set {shared[0]}.")
        return _combined(found)

    def reading(self, cell: Cell, config: Config) -> Variant | None:
        """The variant that makes the cell's setup this config, if one does, or several together."""
        held = flat(config)
        if any(held.get(k) != v for k, v in self._settled(cell).items()):
            return None
        found = [v for v in self.variants.values() if v.in_force(cell, held)]
        if not found:
            return None
        together = _combined(found)
        return together if identity(cell.config(variant=together)) == identity(config) else None

    def _settled(self, cell: Cell) -> Settings:
        """Of the cell's setup, what no variant changes.

        It is compared first, since to make each variant's config of each cell takes long.
        """
        if cell._place not in self._settled_of:
            told = {"algorithm", *APART, *(key for v in self.variants.values() for key in v.settings)}
            self._settled_of[cell._place] = {
                k: v for k, v in flat(cell.config()).items() if not {k, k.partition(".")[0]} & told
            }
        return self._settled_of[cell._place]

    @cached_property
    def _settled_of(self) -> dict[str, Settings]:
        return {}


def _of_an_algorithm(method: str) -> bool:
    """Whether it is the name of an algorithm; of what has settings or is code, raise UserError if not."""
    return method in ALGORITHMS.entries or (":" in method and ALGORITHMS.make(method) is not None)


def _combined(found: Sequence[Variant]) -> Variant:
    if len(found) == 1:
        return found[0]
    return Variant(
        "+".join(v.name for v in found),
        "; ".join(v.about for v in found),
        {},
        stand_in=any(v.stand_in for v in found),
        parts=tuple(found),
    )


def flat(config: Config) -> Settings:
    """Its settings, those inside others by dotted keys."""
    found: Settings = {}
    for key, value in configs.as_dict(config).items():
        inside = value if isinstance(value, Mapping) else {}
        found |= {f"{key}.{k}": v for k, v in inside.items()} if inside else {key: value}
    return found


@cache
def load_paper(name: str) -> Paper:
    """A paper by its name."""
    if name not in PAPERS:
        raise UserError(f"there is no paper {name!r}; {nearest(name, PAPERS)}")
    text = (resources.files("fedrecall.papers") / f"{name}.yaml").read_text(encoding="utf-8")
    held = yaml.safe_load(text)
    return Paper(
        name=name,
        title=held["title"],
        authors=held["authors"],
        venue=held["venue"],
        trials=held["trials"],
        gaps=tuple(held["gaps"]),
        variants={n: Variant(n, **v) for n, v in held["variants"].items()},
        tables={n: _table(name, n, t, held) for n, t in held["tables"].items()},
    )


def table(name: str) -> Table:
    """A table by ``paper/table``."""
    paper, slash, rest = name.partition("/")
    found = load_paper(paper)
    if not slash or not rest:
        raise UserError(f"name one of the tables of {paper}: " + ", ".join(found.tables) + ".")
    for candidate in found.tables.values():
        if rest == candidate.name or rest in candidate.also:
            return candidate
    raise UserError(f"{paper} has no table {rest!r}; {nearest(rest, found.tables)}")


def _table(paper: str, name: str, given: Mapping[str, Any], held: Mapping[str, Any]) -> Table:
    columns, published = given["columns"], given.get("published", {})
    methods = given["methods"]
    if not isinstance(methods, dict):
        methods = {m: held["methods"][m] for m in methods}
    setups = {c: _settings(held, given.get("settings", {}), own, {}) for c, own in columns.items()}
    quantities = tuple(given.get("quantities", published))
    assert all(q in QUANTITIES for q in quantities), f"{paper}/{name} has an unknown quantity"
    cells = []
    for column, own in columns.items():
        for method, recipe in methods.items():
            numbers = {}
            for quantity, rows in published.items():
                place = list(columns).index(column)
                spread = given.get("std", {}).get(quantity, {}).get(method)
                numbers[quantity] = Published(rows[method][place], spread[place] if spread else None)
            settings = _settings(held, given.get("settings", {}), own, recipe)
            target = settings.pop("target", None)
            failed = column in given.get("failed", {}).get(method, ())
            cells.append(Cell(paper, name, column, method, settings, numbers, failed, target))
    return Table(
        paper=paper,
        name=name,
        title=given["title"],
        also=tuple(given.get("also", ())),
        columns=tuple(columns),
        methods=tuple(methods),
        quantities=quantities,
        cells=tuple(cells),
        setups=setups,
        baseline=given.get("baseline"),
        rounds=max(c.settings["rounds"] for c in cells),
        figure=given.get("figure"),
        smoothing=given.get("smoothing", held.get("smoothing", 0.0)),
        of_something_else=frozenset(given.get("of_something_else", ())),
        rows=given.get("rows", {}),
    )


def _settings(
    held: Mapping[str, Any], table: Settings, column: Settings, method: Mapping[str, Any]
) -> Settings:
    """From the most general to the most special, each overriding what came before."""
    own = {k: v for k, v in method.items() if k != "by_dataset"}
    found: Settings = {**held["common"], **table, **column}
    name = found["dataset"]
    for layer in (held.get("datasets", {}).get(name, {}), table, column, own):
        found.update(layer)
    found.update(method.get("by_dataset", {}).get(name, {}))
    return found


def _config(values: Settings) -> Config:
    plain = {k: v for k, v in values.items() if "." not in k}
    dotted = {k: v for k, v in values.items() if "." in k}
    return configs.make(configs.override(plain, dotted))
