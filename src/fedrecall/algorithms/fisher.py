"""The diagonal empirical Fisher information: how much each parameter matters to a client's data."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedrecall import streams, trees
from fedrecall.batches import LocalData
from fedrecall.losses import cross_entropy
from fedrecall.models import kernels
from fedrecall.models.model import Model, Params, Weights, received

# Per-example gradients made at a time: on a CPU what stays in cache, else what fills the device.
CPU_BYTES, DEVICE_BYTES = 2**23, 2**30
EXAMPLES = 32
"""Examples at a time where the gradients of one layer are made after those of another."""
COMPARED = 8
"""Examples on which the two ways are compared: of one alone rounding may decide which pixel is greatest."""
ALIKE = 0.01
"""How far they may be apart there, as a share of the squared gradients, in the precision of the weights."""

Layers = dict[str, nn.Linear | nn.Conv2d]


def diagonal_fisher(
    model: Model, weights: Weights, data: LocalData, limit: int | None = None, together: int = 1
) -> Params:
    """F_i = mean over examples of (d CE(x) / d w_i)^2, in evaluation mode.

    Squares are taken example by example: the square of a batch's mean gradient is another, much
    smaller quantity, which ``together`` gives for batches of so many examples. ``limit`` is how many
    examples enter at most, spread evenly over the data.
    """
    weights = Weights({n: p.detach() for n, p in weights.params.items()}, weights.buffers)
    used = len(data) if limit is None else min(limit, len(data))
    parts = _spread(data, used)
    if together > 1:
        return _of_batches(model, weights, parts, together)
    layers = _layers(model, weights)
    total = trees.zeros(weights.params)
    for number, (x, y) in enumerate(parts):
        if number == 0 and layers and not _agree(model, weights, layers, x[:COMPARED], y[:COMPARED]):
            layers = {}
        found = _by_layer(model, weights, layers, x, y) if layers else _by_example(model, weights, x, y)
        for n, f in found.items():
            total[n].add_(f)
    return {n: t / max(used, 1) for n, t in total.items()}


def _spread(data: LocalData, used: int) -> Iterator[tuple[Tensor, Tensor]]:
    """So many examples, evenly spread over the data, part by part."""
    wanted = torch.arange(used) * len(data) // max(used, 1)
    for batch in data.batches():
        first = int(batch.place[0])
        rows = wanted[(wanted >= first) & (wanted < first + len(batch.y))] - first
        if len(rows):  # the last batch may be shorter than the way from one example to the next
            x, y = (values[rows.to(values.device)] for values in (batch.x, batch.y))
            yield x, y


def _of_batches(model: Model, weights: Weights, parts: Iterator[tuple[Tensor, Tensor]], size: int) -> Params:
    """The mean square of mini-batches' gradients; mixed, as a client's examples may lie class by class."""
    x, y = (torch.cat(values) for values in zip(*parts, strict=True))
    order = torch.randperm(len(y), generator=streams.torch_stream(0, "batches of gradients")).to(y.device)
    batches = torch.split(order, size)
    total = trees.zeros(weights.params)
    for rows in batches:
        params = {n: p.detach().requires_grad_() for n, p in weights.params.items()}
        with torch.enable_grad():
            loss = cross_entropy(model.logits(Weights(params, weights.buffers), x[rows]), y[rows]).mean()
        grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
        for n, g in zip(params, grads, strict=True):
            total[n].addcmul_(g, g)
    return {n: t / len(batches) for n, t in total.items()}


def _by_example(model: Model, weights: Weights, x: Tensor, y: Tensor) -> Params:
    """The sum of squared gradients, of any network: every example's gradient is made as a whole."""

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        logits = model.logits(Weights(params, weights.buffers), x.unsqueeze(0))
        return cross_entropy(logits, y.unsqueeze(0)).squeeze(0)

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))
    size = CPU_BYTES if x.device.type == "cpu" else DEVICE_BYTES
    chunk = max(1, size // trees.size_in_bytes(weights.params))
    total = trees.zeros(weights.params)
    for xs, ys in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        for n, g in per_example(weights.params, xs, ys).items():
            for one in g:
                total[n].addcmul_(one, one)
    return total


def _layers(model: Model, weights: Weights) -> Layers:
    """The layers that have weights, if each is one whose gradients `_by_layer` can square; else none."""
    found: Layers = {}
    for name, layer in model.module.named_modules():
        if isinstance(layer, nn.Linear) or (kernels.is_convolution(layer) and _ordinary(layer)):
            found[name] = layer
    # Their own alone: a weight that is made of others, as by weight norm, is no parameter.
    held = {
        f"{n}.{p}" if n else p for n, layer in found.items() for p in ("weight", "bias") if _owns(layer, p)
    }
    return found if held == weights.params.keys() else {}


def _owns(layer: nn.Module, name: str) -> bool:
    return layer._parameters.get(name) is not None


def _ordinary(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _by_layer(model: Model, weights: Weights, layers: Layers, x: Tensor, y: Tensor) -> Params:
    """The same sum from what goes into every layer and the gradient of what comes out.

    A linear layer's squared gradient is the product of the two's squares, so the gradients of single
    examples, most of whose memory is linear layers', need not be made.
    """
    total = trees.zeros(weights.params)
    for xs, ys in zip(torch.split(x, EXAMPLES), torch.split(y, EXAMPLES), strict=True):
        for name, (given, slope) in _ends(model, weights, layers, xs, ys).items():
            layer, prefix = layers[name], f"{name}." if name else ""
            if isinstance(layer, nn.Conv2d):
                assert not isinstance(layer.padding, str)
                given = F.unfold(given, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
                slope = slope.flatten(2)  # [B, O, L], and given [B, I k k, L]
                weight = torch.bmm(slope, given.mT).square().sum(0)
                bias = slope.sum(2)
            elif given.dim() == 2:
                weight, bias = slope.square().T @ given.square(), slope
            else:
                given, slope = given.flatten(1, -2), slope.flatten(1, -2)  # [B, T, I] and [B, T, O]
                weight = torch.bmm(slope.mT, given).square().sum(0)
                bias = slope.sum(1)
            total[f"{prefix}weight"].add_(weight.view_as(layer.weight))
            if layer.bias is not None:
                total[f"{prefix}bias"].add_(bias.square().sum(0))
    return total


def _ends(
    model: Model, weights: Weights, layers: Layers, x: Tensor, y: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Of every layer that is used and can learn, what goes in and the gradient of what comes out."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda _m, args, named, out: seen.__setitem__(name, (received(args, named), out))

    handles = [layer.register_forward_hook(note(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        params = {n: p.detach().requires_grad_() for n, p in weights.params.items()}
        with torch.enable_grad():
            loss = cross_entropy(model.logits(Weights(params, weights.buffers), x), y).sum()
    finally:
        for handle in handles:
            handle.remove()
    seen = {name: (given, out) for name, (given, out) in seen.items() if out.requires_grad}
    if not seen:  # the weights may be used all the same, without their layers
        return {}
    slopes = torch.autograd.grad(loss, [out for _, out in seen.values()], materialize_grads=True)
    kind = next(iter(params.values())).dtype
    return {
        name: (given.detach().to(kind), slope.to(kind))
        for (name, (given, _)), slope in zip(seen.items(), slopes, strict=True)
    }


def _agree(model: Model, weights: Weights, layers: Layers, x: Tensor, y: Tensor) -> bool:
    """Whether a network does with its layers' weights nothing that their inputs and outputs do not tell.

    Not in half precision, in which the two ways round so differently that it would be a matter of luck.
    """
    model = model.exact()
    for name, (given, _) in _ends(model, weights, layers, x, y).items():
        if (
            len(given) != len(x)
            or (isinstance(layers[name], nn.Conv2d) and given.dim() != 4)
            or given.dim() < 2
        ):
            return False  # it is given something else than the batch: its examples one by one, say
    quick, slow = _by_layer(model, weights, layers, x, y), _by_example(model, weights, x, y)
    return all(bool((quick[n] - f).norm() <= ALIKE * f.norm()) for n, f in slow.items())
