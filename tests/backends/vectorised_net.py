"""A small network with everything that a stack of clients could get wrong."""

import torch
from tests.algorithms.nets import normed
from torch import Tensor, nn


class Net(nn.Module):
    """Convolutions of two kinds, dropout of two kinds, and a norm if it is asked for."""

    feature_layer = "fc"
    last_block = "last"

    def __init__(self, classes: int, channels: int, norm: str = "none"):
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, padding="same", bias=False)
        self.norm = normed(norm, 4)
        self.drop_maps = nn.Dropout2d(0.2)
        self.last = nn.Sequential(nn.Conv2d(4, 8, (3, 2), stride=2, padding=1), nn.ReLU())
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop_maps(torch.relu(self.norm(self.first(x))))
        return self.fc(self.drop(self.last(x).mean((2, 3))))
