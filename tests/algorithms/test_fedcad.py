import numpy as np
import pytest
import torch
from tests.algorithms.readable import Local, down, model

from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedcad import Anchor, FedCAD
from fedrecall.errors import UserError
from fedrecall.models.model import Weights

# What the global model says of a client's three examples: classes 0, 2, 0; none of class 1.
DATA = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], [0, 2, 0])


def test_alpha_of_a_client_worked_by_hand():
    anchor = FedCAD(beta=0.25, gamma=0.5).prepare(model()[0], down(), (), DATA)
    # class 0: phi = 0.8 - 0.2 = 0.6 and 0.6 - 0.4 = 0.2, mean 0.4; 0.125 * 0.4 + 0.375 = 0.425
    # class 2: phi = 0.2 - 0.8 = -0.6; 0.125 * -0.6 + 0.375 = 0.3
    torch.testing.assert_close(anchor.alpha[[0, 2]], torch.tensor([0.425, 0.3], dtype=torch.float64))
    assert torch.isfinite(anchor.alpha).all()  # class 1, which never occurs


def test_alpha_s_bounds_are_reached_by_a_model_always_sure_and_always_wrong():
    tiny = 1e-30
    sure = Local([[1 - tiny, tiny], [1 - tiny, tiny]], [0, 1])
    anchor = FedCAD(beta=0.1, gamma=0.7).prepare(model()[0], down(), (), sure)
    torch.testing.assert_close(anchor.alpha, torch.tensor([0.7, 0.1], dtype=torch.float64))


def test_alpha_has_the_distillation_s_temperature():
    anchor = FedCAD(beta=0, gamma=1, tau=2).prepare(model()[0], down(), (), Local([[0.8, 0.2]], [0]))
    # softmax of half the logits: sqrt(0.8) / (sqrt(0.8) + sqrt(0.2)) = 2 / 3
    assert anchor.alpha[0].item() == pytest.approx(2 / 3, abs=1e-12)


def test_alpha_does_not_depend_on_how_the_data_is_cut_into_batches():
    whole = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], [0, 2, 0], size=3)
    one = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], [0, 2, 0], size=1)
    a, b = (FedCAD().prepare(model()[0], down(), (), data).alpha for data in (whole, one))
    torch.testing.assert_close(a, b)


def test_loss_mixes_label_and_teacher_class_by_class():
    readable, weights = model()
    algorithm = FedCAD(tau=2)
    alpha = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    half = Weights({"scale": torch.tensor(0.5, dtype=torch.float64)}, {})
    batch = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], [0, 2, 1]).batch()
    found = algorithm.loss(readable.student({}, torch.tensor(0)), weights.params, Anchor(half, alpha), batch)
    terms = []
    for x, y in zip(batch.x.numpy(), batch.y.tolist(), strict=True):
        z = x + np.arange(3)  # the student is in training mode
        log_q, log_q_tau = (v - np.log(np.exp(v).sum()) for v in (z, z / 2))
        p = np.exp(x * 0.5 / 2) / np.exp(x * 0.5 / 2).sum()
        a = [0.1, 0.5, 0.9][y]
        terms.append((1 - a) * -log_q[y] + a * -(p * log_q_tau).sum())
    assert found.item() == pytest.approx(np.mean(terms), abs=1e-12)


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(UserError, match=r"beta = 0\.6 must not be above gamma = 0\.5"):
        ALGORITHMS.make("fedcad:beta=0.6")
    with pytest.raises(UserError, match=r"gamma = 1\.5 must be in \[0, 1\]"):
        ALGORITHMS.make({"name": "fedcad", "gamma": 1.5})
