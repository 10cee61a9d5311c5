"""A hook that returns what it must not is told of in the first round; chance is the seed's alone."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.random import mtrand
from tests.algorithms.cases import BATCH_NORM, NETS, assert_same, data, experiment
from torch import Tensor, nn

from fedrecall import config as configs
from fedrecall import contracts, streams, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import (
    Anchor,
    Down,
    FedAvg,
    Memory,
    Server,
    Up,
    advances,
    keeps_own,
    settles,
)
from fedrecall.backends.backend import Job
from fedrecall.backends.vectorised import Vectorised
from fedrecall.data.partitions import IID, Partition
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.models.layers import KeyedDropout
from fedrecall.models.model import Model, Weights
from fedrecall.privacy import sums


class WithNumber(NamedTuple):
    weights: Weights
    number: Any


class Kept(NamedTuple):
    seen: Any


class Rounds(NamedTuple):
    weights: Weights
    round: Any


class Counted(NamedTuple):
    weights: Weights
    counts: Tensor


def replaced(**hooks: Any) -> type[FedAvg]:
    """An algorithm like FedAvg but for these hooks."""
    return dataclass(frozen=True)(type("Wrong", (FedAvg,), hooks))


def played(algorithm: type[FedAvg], monkeypatch: Any, backend: str = "serial", **settings: Any) -> Any:
    made = experiment("fedavg", backend=backend, **settings)
    monkeypatch.setattr(made, "algorithm", algorithm())
    with streams.seeded(None):
        made.server = made.algorithm.start(made.model.initial())
        made.memories.template = made.algorithm.remember(made.model.initial())
    return made.run()


def finishing(up: Any) -> type[FedAvg]:
    return replaced(
        finish=lambda self, model, weights, anchor, memory, data, sgd: (up(weights, data.number), memory)
    )


def spoiled(weights: Weights) -> Weights:
    return weights._replace(params={n: p * torch.nan for n, p in weights.params.items()})


def without_first(weights: Weights) -> Weights:
    return weights._replace(params=dict(list(weights.params.items())[1:]))


def entered(self: Any, model: Any, down: Any, memory: Any, data: Any) -> Any:
    down.weights.params.update({n: p / 2 for n, p in down.weights.params.items()})
    return Anchor(down.weights)


def written(self: Any, model: Any, down: Any, memory: Any, data: Any) -> Any:
    for p in down.weights.params.values():
        p.div_(2)
    return Anchor(down.weights)


def moved(anchor: Any, batch: Any, model: Any, params: Any) -> Tensor:
    """A loss with a teacher that follows the student, in place."""
    for n, p in params.items():
        anchor.weights.params[n].lerp_(p.detach(), 0.1)
    return FedAvg().loss(model, params, anchor, batch)


WRONG = {
    "finish returns one thing": (
        replaced(finish=lambda self, model, weights, *_: Up(weights)),
        "`finish` returns a Up: it must be two things",
    ),
    "a number travels up": (
        finishing(lambda weights, k: WithNumber(weights, float(k))),
        r"an upload, which `finish` returns, has number = \d\.0: only tensors",
    ),
    "what travels up is by pairs": (
        finishing(lambda weights, k: WithNumber(weights, {(1, 2): torch.ones(1)})),
        r"has number = {\(1, 2\): .*}: only tensors .* so make its keys names or whole numbers",
    ),
    "what travels down is by nothing": (
        replaced(broadcast=lambda self, model, server, _: WithNumber(server.weights, {None: torch.ones(1)})),
        r"what travels down, which `broadcast` returns, has number = {None: .*}: only tensors",
    ),
    "a list travels up": (
        finishing(lambda weights, k: WithNumber(weights, [torch.ones(1)])),
        "an upload, which `finish` returns, has number = a list: only tensors",
    ),
    "uploads of several forms": (
        finishing(lambda weights, k: WithNumber(weights, {f"class{k}": torch.ones(1)})),
        r"clients send number/class\d in different forms",
    ),
    "uploads of several shapes": (
        finishing(lambda weights, k: WithNumber(weights, torch.ones(k + 1))),
        "clients send number in different forms",
    ),
    "a part of the model": (
        finishing(lambda weights, k: Up(without_first(weights))),
        "an upload, which `finish` returns, has weights without",
    ),
    "a memory that was none": (
        replaced(finish=lambda self, model, weights, *_: (Up(weights), Kept(torch.ones(3)))),
        "a client's memory, which `finish` returns, has seen, which `remember` does not give it",
    ),
    "a memory that is lost": (
        replaced(
            remember=lambda self, weights: Kept(torch.ones(3)),
            finish=lambda self, model, weights, *_: (Up(weights), Kept(None)),
        ),
        "a client's memory, which `finish` returns, lacks seen, which `remember` gives it",
    ),
    "a state that becomes a number": (
        replaced(
            start=lambda self, weights: Rounds(weights, torch.tensor(0)),
            aggregate=lambda self, server, ups, cohort: Rounds(cohort.mean(ups.weights), 1),
        ),
        "the server's state, which `aggregate` returns, has round = 1: only tensors",
    ),
    "a state that grows": (
        replaced(
            start=lambda self, weights: Rounds(weights, ()),
            aggregate=lambda self, server, ups, cohort: server._replace(round=(server.weights,)),
        ),
        "the server's state, which `aggregate` returns, has round/0/.*, which `start` does not give it",
    ),
    "a forgotten return": (
        replaced(aggregate=lambda self, server, ups, cohort: None),
        "`aggregate` returns nothing: it must be the server's state",
    ),
    "weights for a state": (
        replaced(aggregate=lambda self, server, ups, cohort: cohort.mean(ups.weights)),
        "`aggregate` returns a Weights: it must be the server's state",
    ),
    "a change in place": (
        replaced(
            aggregate=lambda self, server, ups, cohort: (
                [server.weights.params[n].copy_(p) for n, p in cohort.mean(ups.weights).params.items()]
                and server
            )
        ),
        "`aggregate` changes weights/params/.* of the server's state in place",
    ),
    "a state that was not refined but forgotten": (
        replaced(refine=lambda self, model, server, auxiliary: None),
        "`refine` returns nothing: it must be the server's state",
    ),
    "a part of a model that was refined": (
        replaced(refine=lambda self, model, server, auxiliary: Server(without_first(server.weights))),
        "the server's state, which `refine` returns, lacks weights/params/",
    ),
    "a refinement in place": (
        replaced(
            refine=lambda self, model, server, auxiliary: (
                [p.mul_(2) for p in server.weights.params.values()] and server
            )
        ),
        "`refine` changes weights/params/.* of the server's state in place",
    ),
    "whom nobody knows is invited": (
        replaced(invite=lambda self, server, population, count, round_number: [0, 1, population]),
        r"`invite` returns \[0, 1, 6\]: it must be 3 different clients of 0 to 5, or None",
    ),
    "the same client is invited twice": (
        replaced(invite=lambda self, server, population, count, round_number: torch.tensor([1, 1, 2])),
        r"`invite` returns tensor\(\[1, 1, 2\]\): it must be 3 different clients",
    ),
    "too few are invited": (
        replaced(invite=lambda self, server, population, count, round_number: range(count - 1)),
        r"`invite` returns range\(0, 2\): it must be 3 different clients",
    ),
    "nothing is unpacked": (
        replaced(unpack=lambda self, up, down: None),
        "`unpack` returns nothing: it must be what the client sends, a named tuple with the field weights",
    ),
    "a part of the model is unpacked": (
        replaced(unpack=lambda self, up, down: Up(without_first(up.weights))),
        "an upload, which `unpack` returns, has weights without",
    ),
    "a number is unpacked": (
        replaced(unpack=lambda self, up, down: WithNumber(up.weights, 1.0)),
        r"an upload, which `unpack` returns, has number = 1\.0: only tensors",
    ),
    "what is sent is unpacked in place": (
        replaced(unpack=lambda self, up, down: [p.mul_(2) for p in up.weights.params.values()] and up),
        "`unpack` changes up/weights/params/.* of what it is given in place",
    ),
    "packed uploads of several shapes": (
        replaced(
            finish=lambda self, model, weights, anchor, memory, data, sgd: (
                WithNumber(weights, torch.ones(data.number + 1)),
                memory,
            ),
            unpack=lambda self, up, down: Up(up.weights),
        ),
        "clients send number in different forms",
    ),
    "no model travels down": (
        replaced(broadcast=lambda self, model, server, auxiliary: Kept(server.weights)),
        "`broadcast` returns a Kept: it must be what travels down",
    ),
    "a number travels down": (
        replaced(broadcast=lambda self, model, server, auxiliary: WithNumber(server.weights, 3)),
        "what travels down, which `broadcast` returns, has number = 3",
    ),
    "a loss for each example": (
        replaced(loss=lambda self, model, params, anchor, batch: model(params, batch.x)[:, 0]),
        r"`loss` returns a Tensor of shape \[\d+\]: it must be one number",
    ),
    "a parameter that is not settled": (
        replaced(settle=lambda self, params, before, anchor, batch: dict(list(params.items())[1:])),
        "`settle` returns no '.*': it must be a dict with each parameter",
    ),
    "nothing is settled": (
        replaced(settle=lambda self, params, before, anchor, batch: None),
        "`settle` returns nothing: it must be a dict with each parameter",
    ),
    "a parameter that is settled in another shape": (
        replaced(settle=lambda self, params, before, anchor, batch: {n: p[None] for n, p in params.items()}),
        r"`settle` returns float64 of \[1, .*\] as '.*': it must be float64 of ",
    ),
    "a number for a parameter": (
        replaced(settle=lambda self, params, before, anchor, batch: dict.fromkeys(params, 0.0)),
        "`settle` returns a float as '.*': it must be float64 of ",
    ),
    "a dict that is sent": (
        replaced(wrap=lambda self, down: down.weights.params),
        "`wrap` returns no named tuple: give what is sent names",
    ),
    "a number that is sent": (
        replaced(wrap=lambda self, down: WithNumber(down.weights, 2.5)),
        r"what is sent down, which `wrap` returns, has number = 2\.5: only tensors",
    ),
    "nothing that arrives": (
        replaced(unwrap=lambda self, sent: None),  # it has its word without `wrap`, too
        "`unwrap` returns nothing: it must be what travels down",
    ),
    "a part of a model that arrives": (
        replaced(wrap=lambda self, down: down, unwrap=lambda self, sent: Down(without_first(sent.weights))),
        "what travels down, which `unwrap` returns, lacks weights/params/.*, which `broadcast` gives it",
    ),
    "a model that arrives as NaN": (
        replaced(wrap=lambda self, down: down, unwrap=lambda self, sent: Down(spoiled(sent.weights))),
        "what `unwrap` makes of what is sent holds NaN or Inf",
    ),
    "a model that is sent as NaN": (
        replaced(wrap=lambda self, down: Down(spoiled(down.weights))),
        "what `wrap` makes of the model holds NaN or Inf",
    ),
    "what a client draws of what it is sent": (
        replaced(wrap=lambda self, down: down, unwrap=lambda self, sent: (torch.rand(1), sent)[1]),
        "`unwrap` draws random numbers, and every client would make another model",
    ),
    "an anchor that goes on as nothing": (
        replaced(advance=lambda self, anchor, weights, grads, batch: None),
        r"`advance` returns nothing: it must be its anchor",
    ),
    "a part of an anchor alone": (
        replaced(
            advance=lambda self, anchor, weights, grads, batch: Anchor(
                Weights(dict(list(weights.params.items())[1:]), weights.buffers)
            )
        ),
        r"`advance` returns no weights/params/.*: it must be its anchor",
    ),
    "an anchor that grows": (
        replaced(
            advance=lambda self, anchor, weights, grads, batch: Anchor(
                Weights({**weights.params, "more": torch.zeros(1)}, weights.buffers)
            )
        ),
        r"`advance` returns a new weights/params/more: it must be its anchor",
    ),
    "an anchor in another shape": (
        replaced(
            advance=lambda self, anchor, weights, grads, batch: Anchor(
                Weights({n: p[None] for n, p in weights.params.items()}, weights.buffers)
            )
        ),
        r"`advance` returns float64 of \[1, .*\] as weights/params/.*: it must be float64 of ",
    ),
    "a gradient that is left out": (
        replaced(correct=lambda self, grads, anchor: dict(list(grads.items())[1:])),
        "`correct` returns no gradient of",
    ),
    "a gradient of another shape": (
        replaced(correct=lambda self, grads, anchor: {n: g.mean(0, keepdim=True) for n, g in grads.items()}),
        r"`correct` returns a gradient of '.*' of shape \[1.*\], and the parameter's is",
    ),
    "a gradient of what is no parameter": (
        replaced(correct=lambda self, grads, anchor: {**grads, "fc9.bias": torch.ones(1)}),
        "`correct` returns a gradient of 'fc9.bias', which is no parameter",
    ),
    "no gradient": (
        replaced(correct=lambda self, grads, anchor: dict.fromkeys(grads)),
        "`correct` returns nothing as the gradient of '.*': it must be a tensor",
    ),
    "a number for a gradient": (
        replaced(correct=lambda self, grads, anchor: dict.fromkeys(grads, 0.0)),
        "`correct` returns a float as the gradient of '.*': it must be a tensor",
    ),
    "an array for a gradient": (
        replaced(correct=lambda self, grads, anchor: {n: g.numpy() for n, g in grads.items()}),
        "`correct` returns a ndarray as the gradient of '.*': it must be a tensor",
    ),
    "a loss of the teacher alone": (
        replaced(
            loss=lambda self, model, params, anchor, batch: batch.mean(
                model.frozen(anchor.weights, batch.x).square().sum(1)
            )
        ),
        "`loss` returns a number that does not depend on `params`",
    ),
    "arrays for weights": (
        replaced(
            aggregate=lambda self, server, ups, cohort: server._replace(
                weights=Weights(*({n: w[0].numpy() for n, w in part.items()} for part in ups.weights))
            )
        ),
        r"the server's state, which `aggregate` returns, has weights/params/.* = array\(.{,300}\): only ",
    ),
    "a part of the model travels down": (
        replaced(
            broadcast=lambda self, model, server, auxiliary: Down(
                server.weights._replace(params=dict(list(server.weights.params.items())[1:]))
            )
        ),
        "what travels down, which `broadcast` returns, has weights without",
    ),
    "half precision travels down": (
        replaced(
            broadcast=lambda self, model, server, auxiliary: Down(
                trees.transform(Tensor.half, server.weights)
            )
        ),
        "what travels down, which `broadcast` returns, has '.*' in float16, and the model's is in float64",
    ),
    "a part of the model travels along a chain": (
        replaced(sequential=True, relay=lambda self, down, up: Down(without_first(up.weights))),
        "what travels down, which `relay` returns, lacks weights/params/",
    ),
    "a model of another shape that is passed on": (
        replaced(
            sequential=True, relay=lambda self, down, up: Down(trees.transform(lambda t: t[None], up.weights))
        ),
        r"what travels down, which `relay` returns, has .* of shape \[1, ",
    ),
    "no weights for weights": (
        finishing(lambda weights, k: Up(weights.params)),
        "`finish` returns a Up: it must be what the client sends, a named tuple with the field weights",
    ),
    "weights of another shape": (
        finishing(lambda weights, k: Up(Weights(*(trees.transform(lambda t: t[None], w) for w in weights)))),
        r"an upload, which `finish` returns, has '.*' of shape \[1, .*\], and the model's is \[",
    ),
    "weights of another type": (
        finishing(lambda weights, k: Up(Weights(*(trees.transform(Tensor.half, w) for w in weights)))),
        r"an upload, which `finish` returns, has '.*' in float16, and the model's is in float64: convert",
    ),
    "a model of its own, in place": (
        replaced(prepare=entered),
        "`prepare` changes down/weights/params/.* of what it is given in place",
    ),
    "weights of its own, in place": (
        replaced(prepare=written),
        "`prepare` changes down/weights/params/.* of what it is given in place",
    ),
    "an anchor in place": (
        replaced(
            finish=lambda self, model, weights, anchor, memory, data, sgd: (
                [p.mul_(0.5) for p in anchor.weights.params.values()] and (Up(weights), memory)
            )
        ),
        "`finish` changes anchor/weights/params/.* of what it is given in place",
    ),
    "an anchor in steps": (
        replaced(loss=lambda self, model, params, anchor, batch: moved(anchor, batch, model, params)),
        r"`loss`, `correct`, `settle` or `advance` changes weights/params/.* of its anchor in place",
    ),
    "parameters in place": (
        replaced(
            loss=lambda self, model, params, anchor, batch: (
                torch.no_grad()(params["fc.bias"].mul_)(0.5) is not None
                and FedAvg.loss(self, model, params, anchor, batch)
            )
        ),
        r"`loss` changes params\['fc\.bias'\] in place: make a new tensor instead",
    ),
    "images in place": (
        replaced(
            loss=lambda self, model, params, anchor, batch: (
                batch.x.add_(1) is batch.x and FedAvg.loss(self, model, params, anchor, batch)
            )
        ),
        r"`loss` changes batch\.x in place: make a new tensor instead",
    ),
    "labels in place": (
        replaced(
            prepare=lambda self, model, down, memory, data: (
                [batch.y.zero_() for batch in data.batches()] and Anchor(down.weights)
            )
        ),
        "`prepare` changes data/y of what it is given in place",
    ),
    "an anchor along the gradient": (
        replaced(
            correct=lambda self, grads, anchor: (
                [anchor.weights.params[n].add_(g) for n, g in grads.items()] and grads
            )
        ),
        r"`loss`, `correct`, `settle` or `advance` changes weights/params/.* of its anchor in place",
    ),
    "a server's state that is rounded to be sent": (
        replaced(
            broadcast=lambda self, model, server, auxiliary: (
                [p.mul_(64).round_().div_(64) for p in server.weights.params.values()]
                and Down(server.weights)
            )
        ),
        "`broadcast` changes weights/params/.* of the server's state in place",
    ),
    "uploads in place": (
        replaced(
            aggregate=lambda self, server, ups, cohort: (
                [w.mul_(0.5) for w in ups.weights.params.values()]
                and server._replace(weights=cohort.mean(ups.weights))
            )
        ),
        "`aggregate` changes weights/params/.* of the uploads in place",
    ),
    "a server's state that a report looks at": (
        replaced(
            report=lambda self, server: {
                "norm": float(sum(p.abs_().sum() for p in server.weights.params.values()))
            }
        ),
        "`report` changes weights/params/.* of the server's state in place",
    ),
    "shares that do not sum to one": (
        replaced(
            aggregate=lambda self, server, ups, cohort: server._replace(
                weights=cohort.mean(ups.weights, [2.0] * len(cohort.clients))
            )
        ),
        r"cohort\.mean is given shares that sum to 6 and not to one: .*cohort\.sum",
    ),
    "fewer shares than uploads": (
        replaced(
            aggregate=lambda self, server, ups, cohort: server._replace(
                weights=cohort.mean(ups.weights, [0.5, 0.5])
            )
        ),
        "aggregate weighs 3 uploads with 2 numbers: give one for each",
    ),
    "a memory in place": (
        replaced(
            remember=lambda self, weights: Kept(torch.zeros(2)),
            finish=lambda self, model, weights, anchor, memory, data, sgd: (
                (memory.seen.add_(1) is memory.seen) and (Up(weights), memory)
            ),
        ),
        "`finish` changes memory/seen of what it is given in place",
    ),
    "a chain's model in place": (
        replaced(
            sequential=True,
            relay=lambda self, down, up: (
                [p.lerp_(up.weights.params[n], 0.5) for n, p in down.weights.params.items()] and down
            ),
        ),
        "`relay` changes down/weights/params/.* of what it is given in place",
    ),
    "weights for what travels along a chain": (
        replaced(sequential=True, relay=lambda self, down, up: up.weights),
        "`relay` returns a Weights: it must be what travels down",
    ),
    "strangers in a chain": (
        replaced(arrange=lambda self, sampled, round_number: [*sampled, 77]),
        r"`arrange` returns \[.*77\]: it must be the clients that it was given",
    ),
    "no order at all": (
        replaced(arrange=lambda self, sampled, round_number: None),
        "`arrange` returns None: it must be the clients that it was given",
    ),
    "fewer clients than were drawn": (
        replaced(arrange=lambda self, sampled, round_number: sampled[1:]),
        r"`arrange` returns \[.*\]: it must be the clients that it was given",
    ),
    "a report that is no number": (
        replaced(report=lambda self, server: {"norms": [1.0]}),
        "`report` returns 'norms' = a list: it must be a number",
    ),
    "a report that has no names": (
        replaced(report=lambda self, server: 3.0),
        "`report` returns a float: it must be a dict of numbers by name",
    ),
    "a report over what the round is": (
        replaced(report=lambda self, server: {"lr": 1.0}),
        "`report` returns 'lr', which every record has already",
    ),
    "a report over what was measured": (
        replaced(report=lambda self, server: {"accuracy": 1.0}),
        "`report` returns 'accuracy', which every record has already",
    ),
}


@dataclass(frozen=True)
class ByClass(FedAvg):
    """Its server's state, its clients' memories and what travels are by classes."""

    def start(self, params):
        return WithNumber(params, {c: torch.zeros(()) for c in (3, 1)})

    def remember(self, params):
        return Kept({1: torch.zeros(())})

    def broadcast(self, model, server, auxiliary):
        return server

    def finish(self, model, weights, anchor, memory, data, sgd):
        return WithNumber(weights, {1: torch.tensor(1.0), 3: memory.seen[1]}), Kept({1: memory.seen[1] + 1})

    def aggregate(self, server, ups, cohort):
        return WithNumber(cohort.mean(ups.weights), trees.transform(lambda t: t.sum(0), ups.number))

    def report(self, server):
        return {"visits": server.number[1], "visited before": server.number[3]}


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_dicts_may_be_by_whole_numbers_wherever_they_go(backend, monkeypatch):
    clients = {"clients": 3, "sample": 3}
    history = played(ByClass, monkeypatch, backend, rounds=2, **clients).history
    assert [(r["visits"], r["visited before"]) for r in history] == [(3, 0), (3, 3)]


@pytest.mark.parametrize("what", WRONG)
def test_a_hook_that_returns_something_else_is_named_in_a_sentence(what, monkeypatch):
    algorithm, said = WRONG[what]
    with pytest.raises(UserError, match=said):
        played(algorithm, monkeypatch, rounds=2)


@pytest.mark.parametrize(
    ("one", "recorded"),
    [
        (torch.tensor(0.5), 0.5),
        (torch.ones(1, 1), 1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.ones(1), 1),
        (True, True),
        (float("nan"), None),
        (torch.tensor(float("inf")), None),
    ],
)
def test_a_report_may_give_a_number_of_any_kind(one, recorded, monkeypatch):
    record = played(replaced(report=lambda self, server: {"step": one}), monkeypatch).history[-1]
    assert record["step"] == recorded
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("told", "promised"),
    [
        ({"epsilon": 0.5, "delta": 1e-5}, (0.5, 1e-5)),
        ({"epsilon": np.float32(2), "delta": 0}, (2, 0)),
        ({"epsilon": 0.5}, None),
        ({"delta": 1e-5}, None),
        ({"epsilon": float("nan"), "delta": 1e-5}, None),
        ({"epsilon": 0.5, "delta": float("inf")}, None),
        ({"epsilon": True, "delta": 1e-5}, None),
        ({}, None),
    ],
)
def test_a_report_tells_of_privacy_where_both_are_numbers(told, promised, monkeypatch):
    """An algorithm of one's own may call something else epsilon."""
    record = played(replaced(report=lambda self, server: told), monkeypatch).history[-1]
    assert contracts.promise(record) == promised


def test_what_a_measure_cannot_say_is_nothing_in_the_record(tmp_path):
    file = tmp_path / "measure.py"
    file.write_text(
        "from dataclasses import dataclass\n\nfrom fedrecall.measures.moment import Measure\n\n\n"
        "@dataclass(frozen=True)\nclass Unsaid(Measure):\n    def __call__(self, moment):\n"
        "        return {'x': float('nan'), 'each': [1.0, float('-inf')]}\n"
    )
    (record,) = experiment("fedavg", measures=[f"{file}:Unsaid"], rounds=1).run().history
    assert record["measures"]["measure.py:Unsaid"] == {"x": None, "each": [1.0, None]}
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"start": lambda self, weights: None}, "`start` returns nothing: it must be the server's state"),
        ({"equip": lambda self, module: None}, "`equip` returns None: it must be the network"),
        (
            {"start": lambda self, weights: Server(without_first(weights))},
            "the server's state, which `start` returns, has weights without",
        ),
    ],
)
def test_what_makes_a_run_is_checked_where_it_is_made(hooks, said, monkeypatch):
    made = replaced(**hooks)
    for name, hook in hooks.items():
        monkeypatch.setattr(FedAvg, name, getattr(made, name) if hook else None)
    with pytest.raises(UserError, match=said):
        experiment("fedavg")


def nodes(tensor: Tensor) -> int:
    """Of the graph behind a tensor."""
    seen, left = set[Any](), [tensor.grad_fn]
    while left:
        if (node := left.pop()) is not None and node not in seen:
            seen.add(node)
            left += [n for n, _ in node.next_functions]
    return len(seen)


def test_no_graph_is_kept_from_round_to_round(monkeypatch):
    """Clients that tune once more and forget to detach; a server that averages over rounds."""

    def finish(self: Any, model: Any, weights: Any, anchor: Any, memory: Any, data: Any, sgd: Any) -> Any:
        params = {n: p.clone().requires_grad_() * 0.9 for n, p in weights.params.items()}
        return Up(weights._replace(params=params)), Kept(params["fc.bias"])

    algorithm = replaced(
        start=lambda self, weights: Rounds(weights, weights),
        remember=lambda self, weights: Kept(weights.params["fc.bias"].clone().requires_grad_() * 1),
        finish=finish,
        aggregate=lambda self, server, ups, cohort: Rounds(
            mean := cohort.mean(ups.weights), trees.transform(lambda a, b: a + b, server.round, mean)
        ),
    )
    made = experiment("fedavg", rounds=3)
    monkeypatch.setattr(made, "algorithm", algorithm())
    made.server = made.algorithm.start(made.model.initial())
    made.memories.template = made.algorithm.remember(made.model.initial())
    made.run()
    kept = [t for _, t in trees.leaves((made.server, tuple(made.memories.get(k) for k in range(6))))]
    assert [nodes(t) for t in kept] == [0] * len(kept)
    assert not any(t.requires_grad for t in kept)


def test_on_the_vectorised_backend_too(monkeypatch):
    anchored = replaced(prepare=lambda self, model, down, memory, data: WithNumber(down.weights, 2.35))
    played(anchored, monkeypatch)  # one after another they may hold what they like
    with pytest.raises(UserError, match=r"has number = 2\.35, which cannot be stacked"):
        played(anchored, monkeypatch, backend="vectorised")
    for what in ("a loss for each example", "a gradient that is left out", "parameters in place"):
        with pytest.raises(UserError, match=WRONG[what][1]):
            played(WRONG[what][0], monkeypatch, backend="vectorised")
    for what in ("an anchor in steps", "an anchor along the gradient", "images in place"):  # PyTorch refuses
        with pytest.raises(UserError, match="a change in place of what it is given"):
            played(WRONG[what][0], monkeypatch, backend="vectorised")


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_what_a_client_holds_for_itself_may_not_change_in_its_steps_either(backend, norm, monkeypatch):
    """Stacked it is a view of the stack, or with batch norm a copy for each step, which forgets."""
    counting = replaced(
        prepare=lambda self, model, down, memory, data: WithNumber(down.weights, torch.zeros(())),
        correct=lambda self, grads, anchor: anchor.number.add_(1) is not None and grads,
    )
    with pytest.raises(UserError, match="`settle` or `advance` changes number of its anchor in place"):
        played(counting, monkeypatch, backend=backend, model=f"{NETS}:norm={norm}")


@pytest.mark.parametrize("hook", ["broadcast", "refine"])
def test_the_servers_examples_stay_as_they_are(hook, monkeypatch):
    def relabelled(self: Any, model: Any, server: Any, auxiliary: Any) -> Any:
        for batch in auxiliary.batches():
            batch.y.zero_()
        return server

    with pytest.raises(UserError, match=f"`{hook}` changes y of the server's examples in place"):
        played(replaced(**{hook: relabelled}), monkeypatch, auxiliary_per_class=2)


def of_numpy(like: Tensor) -> Tensor:
    return torch.as_tensor(mtrand.randn(*like.shape)).to(like.dtype)


def of_all(like: Tensor) -> Tensor:
    pythons = torch.tensor([random.gauss(0, 1) for _ in range(like.numel())], dtype=like.dtype)
    return torch.randn_like(like) + of_numpy(like) + pythons.view(like.shape)


def noise(where: str, normal: Callable[[Tensor], Tensor] = of_all) -> type[FedAvg]:
    """FedAvg with noise in one hook, from the streams that a program shares: torch's, NumPy's, Python's."""

    def shaken(weights: Weights) -> Weights:
        return weights._replace(params={n: p + 0.1 * normal(p) for n, p in weights.params.items()})

    def shuffled(count: int) -> list[int]:
        return normal(torch.zeros(count)).argsort().tolist()  # type: ignore[no-any-return]

    hooks: dict[str, Any] = {
        "prepare": lambda self, model, down, memory, data: Anchor(shaken(down.weights)),
        "loss": lambda self, model, params, anchor, batch: (
            FedAvg.loss(self, model, params, anchor, batch) * (1 + normal(torch.zeros(1)).abs().mean())
        ),
        "finish": lambda self, model, weights, anchor, memory, data, sgd: (Up(shaken(weights)), memory),
        "broadcast": lambda self, model, server, auxiliary: Down(shaken(server.weights)),
        "aggregate": lambda self, server, ups, cohort: Server(shaken(cohort.mean(ups.weights))),
        "refine": lambda self, model, server, auxiliary: Server(shaken(server.weights)),
        "invite": lambda self, server, population, count, round_number: shuffled(population)[:count],
        "arrange": lambda self, sampled, round_number: [sampled[i] for i in shuffled(len(sampled))],
        "unpack": lambda self, up, down: Up(shaken(up.weights)),
        "wrap": lambda self, down: Down(shaken(down.weights)),
        "relay": lambda self, down, up: Down(shaken(up.weights)),
        "remember": lambda self, weights: Kept(shaken(weights)),
    }
    made = {where: hooks[where]}
    if where == "prepare":
        made["loss"] = pulled
    if where in ("arrange", "relay"):
        made["sequential"] = True
    if where == "remember":
        made["finish"] = lambda self, model, weights, anchor, memory, *_: (Up(memory.seen), memory)
    return replaced(**made)


def pulled(self: Any, model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
    """A loss that looks at the anchor, so that noise on it matters."""
    apart = [(p - anchor.weights.params[n]).square().sum() for n, p in params.items()]
    return FedAvg.loss(self, model, params, anchor, batch) + sum(apart)


HOOKS = [
    "prepare",
    "loss",
    "finish",
    "broadcast",
    "aggregate",
    "refine",
    "invite",
    "arrange",
    "unpack",
    "wrap",
    "relay",
    "remember",
]


@pytest.mark.parametrize("where", HOOKS)
def test_what_hooks_draw_from_the_shared_streams_follows_from_the_seed(where, monkeypatch):
    torch.manual_seed(1)
    one = played(noise(where), monkeypatch, rounds=2)
    torch.manual_seed(2)
    before = torch.get_rng_state(), mtrand.get_state()[1].tolist(), random.getstate()
    two = played(noise(where), monkeypatch, rounds=2)
    assert torch.equal(before[0], torch.get_rng_state())  # the user's own streams are left alone
    assert before[1:] == (mtrand.get_state()[1].tolist(), random.getstate())
    assert_same(one.weights, two.weights)
    quiet = played(FedAvg, monkeypatch, rounds=2)
    assert not torch.equal(*(next(iter(r.weights.params.values())) for r in (one, quiet)))


@dataclass(frozen=True)
class RandomStart(FedAvg):
    def start(self, weights: Weights) -> Any:
        return Counted(weights, torch.rand(3))


def test_what_start_draws_follows_from_the_seed():
    drawn = [experiment(RandomStart, seed=seed).server.counts for seed in (3, 3, 4)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_first_memory_is_each_clients_own(monkeypatch):
    drawn: list[float] = []

    def remember(self: Any, weights: Weights) -> Any:
        drawn.append(torch.rand(()).item())
        return Kept(torch.tensor(drawn[-1]))

    played(replaced(remember=remember), monkeypatch)
    assert len(drawn) == len(set(drawn)) >= 4  # three clients, and what tells of its form


def test_clients_draw_apart_from_each_other(monkeypatch):
    drawn: list[float] = []

    def finish(self: Any, model: Any, weights: Weights, anchor: Any, memory: Any, *_: Any) -> Any:
        drawn.append(torch.rand(()).item())
        return Up(weights), memory

    played(replaced(finish=finish), monkeypatch, rounds=2)
    assert len(drawn) == len(set(drawn)) == 6  # three clients, two rounds


@pytest.mark.parametrize("where", ["prepare", "loss", "finish", "broadcast", "aggregate", "refine"])
def test_what_is_secret_does_not_follow_from_the_seed(where, monkeypatch):
    quiet = dataclass(frozen=True)(type("Quiet", (noise(where),), {"secret": property(lambda self: True)}))
    one, two = (played(quiet, monkeypatch, sample=6).weights for _ in range(2))
    apart = [(a - two.params[n]).abs().max().item() for n, a in one.params.items()]
    assert max(apart) > 1e-4  # more than another order of clients makes


@pytest.mark.parametrize("where", ["prepare", "finish"])
def test_stacked_clients_draw_what_they_draw_alone(where, monkeypatch):
    alone, stacked = (
        played(noise(where), monkeypatch, backend=b, rounds=2) for b in ("serial", "vectorised")
    )
    for (name, a), (_, b) in zip(trees.leaves(alone.weights), trees.leaves(stacked.weights), strict=True):
        assert torch.allclose(a, b, atol=1e-9), name


@pytest.mark.parametrize("normal", [torch.randn_like, of_numpy])
def test_steps_that_draw_are_refused_where_clients_are_stacked(normal, monkeypatch):
    with pytest.raises(UserError, match="draws random numbers in its steps"):
        played(noise("loss", normal), monkeypatch, backend="vectorised")


def written_into(self: Any, given: Any, made: Any) -> Any:
    """The dict with these numbers in the places of its own."""
    for name, value in made.items():
        given[name] = value
    return given


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_dicts_that_hooks_are_given_are_theirs(backend, monkeypatch):
    """Written into, they make what new ones make: in the next step and in the hooks after."""

    def hooks(into: Any) -> dict[str, Any]:
        def loss(self: Any, model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
            halved = into(self, params, {n: 0.5 * p for n, p in params.items()})
            return FedAvg.loss(self, model, halved, anchor, batch)

        def correct(self: Any, grads: Any, anchor: Any) -> Any:
            return into(self, grads, {n: g * torch.sign(g) for n, g in grads.items()})

        def settle(self: Any, params: Any, before: Any, anchor: Any, batch: Any) -> Any:
            # In the first half of a visit nothing moves: what is given back is the anchor's own numbers.
            first = batch.progress < 0.5
            kept = {n: torch.where(first, anchor.weights.params[n], p) for n, p in params.items()}
            last = list(kept)[-1]
            kept[last] = anchor.weights.params[last]
            return into(self, params, kept)

        def advance(self: Any, anchor: Any, weights: Any, grads: Any, batch: Any) -> Any:
            params = {n: a - 0.1 * grads[n] for n, a in anchor.weights.params.items()}
            return Anchor(anchor.weights._replace(params=params))

        return {"loss": loss, "correct": correct, "settle": settle, "advance": advance}

    def pulled_back(self: Any, model: Any, weights: Weights, anchor: Any, memory: Any, *_: Any) -> Any:
        params = {n: p + anchor.weights.params[n] for n, p in weights.params.items()}
        return Up(weights._replace(params=params)), memory

    settings = {"model": "mlp:8", "rounds": 2, "backend": backend}
    new, old = (
        played(replaced(**hooks(into), finish=pulled_back), monkeypatch, **settings)
        for into in (lambda self, given, made: made, written_into)
    )
    assert_same(old.weights, new.weights, 1e-12)


@dataclass(frozen=True)
class Within(FedAvg):
    """An algorithm of somebody's own that asks another one, and has its own last word."""

    @property
    def inner(self) -> FedAvg:
        return ALGORITHMS.make("fedntd")

    def loss(self, model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
        return self.inner.loss(model, params, anchor, batch)

    def settle(self, params: Any, before: Any, anchor: Any, batch: Any) -> Any:
        return {n: p.clamp(-0.01, 0.01) for n, p in params.items()}

    def advance(self, anchor: Any, weights: Any, grads: Any, batch: Any) -> Any:
        return anchor

    def personal(self, weights: Any, memory: Any) -> Any:
        return weights


def test_an_algorithm_that_asks_another_keeps_its_own_hooks(monkeypatch):
    made = Within()
    assert settles(made)
    assert advances(made)
    assert keeps_own(made)
    found = played(Within, monkeypatch, rounds=1)
    assert max(p.abs().max() for p in found.weights.params.values()) <= 0.01


def deploys(change: Any) -> Any:
    return replaced(deploy=lambda self, weights, memory: change(weights))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.params, "`deploy` returns a dict: it must be Weights"),
        (lambda weights: weights._replace(params={}), "which `deploy` returns, has weights without"),
        (lambda weights: [p.zero_() for p in weights.params.values()] and weights, "`deploy` changes w"),
    ],
)
def test_the_model_that_a_client_uses_is_one(change, said, monkeypatch):
    with pytest.raises(UserError, match=said):
        played(deploys(change), monkeypatch, rounds=1, measures=["fairness"])


def rising(self: Any, model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
    """A loss that counts the more the later it is in a visit."""
    return batch.progress * FedAvg.loss(self, model, params, anchor, batch)


def clipped(self: Any, params: Any, before: Any, anchor: Any, batch: Any) -> Any:
    """No step moves a parameter by more than a bound, which falls as the visit goes on."""
    bound = 0.01 * (1 - batch.progress)
    return {n: b + (params[n] - b).clamp(-bound, bound) for n, b in before.items()}


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
@pytest.mark.parametrize("net", [NETS, BATCH_NORM, "mlp:8"])
def test_steps_know_how_far_the_visit_is_and_have_the_last_word(backend, net, monkeypatch):
    settings = {"model": net, "sample": 6, "rounds": 1, "training": {"local_epochs": 3, "momentum": 0.5}}
    algorithm = replaced(loss=rising, settle=clipped)
    found = played(algorithm, monkeypatch, backend=backend, **settings)
    # By hand: one client after the other, with PyTorch's own optimiser.
    run = experiment("fedavg", **settings)
    model, recipe = run.model, run.config.training
    sizes = {k: run.federation.size(k) for k in range(6)}
    total, mean = sum(sizes.values()), {n: torch.zeros_like(p) for n, p in model.initial().params.items()}
    assert len({recipe.steps(n) for n in sizes.values()}) > 1
    for k, size in sizes.items():
        data = run.federation.client(k)
        params = {n: p.clone().requires_grad_() for n, p in model.initial().params.items()}
        sgd = torch.optim.SGD([*params.values()], recipe.lr, 0.5, weight_decay=recipe.weight_decay)
        buffers = dict(model.initial().buffers)
        steps = list(data.training_batches(data.draw(3, 3, 1, k), recipe.batch_size))
        for number, batch in enumerate(steps):
            before = {n: p.detach().clone() for n, p in params.items()}
            sgd.zero_grad()
            student = model.student(buffers, data.draw(3, 3, 1, k).key + number + 1)
            losses = nn.functional.cross_entropy(student(params, batch.x), batch.y, reduction="none")
            (number / len(steps) * losses.mean()).backward()
            buffers = student.buffers
            sgd.step()
            bound = 0.01 * (1 - number / len(steps))
            with torch.no_grad():
                for n, p in params.items():
                    p.copy_(before[n] + (p - before[n]).clamp(-bound, bound))
        mean = {n: m + params[n].detach() * size / total for n, m in mean.items()}
    for n, m in mean.items():
        torch.testing.assert_close(found.weights.params[n], m, rtol=0, atol=1e-9)


class Follower(NamedTuple):
    """What a client holds on to: what came before a step, a mean of gradients, a count, and what stays."""

    weights: Weights
    mean: Any
    steps: Tensor
    arrived: Weights


def following() -> type[FedAvg]:
    """An algorithm that looks at what its steps left, in each of its hooks."""

    def prepare(self: Any, model: Any, down: Any, memory: Any, data: Any) -> Any:
        zeros = {n: torch.zeros_like(p) for n, p in down.weights.params.items()}
        return Follower(down.weights, zeros, torch.zeros((), dtype=torch.float64), down.weights)

    def loss(self: Any, model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
        own = FedAvg.loss(self, model, params, anchor, batch)
        taught = model.frozen(anchor.weights, batch.x).softmax(-1)  # by running statistics, too
        return own + batch.mean((model(params, batch.x).softmax(-1) - taught).square().sum(-1))

    def correct(self: Any, grads: Any, anchor: Any) -> Any:
        return {n: g + anchor.mean[n] / (anchor.steps + 1) for n, g in grads.items()}

    def settle(self: Any, params: Any, before: Any, anchor: Any, batch: Any) -> Any:
        back = anchor.weights.params  # which the optimiser has not moved
        return {n: 0.9 * p + 0.1 * back[n] + 1e-3 * anchor.mean[n] for n, p in params.items()}

    def advance(self: Any, anchor: Any, weights: Any, grads: Any, batch: Any) -> Any:
        mean = {n: 0.5 * m + 0.5 * grads[n] for n, m in anchor.mean.items()}
        return anchor._replace(weights=weights, mean=mean, steps=anchor.steps + 1)

    def finish(self: Any, model: Any, weights: Any, anchor: Any, *_: Any) -> Any:
        assert_same(anchor.weights, weights, 0)
        params = {n: anchor.steps * m + anchor.arrived.params[n] for n, m in anchor.mean.items()}
        return Up(Weights(params, weights.buffers)), Memory()

    return replaced(
        prepare=prepare, loss=loss, correct=correct, settle=settle, advance=advance, finish=finish
    )


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
@pytest.mark.parametrize("net", [NETS, BATCH_NORM, "mlp:8"])
def test_what_a_client_holds_on_to_may_go_on_with_its_steps(backend, net, monkeypatch):
    training = {"local_epochs": 3, "momentum": 0.5, "weight_decay": 0.01}
    settings = {"model": net, "sample": 6, "rounds": 1, "training": training}
    found = played(following(), monkeypatch, backend=backend, **settings)
    run = experiment("fedavg", **settings)
    model, recipe = run.model, run.config.training
    sizes = {k: run.federation.size(k) for k in range(6)}
    assert len({recipe.steps(n) for n in sizes.values()}) > 1
    initial = model.initial()
    sums = {n: torch.zeros_like(p) for n, p in initial.params.items()}
    for k, size in sizes.items():
        data = run.federation.client(k)
        params = {n: p.clone().requires_grad_() for n, p in initial.params.items()}
        sgd = torch.optim.SGD([*params.values()], recipe.lr, 0.5, weight_decay=0.01)
        buffers, last = dict(initial.buffers), initial
        mean = {n: torch.zeros_like(p) for n, p in initial.params.items()}
        draws = data.draw(3, 3, 1, k)
        for number, batch in enumerate(data.training_batches(draws, recipe.batch_size)):
            sgd.zero_grad()
            student = model.student(buffers, draws.key + number + 1)
            taught = model.logits(last, batch.x).detach().softmax(-1)
            losses = nn.functional.cross_entropy(student(params, batch.x), batch.y, reduction="none")
            apart = (student(params, batch.x).softmax(-1) - taught).square().sum(-1)
            (losses + apart).mean().backward()
            buffers = student.buffers
            raw = {n: p.grad.clone() for n, p in params.items()}
            for n, p in params.items():
                p.grad += mean[n] / (number + 1)
            sgd.step()
            with torch.no_grad():
                for n, p in params.items():
                    p.copy_(0.9 * p + 0.1 * last.params[n] + 1e-3 * mean[n])
            mean = {n: (m + raw[n]) / 2 for n, m in mean.items()}
            last = trees.detached(Weights(params, buffers))
        steps = recipe.steps(size)
        for n, m in mean.items():
            sums[n] += (steps * m + initial.params[n]) * size / sum(sizes.values())
    assert_same(found.weights.params, sums, 1e-9)
    assert max((s - initial.params[n]).abs().max().item() for n, s in sums.items()) > 0.01


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_what_a_client_holds_on_to_stays_unless_it_says_otherwise(backend, monkeypatch):
    def nothing(self: Any, anchor: Any, weights: Any, grads: Any, batch: Any) -> Any:
        return anchor

    held = replaced(loss=pulled)
    one, other = (
        played(a, monkeypatch, backend=backend).weights
        for a in (held, replaced(loss=pulled, advance=nothing))
    )
    assert_same(one, other)


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_what_arrived_stays_as_it_was_while_steps_go_on_from_it(backend, monkeypatch):
    """All clients share it, in the first step with what goes on."""
    seen: list[Any] = []

    def finish(self: Any, model: Any, weights: Any, anchor: Any, *_: Any) -> Any:
        seen.append(anchor)
        return Up(weights), Memory()

    algorithm = dataclass(frozen=True)(type("Looked", (following(),), {"finish": finish}))
    run = played(algorithm, monkeypatch, backend=backend, sample=6, rounds=1)
    initial = run.model.initial()
    for anchor in seen:
        assert_same(anchor.arrived, initial, 0)
        assert (anchor.weights.params["fc.weight"] - initial.params["fc.weight"]).abs().max() > 1e-4
    assert len({float(anchor.steps) for anchor in seen}) > 1


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_a_step_that_settles_for_what_was_made_changes_nothing(backend, monkeypatch):
    as_it_is = replaced(settle=lambda self, params, before, anchor, batch: params)
    one, other = (played(a, monkeypatch, backend=backend).weights for a in (as_it_is, FedAvg))
    assert_same(one, other)
    held = replaced(settle=lambda self, params, before, anchor, batch: before)
    run = played(held, monkeypatch, backend=backend)
    assert_same(run.weights.params, run.model.initial().params, 1e-12)


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_what_comes_before_the_steps_knows_how_they_will_be_taken(backend, monkeypatch):
    told: dict[int, Any] = {}

    def prepare(self: Any, model: Any, down: Any, memory: Any, data: Any) -> Any:
        told[data.number] = data.sgd
        return Anchor(down.weights)

    def finish(self: Any, model: Any, weights: Any, anchor: Any, memory: Any, data: Any, sgd: Any) -> Any:
        assert told[data.number] == data.sgd == sgd
        return Up(weights), memory

    settings = {"training": {"lr": 0.5, "lr_decay": 0.9, "momentum": 0.25}}
    run = played(replaced(prepare=prepare, finish=finish), monkeypatch, backend=backend, sample=6, **settings)
    recipe = run.config.training
    assert told == {k: recipe.sgd(3, run.federation.size(k)) for k in range(6)}
    assert {sgd.lr for sgd in told.values()} == {0.5 * 0.9**2}
    assert len({sgd.steps for sgd in told.values()}) > 1


class Halves(NamedTuple):
    """What is sent: numbers of half the bytes."""

    weights: Weights


def halved(tree: Any) -> Any:
    return trees.transform(lambda t: t.float() if t.is_floating_point() else t, tree)


def doubled(tree: Any) -> Any:
    return trees.transform(lambda t: t.double() if t.is_floating_point() else t, tree)


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
@pytest.mark.parametrize("chains", [None, 2])
@pytest.mark.parametrize("net", [NETS, BATCH_NORM])
def test_clients_train_what_they_make_of_what_they_are_sent(backend, chains, net, monkeypatch):
    """As those of an algorithm that rounds what it sends; but for what that weighs."""
    small = replaced(
        loss=pulled,
        wrap=lambda self, down: Halves(halved(down.weights)),
        unwrap=lambda self, sent: Down(doubled(sent.weights)),
    )
    rounding = replaced(
        loss=pulled,
        broadcast=lambda self, model, server, auxiliary: Down(doubled(halved(server.weights))),
        relay=lambda self, down, up: Down(doubled(halved(up.weights))),
    )
    settings = {"backend": backend, "chains": chains, "model": net}
    one, other = (played(a, monkeypatch, **settings) for a in (small, rounding))
    assert_same(one.weights, other.weights)
    plain = played(replaced(loss=pulled), monkeypatch, **settings)
    apart = [(p - plain.weights.params[n]).abs().max().item() for n, p in one.weights.params.items()]
    assert max(apart) > 1e-10
    for mine, theirs in zip(one.history, other.history, strict=True):
        counts = trees.size_in_bytes(
            tuple(t for _, t in trees.leaves(one.weights) if not t.is_floating_point())
        )
        assert mine["bytes_down"] == (theirs["bytes_down"] - 3 * counts) / 2 + 3 * counts
        assert mine["bytes_up"] == theirs["bytes_up"]


FROZEN = """
from torch import nn

def net(shape, classes):
    made = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
    made[1].bias.requires_grad_(False)
    return made
"""


def test_what_is_frozen_arrives_as_it_is(monkeypatch, tmp_path):
    (tmp_path / "net.py").write_text(FROZEN)
    changing = replaced(
        wrap=lambda self, down: down,
        unwrap=lambda self, sent: Down(
            sent.weights._replace(buffers={n: b + 1 for n, b in sent.weights.buffers.items()})
        ),
    )
    with pytest.raises(UserError, match=r"`unwrap` changes '1\.bias', which is frozen: send it as it is"):
        played(changing, monkeypatch, model=f"{tmp_path}/net.py:net")


def test_a_field_of_ones_own_may_be_called_as_what_private_protects(monkeypatch):
    @dataclass(frozen=True)
    class Loop(FedAvg):
        inner: float = 0.5

    assert_same(played(Loop, monkeypatch).weights, played(FedAvg, monkeypatch).weights)


def cross_entropies(model: Any, params: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(params, batch.x), batch.y, reduction="none")


def own_loss(term: Any, **hooks: Any) -> type[FedAvg]:
    """FedAvg whose loss is this function of student, params, anchor and batch."""
    return replaced(
        loss=lambda self, model, params, anchor, batch: term(model, params, anchor, batch), **hooks
    )


def teaching(model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
    student, teacher = model(params, batch.x), model.frozen(anchor.weights, batch.x)
    kd = nn.functional.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")
    return batch.mean(nn.functional.cross_entropy(student, batch.y, reduction="none")) + kd


def rarely(model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
    weight = 1.0 / (1 + batch.y)
    return batch.mean(weight / weight.mean() * cross_entropies(model, params, batch))


COUNTS_FILLERS = {
    "a plain mean": own_loss(lambda m, p, a, batch: cross_entropies(m, p, batch).mean()),
    "a term that is nothing at the first step": own_loss(teaching),
    "weights that only labels say": own_loss(rarely),
    "the size of the batch": own_loss(
        lambda m, p, a, batch: batch.mean(cross_entropies(m, p, batch)) * len(batch.y) / 16
    ),
    "a term of a later round": own_loss(
        lambda m, p, anchor, batch: (
            batch.mean(cross_entropies(m, p, batch)) + anchor.number * m(p, batch.x).square().mean()
        ),
        start=lambda self, weights: WithNumber(weights, torch.tensor(0.0)),
        broadcast=lambda self, model, server, auxiliary: server,
        prepare=lambda self, model, down, memory, data: down,
        aggregate=lambda self, server, ups, cohort: WithNumber(cohort.mean(ups.weights), server.number + 1),
    ),
}


@pytest.mark.parametrize("what", COUNTS_FILLERS)
def test_a_loss_that_counts_what_batches_are_filled_with_is_refused(what, monkeypatch):
    played(COUNTS_FILLERS[what], monkeypatch, rounds=2)  # one after another no batch is filled up
    if what == "a term of a later round":
        played(COUNTS_FILLERS[what], monkeypatch, backend="vectorised", rounds=1)
    with pytest.raises(UserError, match=r"`loss` counts what a small batch is filled up with.*batch\.mean"):
        played(COUNTS_FILLERS[what], monkeypatch, backend="vectorised", rounds=2)


@pytest.mark.parametrize(
    "chance", [lambda: random.random(), mtrand.RandomState(1).rand], ids=["python", "own"]
)
def test_a_loss_that_says_something_else_each_time_is_not_told_of_its_mean(chance, monkeypatch):
    loss = own_loss(lambda m, p, a, batch: batch.mean(cross_entropies(m, p, batch)) * chance())
    with pytest.raises(UserError, match="`loss` says something else when it is asked the same again"):
        played(loss, monkeypatch, backend="vectorised")


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
@pytest.mark.parametrize(
    ("values", "found"),
    [
        (lambda own: own.exp(), r"shape \[\d+, 4\]"),
        (lambda own: -own[:, :1], r"shape \[\d+, 1\]"),
        (lambda own: -own.mean(), r"shape \[\]"),
        (lambda own: 3.0, "a float"),
    ],
)
def test_a_mean_of_several_numbers_an_example_is_refused(values, found, backend, monkeypatch):
    loss = own_loss(lambda m, p, a, batch: batch.mean(values(m(p, batch.x).log_softmax(1))))
    with pytest.raises(UserError, match=rf"batch\.mean is given {found}, and takes one number an example"):
        played(loss, monkeypatch, backend=backend)


@pytest.mark.parametrize("right", [True, False])
def test_so_is_one_that_knows_single_precision_alone(right, monkeypatch):
    def fixed(model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
        turned = model(params, batch.x) @ torch.eye(4)  # of no type but this one
        each = nn.functional.cross_entropy(turned, batch.y, reduction="none")
        return batch.mean(each) if right else each.mean()

    with contextlib.nullcontext() if right else pytest.raises(UserError, match="counts what a small batch"):
        played(own_loss(fixed), monkeypatch, backend="vectorised", precision="float32")


def test_one_client_tells_of_all_of_them(monkeypatch):
    """Also where it has one example, its label's weight is the mean, and a filler is that example."""
    work = experiment("fedavg", sample=6, backend="vectorised").work
    parts = [part[: 1 if k == 0 else 17 + k] for k, part in enumerate(work.federation.parts)]
    work = replace(work, federation=replace(work.federation, parts=parts))
    down = Down(work.model.initial())
    jobs = [Job(k, k, 1, down, Memory()) for k in range(6)]
    list(Vectorised(work).map(jobs))
    with pytest.raises(UserError, match="counts what a small batch"):
        list(Vectorised(replace(work, algorithm=own_loss(rarely)())).map(jobs))


def apart(model: Any, params: Any, anchor: Any, batch: Any) -> Tensor:
    """Cross-entropy, and that a batch's logits be apart from their own mean, with batch.mask."""
    logits = model(params, batch.x)
    mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
    mean = torch.where(mask[:, None], logits, 0.0).sum(0) / mask.sum()
    own = nn.functional.cross_entropy(logits, batch.y, reduction="none")
    return batch.mean(own + (logits - mean).square().sum(1))


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_a_loss_that_leaves_out_what_batches_are_filled_with_is_not_refused(precision, monkeypatch):
    settings = {"precision": precision, "rounds": 2, "augmentation": "flip+cutout:2"}
    alone, stacked = (
        played(own_loss(apart), monkeypatch, backend=b, **settings) for b in ("serial", "vectorised")
    )
    assert_same(
        stacked.weights, alone.weights, {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.1}[precision]
    )


def test_two_passes_of_one_step_drop_other_units():
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), KeyedDropout(0.5, salt=1), nn.Linear(64, 3))
    model, x = Model(module), torch.ones(4, 1, 4, 4)
    weights = model.initial()
    student = model.student(weights.buffers, torch.tensor(5))
    first, second = student(weights.params, x), student(weights.params, x)
    assert not torch.equal(first, second)
    again = model.student(weights.buffers, torch.tensor(5))
    assert torch.equal(first, again(weights.params, x))
    assert torch.equal(second, again(weights.params, x))


@dataclass(frozen=True)
class Sharing(Partition):
    """Whatever owners it is told to give."""

    how: str = "short"

    def owners(self, labels: Any, clients: int, rng: Any) -> Any:
        even = np.arange(len(labels)) % clients
        return {
            "short": even[:-1],
            "many": np.where(np.arange(len(labels)) == 3, clients, even),
            "negative": np.where(np.arange(len(labels)) == 3, -1, even),
            "fractions": even.astype(float),
            "list": [np.flatnonzero(even == k) for k in range(clients)],
        }[self.how]


@pytest.mark.parametrize("how", ["short", "many", "negative", "fractions", "list"])
def test_a_partition_that_gives_no_owners_is_refused(how):
    with pytest.raises(UserError, match=r"`owners` must return an array of 20 whole numbers.* 0 to 3"):
        Sharing(how).split(np.arange(20) % 2, 4, 0)


def test_any_whole_numbers_will_do_as_owners():
    @dataclass(frozen=True)
    class Small(IID):
        def owners(self, labels: Any, clients: int, rng: Any) -> Any:
            return super().owners(labels, clients, rng).astype(np.uint8)

    assert sum(map(len, Small().split(np.arange(20) % 2, 4, 0))) == 20


@pytest.mark.parametrize(("setting", "base"), [("partition", "Partition"), ("measures", "Measure")])
def test_a_class_of_another_kind_is_refused(setting, base, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Bare:\n    every: int = 1\n"
    )
    named: Any = f"{file}:Bare"
    given = {setting: [named] if setting == "measures" else named}
    with pytest.raises(UserError, match=rf"does not derive from fedrecall\..*\.{base}\."):
        Experiment(configs.make({"clients": 6, **given}), dataset=data())


def test_a_measure_that_no_record_holds_is_told_by_name(tmp_path):
    file = tmp_path / "measure.py"
    file.write_text(
        "from dataclasses import dataclass\n\nimport numpy as np\n\n"
        "from fedrecall.measures.moment import Measure\n\n\n@dataclass(frozen=True)\nclass Arrays(Measure):\n"
        "    def __call__(self, moment):\n        return {'sizes': np.ones(2)}\n"
    )
    with pytest.raises(UserError, match=r"measure .*Arrays returns what no record can hold .*\.tolist\(\)"):
        experiment("fedavg", measures=[f"{file}:Arrays"]).run()


def test_a_server_that_looks_at_single_uploads_is_found_out_whatever_they_are():
    """FedExP's step is 1 for uploads of one sign, clipping does nothing to short ones, counts are whole."""

    def longest(self: Any, server: Any, ups: Any, cohort: Any) -> Any:
        moved = {n: w - server.weights.params[n] for n, w in ups.weights.params.items()}
        each = sum(m.flatten(1).square().sum(1) for m in moved.values())
        mean = cohort.mean(moved)
        step = max(1.0, float(each.mean() / (2 * sum(m.square().sum() for m in mean.values()) + 1e-6)))
        params = {n: w + step * mean[n] for n, w in server.weights.params.items()}
        return server._replace(weights=server.weights._replace(params=params))

    def clipped(self: Any, server: Any, ups: Any, cohort: Any) -> Any:
        moved = {n: w - server.weights.params[n] for n, w in ups.weights.params.items()}
        length = sum(m.flatten(1).square().sum(1) for m in moved.values()).sqrt()
        shares = [s * min(1.0, 100 / max(float(a), 1e-9)) for s, a in zip(cohort.shares, length, strict=True)]
        mean = cohort.sum(moved, shares)
        params = {n: w + mean[n] for n, w in server.weights.params.items()}
        return server._replace(weights=server.weights._replace(params=params))

    def counting(self: Any, server: Any, ups: Any, cohort: Any) -> Any:
        share = ups.counts / ups.counts.sum()
        return server._replace(weights=cohort.mean(ups.weights, share.tolist()))

    assert not sums(replaced(aggregate=longest)())
    assert not sums(replaced(aggregate=clipped)())
    by_counts = replaced(
        finish=lambda self, model, weights, anchor, memory, data, sgd: (
            Counted(weights, torch.tensor(len(data))),
            memory,
        ),
        aggregate=counting,
    )
    assert not sums(by_counts())
