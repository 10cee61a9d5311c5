"""How a run shows itself: a bar on a terminal, plain lines elsewhere."""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedrecall.algorithms import ALGORITHMS
from fedrecall.contracts import promise
from fedrecall.experiment import Sink
from fedrecall.own_modules import named
from fedrecall.records import accuracy_word
from fedrecall.specs import short_text

A_DAY = 86_400.0
OF_WHAT_TRAVELS = "of what travels; of clients' own models: --measure fairness,personal"
"""What accuracy is of where clients have other models than what is evaluated."""
ROOM_FOR_A_BAR = 110  # columns; with fewer the words have its place
PLAIN_SECONDS = 2.0  # at most one plain line in this time, so that logs stay short


def line(record: Mapping[str, Any]) -> str:
    """A round in a few words."""
    parts = []
    if "accuracy" in record:
        parts.append(f"{accuracy_word(record)} {record['accuracy']:.2%}")
        parts.append(f"forgetting {record['forgetting']:.3f}")
    if (promised := promise(record)) is not None:
        parts.append(f"epsilon {promised[0]:.2f}")
    parts.append(f"{seconds(record):.2f} s/round")
    if record["failures"]:
        parts.append(f"{len(record['failures'])} clients left out: {record['failures'][0]}")
    return "  ".join(parts)


def seconds(record: Mapping[str, Any]) -> float:
    """What a round took here, all in all."""
    spent = record.get("seconds", {})
    measures = spent.get("measures", {})
    parts = [*spent.values(), *(measures.values() if isinstance(measures, dict) else ())]
    return float(sum(v for v in parts if isinstance(v, (int, float))))


def megabytes(count: float) -> str:
    """So many bytes in millions, with three digits that say something."""
    size = count / 1e6
    digits = 2 - math.floor(math.log10(size)) if size else 2
    return f"{size:.{max(digits, 0)}f}"


def name(config: Mapping[str, Any], setting: str = "") -> str:
    """The run's algorithm with its settings, which may be all that tells it from another, and its seed.

    ``setting`` is what else tells it from others, in words.
    """
    algorithm = dict(config["algorithm"])
    own = algorithm["name"]
    text = short_text(ALGORITHMS, algorithm)
    if own not in ALGORITHMS:
        text = text.replace(own, named(own), 1)
    return f"{text}{setting and f', {setting},'} seed {config['seed']}"


class Display:
    """A console on which runs show how they go, one after another or side by side."""

    def __init__(self, console: Console, runs: int = 1):
        self.console = console
        wrapped, whole = Column(), Column(no_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}", table_column=wrapped),
            *([BarColumn()] if console.width >= ROOM_FOR_A_BAR else []),
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[state]}", table_column=wrapped),
            TimeRemainingColumn(table_column=whole),
            console=console,
            speed_estimate_period=A_DAY,  # by rich's own a round of half a minute has no pace
            redirect_stdout=sys.stdout.isatty(),  # what a program prints to a file stays in it
        )
        self._runs, self._begun = runs, 0
        self._going: set[Sink] = set()
        self.beside = 0
        """How many have gone side by side since the last time that none did."""

    def begin(self, run: Sink) -> str:
        """A run starts; which one that is, if there are several."""
        self._begun += 1
        self._going.add(run)
        self.beside = max(self.beside, len(self._going))
        return f" ({self._begun} of {self._runs})" if self._runs > 1 else ""

    def end(self, run: Sink) -> bool:
        """A run is over; whether none goes any more."""
        self._going.discard(run)
        if not self._going:
            self.beside = 0
        return not self._going


class Bar:
    """A run's progress bar."""

    def __init__(self, display: Display, setting: str = ""):
        self._display, self._setting = display, setting
        self._task = TaskID(0)

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """The run starts."""
        which = self._display.begin(self)
        self._display.bars.start()
        self._task = self._display.bars.add_task(
            f"{name(config, self._setting)}{which}",
            total=config["rounds"],
            completed=len(history),
            state="starting",
        )

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played."""
        self._display.bars.update(self._task, completed=record["round"], state=line(record))

    def end(self) -> None:
        """The run is over."""
        if self._display.end(self):
            self._display.bars.stop()


class Lines:
    """A line of a run now and then, for logs and pipes."""

    def __init__(self, display: Display, setting: str = ""):
        self._display, self._setting = display, setting
        self._last, self._rounds, self._name = 0.0, 0, ""

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """The run starts."""
        self._display.begin(self)
        self._rounds, self._name = config["rounds"], name(config, self._setting)
        done = f" after round {len(history)}" if history else ""
        self._print(f"{self._name}: {self._rounds} rounds{done}")

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played; of runs side by side each says which it is, and has a line more rarely."""
        now, beside = time.monotonic(), self._display.beside
        pause = PLAIN_SECONDS * beside
        if now - self._last >= pause or record["round"] == self._rounds or record["failures"]:
            self._last = now
            whose = f"{self._name}: " if beside > 1 else ""
            self._print(f"{whose}round {record['round']}/{self._rounds}  {line(record)}")

    def end(self) -> None:
        """The run is over."""
        self._display.end(self)

    def _print(self, text: str) -> None:
        self._display.console.print(text, soft_wrap=True, markup=False, highlight=False)


class Dispensable:
    """Shows progress until that fails, as on a full disk or when nobody reads it; runs go on without."""

    def __init__(self, console: Console, inner: Sink):
        self._console, self._inner = console, inner

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """A run starts."""
        self._try(self._inner.begin, config, history)

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played."""
        self._try(self._inner.record, record)

    def end(self) -> None:
        """The run is over."""
        self._try(self._inner.end)

    def _try(self, show: Callable[..., None], *what: Any) -> None:
        try:
            show(*what)
            self._console.file.flush()
        except (OSError, ValueError, SystemExit) as error:  # a closed stream; rich's answer to a closed pipe
            self._console.quiet = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            with suppress(OSError, ValueError):  # a stream without a descriptor, or closed
                os.dup2(nowhere, self._console.file.fileno())  # what waits in its buffer is not missed
            os.close(nowhere)
            why = error.strerror if isinstance(error, OSError) else "nobody reads it"
            warnings.warn(f"progress cannot be shown any more ({why}); the work goes on.", RuntimeWarning)


def shown(display: Display, setting: str = "") -> Sink:
    """The right way to show on this display how a run goes.

    ``setting`` tells it from others, in words, where its algorithm and seed do not.
    """
    kind = Bar if display.console.is_terminal else Lines
    return Dispensable(display.console, kind(display, setting))
