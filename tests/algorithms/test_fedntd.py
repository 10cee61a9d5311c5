import numpy as np
import pytest
import torch
from tests.algorithms.readable import Local, model

from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import Anchor
from fedrecall.algorithms.fedntd import FedNTD
from fedrecall.errors import UserError
from fedrecall.losses import cross_entropy, kl, not_true_kl
from fedrecall.models.model import Weights

DATA = Local([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]], [0, 2, 1])
TEACHER = Weights({"scale": torch.tensor(-0.5, dtype=torch.float64)}, {})


def loss(algorithm: FedNTD) -> float:
    readable, weights = model()
    student = readable.student({}, torch.tensor(0))
    return algorithm.loss(student, weights.params, Anchor(TEACHER), DATA.batch()).item()


def logits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(teacher, student, labels); the student is in training mode, the teacher is not."""
    return -0.5 * DATA.x.numpy(), DATA.x.numpy() + np.arange(3), DATA.y.numpy()


def ce(z: np.ndarray, y: int) -> float:
    return float(np.log(np.exp(z).sum()) - z[y])


def divergence(t: np.ndarray, s: np.ndarray) -> float:
    p, q = np.exp(t) / np.exp(t).sum(), np.exp(s) / np.exp(s).sum()
    return float((p * np.log(p / q)).sum())


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_eq_10_and_11_written_out_with_and_without_tau_squared(tau: float):
    rows = list(zip(*logits(), strict=True))
    label = np.mean([ce(s, y) for _, s, y in rows])
    eq_11 = np.mean([divergence(np.delete(t, y) / tau, np.delete(s, y) / tau) for t, s, y in rows])
    assert loss(FedNTD(beta=0.3, tau=tau, tau_squared=False)) == pytest.approx(label + 0.3 * eq_11)
    assert loss(FedNTD(beta=0.3, tau=tau)) == pytest.approx(label + 0.3 * tau**2 * eq_11)


def test_mse_is_the_mean_squared_difference_of_not_true_logits():
    rows = list(zip(*logits(), strict=True))
    label = np.mean([ce(s, y) for _, s, y in rows])
    square = np.mean([np.mean((np.delete(t, y) - np.delete(s, y)) ** 2) for t, s, y in rows])
    assert loss(FedNTD(beta=0.3, distance="mse")) == pytest.approx(label + 0.3 * square)
    whole = np.mean([np.mean((t - s) ** 2) for t, s, _ in rows])
    mixed = FedNTD(beta=0.3, distance="mse", kd_mix=0.25)
    assert loss(mixed) == pytest.approx(label + 0.3 * (0.75 * whole + 0.25 * square))


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_eq_18_goes_from_distillation_on_all_classes_to_not_true(mix: float, tau: float):
    t, s, y = (torch.from_numpy(v) for v in logits())
    all_classes, not_true = kl(t, s, tau).mean(), not_true_kl(t, s, y, tau).mean()
    expected = cross_entropy(s, y).mean() + (1 - mix) * all_classes + mix * not_true
    assert loss(FedNTD(kd_mix=mix, tau=tau)) == pytest.approx(expected.item(), abs=1e-12)
    if mix == 1:
        assert loss(FedNTD(kd_mix=mix, tau=tau)) == loss(FedNTD(tau=tau))


def test_what_it_takes_is_checked():
    assert ALGORITHMS.make("fedntd:distance=mse,kd_mix=0.5").distance == "mse"
    with pytest.raises(UserError, match="kd_mix = 2 must be in"):
        ALGORITHMS.make({"name": "fedntd", "kd_mix": 2})
    with pytest.raises(UserError, match="one of kl, mse"):
        ALGORITHMS.make("fedntd:distance=l1")
