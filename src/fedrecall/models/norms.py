"""Normalisation layers where PyTorch's own stop: one value for each channel, or two types of numbers.

The last batch of an epoch may be one example, and a client may hold no more. Where its map has shrunk
to one pixel there is nothing to take batch norm's statistics of, and PyTorch refuses.

A network that computes in bfloat16 keeps the numbers of its norms in single precision. PyTorch's
kernels take both types together of plain CPU tensors, but not under ``torch.func``: there a norm
computes in its own type and gives back that of its input.

Statistics averaged over all batches (``momentum=None``) ask how many there were. PyTorch reads that
number from its tensor, which ``torch.func`` refuses and for which a GPU must wait; here it stays there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrecall.models.kernels import plain

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def of_norms(module: nn.Module) -> frozenset[str]:
    """Names of the parameters and buffers of normalisation layers, which stay in single precision."""
    return frozenset(
        f"{name}.{own}" if name else own
        for name, layer in module.named_modules()
        if isinstance(layer, NORMS)
        for own, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    )


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the batch; a single value by the running statistics, which it leaves alone."""
        x = input
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        mine = _in_the_type_of(self.weight if self.affine else self.running_mean, x, self)
        if x.numel() != x.shape[1]:
            cumulative = self.momentum is None and self.training and self.track_running_stats
            return (self._cumulative(mine) if cumulative else super().forward(mine)).to(x.dtype)
        # Without running statistics the value is its own mean, and the layer gives its bias.
        own, cudnn = self.running_mean is None, torch.backends.cudnn.enabled
        statistics = (self.running_mean, self.running_var, own, 0.0)
        return torch.batch_norm(mine, self.weight, self.bias, *statistics, self.eps, cudnn).to(x.dtype)

    def _cumulative(self, x: Tensor) -> Tensor:
        """Normalise by the batch, and take its statistics into the mean of those of all so far."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        mean, var = self.running_mean.clone(), self.running_var.clone()  # at momentum 1 the batch's own
        made = F.batch_norm(x, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        share = self.num_batches_tracked.to(mean.dtype).reciprocal()
        for kept, own in (self.running_mean, mean), (self.running_var, var):
            kept.add_(share * (own - kept))  # not lerp_, which vmap would do row by row
        return made


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """Batch norm of vectors and sequences."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """Batch norm of images."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """Batch norm of volumes."""


class GroupNorm(nn.GroupNorm):
    """Group norm, also of one example with one value a group, and under ``torch.func``."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each example's groups of channels."""
        x = input
        mine = _in_the_type_of(self.weight, x, self)
        if not plain(x):  # the kernel copies images with channels last as such, which vmap cannot do
            mine = mine.contiguous()
        # Not F.group_norm: of groups of one value it takes two examples and refuses one.
        cudnn = torch.backends.cudnn.enabled
        return torch.group_norm(mine, self.num_groups, self.weight, self.bias, self.eps, cudnn).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm, also in two types of numbers under ``torch.func``."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last axes."""
        x = input
        return super().forward(_in_the_type_of(self.weight, x, self)).to(x.dtype)


KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.modules.batchnorm._BatchNorm: _BatchNorm,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
}


class _Derived(nn.Module):
    """What comes before a norm that somebody derived from PyTorch's, and has a forward of its own maybe."""

    def forward(self, *given: Any, **named: Any) -> Any:
        """What it computes, in the type of its numbers where its kernels may not take that of its input."""
        x = given[0] if given else next(iter(named.values()))
        own: Any = self.weight if self.weight is not None else getattr(self, "running_mean", None)
        if own is None or own.dtype == x.dtype:
            return super().forward(*given, **named)
        mine = _in_the_type_of(own, x, self)
        given, named = ((mine, *given[1:]), named) if given else ((), {**named, next(iter(named)): mine})
        made = super().forward(*given, **named)
        return made.to(x.dtype) if isinstance(made, Tensor) else made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Made again from the class that can be imported."""
        made: Any = super().__reduce_ex__(protocol)
        return _again, (type(self).__bases__[1],), *made[2:]


@cache
def _derived(kind: Any) -> Any:
    """The class derived from one of PyTorch's norms, which comes to inherit from ours in its place."""
    ours = next(KINDS[base] for base in kind.__mro__ if base in KINDS)
    return type(kind.__name__, (_Derived, kind, ours), {"__module__": kind.__module__})


def _again(kind: Any) -> Any:
    cls = _derived(kind)
    return cls.__new__(cls)


def equip(module: nn.Module) -> nn.Module:
    """The module, its norms replaced in place by those above, and those derived from PyTorch's likewise."""
    for layer in module.modules():
        kind: Any = type(layer)
        if kind in KINDS:
            layer.__class__ = KINDS[kind]
        elif isinstance(layer, NORMS) and not isinstance(layer, (_Derived, *KINDS.values())):
            layer.__class__ = _derived(kind)
    return module


def _in_the_type_of(own: Tensor | None, x: Tensor, layer: nn.Module) -> Tensor:
    """``x`` in the type of the layer's numbers, ``own`` of them, where its kernel does not take both."""
    if own is None or own.dtype == x.dtype or plain(x, *layer.parameters(False), *layer.buffers(False)):
        return x
    return x.to(own.dtype)
