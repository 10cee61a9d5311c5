"""FedTrio: its loss written out, and what calibration is to be."""

import numpy as np
import pytest
import torch
from tests.algorithms.cases import assert_same, experiment
from tests.algorithms.readable import Local, model

from fedrecall import trees
from fedrecall.algorithms import scaffold
from fedrecall.algorithms.fedtrio import FedTrio
from fedrecall.models.model import Weights

DATA = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], [0, 2, 0])


def log_softmax(z: np.ndarray) -> np.ndarray:
    return z - np.log(np.exp(z).sum())


def prepared(algorithm: FedTrio, weights: Weights, data: Local):
    zero = trees.zeros(weights.params)
    return algorithm.prepare(model()[0], scaffold.Server(weights, zero), scaffold.Memory(zero), data)


def test_loss_is_written_out():
    readable, weights = model()
    teacher = Weights({"scale": torch.tensor(-0.5, dtype=torch.float64)}, {})
    algorithm = FedTrio(beta=0.7, calibration=0.4)
    batch = DATA.batch()
    student = readable.student({}, torch.tensor(0))
    found = algorithm.loss(student, weights.params, prepared(algorithm, teacher, DATA), batch)
    offset = 0.4 * np.log([3 / 6, 1 / 6, 2 / 6])  # of two, none and one, and one more of each
    terms = []
    for x, y in zip(batch.x.numpy(), batch.y.tolist(), strict=True):
        z = x + np.arange(3)  # the student is in training mode, the teacher is not
        log_p, log_q = (log_softmax(np.delete(v, y)) for v in (-0.5 * x, z))
        terms.append(-log_softmax(z + offset)[y] + 0.7 * (np.exp(log_p) * (log_p - log_q)).sum())
    assert found.item() == pytest.approx(np.mean(terms), abs=1e-12)


def test_a_client_with_as_many_of_each_class_needs_no_calibration():
    readable, weights = model()
    even = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], [0, 1, 2])
    losses = [
        a.loss(
            readable.student({}, torch.tensor(0)), weights.params, prepared(a, weights, even), even.batch()
        )
        for a in (FedTrio(calibration=1), FedTrio(calibration=0))
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-12)


def test_logits_of_classes_that_a_client_lacks_are_left_alone():
    """By cross-entropy: a class's logit is pushed down as its share of the labels says."""
    many = Local([[0.4, 0.3, 0.3]] * 9_998, [0] * 9_998)

    def push(calibration: float) -> list[float]:
        algorithm = FedTrio(beta=0, calibration=calibration)
        z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        offset = prepared(algorithm, model()[1], many).offset
        torch.nn.functional.cross_entropy(z + offset, torch.tensor([0])).backward()
        return z.grad[0].tolist()

    assert push(0) == pytest.approx([-2 / 3, 1 / 3, 1 / 3])
    assert push(1) == pytest.approx([-2 / 10_001, 1 / 10_001, 1 / 10_001])


@pytest.mark.parametrize("part", ["scaffold", "fedntd", "fedtrio:calibration=0", "fedtrio:beta=0"])
def test_all_three_parts_count(part):
    mine = experiment("fedtrio").run().weights
    with pytest.raises(AssertionError):
        assert_same(mine, experiment(part).run().weights, 1e-9)
