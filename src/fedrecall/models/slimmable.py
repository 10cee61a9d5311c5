"""The last block of a network, and that block at a fraction of its width.

A block at width r is made of the leading part of each of its parameters: the first share r of the
output and of the input channels of every layer (Yu et al., ICLR 2019). It needs no layers of its
own, so any block of convolutions, linear layers, batch and group norms can be slimmed.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from fedrecall.errors import UserError


def slim(channels: int, width: float) -> int:
    """How many of the channels are used at this width."""
    return max(1, round(channels * width))


def narrow(tensors: Mapping[str, Tensor], width: float) -> dict[str, Tensor]:
    """The leading part of every parameter and buffer, in its output and input channels."""
    found = {}
    for name, t in tensors.items():
        for axis in range(min(t.dim(), 2)):
            t = t.narrow(axis, 0, slim(t.shape[axis], width))
        found[name] = t
    return found


@contextmanager
def narrow_groups(block: nn.Module, width: float) -> Iterator[None]:
    """Group norms divide the channels that are left among as many groups as they can."""
    norms = [m for m in block.modules() if isinstance(m, nn.GroupNorm)]
    before = [m.num_groups for m in norms]
    try:
        for m in norms:
            m.num_groups = math.gcd(m.num_groups, slim(m.num_channels, width))
        yield
    finally:
        for m, groups in zip(norms, before, strict=True):
            m.num_groups = groups


def last_block(module: nn.Module) -> tuple[str, ...]:
    """Names of the consecutive layers that form the last block before the classifier.

    The module's own attribute ``last_block`` if it has one; of a chain of layers the last
    convolution, or the last hidden linear layer, with what follows it up to where the shape is
    flattened; of any other module its last child with a convolution.
    """
    named = getattr(module, "last_block", None)
    if named is not None:
        return (named,) if isinstance(named, str) else tuple(named)
    children = dict(module.named_children())
    head = str(getattr(module, "feature_layer", None)).partition(".")[0]
    body = [n for n in children if n != head]
    for kind in (nn.Conv2d, nn.Linear):
        with_kind = [n for n in body if any(isinstance(m, kind) for m in children[n].modules())]
        if not with_kind:
            continue
        if not isinstance(module, nn.Sequential):
            return (with_kind[-1],)
        following = body[body.index(with_kind[-1]) :]
        ends = (i for i, n in enumerate(following) if i and isinstance(children[n], (nn.Flatten, nn.Linear)))
        return tuple(following[: next(ends, len(following))])
    raise UserError(
        "the model does not say which of its layers is the last block: give the module an attribute "
        "last_block = 'name of its last group of convolutions'."
    )
