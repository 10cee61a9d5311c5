"""The nodes as the server sees them: who is there, and a backend that asks them for visits."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedrecall import config as configs
from fedrecall import files, payloads, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import keeps_own
from fedrecall.backends.backend import Job
from fedrecall.config import Config
from fedrecall.data.store import channels, fixed_statistics, pixels
from fedrecall.errors import Malformed, Refused, UserError
from fedrecall.flower import code as codes
from fedrecall.flower import sums, wire
from fedrecall.flower.hosting import Hosting
from fedrecall.flower.node import ELSEWHERE, say_nothing
from fedrecall.flower.replies import Replies
from fedrecall.flower.secure import Round
from fedrecall.flower.wire import Announcement, Data, Question, Report, Task, Tested
from fedrecall.measures.accuracy import Evaluation
from fedrecall.models.model import Weights
from fedrecall.models.trained import LARGEST
from fedrecall.training import Failure, Visit

log = logging.getLogger("flwr")
T = TypeVar("T")
PROGRESS = 10.0
"""Seconds between lines that say who is waited for."""
AGAIN = 30.0
"""Seconds after which a node that is left out is asked anew: it may have been mended."""
LEISURE = 4.0
"""Times as long as was asked in vain for replies one waits before asking again: others ask it, too."""
INTRODUCTION = 60.0
"""Seconds that a node which comes later has to say who it is."""
RETURN = 60.0
"""Seconds that a question outlives its time: one that was lost is asked again then."""
BELATED = 3600.0
"""Seconds that a task does: a reply that is later is refused, one that nobody took until then stays."""
MOST_EXAMPLES = 10**9
"""Of one node: more cannot be true, and would outweigh everybody else's."""
MOST_DIMENSIONS = 8
"""Of an example."""
PIXELS, NUMBERS = (1e-12, 1.001), (0.0, 1e30)
"""Smallest deviation, and largest mean and deviation: of a channel of pixels, which are from 0 to 1, and of
any other numbers. Of a channel that never varies a deviation of 1 is said, of other numbers 0."""


class Receipt(NamedTuple):
    """What the server remembers of a client whose memory stays at the node."""

    round: Tensor
    """The round of the last visit whose upload arrived; the node has the memory under this number."""


class LeftOut(Refused):
    """Why a node is not used, which client it says it is, and when it said so."""

    def __init__(self, reason: str, client: int):
        super().__init__(reason)
        self.client, self.when = client, time.monotonic()


class Facts(NamedTuple):
    """What the federation agreed on."""

    shape: tuple[int, ...]
    data: Data
    columns: tuple[str, ...] | None = None
    """What a table's columns are called; None: runs of earlier versions did not note it."""
    floats: bool = False
    """Whether examples are any numbers, not pixels; earlier versions did not note it, of tables either."""

    @property
    def pixels(self) -> bool:
        """Whether examples are an image's pixels."""
        return pixels(self.shape, self.floats)


class Nodes:
    """A map from client numbers to nodes, and the backend over it.

    Flower gives a SuperNode an id of its own; which client it is, is asked of it and remembered
    for as long as it is online.
    """

    def __init__(self, grid: Grid, config: Config, hosting: Hosting, before: Facts | None):
        """``before``: what was agreed on when the run began, if it goes on; it holds whoever is here now."""
        self.grid, self.config, self.hosting, self.run = grid, config, hosting, ""
        self.before = before
        self.start = 1
        """Which start of the run this is: of two the later one's is greater."""
        self.checkpoints: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """The rounds of the two checkpoints that the run may go back to, the older one first."""
        self.folder: Path | None = None
        """The run's, if it has one."""
        self.facts: Facts | None = None
        self.up: Any = None
        """The template of uploads, once there is a model."""
        self._json = wire.as_json(_for_nodes(config))
        self._code = wire.as_json(codes.own(config))
        self._own_models = keeps_own(ALGORITHMS.make(config.algorithm))
        self._examples: dict[int, int] = {}
        """Of each client, as the node that is the client's has said."""
        self._testers: set[int] = set()
        """Clients that have said that they have test examples."""
        self._known: dict[int, Announcement] = {}
        """By node id; several nodes may say the same number."""
        self.been: dict[int, list[int]] = {}
        """Of each client the nodes that have been it in this run; who was it first is preferred."""
        self.met: Callable[[], None] = lambda: None
        """What is done where ``been`` has grown."""
        self._last: dict[int, int] = {}
        """Of each client the node that is it, or was until it left."""
        self._doubted: set[int] = set()
        """Of those known, nodes whose last reply was no good: they may be others by now, and are asked."""
        self._asked = Replies(grid)
        """What is said of the questions who one is."""
        self._late: set[int] = set()
        """Of those asked, nodes that nobody waits for any more; an answer still counts."""
        self._left_out: dict[int, LeftOut] = {}
        """By node id."""
        self._unwanted = Replies(grid, requests=1)
        """Those to tasks that were given up, which stay with the SuperLink until somebody takes them."""

    @property
    def examples(self) -> list[int] | None:
        """How many training examples each client has; None while one of them has not said it."""
        every = range(self.config.clients)
        return [self._examples[c] for c in every] if self._examples.keys() >= set(every) else None

    @property
    def untested(self) -> bool:
        """Whether every client is known, and none has test examples."""
        return self.examples is not None and not self._testers

    # Who is there.

    def gather(self) -> Facts:
        """Wait until every client is there, or until the deadline for as many as are needed."""
        hosting, needed = self.hosting, self.config.clients
        deadline, told = time.monotonic() + hosting.wait, 0.0
        for last in self._looks(deadline, self._asked):
            self._look()
            here, double = self._clients(), self._doubles()
            if len(here) == needed and not double:
                break
            if last:
                if double:
                    raise UserError(f"{double[0]}: give every SuperNode its own client number.")
                if len(here) >= max(hosting.min_clients, 1):
                    log.warning("%d of %d clients are here; going on without the others.", len(here), needed)
                    break
                raise UserError(self._missing(here.keys()))
            if (now := time.monotonic()) - told > PROGRESS:
                told = now
                log.info(
                    "waiting for clients: %d of %d are here, %.0f s left%s",
                    len(here),
                    needed,
                    deadline - now,
                    "".join(f"; {d}" for d in double),
                )
        return self._agree([self._known[node] for _, node in sorted(here.items())])

    def _missing(self, here: Set[int]) -> str:
        """Who is not here at the deadline, and what would do about it."""
        missing = sorted(set(range(self.config.clients)) - here)
        start = "start their SuperNodes, wait longer"
        if self._left_out:
            shown = [f"{_called(node, why.client)} ({why})" for node, why in self._left_out.items()]
            start = f"mend what keeps these from taking part: {_some(shown)}; start the SuperNodes of others"
        return (
            f"after {self.hosting.wait:g} s {len(here)} of {self.config.clients} clients are here, missing "
            f"{_some(missing)}; {start}, or lower min_clients."
        )

    def _online(self) -> set[int]:
        """Who is there; those who left are forgotten."""
        online = set(self.grid.get_node_ids())
        self._known = {node: a for node, a in self._known.items() if node in online}
        self._asked.waiting = {i: node for i, node in self._asked.waiting.items() if node in online}
        self._left_out = {node: why for node, why in self._left_out.items() if node in online}
        self._late &= online
        self._doubted &= online
        return online

    def _look(self) -> None:
        """Ask new nodes who they are, hear those who were asked, forget those who left."""
        new = self._online() - (self._known.keys() - self._doubted) - set(self._asked.waiting.values())
        now = time.monotonic()
        new -= {node for node, why in self._left_out.items() if now - why.when < AGAIN}
        if new:
            content = wire.pack(Question(self._json, self._code))
            for identity, node in self._push(dict.fromkeys(new, content), "query", 0, RETURN):
                self._asked.waiting[identity] = node
                self._doubted.discard(node)
            self._late |= new & self._left_out.keys()  # whose answer may be as before
        here = self._clients()
        for node, reply in self._asked.arrived():
            late = node in self._late
            self._late.discard(node)
            try:
                said = self._announcement(reply)
            except ValueError as error:
                if late and not isinstance(reply, Malformed) and reply.has_error():
                    continue  # the question has expired: it is asked once more
                self._leave_out(node, error)
                continue
            self._left_out.pop(node, None)
            first = here.setdefault(said.client, node)
            self._known[node] = said
            if self._preferred(said.client, first, node) != node and self.facts is not None:
                log.warning(
                    "node %d says it is client %d, which node %d is: it is left out for as long as that one "
                    "is online",
                    *(node, said.client, first),
                )
        grown = False
        for client, node in self._clients().items():
            been = self.been.setdefault(client, [])
            before = node if node in been or not been else been[-1]
            if (last := self._last.get(client, before)) != node:
                log.error(
                    "client %d is now node %d, and was node %d: with registered keys, by which nodes keep "
                    "their ids, this is another one; without keys it may have been started again",
                    *(client, node, last),
                )
            if node not in been:
                been.append(node)
                grown = True
            self._last[client] = node
            said = self._known[node]
            self._examples[client] = said.examples
            (self._testers.add if said.test_examples else self._testers.discard)(client)
        if grown:
            self.met()

    def _leave_out(self, node: int, error: ValueError) -> None:
        reason = wire.tidy(str(error))
        self._known.pop(node, None)
        if str(self._left_out.get(node)) != reason:  # said once, however often it is asked
            log.error("node %d is left out: %s", node, reason)
        self._left_out[node] = LeftOut(reason, getattr(error, "client", wire.UNKNOWN))

    def _meet(self, clients: Set[int]) -> None:
        """See who is there, and wait for the answers of those who may be one of these clients come back."""
        deadline = time.monotonic() + min(self.hosting.timeout, INTRODUCTION)
        for last in self._looks(deadline, self._asked):
            self._look()
            silent = self._awaited(clients)
            if not silent:
                break
            if last:
                log.error("nodes %s do not say who they are; going on until they do", _some(sorted(silent)))
                self._late |= silent

    def _awaited(self, clients: Set[int]) -> set[int]:
        silent = set(self._asked.waiting.values()) - self._late
        return silent if clients - self._clients().keys() else silent & self._known.keys()

    def _absence(self) -> Callable[[int], str]:
        """Why there is nothing of a client that is not among those who are here."""
        reasons = {why.client: f"its node is left out: {why}" for why in self._left_out.values()}
        nowhere = "its node is not connected"
        if wire.UNKNOWN in reasons:
            nowhere += ", or is one that is left out and does not say which client it is"
        return lambda client: reasons.get(client, nowhere)

    def _announcement(self, reply: Message | Malformed) -> Announcement:
        content = _content(reply)
        try:
            codes.check_node(content)
            said, arrays = wire.unpack(content, Announcement, "what it says of itself")
            if arrays:
                raise Malformed("what it says of itself has undeclared arrays")
            self._check(said)
        except (UserError, Malformed) as error:
            raise LeftOut(str(error), wire.said(content, "client", wire.UNKNOWN)) from error
        return said

    def _check(self, said: Announcement) -> None:
        """Raise Malformed if what a node says of itself cannot be, or is not what the others have said."""
        if not 0 <= said.client < self.config.clients:
            raise Malformed(
                f"it says it is client {said.client}, and there are {self.config.clients}, from 0 on"
            )
        if not 1 <= said.examples <= MOST_EXAMPLES or not 0 <= said.test_examples <= MOST_EXAMPLES:
            raise Malformed(
                f"client {said.client} says it has {said.examples} examples, {said.test_examples} to test on"
            )
        if (
            not 1 <= len(said.shape) <= MOST_DIMENSIONS
            or min(said.shape) < 1
            or math.prod(said.shape) > LARGEST
            or not said.classes
            or len(set(said.classes)) < len(said.classes)
        ):
            raise Malformed(f"client {said.client} says that its examples are {said.shape} of {said.classes}")
        counts = channels(said.shape, said.floats) if self.config.normalisation == "data" else (0,)
        if not len(said.mean) == len(said.std) in counts:
            raise Malformed(
                f"client {said.client} gives {len(said.mean)} channel means and {len(said.std)} deviations, "
                f"not {' or '.join(map(str, counts))}"
            )
        if not _plausible(said.pixels, said.mean, said.std):
            raise Malformed(
                f"client {said.client} gives channel means {_some(said.mean)} and deviations "
                f"{_some(said.std)}, which its examples cannot have"
            )
        most = said.shape[0] if len(said.shape) == 1 else 0
        if len(said.columns) not in {0, most} or len(set(said.columns)) < len(said.columns):
            raise Malformed(f"client {said.client} calls columns of {said.shape} {_some(said.columns)}")
        if self.facts is not None and self._scaled_alone(said):
            raise Malformed(
                f"client {said.client} has standardised its table by its own rows, which normalisation = "
                f"{self.config.normalisation!r} is to avoid: read its files with standardise=false"
            )
        known = None if self.facts is None else self.facts.columns
        if known is not None and said.columns != list(known):
            mine, others = _some(said.columns), _some(list(known))
            raise Malformed(f"client {said.client} has the columns [{mine}], others have [{others}]")
        names = said.classes if self.facts is None else self.facts.data.classes
        if unknown := [name for name in said.classes if name not in names]:
            raise Malformed(
                f"client {said.client} has the class {_some(unknown[:1])}, the run has {_some(names)}"
            )
        if self.facts is not None and tuple(said.shape) != self.facts.shape:
            raise Malformed(
                f"client {said.client} has examples of {said.shape}, others of {self.facts.shape}"
            )
        if self.facts is not None and said.pixels != self.facts.pixels:
            raise Malformed(f"client {said.client} has {_kind(said)}, others have {_kind(self.facts)}")

    def _clients(self) -> dict[int, int]:
        """Node of each client; of several that say the same number the one that was it first."""
        here: dict[int, int] = {}
        for node, said in self._known.items():
            here[said.client] = self._preferred(said.client, here.get(said.client, node), node)
        return here

    def _preferred(self, client: int, here: int, other: int) -> int:
        """Which of two nodes that say this number is the client: the one that was it first in the run."""
        return next((node for node in self.been.get(client, ()) if node in (here, other)), here)

    def _doubles(self) -> list[str]:
        found: dict[int, list[int]] = {}
        for node, said in self._known.items():
            found.setdefault(said.client, []).append(node)
        return [
            f"nodes {' and '.join(map(str, nodes))} both say they are client {client}"
            for client, nodes in sorted(found.items())
            if len(nodes) > 1
        ]

    def _scaled_alone(self, said: Announcement) -> bool:
        """Whether its examples would be other numbers than the same rows are at the other nodes."""
        return said.standardised and self.config.normalisation != "data"

    def _agree(self, said: Sequence[Announcement]) -> Facts:
        first = said[0]
        names = list(self.hosting.class_names) or first.classes
        if scaled := next((a for a in said if self._scaled_alone(a)), None):
            raise UserError(
                f"client {scaled.client} has standardised its table by its own rows, and with normalisation "
                f"= {self.config.normalisation!r} nobody who uses the model could know by what: read the "
                "files with standardise=false at every node."
            )
        for other in said:
            if other.shape != first.shape:
                raise UserError(
                    f"clients {first.client} and {other.client} have examples of different shapes, "
                    f"{first.shape} and {other.shape}."
                )
            if other.pixels != first.pixels or len(other.mean) != len(first.mean):
                raise UserError(
                    f"client {first.client} has {_kind(first)} with {len(first.mean)} means, client "
                    f"{other.client} {_kind(other)} with {len(other.mean)}: let all nodes read theirs alike."
                )
            if not self.hosting.class_names and other.classes != names:
                raise UserError(
                    f"clients {first.client} and {other.client} name different classes, {_some(names)} and "
                    f"{_some(other.classes)}: give class_names, all of them in one order."
                )
            if unknown := [name for name in other.classes if name not in names]:
                raise UserError(
                    f"client {other.client} has the class {_some(unknown[:1])}, which class_names lacks: "
                    f"{_some(names)}. Name all classes of all nodes, as they are written there."
                )
            if other.columns != first.columns:
                raise UserError(
                    f"clients {first.client} and {other.client} have different columns, or in another order: "
                    f"[{_some(first.columns)}] and [{_some(other.columns)}]."
                )
            if other.standardised != first.standardised:
                raise UserError(
                    f"of clients {first.client} and {other.client} one has read its table with "
                    "standardise=false, and one has not: give all nodes' data the same."
                )
        if len(names) < 2:
            raise UserError(f"all clients have only the class {_some(names)}; at least two are needed.")
        if self.before is not None:
            self.facts = self.before
            shape, data, columns, _ = self.before
            if (tuple(first.shape), first.pixels) != (shape, self.before.pixels):
                raise UserError(
                    f"the run was begun with {_kind(self.before)} of {list(shape)}, the nodes now have "
                    f"{_kind(first)} of {first.shape}: bring the data back, or begin the run anew."
                )
            if columns not in (None, tuple(first.columns)):
                raise UserError(
                    f"the run was begun with the columns {_some(list(columns or ()))}, and they are now "
                    f"{_some(first.columns)}: bring them back, or begin the run anew."
                )
            if names != data.classes:
                raise UserError(
                    f"the run was begun with classes {_some(data.classes)}, and they are now {_some(names)}: "
                    "give class_names as they were, or begin the run anew."
                )
            return self.facts
        if self.config.normalisation == "data":
            mean, std = _pooled(said)
            if not _plausible(first.pixels, mean, std):
                raise UserError(
                    f"the channel means {_some(mean)} and deviations {_some(std)} of all clients together "
                    "are not those of any examples."
                )
        else:
            mapped = self.config.normalisation == "fixed"
            mean, std = (t.tolist() for t in fixed_statistics(first.shape, mapped, first.floats))
        agreed = Data(names, mean, std)
        self.facts = Facts(tuple(first.shape), agreed, tuple(first.columns), first.floats)
        return self.facts

    # What they are asked.

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs; who does not answer in time, or not well, has failed."""
        if not jobs:
            return
        self._meet({job.client for job in jobs})
        tasks = self._tasks(jobs[0].round, {job.client: _remembered(job.memory) for job in jobs})
        downs = _packed(jobs)
        if self.hosting.secure == "off":
            yield from self._visits(jobs, tasks, downs)
        else:
            yield from self._masked_visits(jobs, tasks, downs)

    def _visits(
        self, jobs: Sequence[Job], tasks: Mapping[int, Task], downs: Mapping[int, ArrayRecord]
    ) -> Iterator[Visit]:
        number = jobs[0].round
        asked = {client: wire.pack(task, downs[client]) for client, task in tasks.items()}
        answers = self._ask(asked, "train", partial(self._upload, number), round_number=number)
        for job in jobs:
            answer = answers[job.client]
            if isinstance(answer, ValueError):
                yield _failed(job, str(answer))
            else:
                report, up = answer
                yield _done(job, report.examples, up, report.loss, report.seconds)

    def _upload(self, number: int, client: int, content: RecordDict) -> tuple[Report, Any]:
        report, arrays = wire.unpack(content, Report, "its reply")
        if report.client != client or report.round != number:
            raise Malformed(f"its reply is of client {report.client}, round {report.round}")
        if report.examples != (said := self._examples[client]):
            raise Malformed(f"it says it trained on {report.examples} examples, and before it said {said}")
        wire.check_seconds(report.seconds)
        return report, payloads.check(arrays, self.up, "its reply")

    def _masked_visits(
        self, jobs: Sequence[Job], tasks: Mapping[int, Task], downs: Mapping[int, ArrayRecord]
    ) -> Iterator[Visit]:
        """With secure aggregation: every client that took part is said to have sent the mean."""
        number = jobs[0].round
        before = None if self.folder is None else sums.noted(self.folder, number)
        settle = partial(self._settle, number)
        secure = Round(partial(self._ask, round_number=number), self.run, number, self.up, settle)
        if before is not None:  # the round is played again, and no node helps to sum it over others
            tasks = {client: task for client, task in tasks.items() if client in before}
        mean, reason = None, "the round was summed without it before, and is played again as it was"
        try:
            mean = secure.play(tasks, downs, self._weight)
        except Malformed as error:
            reason = str(error)
            for client, why in sorted(secure.failures.items()):  # the run may end before they are recorded
                log.warning("client %d, round %d: %s", client, number, why)
            if self._corrected(secure, before is not None, {job.client for job in jobs}):
                yield from self._masked_visits(jobs, tasks, downs)
                return
        for job in jobs:
            if mean is None or job.client not in mean.seconds:
                yield _failed(job, secure.failures.get(job.client, reason))
            else:
                yield _done(job, self._weight(job.client), mean.up, mean.loss, mean.seconds[job.client])

    def _settle(self, number: int, clients: list[int]) -> None:
        """Note over whom a round is summed before a node does: else the two would not mean the same."""
        if self.folder is not None:
            with files.writing(self.folder):
                sums.settle(self.folder, number, clients)

    def _corrected(self, secure: Round, noted: bool, clients: Set[int]) -> bool:
        """Note what nodes know better than a folder that lost its notes; whether to play it so at once.

        That is if all over whom they have summed it were here, and others were: it is over fewer each time.
        """
        other = secure.other_sum(clients)
        if self.folder is None or (other is None and (noted or not secure.refused)):
            return False
        with files.writing(self.folder):
            sums.correct(self.folder, secure.number, other)
        if other is None:
            return False
        log.warning("nodes have summed round %d over the clients %s before", secure.number, _some(other))
        return set(other) < secure.arrived.keys()

    def _weight(self, client: int) -> int:
        return 1 if self.hosting.secure == "equal" else self._examples[client]

    def evaluate(
        self, weights: Weights, round_number: int, memory: Callable[[int], Any] = lambda client: None
    ) -> Evaluation:
        """The model on the test examples of every node that has some and is there, which may be none.

        ``memory``: what the server has of a client's, which says what the client's own model is.
        """
        assert self.facts is not None
        self._meet(self._testers)
        asked = sorted(self._testers)
        packed = wire.pack_arrays(weights)
        tasks = self._tasks(round_number, {client: _remembered(memory(client)) for client in asked})
        contents = {client: wire.pack(task, packed) for client, task in tasks.items()}
        count = len(self.facts.data.classes)
        said = {client: self._known[node].test_examples for client, node in self._clients().items()}
        read = partial(self._tested, round_number, said)
        losses, missing, by_client, own = [], [], {}, {}
        for client, tested in self._ask(contents, "evaluate", read, round_number=round_number).items():
            if isinstance(tested, ValueError):
                missing.append(f"client {client}, evaluation of round {round_number}: {tested}")
                log.warning("%s", missing[-1])
                continue
            counts = np.array(tested.confusion, np.int64).reshape(count, count)
            by_client[client] = counts
            if tested.own:
                own[client] = np.array(tested.own, np.int64).reshape(count, count)
            elif self._own_models:
                log.warning(
                    "client %d, evaluation of round %d: it does not evaluate its own model, its own log says "
                    "why",
                    *(client, round_number),
                )
            losses.append((tested.loss if tested.finite else math.nan, counts.sum()))
        nothing = np.zeros((count, count), np.int64)
        confusion = sum(by_client.values(), nothing)
        if not confusion.any():
            missing.append(
                f"nobody evaluated the model of round {round_number}: no node that answered has test examples"
            )
            log.warning("%s", missing[-1])
        total = confusion.sum()
        loss = float(sum(loss * (tested / total) for loss, tested in losses))
        told = (by_client, own or None) if self.hosting.secure == "off" else (None, None)  # one's is not kept
        down = trees.size_in_bytes(weights) * len(said.keys() & contents.keys())
        up = sum(c.nbytes for c in (*by_client.values(), *own.values())) + np.float64().nbytes * len(losses)
        pooled = sum(own.values(), nothing) if own else None
        return Evaluation(confusion, loss, missing, None, told[0], (down, up), pooled, told[1])

    def _tested(self, round_number: int, said: Mapping[int, int], client: int, content: RecordDict) -> Tested:
        """The counts, if they are of as many test examples as the client has said it has."""
        assert self.facts is not None
        classes = len(self.facts.data.classes)
        tested, arrays = wire.unpack(content, Tested, "its reply")
        if arrays:
            raise Malformed("its reply has undeclared arrays")
        if (tested.client, tested.round) != (client, round_number):
            raise Malformed(f"its reply is of client {tested.client}, round {tested.round}")
        if tested.own and not self._own_models:
            raise Malformed("its reply counts what its own model predicts, and clients have none")
        for counts in (tested.confusion, *([tested.own] if tested.own else [])):
            if len(counts) != classes**2 or min(counts) < 0:
                raise Malformed(f"its reply does not hold {classes} x {classes} counts")
            if sum(counts) != (count := said.get(client)):
                raise Malformed(f"its reply counts {sum(counts)} examples, and it said it has {count}")
        if tested.loss < 0:
            raise Malformed(f"its reply has a loss of {tested.loss:g}, which cannot be less than 0")
        return tested

    def _tasks(self, round_number: int, remembered: Mapping[int, int]) -> dict[int, Task]:
        """What each client is asked, by the round of the memory that it is to start from."""
        assert self.facts is not None
        keep, saved = self.checkpoints()
        data, here = wire.as_json(self.facts.data), self._clients()
        announced = {
            client: wire.digest(self._known[here[client]]) for client in remembered if client in here
        }
        return {
            client: Task(
                *(self._json, data, self.run, round_number, client),
                *(last, keep, self._code, announced.get(client, ""), self.start),
                saved=saved,
            )
            for client, last in remembered.items()
        }

    def _ask(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        read: Callable[[int, RecordDict], T],
        *,
        round_number: int,
    ) -> dict[int, T | ValueError]:
        """What each client's reply is read as, or why there is nothing."""
        found: dict[int, T | ValueError] = {}
        answers = self._exchange(contents, kind, round_number)
        here = self._clients()
        for client, (reply, absence) in answers.items():
            if reply is None:
                found[client] = Malformed(absence)
                continue
            try:
                found[client] = read(client, _content(reply))
            except ValueError as error:
                known = isinstance(error, Refused)  # which is tidy
                found[client] = error if known else Malformed(wire.tidy(str(error)))  # may quote the node
                self._doubted.add(here[client])
        return found

    def _exchange(
        self, contents: Mapping[int, RecordDict], kind: str, round_number: int
    ) -> dict[int, tuple[Message | Malformed | None, str]]:
        """Each client's reply, or None and why there is none."""
        self._online()
        here, absence = self._clients(), self._absence()
        found: dict[int, tuple[Message | Malformed | None, str]] = {c: (None, absence(c)) for c in contents}
        sent = {here[client]: content for client, content in contents.items() if client in here}
        client_of = {here[client]: client for client in contents if client in here}
        replies = Replies(self.grid)
        replies.waiting.update(self._push(sent, kind, round_number, BELATED))
        deadline = time.monotonic() + self.hosting.timeout
        for node in replies.waiting.values():
            found[client_of[node]] = None, f"no reply within {self.hosting.timeout:g} s"
        for _ in self._unwanted.arrived():
            pass  # to be taken is all that they are for
        for _ in self._looks(deadline, replies):
            for node, reply in replies.arrived():
                found[client_of[node]] = reply, ""
            if not replies.waiting:
                break
        self._give_up(replies.waiting)
        return found

    def _push(
        self, contents: Mapping[int, RecordDict], kind: str, round_number: int, longer: float
    ) -> Iterable[tuple[str, int]]:
        """Send; (id of the message, node) of those that could be sent."""
        ttl = self.hosting.timeout + longer
        messages = [
            Message(content, node, kind, ttl=ttl, group_id=str(round_number))
            for node, content in contents.items()
        ]
        identities = list(self.grid.push_messages(messages)) if messages else []
        return [(i, node) for i, node in zip(identities, contents, strict=True) if i]

    def _give_up(self, tasks: Mapping[str, int]) -> None:
        """Let the SuperLink have nothing more of these tasks, which hold a model, and of replies to them.

        A task stays until its node has received it. Flower has no word for taking it back; to say that it
        was received does that, whoever says it, and spares a node that has not begun it.
        """
        self._unwanted.waiting.update(tasks)
        grid: Any = self.grid
        try:
            from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest as Received

            for identity in tasks:
                received = Received(node=grid.node, run_id=grid.run.run_id, message_object_id=identity)
                grid._runtime_client.ConfirmMessageReceived(received)
        except Exception as error:  # as with a grid of another kind
            log.debug("tasks that nobody answered stay with the SuperLink until the run ends: %r", error)

    def _looks(self, deadline: float, replies: Replies) -> Iterator[bool]:
        """For every look for these replies whether it is the last: one that begins when time is up.

        A look takes a while, so in one that merely ends then who was asked early has had less time.
        """
        last = False
        while not last:
            last = time.monotonic() >= deadline
            yield last
            if not last:
                self._pause(deadline, replies.in_vain)

    def _pause(self, deadline: float, in_vain: float) -> None:
        """Between two looks for replies, each of which costs the SuperLink requests."""
        left = deadline - time.monotonic()
        time.sleep(max(self.hosting.poll, min(LEISURE * in_vain, left)))


def _remembered(memory: Any) -> int:
    return int(memory.round) if isinstance(memory, Receipt) else 0


def _packed(jobs: Sequence[Job]) -> dict[int, ArrayRecord]:
    """What each client receives, packed once for all that receive the same."""
    different = {id(job.sent): job.sent for job in jobs}
    once = {key: wire.pack_arrays(sent) for key, sent in different.items()}
    return {job.client: once[id(job.sent)] for job in jobs}


def _done(job: Job, examples: int, up: Any, loss: float, seconds: float) -> Visit:
    remembers = job.memory is None or isinstance(job.memory, Receipt)
    memory = Receipt(torch.tensor(job.round)) if remembers else job.memory  # which is nothing, then
    return Visit(job.client, examples, up, memory, loss, seconds)


def _failed(job: Job, reason: str) -> Visit:
    failure = Failure(job.client, job.round, None, reason)
    return Visit(job.client, 0, None, job.memory, float("nan"), 0.0, failure)


def _content(reply: Message | Malformed) -> RecordDict:
    if isinstance(reply, Malformed):
        raise reply
    if reply.has_error():
        reason = wire.tidy(reply.error.reason or "no reason given")
        raise Malformed(f"Flower reports error {reply.error.code} of its node: {reason}")
    if (refusal := wire.refused(reply.content)) is not None:
        if refusal.summed is not None:
            raise sums.OtherSum(refusal.reason, refusal.summed)
        raise LeftOut(refusal.reason, refusal.client)
    return reply.content


def _kind(said: Announcement | Facts) -> str:
    return "pixels" if said.pixels else "other numbers than pixels"


def _plausible(pixels: bool, mean: Sequence[float], std: Sequence[float]) -> bool:
    """Whether these can be the statistics of pixels, or of other numbers."""
    least, most = PIXELS if pixels else NUMBERS
    return all(abs(m) <= most for m in mean) and all(least <= s <= most for s in std)


def _pooled(said: Sequence[Announcement]) -> tuple[list[float], list[float]]:
    """Channel means and standard deviations of all the nodes' examples together; 1 of what never varies."""
    image = said[0].pixels
    share = np.array([a.examples for a in said], np.float64)
    share /= share.sum()
    means, stds = np.array([a.mean for a in said]), np.array([a.std for a in said])
    if image:  # pixels from 0 to 1 deviate by 0.5 at most: 1 is said of what never varies
        stds[stds == 1.0] = 0.0
    elif len(said[0].shape) > 1 and not all(left := [say_nothing(a.mean, a.std) for a in said]):
        stds[left] = 0.0  # if others' numbers are not left as they are, these are nothing but zeros
    mean = share @ means
    std = np.sqrt(share @ (stds**2 + (means - mean) ** 2))
    alike = ((means == means[0]) & (stds == stds[0])).all(0)  # then no rounding, nor a deviation made of it
    mean, std = np.where(alike, means[0], mean), np.where(alike, stds[0], std)
    return mean.tolist(), np.where(std > (PIXELS if image else NUMBERS)[0], std, 1.0).tolist()


def _for_nodes(config: Config) -> dict[str, Any]:
    """What we tell nodes: nothing of the server's own data or files, nor of where it sends its numbers."""
    told = {k: v for k, v in configs.as_dict(config).items() if k != "initial"}
    return told | {"dataset": {"name": ELSEWHERE}, "sinks": []}


def _called(node: int, client: int) -> str:
    return f"node {node}" if client == wire.UNKNOWN else f"node {node}, client {client}"


def _some(items: Sequence[object]) -> str:
    shown = ", ".join(wire.tidy(str(item)) for item in items[:10])
    return shown if len(items) <= 10 else f"{shown} and {len(items) - 10} more"
