"""Data sets as arrays, read from what `run.py` exported."""
# ruff: noqa: D101

import os

import numpy as np
import torch


class _Arrays:
    name = ""

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        with np.load(os.path.join(os.environ["ARBITER_DATA"], f"{self.name}.npz")) as held:
            part = "train" if train else "test"
            self.data, self.targets = held[f"{part}_x"], held[f"{part}_y"]


class CIFAR10(_Arrays):
    name = "cifar10"


class CIFAR100(_Arrays):
    name = "cifar100"


class MNIST(_Arrays):
    name = "mnist"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.data, self.targets = torch.from_numpy(self.data), torch.from_numpy(self.targets)


class DatasetFolder:
    """Imported for CINIC-10, which is not run here."""
