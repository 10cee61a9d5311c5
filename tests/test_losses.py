"""Every loss against the formula written once more, plainly, in numpy, example by example."""

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.func import grad, vmap

from fedrecall import losses

# Independent formulas: one example, plain lists of float64, sums written out.


def log_softmax(z: np.ndarray) -> np.ndarray:
    top = max(z)
    return np.array([v - top - math.log(sum(math.exp(u - top) for u in z)) for v in z])


def drop(z: np.ndarray, y: int) -> np.ndarray:
    """The logits without the true class's."""
    return np.array([v for c, v in enumerate(z) if c != y])


def cross_entropy(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    return -log_softmax(s)[y]


def soft_cross_entropy(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    p, log_q = np.exp(log_softmax(t / tau)), log_softmax(s / tau)
    return -sum(a * b for a, b in zip(p, log_q, strict=True))


def divergence(log_p: np.ndarray, log_q: np.ndarray) -> float:
    return sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def kl(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    return tau * tau * divergence(log_softmax(t / tau), log_softmax(s / tau))


def not_true_kl(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    if len(t) == 1:
        return 0.0
    return tau * tau * divergence(log_softmax(drop(t, y) / tau), log_softmax(drop(s, y) / tau))


def true_class_kl(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    def pair(z: np.ndarray) -> np.ndarray:
        log_p = log_softmax(z / tau)
        if len(z) == 1:
            return log_p
        rest = drop(log_p, y)
        top = max(rest)
        return np.array([log_p[y], top + math.log(sum(math.exp(v - top) for v in rest))])

    return tau * tau * divergence(pair(t), pair(s))


def not_true_square(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    squares = [(a - b) ** 2 for a, b in zip(drop(t, y), drop(s, y), strict=True)]
    return sum(squares) / len(squares) if squares else 0.0


def square(t: np.ndarray, s: np.ndarray, y: int, tau: float) -> float:
    return sum((a - b) ** 2 for a, b in zip(t, s, strict=True))


Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]

# name: (the library's, the independent one, whether it compares a teacher with a student)
LOSSES: dict[str, tuple[Loss, Callable[..., float], bool]] = {
    "cross_entropy": (lambda t, s, y, tau: losses.cross_entropy(s, y), cross_entropy, False),
    "soft_cross_entropy": (
        lambda t, s, y, tau: losses.soft_cross_entropy(t, s, tau),
        soft_cross_entropy,
        False,
    ),
    "kl": (lambda t, s, y, tau: losses.kl(t, s, tau), kl, True),
    "not_true_kl": (losses.not_true_kl, not_true_kl, True),
    "true_class_kl": (losses.true_class_kl, true_class_kl, True),
    "not_true_square": (lambda t, s, y, tau: losses.not_true_square(t, s, y), not_true_square, True),
    "weighted_square": (lambda t, s, y, tau: losses.weighted_square(t, s), square, True),
}
DISTANCES = [name for name, (_, _, distance) in LOSSES.items() if distance]


def tensors(t: Any, s: Any, y: Any, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(t, dtype=dtype), torch.tensor(s, dtype=dtype), torch.tensor(y)


@st.composite
def problems(draw: st.DrawFn, scale: float = 30.0) -> tuple[Any, Any, Any]:
    """(teacher, student, labels): any number of examples and classes, one of each included."""
    examples, classes = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    logit = st.floats(-scale, scale, width=32)
    rows = st.lists(st.lists(logit, min_size=classes, max_size=classes), min_size=examples, max_size=examples)
    labels = st.lists(st.integers(0, classes - 1), min_size=examples, max_size=examples)
    return draw(rows), draw(rows), draw(labels)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=60, deadline=None)
@given(problem=problems(), tau=st.sampled_from([0.5, 1.0, 3.0]))
def test_is_the_formula(name: str, problem: Any, tau: float):
    ours, theirs, _ = LOSSES[name]
    t, s, y = tensors(*problem)
    found = ours(t, s, y, tau)
    assert found.shape == y.shape
    expected = [theirs(np.array(a), np.array(b), c, tau) for a, b, c in zip(*problem, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_extreme_logits_give_finite_values_and_gradients(name: str, dtype: torch.dtype, classes: int):
    ours, theirs, _ = LOSSES[name]
    rows = [[1e4 if (c + k) % 2 else -1e4 for c in range(classes)] for k in (0, 1)]
    one = [[1e4 if c == k % classes else -1e4 for c in range(classes)] for k in (0, 1)]
    zero = [[0.0] * classes] * 2
    for teacher in (rows, one, zero):
        for student in (rows, rows[::-1], one, one[::-1], zero):
            for label in (0, classes - 1):
                t, s, y = tensors(teacher, student, [label] * 2, dtype)
                s.requires_grad_()
                value = ours(t, s, y, 1.0)
                (slope,) = torch.autograd.grad(value.sum(), s)
                assert torch.isfinite(value).all()
                assert torch.isfinite(slope).all()
                expected = [
                    theirs(np.array(a), np.array(b), label, 1.0)
                    for a, b in zip(teacher, student, strict=True)
                ]
                # float32 has steps of 1e-3 at 1e4, and a probability near a half feels them
                rtol = 1e-3 if dtype == torch.float32 else 1e-9
                np.testing.assert_allclose(value.detach().numpy(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", DISTANCES)
@settings(max_examples=40, deadline=None)
@given(problem=problems(scale=1e4), tau=st.sampled_from([0.5, 1.0, 3.0]))
def test_a_distance_is_not_negative_and_nothing_from_oneself(name: str, problem: Any, tau: float):
    ours, _, _ = LOSSES[name]
    t, s, y = tensors(*problem)
    assert (ours(t, s, y, tau) >= -1e-9).all()
    s = t.clone().requires_grad_()
    value = ours(t, s, y, tau)
    (slope,) = torch.autograd.grad(value.sum(), s)
    assert torch.equal(value, torch.zeros_like(value))
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12 * tau)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), tau=st.sampled_from([0.5, 1.0, 3.0]), squared=st.booleans())
def test_divergence_over_all_classes_is_true_class_plus_rest_times_not_true(
    problem: Any, tau: float, squared: bool
):
    t, s, y = tensors(*problem)
    p = torch.softmax(t / tau, -1).gather(-1, y[:, None])[:, 0]
    whole = losses.kl(t, s, tau, tau_squared=squared)
    true = losses.true_class_kl(t, s, y, tau, tau_squared=squared)
    rest = losses.not_true_kl(t, s, y, tau, tau_squared=squared)
    torch.testing.assert_close(whole, true + (1 - p) * rest, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), tau=st.sampled_from([0.5, 1.0, 3.0]))
@pytest.mark.parametrize("name", ["not_true_kl", "not_true_square"])
def test_the_true_logit_gets_no_gradient_from_not_true_losses(name: str, problem: Any, tau: float):
    ours, _, _ = LOSSES[name]
    t, s, y = tensors(*problem)
    s.requires_grad_()
    (slope,) = torch.autograd.grad(ours(t, s, y, tau).sum(), s)
    assert torch.equal(slope.gather(-1, y[:, None]), torch.zeros(len(y), 1, dtype=torch.float64))


def test_the_divergence_s_gradient_is_the_difference_of_probabilities():
    t = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 4)) * 3)
    s = (t.flip(0) / 2).requires_grad_()
    for tau in (1.0, 3.0):
        (slope,) = torch.autograd.grad(losses.kl(t, s, tau).sum(), s)
        torch.testing.assert_close(slope, tau * ((s / tau).softmax(-1) - (t / tau).softmax(-1)))
        (slope,) = torch.autograd.grad(losses.kl(t, s, tau, tau_squared=False).sum(), s)
        torch.testing.assert_close(slope, ((s / tau).softmax(-1) - (t / tau).softmax(-1)) / tau)
        (soft,) = torch.autograd.grad(losses.soft_cross_entropy(t, s, tau).sum(), s)
        torch.testing.assert_close(soft, slope)


@pytest.mark.parametrize("loss", [losses.kl, losses.not_true_kl, losses.true_class_kl])
def test_tau_squared_is_a_factor_and_nothing_at_tau_one(loss: Any):
    t, s, y = tensors([[1.0, -2.0, 0.5]], [[0.0, 3.0, 1.0]], [1])
    rest = () if loss is losses.kl else (y,)
    torch.testing.assert_close(loss(t, s, *rest, 3.0), 9 * loss(t, s, *rest, 3.0, tau_squared=False))
    assert torch.equal(loss(t, s, *rest, 1.0), loss(t, s, *rest, 1.0, tau_squared=False))


def test_weighted_square_weighs_each_class():
    t, s, _ = tensors([[1.0, 2.0, 3.0]], [[0.0, 4.0, 3.0]], [0])
    weights = torch.tensor([[2.0, 0.5, 7.0]], dtype=torch.float64)
    assert losses.weighted_square(t, s, weights).item() == 2 * 1 + 0.5 * 4
    assert losses.weighted_square(t, s, 0.25).item() == 0.25 * 5


@pytest.mark.parametrize("name", LOSSES)
def test_under_vmap_and_grad_each_client_gets_its_own(name: str):
    ours, _, _ = LOSSES[name]
    stream = torch.Generator().manual_seed(0)
    t = torch.randn(3, 5, 4, generator=stream, dtype=torch.float64)
    s = torch.randn(3, 5, 4, generator=stream, dtype=torch.float64)
    y = torch.randint(4, (3, 5), generator=stream)
    slopes = vmap(grad(lambda s, t, y: ours(t, s, y, 2.0).mean()))(s, t, y)
    for k in range(3):
        alone = s[k].clone().requires_grad_()
        (expected,) = torch.autograd.grad(ours(t[k], alone, y[k], 2.0).mean(), alone)
        torch.testing.assert_close(slopes[k], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", DISTANCES)
def test_several_teachers_at_once_are_one_after_another(name: str):
    ours, _, _ = LOSSES[name]
    stream = torch.Generator().manual_seed(1)
    teachers = torch.randn(3, 5, 4, generator=stream, dtype=torch.float64)
    s = torch.randn(5, 4, generator=stream, dtype=torch.float64)
    y = torch.randint(4, (5,), generator=stream)
    together = ours(teachers, s, y, 2.0)
    torch.testing.assert_close(together, torch.stack([ours(t, s, y, 2.0) for t in teachers]))
