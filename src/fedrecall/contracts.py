"""What an algorithm's hooks have to return: a mistake is told in a sentence that names the hook.

Each check is made where the hook is called, in the first round that makes the mistake: what would be wrong
without a word, or lost when the run is resumed, does not get further than that.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor

from fedrecall import trees
from fedrecall.batches import Batch
from fedrecall.errors import UserError, shown
from fedrecall.models.model import Params, Structure, Weights

if TYPE_CHECKING:
    from fedrecall.algorithms.fedavg import FedAvg


def carries(tree: Any, hook: str, what: str) -> None:
    """Raise UserError if the tree has values that no message, file or stack of clients would carry."""
    for path, value in trees.others(tree):
        found = f"has {path} =" if path else "is"
        said = "a list" if isinstance(value, list) else " ".join(shown(value).split())
        raise UserError(
            f"{what}, which `{hook}` returns, {found} {said}: only tensors in (named) tuples and dicts "
            f"travel and are kept, so {remedy(value)}."
        )


def remedy(value: Any) -> str:
    """What to do with a value that `trees.others` finds."""
    return "make its keys names or whole numbers" if isinstance(value, Mapping) else "make it a tensor"


def weighted(tree: Any, hook: str, what: str) -> None:
    """Raise UserError unless the tree is a named tuple that has a model."""
    if not hasattr(getattr(tree, "weights", None), "params"):
        raise UserError(
            f"`{hook}` returns {_kind(tree)}: it must be {what}, a named tuple with the field weights."
        )


def pair(made: Any) -> tuple[Any, Any]:
    """The two things that `finish` returns, or UserError."""
    if not isinstance(made, tuple) or hasattr(made, "_fields") or len(made) != 2:
        raise UserError(
            f"`finish` returns {_kind(made)}: it must be two things, what the client sends and what it keeps."
        )
    first, second = made
    return first, second


def alike(made: Any, before: Any, hook: str, what: str, known_from: str) -> None:
    """Raise UserError if a tree has other tensors than its kind had at first; their sizes may differ."""
    carries(made, hook, what)
    found, expected = trees.arrays(made).keys(), trees.arrays(before).keys()
    if lacking := sorted(expected - found):
        raise UserError(f"{what}, which `{hook}` returns, lacks {lacking[0]}, which `{known_from}` gives it.")
    if more := sorted(found - expected):
        raise UserError(
            f"{what}, which `{hook}` returns, has {more[0]}, which `{known_from}` does not give it: it must "
            "have the same fields from the beginning (a tensor may have a dimension of 0 until then)."
        )


def full(weights: Any, model: Any, hook: str, what: str) -> None:
    """Raise UserError unless these are weights of all of the model's tensors, in their shapes and types."""
    if not (hasattr(weights, "params") and hasattr(weights, "buffers")):
        raise UserError(f"`{hook}` returns {_kind(weights)}: it must be Weights.")
    for name, like in {**model.params, **model.buffers}.items():
        given = weights.params.get(name, weights.buffers.get(name))
        if given is None:
            raise UserError(
                f"{what}, which `{hook}` returns, has weights without {name!r}: send all parameters, those "
                "that shall stay as they were with their old values."
            )
        if given.shape != like.shape:
            raise UserError(
                f"{what}, which `{hook}` returns, has {name!r} of shape {list(given.shape)}, and the model's "
                f"is {list(like.shape)}."
            )
        if given.dtype != like.dtype:
            raise UserError(
                f"{what}, which `{hook}` returns, has {name!r} in {_short(given)}, and the model's is in "
                f"{_short(like)}: convert it (.to(...)) where it is computed."
            )


def deployed(algorithm: FedAvg, weights: Weights, memory: Any) -> Weights:
    """The model that a client uses, of one that travels and what it keeps; UserError if that is none.

    What it trains beside the network, as `personal` may say, is no part of it.
    """
    with untouched({"weights": weights, "memory": memory}, "deploy", "what it is given"):
        own = algorithm.deploy(weights, memory)
    full(own, weights, "deploy", "the client's model")
    if own.params.keys() <= weights.params.keys():
        return own
    return own._replace(params={n: p for n, p in own.params.items() if n in weights.params})


def one_form(ups: Sequence[Any]) -> None:
    """Raise UserError if uploads differ in which tensors they have or in their shapes: they are stacked."""
    first = {n: t.shape for n, t in trees.leaves(ups[0])}
    for up in ups[1:]:
        other = {n: t.shape for n, t in trees.leaves(up)}
        if other == first:
            continue
        name = sorted(n for n in first.keys() | other.keys() if first.get(n) != other.get(n))[0]
        raise UserError(
            f"clients send {name} in different forms, or some do and some do not: every upload that `finish` "
            "returns must have the same tensors in the same shapes (zeros where a client has nothing to say)."
        )


def scalar(loss: Any) -> Tensor:
    """The loss, or UserError."""
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise UserError(
            f"`loss` returns {_kind(loss)}{shape}: it must be one number, the batch's mean (batch.mean)."
        )
    return loss


def objective(loss: Any) -> Tensor:
    """The loss that a gradient is to be taken of, or UserError."""
    if not scalar(loss).requires_grad:
        raise UserError(
            "`loss` returns a number that does not depend on `params`, so there is nothing to learn from: "
            "compute it from what model(params, batch.x) gives, not from model.frozen or .detach()."
        )
    return loss  # type: ignore[no-any-return]


def gradients(grads: Any, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients, or UserError."""
    if not isinstance(grads, dict) or grads.keys() != params.keys():
        lacking = sorted(params.keys() - grads.keys()) if isinstance(grads, dict) else []
        more = sorted(map(str, grads.keys() - params.keys())) if isinstance(grads, dict) else []
        found = f"no gradient of {lacking[0]!r}" if lacking else _kind(grads)
        found = f"a gradient of {more[0]!r}, which is no parameter" if more and not lacking else found
        raise UserError(f"`correct` returns {found}: it must be a dict with the gradient of each parameter.")
    for name, p in params.items():
        if not isinstance(grads[name], Tensor):
            raise UserError(
                f"`correct` returns {_kind(grads[name])} as the gradient of {name!r}: it must be a tensor "
                "(torch.zeros_like of the gradient where it shall be nothing)."
            )
        if grads[name].shape != p.shape:
            raise UserError(
                f"`correct` returns a gradient of {name!r} of shape {list(grads[name].shape)}, and the "
                f"parameter's is {list(p.shape)}."
            )
    return grads


def settled(made: Any, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a step leaves, or UserError."""
    if not isinstance(made, dict) or made.keys() != params.keys():
        lacking = sorted(params.keys() - made.keys()) if isinstance(made, dict) else []
        found = f"no {lacking[0]!r}" if lacking else _kind(made)
        raise UserError(
            f"`settle` returns {found}: it must be a dict with each parameter, `before`'s where it is held."
        )
    for name, p in params.items():
        given = made[name]
        if not isinstance(given, Tensor) or (given.shape, given.dtype) != (p.shape, p.dtype):
            found = f"{_short(given)} of {list(given.shape)}" if isinstance(given, Tensor) else _kind(given)
            raise UserError(
                f"`settle` returns {found} as {name!r}: it must be {_short(p)} of {list(p.shape)}, as it was."
            )
    return made


def advanced(made: Any, before: Any) -> Any:
    """What a client holds on to in the next step, or UserError."""
    found, expected = trees.arrays(made), trees.arrays(before)
    if type(made) is not type(before) or found.keys() != expected.keys():
        lacking = [f"no {n}" for n in expected if n not in found] if type(made) is type(before) else []
        more = [f"a new {n}" for n in found if n not in expected] if type(made) is type(before) else []
        what = (lacking + more or [_kind(made)])[0]
        raise UserError(
            f"`advance` returns {what}: it must be its anchor, with other numbers where some change "
            "(anchor._replace(...))."
        )
    for name, like in expected.items():
        given = found[name]
        if (given.shape, given.dtype) != (like.shape, like.dtype):
            raise UserError(
                f"`advance` returns {_short(given)} of {list(given.shape)} as {name}: it must be "
                f"{_short(like)} of {list(like.shape)}, as it was."
            )
    return made


def invited(clients: Any, population: int, count: int) -> list[int]:
    """Who takes part, or UserError."""
    found = _whole(clients)
    if len(found) != count or len({*found}) != count or not all(0 <= k < population for k in found):
        raise UserError(
            f"`invite` returns {shown(clients)}: it must be {count} different clients of 0 to "
            f"{population - 1}, or None for a random draw."
        )
    return found


def order(arranged: Any, sampled: Sequence[int]) -> list[int]:
    """The order of the sampled clients, or UserError."""
    found = _whole(arranged)
    if sorted(found) != sorted(sampled):
        raise UserError(
            f"`arrange` returns {arranged!r}: it must be the clients that it was given, in another order."
        )
    return found


def numbers(told: Any, taken: Container[str], hook: str = "report") -> dict[str, float | None]:
    """What a hook tells of the server's state as plain numbers by name, or UserError.

    NaN and infinity become nothing: JSON has no word for them.
    """
    if not isinstance(told, Mapping):
        raise UserError(f"`{hook}` returns {_kind(told)}: it must be a dict of numbers by name.")
    for name, value in told.items():
        # numpy's numbers, too, and arrays and tensors of one.
        if not (isinstance(value, (int, float)) or getattr(value, "size", None) == 1 or _single(value)):
            raise UserError(f"`{hook}` returns {name!r} = {_kind(value)}: it must be a number.")
        if name in taken:
            raise UserError(f"`{hook}` returns {name!r}, which every record has already: name it otherwise.")
    plain = {str(n): v.item() if hasattr(v, "item") else v for n, v in told.items()}
    return finite(plain)  # type: ignore[no-any-return]


def finite(found: Any) -> Any:
    """What a record is to hold, with None for every NaN and infinity: strict readers of JSON know neither."""
    if isinstance(found, Mapping):
        return {name: finite(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def promise(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """The epsilon and delta that a round's record promises, if it does.

    An algorithm of somebody's own may report something else under either name.
    """
    epsilon, delta = (record.get(name) for name in ("epsilon", "delta"))
    return (epsilon, delta) if _is_number(epsilon) and _is_number(delta) else None


IN_STEPS = "loss`, `correct`, `settle` or `advance", "its anchor"
"""Which hooks steps call, and what they are given besides what changes, for `untouched`."""


@contextmanager
def untouched(tree: Any, hook: str, what: str) -> Iterator[None]:
    """Raise UserError if the tree's tensors or dicts are changed in place: others still look at them."""
    before = [(n, t, _version(t)) for n, t in trees.leaves(tree)]
    yield
    now = trees.arrays(tree)
    for name, tensor, version in before:
        if now.get(name) is not tensor or (version is not None and tensor._version != version):
            raise UserError(f"`{hook}` changes {name} of {what} in place: make new tensors instead.")


def versions(params: Params, batch: Batch) -> list[int | None]:
    """How often what a loss is asked of was changed in place; every step asks, so no names are made."""
    return [_version(t) for t in (*params.values(), *batch) if t is not None]


def unwritten(before: list[int | None], params: Params, batch: Batch) -> None:
    """Raise UserError if a loss has changed in place what it was asked of, when its `versions` were these."""
    if (now := versions(params, batch)) == before:
        return
    names = [f"params[{n!r}]" for n in params]
    names += [f"batch.{n}" for n, t in zip(batch._fields, batch, strict=True) if t is not None]
    first = next(n for n, then, later in zip(names, before, now, strict=True) if then != later)
    raise UserError(f"`loss` changes {first} in place: make a new tensor instead.")


def unchanged(before: Structure, after: Structure) -> None:
    """Raise UserError if what `Model.structure` says is not what it was before."""
    for (name, buffer, version), (_, now, later) in zip(before, after, strict=True):
        if now is not buffer or later != version:
            raise UserError(
                f"the network's forward changes its buffer {name!r}, which is registered with "
                "persistent=False: what one client trains would reach the next. Register it as persistent."
            )


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _whole(given: Any) -> list[int]:
    try:
        return [int(k) for k in given]
    except (TypeError, ValueError):
        return []


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _single(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def _short(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
