"""Where else a run's numbers go while it runs: TensorBoard, MLflow, Weights & Biases, trackio.

Each is a dataclass of options behind one method, `open`, and imports its package only there. They see
what metrics.jsonl gets and nothing else: a run's result does not depend on who looks on. What fails in
such a service is said once, and the run goes on without it; its next start asks the service what it has,
and tells it the rest.
"""

import hashlib
import importlib.util
import io
import json
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from fedrecall import files, secrecy
from fedrecall.errors import UserError
from fedrecall.own_modules import named
from fedrecall.records import scalars
from fedrecall.specs import Registry

SINKS = Registry(
    "sink",
    {
        "tensorboard": "fedrecall.sinks:TensorBoard",
        "mlflow": "fedrecall.sinks:MLflow",
        "wandb": "fedrecall.sinks:WandB",
        "trackio": "fedrecall.sinks:Trackio",
    },
)


PLAYED, EVALUATED = "lr", "accuracy"
"""Numbers that every round has, and every one that was evaluated: by them it is known what a log lacks."""


def _nothing(name: str) -> Container[int]:
    return ()


class Log(NamedTuple):
    """An open log of one run."""

    write: Callable[[int, dict[str, float]], None]
    """A round's number, and its measured numbers by name."""
    close: Callable[[], None]
    held: Callable[[str], Container[int]] = _nothing
    """Of which rounds it already has the number of this name."""


@dataclass(frozen=True)
class Service(ABC):
    """Something that keeps numbers by round."""

    package: ClassVar[str]

    @abstractmethod
    def open(self, name: str, folder: Path | None, config: Mapping[str, Any]) -> Log:
        """A log for the run that is called ``name``; ``folder`` is its run folder, if it has one."""


@dataclass(frozen=True)
class TensorBoard(Service):
    """Event files for TensorBoard: ``tensorboard --logdir runs``."""

    folder: str | None = None
    """Where the event files go; by default ``tensorboard`` in the run folder."""
    package: ClassVar[str] = "tensorboard"

    def open(self, name: str, folder: Path | None, config: Mapping[str, Any]) -> Log:
        """Event files that replace those of an earlier start."""
        from torch.utils.tensorboard import SummaryWriter

        if self.folder is not None:
            where = files.expanded(self.folder) / _unlike_others(name, folder, config)
        elif folder is not None:
            where = folder / "tensorboard"
        else:
            raise UserError(
                "tensorboard has no place to write to: give the run an --out, or tensorboard:FOLDER."
            )
        writer: Any = SummaryWriter(str(where), purge_step=0)
        writer.add_text(
            "config", "\n".join("    " + line for line in json.dumps(config, indent=2).splitlines())
        )

        def write(step: int, numbers: dict[str, float]) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        return Log(write, writer.close)


@dataclass(frozen=True)
class MLflow(Service):
    """A run in MLflow; a resumed run goes on in the MLflow run that it had."""

    uri: str | None = None
    """Tracking store, such as sqlite:///mlflow.db or http://host:5000; by default MLflow's own default."""
    experiment: str = "fedrecall"
    """MLflow experiment."""
    package: ClassVar[str] = "mlflow"

    def __post_init__(self) -> None:
        """Refuse a password: this becomes part of the run's config, which the report shows."""
        if self.uri is not None and secrecy.in_text(self.uri) != self.uri:
            raise UserError(
                "mlflow's uri holds a password, which the run folder and its report would show: leave it out "
                "and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, or for a "
                "database the whole uri as MLFLOW_TRACKING_URI."
            )

    def open(self, name: str, folder: Path | None, config: Mapping[str, Any]) -> Log:
        """The MLflow run of this run folder, or a new one."""
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(self.experiment)
        place = known.experiment_id if known else client.create_experiment(self.experiment)
        tag = _identity(config, folder)
        found = client.search_runs([place], f"tags.fedrecall = '{tag}'", max_results=1) if folder else []
        if found:
            run = found[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            run = client.create_run(place, tags={"fedrecall": tag}, run_name=name).info.run_id
            parameters = [Param(_taken(key), str(value)[:500]) for key, value in _flat(config).items()]
            client.log_batch(run, params=parameters)

        def write(step: int, numbers: dict[str, float]) -> None:
            now = int(time.time() * 1000)
            metrics = [Metric(_taken(name), value, now, step) for name, value in numbers.items()]
            for begin in range(0, len(metrics), AT_ONCE):
                client.log_batch(run, metrics=metrics[begin : begin + AT_ONCE])

        def held(name: str) -> Container[int]:
            return {metric.step for metric in client.get_metric_history(run, name)}

        return Log(write, lambda: client.set_terminated(run), held if found else _nothing)


@dataclass(frozen=True)
class WandB(Service):
    """A run in Weights & Biases, offline unless told otherwise: ``wandb sync`` sends it later."""

    project: str = "fedrecall"
    """W&B project."""
    mode: Literal["offline", "online"] = "offline"
    """Whether anything is sent while the run goes on."""
    folder: str | None = None
    """Where W&B keeps its files; by default the run folder, or where the command runs."""
    package: ClassVar[str] = "wandb"

    def open(self, name: str, folder: Path | None, config: Mapping[str, Any]) -> Log:
        """A W&B run, the same one at every start of a run folder."""
        import wandb

        where = files.expanded(self.folder) if self.folder is not None else folder
        run = wandb.init(
            project=self.project,
            name=name,
            id=_identity(config, folder) if folder is not None else None,
            resume="allow" if folder is not None else None,
            dir=str(where) if where is not None else None,
            mode=self.mode,
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )

        def write(step: int, numbers: dict[str, float]) -> None:
            run.log(numbers, step=step)

        def held(name: str) -> Container[int]:
            return range(run.starting_step)  # it takes no number of a round before that

        return Log(write, run.finish, held if self.mode == "online" and run.resumed else _nothing)


@dataclass(frozen=True)
class Trackio(Service):
    """A run in trackio, kept on this machine: ``trackio show``."""

    project: str = "fedrecall"
    """trackio project."""
    package: ClassVar[str] = "trackio"

    def open(self, name: str, folder: Path | None, config: Mapping[str, Any]) -> Log:
        """The trackio run of this run folder, which a resumed run goes on with, or a new one."""
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        called = _unlike_others(name, folder, config)
        with redirect_stdout(io.StringIO()):  # it advertises its dashboard
            run = trackio.init(
                project=self.project,
                name=called,
                config=_flat(config),
                resume="never" if folder is None else "allow",
                embed=False,
            )
        elsewhere = any(os.environ.get(f"TRACKIO_{place}") for place in ("SPACE_ID", "SERVER_URL"))
        there = range(run._next_step if elsewhere else 0)  # all that it knows of a run that is kept elsewhere

        def write(step: int, numbers: dict[str, float]) -> None:
            run.log(numbers, step=step)

        def close() -> None:
            with redirect_stdout(io.StringIO()):
                run.finish()

        def held(name: str) -> Container[int]:
            here = SQLiteStorage.get_metric_values(self.project, called, name, run_id=run.id)
            return there or {row["step"] for row in here}

        return Log(write, close, held)


class Following:
    """A service as an experiment's sink."""

    def __init__(self, service: Service, folder: Path | None):
        if importlib.util.find_spec(service.package) is None:
            raise UserError(
                f"{service.package} is not installed: pip install 'fedrecall[sinks]', or go without it: name "
                "the sinks that are to stay, or --sink none, which a run that is resumed takes as well."
            )
        self._service, self._folder = service, folder
        self._log: Log | None = None
        self._held: dict[str, Container[int]] = {}

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Open the log and write what it lacks of the rounds before."""
        name = self._folder.resolve().name if self._folder is not None else _name(config)
        try:
            self._log = self._service.open(name, self._folder, config)
            self._held = {number: self._log.held(number) for number in (PLAYED, EVALUATED)}
            for record in history:
                self.record(record)
        except UserError:
            raise
        except Exception as error:
            self._give_up(error)
        except BaseException:  # of an interrupt: nobody ends what did not begin
            self.end()
            raise

    def record(self, record: Mapping[str, Any]) -> None:
        """Write a round, unless the log had it when it was opened: one may be played again after a kill."""
        if self._log is not None:
            try:
                step, numbers = int(record["round"]), _numbers(record)
                if step not in self._held[EVALUATED if EVALUATED in numbers else PLAYED]:
                    self._log.write(step, numbers)
            except Exception as error:
                self._give_up(error)

    def end(self) -> None:
        """Close the log."""
        if self._log is not None:
            log, self._log = self._log, None
            try:
                log.close()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._log = None
        reason = secrecy.in_text(f"{type(error).__name__}: {error}")
        warnings.warn(f"{self._service.package} gets no more of this run ({reason})", RuntimeWarning)


def following(specs: Sequence[str], folder: Path | None) -> list[Following]:
    """The sinks that a config names, for the run in this folder."""
    return [Following(SINKS.make(spec), folder) for spec in specs]


def _name(config: Mapping[str, Any]) -> str:
    """What a run without a folder is called, whatever the folders of its owner's code are."""
    names = (named(config[part]["name"]).replace(":", "-") for part in ("algorithm", "dataset"))
    return f"{'-'.join(names)}-seed{config['seed']}"


def _unlike_others(name: str, folder: Path | None, config: Mapping[str, Any]) -> str:
    """The run's name with what tells it from others that are called the same."""
    return f"{name}-{_identity(config, folder)[:6]}"


def _identity(config: Mapping[str, Any], folder: Path | None) -> str:
    """The same word for the same run, wherever its folder lies; another for a copy of another name.

    A run without a folder is known by its settings.
    """
    if folder is None:
        return _digest(json.dumps(config, sort_keys=True), 8)
    own = files.read_json(folder / "made.json")[0].get("run")
    return _digest(f"{own} {folder.resolve().name}" if own else str(folder.resolve()), 8)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """A round's numbers by name; last those by which it is known that a log has it, and so the others."""
    seconds, measures = record.get("seconds", {}), record.get("measures", {})
    short = _shortened(measures)
    found = scalars(
        {
            **record,
            "seconds": {**seconds, "measures": _renamed(seconds.get("measures", {}), short)},
            "measures": _renamed(measures, short),
        }
    )
    last = {name: found.pop(name) for name in (PLAYED, EVALUATED) if name in found}
    return found | last


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}


def _shortened(names: Iterable[str]) -> dict[str, str]:
    """Each name's short form, or itself where another one has that too."""
    short = {name: named(name) for name in names}
    taken = [*short.values()]
    return {name: own if taken.count(own) == 1 else name for name, own in short.items()}


AT_ONCE, LONGEST = 1000, 250
"""How many numbers MLflow takes in one request, and how many letters of a name."""


def _taken(name: str) -> str:
    """The name if MLflow takes it, else one that it does, with a digest to be unlike others."""
    plain = re.sub(r"[^A-Za-z0-9_.\-/ :]", "_", name)
    made = "/".join(filter(None, (part.lstrip(".") for part in plain.split("/"))))
    if made == name and 0 < len(name) <= LONGEST:
        return name
    return f"{made[: LONGEST - 7]}-{_digest(name, 3)}"


def _flat(config: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """``{"training": {"lr": 0.1}}`` as ``{"training.lr": 0.1}``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{head}{key}.")
        else:
            found[f"{head}{key}"] = value if isinstance(value, (str, int, float, bool)) else json.dumps(value)
    return found
