"""Random crop, flip and Cutout of whole batches, as pure functions of the batch and its draws.

What is random is drawn on the CPU from the visit's own stream (``draw``); what is done with it
(``apply``) is arithmetic on tensors, the same on every device and under ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.errors import UserError, nearest
from fedrecall.specs import Range, build

LARGEST = 4096  # pixels: more than any image has a use for, and far from where integers overflow
_BITS = 31  # a position is drawn as an integer in [0, 2^31), that is as a fraction of a range


class Draws(NamedTuple):
    """All that is random about augmenting a batch; the leading dimensions are the batch's."""

    shift: Tensor
    """int64 ``[..., 2]``: row and column of the padded image where the crop starts."""
    flip: Tensor
    """bool ``[...]``: mirror the image left to right."""
    hole: Tensor
    """int64 ``[..., 2]``: row and column of the hole's centre, in 2^-31 parts of height and width."""


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image: crop, then flip, then normalise, then Cutout."""

    crop: Annotated[int, Range(0, LARGEST)] = 0
    """Pixels added on every side, black ones, before cropping back to size at random; 0: no crop."""
    flip: bool = False
    """Mirror every other image, at random."""
    cutout: Annotated[int, Range(0, LARGEST)] = 0
    """Side of a square of zeros around a random pixel, clipped at the border; 0: none."""
    reflect: bool = False
    """Whether a crop adds the image's mirror image instead of black."""

    def __post_init__(self) -> None:
        if self.reflect and not self.crop:
            raise UserError("an augmentation that reflects says what is added before a crop: crop+reflect.")

    @classmethod
    def parse(cls, spec: str | Mapping[str, Any] | Augmentation) -> Augmentation:
        """From a preset or a sum of parts (``crop+flip``, ``crop:2+cutout:8``, ``none``), or a mapping."""
        if isinstance(spec, Augmentation):
            return spec
        if isinstance(spec, Mapping):
            return build(cls, spec, "augmentation")
        if not isinstance(spec, str):
            raise UserError(f"an augmentation is text such as 'crop+flip' or a mapping, not {spec!r}.")
        values: dict[str, Any] = {}
        for part in filter(None, spec.replace(" ", "").split("+")):
            name, colon, value = part.partition(":")
            if name == "none" and not colon and spec.strip() == "none":
                continue
            if name not in _USUAL:
                raise UserError(f"unknown augmentation {name!r}; {nearest(name, [*_USUAL, 'none'])}")
            if name in values:
                raise UserError(f"augmentation {spec!r} names {name!r} twice.")
            values[name] = value if colon else _USUAL[name]
        return build(cls, values, "augmentation")

    def __str__(self) -> str:
        parts = []
        for name, usual in _USUAL.items():
            value = getattr(self, name)
            if value:
                parts.append(name if value == usual else f"{name}:{value}")
        return "+".join(parts) or "none"

    def draw(self, stream: torch.Generator, count: int) -> Draws:
        """Draws for ``count`` images.

        Five numbers per image are taken from the stream whatever is switched on, image by image:
        5 and then 3 images get the same draws as 8 at once.
        """
        raw = torch.randint(0, 1 << _BITS, (count, 5), generator=stream)
        return Draws(
            shift=(raw[:, 0:2] * (2 * self.crop + 1)) >> _BITS,
            flip=(raw[:, 2] >> (_BITS - 1)).bool() if self.flip else torch.zeros(count, dtype=torch.bool),
            hole=raw[:, 3:5],
        )

    def apply(
        self, x: Tensor, draws: Draws, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Augment and normalise: uint8 ``[..., B, C, H, W]`` to ``dtype``; tabular x is only normalised."""
        if x.is_floating_point():
            return plain(x, mean, std, dtype)
        height, width = x.shape[-2:]
        if self.crop or self.flip:
            x = _pick(x, draws, self.crop, self.reflect)
        y = plain(x, mean, std, dtype)
        if self.cutout:
            y.mul_(_outside(draws.hole, height, width, self.cutout).to(y.dtype).unsqueeze(-3))
        return y


def plain(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normalise only (evaluation): ``(x / 255 - mean) / std``; of tables ``(x - mean) / std``."""
    wide = dtype if dtype == torch.float64 else torch.float32  # half precision only in the end
    mean, std = mean.to(x.device, wide), std.to(x.device, wide)
    if x.is_floating_point():
        return ((x.to(wide) - mean) / std).to(dtype)
    scale = (1 / (255 * std))[:, None, None]
    offset = (-mean / std)[:, None, None]
    return x.to(wide).mul_(scale).add_(offset).to(dtype)


def _pick(x: Tensor, draws: Draws, pad: int, reflect: bool) -> Tensor:
    """Crop and flip in one gather: where each pixel of the result lies in the padded image."""
    height, width = x.shape[-2:]
    row = torch.arange(height, device=x.device)
    column = torch.arange(width, device=x.device)
    column = torch.where(draws.flip[..., None], width - 1 - column, column)  # [..., B, W]
    row_length = width
    if pad:
        row = row + draws.shift[..., 0:1]  # [..., B, H]
        column = column + draws.shift[..., 1:2]
        if reflect:
            row, column = _mirrored(row - pad, height), _mirrored(column - pad, width)
        else:
            x, row_length = F.pad(x, (pad, pad, pad, pad)), width + 2 * pad
    index = (row * row_length).unsqueeze(-1) + column.unsqueeze(-2)  # [..., B, H, W]
    index = index.flatten(-2).unsqueeze(-2).expand(*x.shape[:-2], height * width)
    return x.flatten(-2).gather(-1, index).reshape(*x.shape[:-2], height, width)


def _mirrored(place: Tensor, size: int) -> Tensor:
    """Which of ``size`` pixels stands at a place beside them, if the ends are mirrors."""
    period = max(1, 2 * (size - 1))
    place = place.remainder(period)
    return torch.minimum(place, period - place)


def _outside(hole: Tensor, height: int, width: int, side: int) -> Tensor:
    """bool ``[..., B, H, W]``: the pixels Cutout leaves; it takes [c - side//2, c - side//2 + side)."""
    row = torch.arange(height, device=hole.device) - ((hole[..., 0:1] * height) >> _BITS) + side // 2
    column = torch.arange(width, device=hole.device) - ((hole[..., 1:2] * width) >> _BITS) + side // 2
    row_kept = (row < 0) | (row >= side)
    column_kept = (column < 0) | (column >= side)
    return row_kept.unsqueeze(-1) | column_kept.unsqueeze(-2)


_USUAL: dict[str, Any] = {"crop": 4, "reflect": True, "flip": True, "cutout": 16}

AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "flip": Augmentation(flip=True),
    "crop+flip": Augmentation(crop=4, flip=True),
    "crop+reflect+flip": Augmentation(crop=4, flip=True, reflect=True),
    "crop+flip+cutout": Augmentation(crop=4, flip=True, cutout=16),
}

_DEFAULTS = {
    "cifar10": "crop+flip+cutout",
    "cifar100": "crop+flip+cutout",
    "cinic10": "crop+reflect+flip",
    "tiny_imagenet": "crop+flip",
    "ham10000": "flip",
}


def default_for(dataset: str) -> Augmentation:
    """What a data set gets when nothing is asked for.

    FedNTD's recipes for the CIFARs and CINIC-10; mirrored digits are not digits, and nothing is known
    of a user's own images, so these are left as they are.
    """
    return AUGMENTATIONS[_DEFAULTS.get(dataset, "none")]
