"""What a program of one's own begins with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrecall import config as configs
from fedrecall import files
from fedrecall.data.augmentation import default_for
from fedrecall.data.datasets import Dataset
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment, Result, Sink
from fedrecall.records import RunFolder


def run(
    out: Path | str | None = None, *, resume: bool = False, progress: bool = True, **settings: Any
) -> Result:
    """Run one experiment: ``fedrecall.run(algorithm="fedntd", dataset="digits", rounds=10)``.

    Settings are those of the config, and of the local training (``local_epochs``, ``lr``); ``dataset`` may
    also be a `Dataset` object, ``sinks`` a list of `Sink` objects and of names as in the config. With
    ``resume`` the run in ``out`` goes on, as it was begun: settings are not needed, and those that are given
    must be all that it was begun with, but for how far and where (``rounds``, ``backend``, ...); so the same
    call begins a run and goes on with it. ``progress`` shows on the error stream how it goes.
    """
    given, root = settings.pop("dataset", None), settings.pop("data_root", None)
    dataset = given if isinstance(given, Dataset) else None
    if given is not None and dataset is None:
        settings["dataset"] = given
    sinks: list[Sink] = []
    if "sinks" in settings:
        settings["sinks"], sinks = _named_and_made(settings["sinks"])
    folder = RunFolder(files.expanded(out)) if out is not None else None
    if resume and settings.keys() <= {*configs.MAY_CHANGE}:
        if folder is None or not folder.started:
            where = f"{out} holds no run to go on with" if folder else "resume=True needs the run's folder"
            raise UserError(f"{where}. To begin one, say of what and where: algorithm=..., out=....")
        config = configs.begun({**folder.config(), **settings})
    else:
        if dataset is not None:  # whose recipe the config does not name
            settings.setdefault("augmentation", str(default_for(dataset.name)))
        config = configs.make(configs.nested(settings))
    if progress:
        sinks = [*_shown(), *sinks]
    return Experiment(config, out, resume=resume, dataset=dataset, data_root=root, sinks=sinks).run()


def _shown() -> list[Sink]:
    """Who shows how a run goes; nobody on a machine that has torch and little else."""
    try:
        from rich.console import Console

        from fedrecall.cli import progress
    except ModuleNotFoundError:
        return []
    return [progress.shown(progress.Display(Console(stderr=True)))]


def _named_and_made(sinks: Any) -> tuple[list[str], list[Any]]:
    """The names among sinks, and the rest, which ought to be objects."""
    several = isinstance(sinks, Iterable) and not isinstance(sinks, (str, Mapping))
    listed = [*sinks] if several else [sinks]
    return [s for s in listed if isinstance(s, str)], [s for s in listed if not isinstance(s, str)]
