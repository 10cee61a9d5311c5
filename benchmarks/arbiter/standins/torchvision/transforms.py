"""Transforms of one picture, an array [H, W, C] or [H, W] until it is a tensor."""
# ruff: noqa: D102

import numpy as np
import torch


class Compose:
    """One after another."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, picture):
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToPILImage:
    """A picture stays an array here."""

    def __call__(self, picture):
        return np.asarray(picture)


class RandomCrop:
    """Pad with black, cut at random."""

    def __init__(self, size, padding=0):
        self.size, self.padding = size, padding

    def __call__(self, picture):
        p = self.padding
        wide = np.pad(picture, [(p, p), (p, p)] + [(0, 0)] * (picture.ndim - 2))
        top, left = (int(torch.randint(0, n - self.size + 1, ())) for n in wide.shape[:2])
        return wide[top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    """Mirror every other picture."""

    def __call__(self, picture):
        return picture[:, ::-1] if torch.rand(()) < 0.5 else picture


class ToTensor:
    """[C, H, W] in [0, 1]."""

    def __call__(self, picture):
        picture = np.ascontiguousarray(picture)
        picture = picture[:, :, None] if picture.ndim == 2 else picture
        return torch.from_numpy(picture).permute(2, 0, 1).contiguous().float().div(255)


class Normalize:
    """(x - mean) / std, channel by channel."""

    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(v)[:, None, None] for v in (mean, std))

    def __call__(self, picture):
        return (picture - self.mean) / self.std


class Lambda:
    """Any function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, picture):
        return self.function(picture)
