"""Local training: what one client does between receiving and sending. The only loop over batches."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedrecall import contracts, streams, trees
from fedrecall.algorithms.fedavg import FedAvg, advances, settles
from fedrecall.algorithms.hooks import Sgd
from fedrecall.batches import Batch
from fedrecall.data.client import ClientData, Draws
from fedrecall.errors import UserError
from fedrecall.models import kernels
from fedrecall.models.model import Model, Params, Structure, Student, Weights
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, Range


@dataclass(frozen=True)
class Recipe:
    """How a client trains."""

    local_epochs: Annotated[int, AT_LEAST_ONE] = 5
    """Passes over the client's examples at each visit, E."""
    batch_size: Annotated[int, AT_LEAST_ONE] = 50
    """Examples a step, B; the last batch of an epoch may be smaller."""
    lr: Annotated[float, POSITIVE] = 0.01
    """Learning rate of the first round."""
    lr_decay: Annotated[float, Range(0, 1, open_low=True)] = 0.99
    """Factor on the learning rate from each round to the next."""
    momentum: Annotated[float, Range(0, 1, open_high=True)] = 0.9
    """Momentum of local SGD; its buffer starts fresh at every visit and is never sent."""
    weight_decay: Annotated[float, NON_NEGATIVE] = 1e-5
    """L2 penalty, added to the gradient."""
    stragglers: Annotated[float, Range(0, 1)] = 0.0
    """Share of visits that end early, after 1 to E - 1 passes; drawn anew for every client and round."""

    def __post_init__(self) -> None:
        """Nobody can make less than one pass."""
        if self.stragglers and self.local_epochs == 1:
            raise UserError("stragglers make fewer passes than local_epochs, which is 1: leave them out.")

    def epochs(self, seed: int, round_number: int, client: int) -> int:
        """Passes over its examples that a client makes at this visit: the same whatever the algorithm."""
        if not self.stragglers:
            return self.local_epochs
        stream = streams.numpy_stream(seed, "epochs", round_number, client)
        passes = int(stream.integers(1, self.local_epochs))
        return passes if stream.random() < self.stragglers else self.local_epochs

    def steps(self, examples: int, epochs: int | None = None) -> int:
        """Batches in so many passes over this many examples; by default in those of who does not straggle."""
        return (self.local_epochs if epochs is None else epochs) * math.ceil(examples / self.batch_size)

    def sgd(self, round_number: int, examples: int, epochs: int | None = None) -> Sgd:
        """The optimiser of a visit in this round (the first is round 1)."""
        lr = self.lr * self.lr_decay ** (round_number - 1)
        return Sgd(lr, self.momentum, self.weight_decay, self.steps(examples, epochs))


class Failure(NamedTuple):
    """Why a visit was given up."""

    client: int
    round: int
    step: int | None
    reason: str

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        return f"client {self.client}, round {self.round}{step}: {self.reason}"


class Visit(NamedTuple):
    """What came of one client's visit."""

    client: int
    examples: int
    up: Any
    """The algorithm's upload; None if the visit failed."""
    memory: Any
    """The client's new memory; the old one if the visit failed."""
    loss: float
    """Mean local objective over the steps."""
    seconds: float
    failure: Failure | None = None


class State(NamedTuple):
    """What changes from step to step."""

    params: Params
    buffers: Params
    velocity: Params


class Begun(NamedTuple):
    """A visit that is ready for its first step."""

    client: int
    data: ClientData
    memory: Any
    sgd: Sgd
    anchor: Any
    state: State
    draws: Draws
    since: float
    chance: int | None
    """What the hooks' draws from the shared streams are seeded with, so that they are repeatable."""
    structure: Structure
    """The network's buffers that are not saved, as they were before the first step."""


Examples = TypeVar("Examples")
Step = Callable[[State, Any, Batch, Tensor], tuple[State, Any, Tensor]]


def visit(
    algorithm: FedAvg,
    model: Model,
    recipe: Recipe,
    data: ClientData,
    down: Any,
    memory: Any,
    *,
    seed: int,
    round_number: int,
    client: int,
) -> Visit:
    """Prepare, train, finish: one client's part of a round, on any backend and any host.

    Whoever views tensors that only lie otherwise in memory because that is faster has them as PyTorch makes
    them: the visit is made anew, and so a function of its job as ever.
    """
    if len(data) == 0:
        return failed(client, data, memory, 0.0, Failure(client, round_number, None, "it has no examples"))
    where = {"seed": seed, "round_number": round_number, "client": client}
    try:
        return _visit(algorithm, model, recipe, data, down, memory, **where)
    except RuntimeError as error:
        if not (model.layout and kernels.unviewable(error)):
            raise
    return visit(algorithm, model.slower(), recipe, data, down, memory, **where)


def _visit(
    algorithm: FedAvg, model: Model, recipe: Recipe, data: ClientData, down: Any, memory: Any, **where: int
) -> Visit:
    begun = begin(algorithm, model, recipe, data, down, memory, laid_out=True, **where)
    batches = data.training_batches(begun.draws, recipe.batch_size)
    key = begun.draws.key.to(data.y.device)
    given = contracts.untouched(begun.anchor, *contracts.IN_STEPS)
    with given, streams.seeded(begun.chance, "steps"):
        take_step = stepper(algorithm, model, begun.sgd)
        state, anchor, losses = train(take_step, begun.state, begun.anchor, batches, key)
    if advances(algorithm):
        anchor = trees.transform(kernels.usual, anchor)
    return end(algorithm, model, begun._replace(anchor=anchor), state, losses, where["round_number"])


def begin(
    algorithm: FedAvg,
    model: Model,
    recipe: Recipe,
    data: ClientData,
    down: Any,
    memory: Any,
    *,
    seed: int,
    round_number: int,
    client: int,
    laid_out: bool = False,
) -> Begun:
    """What happens before the first step: the first memory, `prepare`, and all that is drawn.

    ``laid_out``: the model's tensors lie in memory as it is trained fastest, one client at a time.
    """
    since = time.perf_counter()
    epochs = recipe.epochs(seed, round_number, client)
    sgd = recipe.sgd(round_number, len(data), epochs)
    data = data.numbered(client, sgd)
    chance = hooks_chance(algorithm, seed, round_number, client)
    if memory is None:
        memory = first_memory(algorithm, down, chance)
    with contracts.untouched({"down": down, "memory": memory}, "personal", "what it is given"):
        own = algorithm.personal(down.weights, memory)
    contracts.full(own, down.weights, "personal", "the client's model")
    given = {"down": down, "memory": memory, "data": {"y": data.y}}
    with contracts.untouched(given, "prepare", "what it is given"), streams.seeded(chance, "prepare"):
        anchor = algorithm.prepare(model, down, memory, data)
    start = trees.detached(own)
    start = model.laid_out(start) if laid_out else start
    state = State(start.params, start.buffers, {n: torch.zeros_like(p) for n, p in start.params.items()})
    draws = data.draw(epochs, seed, round_number, client)
    return Begun(client, data, memory, sgd, anchor, state, draws, since, chance, model.structure())


def hooks_chance(algorithm: FedAvg, seed: int, round_number: int, client: int) -> int | None:
    """What a client's hooks draw in a visit follows from this; None: from nothing that anybody knows."""
    # Whoever knows the seed could take noise that protects somebody off again.
    return None if algorithm.secret else streams.key(seed, "hooks", round_number, client)


def first_memory(algorithm: FedAvg, down: Any, chance: int | None) -> Any:
    """What a client has in mind at its first visit."""
    with contracts.untouched(down, "remember", "what arrives"), streams.seeded(chance, "remember"):
        return trees.without_graph(algorithm.remember(down.weights))


def train(
    take_step: Callable[[State, Any, Examples, Tensor], tuple[State, Any, Tensor]],
    state: State,
    anchor: Any,
    batches: Iterable[Examples],
    key: Tensor,
) -> tuple[State, Any, Tensor]:
    """Take a step for every batch; returns the last state, the last anchor and the losses, [K, ...].

    This is the only loop over batches: of one client with `stepper`'s step, of many at once with
    a step mapped over them, which takes the batches of all of them.
    """
    losses = []
    for number, batch in enumerate(batches, start=1):
        state, anchor, loss = take_step(state, anchor, batch, key + number)
        losses.append(loss)
    return state, anchor, torch.stack(losses)


def end(
    algorithm: FedAvg, model: Model, begun: Begun, state: State, losses: Tensor, round_number: int
) -> Visit:
    """What happens after the last step: refuse NaN, then the algorithm's `finish`."""
    client, data, sgd = begun.client, begun.data, begun.sgd

    def refused(step: int, reason: str) -> Visit:
        failure = Failure(client, round_number, step, reason)
        return failed(client, data, begun.memory, time.perf_counter() - begun.since, failure)

    contracts.unchanged(begun.structure, model.structure())
    unsound = torch.nonzero(~torch.isfinite(losses))
    if len(unsound):
        step = int(unsound[0, 0])
        return refused(step + 1, f"the loss became {losses[step].item()}")
    loss = losses.mean().item()
    if not math.isfinite(loss):
        return refused(sgd.steps, f"the mean of the losses became {loss}")
    weights = Weights({n: p.contiguous() for n, p in state.params.items()}, state.buffers)
    if not trees.finite(weights):
        return refused(sgd.steps, "the model became NaN or Inf")
    given = {"anchor": begun.anchor, "memory": begun.memory, "data": {"y": data.y}}
    with contracts.untouched(given, "finish", "what it is given"), streams.seeded(begun.chance, "finish"):
        made = algorithm.finish(model, weights, begun.anchor, begun.memory, data, sgd)
    up, memory = trees.without_graph(contracts.pair(made))
    for what, tree in (("the upload", up), ("what the client would remember", memory)):
        if not trees.finite(tree):
            first = next(name for name, t in trees.leaves(tree) if not trees.finite(t))
            return refused(sgd.steps, f"{what} holds NaN or Inf, first in {first}")
    seconds = time.perf_counter() - begun.since
    return Visit(client, len(data), up, memory, loss, seconds)


def failed(client: int, data: ClientData, memory: Any, seconds: float, failure: Failure) -> Visit:
    """A visit that brings nothing and leaves the client's memory as it was."""
    return Visit(client, len(data), None, memory, math.nan, seconds, failure)


def stepper(algorithm: FedAvg, model: Model, sgd: Sgd) -> Step:
    """One step of local SGD; parameters and velocity are updated in place."""

    keeps_before, goes_on = settles(algorithm), advances(algorithm)

    def take_step(state: State, anchor: Any, batch: Batch, key: Tensor) -> tuple[State, Any, Tensor]:
        for p in state.params.values():
            p.requires_grad_(True)
        student = model.student(state.buffers, key)
        with torch.enable_grad():
            loss = contracts.objective(local_loss(algorithm, student, state.params, anchor, batch))
            found = torch.autograd.grad(loss, list(state.params.values()), materialize_grads=True)
        with torch.no_grad():
            for p in state.params.values():
                p.requires_grad_(False)
            raw = dict(zip(state.params, found, strict=True))
            grads = algorithm.correct(dict(raw), anchor)
            before = trees.detached(state.params) if keeps_before else {}
            descend(state.params, contracts.gradients(grads, state.params), state.velocity, sgd)
            if keeps_before:
                made = algorithm.settle(dict(state.params), before, anchor, batch)
                overwrite(state.params, contracts.settled(made, state.params))
            if goes_on:
                weights = Weights(state.params, student.buffers)
                made = contracts.advanced(algorithm.advance(anchor, weights, raw, batch), anchor)
                anchor = apart(made, weights)
        return State(state.params, student.buffers, state.velocity), anchor, loss.detach()

    return take_step


def local_loss(algorithm: FedAvg, student: Student, params: Params, anchor: Any, batch: Batch) -> Any:
    """What `loss` says of a batch, which it leaves as it is, like the parameters."""
    before = contracts.versions(params, batch)
    said = algorithm.loss(student, dict(params), anchor, batch)
    contracts.unwritten(before, params, batch)
    return said


def descend(params: Params, grads: Params, velocity: Params, sgd: Sgd, lr: Tensor | None = None) -> None:
    """SGD with weight decay and momentum, in place: v <- rho v + g + wd w, w <- w - lr v.

    ``lr``: the learning rate as a tensor, for a step that is recorded once and replayed in rounds
    whose rates differ.
    """
    ps, vs = list(params.values()), list(velocity.values())
    gs = [grads[n] for n in params]
    if lr is None and sgd.momentum and all(map(_fusible, ps, gs, vs)):
        torch._fused_sgd_(  # the same in one pass over memory instead of five
            ps,
            gs,
            vs,
            weight_decay=sgd.weight_decay,
            momentum=sgd.momentum,
            lr=sgd.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        torch.autograd.graph.increment_version([*ps, *vs])  # which it forgets
        return
    if sgd.weight_decay:
        gs = list(torch._foreach_add(gs, ps, alpha=sgd.weight_decay))
    if sgd.momentum:
        torch._foreach_mul_(vs, sgd.momentum)
        torch._foreach_add_(vs, gs)
        gs = vs
    if lr is None:
        torch._foreach_add_(ps, gs, alpha=-sgd.lr)
    else:
        torch._foreach_sub_(ps, torch._foreach_mul(gs, lr))


def overwrite(params: Params, made: Params) -> None:
    """Write these numbers where the others are, which some of them may be, or views of them."""
    for name, value in apart({n: v for n, v in made.items() if v is not params[n]}, params).items():
        params[name].copy_(value)


def apart(held: Any, weights: Weights | Params) -> Any:
    """What is held on to, with copies in the places of weights that will change in place."""
    lent = {t.untyped_storage().data_ptr() for _, t in trees.leaves(weights)}
    return trees.transform(lambda t: t.clone() if t.untyped_storage().data_ptr() in lent else t, held)


def _fusible(p: Tensor, g: Tensor, v: Tensor) -> bool:
    # The fused kernel walks the bytes of all three in step, so they must be laid out alike.
    return (
        kernels.plain(p, g, v)
        and p.dtype == g.dtype
        and p.shape == g.shape
        and p.stride() == g.stride() == v.stride()
    )
