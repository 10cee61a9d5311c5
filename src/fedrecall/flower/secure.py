"""The server's half of secure aggregation: the mean of a round's uploads, and of none of them alone."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from fedrecall import payloads, trees
from fedrecall.errors import Malformed, Refused
from fedrecall.flower import masks, sums, wire
from fedrecall.flower.masks import Vector
from fedrecall.flower.wire import (
    Call,
    Keys,
    Masked,
    MaskedReport,
    MaskedTask,
    Members,
    Parcels,
    Revealed,
    Task,
    Unmasking,
)

log = logging.getLogger("flwr")
T = TypeVar("T")


class Ask(Protocol):
    """Sends every client its message of a kind; what its reply is read as, or why there is nothing."""

    def __call__(
        self, contents: Mapping[int, RecordDict], kind: str, read: Callable[[int, RecordDict], T]
    ) -> dict[int, T | ValueError]:
        """The answers by client."""


class Mean(NamedTuple):
    """What comes of a round."""

    up: Any
    """The weighted mean of the uploads that arrived."""
    loss: float
    """The mean of their clients' losses, all alike."""
    seconds: dict[int, float]
    """How long each of these clients took."""


class Arrival(NamedTuple):
    """A masked upload and loss."""

    numbers: Vector
    seconds: float


class Round:
    """One round: keys, shares, masked uploads, and what takes the masks off their sum.

    A client that is not heard of drops out, and ``failures`` has the reason. From the third answer on its
    upload counts, whether or not it helps to take the masks off. `Malformed`: too few are left.
    """

    def __init__(
        self, ask: Ask, run: str, number: int, up: Any, settle: Callable[[list[int]], None] = lambda c: None
    ):
        """``up``: an upload, for its structure. ``settle``: is told over whom it is summed before any of them
        helps to take the masks off, and may raise `Malformed`."""
        self.ask, self.run, self.number, self.up, self.settle = ask, run, number, up, settle
        self.failures: dict[int, str] = {}
        self.refusals: dict[int, Refused] = {}
        """Who has refused to take the masks off."""
        self.least = masks.FEWEST
        self.keys: dict[int, Keys] = {}
        self.session = b""
        self.parcels: dict[int, Parcels] = {}
        self.arrived: dict[int, Arrival] = {}
        zero = torch.zeros((), dtype=torch.float64)
        self.masked = trees.transform(lambda t: torch.empty(t.shape, dtype=torch.uint64), Masked(up, zero))

    def play(
        self, tasks: Mapping[int, Task], downs: Mapping[int, ArrayRecord], weights: Callable[[int], int]
    ) -> Mean:
        """Ask these clients; ``weights`` says what each counts for."""
        self._meet(tasks)
        self._share()
        total = sum(map(weights, self.parcels))
        shares = {client: weights(client) / total for client in sorted(self.parcels)}
        self._train(tasks, downs, shares)
        exact = masks.real(self.masked, self._sum())
        arrived = sum(shares[client] for client in self.arrived)
        loss = float(exact.loss) * len(shares) / len(self.arrived)
        seconds = {client: a.seconds for client, a in self.arrived.items()}
        return Mean(trees.transform(partial(_like, arrived), self.up, exact.up), loss, seconds)

    @property
    def refused(self) -> bool:
        """Whether everyone has refused to take the masks off, so that nobody knows of the sum."""
        return bool(self.arrived) and self.refusals.keys() == self.arrived.keys()

    def other_sum(self, of: Set[int]) -> list[int] | None:
        """Those of these clients over whom the round was summed before, if by so many that too few are left
        who would ever help to sum it over those whose uploads have arrived now."""
        said = [e.clients for e in self.refusals.values() if isinstance(e, sums.OtherSum)]
        known = [those for clients in said if (those := [c for c in sorted(of) if c in clients]) == clients]
        if not known or len(self.arrived) - len(known) >= masks.threshold(len(self.arrived)):
            return None
        return list(Counter(map(tuple, known)).most_common(1)[0][0])

    def _meet(self, tasks: Mapping[int, Task]) -> None:
        calls = {client: wire.pack(Call(self.run, self.number, client)) for client in sorted(tasks)}
        self.keys = self._distinct(self._hear(calls, "query.keys", self._keys))
        self.least = masks.present(len(self.keys))

    def _distinct(self, given: Mapping[int, Keys]) -> dict[int, Keys]:
        """Without those who sent the same key: the others would refuse to go on with them.

        Keys are new in every round and only the server sees them, so whoever has another's has made it so.
        """
        owners: dict[bytes, list[int]] = {}
        for client, keys in sorted(given.items()):
            for public in (keys.sealing, keys.masking):
                owners.setdefault(public, []).append(client)
        for same in owners.values():
            if len(same) > 1:
                said = f"clients {', '.join(map(str, same))} sent the same public key"
                self.failures |= dict.fromkeys(same, said)
        left = {client: keys for client, keys in given.items() if client not in self.failures}
        _check_left(len(left), masks.FEWEST)
        return left

    def _share(self) -> None:
        clients = sorted(self.keys)
        sealing = [self.keys[c].sealing for c in clients]
        masking = [self.keys[c].masking for c in clients]
        self.session = masks.bind(self.run, self.number, clients, sealing, masking)
        asked = {c: wire.pack(Members(self.run, self.number, c, clients, sealing, masking)) for c in clients}
        self.parcels = self._hear(asked, "query.shares", self._parcels)

    def _train(
        self, tasks: Mapping[int, Task], downs: Mapping[int, ArrayRecord], shares: Mapping[int, float]
    ) -> None:
        asked = {}
        for client in sorted(self.parcels):
            others = [c for c in sorted(self.parcels) if c != client]
            parcels = [self._parcel(sender, client) for sender in others]
            task = MaskedTask(wire.as_json(tasks[client]), shares[client], others, parcels)
            asked[client] = wire.pack(task, downs[client])
        self.arrived = self._hear(asked, "train.masked", self._arrival)

    def _sum(self) -> Vector:
        """The sum of the uploads that arrived, without masks."""
        present, revealed = sorted(self.arrived), self._revealed()
        total = np.zeros(masks.count(self.masked), np.uint64)
        for arrival in self.arrived.values():
            total += arrival.numbers
        for place, client in enumerate(sorted(self.parcels)):
            shares = {holder: reply.shares[place] for holder, reply in revealed.items()}
            if client in self.arrived:
                seed = self._secret(client, shares, self.parcels[client].seed_digests)
                total -= masks.own_mask(seed, self.session, client, len(total))
                continue
            key = self._secret(client, shares, self.parcels[client].key_digests)
            if not masks.belong(key, self.keys[client].masking):
                raise Malformed(f"the key that client {client} shared is not its own")
            for other in present:  # what it would have added, and the others have subtracted
                public = self.keys[other].masking
                total += masks.pair_mask(key, public, self.session, client, other, len(total))
        return total

    def _revealed(self) -> dict[int, Revealed]:
        present = sorted(self.arrived)
        self.settle(present)
        asked = {c: wire.pack(Unmasking(self.run, self.number, c, present)) for c in present}
        found: dict[int, Revealed] = {}
        others: list[str] = []
        answers = self.ask(asked, "query.unmask", self._shares)
        self.refusals = {client: answer for client, answer in answers.items() if isinstance(answer, Refused)}
        for client, answer in answers.items():
            if isinstance(answer, ValueError):
                log.warning("client %d, taking off the masks of round %d: %s", client, self.number, answer)
                others.append(f", client {client}: {answer}")
            else:
                found[client] = answer
        _check_left(len(found), masks.threshold(len(self.keys)), *others[:1])
        return found

    def _secret(self, client: int, shares: Mapping[int, bytes], digests: list[bytes]) -> bytes:
        """A client's secret, from those shares that are the ones it made."""
        members = sorted(self.keys)
        needed = masks.threshold(len(members))
        right = [s for holder, s in shares.items() if masks.digest(s) == digests[members.index(holder)]]
        if len(right) < needed:
            raise Malformed(f"of client {client}'s secret {len(right)} shares are right, {needed} are needed")
        try:
            return masks.joined(right, len(members))
        except ValueError as error:
            raise Malformed(f"client {client}'s shares do not fit together") from error

    def _parcel(self, sender: int, receiver: int) -> bytes:
        return self.parcels[sender].parcels[[c for c in sorted(self.keys) if c != sender].index(receiver)]

    def _hear(
        self, contents: Mapping[int, RecordDict], kind: str, read: Callable[[int, RecordDict], T]
    ) -> dict[int, T]:
        """The answers of those who gave a good one; the others have failed."""
        good: dict[int, T] = {}
        for client, answer in self.ask(contents, kind, read).items():
            if isinstance(answer, ValueError):
                self.failures[client] = str(answer)
            else:
                good[client] = answer
        _check_left(len(good), self.least)
        return good

    # What replies are read as.

    def _reply(self, client: int, content: RecordDict, kind: Any) -> tuple[Any, dict[str, Tensor]]:
        reply, arrays = wire.unpack(content, kind, "its reply")
        if (reply.client, reply.round) != (client, self.number):
            raise Malformed(f"its reply is of client {reply.client}, round {reply.round}")
        return reply, arrays

    def _values(self, client: int, content: RecordDict, kind: Any) -> Any:
        reply, arrays = self._reply(client, content, kind)
        if arrays:
            raise Malformed("its reply has undeclared arrays")
        return reply

    def _keys(self, client: int, content: RecordDict) -> Keys:
        keys: Keys = self._values(client, content, Keys)
        for public in (keys.sealing, keys.masking):
            masks.check_public_key(public)
        if keys.sealing == keys.masking:
            raise Malformed("its two public keys are the same")
        return keys

    def _parcels(self, client: int, content: RecordDict) -> Parcels:
        made: Parcels = self._values(client, content, Parcels)
        if len(made.parcels) + 1 != len(self.keys):
            raise Malformed(f"its reply has {len(made.parcels)} shares for {len(self.keys) - 1} others")
        if not len(made.seed_digests) == len(made.key_digests) == len(self.keys):
            raise Malformed(f"its reply does not have two digests for each of {len(self.keys)} members")
        size = masks.sealed_size(masks.parcel_size())
        for parcel in made.parcels:
            if len(parcel) != size:
                raise Malformed(f"its reply has sealed shares of {len(parcel)} bytes, not {size}")
        for digest in (*made.seed_digests, *made.key_digests):
            if len(digest) != masks.DIGEST:
                raise Malformed(f"its reply has a digest of {len(digest)} bytes, not {masks.DIGEST}")
        return made

    def _arrival(self, client: int, content: RecordDict) -> Arrival:
        report, arrays = self._reply(client, content, MaskedReport)
        wire.check_seconds(report.seconds)
        return Arrival(masks.flat(payloads.check(arrays, self.masked, "its reply")), report.seconds)

    def _shares(self, client: int, content: RecordDict) -> Revealed:
        revealed: Revealed = self._values(client, content, Revealed)
        if len(revealed.shares) != len(self.parcels):
            raise Malformed(f"its reply has {len(revealed.shares)} shares of {len(self.parcels)} members")
        return revealed


def _like(weight: float, template: Tensor, total: Tensor) -> Tensor:
    """A weighted sum as a mean of the template's kind; whole numbers are rounded to the nearest."""
    mean = total / weight
    return (mean if template.is_floating_point() else mean.round()).to(template)


def _check_left(count: int, needed: int, why: str = "") -> None:
    if count < needed:
        raise Malformed(f"{count} clients are left for secure aggregation, {needed} are needed{why}")
