"""A trained network as it is used: with what it is given made ready, and its answers by name."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall import files
from fedrecall.data.augmentation import plain
from fedrecall.data.store import Dataset, channels, pixels
from fedrecall.errors import UserError
from fedrecall.models.model import Model, Weights

CHUNK = 500
"""Examples that are looked at together."""
LARGEST = 1 << 26
"""Numbers of one example: more than an image of 4096 x 4096 pixels has."""


@dataclass(frozen=True)
class Inputs:
    """What a network is given, as somebody has it who never saw the training data."""

    shape: tuple[int, ...]
    """Of one example: (channels, height, width) of an image, (columns,) of a table, any of other numbers."""
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    """Of an image's channels on the scale 0 to 1, or of a table's columns as they are; of other examples one
    of all numbers, or those along the last axis."""
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()
    """A table's columns in their order, if they have names."""
    floats: bool = False
    """Whether images are any numbers, not pixels from 0 to 255."""

    @staticmethod
    def of(dataset: Dataset) -> Inputs:
        """What networks that are trained on the data set are given."""
        mean, std = (v.cpu().double().numpy() for v in (dataset.mean, dataset.std))
        if dataset.columns is not None:  # the examples have been moved and scaled before
            own = np.asarray(dataset.columns.std)
            own = np.where(own > 0, own, 1.0)
            mean, std = dataset.columns.mean + mean * own, std * own
        shape, floats = dataset.shape, dataset.floats
        if len(mean) == 1:  # of all columns or channels
            mean, std = (np.repeat(v, channels(shape, floats)[0]) for v in (mean, std))
        scales = tuple(mean.tolist()), tuple(std.tolist())
        return Inputs(shape, dataset.class_names, *scales, dataset.features, len(shape) == 3 and floats)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def image(self) -> bool:
        """Whether an example is an image, not a row of a table."""
        return len(self.shape) == 3

    def save(self, path: Path) -> None:
        """Write them down."""
        files.write_json(path, asdict(self))

    @staticmethod
    def load(path: Path) -> Inputs:
        """Read what `save` wrote, or a UserError."""
        found = files.read_json(path)
        try:
            shape = tuple(int(n) for n in found["shape"])
            names = tuple(str(name) for name in found["class_names"])
            mean, std = (tuple(float(v) for v in found[key]) for key in ("mean", "std"))
            columns, floats = tuple(str(name) for name in found["columns"]), found.get("floats", False)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise UserError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
        sound = len(shape) > 0 and min(shape) > 0 and math.prod(shape) <= LARGEST and len(names) > 1
        sound = sound and all(map(math.isfinite, (*mean, *std))) and all(s > 0 for s in std)
        made = Inputs(shape, names, mean, std, columns, floats)
        if not (sound and isinstance(floats, bool) and made._fitting()):
            raise UserError(f"{path} is damaged: its parts do not fit together.")
        return made

    def _fitting(self) -> bool:
        counts = channels(self.shape, self.floats)
        return len(self.mean) == len(self.std) in counts and len(self.columns) in (0, self.shape[0])


class Trained(nn.Module):
    """Logits of examples as they are: pixels from 0 to 255 as uint8, or the numbers that were trained on.

    A plain module in evaluation mode: it can be exported (`torch.export`, ONNX) and run without this package.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, weights: Weights, inputs: Inputs):
        """The model with these weights."""
        super().__init__()
        self.inputs = inputs
        self.network = copy.deepcopy(model.module)
        held = {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}
        with torch.no_grad():
            for name, value in {**weights.params, **weights.buffers}.items():
                held[name].copy_(value)
        device = next(iter(weights.params.values())).device
        self.register_buffer("mean", torch.tensor(inputs.mean, dtype=torch.float64, device=device))
        self.register_buffer("std", torch.tensor(inputs.std, dtype=torch.float64, device=device))
        self.eval()

    def forward(self, x: Tensor | np.ndarray) -> Tensor:
        """[n, classes] of [n, *shape]."""
        if not isinstance(x, Tensor):
            x = torch.as_tensor(x, device=self.mean.device)
        kind = next(self.network.parameters()).dtype
        wide = kind if self.inputs.image else torch.float64  # time stamps have more digits than float32
        ready = plain(x if self.inputs.image else x.to(wide), self.mean, self.std, wide)
        return self.network(ready.to(kind))  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, examples: Tensor | np.ndarray) -> Tensor:
        """Of each class, [n, classes], on the CPU."""
        x = torch.as_tensor(examples)
        self._check(x)
        chunks = [x[i : i + CHUNK].to(self.mean.device) for i in range(0, len(x), CHUNK)]
        found = [torch.softmax(self(chunk), 1).cpu() for chunk in chunks]
        shares = torch.cat(found) if found else torch.empty(0, self.inputs.classes)
        if not (sound := torch.isfinite(shares).all(1)).all():
            number = int(torch.nonzero(~sound)[0, 0]) + 1
            raise UserError(
                f"example {number} is too far from those that the model was trained on: no answer."
            )
        return shares

    def predict(self, examples: Tensor | np.ndarray) -> list[str]:
        """The name of each example's likeliest class."""
        return [self.inputs.class_names[c] for c in self.probabilities(examples).argmax(1).tolist()]

    def _check(self, x: Tensor) -> None:
        shape = self.inputs.shape
        if tuple(x.shape[1:]) != shape or x.ndim == 0:
            raise UserError(
                f"examples of shape [n, {', '.join(map(str, shape))}] are needed, not {[*x.shape]}."
            )
        if self.inputs.floats and not x.is_floating_point():
            raise UserError(
                "the model was trained on images of floating-point numbers, not on pixels: give such, not "
                f"{x.dtype}."
            )
        if pixels(shape, self.inputs.floats) and x.dtype != torch.uint8:
            raise UserError(f"images are pixels from 0 to 255 as uint8, not {x.dtype}.")
        if x.dtype != torch.uint8 and not torch.isfinite(x).all():
            what = "a row of the table" if len(shape) == 1 else "an example"
            raise UserError(f"{what} holds something else than finite numbers.")

    def extra_repr(self) -> str:
        """For a prompt."""
        return f"{list(self.inputs.shape)} -> {', '.join(self.inputs.class_names)}"
