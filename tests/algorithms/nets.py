"""Small networks for the shared tests."""

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Two convolutions and a classifier, a few hundred parameters."""

    feature_layer = "fc"
    last_block = "last"

    def __init__(self, classes: int, channels: int, norm: str = "none"):
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(4) if norm == "batch" else nn.Identity()
        self.last = nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8) if norm == "batch" else nn.Identity(),
            nn.ReLU(),
        )
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        return self.fc(self.last(x).mean((2, 3)))
