"""ResNet-56 for small images, FedAlign's network (three stages of six bottleneck blocks)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from fedrecall.errors import UserError
from fedrecall.models.resnets import Bottleneck, ResNet, norm_layer
from fedrecall.specs import AT_LEAST_ONE


@dataclass(frozen=True)
class ResNet56:
    """ResNet-56 with the CIFAR stem: three stages of six bottleneck blocks, 0.6 M parameters."""

    norm: Literal["batch", "group"] = "batch"
    """Batch normalisation (its running statistics are averaged with the weights) or group normalisation."""
    groups: Annotated[int, AT_LEAST_ONE] = 16
    """Groups of group normalisation; the largest common divisor with the number of channels is used."""
    width: Annotated[int, AT_LEAST_ONE] = 16
    """Channels of the first stage before its blocks widen them; every stage doubles them."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Stem, three stages, global average, fc."""
        if len(shape) != 3:
            raise UserError(f"model resnet56 needs images (channels, height, width), not {tuple(shape)}.")
        norm = norm_layer(self.norm, self.groups)
        return ResNet(Bottleneck, (6, 6, 6), shape[0], classes, self.width, norm)
