"""docs/reproduction.md, written from the results: `python -m tools.reproduction`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from fedrecall import config as configs
from fedrecall import files
from fedrecall.errors import UserError
from fedrecall.papers.paper import PAPERS, Cell, Paper, Table, Variant, load_paper
from fedrecall.papers.quantities import QUANTITIES
from fedrecall.papers.results import FOLDER, Outcome, Results, identity
from fedrecall.papers.verdicts import (
    FAILED,
    LEVEL,
    NOT_REPRODUCED,
    NOT_RUN,
    PARTIAL,
    REPRODUCED,
    SOMETHING_ELSE,
    SPREADS,
    STAND_IN_ALONE,
    UNKNOWN_STD,
    WITH_SWITCH,
    Verdict,
    best,
    closest,
    difference_text,
    gain,
    guests,
    judge,
    level,
    level_agrees,
    measured_text,
    played,
    published_text,
    right_by_chance,
    tried,
    was_run,
)

PAGE = Path("docs/reproduction.md")
FEW = 4
"""Up to how many revisions a line names."""
UNKNOWN = "unknown"
"""The revision of a run whose code was not under version control."""
MEASURED = (
    "column",
    "method",
    "published",
    "measured",
    "seeds",
    "rounds",
    f"last {LEVEL} rounds",
    "difference",
    "verdict",
)

HEAD = f"""# The papers, reproduced

Every table of the four papers, cell by cell: what was published beside what this package measured.
Written by `make docs` from the small files under `{FOLDER}/` (config, seed, curve, machine, code version of
each run) and the papers' own numbers in `src/fedrecall/papers/`; a test compares it with what they say.

    fedrecall reproduce fedntd/table1 --columns cifar10/shard2 --methods fedavg,fedntd --seeds 3
    fedrecall reproduce fedntd/table1 --columns cifar10/shard2 --methods fedavg,fedntd --seeds 1 \\
        --switch authors-draw+augmented-test
    fedrecall list papers                # which cells have been measured, and on what
    fedrecall show paper fedntd/table1   # one table's cells: seeds, rounds, machines, verdicts

What `reproduce` measures it prints, and below it what this page says of the same cells; it keeps what it
measured with its runs (`runs/reproduction/results`); `--results {FOLDER}` makes it count here.

Accuracies are those of the last round on the whole test split, in percent (FedNTD's, but for table 13, are a
moving average over rounds, which is what its authors report), with the standard deviation over seeds where
there are several; F is forgetting.
A cell is **reproduced** when all of the paper's rounds
were played and the mean lies within {SPREADS:g} published standard deviations (ours does not widen that: runs
far from each other would reproduce anything); where a table gives none, the one that another table gives the
same number of the same runs, else the median of those that the paper gives, or {UNKNOWN_STD:g} point if it
gives none at all. A published spread is one of three trials or so, and varies itself: by this rule the very
thing that was published would be found to be reproduced {100 * right_by_chance(1):.0f} times of 100 by one \
seed, {100 * right_by_chance(2):.0f} by two and
{100 * right_by_chance(3):.0f} by three, and what is published with a small spread is held to it.
Where the baseline's own runs, taken for the method's, would be within that distance as well, the verdict
says so (**so would fedavg be**): then it is the level that is reproduced, and only the gain, listed below
each table, speaks of the method.
**Last {LEVEL} rounds** is the mean of the same accuracies over so many rounds up to the last one played, and
their standard deviation from round to round, within a seed (of moving averages, where those are reported).
The clients of a single round move accuracy by that much, and published spreads leave it out, because all
trials draw the same clients. A cell that was played with other clients than the paper's and is not
reproduced, but whose published accuracy is within one such
deviation of this mean, says that **its level agrees**; with the paper's own draw (`authors-draw`) that
excuses nothing.
Numbers are compared as they are shown. Forgetting may be off by {QUANTITIES["forgetting"].tolerance:g}, \
which is what its two published
digits and one class in ten account for, the alignment of layer fc1, whose spread is not published, by \
{QUANTITIES["fc1_local"].tolerance:g}, rounds to
an accuracy by {QUANTITIES["rounds_to_baseline"].tolerance_of_rounds:.0%} of the cell's rounds, \
and a ratio of times by {QUANTITIES["speedup"].tolerance:g}. The rounds in a baseline's own row are
those that it takes itself to the accuracy that it ends with.
A run that broke off, or that went on without a client whose model became NaN, is a failed one: averaged with
the others', as in the authors' code, that model would have made the global one NaN. A cell that is published
as failed is reproduced if half of the runs or more failed or end at {FAILED:g} % at
most, two points above chance; any other cell of which a run failed is not. That a lost client counts was
decided when the first such run was seen (table 14, beta = 0.3, the only one).
**Unfinished** rows were stopped early, and say after which round; the learning rate still falls and the
model still learns until the last one, so they decide nothing. Nor does a row that lacks what its number needs
besides its own run: the baseline's, or a measure. A method with the name of a **switch** behind
it was run with another reading of what its paper leaves open (`--switch`), said above the tables (of a cell
that was run with switches alone, the row without is left out);
with a **stand-in** it was run in a cheaper setup, of which only the gains compare, so no difference is given.
A number **{SOMETHING_ELSE}** is that of another layer than the paper's, and compares with nothing.
Runs of a cell in several precisions are not averaged: each precision has its row.
Gains are paired: the same seeds, partition and clients for both methods.
Methods below a table's own, without published numbers, are none of the paper's: any algorithm can be named
as a method (`--methods fedavg,fedntd,mine.py:Mine`), and is played in the same setup.
"""

ARBITER = """## The authors' own code as arbiter

Where a level disagrees with a published one, the code that FedNTD's authors released (Lee-Gihun/FedNTD, for
FedNTD and its baselines) can be run on the same data at its shipped configuration. Nothing of it is part of
this package; `benchmarks/arbiter/` stands in for what it imports and this project does without (torchvision's
readers and transforms, wandb's log), runs it, and prints its accuracy round by round beside ours:

    git clone https://github.com/Lee-Gihun/FedNTD /tmp/arbiter/code
    python benchmarks/arbiter/run.py --code /tmp/arbiter/code --algorithm fedntd --rounds 26

Its partition, its clients and its batches are its own. `--global-seed 19940817` (switch `authors-draw`) gives
ours the same shards or LDA shares and the same clients in every round, and

    python benchmarks/arbiter/draws.py --code /tmp/arbiter/code

holds the two side by side; what is then left to differ are which examples of a class a client has, the
initial model, the batches and the code.
"""

CURVES = """Curves that were compared (`benchmarks/results/arbiter/`), one run of each code with the same
draw. Accuracy is the mean of the last {level} rounds with its standard deviation from round to round;
distance is the mean one between the two accuracies of a round, and steps the correlation of their changes
from one round to the next.

| cell | test images | rounds | theirs | forgetting | ours | forgetting | distance | steps |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""

UPDATES = """### Update for update

    python benchmarks/arbiter/updates.py --code /tmp/arbiter/code

plays {rounds} rounds of each of its algorithms ({code}) and of ours in float64 with the same clients,
mini-batches and initial model, so that nothing is left to chance. The gap is the largest distance between the
two models of a round, layer by layer, relative to the way from the initial one; beside it is ours' from
FedAvg, what the algorithm itself amounts to.

| its | settings | ours | gap | from FedAvg | |
| --- | --- | --- | --- | --- | --- |
{rows}

So where a published level is not reproduced and the gap is nothing, it is not for the algorithm's updates.
FedNova has two rows: the released configuration switches its variance reduction on, which is `recoil` here
(`--switch fednova-shipped`) and off by default.
"""


def render(folder: Path = FOLDER) -> str:
    """The page."""
    results = Results.load(folder)
    why = notes(folder, results)
    told = told_at(why)
    parts = [HEAD, _overview(results), _machines(results)]
    for name in PAPERS:
        paper = load_paper(name)
        parts.append(f"## {paper.name}: {paper.title}\n\n{paper.authors}, {paper.venue}.\n")
        parts.append("Known gaps of the paper, and what was decided:\n")
        parts.append("\n".join(f"- {_line(gap)}" for gap in paper.gaps) + "\n")
        parts.append("Switches (`--switch NAME`), for what it leaves open:\n")
        parts.append("\n".join(f"- `{v.name}`: {v.about}" for v in paper.variants.values()) + "\n")
        parts += [_table(paper, t, results, why, told) for t in paper.tables.values()]
    parts += [ARBITER, *_curves(folder.parent / "arbiter"), *_updates(folder.parent / "arbiter-updates.json")]
    return "\n".join(parts)


def _curves(folder: Path) -> list[str]:
    compared = [found for path in sorted(folder.glob("*.json")) if (found := files.read_json(path))["ours"]]
    rows = "\n".join(_curve(found) for found in sorted(compared, key=lambda found: str(found["table"])))
    return [CURVES.format(level=LEVEL, rows=rows)] if compared else []


def _curve(found: Mapping[str, Any]) -> str:
    sides = found["theirs"], found["ours"]
    theirs, ours = (np.array(side["accuracy"]) * 100 for side in sides)
    said = []
    for side, accuracy in zip(sides, (theirs, ours), strict=True):
        last, forgotten = accuracy[-LEVEL:], side["forgetting"]
        said += [f"{last.mean():.2f} ± {last.std(ddof=1):.2f}", f"{forgotten[-1]:.2f}" if forgotten else ""]
    test = "augmented" if "augmented-test" in found["switch"] else "as they are"
    apart, steps = abs(theirs - ours).mean(), np.corrcoef(np.diff(theirs), np.diff(ours))[0, 1]
    words = [f"{found['table']} {found['column']} {found['algorithm']}", test, len(theirs), *said]
    return f"| {' | '.join(map(str, words))} | {apart:.2f} | {steps:.2f} |"


def _updates(path: Path) -> list[str]:
    if not path.exists():
        return []
    found = files.read_json(path)
    rows = [
        f"| {c['theirs']} | {', '.join(f'{k} = {v}' for k, v in c['params'].items())} | `{c['ours']}` "
        f"| {c['gap']:.0e} | {c['from_fedavg']:.0e} | {c['note']} |"
        for c in found["cases"]
    ]
    return [UPDATES.format(rounds=found["rounds"], code=found["code"], rows="\n".join(rows))]


def notes(folder: Path, results: Results) -> dict[str, str]:
    """Why something did not reproduce, as far as found: notes.yaml beside the results.

    Its keys are cells (``fedntd/table1 cifar10/shard2 fedntd``), columns and tables. Each note says of how
    many rounds it speaks; once there are more, it is to be read again.
    """
    path = folder / "notes.yaml"
    if not path.exists():
        return {}
    known: dict[str, tuple[Paper, Table, list[Cell]]] = {}
    for name in PAPERS:
        paper = load_paper(name)
        for t in paper.tables.values():
            own, cells = f"{name}/{t.name}", [*t.cells, *guests(paper, t, results)]
            known[own] = paper, t, cells
            known |= {
                f"{own} {column}": (paper, t, [c for c in cells if c.column == column])
                for column in t.columns
            }
            known |= {cell.key: (paper, t, [cell]) for cell in t.cells}
    said = {}
    for key, note in configs.load(path).items():
        if key not in known:
            raise UserError(f"{path} has a note on {key!r}, which is no table, column or cell.")
        if (
            not isinstance(note, dict)
            or note.keys() != {"rounds", "text"}
            or not isinstance(note["text"], str)
        ):
            raise UserError(f"{path}: the note on {key!r} needs a text, and the rounds that it speaks of.")
        paper, _, cells = known[key]
        if (counted := _rounds(paper, cells, results)) != note["rounds"]:
            raise UserError(
                f"{path}: the note on {key!r} speaks of {note['rounds']} rounds, and {counted} were played: "
                f"read it again, change what is no longer so, and write `rounds: {counted}`."
            )
        said[key] = note["text"]
    return said


def told_at(why: Iterable[str]) -> dict[str, str]:
    """By experiment, the first of these notes' keys that speaks of one of its cells."""
    known = set(why)
    found: dict[str, str] = {}
    for name in PAPERS:
        for t in load_paper(name).tables.values():
            for cell in t.cells:
                if own := [key for key in keys(cell) if key in known]:
                    found.setdefault(identity(cell.config()), own[0])
    return found


def keys(cell: Cell) -> tuple[str, str, str]:
    """What a note may be on to speak of this cell, the most special first."""
    own = f"{cell.paper}/{cell.table}"
    return cell.key, f"{own} {cell.column}", own


def _elsewhere(
    paper: Paper, table: Table, results: Results, why: Mapping[str, str], told: Mapping[str, str]
) -> list[str]:
    """By column, where it is said what was found of its experiments, if that is at another table."""
    lines = []
    for column in table.columns:
        untold = [c for c in table.cells if c.column == column and why.keys().isdisjoint(keys(c))]
        begun = (identity(c.config()) for c in untold if was_run(paper, c, results))
        places = {told[experiment] for experiment in begun if experiment in told}
        if places:
            lines.append(f"- {column}: see {' and '.join(map(_linked, sorted(places)))}")
    return lines


def _linked(key: str) -> str:
    """A note's key, leading to its table."""
    paper, _, name = key.partition(" ")[0].partition("/")
    return f"[{key}](#{anchor(_heading(load_paper(paper).tables[name]))})"


def anchor(heading: str) -> str:
    """What a heading is called in an address, as GitHub has it."""
    kept = (c for c in heading.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _heading(table: Table) -> str:
    return f"{table.paper}/{table.name}: {table.title}"


def _rounds(paper: Paper, cells: Iterable[Cell], results: Results) -> int:
    """Of all runs of these cells, with whatever switch."""
    setups = [c.config(variant=v) for c in cells for v in (None, *tried(paper, c, results))]
    distinct = {identity(config): config for config in setups}.values()
    each = ((config, precision) for config in distinct for precision in results.precisions(config))
    return sum(run.done for config, precision in each for run in results.of(config, precision).values())


def _overview(results: Results) -> str:
    rows = []
    states = (REPRODUCED, WITH_SWITCH, NOT_REPRODUCED, "", PARTIAL, STAND_IN_ALONE, NOT_RUN)
    reproduced: dict[object, Verdict] = {}
    cells = 0
    for name in PAPERS:
        paper = load_paper(name)
        for t in paper.tables.values():
            words = [best(paper, t, c, results) for c in t.cells]
            counts = [words.count(word) for word in states]
            rows.append([f"{name}/{t.name}", t.title, len(words), *counts])
            for cell, word in zip(t.cells, words, strict=True):
                if word in (REPRODUCED, WITH_SWITCH) and (found := closest(paper, t, cell, results)):
                    cells += 1
                    said = cell.failed or cell.published[t.quantities[0]].value
                    reproduced.setdefault((identity(cell.config()), said), found[1])
    head = ["table", "what it is", "cells", *(word or "nothing to compare" for word in states)]
    parts = ["## Where it stands\n\nBy each table's first quantity.\n", grid(head, rows)]
    if reproduced:
        seeds = [v.measured.summary.n if v.measured else v.failed for v in reproduced.values()]
        parts.append(
            "A cell counts as reproduced with a switch if it is with any of those that were tried, each of "
            "which has its row below. Tables share runs and numbers: the "
            f"{cells} cells that are reproduced are {len(reproduced)} results, "
            f"{seeds.count(1)} of them of one seed, and of "
            f"{sum(v.also is not None for v in reproduced.values())} of them the baseline's runs would be "
            "as near.\n"
        )
    return "\n".join(parts)


def _glance(paper: Paper, table: Table, results: Results) -> str:
    """Method by column what is nearest to the published number, where several columns were played."""
    found = {
        (c.method, c.column): near
        for c in table.cells
        if (near := closest(paper, table, c, results)) is not None
    }
    columns = [c for c in table.columns if any(column == c for _, column in found)]
    if len(columns) < 2:
        return ""
    methods = [m for m in table.methods if any(method == m for method, _ in found)]
    switches = list(dict.fromkeys(variant.name for variant, _ in found.values() if variant))
    letters = {name: ascii_lowercase[place] for place, name in enumerate(switches)}

    def text(method: str, column: str) -> str:
        if (method, column) not in found:
            return ""
        variant, verdict = found[method, column]
        seeds = verdict.measured.summary.n if verdict.measured else verdict.failed
        said = verdict.text
        if verdict.word == NOT_REPRODUCED and verdict.difference is not None:
            digits = QUANTITIES[table.quantities[0]].digits
            said = f"off by {difference_text(verdict, table.quantities[0])}"
            said += "" if verdict.allowed is None else f" (allowed {verdict.allowed:.{digits}f})"
        return f"{said}, {seeds} seed{'s' * (seeds > 1)}" + (f", {letters[variant.name]}" if variant else "")

    lines = [
        f"{QUANTITIES[table.quantities[0]].label.capitalize()}, with the switch that reproduces it, else "
        "that of most seeds, else the nearest:\n",
        grid(["", *columns], [[m, *(text(m, c) for c in columns)] for m in methods]),
    ]
    if switches:
        lines.append("; ".join(f"{letters[name]}: `{name}`" for name in switches) + ".\n")
    return "\n".join(lines)


def _machines(results: Results) -> str:
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for r in results:
        versions = r.made.get("versions", {})
        key = " then ".join(r.machines), f"torch {versions.get('torch', '?')}", r.config.precision
        found.setdefault(key, []).append(r)
    if not found:
        return "Nothing has been run yet.\n"
    lines = []
    for (machine, torch, precision), runs in sorted(found.items()):
        dates = sorted(str(r.made.get("started", ""))[:10] for r in runs)
        revisions = sorted({_abridged(start.get("git") or UNKNOWN) for r in runs for start in r.starts})
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        rounds = sum(r.done for r in runs)
        lines.append(
            f"- {machine}, {torch}, {precision}: {count}, {rounds:,} rounds, {when}, {_counted(revisions)}"
        )
    changed = any(str(start.get("git")).endswith("+") for r in results for start in r.starts)
    head = "Measured on" + " (+: a revision with changes that were not committed)" * changed
    return f"{head}:\n\n" + "\n".join(lines) + "\n"


def _abridged(revision: str) -> str:
    return revision[:10] + "+" * revision.endswith("+")


def _counted(revisions: Sequence[str]) -> str:
    """A few by name; of many how many, and those that nobody can get back to."""
    if len(revisions) <= FEW:
        return f"revisions {', '.join(revisions)}"
    odd = [name for name in revisions if name.endswith("+") or name == UNKNOWN]
    among = f", among them {', '.join(odd)}" if odd else ""
    return f"{len(revisions)} revisions, which the results' files name{among}"


def _table(
    paper: Paper, table: Table, results: Results, why: Mapping[str, str], told: Mapping[str, str]
) -> str:
    parts = [f"### {_heading(table)}\n"]
    if table.figure is not None:
        parts.append(f"A figure: `fedrecall reproduce {table.figure}` runs what it needs and draws it.\n")
    if table.rows:
        width = max(map(len, table.rows.values()))
        rows = [[name, *map(str, values)] for name, values in table.rows.items()]
        parts.append("As published, class by class:\n")
        parts.append(grid(["", *map(str, range(width))], rows))
    prefix = f"{paper.name}/{table.name}"
    if prefix in why:
        parts.append(f"{_line(why[prefix])}\n")
    cells = [*table.cells, *guests(paper, table, results)]
    remarks = []
    for cell in table.cells:
        if cell.key in why:
            remarks.append(f"- {cell.column}, {cell.method}: {_line(why[cell.key])}")
    for column in table.columns:
        if f"{prefix} {column}" in why:
            remarks.append(f"- {column}: {_line(why[f'{prefix} {column}'])}")
    remarks += _elsewhere(paper, table, results, why, told)
    if glance := _glance(paper, table, results):
        parts.append(glance)
    parts.append(listed(MEASURED, (measured_rows(paper, table, c, results) for c in cells)))
    gains = [
        g for c in cells for v in (None, *tried(paper, c, results)) if (g := _gain(table, c, results, v))
    ]
    if gains:
        head = ["column", "method", f"published over {table.baseline}", "measured", "seeds", "at round"]
        parts.append("Gains in accuracy, paired:\n")
        parts.append(grid(head, gains))
    if remarks:
        parts.append("\n".join(remarks) + "\n")
    return "\n".join(parts)


def measured_rows(paper: Paper, table: Table, cell: Cell, results: Results) -> list[list[str]]:
    """What `MEASURED` names of a cell, as text: in the paper's setup, then with each switch tried.

    A setup that was run in several precisions has a row for each.
    """
    rows = []
    for variant in (None, *tried(paper, cell, results)):
        others = results.precisions(cell.config(variant=variant))[1:]
        of_each = (results, *(results.only(precision) for precision in others))
        rows += [_row(paper, table, cell, found, variant) for found in of_each]
    return rows


def listed(head: Sequence[str], cells: Iterable[Sequence[Sequence[str]]]) -> str:
    """What was run of these cells' rows, as it stands or with a switch; those not run, folded below."""
    done: list[Sequence[str]] = []
    rest: list[Sequence[str]] = []
    for rows in cells:
        run = [row for row in rows if row[-1] != NOT_RUN]
        (done if run else rest).extend(run or rows[:1])
    parts = [grid(head, done)] if done else []
    if rest:
        parts.append(folded(f"{len(rest)} cells not run yet", grid(head, rest)))
    return "\n".join(parts)


def _row(paper: Paper, table: Table, cell: Cell, results: Results, variant: Variant | None) -> list[str]:
    verdicts = {q: judge(paper, table, cell, q, results, variant) for q in table.quantities}
    first = verdicts[table.quantities[0]]
    seeds = rounds = ""
    if (begun := played(cell.config(variant=variant), results)) is not None:
        of, found = cell.settings["rounds"], first.measured
        seeds = f"{found.summary.n if found else len(begun.runs)}{_precision(cell, results, variant)}"
        rounds = f"{of}" if begun.complete else f"**{begun.rounds}** of {of}"
    return [
        cell.column,
        _method(cell, variant),
        _named({q: published_text(cell, q) for q in verdicts}) or "–",
        _named({q: measured_text(v, q) for q, v in verdicts.items()}),
        seeds,
        rounds,
        _level(table, cell, results, variant) if "accuracy" in table.quantities else "",
        _named({q: _difference(v, q) for q, v in verdicts.items()}),
        _words(verdicts, level_agrees(table, cell, results, variant)) + _failed(first),
    ]


def _words(verdicts: dict[str, Verdict], agrees: bool) -> str:
    """One word where all quantities agree, else each one's."""
    said = {q: v.text for q, v in verdicts.items() if v.word}
    if agrees and said.get("accuracy") == NOT_REPRODUCED:
        said["accuracy"] += ", but its level agrees"
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "measured")
    return "; ".join(f"{_short(q)}: {w}" if _short(q) else w for q, w in said.items())


def _failed(v: Verdict) -> str:
    runs = v.failed + (v.measured.summary.n if v.measured else 0)
    said = f" ({v.failed} of {runs} failed)" if v.failed else ""
    return said + (f" ({v.left_out:,} visits of clients left out because of NaN)" if v.left_out else "")


def _short(quantity: str) -> str:
    return {"accuracy": "", "forgetting": "F"}.get(quantity, QUANTITIES[quantity].label)


def _named(texts: Mapping[str, str]) -> str:
    """The quantities' texts side by side, each with its name."""
    named = (f"{_short(quantity)} {text}".lstrip() for quantity, text in texts.items() if text)
    return "; ".join(named)


def _difference(v: Verdict, quantity: str) -> str:
    return difference_text(v, quantity) + (" (within its spread)" if v.within else "")


def _method(cell: Cell, variant: Variant | None) -> str:
    return f"{cell.method}, `{variant.name}`" if variant else cell.method


def _precision(cell: Cell, results: Results, variant: Variant | None) -> str:
    used = {r.config.precision for r in results.of(cell.config(variant=variant)).values()}
    return f" ({', '.join(used)})" if used - {"float32"} else ""


def _level(table: Table, cell: Cell, results: Results, variant: Variant | None) -> str:
    found = level(table, cell, results, variant)
    return "" if found is None else found.text()


def _gain(table: Table, cell: Cell, results: Results, variant: Variant | None) -> list[str] | None:
    g = gain(table, cell, results, variant)
    if g is None:
        return None
    measured = g.measured
    spread = "" if measured.std is None else f" ± {measured.std:.2f}"
    of = cell.settings["rounds"]
    at = f"{of}" if g.rounds >= of else f"**{g.rounds}** of {of}"
    return [
        cell.column,
        _method(cell, variant),
        "–" if g.published is None else f"{g.published:+.2f}",
        f"{measured.mean:+.2f}{spread}",
        str(measured.n),
        at,
    ]


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines) + "\n"
    )


def folded(summary: str, text: str) -> str:
    """Text that a reader opens."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n</details>\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """Write the page; run from the repository."""
    files.write(PAGE, render().encode())


if __name__ == "__main__":
    main()
