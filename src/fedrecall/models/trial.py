"""A user's network, tried when it is made and as a run will use it: what fails is told before round 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedrecall import streams
from fedrecall.errors import UserError
from fedrecall.models import habits, kernels
from fedrecall.models.habits import Habits
from fedrecall.models.layers import KeyedDropout, watched
from fedrecall.models.model import equipped

Shape = tuple[int, ...]


class Pass(NamedTuple):
    """What was seen of one."""

    logits: Any
    wrote: bool
    """Whether the examples are others now."""
    changed: frozenset[str]
    """The buffers that are."""


def attempt(path: str, module: nn.Module, shape: Shape, classes: int) -> None:
    """Note the network's habits, or raise UserError where it makes no logits of examples of this shape."""
    with streams.seeded(0, "tried"):
        _evaluate(path, module, shape, classes)
        found = _look(module, shape)
        habits.note(module, found or Habits())
        if found is not None:
            _train_on_one(path, module, shape, classes, found)


def _evaluate(path: str, module: nn.Module, shape: Shape, classes: int) -> None:
    """Two blank examples, three for dropouts to be watched, and one, as a data set's last batch may be."""
    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)

    def logits(count: int) -> Any:
        with _told(path, (count, *shape)):
            return module(torch.zeros(count, *shape, dtype=kind))

    with _evaluating(module), torch.no_grad():
        with watched(module):
            two = logits(2)
            if any(isinstance(m, KeyedDropout) for m in module.modules()):
                logits(3)
        _check(path, two, (2, *shape), classes)
        _check(path, logits(1), (1, *shape), classes)


def _train_on_one(path: str, module: nn.Module, shape: Shape, classes: int, found: Habits) -> None:
    """One example, as an epoch's last batch may be."""
    one, when = (1, *shape), " in training"
    try:
        with _told(path, one, when):
            made = _pass(module, True, _examples(1, shape), laid=not found.views)
    except UserError as error:
        if "Expected more than 1" in str(error):  # says a batch norm: many a data set has no such batch
            return
        raise
    _check(path, made.logits, one, classes, when)


def _look(module: nn.Module, shape: Shape) -> Habits | None:
    """What the network's passes do; None where they fail whatever the layout, as they will in training."""
    x = _examples(2, shape)
    for laid in (True, False):
        with suppress(Exception):
            seen = [_pass(module, training, x, laid) for training in (True, False)]
            if laid and not _alike(seen[-1].logits, _pass(module, False, x, laid=False).logits):
                continue
            changes = frozenset[str]().union(*(one.changed for one in seen))
            return Habits(not laid, any(one.wrote for one in seen), changes)
    return None


def _pass(module: nn.Module, training: bool, x: Tensor, laid: bool) -> Pass:
    """Forward and back, as a run does it: with ``laid`` channels are the last axis in memory."""
    copied = equipped(module).train(training)
    given = {n: _single(b) for n, b in copied.named_buffers()}
    for name, p in copied.named_parameters():
        given[name] = kernels.weight(_single(p)) if laid else _single(p)
    learned = [given[n].requires_grad_() for n, p in module.named_parameters() if p.requires_grad]
    seen, state = (kernels.images(x) if laid else x).clone(), dict(given)
    with streams.seeded(0, "tried"), torch.enable_grad():
        logits = functional_call(copied, state, (seen,))
        if isinstance(logits, Tensor) and logits.requires_grad:
            torch.autograd.grad(logits.sum(), learned, allow_unused=True)
            logits = logits.detach()
    # What a weight is made with, as by spectral norm, is of the weight's type whoever changes it.
    statistics = [n for n, _ in copied.named_buffers() if "parametrizations." not in n]
    changed = {n for n in statistics if state[n] is not given[n] or given[n]._version}
    return Pass(logits, bool(seen._version) or not torch.equal(seen, x), frozenset(changed))


def _single(t: Tensor) -> Tensor:
    """A copy in single precision, if it is of a kind that is run in it."""
    return t.detach().clone().float() if t.is_floating_point() else t.detach().clone()


def _examples(count: int, shape: Shape) -> Tensor:
    """Blank rows, or images in which no pixel is like its neighbours."""
    if len(shape) != 3:
        return torch.zeros(count, *shape)
    return torch.arange(count * math.prod(shape)).remainder(251).div(251).view(count, *shape)


def _alike(found: Any, right: Any) -> bool:
    """Whether these are the same logits but for rounding."""
    if not isinstance(right, Tensor):
        return True
    near = 0.01 * float(right.abs().max()) + 1e-6
    return torch.allclose(found, right, rtol=0, atol=near, equal_nan=True)


def _check(path: str, logits: Any, shape: Shape, classes: int, when: str = "") -> None:
    if not isinstance(logits, Tensor) or logits.shape != (shape[0], classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"model {path} returned {got}{when} for a batch of shape {shape}; expected logits of shape"
            f" {(shape[0], classes)}."
        )


@contextmanager
def _told(path: str, shape: Shape, when: str = "") -> Iterator[None]:
    """Say of what fails here with which network and examples it did."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"model {path} failed{when} on a batch of shape {shape}: {type(error).__name__}: {error}"
        ) from error


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each layer's own again."""
    mode = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for layer, training in mode.items():
            layer.training = training
