"""Functions of the weights themselves, in fewer passes over memory than autograd makes for the same formula.

A penalty is paid at every step and sees every weight: on a CPU, where a step of a small batch is short,
the formula alone costs nearly half as much as the rest (docs/log.md).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from fedrecall.models.kernels import plain
from fedrecall.models.model import Params


def quadratic(params: Params, centre: Params | None = None, curvature: Params | None = None) -> Tensor:
    """sum_i c_i (w_i - a_i)^2 over all weights; without a centre a = 0, without a curvature c = 1."""
    terms = []
    for n, w in params.items():
        a = None if centre is None else centre[n]
        c = None if curvature is None else curvature[n]
        fixed = [t for t in (a, c) if t is not None]
        if plain(w, *fixed) and not any(t.requires_grad for t in fixed):
            terms.append(cast(Tensor, _Quadratic.apply(w, a, c)))  # type: ignore[no-untyped-call]
        else:
            gap, slope = _gap_and_slope(w, a, c)
            terms.append((gap * slope).sum())
    return torch.stack(terms).sum()


def inner(params: Params, others: Params) -> Tensor:
    """sum_i w_i b_i over all weights."""
    return torch.stack([torch.dot(w.reshape(-1), others[n].reshape(-1)) for n, w in params.items()]).sum()


class _Quadratic(torch.autograd.Function):
    """Its gradient is 2 c (w - a), and half of that is there with the value."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, a: Tensor | None, c: Tensor | None) -> Tensor:
        gap, slope = _gap_and_slope(w, a, c)
        ctx.save_for_backward(w, a, c)
        ctx.slope = slope if slope is not w else None
        return torch.dot(gap.reshape(-1), slope.reshape(-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        twice = 2 * grads[0]
        slope, ctx.slope = ctx.slope, None
        if slope is None or torch.is_grad_enabled():  # asked again, or for what is differentiated further
            return twice * _gap_and_slope(*ctx.saved_tensors)[1], None, None
        return slope.mul_(twice), None, None


def _gap_and_slope(w: Tensor, a: Tensor | None, c: Tensor | None) -> tuple[Tensor, Tensor]:
    gap = w if a is None else w - a
    return gap, gap if c is None else c * gap
