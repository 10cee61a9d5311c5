"""The diagonal Fisher against plain loops and a formula."""

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall.algorithms.fisher import diagonal_fisher
from fedrecall.data.client import ClientData
from fedrecall.models.model import Model


def client(n: int, classes: int = 3) -> ClientData:
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (n, 1, 4, 4), generator=g, dtype=torch.uint8)
    y = torch.randint(0, classes, (n,), generator=g)
    one = torch.ones(1, dtype=torch.float64)
    return ClientData(x, y, classes, one * 0.4, one * 0.3, dtype=torch.float64)


def linear() -> Model:
    torch.manual_seed(0)
    return Model(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double())


def convolutional() -> Model:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
    return Model(nn.Sequential(*layers).double())


def test_linear_model_against_numpy():
    model, data = linear(), client(7)
    weights = model.initial()
    found = diagonal_fisher(model, weights, data)
    (batch,) = data.batches()
    x = batch.x.flatten(1).numpy()
    w, b = weights.params["1.weight"].numpy(), weights.params["1.bias"].numpy()
    z = x @ w.T + b
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    error = p - np.eye(3)[batch.y.numpy()]  # d CE / d z
    np.testing.assert_allclose(found["1.bias"], (error**2).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["1.weight"], (error**2).T @ x**2 / 7, rtol=1e-12)


@pytest.mark.parametrize("chunk_bytes", [1, 2**23])
def test_any_network_against_one_example_at_a_time(monkeypatch, chunk_bytes):
    monkeypatch.setattr("fedrecall.algorithms.fisher.CPU_BYTES", chunk_bytes)
    model, data = convolutional(), client(205)  # more than two batches
    weights = model.initial()
    found = diagonal_fisher(model, weights, data)
    for p in weights.params.values():
        p.requires_grad_(True)
    total = {n: torch.zeros_like(p) for n, p in weights.params.items()}
    for batch in data.batches(1):
        loss = nn.functional.cross_entropy(model.logits(weights, batch.x), batch.y)
        for n, g in zip(total, torch.autograd.grad(loss, list(weights.params.values())), strict=True):
            total[n] += g**2 / 205
    for n, t in total.items():
        torch.testing.assert_close(found[n], t, rtol=1e-10, atol=1e-15)


def test_a_limit_takes_that_many_examples_spread_over_the_data():
    model, data = linear(), client(10)
    rows = torch.tensor([0, 3, 6])  # floor(10 i / 3)
    part = ClientData(data.x[rows], data.y[rows], 3, data.mean, data.std, dtype=torch.float64)
    limited = diagonal_fisher(model, model.initial(), data, limit=3)
    alone = diagonal_fisher(model, model.initial(), part)
    for n in alone:
        torch.testing.assert_close(limited[n], alone[n])
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            diagonal_fisher(model, model.initial(), data, limit=99).values(),
            diagonal_fisher(model, model.initial(), data).values(),
            strict=True,
        )
    )


def test_it_leaves_the_weights_alone():
    model, data = convolutional(), client(5)
    weights = model.initial()
    found = diagonal_fisher(model, weights, data)
    assert all(not p.requires_grad for p in [*weights.params.values(), *found.values()])
