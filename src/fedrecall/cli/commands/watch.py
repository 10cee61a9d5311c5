"""`fedrecall watch`: a running or finished run in the terminal, from its folder alone."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedrecall import files
from fedrecall.cli.app import app, out
from fedrecall.cli.options import Runs
from fedrecall.cli.progress import line, megabytes, seconds
from fedrecall.errors import Gone, UserError, printable
from fedrecall.records import Fault, accuracy_word, read_metrics, sites, whole, worst
from fedrecall.reports.runs import Run, any_in, duration, failure, naturally, open_runs, through

TICKS = "▁▂▃▄▅▆▇█"
DAY = 86_400
RECENT = 10
"""Rounds that the time left is guessed from."""
WIDEST = 120
"""Letters of a line, however wide the terminal is."""
LOWEST = 4
"""Lines of a run's panel at least."""
REST = 54
"""Letters beside a run's name in a line of its own."""
SHORTEST = 12
"""Letters of its name in any case."""


class Follower:
    """A run folder that may be growing; reads it again only when it has changed."""

    def __init__(self, run: Run):
        self.path = run.path
        self.name = printable(run.name)
        self.data = run.data_name
        self.divided = f"{run.partition_name}, " if run.agreed is None else ""  # nodes hold what they hold
        self.config = run.config
        self.records: list[dict[str, Any]] = []
        self.fault: Fault | None = None
        """The error that ended the run, if one did."""
        self.worst: list[tuple[str, float]] = []
        """The site of least accuracy and that, in every round that says it."""
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> bool:
        """Read what is new; whether there was any round."""
        path = self.path / "metrics.jsonl"
        try:
            run = Run(self.path)
            self.fault = run.fault
            found = path.stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._seen:
                return False
            self._seen, self.config = seen, run.config
        except FileNotFoundError:
            return False
        except Gone:  # one that recorded nothing is begun anew, and has no config until it has begun
            if not files.found(self.path):
                raise
            self.fault = None
            return False
        self.records = list(whole(list(read_metrics(path)), path))
        evaluated = (r for r in self.records if "accuracy" in r)
        self.worst = [worst(of) for r in evaluated if (of := sites(r)) is not None]
        return True

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return through(self.records, self.fault, self.config)

    @property
    def over(self) -> bool:
        """Whether no round will follow, unless the run is gone on with."""
        return self.finished or self.fault is not None

    @property
    def state(self) -> str:
        """Finished, failed, or when the last round ended: no folder says whether anybody works on it."""
        if self.finished:
            return "finished"
        if self.fault is not None:
            return printable(failure(self.fault, self.config))
        if self._seen is None or not self.records:
            return "no round finished yet"
        return f"last round {duration(max(0.0, time.time() - self._seen[2] / 1e9))} ago"

    @property
    def left(self) -> float | None:
        """Seconds to the end at the pace of the last rounds."""
        if self.over or not self.records:
            return None
        recent = [seconds(r) for r in self.records[-RECENT:]]
        missing = int(self.config["rounds"]) - int(self.records[-1]["round"])
        return sum(recent) / len(recent) * missing


def sparkline(values: Sequence[float], width: int, low: float = 0.0, high: float = 1.0) -> str:
    """The values as a row of blocks, at most ``width`` of them, each the mean of what it stands for."""
    count = min(width, len(values))
    found = []
    for i in range(count):
        part = values[i * len(values) // count : (i + 1) * len(values) // count]
        share = (sum(part) / len(part) - low) / ((high - low) or 1)
        found.append(TICKS[round(min(max(share, 0.0), 1.0) * (len(TICKS) - 1))] if share == share else " ")
    return "".join(found)


def view(run: Follower, width: int) -> Panel:
    """Everything about one run that fits a terminal."""
    config, records = run.config, run.records
    done = records[-1]["round"] if records else 0
    algorithm = config["algorithm"]
    options = ", ".join(f"{k} {v}" for k, v in algorithm.items() if k != "name")
    setup = f"{run.data}, {run.divided}{config['clients']} clients, seed {config['seed']}"
    left, going = run.left, "failed" if run.fault is not None else run.state
    parts: list[RenderableType] = [
        Text(printable(f"{algorithm['name']}{f' ({options})' if options else ''} on {setup}"), "bold"),
        _columns(
            Bar(
                config["rounds"],
                0,
                done,
                width=max(10, width // 3),
                color="green" if run.finished else "blue",
            ),
            Text(f"round {done} of {config['rounds']}"),
            Text(going + ("" if left is None else f", about {duration(left)} left"), "dim"),
        ),
    ]
    evaluated = [r for r in records if "accuracy" in r]
    if evaluated:
        last, wide = evaluated[-1], max(10, width - 50)
        best = max(evaluated, key=lambda r: r["accuracy"])
        shown = Table(box=None, pad_edge=False, show_header=False)
        for key, value, note in (
            ("accuracy", f"{last['accuracy']:.2%}", f"best {best['accuracy']:.2%}, round {best['round']}"),
            ("forgetting", f"{last['forgetting']:.3f}", ""),
            ("consistency", "" if last["consistency"] is None else f"{last['consistency']:.3f}", ""),
        ):
            values = [r[key] for r in evaluated if r[key] is not None]
            called = accuracy_word(last) if key == "accuracy" else key
            shown.add_row(
                called, Text(value, "bold"), Text(sparkline(values, wide), "cyan"), Text(note, "dim")
            )
        losses = [r["loss"] for r in evaluated]
        shown.add_row(
            "loss", f"{last['loss']:.3f}", Text(sparkline(losses, wide, 0, max(losses)), "cyan"), ""
        )
        if run.worst:
            least, where = [accuracy for _, accuracy in run.worst], printable(run.worst[-1][0])
            named = Text(where, "dim", no_wrap=True, overflow="ellipsis")
            shown.add_row(
                "worst site", Text(f"{least[-1]:.2%}", "bold"), Text(sparkline(least, wide), "cyan"), named
            )
        parts.append(shown)
        parts.append(_classes(last["class_accuracy"], width))
    if records:
        r = records[-1]
        per_round = [seconds(x) for x in records[-RECENT:]]
        down, up = (megabytes(r[way]) for way in ("bytes_down", "bytes_up"))
        sent = f"{down} MB down, {up} MB up"
        parts.append(Text(f"{sum(per_round) / len(per_round):.2f} s a round; {sent} a round", "dim"))
        failed = [(x["round"], f) for x in records for f in x["failures"]]
        if failed:
            number, failure = failed[-1]
            many = f"{len(failed)} visits left out, last in round {number}: {failure}"
            parts.append(Text(printable(many), "yellow"))
        if missing := [(x["round"], x["untested"]) for x in records if x.get("untested")]:
            number, why = missing[-1]
            many = f"{len(missing)} rounds without all test examples, last round {number}: {why[0]}"
            parts.append(Text(printable(many), "yellow"))
    if run.fault is not None:
        parts.append(Text(run.state, "red"))
    return Panel(Group(*parts), title=Text(run.name), title_align="left", width=width)


def _classes(shares: Sequence[float], width: int) -> RenderableType:
    """A block for each class, labelled where there is room."""
    if len(shares) * 4 > width - 20:
        return Text.assemble("classes  ", (sparkline(shares, width - 20), "cyan"))
    shown = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    shown.add_row("class", *(str(c) for c in range(len(shares))))
    shown.add_row("accuracy", *(Text(TICKS[round(s * (len(TICKS) - 1))] * 2, "cyan") for s in shares))
    shown.add_row("%", *(f"{100 * s:.0f}" for s in shares))
    return shown


@app.command("watch")
def watch_command(
    runs: Runs,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show how it stands and end.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds from one look to the next.")] = 1.0,
) -> None:
    """Show a running or finished run in the terminal; it reads the run folder and disturbs nobody.

    Of more runs than there is room for each is a line. In a folder of runs it waits for further ones, until
    Ctrl-C.

    Example: fedrecall watch runs/fedntd-digits-shards-seed0
    """
    if not every <= DAY:  # what is no number is not, either
        raise UserError(f"watch: --every = {every} is not a number of seconds up to {DAY:,}, a day.")
    looks = _looks(runs, once, every)
    if not out.is_terminal:
        _tell(looks)
    elif once:
        out.print(page(next(looks), out))
    else:
        with Live(console=out, auto_refresh=False) as live:
            for followed in looks:
                live.update(page(followed, out, whole=False), refresh=True)


def _looks(named: Sequence[Path], once: bool, every: float) -> Iterator[list[Follower]]:
    """The runs as they stand, those that go on first, again and again until all are over.

    A folder of runs may get others, so that this never ends.
    """
    grows = any(not files.found(path / "config.json") for path in named)
    known = _followers(open_runs(named), {})
    while True:
        for follower in known.values():
            follower.look()
        yield sorted(known.values(), key=lambda run: (run.over, run.finished, naturally(run.name)))
        if once or (not grows and all(run.over for run in known.values())):
            return
        time.sleep(every)
        if grows:
            with suppress(Gone):  # a run that is begun anew is none for a while
                there = [path for path in named if any_in(path)]
                known = _followers(open_runs(there) if there else [], known)


def _followers(runs: Sequence[Run], known: Mapping[Path, Follower]) -> dict[Path, Follower]:
    """Who follows each of these runs, by its folder."""
    found = {run.path: known.get(run.path) or Follower(run) for run in runs}
    for run in runs:  # others of the same name may have come
        found[run.path].name = printable(run.name)
    return found


def page(followed: Sequence[Follower], console: Console, whole: bool = True) -> RenderableType:
    """A panel for each run, or a line where the terminal has no room for panels.

    ``whole``: with a line for each though there is no room for these, either.
    """
    width, room = min(console.width, WIDEST), console.height
    options = console.options.update(width=width)
    panels = [view(run, width) for run in followed] if len(followed) * LOWEST <= room else []
    if len(followed) > 1 and (
        not panels or sum(len(console.render_lines(panel, options)) for panel in panels) > room
    ):
        return _listed(followed, width, len(followed) if whole else max(1, room - 3))
    return Group(*(panels or [view(run, width) for run in followed]))


def _listed(followed: Sequence[Follower], width: int, most: int) -> RenderableType:
    """A line for each run, at most so many of them."""
    shown = Table(box=None, pad_edge=False, width=width)
    shown.add_column("run", no_wrap=True)
    for heading in ("round", "accuracy", "left"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for run in followed[:most]:
        last = next((r for r in reversed(run.records) if "accuracy" in r), None)
        style = "dim" if run.finished else "red" if run.fault is not None else ""
        shown.add_row(
            Text(_cut(run.name, max(SHORTEST, width - REST))),
            f"{run.records[-1]['round'] if run.records else 0} of {run.config['rounds']}",
            "" if last is None else f"{accuracy_word(last).removesuffix('accuracy')}{last['accuracy']:.2%}",
            "" if run.left is None else duration(run.left),
            Text(run.state),
            style=style,
        )
    rest = len(followed) - most
    return Group(shown, Text(f"and {rest} more", "dim")) if rest > 0 else shown


def _cut(name: str, most: int) -> str:
    """A name without its middle: runs differ in algorithm and seed, at its ends."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"


def _columns(*cells: RenderableType) -> Table:
    shown = Table.grid(padding=(0, 2))
    shown.add_row(*cells)
    return shown


def _tell(looks: Iterable[Sequence[Follower]]) -> None:
    """Plain lines: how each run stands, then every further round, and the error that ends it."""
    told: dict[Path, int] = {}
    faults: dict[Path, Fault | None] = {}
    for followed in looks:
        come_later = bool(told)
        for run in sorted(followed, key=lambda run: run.path not in told):
            if run.path not in told:
                _say(f"{run.name}: round {len(run.records)} of {run.config['rounds']}, {run.state}")
                told[run.path] = 0 if come_later else max(len(run.records) - 1, 0)
                faults[run.path] = run.fault
            for record in run.records[told[run.path] :]:
                _say(f"{run.name}: round {record['round']}/{run.config['rounds']}  {line(record)}")
            told[run.path] = len(run.records)
            if run.fault not in (None, faults[run.path]):
                _say(f"{run.name}: {run.state}")
            faults[run.path] = run.fault


def _say(text: str) -> None:
    out.print(printable(text), soft_wrap=True, markup=False, highlight=False)
