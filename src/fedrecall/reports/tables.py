"""Results as a table for a paper, a text or a spreadsheet: LaTeX, Markdown or CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedrecall import files
from fedrecall.errors import UserError
from fedrecall.reports.statistics import Difference, summary

READING = (
    "Of the last round: mean ± standard deviation (n - 1) over seeds. Differences, of accuracy in percentage "
    "points: mean over pairs of one seed [95 % percentile bootstrap interval; of two pairs both values]."
)

TESTED = " p is that of accuracy, uncorrected for how many lines there are: {}."
"""What a table says besides where there are enough pairs for a test."""

UNFINISHED = (
    " Where rounds are 3/4, three of four are evaluated so far and numbers are of the third; a difference is "
    "after the round that stands before it, the last that all runs compared have, or after each run's last."
)
"""What a table says besides where runs are not finished."""


class Entry(NamedTuple):
    """An experiment: one line of the table."""

    setting: str
    """What else than the algorithm tells it from others; "" where nothing does."""
    algorithm: str
    rounds: int
    """After how many its numbers are."""
    accuracy: Sequence[float]
    """One a seed, of the runs that came to their end."""
    forgetting: Sequence[float]
    against: str = ""
    """What the difference is to."""
    difference: Difference | None = None
    """How much higher its accuracy is."""
    split: str = "test"
    """Which one it was evaluated on."""
    failed: int = 0
    """How many more seeds failed."""
    planned: int | None = None
    """How many rounds it is to have; None: as many as it has."""
    behind: int = 0
    """How many more seeds are too far behind the others to be among them."""
    after: int | None = None
    """The round after which the difference is; None: each run's last."""
    forgotten: Difference | None = None
    """How much more it forgets, over the same pairs after the same round."""
    clients: Sequence[float] = ()
    """The mean of all clients' own accuracies, one a seed, where that was measured."""
    worst_tenth: Sequence[float] = ()
    """The mean of the worst tenth of them."""
    fared: Difference | None = None
    """How much higher clients' mean accuracy is."""

    @property
    def unfinished(self) -> bool:
        """Whether rounds are to come."""
        return self.planned is not None and self.rounds < self.planned


def check(path: Path) -> None:
    """Raise UserError if no table can be written there, before the work that it is to hold."""
    if path.suffix not in _WRITTEN:
        raise UserError(f"--table {path}: name a file that ends in {', '.join(_WRITTEN)}.")
    files.check_writable(path)


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write the table as the file's name asks for."""
    with files.placing(path):
        files.write(path, _WRITTEN[path.suffix](entries).encode(errors="replace"))


def _latex(entries: Sequence[Entry]) -> str:
    head, rows = _cells(entries)
    words = sum(1 for name in head if name in _WORDS)
    lines = [f"% {_reading(entries)}", "% Needs the package booktabs."]
    lines += [f"\\begin{{tabular}}{{{'l' * words}{'r' * (len(head) - words)}}}", "\\toprule"]
    lines += [" & ".join(map(_escaped, head)) + r" \\", "\\midrule"]
    for row in rows:
        numbers = (f"${cell.replace('±', chr(92) + 'pm')}$" if cell else "" for cell in row[words:])
        lines.append(" & ".join([*map(_escaped, row[:words]), *numbers]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in text)


def markdown(entries: Sequence[Entry]) -> str:
    """The table as text that reads well as it is, too."""
    head, rows = _cells(entries)
    ruler = ["---" if name in _WORDS else "---:" for name in head]
    lines = [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (head, ruler, *rows)
    ]
    return "\n".join([*lines, "", _reading(entries), ""])


def _reading(entries: Sequence[Entry]) -> str:
    tests = dict.fromkeys(e.difference.test for e in entries if e.difference and e.difference.test)
    tested = TESTED.format(", ".join(map(str, tests))) if tests else ""
    return READING + tested + (UNFINISHED if any(e.unfinished for e in entries) else "")


_WORDS = ("setting", "algorithm", "against", "split")


def _cells(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Headings, and as many cells of each entry: those of words first."""
    bases = {e.against for e in entries} - {""}
    only = next(iter(bases)) if len(bases) == 1 else None
    columns: list[tuple[str, list[str]]] = [("algorithm", [e.algorithm for e in entries])]
    if any(e.setting for e in entries):
        columns.insert(0, ("setting", [e.setting for e in entries]))
    if len(bases) > 1:
        columns.append(("against", [e.against for e in entries]))
    splits = {e.split for e in entries}
    if len(splits) > 1:
        columns.append(("split", [e.split for e in entries]))
    of = "validation " if splits == {"validation"} else ""
    if len({e.rounds for e in entries}) > 1 or any(e.unfinished for e in entries):
        played = [f"{e.rounds}/{e.planned}" if e.unfinished else str(e.rounds) for e in entries]
        columns.append(("rounds", played))
    columns.append(("seeds", [str(len(e.accuracy)) for e in entries]))
    for name, counts in (
        ("failed", [e.failed for e in entries]),
        ("too far behind", [e.behind for e in entries]),
    ):
        if any(counts):
            columns.append((name, list(map(str, counts))))
    columns += [
        (f"{of}accuracy (%)", [summary(e.accuracy).text(100) if e.accuracy else "" for e in entries]),
        ("forgetting", [summary(e.forgetting).text(digits=3) if e.forgetting else "" for e in entries]),
    ]
    if bases:
        heading = "difference" if only is None else f"accuracy - {only}"
        if any(e.after for e in entries):
            columns.append(("after round", [str(e.after or "") for e in entries]))
        columns.append((heading, [_ends(e.difference, 100) for e in entries]))
        if any(e.difference and e.difference.p is not None for e in entries):
            columns.append(("p", [_p(e.difference) for e in entries]))
        if any(e.forgotten for e in entries):
            heading = "difference of forgetting" if only is None else f"forgetting - {only}"
            columns.append((heading, [_ends(e.forgotten, 1, 3) for e in entries]))
    if any(e.clients for e in entries):
        columns += [
            (f"{of}clients (%)", [_mean(e.clients, e) for e in entries]),
            (f"{of}worst tenth of clients (%)", [_mean(e.worst_tenth, e) for e in entries]),
        ]
        if any(e.fared for e in entries):
            heading = "difference of clients" if only is None else f"clients - {only}"
            columns.append((heading, [_ends(e.fared, 100) for e in entries]))
    return [name for name, _ in columns], [list(row) for row in zip(*(c for _, c in columns), strict=True)]


def _mean(values: Sequence[float], e: Entry) -> str:
    """In percent, and over how many where not all of its runs have one."""
    fewer = f" ({len(values)})" if len(values) < len(e.accuracy) else ""
    return f"{summary(values).text(100)}{fewer}" if values else ""


def _ends(d: Difference | None, scale: float, digits: int = 2) -> str:
    if d is None:
        return ""
    low, mean, high = ("" if v is None else f"{scale * v:+.{digits}f}" for v in (d.low, d.mean, d.high))
    return f"{mean} [{low}, {high}]" if low and high else mean


def _p(d: Difference | None) -> str:
    return "" if d is None or d.p is None else f"{d.p:.3f}" if d.p >= 0.001 else "<0.001"


def _csv(entries: Sequence[Entry]) -> str:
    """All digits, accuracies as shares of one."""
    rows = []
    for e in entries:
        row: dict[str, Any] = {"setting": e.setting, "algorithm": e.algorithm, "split": e.split}
        row |= {"rounds": e.rounds, "planned": e.rounds if e.planned is None else e.planned}
        row |= {"seeds": len(e.accuracy), "failed": e.failed, "behind": e.behind}
        for name, values in (("accuracy", e.accuracy), ("forgetting", e.forgetting)):
            mean, std = summary(values)[:2] if values else (None, None)
            row |= {name: mean, f"{name}_std": std}
        d = e.difference._asdict() if e.difference else {}
        row |= {"against": e.against, "after_round": e.after, "difference": d.get("mean")}
        row["pairs"] = d.get("n")
        row |= {name: d.get(name) for name in ("low", "high", "p", "test")}
        d = e.forgotten._asdict() if e.forgotten else {}
        row["forgetting_difference"] = d.get("mean")
        row |= {f"forgetting_{name}": d.get(name) for name in ("low", "high", "p")}
        for name, values in (("clients", e.clients), ("worst_tenth", e.worst_tenth)):
            mean, std = summary(values)[:2] if values else (None, None)
            row |= {name: mean, f"{name}_std": std}
        d = e.fared._asdict() if e.fared else {}
        row["clients_difference"] = d.get("mean")
        rows.append(row | {f"clients_{name}": d.get(name) for name in ("low", "high", "p")})
    text = io.StringIO()
    made = csv.DictWriter(text, rows[0], lineterminator="\n")
    made.writeheader()
    made.writerows(rows)
    return text.getvalue()


_WRITTEN: dict[str, Callable[[Sequence[Entry]], str]] = {".tex": _latex, ".csv": _csv, ".md": markdown}
