"""What an algorithm sends and keeps, found by letting one client with made-up data play a round.

The tuples that the hooks return are the declaration: whatever is in them travels, nothing else
does, and a payload with other names, shapes or types is refused.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedrecall import streams, trees
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.data.client import ClientData
from fedrecall.downloads import arrived, travelled
from fedrecall.errors import Malformed, UserError
from fedrecall.models.model import Model, Weights
from fedrecall.training import Recipe, visit


class Payloads(NamedTuple):
    """One round's tuples."""

    down: Any
    up: Any
    memory: Any


@streams.seeded(0, "made up")
def declared(algorithm: FedAvg, model: Model, shape: tuple[int, ...], classes: int) -> Payloads:
    """What travels down and up and what a client keeps, as trees of the right names, shapes and types."""
    weights = model.initial()
    data = _made_up(shape, classes, weights)
    sent = declared_down(algorithm, model, shape, classes)
    done = visit(
        algorithm,
        model,
        Recipe(local_epochs=1, batch_size=len(data)),
        data,
        arrived(algorithm, sent),
        algorithm.remember(weights),
        seed=0,
        round_number=1,
        client=0,
    )
    if done.failure is not None:
        raise UserError(f"tried on made-up examples the algorithm fails: {done.failure.reason}.")
    return Payloads(sent, done.up, done.memory)


@streams.seeded(0, "made up")
def declared_down(algorithm: FedAvg, model: Model, shape: tuple[int, ...], classes: int) -> Any:
    """What is sent down in the first round; what there is none of yet has a dimension of 0."""
    weights = model.initial()
    down = algorithm.broadcast(model, algorithm.start(weights), _made_up(shape, classes, weights))
    return travelled(algorithm, model, down)[0]


@streams.seeded(0, "made up")
def kept(algorithm: FedAvg, model: Model, shape: tuple[int, ...], classes: int) -> Any:
    """What a client keeps once it was visited; only what is empty before takes a visit to find."""
    memory = algorithm.remember(model.initial())
    if all(t.numel() for _, t in trees.leaves(memory)):
        return memory
    return declared(algorithm, model, shape, classes).memory


def check(arrays: dict[str, Tensor], template: Any, what: str, *, growing: bool = False) -> Any:
    """The tree in these arrays, or a ValueError that says how they differ from what is declared.

    With ``growing`` a dimension that is declared as 0 may be of any size: there may be teachers in
    a later round.
    """
    tree = trees.restore(template, arrays, what)
    for (name, expected), (_, given) in zip(trees.leaves(template), trees.leaves(tree), strict=True):
        if given.dtype != expected.dtype:
            raise Malformed(f"{what}: {name!r} is {given.dtype}, declared is {expected.dtype}")
        if not _fits(given.shape, expected.shape, growing):
            raise Malformed(
                f"{what}: {name!r} has shape {list(given.shape)}, declared is {list(expected.shape)}"
            )
    if not trees.finite(tree):
        raise Malformed(f"{what} holds NaN or Inf")
    return tree


def _fits(given: torch.Size, expected: torch.Size, growing: bool) -> bool:
    if not growing or len(given) != len(expected):
        return given == expected
    return all(g == e or e == 0 for g, e in zip(given, expected, strict=True))


def _made_up(shape: tuple[int, ...], classes: int, weights: Weights) -> ClientData:
    like = next(iter(weights.params.values()))
    stream = streams.torch_stream(0, "made up")
    n = 2 * classes
    x = torch.randint(0, 256, (n, *shape), generator=stream, dtype=torch.uint8)
    mean = std = torch.full((shape[0],), 0.5)
    if len(shape) != 3:  # a table's row, a signal, a volume
        x = x.float()
        mean = x.mean(0) if len(shape) == 1 else x.mean().view(1)
        std = torch.ones_like(mean)
    x, y, mean, std = (t.to(like.device) for t in (x, torch.arange(n) % classes, mean, std))
    return ClientData(x, y, classes, mean, std, dtype=like.dtype)
