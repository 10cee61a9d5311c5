from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.cases import experiment
from tests.algorithms.readable import Local, model

from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import Server, Up
from fedrecall.algorithms.fedssd import Anchor, Down, FedSSD, class_weights, credibility, sample_weights
from fedrecall.errors import UserError
from fedrecall.models.model import Weights

# Four auxiliary examples of each of three classes, and what the model takes them for: not so surely
# that it would say the same in training mode.
TAKEN_FOR = [0, 0, 0, 1, 1, 0, 1, 2, 2, 2, 2, 2]
AUXILIARY = Local(
    [[0.6 if c == k else 0.2 for c in range(3)] for k in TAKEN_FOR], [0] * 4 + [1] * 4 + [2] * 4, size=5
)
MATRIX = [[0.75, 0.25, 0], [0.25, 0.5, 0.25], [0, 0, 1]]
# M_class[i] = A[i, i] (1 - what is mistaken most for i): 3/4 * 3/4, 1/2 * 3/4, 1 * 3/4
M_CLASS = [0.5625, 0.375, 0.75]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_credibility_matrix_worked_by_hand():
    readable, weights = model()
    matrix = credibility(readable, weights, AUXILIARY)
    torch.testing.assert_close(matrix, tensor(MATRIX))
    torch.testing.assert_close(class_weights(matrix), tensor(M_CLASS))


def test_a_class_without_auxiliary_examples_is_not_credible():
    readable, weights = model()
    some = Local([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], [0, 1])
    matrix = credibility(readable, weights, some)
    torch.testing.assert_close(matrix, tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]]))
    assert class_weights(matrix).tolist() == [1, 1, 0]


def test_sample_weight_worked_by_hand():
    teacher = tensor([[0.75, 0.2, 0.05], [0.75, 0.19, 0.06], [0.0, 0.0, 1.0]]).log()
    found = sample_weights(teacher, torch.tensor([0, 1, 2]))
    # 1 - sqrt(1 - 3/4), 1 - sqrt(1 - 0.19), 1 - sqrt(1 - 1)
    torch.testing.assert_close(found, tensor([0.5, 0.1, 1.0]))


def test_m_worked_by_hand():
    teacher = tensor([[0.75, 0.2, 0.05], [0.75, 0.19, 0.06]]).log()
    found = FedSSD(m_max=0.01).weights(teacher, tensor(M_CLASS), torch.tensor([0, 1]))
    # sure of the first, M_sample = 1/2: 0.01 * (0.28125 - 0.1), 0.01 * (0.1875 - 0.1), 0.01 * (0.375 - 0.1)
    # unsure of the second, M_sample = 0.1: 0.05625, 0.0375 and 0.075 are all below 0.1
    expected = tensor([[0.0018125, 0.000875, 0.00275], [0, 0, 0]])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def local_loss(algorithm: FedSSD) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """(loss, teacher's logits, student's logits, M) of two examples."""
    readable, weights = model()
    batch = Local([[0.75, 0.2, 0.05], [0.3, 0.1, 0.6]], [0, 2]).batch()
    anchor = Anchor(weights, tensor(M_CLASS))
    student = readable.student({}, torch.tensor(0))
    half = {"scale": tensor(0.5)}
    found = algorithm.loss(student, half, anchor, batch).item()
    teacher = batch.x.numpy()
    miss = [1 - np.sqrt(1 - 0.75), 1 - np.sqrt(1 - 0.6)]
    m = algorithm.m_max * np.maximum(np.outer(miss, M_CLASS) - 0.1, 0)
    return found, teacher, 0.5 * teacher + np.arange(3), m


def cross_entropy(z: np.ndarray) -> float:
    return float(np.mean([np.log(np.exp(v).sum()) - v[y] for v, y in zip(z, [0, 2], strict=True)]))


def test_loss_written_out_with_weights_inside_and_outside_the_square():
    found, t, s, m = local_loss(FedSSD(m_max=0.5))
    inside = np.mean([np.linalg.norm(w * a - w * b) ** 2 for w, a, b in zip(m, t, s, strict=True)])
    assert found == pytest.approx(cross_entropy(s) + inside, abs=1e-12)
    found, t, s, m = local_loss(FedSSD(m_max=0.5, square_weights=False))
    outside = np.mean((m * (t - s) ** 2).sum(1))
    assert found == pytest.approx(cross_entropy(s) + outside, abs=1e-12)
    assert outside > inside > 0


def test_table_3_s_ablations_have_one_weight_for_all():
    found, t, s, _ = local_loss(FedSSD(m_max=0.5, distillation="mse"))
    assert found == pytest.approx(cross_entropy(s) + 0.5 * np.mean(((t - s) ** 2).sum(1)), abs=1e-12)
    found, t, s, _ = local_loss(FedSSD(m_max=0.5, distillation="kl"))
    p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (t, s))
    assert found == pytest.approx(cross_entropy(s) + 0.5 * np.mean((p * np.log(p / q)).sum(1)), abs=1e-12)


def test_the_server_s_matrix_travels_and_the_client_weighs_by_it():
    readable, weights = model()
    down = FedSSD().broadcast(readable, Server(weights), AUXILIARY)
    assert isinstance(down, Down)
    torch.testing.assert_close(down.credibility, tensor(MATRIX))
    anchor = FedSSD().prepare(readable, down, (), AUXILIARY)
    torch.testing.assert_close(anchor.class_weights, tensor(M_CLASS))
    # In a chain the next client gets the last one's model and the same matrix.
    trained = Weights({"scale": tensor(3.0)}, {})
    passed = FedSSD().relay(down, Up(trained))
    assert passed.weights is trained
    assert passed.credibility is down.credibility


def test_ablations_send_no_matrix():
    readable, weights = model()
    down = FedSSD(distillation="kl").broadcast(readable, Server(weights), None)
    assert down._fields == ("weights",)


def test_without_auxiliary_examples_it_says_what_to_do():
    readable, weights = model()
    with pytest.raises(UserError, match="auxiliary_per_class"):
        FedSSD().broadcast(readable, Server(weights), None)
    with pytest.raises(UserError, match="1 or more"):
        ALGORITHMS.make("fedssd:auxiliary_per_class=0")
    with pytest.raises(UserError, match="needs auxiliary_per_class >= 64, not 8"):
        experiment("fedssd", auxiliary_per_class=8)
    assert ALGORITHMS.make("fedssd:distillation=mse,auxiliary_per_class=0").auxiliary_per_class == 0


@pytest.mark.parametrize(("spec", "per_class"), [("fedssd", 64), ("fedssd:auxiliary_per_class=16", 16)])
def test_no_client_has_an_auxiliary_example(spec: str, per_class: int):
    federation = experiment(spec).federation
    assert federation.auxiliary is not None
    assert federation.auxiliary.counts.tolist() == [per_class] * 4
    held = set(federation.auxiliary_part.tolist())
    assert not held & {int(i) for part in federation.parts for i in part}


def test_published_bound_inside_the_square_pulls_hardly_at_all():
    # The largest M is m_max (1 * 1 - 0.1): its square, in the gradient 2 M^2 (z - z^g), beside M's own.
    largest = FedSSD().weights(tensor([[1e3, 0.0]]), torch.ones(2, dtype=torch.float64), torch.tensor([0]))
    torch.testing.assert_close(largest, tensor([[0.009, 0.009]]))
    assert 2 * float(largest.max()) ** 2 < 2e-4
    assert 2 * float(largest.max()) == pytest.approx(0.018)
