"""What a run is made of: its divided data, its network, its measures and where it computes, by its config.

Nothing is played here: reports and nodes of a federation make these without the loop over rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from fedrecall import own_modules, provenance, streams
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.config import Config
from fedrecall.data import partitions
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.datasets import Dataset
from fedrecall.data.federation import Federation, set_apart, sound
from fedrecall.data.partitions import PARTITIONS
from fedrecall.data.rows import some_of_each
from fedrecall.errors import UserError, shown
from fedrecall.measures import MEASURES
from fedrecall.measures.moment import Measure
from fedrecall.models.model import Model
from fedrecall.models.networks import build, real
from fedrecall.records import RunFolder

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}


def auxiliary_per_class(config: Config, algorithm: FedAvg) -> int:
    """Examples of each class that the server holds: as many as the config says, or the algorithm needs."""
    said, needed = config.auxiliary_per_class, algorithm.auxiliary_per_class
    if said is None:
        return needed
    if said < needed:
        raise UserError(f"{config.algorithm['name']} needs auxiliary_per_class >= {needed}, not {said}.")
    return said


def federate(
    config: Config, dataset: Dataset, algorithm: FedAvg, folder: RunFolder | None = None
) -> Federation:
    """Divide the data set as the config says, or as the run folder has it, on the config's device."""
    dataset = sound(dataset)
    labels = dataset.train.y.cpu().numpy()
    partition, begun = PARTITIONS.make(config.partition), _begun(config, len(labels), folder)
    if begun is None:
        _check_undivided(config, dataset)
    per_class, held = auxiliary_per_class(config, algorithm), held_out(config, dataset)
    rest, auxiliary = np.setdiff1d(np.arange(len(labels), dtype=np.int64), held), None
    if isinstance(partition, partitions.File):
        parts = _dealt(partition, config, dataset, held) if begun is None else begun
        auxiliary = _of_nobody(labels, dataset.classes, [*parts, held], per_class, config.dealing_seed)
    else:
        if per_class:
            left, chosen = set_apart(labels[rest], dataset.classes, per_class, config.dealing_seed)
            rest, auxiliary = rest[left], rest[chosen]
        parts = _shared_out(partition, config, dataset, rest) if begun is None else begun
    if len(held):
        dataset = replace(dataset, test=dataset.train.part(torch.from_numpy(held)))
    if config.normalisation != "data" and dataset.standardised:
        raise UserError(
            f"the columns of {dataset.name} are standardised by all clients' data, which normalisation = "
            f"{config.normalisation!r} is to avoid: read its files with standardise=false."
        )
    return federation_of(config, normalised(config, dataset), parts, auxiliary)


def federation_of(
    config: Config, dataset: Dataset, parts: Sequence[np.ndarray], auxiliary: np.ndarray | None = None
) -> Federation:
    """The data set with these parts of it at clients and at the server, on the config's device."""
    augmentation = Augmentation.parse(config.augmentation or "none")
    tested = Augmentation.parse(config.test_augmentation)
    dtype = DTYPES[config.precision]
    return Federation(dataset.to(device_of(config)), parts, augmentation, dtype, auxiliary, tested)


def _check_undivided(config: Config, dataset: Dataset) -> None:
    """Raise UserError if examples to validate on would be of units, such as patients, that are trained on.

    A data set that an earlier version cached does not say that it has units; its recipe does.
    """
    if config.validation and (dataset.undivided or config.dataset.get("undivided")):
        raise UserError(
            f"validation = {config.validation:g} would divide what undivided keeps together: give examples "
            "of other units in place of those to test on (of a folder files named validation, and none test)."
        )


def held_out(config: Config, dataset: Dataset) -> np.ndarray:
    """Places in the training split of what is evaluated on in place of the test split; nobody has those."""
    if not config.validation:
        return np.empty(0, np.int64)
    split, stream = dataset.train, streams.numpy_stream(config.dealing_seed, "validation")
    origins = () if split.origin is None else split.origin.tolist()
    chosen = some_of_each(split.y.tolist(), origins, config.validation, stream)
    if not chosen:
        raise UserError(
            f"validation = {config.validation:g} holds nothing out: every class has one training example."
        )
    return np.array(sorted(chosen), np.int64)


def file_changed(config: Config, federation: Federation) -> bool:
    """Whether clients' examples are dealt by a file, which deals others by now."""
    partition, held = PARTITIONS.make(config.partition), held_out(config, federation.dataset)
    return isinstance(partition, partitions.File) and partition.has_changed(federation.parts, held)


def _begun(config: Config, examples: int, folder: RunFolder | None) -> list[np.ndarray] | None:
    """The clients' examples in the run that was begun in the folder, if one was."""
    if folder is None or not folder.started:
        return None
    saved = folder.path / "partition.json"
    if not saved.exists():
        if config.partition["name"] == "file":
            raise UserError(f"{saved} is gone, which says who held what: put it back, or give another --out.")
        return None
    parts, _ = partitions.load(saved, examples)
    if len(parts) != config.clients:
        raise UserError(f"{saved} is of {len(parts)} clients, but the run has {config.clients}.")
    return parts


def _shared_out(
    partition: partitions.Partition, config: Config, dataset: Dataset, rest: np.ndarray
) -> list[np.ndarray]:
    """The clients' examples where a partition deals these ones."""
    labels, origin = dataset.train.y.cpu().numpy(), dataset.train.origin
    origins = None if origin is None else origin.numpy()[rest]
    split = partition.split(labels[rest], config.clients, config.dealing_seed, config.global_seed, origins)
    return [rest[part] for part in split]


def _dealt(
    partition: partitions.File, config: Config, dataset: Dataset, held: np.ndarray
) -> list[np.ndarray]:
    """The clients' examples as a file has them, but for those held out; UserError if it is of other data."""
    parts, meta = partition.dealt(len(dataset.train), config.clients)
    now, then = provenance.facts(dataset), meta.get("data")
    if isinstance(then, Mapping) and not provenance.same({**then, "name": ""}, {**now, "name": ""}):
        raise UserError(
            f"partition file: {partition.path} is of other data, {provenance.said(then)}, not "
            f"{provenance.said(now)}: save one of these, with fedrecall partition --save."
        )
    parts = [np.setdiff1d(part, held) for part in parts]
    if empty := [k for k, part in enumerate(parts) if not len(part)]:
        raise UserError(
            f"validation = {config.validation:g} takes all that {partition.path} gives client {empty[0]}: "
            "hold out less."
        )
    return parts


def _of_nobody(
    labels: np.ndarray, classes: int, parts: Sequence[np.ndarray], per_class: int, seed: int
) -> np.ndarray | None:
    """The server's auxiliary examples where the clients' are given: some of those that no client has."""
    if not per_class:
        return None
    free = np.setdiff1d(np.arange(len(labels), dtype=np.int64), np.concatenate(parts))
    left = np.bincount(labels[free], minlength=classes)
    if left.min() < per_class:
        raise UserError(
            f"partition file: clients have all but {left.min()} examples of class {left.argmin()}, and the "
            f"server needs {per_class} that are nobody's: save it with fedrecall partition "
            f"--auxiliary-per-class {per_class} --save."
        )
    chosen: np.ndarray = free[set_apart(labels[free], classes, per_class, seed)[1]]
    return chosen


def normalised(config: Config, dataset: Dataset) -> Dataset:
    """The data set with the statistics that the config asks for."""
    how = config.normalisation
    return dataset if how == "data" else dataset.fixed(mapped=how == "fixed")


def describe(federation: Federation) -> tuple[Sequence[np.ndarray], dict[str, Any]]:
    """What partition.json holds: the parts, and what they look like to someone without the data."""
    auxiliary = federation.auxiliary_part
    origins = federation.origins
    return federation.parts, {
        **({} if origins is None else {"origins": origins}),
        "class_names": list(federation.dataset.class_names),
        "counts": federation.counts.tolist(),
        "auxiliary": 0 if auxiliary is None else len(auxiliary),
    }


def measures_of(config: Config) -> dict[str, Measure]:
    """What is measured, by name; UserError where two settings share one, of which a record has one."""
    found: dict[str, Measure] = {}
    for spec in config.measures:
        name, measure = own_modules.named(MEASURES.parse(spec)[0]), MEASURES.make(spec)
        if found.setdefault(name, measure) != measure:
            raise UserError(
                f"measure {name} is asked for with two settings or in two places, and a record has one of "
                "each name: leave one out."
            )
    return found


def chain_count(config: Config, algorithm: FedAvg) -> int:
    """How many chains train side by side."""
    return config.chains or (1 if algorithm.sequential else config.sampled)


def device_of(config: Config) -> torch.device:
    """Where a run computes: ``auto`` is the GPU if there is one and the backend is for one."""
    backend = config.backend.partition(":")[0]
    if config.device == "auto":
        fit = torch.cuda.is_available() and backend in ("auto", "vectorised")
        return torch.device("cuda" if fit else "cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise UserError(f"device = {config.device!r} is none; use auto, cpu or cuda.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device = {config.device!r} cannot be used; use auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device = 'cuda': torch finds no GPU here; use cpu, or auto.")
    if device.type == "cuda" and backend not in ("auto", "vectorised", "serial"):
        raise UserError(f"backend = {backend!r} trains on the CPU; for a GPU use vectorised.")
    return device


class Examples(Protocol):
    """Whatever tells what a network is given."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""

    @property
    def classes(self) -> int:
        """How many classes there are."""


def make_model(config: Config, dataset: Examples, algorithm: FedAvg) -> Model:
    """The config's network with the initial weights that its seed gives."""
    with streams.seeded(config.seed, "model"):
        torch.manual_seed(streams.key(config.seed, "model"))  # on a GPU that nobody has used yet, too
        module: Any = algorithm.equip(build(config.model, dataset.shape, dataset.classes))
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            f"`equip` returns {shown(module)}: it must be the network that it was given, with what the "
            "algorithm adds to it."
        )
    module = real(module).to(device_of(config), DTYPES[config.precision])
    return Model(module, compute=torch.bfloat16 if config.precision == "bfloat16" else None)
