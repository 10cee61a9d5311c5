"""Small networks for the shared tests."""

import torch
from torch import Tensor, nn


class Centred(nn.Module):
    """Less a running mean, which is assigned instead of changed in place, and how often that was done."""

    mean: Tensor
    seen: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 2, 3))
            self.seen = self.seen + 1
        return x - self.mean[:, None, None]


def normed(kind: str, channels: int) -> nn.Module:
    """The norm of this kind; groups of two channels, so that one pixel is still something to normalise."""
    if kind == "centred":
        return Centred(channels)
    if kind == "group":
        return nn.GroupNorm(channels // 2, channels)
    if kind == "cumulative":
        return nn.BatchNorm2d(channels, momentum=None)
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.Identity()


class Small(nn.Module):
    """Two convolutions and a classifier, a few hundred parameters."""

    feature_layer = "fc"
    last_block = "last"

    def __init__(self, classes: int, channels: int, norm: str = "none", stride: int = 2, frozen: str = ""):
        """``stride``: with 3 the last map of a 6 x 6 image is one pixel; ``frozen``: a layer."""
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.norm1 = normed(norm, 4)
        self.last = nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=stride, padding=1),
            normed(norm, 8),
            nn.ReLU(),
        )
        self.fc = nn.Linear(8, classes)
        if frozen:
            self.get_submodule(frozen).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        return self.fc(self.last(x).mean((2, 3)))


class Masked(Small):
    """Sees a part of each image, which is drawn when the network is built and not among its weights."""

    mask: Tensor

    def __init__(self, classes: int, channels: int):
        super().__init__(classes, channels)
        self.register_buffer("mask", torch.rand(channels, 1, 1).round(decimals=1), persistent=False)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.drop(x * self.mask))
