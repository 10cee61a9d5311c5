"""How a CPU runs a network's layers fastest: layouts and kernels, never other mathematics.

Measured on one core with AVX-512 (docs/performance.md): convolutions and pooling take a fraction of
the time when channels are the last axis in memory, and single-precision linear layers half of it in
oneDNN, which PyTorch asks for convolutions but not for these. Where a CPU does not gain by multiplying
bfloat16, its numbers are multiplied in single precision. All else here steps aside under ``torch.func``,
on other devices and in double precision, where PyTorch's own kernels are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

UNSAFE = 8
"""Channels below which oneDNN, where a CPU has no AVX-512, writes the gradient of a 1x1 convolution that
skips pixels beyond the memory it has for that, and the process ends."""
LEAST = 1 << 15
"""Elements of a weight from which on a linear layer goes to oneDNN; below, the call costs more."""


def plain(*tensors: Tensor) -> bool:
    """Whether these are ordinary CPU tensors, not what ``torch.func`` or an export wraps them in."""
    return not torch.compiler.is_compiling() and all(
        t.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors
    )


class Layout(IntEnum):
    """How far channels are the last axis in memory; the further, the faster."""

    USUAL = 0
    """Nowhere: everything lies as PyTorch's own tensors do."""
    WITHIN = 1
    """In what a pass of the network computes with."""
    KEPT = 2
    """In the weights that a client trains, too, which then need not be laid out at every step."""


def unviewable(error: RuntimeError) -> bool:
    """Whether the error may be that a tensor lies otherwise in memory than somebody takes for granted."""
    return re.search("view|stride|contiguous", str(error)) is not None


def images(x: Tensor) -> Tensor:
    """A batch of images with channels last in memory; the same numbers."""
    if x.dim() != 4 or x.dtype == torch.float64 or not plain(x):
        return x
    _, channels, height, width = x.shape
    if channels == 1:  # both layouts are the same bytes: only strides tell the next layer which one it is
        x = x.contiguous()
        return x.as_strided(x.shape, (height * width, 1, width, 1), x.storage_offset())
    return x.contiguous(memory_format=torch.channels_last)


def weight(p: Tensor) -> Tensor:
    """A convolution's weight with channels last in memory; other tensors as they are."""
    if p.dim() != 4 or p.dtype == torch.float64 or not plain(p):
        return p
    if p.requires_grad and torch.is_grad_enabled() and not _last(p):
        return cast(Tensor, _Laid.apply(p))  # type: ignore[no-untyped-call]
    return p.contiguous(memory_format=torch.channels_last)


def usual(t: Tensor) -> Tensor:
    """A tensor with channels last in memory as PyTorch lays it out; other tensors as they are."""
    return t.contiguous() if t.dim() == 4 and _last(t) else t


def _last(t: Tensor) -> bool:
    return t.is_contiguous(memory_format=torch.channels_last)


class _Laid(torch.autograd.Function):
    """A weight with channels last in memory, whose gradient has them where the weight had them."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        return p.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].contiguous()


class _Product(torch.autograd.Function):
    """a bᵀ of single-precision matrices, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (g,) = grads
        a, b = ctx.saved_tensors
        left, right = ctx.needs_input_grad
        return (
            product(g, b.t()) if left else None,
            product(g.t(), a.t()) if right else None,
        )


def product(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ; it can be differentiated as often as one likes."""
    return cast(Tensor, _Product.apply(a, b))  # type: ignore[no-untyped-call]


AVAILABLE: bool = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]
    torch.ops.mkldnn, "_linear_pointwise"
)


def fast_bfloat16(cpu: Mapping[str, Any]) -> bool:
    """Whether a CPU of these capabilities is faster in bfloat16 than by way of single precision.

    oneDNN multiplies it on any x86 with AVX-512, but without an instruction for it in three times as
    long. Intel's server cores from Sapphire Rapids on, which are known by AVX512_FP16, have their
    speed in tiles; where a virtual machine hides these, AVX512_BF16 takes half as long again.
    """
    if cpu.get("architecture") not in ("x86_64", "x86"):
        return True
    slow = "Intel" in cpu.get("cpu_name", "Intel") and cpu.get("avx512_fp16")
    return bool(cpu.get("amx_bf16") or (cpu.get("avx512_bf16") and not slow))


FAST_BFLOAT16: bool = (
    AVAILABLE
    and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    and fast_bfloat16(torch.cpu.get_capabilities())
)
"""Whether this CPU does. Without oneDNN, PyTorch's own loops for bfloat16 take many times as long."""


def widened(product: Callable[..., Tensor], *given: Tensor | None) -> Tensor:
    """``product(*given)``, by way of single precision where the CPU is faster in it than in bfloat16.

    That is what bfloat16's own instructions do: they round what goes in and what comes out, and sum in
    between in single precision.
    """
    x = given[0]
    if FAST_BFLOAT16 or x is None or x.dtype != torch.bfloat16 or x.device.type != "cpu":
        return product(*given)
    return product(*(None if t is None else t.float() for t in given)).to(x.dtype)


def narrowed(x: Tensor, w: Tensor) -> Tensor:
    """What a layer is given in the layer's type, if that is bfloat16: a network's statistics never are."""
    return x if w.dtype != torch.bfloat16 or x.dtype != torch.float32 else x.to(w.dtype)


class Conv2d(nn.Conv2d):
    """A convolution that PyTorch's fast kernel computes, in bfloat16 on any CPU."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        input = narrowed(input, weight)
        if self.in_channels < UNSAFE and self._skips(input) and plain(input, weight):
            down, right = self.stride
            return widened(F.conv2d, input[:, :, ::down, ::right], weight, bias)
        return widened(super()._conv_forward, input, weight, bias)

    def _skips(self, x: Tensor) -> bool:
        """Whether it looks at some of the images' pixels alone, one by one, in oneDNN."""
        simple = self.kernel_size == (1, 1) and self.groups == 1 and self.padding in ((0, 0), "valid")
        return simple and self.stride != (1, 1) and x.dim() == 4 and x.dtype != torch.float64


def is_convolution(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is PyTorch's convolution and none that somebody derived from it."""
    return type(layer) in (nn.Conv2d, Conv2d)


class Linear(nn.Linear):
    """A linear layer that takes the fastest of PyTorch's CPU kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """x wᵀ + b."""
        w = self.weight
        return widened(linear, narrowed(input, w), w, self.bias)


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x wᵀ + b, in single precision by oneDNN where that pays."""
    if (
        x.dim() != 2
        or x.dtype != torch.float32
        or w.dtype != torch.float32
        or w.numel() < LEAST
        or not AVAILABLE
        or not plain(x, w)
        or len(x) < 2
    ):
        return F.linear(x, w, b)
    out = product(x, w)
    return out if b is None else out + b


def equip(module: nn.Module) -> nn.Module:
    """The module, its layers replaced in place by those that know the faster kernels; same weights."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Linear
        elif type(layer) is nn.Conv2d:
            layer.__class__ = Conv2d
    return module


class _ReluPool(torch.autograd.Function):
    """max-pool(relu(x)) over 2x2 pixels: ``columns`` is the axis of a square's two columns, ``rows`` that of
    its two rows once columns are merged.

    The two commute, so the rectifier works on a quarter of the numbers; and where the maximum came
    from is found again by comparing instead of being stored as 64-bit places. Of equal pixels the
    first in reading order gets the gradient, as in PyTorch's own kernel.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: int, rows: int) -> Tensor:
        left, right = x.unbind(columns)
        row = torch.maximum(left, right)
        upper, lower = row.unbind(rows)
        out = torch.maximum(upper, lower).clamp_min_(0)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(_apart(left), row, _apart(upper), out)
        ctx.columns, ctx.rows = columns, rows
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        left, row, upper, out = ctx.saved_tensors
        # Of each pair the second takes the gradient where the maximum exceeds the first, the first what is
        # left. Where the rectifier cut, there is no gradient to share out.
        pairs = (upper, out, ctx.rows), (left, row, ctx.columns)
        if torch.is_grad_enabled():  # the gradient will itself be differentiated
            g = torch.where(out > 0, grads[0], 0.0)
            for first, most, dim in pairs:
                greater = most > first
                g = torch.stack([torch.where(greater, 0.0, g), torch.where(greater, g, 0.0)], dim)
            return g, None, None
        g = _where_positive(grads[0].contiguous(), out, 0)
        for first, most, dim in pairs:
            if g.shape[-1] > FEW_CHANNELS:
                both = g.new_empty((*g.shape[:dim], 2, *g.shape[dim:]))
                to_first, to_second = both.unbind(dim)
                _where_positive.grad_input(g, most - first, 0, grad_input=to_second)
                torch.sub(g, to_second, out=to_first)
                g = both
            else:
                to_second = _where_positive(g, most - first, 0)
                g = torch.stack([g.sub_(to_second), to_second], dim)
        return g, None, None


def _apart(half: Tensor) -> Tensor:
    """Half of an axis, lifted out where a difference of it would be slow: short runs of two-byte numbers."""
    return half.contiguous() if half.dtype == torch.bfloat16 and half.shape[-1] <= FEW_CHANNELS else half


_where_positive = torch.ops.aten.threshold_backward  # vectorised, which `where` with a mask is not


MANY_CHANNELS = 32
"""From so many on, a pixel's channels fill the vectors of a core, and `_ReluPool` is the faster."""


def relu_pool(x: Tensor) -> Tensor:
    """``max_pool2d(relu(x), 2)`` of images with channels last in memory, in the faster order."""
    if x.shape[1] < MANY_CHANNELS:
        return F.relu(F.max_pool2d(x, 2))
    n, channels, height, width = x.shape
    squares = x.permute(0, 2, 3, 1).view(n, height // 2, 2, width // 2, 2, channels)
    out: Tensor = _ReluPool.apply(squares, 4, 2)  # type: ignore[no-untyped-call]
    return out.permute(0, 3, 1, 2)


FEW_CHANNELS = 8
"""Up to so many a convolution's results leave most of a core's vectors empty."""


def narrow(conv: nn.Module, x: Tensor) -> bool:
    """Whether `conv_relu_pool` is the faster for this layer and these images."""
    if not is_convolution(conv) or conv.out_channels > FEW_CHANNELS:
        return False
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return False
    sides = [n + 2 * p - k + 1 for n, p, k in zip(x.shape[2:], conv.padding, conv.kernel_size, strict=False)]
    return (
        x.dim() == 4
        and not x.requires_grad  # with respect to its images it is the slower
        and (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
        and all(n > 0 and n % 2 == 0 for n in sides)
        and x.dtype in (torch.float32, torch.bfloat16)
        and plain(x, conv.weight)
        and not (conv._forward_hooks or conv._forward_pre_hooks)
    )


def conv_relu_pool(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """``max_pool2d(relu(conv(x)), 2)`` by one convolution that gives the four pixels of every square.

    They become channels: four kernels, each a pixel larger and shifted, moved by two pixels. That
    fills the vectors, and the maximum is taken over channels that lie together: the left column's,
    twice as many as a pixel has, then the right one's.
    """
    w, b = conv.weight, conv.bias
    shifted = [F.pad(w, (right, 1 - right, down, 1 - down)) for right in (0, 1) for down in (0, 1)]
    bias = None if b is None else torch.cat([b] * 4)
    by_two = partial(F.conv2d, stride=2, padding=conv.padding)
    y = widened(by_two, x, torch.cat(shifted).contiguous(memory_format=torch.channels_last), bias)
    n, channels, height, width = y.shape
    squares = y.permute(0, 2, 3, 1).reshape(n, height, width, 2, 2, channels // 4)
    out: Tensor = _ReluPool.apply(squares, 3, 3)  # type: ignore[no-untyped-call]
    return out.permute(0, 3, 1, 2)


def chain(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """The layers in turn; those that are faster at once are, where nobody looks between them."""
    i = 0
    while i < len(layers):
        if _relu_then_pool(layers[i + 1 : i + 3]) and narrow(layers[i], x):
            x = conv_relu_pool(cast(nn.Conv2d, layers[i]), x)
            i += 3
        elif _relu_then_pool(layers[i : i + 2]) and _poolable(x):
            x = relu_pool(x)
            i += 2
        else:
            x = layers[i](x)
            i += 1
    return x


def _relu_then_pool(layers: Sequence[nn.Module]) -> bool:
    if len(layers) < 2:
        return False
    first, second = layers
    return (
        type(first) is nn.ReLU
        and type(second) is nn.MaxPool2d
        and (second.kernel_size, second.stride, second.padding, second.dilation) == (2, 2, 0, 1)
        and not (second.ceil_mode or second.return_indices)
        and not any(m._forward_hooks or m._forward_pre_hooks for m in (first, second))
    )


def _poolable(x: Tensor) -> bool:
    return (
        x.dim() == 4
        and x.shape[2] % 2 == x.shape[3] % 2 == 0
        and x.dtype in (torch.float32, torch.bfloat16)
        and plain(x)
        and _last(x)
    )
