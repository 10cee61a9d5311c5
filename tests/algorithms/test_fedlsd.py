import numpy as np
import pytest
import torch
from tests.algorithms.readable import Local, model

from fedrecall.algorithms.fedavg import Anchor
from fedrecall.algorithms.fedlsd import FedLSD
from fedrecall.models.model import Weights

DATA = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]], [0, 2])


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_loss_is_the_mixture_written_out(tau: float):
    readable, weights = model()
    teacher = Weights({"scale": torch.tensor(-0.5, dtype=torch.float64)}, {})
    batch = DATA.batch()
    student = readable.student({}, torch.tensor(0))
    found = FedLSD(alpha=0.3, tau=tau).loss(student, weights.params, Anchor(teacher), batch)
    terms = []
    for x, y in zip(batch.x.numpy(), batch.y.tolist(), strict=True):
        z = x + np.arange(3)  # the student is in training mode, the teacher is not
        log_q, log_q_tau = (v - np.log(np.exp(v).sum()) for v in (z, z / tau))
        p = np.exp(-0.5 * x / tau) / np.exp(-0.5 * x / tau).sum()
        terms.append(0.7 * -log_q[y] + 0.3 * -(p * log_q_tau).sum())
    assert found.item() == pytest.approx(np.mean(terms), abs=1e-12)


def test_with_alpha_one_the_labels_do_not_matter():
    readable, weights = model()
    batch = DATA.batch()
    losses = [
        FedLSD(alpha=1).loss(
            readable.student({}, torch.tensor(0)), weights.params, Anchor(weights), batch._replace(y=y)
        )
        for y in (batch.y, (batch.y + 1) % 3)
    ]
    assert losses[0] == losses[1]
