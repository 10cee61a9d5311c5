"""The network whose features are points of a circle (FedNTD, figure 18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from fedrecall.models.networks import CNN, Chain
from fedrecall.specs import POSITIVE


class OnCircle(nn.Module):
    """Scale every row to one length."""

    def __init__(self, radius: float):
        super().__init__()
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        """radius · x/‖x‖."""
        return self.radius * nn.functional.normalize(x, dim=-1)


@dataclass(frozen=True)
class Circle:
    """FedNTD's CNN with two features, which lie on a circle; the paper gives no more of its make.

    The two features are centred by batch norm: without, all of them point one way from the start,
    and gradients along the circle hardly part them (four rounds on digits end at chance).
    """

    radius: Annotated[float, POSITIVE] = 3.0
    """Length of the features before the classifier."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The CNN up to fc1 512, then fc2 2, centred, the circle, and fc3 classes."""
        cnn = CNN()
        chain = cnn.build(shape, classes)
        assert isinstance(chain, Chain)
        chain.fc2 = nn.Linear(cnn.hidden, 2)  # in place: deleting a layer of a chain numbers all others anew
        chain.add_module("centre", nn.BatchNorm1d(2, affine=False))
        chain.add_module("circle", OnCircle(self.radius))
        chain.add_module("fc3", nn.Linear(2, classes))
        chain.feature_layer = "fc3"
        return chain
