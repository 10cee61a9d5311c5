"""One round: sample clients, walk the grid of chains and links, aggregate. The only loop over clients."""

import math
import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedrecall import contracts, global_draws, streams, trees
from fedrecall.algorithms.fedavg import FedAvg, keeps_own, packs, wraps
from fedrecall.algorithms.hooks import Cohort
from fedrecall.backends.backend import Backend, Job
from fedrecall.data.client import ClientData
from fedrecall.downloads import travelled
from fedrecall.errors import Diverged, Malformed, UserError
from fedrecall.memories import Memories
from fedrecall.models.model import Model, Weights
from fedrecall.training import Failure, Visit


class Round(NamedTuple):
    """What came of a round."""

    server: Any
    """The server's state after it; the old one if every client failed."""
    chains: list[list[int]]
    """Who was asked, chain by chain."""
    visits: list[Visit]
    """What each of them did, chain by chain and link by link."""
    bytes_down: int
    """Bytes the server and, in chains, other clients sent to clients."""
    bytes_up: int
    memories: list[Any]
    """What each of them remembered before, if it trains another model than what it is sent; else nothing."""
    sent: list[Weights]
    """The model that arrived at each of them."""


def sample(population: int, count: int, seed: int | None, round_number: int) -> list[int]:
    """``count`` different clients, in random order; without a seed nobody can tell which."""
    if seed is None:
        return secrets.SystemRandom().sample(range(population), count)
    stream = streams.numpy_stream(seed, "sample", round_number)
    return [int(k) for k in stream.choice(population, count, replace=False)]


def drawn(
    algorithm: FedAvg,
    server: Any,
    *,
    population: int,
    count: int,
    seed: int | None,
    global_seed: int | None,
    round_number: int,
) -> list[int]:
    """Who takes part in a round: whom the algorithm invites, if it does, or a random draw."""
    with drawing(seed, round_number, "invite"), contracts.untouched(server, "invite", "the server's state"):
        invited = algorithm.invite(server, population, count, round_number)
    if invited is not None:
        return contracts.invited(invited, population, count)
    if global_seed is not None:
        return global_draws.clients(population, count, round_number)
    return sample(population, count, seed, round_number)


def drawing(seed: int | None, round_number: int, hook: str, *place: int) -> AbstractContextManager[None]:
    """What a hook of the server's may draw from the shared streams; without a seed nobody can tell what."""
    return streams.seeded(seed, "hooks", round_number, hook, *place)


T = TypeVar("T")
Dialogue = Generator[Sequence[Job], Iterable[Visit], T]
"""Asks for visits, is sent them in the order of the jobs, and asks again; returns a T in the end."""


def drive(dialogue: Dialogue[T], answer: Callable[[Sequence[Job]], Iterable[Visit]]) -> T:
    """Answer a dialogue to its end."""
    try:
        jobs = next(dialogue)
        while True:
            try:
                made = answer(jobs)
            except Exception as error:
                jobs = dialogue.throw(error)  # where it was asked for
            else:
                jobs = dialogue.send(made)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def play(
    algorithm: FedAvg,
    model: Model,
    server: Any,
    memories: Memories,
    backend: Backend,
    auxiliary: ClientData | None,
    *,
    population: int,
    sampled: Sequence[int],
    chain_count: int,
    round_number: int,
) -> Round:
    """Play one round on a backend."""
    asking = walk(
        algorithm,
        model,
        server,
        memories,
        auxiliary,
        population=population,
        sampled=sampled,
        chain_count=chain_count,
        round_number=round_number,
    )
    return drive(asking, backend.map)


def walk(
    algorithm: FedAvg,
    model: Model,
    server: Any,
    memories: Memories,
    auxiliary: ClientData | None,
    *,
    population: int,
    sampled: Sequence[int],
    chain_count: int,
    round_number: int,
    seed: int | None = None,
) -> Dialogue[Round]:
    """One round with these clients in ``chain_count`` chains of nearly equal length.

    It asks for the visits of one link at a time, whoever makes them. ``seed``: of what the server's hooks
    may draw from the shared streams; without one nobody can tell what they draw.
    """
    chance = partial(drawing, seed, round_number)
    with chance("arrange"):
        order = contracts.order(algorithm.arrange(list(sampled), round_number), sampled)
    chains = [[int(k) for k in part] for part in np.array_split(order, chain_count)]
    labels = None if auxiliary is None else {"y": auxiliary.y}
    owned = contracts.untouched(server, "broadcast", "the server's state")
    with chance("broadcast"), owned, contracts.untouched(labels, "broadcast", "the server's examples"):
        down = trees.without_graph(algorithm.broadcast(model, server, auxiliary))
    contracts.weighted(down, "broadcast", "what travels down")
    contracts.carries(down, "broadcast", "what travels down")
    contracts.full(down.weights, server.weights, "broadcast", "what travels down")
    with chance("wrap", 0, 0) if wraps(algorithm) else nullcontext():
        given = [travelled(algorithm, model, down)] * len(chains)
    visits: list[list[Visit]] = [[] for _ in chains]
    packed: list[Any] = []
    before: list[list[Any]] = [[] for _ in chains]
    arrived: list[list[Weights]] = [[] for _ in chains]
    bytes_down = bytes_up = 0
    for link in range(max(map(len, chains))):
        jobs = []
        for g, chain in enumerate(chains):
            if link < len(chain):
                memory = memories.get(client := chain[link])
                sent, down = given[g]
                jobs.append(Job(g, client, round_number, down, memory, sent))
                bytes_down += trees.size_in_bytes(sent)
        for job, made in zip(jobs, (yield jobs), strict=True):
            with chance("unpack", job.chain, link) if packs(algorithm) else nullcontext():
                visit = received(algorithm, model, made, job)
            if visit.failure is None and link + 1 < len(chains[job.chain]):
                with chance("relay", job.chain, link):
                    down = _relayed(algorithm, job.down, visit.up)
                try:
                    with chance("wrap", job.chain, link + 1) if wraps(algorithm) else nullcontext():
                        given[job.chain] = travelled(algorithm, model, down)
                except Diverged as error:
                    visit = _lost(visit, job, f"its upload cannot be passed on: {error}")
            visits[job.chain].append(visit)
            arrived[job.chain].append(job.down.weights)
            before[job.chain] += [job.memory] if keeps_own(algorithm) else []
            if visit.failure is None:
                bytes_up += trees.size_in_bytes(made.up)
                packed += [made.up] if packs(algorithm) else []
                memories.put(visit.client, visit.memory)
    if packed:
        contracts.one_form(packed)
    with chance("aggregate"):
        server = combine(algorithm, server, visits, population)
    if any(visit.failure is None for row in visits for visit in row):
        owned = contracts.untouched(server, "refine", "the server's state")
        with chance("refine"), owned, contracts.untouched(labels, "refine", "the server's examples"):
            server = _state(algorithm.refine(model, server, auxiliary), server, "refine")
    return Round(
        server, chains, _row(visits), bytes_down, bytes_up, memories=_row(before), sent=_row(arrived)
    )


def _row(rows: Iterable[Iterable[T]]) -> list[T]:
    return [one for row in rows for one in row]


def _relayed(algorithm: FedAvg, down: Any, up: Any) -> Any:
    """What the next client of a chain is given."""
    with contracts.untouched({"down": down, "up": up}, "relay", "what it is given"):
        made = trees.without_graph(algorithm.relay(down, up))
    contracts.weighted(made, "relay", "what travels down")
    contracts.alike(made, down, "relay", "what travels down", "broadcast")
    contracts.full(made.weights, down.weights, "relay", "what travels down")
    return made


def received(algorithm: FedAvg, model: Model, visit: Visit, job: Job) -> Visit:
    """The visit with the upload that its client's stands for; it failed if that stands for none.

    Frozen parameters are those that were sent, whatever came of them on the way.
    """
    if visit.failure is not None:
        return visit
    contracts.carries(visit.up, "finish", "an upload")
    up = visit.up
    if packs(algorithm):
        try:
            up = _unpacked(algorithm, visit.up, job.down)
        except _OF_CODE:
            raise
        except Exception as error:  # another host may send any numbers, sizes among them
            reason = f"`unpack` makes nothing of its upload ({type(error).__name__}: {error})"
            return _lost(visit, job, reason)
    else:
        contracts.weighted(up, "finish", "what the client sends")
        contracts.full(up.weights, job.down.weights, "finish", "an upload")
    if model.constants:
        sent, weights = job.down.weights.buffers, up.weights
        buffers = {n: sent[n] if n in model.constants else b for n, b in weights.buffers.items()}
        up = up._replace(weights=weights._replace(buffers=buffers))
    return visit._replace(up=up)


def _lost(visit: Visit, job: Job, reason: str) -> Visit:
    """The visit as one that failed where its upload arrived."""
    failure = Failure(visit.client, job.round, None, reason)
    return visit._replace(up=None, memory=job.memory, loss=math.nan, failure=failure)


def _unpacked(algorithm: FedAvg, sent: Any, down: Any) -> Any:
    """What an upload stands for, or Malformed if that is none of this model's or no number."""
    with contracts.untouched({"up": sent, "down": down}, "unpack", "what it is given"):
        up = trees.without_graph(algorithm.unpack(sent, down))
    contracts.carries(up, "unpack", "an upload")
    contracts.weighted(up, "unpack", "what the client sends")
    try:
        contracts.full(up.weights, down.weights, "unpack", "an upload")
    except UserError as error:
        raise Malformed(str(error)) from error
    if not trees.finite(up):
        raise Malformed("it holds NaN or Inf")
    return up


_OF_CODE = (UserError, NameError, AttributeError, TypeError, ImportError, NotImplementedError)
"""What is wrong with an algorithm whatever arrives."""


def combine(algorithm: FedAvg, server: Any, visits: Sequence[Sequence[Visit]], population: int) -> Any:
    """Aggregate what arrived; the server's state stays as it was if nothing did.

    Each upload may be sound and what they make not be: a division by zero steps, sums that overflow.
    """
    kept: list[tuple[int, int, Visit, float]] = []  # chain, link, visit, examples that it stands for
    for g, chain in enumerate(visits):
        good = [(link, v) for link, v in enumerate(chain) if v.failure is None]
        examples = float(sum(v.examples for _, v in good))
        for link, v in good if algorithm.every_link else good[-1:]:
            kept.append((g, link, v, examples if (link, v) == good[-1] else 0.0))
    if not kept:
        return server
    total = sum(examples for *_, examples in kept)
    cohort = Cohort(
        clients=[v.client for _, _, v, _ in kept],
        shares=[examples / total for *_, examples in kept],
        population=population,
        sampled=sum(map(len, visits)),
        chain=[g for g, *_ in kept],
        link=[link for _, link, *_ in kept],
    )
    ups = [v.up for _, _, v, _ in kept]
    contracts.one_form(ups)
    stacked = trees.stack(ups, copy=False)  # which may be the uploads themselves
    given = contracts.untouched(server, "aggregate", "the server's state")
    with given, contracts.untouched(stacked, "aggregate", "the uploads"):
        return _state(algorithm.aggregate(server, stacked, cohort), server, "aggregate")


def _state(made: Any, before: Any, hook: str) -> Any:
    """The server's state that a hook makes of the one before."""
    if made is before:
        return made
    made = trees.without_graph(made)
    contracts.weighted(made, hook, "the server's state")
    if not trees.finite(made):
        source = "the round's uploads make" if hook == "aggregate" else f"`{hook}` makes of them"
        raise Diverged(f"what {source} holds NaN or Inf.")
    contracts.alike(made, before, hook, "the server's state", "start")
    contracts.full(made.weights, before.weights, hook, "the server's state")
    return made
