"""Layers whose randomness is data: dropout drawn from a key, the same wherever it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedrecall.errors import UserError

_LOW = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash held in int64; every product stays below 2**63, so nothing overflows.

    The shift-multiply constants are Wellons' (hash-prospector, public domain).
    """
    x = (x ^ (x >> 16)) * 0x21F0AAAD & _LOW
    x = (x ^ (x >> 15)) * 0x735A2D97 & _LOW
    return x ^ (x >> 15)


def keyed_uniform(key: Tensor, salt: int, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Integers uniform in [0, 2**32), a pure function of key, salt and position.

    Integer arithmetic alone, so every device and ``vmap`` (with ``key`` batched) agree bit for bit.
    """
    first = _mix(_mix(key & _LOW) ^ (salt & _LOW))
    second = _mix(_mix((key >> 32) & _LOW) ^ first)
    position = torch.arange(torch.Size(shape).numel(), device=key.device).reshape(shape)
    return _mix((_mix(position ^ first) + second) & _LOW)


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of (key, layer, position) instead of a draw from a hidden stream.

    The training loop passes a new ``key`` (a 0-d int64 buffer, never part of a state dict) at every
    step through ``functional_call``. In evaluation mode it is the identity.
    """

    key: Tensor

    def __init__(self, p: float = 0.5, salt: int = 0, spatial: int = 0):
        """``spatial``: how many trailing dimensions share one draw (2 drops whole image channels)."""
        super().__init__()
        if not 0 <= p <= 1:
            raise UserError(f"dropout needs a probability in [0, 1], not {p!r}.")
        self.p, self.salt, self.spatial = p, salt, spatial
        self.across = False
        """Whether its mask depends on the batch's size: the examples are not its first axis."""
        self.calls: int | None = None  # so far in this forward pass, once key_dropouts has it counted
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability p and scale the others by 1/(1 - p)."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        spatial = 1 if self.spatial == 2 and x.dim() == 3 else self.spatial  # [N, C, L], as torch reads it
        shape = x.shape[: x.dim() - spatial] + (1,) * spatial
        salt = self.salt
        if self.calls is not None:  # a layer applied twice in one pass draws twice
            salt += self.calls << 16
            self.calls += 1
        drawn = keyed_uniform(self.key, salt, shape)
        return torch.where(drawn >= round(self.p * 2**32), x * (1 / (1 - self.p)), 0.0)

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"p={self.p}, salt={self.salt}" + (f", spatial={self.spatial}" if self.spatial else "")


def _restart(module: nn.Module, _: object) -> None:
    for layer in module.modules():
        if isinstance(layer, KeyedDropout):
            layer.calls = 0


_SPATIAL: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_HIDDEN_STREAM = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def key_dropouts(module: nn.Module) -> nn.Module:
    """The module, its dropout layers replaced in place by KeyedDropout, each with its own salt.

    Layers that draw from torch's hidden stream and cannot be keyed are refused. A call of
    ``torch.nn.functional.dropout`` inside a ``forward`` cannot be seen from here: make it a layer.
    """
    made: dict[int, KeyedDropout] = {}  # a dropout shared by two parents stays shared
    salt = max((m.salt for m in module.modules() if isinstance(m, KeyedDropout)), default=0)
    for path, parent in list(module.named_modules()):
        _refuse(path, parent)
        for name, child in list(parent.named_children()):
            if type(child) not in _SPATIAL:
                continue
            if id(child) not in made:
                salt += 1
                new = KeyedDropout(child.p, salt, _SPATIAL[type(child)])
                made[id(child)] = new.train(child.training).to(_device(module))
            setattr(parent, name, made[id(child)])
    if type(module) in _SPATIAL:
        raise UserError("a model that is one dropout layer and nothing else has nothing to train.")
    if any(isinstance(m, KeyedDropout) for m in module.modules()):
        module.register_forward_pre_hook(_restart)
    return module


@contextmanager
def watched(module: nn.Module) -> Iterator[None]:
    """Note of each dropout whether its first axis is that of the examples, in passes with 2 and then 3."""
    seen: dict[KeyedDropout, list[int]] = {}
    handles = [
        layer.register_forward_pre_hook(lambda m, args: seen.setdefault(m, []).append(args[0].shape[0]))
        for layer in module.modules()
        if isinstance(layer, KeyedDropout)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for layer, lengths in seen.items():
        half = len(lengths) // 2
        layer.across = any(3 * a != 2 * b for a, b in zip(lengths[:half], lengths[half:], strict=False))


def _refuse(path: str, layer: nn.Module) -> None:
    kind, where = type(layer).__name__, f" at {path!r}" if path else ""
    if isinstance(layer, _HIDDEN_STREAM):
        raise UserError(
            f"the layer {kind}{where} draws from torch's hidden random stream, so a run with it could"
            " not be repeated; use nn.Dropout (or fedrecall.models.KeyedDropout) instead."
        )
    if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout:
        raise UserError(
            f"the layer {kind}{where} has dropout={layer.dropout:g} inside, which draws from torch's"
            " hidden random stream; set it to 0 and put an nn.Dropout after the layer."
        )


def _device(module: nn.Module) -> torch.device:
    return next((t.device for t in [*module.parameters(), *module.buffers()]), torch.device("cpu"))
