"""Networks as users write them, each with a habit that a run must allow for."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class Tutorial(nn.Module):
    """PyTorch's own CIFAR-10 tutorial; ``flat``: with ``flatten`` in the place of its ``view``."""

    def __init__(self, channels: int, classes: int, flat: bool = False):
        super().__init__()
        self.flat = flat
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1) if self.flat else x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class OneConv(nn.Module):
    """A convolution whose maps are viewed as rows."""

    def __init__(self, channels: int, classes: int, flat: bool = False):
        super().__init__()
        self.flat = flat
        self.conv = nn.Conv2d(channels, 4, 5, stride=4)
        self.fc = nn.Linear(4 * 7 * 7, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.fc(torch.flatten(x, 1) if self.flat else x.view(x.size(0), -1))


class Standardised(nn.Conv2d):
    """A convolution with standardised weights."""

    flat = False

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.flatten(1) if self.flat else self.weight.view(self.out_channels, -1)
        rows = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-5)
        return F.conv2d(x, rows.view_as(self.weight), self.bias, stride=4)


class WeightStandardised(nn.Module):
    """A network with such a convolution."""

    def __init__(self, channels: int, classes: int, flat: bool = False):
        super().__init__()
        self.conv = Standardised(channels, 4, 5)
        self.conv.flat = flat
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).mean((2, 3)))


class Strided(nn.Module):
    """Takes PyTorch's own layout for granted without a word when it is another one."""

    def __init__(self, channels: int, classes: int, flat: bool = False):
        super().__init__()
        self.flat = flat
        self.fc = nn.Linear(64 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        corner = x[:, :, :8, :8]
        if not self.flat:
            corner = x.as_strided((n, c, 8, 8), (c * h * w, h * w, w, 1))
        return self.fc(corner.flatten(1))


class InPlace(nn.Module):
    """Moves its images in place; ``flat``: makes others of them instead."""

    def __init__(self, shape: tuple[int, ...], classes: int, flat: bool = False, training: bool = False):
        """``training``: only then."""
        super().__init__()
        self.flat, self.only = flat, training
        self.fc1 = nn.Linear(torch.Size(shape).numel(), 16)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not self.only:
            x = x - 1.0 if self.flat else x.sub_(1.0)
        return self.fc(torch.tanh(self.fc1(x.flatten(1))))


class Buffers(nn.Module):
    """Floating buffers of every kind, each of which meets a layer that takes one type of numbers."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        inputs = torch.Size(shape).numel()
        self.register_buffer("mask", torch.rand(inputs).round(), persistent=False)
        self.register_buffer("scale", torch.rand(inputs) + 0.5)
        self.register_buffer("random", torch.randn(inputs, 12) / inputs**0.5, persistent=False)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("place", torch.arange(inputs).flip(0), persistent=False)
        self.norm = nn.BatchNorm1d(12)
        self.fc = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = (x.flatten(1) * self.mask * self.scale)[:, self.place] @ self.random
        if self.training:
            self.mean = 0.99 * self.mean + 0.01 * x.mean(0)
        return self.fc(self.norm(x - self.mean))


class Spectral(nn.Module):
    """Weights that are made of others, with vectors which are buffers and which each pass improves."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv = spectral_norm(nn.Conv2d(channels, 4, 5, stride=4))
        self.fc = spectral_norm(nn.Linear(4, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class Squeezed(nn.Module):
    """Drops the axis of the examples, too, where there is but one."""

    def __init__(self, channels: int, classes: int, training: bool = False):
        """``training``: only then."""
        super().__init__()
        self.only = training
        self.conv = nn.Conv2d(channels, 4, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv(x))
        return self.fc(x.squeeze() if self.training or not self.only else x.flatten(1))


class Filter(nn.Module):
    """A filter of complex numbers."""

    def __init__(self, channels: int, classes: int, buffer: bool = False):
        super().__init__()
        filter_ = torch.randn(channels, 1, 1, dtype=torch.complex64)
        if buffer:
            self.register_buffer("filter", filter_)
        else:
            self.filter = nn.Parameter(filter_)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.fft.ifft2(torch.fft.fft2(x) * self.filter).real.mean((2, 3)))


class MyNorm(nn.BatchNorm1d):
    """Batch norm with a width of its own."""

    def __init__(self, features: int):
        super().__init__(features, momentum=None)


class Doubled(nn.GroupNorm):
    """Group norm with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) * self.weight


class ByHand(nn.LayerNorm):
    """Layer norm that computes by itself, in two types of numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class Normed(nn.Module):
    """Norms that are derived from PyTorch's."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.fc1 = nn.Linear(torch.Size(shape).numel(), 8)
        self.norms = nn.Sequential(MyNorm(8), Doubled(2, 8), ByHand(8))
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norms(self.fc1(x.flatten(1)))))
