import numpy as np
import pytest
import torch
from torch import nn

from fedrecall.data.client import ClientData
from fedrecall.measures import accuracy as A
from fedrecall.models.model import Model

# Class 0: 3 of 4 right; class 1: 1 of 2 right; class 2 never occurs.
CONFUSION = np.array([[3, 1, 0], [0, 1, 1], [0, 0, 0]])


def test_accuracies_of_a_confusion_matrix():
    assert A.accuracy(CONFUSION) == pytest.approx(4 / 6)
    assert A.class_accuracy(CONFUSION) == pytest.approx([0.75, 0.5, 0.0])


def test_credibility_rows_are_shares_of_each_true_class():
    expected = [[0.75, 0.25, 0], [0, 0.5, 0.5], [0, 0, 0]]
    assert A.credibility(CONFUSION) == pytest.approx(np.array(expected))


def test_forgetting_by_hand():
    # Best before the end: 0.8 and 0.6; at the end 0.5 and 0.9: (0.3 - 0.3) / 2; the last round's own
    # peak does not count, so that class 1 forgets -0.3.
    history = np.array([[0.8, 0.1], [0.2, 0.6], [0.5, 0.9]])
    assert A.forgetting(history) == pytest.approx(0.0)
    history[-1] = [0.1, 0.1]
    assert A.forgetting(history) == pytest.approx((0.7 + 0.5) / 2)
    assert A.forgetting(history[:1]) == 0


def test_consistency_is_a_cosine():
    assert A.consistency(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(0.5**0.5)
    assert A.consistency(np.array([0.2, 0.4]), np.array([0.1, 0.2])) == pytest.approx(1)
    assert A.consistency(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0
    assert A.consistency(np.zeros(2), np.ones(2)) == 0


def test_normalised_sums_to_one_in_every_round():
    found = A.normalised(np.array([[0.2, 0.6], [0.0, 0.0]]))
    assert found == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5]]))


def test_in_and_out_local_by_hand():
    p, a = np.array([0.5, 0.5, 0.0]), np.array([0.8, 0.6, 0.1])
    assert A.in_local(p, a) == pytest.approx(0.7)
    assert A.out_local(p, a) == pytest.approx(0.25 * 0.8 + 0.25 * 0.6 + 0.5 * 0.1)


def test_of_classes_without_test_examples_nothing_is_known():
    p, a = np.array([0.5, 0.25, 0.25]), np.array([0.0, 0.6, 0.2])
    tested = np.array([False, True, True])
    assert A.in_local(p, a, tested) == pytest.approx(0.4)  # not .2, as if all of class 0 were wrong
    assert A.out_local(p, a, tested) == pytest.approx(0.4)
    skewed = np.array([0.5, 0.1, 0.4])
    assert A.in_local(skewed, a, tested) == pytest.approx((0.06 + 0.08) / 0.5)
    assert A.out_local(skewed, a, tested) == pytest.approx((0.45 * 0.6 + 0.3 * 0.2) / 0.75)
    alone = np.array([1.0, 0.0, 0.0])
    assert A.in_local(alone, a, tested) is None
    assert A.out_local(alone, a, tested) == pytest.approx(0.4)
    everything = np.ones(3, bool)
    assert A.in_local(skewed, a, everything) == A.in_local(skewed, a)


def test_uniform_clients_have_no_outside():
    p, a = np.full(4, 0.25), np.array([0.1, 0.4, 0.9, 0.2])
    assert A.in_local(p, a) == pytest.approx(A.out_local(p, a)) == pytest.approx(a.mean())


def test_evaluate_counts_every_example_once_whatever_the_batch():
    # The model's logits are its input: the prediction is the larger of the two pixels.
    module = nn.Flatten()
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0], [0.0, 1.0], [1.0, 0.0]])
    y = torch.tensor([0, 1, 1, 1, 0])
    data = ClientData(x, y, 2, torch.zeros(2), torch.ones(2), dtype=torch.float64)
    model = Model(module)
    expected = -torch.log_softmax(x.double(), 1)[range(5), y].mean()
    for batch in (1, 2, 5, 100):
        found = A.evaluate(model, model.initial(), data, batch)
        assert found.confusion.tolist() == [[2, 0], [1, 2]]
        assert found.loss == pytest.approx(float(expected), rel=1e-12)


def poor(model: Model, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A model whose device has memory for so many examples at once; the batches that it is given."""
    tried, frozen = [], model.frozen

    def bounded(weights, x):
        tried.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return frozen(weights, x)

    monkeypatch.setattr(model, "frozen", bounded)
    return tried


def test_where_memory_runs_out_fewer_examples_are_taken_at_once(monkeypatch):
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(170, 3, generator=stream), torch.randint(0, 3, (170,), generator=stream)
    data = ClientData(x, y, 3, torch.zeros(3), torch.ones(3))
    model = Model(nn.Linear(3, 3))
    expected = A.evaluate(model, model.initial(), data, 50)
    tried = poor(model, 50, monkeypatch)
    found = A.evaluate(model, model.initial(), data)
    assert found.confusion.tolist() == expected.confusion.tolist()
    assert found.predicted.tolist() == expected.predicted.tolist()
    assert found.loss == expected.loss
    assert tried == [100, 50, 50, 50, 20]
    tried.clear()
    A.evaluate(model, model.initial(), data)  # what did not fit before is not tried again
    assert tried == [50, 50, 50, 20]


def test_one_example_that_does_not_fit_and_other_errors_are_told(monkeypatch):
    data = ClientData(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), 2, torch.zeros(2), torch.ones(2))
    model = Model(nn.Linear(2, 2))
    tried = poor(model, 0, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        A.evaluate(model, model.initial(), data)
    assert tried == [3, 1]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        A.evaluate(Model(nn.Linear(5, 2)), Model(nn.Linear(5, 2)).initial(), data)


def test_round_by_round_as_from_the_whole_history():
    curve = np.random.default_rng(0).random((30, 4))
    recall = A.Recall()
    assert recall.step(curve[0]) == (0.0, None)
    for t in range(1, len(curve)):
        forgotten, consistent = recall.step(curve[t])
        assert forgotten == pytest.approx(A.forgetting(curve[: t + 1]), abs=1e-15)
        assert consistent == A.consistency(curve[t - 1], curve[t])


def test_of_classes_that_are_not_tested_nothing_is_known_to_be_forgotten():
    curve = np.array([[0.8, 0.6, 0.0], [0.2, 0.7, 0.0], [0.3, 0.0, 0.0]])
    tested = np.array([[True, True, False], [True, True, False], [True, False, False]])
    recall = A.Recall()
    found = [recall.step(c, t)[0] for c, t in zip(curve, tested, strict=True)]
    assert found == pytest.approx([0.0, (0.6 - 0.1) / 2, 0.5])
    few = A.Recall()  # as if the class were not there
    assert [few.step(c[:2])[0] for c in curve[:2]] == pytest.approx(found[:2])
    assert recall.step(curve[0], np.zeros(3, bool))[0] == 0.0
