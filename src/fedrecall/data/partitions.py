"""Who holds which example: the partitions of the federated learning literature, most of them label-skewed.

A partition says for every example which client owns it, so that what comes out is disjoint and
complete by construction. It depends on the labels, the number of clients and the seed alone.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrecall import files, global_draws
from fedrecall.errors import UserError
from fedrecall.specs import AT_LEAST_ONE, POSITIVE, Declared, Registry
from fedrecall.streams import numpy_stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PARTITIONS = Registry(
    "partition",
    {
        "iid": "fedrecall.data.partitions:IID",
        "quantity": "fedrecall.data.partitions:Quantity",
        "shards": "fedrecall.data.partitions:Shards",
        "lda": "fedrecall.data.partitions:LDA",
        "dirichlet": "fedrecall.data.partitions:Dirichlet",
        "classes": "fedrecall.data.partitions:Classes",
        "exdir": "fedrecall.data.partitions:ExDir",
        "natural": "fedrecall.data.partitions:Natural",
        "file": "fedrecall.data.partitions:File",
    },
    base="fedrecall.data.partitions:Partition",
)

MOST_DRAWS = 1000


@dataclass(frozen=True)
class Partition(Declared, ABC):
    """What all partitions share: a new one only says who owns each example."""

    @abstractmethod
    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example; labels are 0..C-1, each of which occurs."""

    def global_owners(self, labels: Ints, clients: int, rng: np.random.Generator, seed: int) -> Ints:
        """The client of every example where global generators with this seed say how many each gets."""
        raise UserError(
            f"global_seed deals shards and lda, not {type(self).__name__.lower()}: "
            "choose one of these or leave it out."
        )

    def of_origins(self, labels: Ints, origins: Ints | None, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example where it may be known who or where each is from."""
        return self.owners(labels, clients, rng)

    def split(
        self,
        labels: ArrayLike,
        clients: int,
        seed: int,
        global_seed: int | None = None,
        origins: Ints | None = None,
    ) -> list[Ints]:
        """The examples of every client: disjoint, complete, ascending, at least one each."""
        found = _labels(labels)
        if clients < 1:
            raise UserError(f"a partition needs at least one client, not {clients}.")
        if clients > len(found):
            raise UserError(
                f"{len(found)} examples cannot be shared by {clients} clients: use fewer clients."
            )
        codes = np.unique(found, return_inverse=True)[1].astype(np.int64)
        stream = numpy_stream(seed, "partition")
        owner = (
            self.of_origins(codes, origins, clients, stream)
            if global_seed is None
            else self.global_owners(codes, clients, stream, global_seed)
        )
        owner = self._checked(owner, len(found), clients)
        sizes = np.bincount(owner, minlength=clients)
        if not sizes.all():
            raise UserError(
                f"{self} leaves {int((sizes == 0).sum())} of {clients} clients without an example "
                f"({len(found)} examples): use fewer clients."
            )
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])

    def _checked(self, owner: Any, examples: int, clients: int) -> Ints:
        """The owners as they must be, or UserError: a user's partition may have them otherwise."""
        whole = isinstance(owner, np.ndarray) and np.issubdtype(owner.dtype, np.integer)
        if not whole or owner.shape != (examples,) or owner.min() < 0 or owner.max() >= clients:
            raise UserError(
                f"{self}: `owners` must return an array of {examples} whole numbers, for each example that "
                f"of its client, 0 to {clients - 1}."
            )
        found: Ints = owner.astype(np.int64, copy=False)
        return found


@dataclass(frozen=True)
class IID(Partition):
    """A random permutation cut into near-equal parts."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        owner = np.empty(len(labels), np.int64)
        owner[rng.permutation(len(labels))] = np.repeat(np.arange(clients), even(len(labels), clients))
        return owner


@dataclass(frozen=True)
class Quantity(Partition):
    """A random permutation cut by a symmetric Dirichlet draw: clients differ in size alone.

    The quantity skew of NIID-Bench (Li et al., ICDE 2022). Drawn again until every client has ``min_size``
    examples.
    """

    beta: Annotated[float, POSITIVE] = 0.5
    """Concentration: the smaller, the more clients differ in size."""
    min_size: Annotated[int, AT_LEAST_ONE] = 10
    """Fewest examples a client may have."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        alike = np.zeros_like(labels)  # as if there were one class
        draw = partial(shared_out, np.bincount(alike), clients, self.beta, False, rng)
        found = repeat(draw, self.min_size, clients, len(labels), f"partition quantity: beta={self.beta:g}")
        return assign(alike, found, rng)


@dataclass(frozen=True)
class Shards(Partition):
    """Shards of examples with the same label, a few per client at random (McMahan et al., 2017).

    When clients times shards is a multiple of the number of classes, every class is cut into
    equally many near-equal shards; otherwise the examples in order of their labels are, and a
    shard may straddle classes. Nothing is dropped; a client may get one class twice.
    """

    s: Annotated[int, AT_LEAST_ONE] = 2
    """Shards per client."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        shards, classes = clients * self.s, int(labels.max()) + 1
        if shards > len(labels):
            raise UserError(
                f"partition shards: {clients} clients with {self.s} shards each are {shards} shards, "
                f"but there are {len(labels)} examples: use fewer clients or shards."
            )
        if shards % classes == 0:
            smallest = int(np.bincount(labels).min())
            if smallest < shards // classes:
                raise UserError(
                    f"partition shards: the smallest class has {smallest} examples and cannot be cut "
                    f"into {shards // classes} shards (N={clients}, s={self.s}): use fewer of either."
                )
            sizes = np.concatenate([even(n, shards // classes) for n in np.bincount(labels)])
        else:
            sizes = even(len(labels), shards)
        client_of_shard = rng.permutation(shards) // self.s
        owner = np.empty(len(labels), np.int64)
        owner[by_class(labels, rng)] = np.repeat(client_of_shard, sizes)
        return owner

    def global_owners(self, labels: Ints, clients: int, rng: np.random.Generator, seed: int) -> Ints:
        """The client of every example where global generators with this seed say how many each gets."""
        sizes = np.bincount(labels)
        if clients * self.s % len(sizes):
            raise UserError(
                f"global_seed deals whole classes, but N={clients} clients with s={self.s} shards each are no"
                f" multiple of {len(sizes)} classes."
            )
        return assign(labels, global_draws.shards(sizes, clients, self.s, seed), rng)


@dataclass(frozen=True)
class LDA(Partition):
    """Every class shared out by a draw from a symmetric Dirichlet distribution over the clients.

    As in the reference implementations a client that already holds its even share of the data set
    gets none of the classes that follow (``balance``), and the whole draw is repeated, up to
    ``draws`` times, until every client has ``min_size`` examples.
    """

    alpha: Annotated[float, POSITIVE] = 0.1
    """Concentration: the smaller, the fewer clients share a class."""
    balance: bool = True
    """No more classes for a client that holds examples / clients already."""
    min_size: Annotated[int, AT_LEAST_ONE] = 10
    """Fewest examples a client may have."""
    draws: Annotated[int, AT_LEAST_ONE] = 1000
    """How often to try; alpha = 0.05 with 100 clients of CIFAR-10 takes tens of thousands (seconds)."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        draw = partial(shared_out, np.bincount(labels), clients, self.alpha, self.balance, rng)
        return self._drawn(draw, labels, clients, rng)

    def global_owners(self, labels: Ints, clients: int, rng: np.random.Generator, seed: int) -> Ints:
        """The client of every example where global generators with this seed say how many each gets."""
        draw = global_draws.dirichlet(np.bincount(labels), clients, self.alpha, self.balance, seed)
        return self._drawn(draw, labels, clients, rng)

    def _drawn(self, draw: Callable[[], Ints], labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        settings = f"partition lda: alpha={self.alpha:g}, balance={str(self.balance).lower()}"
        found = repeat(draw, self.min_size, clients, len(labels), settings, self.draws)
        return assign(labels, found, rng)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """The draw of ``lda``, by default without balancing, as FedCAD and FedSSD describe it."""

    delta: Annotated[float, POSITIVE] = 0.5
    """Concentration: the smaller, the fewer clients share a class."""
    min_size: Annotated[int, AT_LEAST_ONE] = 10
    """Fewest examples a client may have."""
    balance: bool = False
    """No more classes for a client that holds examples / clients already."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        draw = partial(shared_out, np.bincount(labels), clients, self.delta, self.balance, rng)
        settings = f"partition dirichlet: delta={self.delta:g}, balance={str(self.balance).lower()}"
        return assign(labels, repeat(draw, self.min_size, clients, len(labels), settings), rng)


@dataclass(frozen=True)
class Classes(Partition):
    """Every client owns k classes chosen at random; a class is split evenly among its owners."""

    k: Annotated[int, AT_LEAST_ONE] = 2
    """Classes per client."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        sizes = np.bincount(labels)
        enough_slots("classes", "k", self.k, clients, len(sizes))
        chosen = np.argpartition(rng.random((clients, len(sizes))), self.k - 1, axis=1)[:, : self.k]
        owns = np.zeros((len(sizes), clients), bool)
        owns[chosen.T, np.arange(clients)] = True
        for orphan in np.flatnonzero(~owns.any(axis=1)):
            # There are at least as many slots as classes, so some class has two owners: one of them swaps.
            shared = np.argwhere(owns & (owns.sum(axis=1) > 1)[:, None])
            taken, client = shared[rng.integers(len(shared))]
            owns[taken, client], owns[orphan, client] = False, True
        counts = np.zeros(owns.shape, np.int64)
        for c, size in enumerate(sizes):
            takers = rng.permutation(np.flatnonzero(owns[c]))
            counts[c, takers] = even(size, len(takers))
        return assign(labels, counts, rng)


@dataclass(frozen=True)
class ExDir(Partition):
    """Every client owns some classes, and a class is shared among its owners by a Dirichlet draw.

    The classes are chosen so that all have an owner and no two differ by more than one owner.
    The shares are drawn again, up to ``draws`` times, until every client has ``min_size`` examples.
    """

    classes: Annotated[int, AT_LEAST_ONE] = 2
    """Classes per client."""
    alpha: Annotated[float, POSITIVE] = 10.0
    """Concentration of the shares among the owners of a class."""
    min_size: Annotated[int, AT_LEAST_ONE] = 1
    """Fewest examples a client may have."""
    draws: Annotated[int, AT_LEAST_ONE] = 1000
    """How often to try; 100 clients of CIFAR-10 take a dozen at alpha = 0.3, over 20,000 at alpha = 0.1."""

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example."""
        sizes = np.bincount(labels)
        enough_slots("exdir", "classes", self.classes, clients, len(sizes))
        owns = np.zeros((len(sizes), clients), bool)
        load = np.zeros(len(sizes), np.int64)
        for client in rng.permutation(clients):  # each takes the least owned classes, ties at random
            chosen = np.argsort(load + rng.random(len(load)))[: self.classes]
            owns[chosen, client] = True
            load[chosen] += 1

        def draw() -> Ints:
            counts = np.zeros(owns.shape, np.int64)
            for c, size in enumerate(sizes):
                takers = np.flatnonzero(owns[c])
                counts[c, takers] = dirichlet_counts(size, np.full(len(takers), self.alpha), rng)
            return counts

        settings = f"partition exdir: classes={self.classes}, alpha={self.alpha:g}"
        return assign(labels, repeat(draw, self.min_size, clients, len(labels), settings, self.draws), rng)


@dataclass(frozen=True)
class Natural(Partition):
    """Every client holds what is from one place or person, as the data say: a site, a writer, a patient.

    Such data are read with `folder:PATH,origin=COLUMN`. With as many clients as origins, client 0 is the
    first of them by name; with fewer, each gets several at random, as many as the next to within one.
    """

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Never: labels do not tell."""
        raise UserError(
            "partition natural goes by where examples are from, which these data do not tell: read them with "
            "folder:PATH,origin=COLUMN."
        )

    def of_origins(self, labels: Ints, origins: Ints | None, clients: int, rng: np.random.Generator) -> Ints:
        """The client of every example where it may be known who or where each is from."""
        if origins is None:
            return self.owners(labels, clients, rng)
        there, place = np.unique(origins, return_inverse=True)
        if clients > len(there):
            taken = "; the server has all of another's: lower auxiliary_per_class"
            raise UserError(
                f"partition natural: examples are from {len(there)} origins, which are no {clients} clients: "
                f"set clients={len(there)}, or fewer to give each several"
                f"{taken if origins.max() >= len(there) else ''}."
            )
        if clients == len(there):
            return place.astype(np.int64)
        client = rng.permutation(np.repeat(np.arange(clients), even(len(there), clients)))
        return client[place]


@dataclass(frozen=True)
class File(Partition):
    """Every client holds what a file gives it, one of `fedrecall partition --save` or a run's partition.json.

    Examples that it gives to no client are not trained on; the server's auxiliary ones are of these. A run
    keeps its own copy and goes on with that.
    """

    path: str
    """The file: {"format": "fedrecall partition 1", "meta": {}, "clients": [[0, 2, ...], ...]}."""

    def __post_init__(self) -> None:
        """A run may be begun from elsewhere."""
        object.__setattr__(self, "path", os.path.abspath(files.expanded(self.path)))

    def owners(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Never: of some examples there may be none."""
        raise UserError("partition file gives examples to clients by itself: use its method `dealt`.")

    def split(
        self,
        labels: ArrayLike,
        clients: int,
        seed: int,
        global_seed: int | None = None,
        origins: Ints | None = None,
    ) -> list[Ints]:
        """The examples of every client: disjoint, ascending, at least one each; no seed has a part in it."""
        return self.dealt(len(_labels(labels)), clients)[0]

    def dealt(self, examples: int, clients: int) -> tuple[list[Ints], dict[str, Any]]:
        """The examples of every client, and the file's meta data."""
        parts, meta = load(Path(self.path), examples)
        if len(parts) != clients:
            raise UserError(
                f"partition file: {self.path} is of {len(parts)} clients, not {clients}: give --clients "
                f"{len(parts)}."
            )
        if empty := [k for k, part in enumerate(parts) if not len(part)]:
            raise UserError(f"partition file: {self.path} gives client {empty[0]} no example: take it out.")
        return [np.sort(part) for part in parts], meta

    def has_changed(self, parts: Sequence[Ints], without: Ints) -> bool:
        """Whether the file, if it is still there, deals otherwise than this, leaving out some examples."""
        if not files.found(Path(self.path)):
            return False
        try:
            now, _ = load(Path(self.path))
        except UserError:
            return True
        now = [np.setdiff1d(part, without) for part in now]
        return len(now) != len(parts) or not all(map(np.array_equal, now, map(np.sort, parts)))


# Pieces that partitions are made of.


def even(total: int, parts: int) -> Ints:
    """Sizes of near-equal parts, the larger ones first."""
    return np.full(parts, total // parts) + (np.arange(parts) < total % parts)


def by_class(labels: Ints, rng: np.random.Generator) -> Ints:
    """All examples, class after class, shuffled within each."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def assign(labels: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """The owner of every example, given how many of each class each client gets (``[C, N]``)."""
    classes, clients = counts.shape
    owner = np.empty(len(labels), np.int64)
    owner[by_class(labels, rng)] = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())
    return owner


def shared_out(
    sizes: Ints, clients: int, concentration: float, balance: bool, rng: np.random.Generator
) -> Ints:
    """Examples of each class for each client, ``[C, N]``: every class by a draw of its own.

    With ``balance`` a client that already holds its even share gets none of the classes that follow.
    """
    counts = np.zeros((len(sizes), clients), np.int64)
    held = np.zeros(clients, np.int64)
    for c, size in enumerate(sizes):
        # A Dirichlet vector restricted to some of its entries and renormalised is Dirichlet.
        takers = np.flatnonzero(held * clients < sizes.sum()) if balance else np.arange(clients)
        counts[c, takers] = dirichlet_counts(size, np.full(len(takers), concentration), rng)
        held += counts[c]
    return counts


def dirichlet_counts(total: int, concentration: Floats, rng: np.random.Generator) -> Ints:
    """A total cut at the running sums of shares drawn from a Dirichlet distribution."""
    cuts = np.rint(np.cumsum(rng.dirichlet(concentration)) * total).astype(np.int64)
    cuts[-1] = total
    return np.diff(np.minimum(cuts, total), prepend=0)


def repeat(
    draw: Callable[[], Ints],
    least: int,
    clients: int,
    examples: int,
    settings: str,
    draws: int | None = None,
) -> Ints:
    """Draw counts until every client has the least number of examples, or say that it cannot be.

    ``draws`` is how often, where the partition has such a setting.
    """
    fewer = " or a smaller min_size" if least > 1 else ""
    remedy = f"use fewer clients, a larger concentration{fewer}."
    if least * clients <= examples:
        most = MOST_DRAWS if draws is None else draws
        for _ in range(most):
            counts = draw()
            if counts.sum(axis=0).min() >= least:
                return counts
        reason = f"not in {most:,} draws"
        if draws is not None:
            remedy = f"raise draws, such as draws={100 * draws}, which changes nothing else; or {remedy}"
    else:
        reason = f"there are only {examples} examples"
        remedy = f"use fewer clients{fewer}."
    raise UserError(
        f"{settings} cannot give each of N={clients} clients min_size={least} examples ({reason}): {remedy}"
    )


def enough_slots(partition: str, field: str, each: int, clients: int, classes: int) -> None:
    """Refuse what cannot give every client distinct classes and every class an owner."""
    if each > classes:
        raise UserError(
            f"partition {partition}: {field} = {each} is more than the {classes} classes there are."
        )
    if clients * each < classes:
        raise UserError(
            f"partition {partition}: {clients} clients with {field} = {each} own at most {clients * each} "
            f"of {classes} classes: use more clients or more classes per client."
        )


def _labels(labels: ArrayLike) -> Ints:
    found = np.asarray(labels)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise UserError(f"labels must be a row of whole numbers, not {found.dtype} of shape {found.shape}.")
    return found.astype(np.int64)


# What a partition looks like.


def label_counts(labels: ArrayLike, parts: Sequence[Ints], classes: int) -> Ints:
    """Examples of each class at each client, ``[N, C]``."""
    found = _labels(labels)
    sizes = [len(part) for part in parts]
    client = np.repeat(np.arange(len(parts)), sizes)
    held = found[np.concatenate(parts)] if len(parts) else found[:0]
    if len(held) and not 0 <= held.min() <= held.max() < classes:
        raise UserError(f"labels run from {held.min()} to {held.max()}, but there are {classes} classes.")
    return np.bincount(client * classes + held, minlength=len(parts) * classes).reshape(len(parts), classes)


def out_local_distribution(distribution: ArrayLike) -> Floats:
    """FedNTD's eq. 7: (1 - p_c) / (C - 1), which weights most what the client lacks."""
    p = np.asarray(distribution, np.float64)
    if p.shape[-1] < 2:
        raise UserError("an out-local distribution needs at least two classes.")
    out: Floats = (1 - p) / (p.shape[-1] - 1)
    return out


# On disk: readable, and checked when it is read.

_FORMAT = "fedrecall partition 1"


def save(path: Path, parts: Sequence[Ints], meta: Mapping[str, Any]) -> None:
    """Write a partition as JSON, whole or not at all."""
    text = json.dumps(
        {"format": _FORMAT, "meta": dict(meta), "clients": [np.asarray(p).tolist() for p in parts]},
        separators=(",", ":"),
    )
    files.write(path, text.encode())


def load(path: Path, examples: int | None = None) -> tuple[list[Ints], dict[str, Any]]:
    """The clients' examples and the meta data of a saved partition.

    Refused unless every client holds distinct whole numbers that no other client holds, below
    ``examples`` when that is given.
    """
    held = files.read_json(path)
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        raise UserError(f"{path} is not a saved partition: its format is not {_FORMAT!r}.")
    clients, meta = held.get("clients"), held.get("meta")
    if not isinstance(clients, list) or not clients or not isinstance(meta, dict):
        raise UserError(f"the partition {path} has no clients or no meta data.")
    if not all(isinstance(part, list) and all(type(i) is int for i in part) for part in clients):
        raise UserError(f"the partition {path} has a client that is not a list of whole numbers.")
    flat = [i for part in clients for i in part]
    if flat and min(flat) < 0:
        raise UserError(f"the partition {path} names an example {min(flat)}.")
    if flat and max(flat) >= (2**63 if examples is None else examples):
        raise UserError(f"the partition {path} names example {max(flat)}, but there are {examples}.")
    if len(set(flat)) != len(flat):
        raise UserError(f"the partition {path} gives one example to two clients, or twice to one.")
    return [np.asarray(part, np.int64) for part in clients], meta
