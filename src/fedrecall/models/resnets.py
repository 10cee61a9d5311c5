"""Residual networks with the CIFAR stem: 3x3 convolution, no max-pooling (He et al., 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def norm_layer(kind: Literal["batch", "group"], groups: int) -> Norm:
    """What makes a normalisation layer for a number of channels."""
    if kind == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(math.gcd(groups, channels), channels)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """A residual block: what ``residual`` computes is added to the input or to its projection."""

    expansion = 1
    """Output channels per unit of width."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm):
        super().__init__()
        outputs = width * self.expansion
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs))

    def residual(self, x: Tensor) -> Tensor:
        """The block's own path, before it is added."""
        raise AssertionError("a block defines its residual path")

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of both paths."""
        return torch.relu(self.residual(x) + self.shortcut(x))


class BasicBlock(Block):
    """Two 3x3 convolutions (ResNet-10 and -18)."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm):
        super().__init__(inputs, width, stride, norm)
        self.conv1, self.norm1 = _conv(inputs, width, 3, stride), norm(width)
        self.conv2, self.norm2 = _conv(width, width, 3), norm(width)

    def residual(self, x: Tensor) -> Tensor:
        """Convolve, normalise, ReLU, convolve, normalise."""
        x = torch.relu(self.norm1(self.conv1(x)))
        return self.norm2(self.conv2(x))  # type: ignore[no-any-return]


class Bottleneck(Block):
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide (ResNet-50)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm):
        super().__init__(inputs, width, stride, norm)
        self.conv1, self.norm1 = _conv(inputs, width, 1), norm(width)
        self.conv2, self.norm2 = _conv(width, width, 3, stride), norm(width)
        self.conv3, self.norm3 = _conv(width, 4 * width, 1), norm(4 * width)

    def residual(self, x: Tensor) -> Tensor:
        """Narrow, convolve, widen."""
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.norm3(self.conv3(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Stem, stages ``layer1``, ``layer2``, ... of doubling width, global average, ``fc``."""

    feature_layer = "fc"

    def __init__(
        self,
        block: type[Block],
        depths: tuple[int, ...],
        channels: int,
        classes: int,
        width: int,
        norm: Norm,
    ):
        super().__init__()
        self.conv1, self.norm1 = _conv(channels, width, 3), norm(width)
        self.stages = len(depths)
        inputs = width
        for stage, depth in enumerate(depths):
            outputs = width * 2**stage
            blocks = []
            for i in range(depth):
                blocks.append(block(inputs, outputs, 2 if stage and not i else 1, norm))
                inputs = outputs * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = torch.relu(self.norm1(self.conv1(x)))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
