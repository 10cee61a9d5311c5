"""A node of the federation: its owner's settings, its data, and what it remembers between visits."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from fedrecall import files, specs, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.config import REGISTRIES, Config
from fedrecall.data.client import ClientData
from fedrecall.data.datasets import Dataset, Recipe, load, version
from fedrecall.data.store import channels
from fedrecall.errors import Malformed, UserError
from fedrecall.flower import sums
from fedrecall.flower.wire import Data
from fedrecall.ingredients import federate, federation_of, normalised
from fedrecall.measures import MEASURES
from fedrecall.memories import AtNode
from fedrecall.models.networks import MODELS
from fedrecall.specs import NON_NEGATIVE

log = logging.getLogger("flwr")
ELSEWHERE = "fedrecall.flower.node:Elsewhere"
"""How a config names the data set of a run whose data are at the nodes."""
REMEDY = "allow it with custom=true in this node's --node-config."
ANSWERED = 64
"""Marks that are left of what was answered from: of many rounds, and a process is late by one message."""
FEWEST = 10
"""Numbers that a mean and a deviation must be of for a node to tell them: those of one are the number."""


@dataclass(frozen=True)
class Node:
    """What the owner of a node says with `--node-config`."""

    client: Annotated[int, NON_NEGATIVE]
    """The node's number in the federation, from 0; no two nodes have the same."""
    data: str
    """Its data: a folder as folder:/path/to/data, or any data set by name."""
    divide: bool = False
    """Hold only the part of the data that the run's partition gives to this client: for simulations."""
    memory: str = "~/.fedrecall/nodes"
    """Folder for what it remembers between visits, such as control variates; it should outlive restarts."""
    data_root: str | None = None
    """Folder that mirrors the hub's layout, for data sets by name; by default $FEDRECALL_DATA."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it trains."""
    custom: bool = False
    """Allow runs to name algorithms and networks of your own as package.module:Class, which are imported."""
    secure: bool = False
    """Train only where secure aggregation hides the upload from the server."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Node":
        """From a SuperNode's config; dashes may stand for underscores."""
        return specs.build(cls, {k.replace("-", "_"): v for k, v in given.items()}, "--node-config")

    def allow(self, values: Mapping[str, Any]) -> None:
        """Refuse a run's config that names what the owner has not allowed; `guard` looks deeper."""
        named = [(REGISTRIES[key], values.get(key)) for key in REGISTRIES if key != "dataset"]
        named += [(MODELS, values.get("model"))]
        named += [(MEASURES, measure) for measure in values.get("measures", ())]
        for registry, spec in named:
            name = "" if spec is None else registry.parse(spec)[0]
            if name and name not in registry.entries and not self.custom:
                raise UserError(f"the run's {registry.kind} {name!r} is not one of fedrecall's: {REMEDY}")

    def guard(self) -> AbstractContextManager[None]:
        """In this block nothing is imported that the owner has not allowed, wherever a config names it."""
        return nullcontext() if self.custom else specs.registered_only(ELSEWHERE, remedy=REMEDY)


@dataclass(frozen=True)
class Elsewhere(Recipe):
    """The data set of a run whose server has none: the nodes hold the data."""

    def read(self, name: str, root: Path | None) -> Dataset:
        """Never: nobody but a node can read its data."""
        raise UserError("this run's data are at the nodes of a federation: it cannot be played here.")


class Silo:
    """The node's data as a run sees them."""

    def __init__(self, node: Node, config: Config, data: Data | None = None):
        """``data`` has the names and statistics that the federation agreed on, once it has."""
        self.held = dataset = held(node)
        """What the node holds, before anything was agreed on."""
        if data is not None:
            dataset = _agreed(dataset, data, node.client)
        dataset = normalised(config, dataset)  # whatever the server says
        config = replace(config, device=node.device, backend="auto")
        if node.divide:
            if node.client >= config.clients:
                raise UserError(f"it is client {node.client}, but the run has {config.clients} clients.")
            if config.partition["name"] == "file":
                raise UserError(
                    "the run's partition is a file of another machine, by which no node divides data: name "
                    "another partition."
                )
            whole = federate(config, dataset, ALGORITHMS.make(config.algorithm))
            part = whole.parts[node.client]
            mine = slice(node.client, None, config.clients)
            test = whole.dataset.test.part(mine)  # each node its share, which may be none
            self.federation = replace(whole, parts=[part], dataset=replace(whole.dataset, test=test))
        else:
            everything = np.arange(len(dataset.train), dtype=np.int64)
            self.federation = federation_of(config, dataset, [everything])

    @property
    def dataset(self) -> Dataset:
        """Everything the node holds, with the federation's names."""
        return self.federation.dataset

    @property
    def train(self) -> ClientData:
        """The examples it trains on."""
        return self.federation.client(0)

    @property
    def test(self) -> ClientData:
        """The examples it evaluates on."""
        return self.federation.test


@lru_cache(maxsize=4)
def _read(spec: str, root: Path | None, _version: str | None) -> Dataset:
    return load(spec, root=root, part=True)


_versions: dict[tuple[str, Path | None], str | None] = {}
"""Of what was read last."""


def held(node: Node) -> Dataset:
    """The node's data, read when their files have changed; of what is wrong with them no more than that is
    for the server to know."""
    root = None if node.data_root is None else Path(node.data_root)
    try:
        with specs.anything():  # the owner names it, not the run
            now = version(node.data, root, part=True)
            if _versions.setdefault((node.data, root), now) != now:
                log.info(
                    "client %d: its data have changed since they were read and are read anew", node.client
                )
                _versions[node.data, root] = now
                _read.cache_clear()
            return _read(node.data, root, now)
    except Exception as error:
        log.error(
            "client %d cannot read its data: %s",
            node.client,
            error,
            exc_info=not isinstance(error, UserError),
        )
        raise UserError("it cannot read its data: its own log says why.") from error


def _agreed(dataset: Dataset, data: Data, client: int) -> Dataset:
    """The data set with the federation's class numbers and channel statistics."""
    names = tuple(data.classes)
    if unknown := [name for name in dataset.class_names if name not in names]:
        raise UserError(f"its class {unknown[0]!r} is not among the federation's: {', '.join(names)}.")
    if not len(data.mean) == len(data.std) in channels(dataset.shape, dataset.floats):
        raise UserError(
            f"its examples are {list(dataset.shape)}, for which the federation's {len(data.mean)} means and "
            f"{len(data.std)} deviations are not."
        )
    numbers = torch.tensor([names.index(name) for name in dataset.class_names])
    train, test = (replace(s, y=numbers[s.y]) for s in (dataset.train, dataset.test))
    return replace(dataset, class_names=names, train=train, test=test).restandardised(data.mean, data.std)


def own_statistics(dataset: Dataset) -> tuple[list[float], list[float]]:
    """Means and deviations of its images' channels, of a table's columns as they were read, or as a data set
    of its owner's has them; of other numbers than pixels a deviation of 0 where they never vary, unless
    they are left as they are."""
    if dataset.columns is not None:
        return dataset.columns.mean, dataset.columns.std
    size = channels(dataset.shape, dataset.floats)[0]
    mean, std = (v.expand(size) if len(v) == 1 else v for v in (dataset.mean, dataset.std))
    left = say_nothing(mean.tolist(), std.tolist())
    if len(dataset.shape) > 1 and dataset.floats and not left and (std == 1).any():
        numbers = dataset.train.x.reshape(-1, len(std))
        std = torch.where((std == 1) & (numbers == numbers[:1]).all(0), 0.0, std)
    return mean.tolist(), std.tolist()


def say_nothing(mean: Sequence[float], std: Sequence[float]) -> bool:
    """Whether these are of what is left as it is, whatever it is; or of nothing but zeros."""
    return all(m == 0 for m in mean) and all(s == 1 for s in std)


def told_statistics(dataset: Dataset) -> tuple[list[float], list[float]]:
    """What `own_statistics` has, unless it would tell the server single examples."""
    mean, std = own_statistics(dataset)
    behind = dataset.train.x.numel() // len(mean)  # of each: an image has many pixels, a row one number
    if behind < FEWEST and not say_nothing(mean, std):
        raise UserError(
            f"the mean and deviation of fewer than {FEWEST} numbers tell what these are, so it does not send "
            "them: give it more training examples, or let all nodes read their tables with standardise=false "
            "(of images: let the run say normalisation='fixed')."
        )
    return mean, std


def _last(rounds: Sequence[int], until: int) -> int:
    """The last of the rounds that is not later; 0 if there is none."""
    return max((number for number in rounds if number <= until), default=0)


class Kept(AtNode):
    """What a node has of one client and one run, for the visits that somebody may go back to.

    The server may not have got the upload that a memory belongs to, or go back to an earlier
    checkpoint. It says which memory to start from, so both sides always mean the same one.
    """

    def __init__(self, node: Node, run: str, once: bool = False):
        """``once``: what is remembered never changes and outlives a server that goes back."""
        super().__init__(node.memory, run, node.client, once)

    def rewind(self, visit: tuple[int, int], remembered: int) -> None:
        """Forget visits after this round: the server has none of their uploads, or has gone back.

        ``visit``: that which begins, as the run's start and the round. One that was overtaken by a later
        one forgets nothing, and ends: what it would forget may be what the server goes by now.
        """
        if self._overtaken(visit):
            raise UserError("a later visit has overtaken this one.")
        for number in self._rounds():
            if number > remembered and not self.once:
                self._forget(number)

    def put(self, visit: tuple[int, int], memory: Any, keep: int, remembered: int, saved: int) -> None:
        """Remember this after the visit, which began at ``remembered``; forget what nobody goes back to.

        The server may go back to its checkpoints, of the rounds ``keep`` and ``saved``, and to what the visit
        began at, if its upload is lost.

        A visit that was overtaken by a later one leaves nothing: the server did not wait for it.
        """
        arrays = trees.arrays(memory)
        if not arrays or self._overtaken(visit):
            return
        start, round_number = visit
        with files.writing(self.folder, then="and it takes part again"):
            self._make()
            content = files.packed(arrays)
            name = f"round-{round_number:06d}-{start:06d}-{files.checksum(content)}.safetensors"
            path = self.folder / name
            files.sweep(self.folder, alone=False)
            files.write(path, content)
            self._forget(round_number, but=path)
        arrived = [number for number in self._rounds() if number <= remembered]
        wanted = {_last(arrived, until) for until in (keep, saved, remembered)}
        for number in self._rounds():
            if number < round_number and number not in wanted:
                self._forget(number)

    def answer_once(self, mark: str) -> None:
        """Leave a mark of what is answered from, or raise Malformed if it is there: it was answered from."""
        with files.writing(self.folder, then="and it takes part again"):
            self._make()
            try:
                (self.folder / f"answered-{mark}").touch(0o600, exist_ok=False)
            except FileExistsError:
                raise Malformed("it has answered at this step of secure aggregation before") from None
            marks = sorted(self.folder.glob("answered-*"), key=lambda p: p.stat().st_mtime_ns)
            for path in marks[:-ANSWERED]:
                path.unlink(missing_ok=True)

    def settle_sum(self, round_number: int, clients: Sequence[int]) -> None:
        """Note over whom a round is summed, or raise OtherSum if it was summed over others before."""
        with files.writing(self.folder, then="and it takes part again"):
            self._make()
            sums.settle(self.folder, round_number, clients)

    def _make(self) -> None:
        self.folder.mkdir(0o700, parents=True, exist_ok=True)  # what it holds follows from the data
        self.folder.chmod(0o700)

    def _overtaken(self, visit: tuple[int, int]) -> bool:
        names = [p.stem.split("-") for p in self.folder.glob("round-*-*-*.safetensors")]
        return any((int(start), int(number)) > visit for _, number, start, _ in names)

    def _forget(self, round_number: int, but: Path | None = None) -> None:
        for path in self._paths(round_number):
            if path != but:
                path.unlink(missing_ok=True)
