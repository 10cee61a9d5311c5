"""Where else a run's numbers go while it runs: TensorBoard, MLflow, Weights & Biases, trackio.

Each is a dataclass of options behind one method, `open`, and imports its package only there. They see
what metrics.jsonl gets and nothing else: a run's result does not depend on who looks on. What fails in
such a service is said once, and the run goes on without it.
"""

import hashlib
import importlib.util
import io
import json
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from fedrecall import files, secrecy
from fedrecall.errors import UserError
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


class Log(NamedTuple):
    """An open log of one run."""

    write: Callable[[int, dict[str, float]], None]
    """A round's number, and its measured numbers by name."""
    close: Callable[[], None]
    complete: bool
    """Whether it already holds the rounds that were played before."""


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
            where = files.expanded(self.folder) / name
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

        return Log(write, writer.close, complete=False)


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
        tag = _identity(name, folder)
        found = client.search_runs([place], f"tags.fedrecall = '{tag}'", max_results=1) if folder else []
        if found:
            run = found[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            run = client.create_run(place, tags={"fedrecall": tag}, run_name=name).info.run_id
            parameters = [Param(key, str(value)[:500]) for key, value in _flat(config).items()]
            client.log_batch(run, params=parameters)

        def write(step: int, numbers: dict[str, float]) -> None:
            now = int(time.time() * 1000)
            client.log_batch(run, metrics=[Metric(k, v, now, step) for k, v in numbers.items()])

        return Log(write, lambda: client.set_terminated(run), complete=bool(found))


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
            id=_identity(name, folder) if folder is not None else None,
            resume="allow" if folder is not None else None,
            dir=str(where) if where is not None else None,
            mode=self.mode,
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )

        def write(step: int, numbers: dict[str, float]) -> None:
            run.log(numbers, step=step)

        return Log(write, run.finish, complete=self.mode == "online" and bool(run.resumed))


@dataclass(frozen=True)
class Trackio(Service):
    """A run in trackio, kept on this machine: ``trackio show``."""

    project: str = "fedrecall"
    """trackio project."""
    package: ClassVar[str] = "trackio"

    def open(self, name: str, folder: Path | None, config: Mapping[str, Any]) -> Log:
        """The trackio run of this name, which a resumed run goes on with."""
        import trackio

        called = name if folder is None else f"{name}-{_identity(name, folder)[:6]}"
        with redirect_stdout(io.StringIO()):  # it advertises its dashboard
            run = trackio.init(
                project=self.project, name=called, config=_flat(config), resume="allow", embed=False
            )
        known = folder / ".trackio" if folder is not None else None
        complete = known is not None and known.exists() and known.read_text() == called
        if known is not None:
            files.write(known, called.encode())

        def write(step: int, numbers: dict[str, float]) -> None:
            run.log(numbers, step=step)

        def close() -> None:
            with redirect_stdout(io.StringIO()):
                run.finish()

        return Log(write, close, complete=complete)


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

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Open the log and write what it lacks of the rounds before.

        Of those that it holds the last one again: a stop may have come between saving it and telling of
        it, and one that was not evaluated then may have been since.
        """
        name = self._folder.resolve().name if self._folder is not None else _name(config)
        try:
            self._log = self._service.open(name, self._folder, config)
        except UserError:
            raise
        except Exception as error:
            self._give_up(error)
            return
        if self._log.complete:
            history = [history[-1]] if history else []
        for record in history:
            self.record(record)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write a round."""
        if self._log is not None:
            try:
                self._log.write(int(record["round"]), scalars(record))
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
    return f"{config['algorithm']['name']}-{config['dataset']['name']}-seed{config['seed']}"


def _identity(name: str, folder: Path | None) -> str:
    """The same word for the same run, wherever its folder lies; another for a copy of another name."""
    said = name
    if folder is not None:
        own = files.read_json(folder / "made.json")[0].get("run")
        said = f"{own} {folder.resolve().name}" if own else str(folder.resolve())
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


def _flat(config: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """``{"training": {"lr": 0.1}}`` as ``{"training.lr": 0.1}``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{head}{key}.")
        else:
            found[f"{head}{key}"] = value if isinstance(value, (str, int, float, bool)) else json.dumps(value)
    return found
