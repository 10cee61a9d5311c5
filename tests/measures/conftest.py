"""A round of two clients over three classes, small enough to work out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall.algorithms.fedavg import FedAvg, Up
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.datasets import Dataset, Split
from fedrecall.data.federation import Federation
from fedrecall.measures.accuracy import evaluate
from fedrecall.measures.moment import Moment
from fedrecall.models.model import Model, Weights
from fedrecall.training import Failure, Visit


class Table(nn.Module):
    """logits = relu(x W1) W2, with names that measures look for."""

    feature_layer = "fc2"

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 3, bias=False)
        self.fc1_act = nn.ReLU()
        self.fc2 = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.fc2(self.fc1_act(self.fc1(x)))


def weights(first, second) -> Weights:
    """fc1 and fc2 as matrices [out, in]."""
    make = lambda rows: torch.tensor(rows, dtype=torch.float64)  # noqa: E731
    return Weights({"fc1.weight": make(first), "fc2.weight": make(second)}, {})


EYE = [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]
SWAP = [[0.0, 1, 0], [1, 0, 0], [0, 0, 1]]  # takes class 0 for 1 and 1 for 0


@pytest.fixture
def moment():
    """Test: two examples of each class, x = unit vector of the class, so that EYE, EYE is right always.

    Class 0 is tested at north, class 2 at south, class 1 at both; at west nothing is.

    Client 0 holds classes 0 (three times) and 1 (once), client 1 class 2 alone. Before: everything is
    right. Client 0 comes to swap 0 and 1; client 1 stays as it was; a third client fails.
    """
    unit = torch.eye(3)
    train_y = torch.tensor([0, 0, 0, 1, 2, 2])
    test_y = torch.tensor([0, 0, 1, 1, 2, 2])
    dataset = Dataset(
        "unit",
        ("a", "b", "c"),
        Split(unit[train_y], train_y),
        Split(unit[test_y], test_y, torch.tensor([0, 0, 0, 2, 2, 2])),
        torch.zeros(3),
        torch.ones(3),
        origins=("north", "west", "south"),
    )
    parts = [np.array([0, 1, 2, 3]), np.array([4, 5])]
    federation = Federation(dataset, parts, Augmentation(), torch.float64, np.array([0, 3, 4]))
    model = Model(Table().double())
    before, after = weights(EYE, EYE), weights(EYE, [[1.0, 0, 0], [1, 0, 0], [0, 0, 1]])
    visits = [
        Visit(0, 4, Up(weights(EYE, SWAP)), None, 0.5, 1.0),
        Visit(1, 2, None, None, float("nan"), 1.0, Failure(1, 3, 1, "the loss became nan")),
        Visit(1, 2, Up(before), None, 0.5, 1.0),
    ]
    return Moment(
        3,
        model,
        federation,
        before,
        after,
        [[0], [1], [1]],
        visits,
        [before] * 3,
        evaluate(model, after, federation.test),
        FedAvg(),
    )


def in_chains(moment: Moment, chains: list[list[int]], **others: Any) -> Moment:
    """The same round with its clients in these chains, in which each passes on what it uploads."""
    moment = replace(moment, chains=chains, **others)
    sent, visits = [], iter(moment.visits)
    for chain in chains:
        arrives = moment.before
        for visit in (next(visits) for _ in chain):
            sent.append(arrives)
            arrives = arrives if visit.failure else visit.up.weights
    return replace(moment, sent=sent)
