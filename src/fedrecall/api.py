"""What a program of one's own begins with."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from fedrecall import config as configs
from fedrecall import files
from fedrecall.algorithms import ALGORITHMS
from fedrecall.comparison import Comparison, combinations
from fedrecall.data.augmentation import default_for
from fedrecall.data.datasets import Dataset
from fedrecall.errors import UserError, shown
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
    ``fedrecall run --help`` lists all settings, with - for _.
    """
    if not (out is None or isinstance(out, (str, PathLike))):
        raise UserError(
            f"the run's folder comes first, not {shown(out)}: give an algorithm as algorithm=...."
        )
    folder = RunFolder(files.expanded(out)) if out is not None else None
    named = None if "algorithm" in settings or (resume and folder and folder.started) else _algorithm(out)
    if named is not None:
        raise UserError(
            f"the run's folder comes first, and {out!r} is an algorithm: give algorithm={named!r}."
        )
    if several := next((key for key in ("over", "seeds") if key in settings), None):
        raise UserError(f"run plays one run; {several} is for fedrecall.compare, which plays several.")
    dataset, root = _data(settings)
    sinks: list[Sink] = []
    if "sinks" in settings:
        settings["sinks"], sinks = _named_and_made(settings["sinks"])
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
        sinks = [*_shown()(""), *sinks]
    return Experiment(config, out, resume=resume, dataset=dataset, data_root=root, sinks=sinks).run()


def compare(
    *algorithms: Any,
    out: Path | str | None = None,
    seeds: int = 1,
    over: Mapping[str, Sequence[Any]] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Train several algorithms over the same federation: ``fedrecall.compare("fedavg", "fedntd", seeds=3)``.

    Each has a run for each of ``seeds`` seeds; ``over`` compares them with each of these values of a setting,
    of several settings with every combination: ``over={"lr": [0.01, 0.1]}``. With ``out`` the runs are kept
    in that folder, and those that were begun there are gone on with. A run that diverges, or
    that an error in its algorithm's code ends, has failed, and the others go on; what stops the comparison
    otherwise leaves only what is in ``out``. Other settings are those of `run`.
    """
    if isinstance(seeds, bool) or not hasattr(seeds, "__index__") or operator.index(seeds) < 1:
        raise UserError(f"compare: seeds = {shown(seeds)} is to be how many runs each has, 1 or more.")
    if "resume" in settings:
        raise UserError("compare goes on with what is in out, and begins what is not: leave resume out.")
    if over is not None and not isinstance(over, Mapping):
        raise UserError("compare: over is a mapping of settings to values, as in over={'lr': [0.01, 0.1]}.")
    dataset, root = _data(settings)
    axes = [(key, _values(values), f"compare: over {key!r}") for key, values in (over or {}).items()]
    for key, values, said in axes:
        if not values:
            raise UserError(f"{said}: give its values, as in over={{'lr': [0.01, 0.1]}}.")
        if any(isinstance(value, Dataset) for value in values):
            raise UserError(
                f"{said}: name data sets; one that is made is given as dataset=..., for all runs."
            )
        if dataset is not None and key.partition(".")[0] == "dataset":
            raise UserError(f"{said}: the data are given already: name them in over alone, or leave it out.")
    if dataset is not None:
        settings.setdefault("augmentation", str(default_for(dataset.name)))
    if "sinks" in settings:
        settings["sinks"], objects = _named_and_made(settings["sinks"])
        if objects:
            raise UserError("compare: an object among sinks would be told of all runs at once: name sinks.")
    made = Comparison(
        algorithms,
        configs.nested(settings),
        operator.index(seeds),
        combinations(axes),
        files.expanded(out) if out is not None else None,
        data_root=root,
        dataset=dataset,
    )
    told = _shown(len(made.plans)) if progress else lambda _setting: []
    made.play(lambda planned: told(planned.setting))
    for folder in made.elsewhere:
        said = "is being played by another process; the same call, made again, has its numbers."
        warnings.warn(f"{folder} {said}", RuntimeWarning, stacklevel=2)
    for name, traceback in made.errors.items():
        warnings.warn(f"{name} failed:\n{traceback}", RuntimeWarning, stacklevel=2)
    return made


def _data(settings: dict[str, Any]) -> tuple[Dataset | None, Path | None]:
    """Data that are given as such, and where others are; only a name of them is left among settings."""
    dataset, root = settings.get("dataset"), settings.pop("data_root", None)
    root = files.expanded(root) if root is not None else None
    if dataset is None or isinstance(dataset, Dataset):
        settings.pop("dataset", None)
        return dataset, root
    return None, root


def _algorithm(out: Path | str | None) -> str | None:
    """The algorithm that is named in a folder's place, be it a class in a file; None if none is."""
    said = out if isinstance(out, str) else ""
    name, colon, settings = said.partition(":")
    if name.lower() in ALGORITHMS:
        return f"{name.lower()}{colon}{settings}"
    return said if name.endswith(".py") and colon else None


def _values(given: Any) -> list[Any]:
    """One or several, with Python's own numbers in the place of another library's."""
    one = isinstance(given, (str, Mapping)) or not isinstance(given, Iterable)
    one = one or getattr(given, "ndim", 1) == 0  # of numpy and torch, one number
    return [value.item() if hasattr(value, "item") else value for value in ([given] if one else given)]


def _shown(runs: int = 1) -> Callable[[str], list[Sink]]:
    """Who shows how a run goes, by what tells it from others; nobody where torch is and little else."""
    try:
        from rich.console import Console

        from fedrecall.cli import progress
    except ModuleNotFoundError:
        return lambda _setting: []
    display = progress.Display(Console(stderr=True), runs)
    return lambda setting: [progress.shown(display, setting)]


def _named_and_made(sinks: Any) -> tuple[list[str], list[Any]]:
    """The names among sinks, and the rest, which ought to be objects."""
    if sinks is None:
        return [], []
    several = isinstance(sinks, Iterable) and not isinstance(sinks, (str, Mapping))
    listed = [*sinks] if several else [sinks]
    return [s for s in listed if isinstance(s, str)], [s for s in listed if not isinstance(s, str)]
