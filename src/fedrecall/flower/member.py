"""A node's half of secure aggregation: four answers a round, and the secrets it keeps between them.

They are in Flower's `Context.state`, which stays in the memory of the node's SuperNode. Whoever answers
forgets what it answered from, and after the last answer nothing is left. But an answer leaves before the
SuperNode has the state after it, and a process that is killed in between forgets nothing: so that nothing
is answered twice, a `mark` of what it is answered from is left on disk first.
"""

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from flwr.app import ConfigRecord, RecordDict

from fedrecall import files
from fedrecall.errors import Malformed
from fedrecall.flower import masks
from fedrecall.flower.masks import Vector
from fedrecall.flower.wire import (
    Call,
    Keys,
    Masked,
    MaskedTask,
    Members,
    Parcels,
    Revealed,
    Task,
    Unmasking,
)
from fedrecall.training import Visit

STATE = "secure aggregation"
"""The record of `Context.state`."""


class Keyed(NamedTuple):
    """Kept after the first answer."""

    run: str
    round: int
    sealing: bytes
    masking: bytes


class Bound(NamedTuple):
    """Kept after the second."""

    run: str
    round: int
    session: bytes
    sealing: bytes
    masking: bytes
    seed: bytes
    own_shares: bytes
    clients: list[int]
    sealing_keys: list[bytes]
    masking_keys: list[bytes]


class Holding(NamedTuple):
    """Kept after the third: shares of the secrets of everyone whose shares arrived, by number."""

    run: str
    round: int
    members: int
    """How many the secrets were shared among."""
    clients: list[int]
    parcels: list[bytes]


Stage = TypeVar("Stage", bound=tuple[Any, ...])


def _take(state: RecordDict, stage: type[Stage], run: str, round_number: int) -> Stage:
    """What was kept after the answer before, for the last time."""
    kept = dict(state.pop(STATE, {}))
    fields: tuple[str, ...] = stage._fields  # type: ignore[attr-defined]
    if set(kept) != set(fields) or (kept["run"], kept["round"]) != (run, round_number):
        raise Malformed(f"it is not at this step of secure aggregation in round {round_number}")
    return stage(**kept)


def _keep(state: RecordDict, stage: Any) -> None:
    state[STATE] = ConfigRecord(stage._asdict())


def mark(state: RecordDict) -> str:
    """What tells all that is kept from whatever was kept before, and nothing of the secrets in it."""
    kept = sorted(dict(state.get(STATE, {})).items())
    return files.checksum(repr(kept).encode())


def offer(state: RecordDict, call: Call) -> Keys:
    """First: make two key pairs for this round."""
    sealing, masking = masks.key_pair(), masks.key_pair()
    _keep(state, Keyed(call.run, call.round, sealing[0], masking[0]))
    return Keys(call.round, call.client, sealing[1], masking[1])


def share(state: RecordDict, asked: Members) -> Parcels:
    """Second: draw the own mask's seed; for each other member seal a share of it and of the masking key."""
    kept = _take(state, Keyed, asked.run, asked.round)
    _check_members(asked, kept)
    session = masks.bind(asked.run, asked.round, asked.clients, asked.sealing, asked.masking)
    seed, count = secrets.token_bytes(masks.SEED), len(asked.clients)
    of_seed, of_key = masks.shares(seed, count), masks.shares(kept.masking, count)
    parcels, own = [], b""
    for client, public, mine, other in zip(asked.clients, asked.sealing, of_seed, of_key, strict=True):
        if client == asked.client:
            own = mine + other
        else:
            parcels.append(masks.seal(mine + other, kept.sealing, public, session, asked.client, client))
    _keep(
        state,
        Bound(
            *(asked.run, asked.round, session, kept.sealing, kept.masking, seed, own),
            *(asked.clients, asked.sealing, asked.masking),
        ),
    )
    digests = [[masks.digest(s) for s in made] for made in (of_seed, of_key)]
    return Parcels(asked.round, asked.client, parcels, *digests)


def _check_members(asked: Members, kept: Keyed) -> None:
    clients, keys = asked.clients, [*asked.sealing, *asked.masking]
    if not len(clients) == len(asked.sealing) == len(asked.masking):
        raise Malformed("not every member has two public keys")
    if clients != sorted(set(clients)) or len(set(keys)) < len(keys):
        raise Malformed("members or their keys are there twice, or not in order")
    if len(clients) < masks.FEWEST:
        raise Malformed(
            f"{len(clients)} members are too few for secure aggregation: {masks.FEWEST} are needed"
        )
    own = (masks.public_of(kept.sealing), masks.public_of(kept.masking))
    if (asked.client, *own) not in zip(clients, asked.sealing, asked.masking, strict=True):
        raise Malformed("its own public keys are not among the members'")


def mask(
    state: RecordDict, task: Task, asked: MaskedTask, train: Callable[[], Visit]
) -> tuple[Masked, float]:
    """Third: if enough shares are there and right, train; the masked upload and loss, and the seconds."""
    kept = _take(state, Bound, task.run, task.round)
    holding = _opened(kept, task.client, asked)
    if not 0 < asked.share <= 1:
        raise Malformed(f"a share of {asked.share} in the mean is not between 0 and 1")
    done = train()
    loss = torch.tensor(done.loss, dtype=torch.float64)
    plain = Masked(masks.fixed(done.up, asked.share), masks.fixed(loss, 1 / len(holding.clients)))
    hidden = masks.shaped(plain, masks.flat(plain) + _mask(kept, task.client, asked, masks.count(plain)))
    _keep(state, holding)
    return hidden, done.seconds


def _opened(kept: Bound, client: int, asked: MaskedTask) -> Holding:
    if asked.others != sorted(set(asked.others) & set(kept.clients) - {client}):
        raise Malformed("shares come from others than the members, or not in order")
    if len(asked.parcels) != len(asked.others):
        raise Malformed(f"of {len(asked.others)} others there are {len(asked.parcels)} shares")
    if len(asked.others) + 1 < masks.present(len(kept.clients)):
        raise Malformed(f"of {len(kept.clients)} members only {len(asked.others) + 1} have sent shares")
    size = masks.parcel_size()
    parcels = {client: kept.own_shares}
    for other, sealed in zip(asked.others, asked.parcels, strict=True):
        public = kept.sealing_keys[kept.clients.index(other)]
        parcels[other] = masks.unseal(sealed, kept.sealing, public, kept.session, other, client)
        if len(parcels[other]) != size:
            raise Malformed(f"client {other}'s shares are {len(parcels[other])} bytes long, not {size}")
    clients = sorted(parcels)
    return Holding(kept.run, kept.round, len(kept.clients), clients, [parcels[c] for c in clients])


def _mask(kept: Bound, client: int, asked: MaskedTask, count: int) -> Vector:
    total = masks.own_mask(kept.seed, kept.session, client, count)
    for other in asked.others:
        public = kept.masking_keys[kept.clients.index(other)]
        total += masks.pair_mask(kept.masking, public, kept.session, client, other, count)
    return total


def reveal(state: RecordDict, asked: Unmasking) -> Revealed:
    """Last: of everyone present the share of the seed, of everyone else that of the key; never both."""
    kept = _take(state, Holding, asked.run, asked.round)
    if asked.present != sorted(set(asked.present) & set(kept.clients)) or asked.client not in asked.present:
        raise Malformed("those present are not members in order, itself among them")
    if len(asked.present) < masks.present(kept.members):
        raise Malformed(f"of {kept.members} members only {len(asked.present)} are present")
    cut = masks.share_size(masks.SEED)
    shares = [
        parcel[:cut] if client in asked.present else parcel[cut:]
        for client, parcel in zip(kept.clients, kept.parcels, strict=True)
    ]
    return Revealed(asked.round, asked.client, shares)
