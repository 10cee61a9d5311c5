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


@pytest.mark.parametrize("part", ["scaffold", "fedntd", "fedtrio:calibration=0", "fedtrio:beta=0"])
def test_all_three_parts_count(part):
    mine = experiment("fedtrio").run().weights
    with pytest.raises(AssertionError):
        assert_same(mine, experiment(part).run().weights, 1e-9)
