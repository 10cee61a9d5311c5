"""How a run shows itself: a bar on a terminal, plain lines elsewhere."""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedrecall.algorithms import ALGORITHMS
from fedrecall.experiment import Sink
from fedrecall.provenance import named
from fedrecall.specs import short_text

OF_WHAT_TRAVELS = "of what travels; of clients' own models: --measure personal"
"""What accuracy is of where clients have other models than what is evaluated."""
PLAIN_SECONDS = 2.0  # at most one plain line in this time, so that logs stay short


def line(record: Mapping[str, Any]) -> str:
    """A round in a few words."""
    parts = []
    if "accuracy" in record:
        parts += [f"accuracy {record['accuracy']:.2%}", f"forgetting {record['forgetting']:.3f}"]
    if "epsilon" in record:
        parts.append(f"epsilon {record['epsilon']:.2f}")
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


class Bar:
    """A progress bar; several runs can follow each other on one bar."""

    def __init__(self, console: Console, total_runs: int = 1, settings: Iterable[str] = ()):
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=sys.stdout.isatty(),  # what a program prints to a file stays in it
        )
        self._total_runs, self._runs, self._settings = total_runs, 0, iter(settings)
        self._task = TaskID(0)

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """A run starts."""
        self._runs += 1
        many = f" ({self._runs} of {self._total_runs})" if self._total_runs > 1 else ""
        self._progress.start()
        self._task = self._progress.add_task(
            f"{name(config, next(self._settings, ''))}{many}",
            total=config["rounds"],
            completed=len(history),
            state="starting",
        )

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played."""
        self._progress.update(self._task, completed=record["round"], state=line(record))

    def end(self) -> None:
        """The run is over."""
        self._progress.stop()


class Lines:
    """A line now and then, for logs and pipes."""

    def __init__(self, console: Console, settings: Iterable[str] = ()):
        self._console, self._last, self._rounds, self._settings = console, 0.0, 0, iter(settings)

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """A run starts."""
        self._rounds = config["rounds"]
        done = f" after round {len(history)}" if history else ""
        self._print(f"{name(config, next(self._settings, ''))}: {self._rounds} rounds{done}")

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played."""
        now = time.monotonic()
        if now - self._last >= PLAIN_SECONDS or record["round"] == self._rounds or record["failures"]:
            self._last = now
            self._print(f"round {record['round']}/{self._rounds}  {line(record)}")

    def end(self) -> None:
        """The run is over."""

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


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


def shown(console: Console, total_runs: int = 1, settings: Iterable[str] = ()) -> Sink:
    """The right way to show progress on this console, of runs that follow each other.

    ``settings`` tell them apart, in words, where their algorithms and seeds do not.
    """
    bar = console.is_terminal
    return Dispensable(console, Bar(console, total_runs, settings) if bar else Lines(console, settings))
