"""Calibrated labels: the loss written out, and what it is to be."""

from math import log

import numpy as np
import pytest
import torch
from tests.algorithms.readable import Local, model

from fedrecall.algorithms.calibrated import Calibrated
from fedrecall.algorithms.fedavg import Down

ROWS = [[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]


def loss(algorithm: Calibrated, data: Local) -> float:
    readable, weights = model()
    anchor = algorithm.prepare(readable, Down(weights), (), data)
    return algorithm.loss(readable.student({}, torch.tensor(0)), weights.params, anchor, data.batch()).item()


def test_loss_is_written_out():
    data = Local(ROWS, [0, 2, 0])
    offset = 0.4 * np.log([3 / 6, 1 / 6, 2 / 6])  # of two, none and one, and one more of each
    terms = []
    for x, y in zip(ROWS, [0, 2, 0], strict=True):
        z = np.log(x) + np.arange(3) + offset  # as the student in training mode has them
        terms.append(log(np.exp(z).sum()) - z[y])
    assert loss(Calibrated(calibration=0.4), data) == pytest.approx(np.mean(terms), abs=1e-12)


def test_a_client_with_as_many_of_each_class_needs_none():
    even = Local(ROWS, [0, 1, 2])
    assert loss(Calibrated(), even) == pytest.approx(loss(Calibrated(calibration=0), even), abs=1e-12)


def test_logits_of_classes_that_a_client_lacks_are_left_alone():
    """By cross-entropy: a class's logit is pushed down as its share of the labels says."""
    many = Local([[0.4, 0.3, 0.3]] * 9_998, [0] * 9_998)

    def push(calibration: float) -> list[float]:
        readable, weights = model()
        offset = Calibrated(calibration=calibration).prepare(readable, Down(weights), (), many).offset
        z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        torch.nn.functional.cross_entropy(z + offset, torch.tensor([0])).backward()
        return z.grad[0].tolist()

    assert push(0) == pytest.approx([-2 / 3, 1 / 3, 1 / 3])
    assert push(1) == pytest.approx([-2 / 10_001, 1 / 10_001, 1 / 10_001])
