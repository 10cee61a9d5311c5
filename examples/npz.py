"""A data set of one's own in one file: the arrays x, y and site of an .npz file.

    fedrecall run --dataset examples/npz.py:Npz:scans.npz --partition natural --clients 4 --sample 4 \
        --rounds 10 --batch-size 10
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecall import Dataset, UserError, from_arrays
from fedrecall.data.datasets import Recipe


@dataclass(frozen=True)
class Npz(Recipe):
    """Images or rows x, their labels y, and site, where each is from."""

    path: str
    """The .npz file."""

    def __post_init__(self) -> None:
        """A run may be gone on with from another folder."""
        object.__setattr__(self, "path", os.path.abspath(self.path))

    def read(self, name: str, root: Path | None) -> Dataset:
        """The file's arrays as a data set, of which a fifth is held out for testing."""
        if not Path(self.path).is_file():
            raise UserError(f"there is no file {self.path}.")
        with np.load(self.path) as file:
            return from_arrays(file["x"], file["y"], origin=file["site"], name="npz")
