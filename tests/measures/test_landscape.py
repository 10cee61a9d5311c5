import numpy as np
import pytest
import torch
from torch import nn

from fedrecall.data.augmentation import Augmentation
from fedrecall.data.client import ClientData, TestData
from fedrecall.measures import landscape as L
from fedrecall.models.model import Model


def _loss(module=None, n=30, classes=3):
    torch.manual_seed(0)
    module = (
        module or nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, classes))
    ).double()
    x, y = torch.randn(n, 4), torch.arange(n) % classes
    data = ClientData(x, y, classes, torch.zeros(4), torch.ones(4), dtype=torch.float64)
    model = Model(module)
    return L.Loss(model, model.initial(), data), x.double(), y


def _hessian(loss, x, y):
    names = list(loss.weights.params)
    shapes = [loss.weights.params[n].shape for n in names]

    def at(flat):
        parts = torch.split(flat, [s.numel() for s in shapes])
        params = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        hidden = torch.tanh(x @ params["1.weight"].T + params["1.bias"])
        return nn.functional.cross_entropy(hidden @ params["3.weight"].T + params["3.bias"], y)

    flat = torch.cat([loss.weights.params[n].flatten() for n in names])
    return torch.autograd.functional.hessian(at, flat), names, shapes


def _flat(params, names):
    return torch.cat([params[n].flatten() for n in names])


def test_hessian_vector_products_are_those_of_the_whole_hessian():
    loss, x, y = _loss()
    full, names, _ = _hessian(loss, x, y)
    v = L.noise(loss.weights.params, 1, "v")
    assert _flat(loss.hessian_times(v), names).numpy() == pytest.approx(
        (full @ _flat(v, names)).numpy(), abs=1e-12
    )


def test_power_iteration_finds_the_two_largest_eigenpairs():
    loss, x, y = _loss()
    full, names, _ = _hessian(loss, x, y)
    values, vectors = np.linalg.eigh(full.numpy())
    order = np.argsort(-np.abs(values))[:2]
    found = L.top_eigenvectors(loss, 2, iterations=2000, tolerance=1e-13)
    assert found.values == pytest.approx(values[order], rel=1e-6)
    assert found.converged == [True, True]
    for i, place in enumerate(order):
        overlap = abs(_flat(found.vectors[i], names).numpy() @ vectors[:, place])
        assert overlap == pytest.approx(1, abs=1e-4)
    assert L.dot(found.vectors[0], found.vectors[1]) == pytest.approx(0, abs=1e-10)


def test_power_iteration_keeps_signs_and_stops_on_nothing():
    like = {"w": torch.zeros(3, dtype=torch.float64)}
    diagonal = torch.tensor([1.0, -5.0, 3.0], dtype=torch.float64)
    found = L.power_iteration(lambda v: {"w": diagonal * v["w"]}, like, 2, 500, 1e-14)
    assert found.values == pytest.approx([-5, 3])
    flat = L.power_iteration(lambda v: {"w": 0 * v["w"]}, like, 1, 5)
    assert flat.values == [0]
    assert flat.converged == [True]


def test_curve_and_surface_start_from_the_loss_itself():
    loss, x, y = _loss()
    here = loss.at(loss.weights.params)
    params = loss.weights.params
    hidden = torch.tanh(x @ params["1.weight"].T + params["1.bias"])
    plain = nn.functional.cross_entropy(hidden @ params["3.weight"].T + params["3.bias"], y)
    assert here == pytest.approx(float(plain))
    curve = L.perturbation_curve(loss, (0.0, 0.1, 3.0), draws=4)
    assert curve.shape == (4, 3)
    assert curve[:, 0] == pytest.approx([here] * 4)
    assert curve[:, 2].mean() > here
    u, v = L.top_eigenvectors(loss).vectors
    grid = L.surface(loss, (u, v), [0.0, 0.2], [-0.1, 0.0, 0.1])
    assert grid.shape == (2, 3)
    assert grid[0, 1] == pytest.approx(here)
    assert grid[1, 0] == pytest.approx(loss.at(L.shifted(params, (0.2, u), (-0.1, v))))


def test_surface_of_a_quadratic_is_its_own_taylor_series():
    # Near the weights the loss is l + g.d + d H d / 2; along an eigenvector the curvature is its value.
    loss, _, _ = _loss()
    spectrum = L.top_eigenvectors(loss, 1, iterations=1000, tolerance=1e-12)
    step = 1e-3
    line = L.surface(loss, (spectrum.vectors[0], spectrum.vectors[0]), [-step, 0.0, step], [0.0])[:, 0]
    assert (line[0] - 2 * line[1] + line[2]) / step**2 == pytest.approx(spectrum.values[0], rel=1e-4)


def test_noise_is_keyed_and_leaves_the_weights_alone():
    loss, _, _ = _loss()
    before = {n: p.clone() for n, p in loss.weights.params.items()}
    assert L.perturbation_curve(loss, (0.5,), 1) == L.perturbation_curve(loss, (0.5,), 1)
    assert L.perturbation_curve(loss, (0.5,), 1) != L.perturbation_curve(loss, (0.5,), 1, seed=1)
    assert all(torch.equal(before[n], p) for n, p in loss.weights.params.items())


def test_a_network_with_convolutions_pools_and_batch_norm():
    module = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), nn.BatchNorm2d(2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3),
    )  # fmt: skip
    loss, _, _ = _loss(module)
    v = L.noise(loss.weights.params, 0, "v")
    step = 1e-5

    def gradient(sign):
        moved = {n: t.requires_grad_() for n, t in L.shifted(loss.weights.params, (sign * step, v)).items()}
        total = sum(loss.sum(moved, b) for b in loss.batches) / loss.examples
        return torch.autograd.grad(total, list(moved.values()))

    differences = [(a - b) / (2 * step) for a, b in zip(gradient(1), gradient(-1), strict=True)]
    for expected, found in zip(differences, loss.hessian_times(v).values(), strict=True):
        assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_subset_spreads_over_the_whole_split():
    y = torch.arange(10)
    data = ClientData(torch.zeros(10, 1), y, 10, torch.zeros(1), torch.ones(1))
    assert L.subset(data, 4).y.tolist() == [0, 3, 6, 9]
    assert L.subset(data, 99) is data


def test_examples_of_an_augmented_test_split_look_as_they_do_among_all():
    x = torch.randint(0, 256, (12, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    recipe = Augmentation(crop=2, flip=True, cutout=3)
    test = TestData(x, torch.arange(12), 12, torch.zeros(1), torch.ones(1), recipe)
    (whole,), (some,) = test.batches(), L.subset(test, 5).batches()
    assert some.y.tolist() == [0, 3, 6, 8, 11]  # 0, 2.75, 5.5, 8.25 and 11, halves to the even one
    assert torch.equal(some.x, whole.x[some.y])
    (fewer,) = L.subset(L.subset(test, 5), 2).batches()
    assert torch.equal(fewer.x, whole.x[[0, 11]])
    assert not torch.equal(whole.x, next(ClientData.batches(test)).x)
