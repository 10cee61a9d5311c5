"""Published beside measured: what may be said of a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedrecall.algorithms import ALGORITHMS
from fedrecall.config import Config
from fedrecall.ingredients import auxiliary_per_class
from fedrecall.papers.paper import Cell, Paper, Table, Variant
from fedrecall.papers.quantities import NEVER, QUANTITIES, Question, smooth, smoothed
from fedrecall.papers.results import Outcome, Results, identity, subject
from fedrecall.reports.statistics import Summary, summary
from fedrecall.specs import short_text, spec_text

SPREADS = 2.0
"""How many published standard deviations a mean may be off; `right_by_chance` says what that is worth."""
UNKNOWN_STD = 1.0
"""Points of accuracy taken for a spread where a paper gives none at all."""
LEVEL = 20
"""Rounds before the one that is judged, over which a run's level is taken."""
FAILED = 10.0 + 2.0
"""Up to which accuracy a run counts as failed: two points above chance (all such cells have ten classes)."""

ROUNDING = 1e-9
"""Of a difference of two numbers with a few digits, in floating point."""

NOT_RUN, PARTIAL, REPRODUCED, NOT_REPRODUCED = "not run", "unfinished", "reproduced", "not reproduced"
WITH_SWITCH = "reproduced with a switch"
STAND_IN, STAND_IN_ALONE = "a stand-in", "run with a stand-in alone"
SOMETHING_ELSE = "of something else"
"""A number that the run has under this name, but not of what the paper has it of: another layer, say."""
INCOMPARABLE = tuple(word for kind in (STAND_IN, SOMETHING_ELSE) for word in (kind, f"{kind}, {PARTIAL}"))


class Measured(NamedTuple):
    """What the runs of a cell say about one quantity."""

    summary: Summary
    seeds: tuple[int, ...]
    rounds: int
    """After which all of these runs were asked."""
    complete: bool
    """Whether these are all of the paper's rounds."""
    never: int = 0
    """Seeds that did not come to what was to be reached."""

    def text(self, digits: int) -> str:
        """The mean with its spread, or that there is none."""
        if self.never:
            return f"never with {self.never} of {self.summary.n} seeds" if self.complete else "not yet"
        return self.summary.text(digits=digits)


class Verdict(NamedTuple):
    """One quantity of one cell."""

    published: float | None
    std: float | None
    measured: Measured | None
    word: str
    allowed: float | None
    """How far off still counts as reproduced."""
    failed: int = 0
    """Seeds whose run failed."""
    left_out: int = 0
    """Visits of all seeds that were left out because of NaN."""
    also: str | None = None
    """The table's baseline, where its runs are as near to what is published and reproduced here."""

    @property
    def text(self) -> str:
        """The word, and whether it says anything of the method."""
        return self.word + (f" (so would {self.also} be)" if self.also else "")

    @property
    def difference(self) -> float | None:
        """Measured minus published, after all rounds or not; None where levels do not compare."""
        if self.published is None or self.measured is None or not self.word:
            return None
        if self.word in INCOMPARABLE:
            return None
        if not (math.isfinite(self.published) and math.isfinite(self.measured.summary.mean)):
            return None
        return self.measured.summary.mean - self.published

    @property
    def within(self) -> bool | None:
        """Whether the mean lies within the published spread; None without one, or before the end."""
        if self.difference is None or self.std is None or not (self.measured and self.measured.complete):
            return None
        return abs(self.difference) <= self.std


def published_text(cell: Cell, quantity: str) -> str:
    """The paper's number with its spread; what failed there has failed in accuracy, and nothing else."""
    if cell.failed:
        return "failed" if quantity == "accuracy" else ""
    p = cell.published.get(quantity)
    if p is None or p.value is None:
        return ""
    if p.value == NEVER:
        return "never"
    digits = QUANTITIES[quantity].digits
    return f"{p.value:.{digits}f}" + (f" ± {p.std:.{digits}f}" if p.std is not None else "")


def measured_text(verdict: Verdict, quantity: str) -> str:
    """Our number with its spread; what failed has failed in accuracy, and nothing else."""
    if verdict.measured is None:
        return "failed" if verdict.failed and quantity == "accuracy" else ""
    return verdict.measured.text(QUANTITIES[quantity].digits)


def difference_text(verdict: Verdict, quantity: str) -> str:
    """Measured minus published."""
    return "" if verdict.difference is None else f"{verdict.difference:+.{QUANTITIES[quantity].digits}f}"


class Gain(NamedTuple):
    """How much a method is ahead of its table's baseline, over the seeds that both have."""

    published: float | None
    measured: Summary
    rounds: int


class Played(NamedTuple):
    """How far a cell is in one setup, whatever can be said of it."""

    runs: Mapping[int, Outcome]
    """By seed: those of all the paper's rounds, else those that were begun."""
    rounds: int
    """After which all of them can be asked."""
    complete: bool
    """Whether these are all of the paper's rounds."""


def played(config: Config, results: Results) -> Played | None:
    """What has been played of a cell's config and did not fail; None if nothing."""
    runs = _alive(results.of(config))
    complete = {seed: run for seed, run in runs.items() if run.done >= config.rounds}
    if complete:
        return Played(complete, config.rounds, True)
    return Played(runs, min(run.done for run in runs.values()), False) if runs else None


def judge(
    paper: Paper, table: Table, cell: Cell, quantity: str, results: Results, variant: Variant | None = None
) -> Verdict:
    """What the results say about a quantity of a cell."""
    published = cell.published.get(quantity)
    value = published.value if published else None
    std = paper.spread(cell, quantity)
    config = cell.config(variant=variant)
    measured, begun = measure(table, cell, quantity, results, variant), played(config, results)
    runs, rounds = list(results.of(config).values()), config.rounds
    failed = sum(run.failed is not None for run in runs)
    left_out = sum(run.failures for run in runs)

    def said(word: str, allowed: float | None = None, also: str | None = None) -> Verdict:
        return Verdict(value, std, measured, word, allowed, failed, left_out, also)

    if QUANTITIES[quantity].to_baseline and cell.method == table.baseline:
        # Its own is nothing that the paper claims, and is had once its last accuracy is.
        own = measured if measured and measured.complete else None
        word = PARTIAL if begun and not begun.complete else "" if any(run.done for run in runs) else NOT_RUN
        return Verdict(value, std, own, word, None, failed, left_out)
    if quantity == "accuracy" and cell.failed and (failed or (measured and measured.complete)):
        return said(REPRODUCED if _mostly_failed(runs, rounds, table.smoothing) else NOT_REPRODUCED)
    if quantity == "accuracy" and any(_as_failures(run, rounds) for run in runs):
        return said("" if value is None else NOT_REPRODUCED)
    if begun is None:
        return said("" if failed else NOT_RUN)
    other = SOMETHING_ELSE if quantity in table.of_something_else else None
    if kind := STAND_IN if variant is not None and variant.stand_in else other:
        return said(kind if measured and measured.complete else f"{kind}, {PARTIAL}")
    if measured is None or not measured.complete:  # or it lacks what the number needs besides
        return said(PARTIAL)
    if value is None:
        return said("")
    if value == NEVER:
        return said(REPRODUCED if measured.never == measured.summary.n else NOT_REPRODUCED)
    allowed = tolerance(paper, quantity, std, rounds)
    if not _within(measured, quantity, value, allowed):
        return said(NOT_REPRODUCED, allowed)
    too = _baseline_within(table, cell, quantity, results, variant, allowed)
    return said(REPRODUCED, allowed, table.baseline if too else None)


def _within(measured: Measured, quantity: str, value: float, allowed: float) -> bool:
    """As it is shown and published: a difference that is shown as the limit is within it."""
    shown = round(measured.summary.mean, QUANTITIES[quantity].digits)
    return abs(shown - value) <= allowed + ROUNDING


def _baseline_within(
    table: Table, cell: Cell, quantity: str, results: Results, variant: Variant | None, allowed: float
) -> bool:
    """Whether the table's baseline, as it was measured, is as near to the cell's published number."""
    if table.baseline in (None, cell.method):
        return False
    base = table.cell(cell.column, str(table.baseline))
    own = variant if variant is not None and base.changed_by(variant) else None
    found, value = measure(table, base, quantity, results, own), cell.published[quantity].value
    if found is None or not found.complete or value is None:
        return False
    return _within(found, quantity, value, allowed)


def _as_failures(run: Outcome, rounds: int) -> bool:
    """Whether it broke off, or came to its end without a client whose model had become NaN."""
    return run.failed is not None or (run.done >= rounds and run.failures > 0)


def _mostly_failed(runs: Sequence[Outcome], rounds: int, smoothing: float) -> bool:
    """Whether half of the runs that came to an end, or more, are such as a paper calls failed.

    These are those that broke off or end at chance, and those that went on without a client whose
    model had become NaN: where it is averaged like the others, the global model is NaN from there on.
    """
    ended = [run for run in runs if run.failed is not None or run.done >= rounds]
    digits = QUANTITIES["accuracy"].digits

    def as_theirs(run: Outcome) -> bool:
        if _as_failures(run, rounds):
            return True
        return round(100 * smoothed(run.accuracy[:rounds], smoothing), digits) <= FAILED

    return 2 * sum(map(as_theirs, ended)) >= len(ended)


def tolerance(paper: Paper, quantity: str, published: float | None, rounds: int) -> float:
    """Twice the published spread; without one, the paper's usual one. ``rounds``: how many the cell has.

    Ours does not enter: runs that are far from each other would reproduce anything.
    """
    if published is None and quantity == "accuracy":
        published = paper.usual_std or UNKNOWN_STD
    kind = QUANTITIES[quantity]
    return max(kind.tolerance, kind.tolerance_of_rounds * rounds, SPREADS * (published or 0.0))


def right_by_chance(runs: int) -> float:
    """How often the mean of so many runs of just what was published would be found to be reproduced.

    The published mean and spread are taken to be those of three trials, as most are; so the distance of
    the means by that spread follows Student's t with two degrees of freedom.
    """
    limit = SPREADS / math.sqrt(1 / runs + 1 / 3)
    return limit / math.sqrt(limit**2 + 2)


def measure(
    table: Table, cell: Cell, quantity: str, results: Results, variant: Variant | None = None
) -> Measured | None:
    """The quantity's mean over seeds: over complete runs if there are any, else at the last common round."""
    config = cell.config(variant=variant)
    begun = played(config, results)
    if begun is None:
        return None
    used, at, complete = begun
    others: Mapping[int, Outcome] = {}
    if table.baseline is not None:
        base = table.cell(cell.column, table.baseline)
        others = results.of(base.config_with(variant), next(iter(used.values())).config.precision)
    kind = QUANTITIES[quantity]
    values = {}
    for seed, run in used.items():
        if not kind.follows_curve and run.done != at:
            continue
        found = kind.of(Question(run, at, config.rounds, others.get(seed), cell.target, table.smoothing))
        if found is not None:
            values[seed] = float(found)
    if not values:
        return None
    never = sum(v == NEVER for v in values.values())
    over = Summary(NEVER, None, len(values)) if never else summary(list(values.values()))
    return Measured(over, tuple(values), at, complete, never)


def tried(paper: Paper, cell: Cell, results: Results) -> list[Variant]:
    """The switches, and switches together, with which the cell was run."""
    found = {}
    own = cell.config()
    setups = {run.identity: run.config for run in results.about(own) if run.done or run.failed}
    setups.pop(identity(own), None)  # no switch makes it what it is
    for config in setups.values():
        if (v := paper.reading(cell, config)) is not None:
            found[v.name] = v
    place = list(paper.variants).index
    return sorted(
        found.values(), key=lambda v: (len(v.parts), [place(part.name) for part in v.parts or (v,)])
    )


def was_run(paper: Paper, cell: Cell, results: Results) -> bool:
    """Whether anything of the cell was run, with whatever switch."""
    return bool(results.of(cell.config()) or tried(paper, cell, results))


def guests(paper: Paper, table: Table, results: Results) -> list[Cell]:
    """Algorithms that were run in this one's setup and that the paper has not, column by column."""
    found: dict[tuple[int, str], Cell] = {}
    for run in {run.identity: run for run in results}.values():  # one of each experiment's
        method = short_text(ALGORITHMS, run.config.algorithm)
        if method in table.methods:  # with other settings
            method = spec_text(ALGORITHMS, run.config.algorithm)
        for place, column in enumerate(table.columns):
            cell = table.guest(column, method, run.config.algorithm)
            if _is_of(paper, cell, run) and not _published(paper, table, run):
                found[place, method] = cell
    return [found[key] for key in sorted(found)]


def _is_of(paper: Paper, cell: Cell, run: Outcome) -> bool:
    """Whether a run is one of the cell, in the paper's setup or with switches."""
    config = cell.config()
    if subject(config) != subject(run.config):
        return False
    return identity(config) == run.identity or paper.reading(cell, run.config) is not None


def _published(paper: Paper, table: Table, run: Outcome) -> bool:
    """Whether a run is of a cell that the paper has, in this table or in another one."""
    others = [t for t in paper.tables.values() if t is not table]
    return any(_is_of(paper, cell, run) for t in (table, *others) for cell in t.cells)


def readings(
    paper: Paper, table: Table, cell: Cell, results: Results
) -> list[tuple[Variant | None, Verdict]]:
    """What may be said of the cell's first quantity, in the paper's setup and with each switch tried."""
    switches = (None, *(v for v in tried(paper, cell, results) if not v.stand_in))
    return [(v, judge(paper, table, cell, table.quantities[0], results, v)) for v in switches]


def best(paper: Paper, table: Table, cell: Cell, results: Results) -> str:
    """What may be said of the cell's first quantity after all that was tried."""
    found = [verdict.word for _, verdict in readings(paper, table, cell, results)]
    if found[0] != REPRODUCED and REPRODUCED in found:
        return WITH_SWITCH
    word = next((w for w in (REPRODUCED, NOT_REPRODUCED, PARTIAL) if w in found), found[0])
    if word == NOT_RUN and any(v.stand_in for v in tried(paper, cell, results)):
        return STAND_IN_ALONE
    return word


def closest(
    paper: Paper, table: Table, cell: Cell, results: Results
) -> tuple[Variant | None, Verdict] | None:
    """Of all that was tried to the end what is reproduced, then what has most seeds, then what is nearest."""

    def order(found: tuple[Variant | None, Verdict]) -> tuple[bool, int, float]:
        verdict = found[1]
        seeds = verdict.measured.summary.n if verdict.measured else 0
        off = math.inf if verdict.difference is None else abs(verdict.difference)
        return verdict.word != REPRODUCED, -seeds, off

    ended = [f for f in readings(paper, table, cell, results) if f[1].word in (REPRODUCED, NOT_REPRODUCED)]
    return min(ended, key=order, default=None)


def level(table: Table, cell: Cell, results: Results, variant: Variant | None = None) -> Summary | None:
    """Accuracy % over the last rounds of the cell's runs, and how far from round to round it swings in one.

    It is accuracy as the paper reports it, a moving average where that is one, and swings as much as that.
    What is published is one round's. Its spread over trials hides the swing where all trials have drawn the
    same clients for that round.
    """
    runs = _alive(results.of(cell.config(variant=variant))).values()
    last = min(max((r.done for r in runs), default=0), cell.config(variant=variant).rounds)
    if not last:
        return None
    levels = [
        summary([100 * a for a in smooth(r.accuracy[:last], table.smoothing)[-LEVEL:]])
        for r in runs
        if r.done >= last
    ]
    swings = [found.std for found in levels if found.std is not None]
    swing = math.sqrt(sum(s * s for s in swings) / len(swings)) if swings else None
    return Summary(sum(found.mean for found in levels) / len(levels), swing, len(levels))


def level_agrees(table: Table, cell: Cell, results: Results, variant: Variant | None = None) -> bool:
    """Whether the published accuracy is within one deviation of the last rounds' mean.

    Which says nothing where the clients of every round are drawn for all seeds at once, as in the paper:
    then that round swings by the same in its trials and ours.
    """
    if cell.config(variant=variant).global_seed is not None:
        return False
    published, found = cell.published.get("accuracy"), level(table, cell, results, variant)
    if published is None or published.value is None or found is None or found.std is None:
        return False
    return abs(found.mean - published.value) <= found.std


def gain(table: Table, cell: Cell, results: Results, variant: Variant | None = None) -> Gain | None:
    """The paired gain in accuracy on the baseline, at the last round that all these runs have.

    None where the server holds other numbers of examples: then clients hold others.
    """
    if table.baseline in (None, cell.method) or "accuracy" not in table.quantities:
        return None
    base = table.cell(cell.column, str(table.baseline))
    if _held_by_server(cell, variant) != _held_by_server(base, variant):
        return None
    said = [c.published["accuracy"].value for c in (cell, base) if "accuracy" in c.published]
    config = cell.config(variant=variant)
    runs = _alive(results.of(config))
    precision = next((r.config.precision for r in runs.values()), None)
    others = _alive(results.of(base.config_with(variant), precision))
    seeds = sorted(runs.keys() & others.keys())
    if not seeds:
        return None
    whole = [s for s in seeds if min(runs[s].done, others[s].done) >= config.rounds]
    seeds = whole or seeds
    at = config.rounds if whole else min(min(runs[s].done, others[s].done) for s in seeds)
    found = [
        100
        * (
            smoothed(runs[s].accuracy[:at], table.smoothing)
            - smoothed(others[s].accuracy[:at], table.smoothing)
        )
        for s in seeds
    ]
    mine, theirs = said if len(said) == 2 else (None, None)
    return Gain(None if mine is None or theirs is None else mine - theirs, summary(found), at)


def _held_by_server(cell: Cell, variant: Variant | None) -> int:
    config = cell.config_with(variant)
    return auxiliary_per_class(config, ALGORITHMS.make(config.algorithm))


def unpaired(table: Table, cells: Sequence[Cell], variant: Variant | None = None) -> list[Cell]:
    """Those whose clients do not hold what the baseline's hold, so that no gain can be told."""
    if table.baseline is None:
        return []
    base = {c.column: table.cell(c.column, table.baseline) for c in cells}
    return [c for c in cells if _held_by_server(c, variant) != _held_by_server(base[c.column], variant)]


def _alive(runs: Mapping[int, Outcome]) -> dict[int, Outcome]:
    return {s: r for s, r in runs.items() if r.done and r.failed is None}
