"""The ClientApp: a node says who it is, trains, and evaluates, on data that do not leave it."""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedrecall import config as configs
from fedrecall import contracts, payloads, provenance, streams
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg, keeps_own
from fedrecall.config import Config
from fedrecall.downloads import arrived
from fedrecall.errors import Malformed, UserError
from fedrecall.flower import answers, member, sums, wire
from fedrecall.flower import code as codes
from fedrecall.flower.node import ELSEWHERE, Kept, Node, Silo, told_statistics
from fedrecall.flower.wire import (
    UNKNOWN,
    Announcement,
    Call,
    Code,
    Data,
    MaskedReport,
    MaskedTask,
    Members,
    Question,
    Refusal,
    Report,
    Task,
    Tested,
    Unmasking,
)
from fedrecall.ingredients import make_model
from fedrecall.measures.accuracy import evaluate
from fedrecall.models.model import Model, Weights
from fedrecall.training import Visit, first_memory, hooks_chance, visit

log = logging.getLogger("flwr")
app = ClientApp()
threads: int | None = None
"""How many threads to train with, where the process that this one is a copy of had to do with one."""

Handler = Callable[[Node, RecordDict], RecordDict]


def _answer(handler: Handler, message: Message, context: Context) -> Message:
    """Let the handler answer; what it refuses becomes a reply that says why.

    An error that is not one of ours may quote the node's data: only the node's own log has its text.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    node, client = None, UNKNOWN
    try:
        node = Node.of(context.node_config)
        client = node.client
        with node.guard():
            content = handler(node, message.content)
    except (UserError, Malformed) as error:
        summed = error.clients if isinstance(error, sums.OtherSum) else None
        content = wire.pack(Refusal(wire.tidy(str(error)), client, summed))
    except Exception as error:
        log.exception("this node failed where it should not have")
        reason = f"it failed ({type(error).__name__}): its own log says why."
        content = wire.pack(Refusal(reason, client))
    return Message(content if node is None else _noted(node, message, content), reply_to=message)


def _noted(node: Node, message: Message, content: RecordDict) -> RecordDict:
    """The answer, once the node's own record has it; else why it does not leave."""
    try:
        answers.note(node, message, content)
    except UserError as error:
        log.error("client %d does not answer what it cannot note: %s", node.client, error)
        return wire.pack(Refusal(wire.tidy(str(error)), node.client))
    return content


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this node is."""
    return _answer(announce, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Make a visit."""
    return _answer(make_visit, message, context)


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Evaluate a model."""
    return _answer(make_test, message, context)


@app.query("keys")
def keys(message: Message, context: Context) -> Message:
    """Secure aggregation, first: make keys."""
    return _answer(partial(make_keys, state=context.state), message, context)


@app.query("shares")
def shares(message: Message, context: Context) -> Message:
    """Secure aggregation, second: share secrets."""
    return _answer(partial(make_shares, state=context.state), message, context)


@app.train("masked")
def train_masked(message: Message, context: Context) -> Message:
    """Secure aggregation, third: make a visit and mask what comes of it."""
    return _answer(partial(make_masked_visit, state=context.state), message, context)


@app.query("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Secure aggregation, last: reveal what takes the masks off the sum."""
    return _answer(partial(make_unmasking, state=context.state), message, context)


def announce(node: Node, content: RecordDict) -> RecordDict:
    """Number, sizes, shape and class names of the node's data, and channel statistics if they are used."""
    codes.check_server(content)
    question, arrays = wire.unpack(content, Question, "the server's question")
    _no_arrays(arrays)
    config = _config(node, question.config)
    servers = _servers_code(question.code)
    codes.warn(servers, config)
    codes.check(servers, config)
    return wire.pack(_announcement(node, config, Silo(node, config)))


def _announcement(node: Node, config: Config, silo: Silo) -> Announcement:
    d = silo.held
    mean, std = told_statistics(d) if config.normalisation == "data" else ([], [])
    return Announcement(
        node.client,
        len(silo.train),
        len(silo.test),
        list(d.shape),
        list(d.class_names),
        mean,
        std,
        list(d.features),
        d.standardised,
        provenance.version(),
        d.floats,
    )


def make_visit(node: Node, content: RecordDict) -> RecordDict:
    """Train as the server asks, from the memory that it means, and remember."""
    task, arrays = wire.unpack(content, Task, "the server's task")
    if node.secure:
        raise UserError("its owner lets it train with secure aggregation only: set secure in the run config.")
    done = _train(node, task, arrays)
    return wire.pack(Report(task.round, task.client, done.examples, done.loss, done.seconds), done.up)


def make_keys(node: Node, content: RecordDict, state: RecordDict) -> RecordDict:
    """Public keys for a round."""
    return wire.pack(member.offer(state, _asked(node, content, Call)))


def make_shares(node: Node, content: RecordDict, state: RecordDict) -> RecordDict:
    """Shares of the node's secrets, for each other member to read."""
    asked = _asked(node, content, Members)
    _mark(node, asked.run, state)
    return wire.pack(member.share(state, asked))


def make_masked_visit(node: Node, content: RecordDict, state: RecordDict) -> RecordDict:
    """Train as `make_visit` does, and hide what comes of it."""
    asked, arrays = wire.unpack(content, MaskedTask, "the server's task")
    what = "the server's task"
    task = wire.values(wire.from_json(asked.task, what), Task, what)
    _check_mine(node, task.client)
    _mark(node, task.run, state)
    hidden, seconds = member.mask(state, task, asked, lambda: _train(node, task, arrays))
    return wire.pack(MaskedReport(task.round, task.client, seconds), hidden)


def make_unmasking(node: Node, content: RecordDict, state: RecordDict) -> RecordDict:
    """Of every member one of the two shares that the node holds, for one sum of a round alone."""
    asked = _asked(node, content, Unmasking)
    _mark(node, asked.run, state)
    revealed = member.reveal(state, asked)
    Kept(node, asked.run).settle_sum(asked.round, asked.present)
    return wire.pack(revealed)


def _mark(node: Node, run: str, state: RecordDict) -> None:
    """Answer no second time from what is kept, though the process that answers should be killed."""
    if member.STATE in state:
        Kept(node, run).answer_once(member.mark(state))


def _train(node: Node, task: Task, arrays: dict[str, Tensor]) -> Visit:
    algorithm, model, silo, config = _prepare(node, task)
    template = payloads.declared_down(algorithm, model, silo.dataset.shape, silo.dataset.classes)
    down = arrived(algorithm, payloads.check(arrays, template, "what the server sent", growing=True))
    kept = Kept(node, task.run, once=algorithm.remembers_once)
    first = first_memory(algorithm, down, hooks_chance(algorithm, config.seed, task.round, task.client))
    memory = kept.get(task.remembered, first)
    kept.rewind((task.start, task.round), task.remembered)
    done = visit(
        algorithm,
        model,
        config.training,
        silo.train,
        down,
        memory,
        seed=config.seed,
        round_number=task.round,
        client=task.client,
    )
    if done.failure is not None:
        at = "" if done.failure.step is None else f"step {done.failure.step}: "
        raise UserError(at + done.failure.reason)
    contracts.alike(done.memory, first, "finish", "a client's memory", "remember")
    kept.put((task.start, task.round), done.memory, task.keep, task.remembered, task.saved)
    return done


def make_test(node: Node, content: RecordDict) -> RecordDict:
    """Count what the model predicts for the node's test examples, and what the client's own one does."""
    task, arrays = wire.unpack(content, Task, "the server's task")
    algorithm, model, silo, config = _prepare(node, task)
    weights = payloads.check(arrays, model.initial(), "what the server sent")

    def counts(of: Weights) -> tuple[list[int], float]:
        with streams.seeded(config.seed, "evaluate", task.round):
            found = evaluate(model, of, silo.test)
        return found.confusion.ravel().tolist(), found.loss

    shared, loss = counts(weights)
    mine = _own(node, task, algorithm, weights) if keeps_own(algorithm) else None
    own = [] if mine is None else counts(mine)[0]
    finite = math.isfinite(loss)
    return wire.pack(Tested(task.round, task.client, shared, loss if finite else 0.0, finite, own))


def _own(node: Node, task: Task, algorithm: FedAvg, weights: Weights) -> Weights | None:
    """The model with what the client keeps to itself, as the server means it; None if that is lost."""
    with torch.random.fork_rng(devices=[]):  # a first memory may be drawn
        first = algorithm.remember(weights)
    try:
        memory = Kept(node, task.run, once=algorithm.remembers_once).get(task.remembered, first)
    except UserError as error:
        log.error("client %d does not evaluate its own model: %s", node.client, error)
        return None
    return contracts.deployed(algorithm, weights, memory)


def _prepare(node: Node, task: Task) -> tuple[FedAvg, Model, Silo, Config]:
    _check_mine(node, task.client)
    if task.round < 1 or task.remembered < 0 or task.start < 1:
        raise Malformed("the server's task is of no round")
    config = _config(node, task.config)
    codes.check(_servers_code(task.code), config)
    silo = Silo(
        node, config, wire.values(wire.from_json(task.data, "the task's data"), Data, "the task's data")
    )
    if wire.digest(_announcement(node, config, silo)) != task.announced:
        raise UserError("its data are not those that it announced: it is asked anew what they are.")
    algorithm: FedAvg = ALGORITHMS.make(config.algorithm)
    return algorithm, make_model(config, silo.dataset, algorithm), silo, config


def _config(node: Node, text: str) -> Config:
    values = wire.from_json(text, "the run's config")
    node.allow(values)
    mine: dict[str, object] = {
        "device": node.device,
        "backend": "auto",
        "sinks": [],
        "dataset": {"name": ELSEWHERE},
    }
    with node.guard():
        return configs.make(values | mine)


def _servers_code(text: str) -> Code:
    what = "what the server says of its code"
    return wire.values(wire.from_json(text, what), Code, what)


def _no_arrays(arrays: object) -> None:
    if arrays:
        raise Malformed("the server's question has undeclared arrays")


def _check_mine(node: Node, client: int) -> None:
    if client != node.client:
        raise UserError(f"it is client {node.client}, not {client}.")


def _asked(node: Node, content: RecordDict, kind: Any) -> Any:
    asked, arrays = wire.unpack(content, kind, "the server's question")
    _no_arrays(arrays)
    _check_mine(node, asked.client)
    return asked
