"""The diagonal Fisher against plain loops and a formula."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedrecall
from fedrecall.algorithms import fisher
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


class Words(nn.Module):
    """Linear layers on rows of pixels, which are as many inputs of one example."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.Linear(4, 5, bias=False), nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.rows(x[:, 0])).flatten(1))


class Twice(nn.Module):
    """A layer whose weight is used once more, where its inputs and outputs do not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.linear(torch.tanh(self.body(x.flatten(1))), self.body.weight))


class Again(Twice):
    """A layer that is called twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.body(torch.tanh(self.body(x.flatten(1))))))


class Tied(Twice):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(16, 16, bias=False)
        self.other.weight = self.body.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.other(torch.tanh(self.body(x.flatten(1))))))


class Outside(Twice):
    """Layers that are never called: only their weights are used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(nn.functional.linear(x.flatten(1), self.body.weight, self.body.bias))
        return nn.functional.linear(hidden, self.last.weight, self.last.bias)


class Aside(Twice):
    """A layer whose output no logit hears of, one that is not to learn, and one that is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.still, self.unused = nn.Linear(16, 2), nn.Linear(16, 16), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(x.flatten(1)))
        self.heard = self.aside(hidden).detach()
        with torch.no_grad():
            shift = self.still(hidden)
        return self.last(hidden + shift)


class OneByOne(nn.Module):
    """A convolution that is given one example after the other, without an axis for them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([torch.tanh(self.body(one)).flatten() for one in x]))


class Rows(Twice):
    """A linear layer that is given one example after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([torch.tanh(self.body(one.flatten())) for one in x]))


class Named(Twice):
    """Layers that are given what they are given by name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(input=torch.tanh(self.body(input=x.flatten(1))))


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(16, 5)), nn.Tanh(), nn.Linear(5, 3))


def plain(*second: nn.Module, **options: Any) -> nn.Module:
    first = nn.Conv2d(1, 3, 3, **options)
    return nn.Sequential(first, *second, nn.ReLU(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.LazyLinear(3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "convolutions": (plain, True),
    "padded": (partial(plain, padding=(2, 1)), True),
    "strided": (partial(plain, stride=(1, 2), padding=1), True),
    "dilated": (partial(plain, dilation=2, padding=2), True),
    "no bias": (partial(plain, bias=False), True),
    "words": (Words, True),
    "aside": (Aside, True),
    "padded alike": (partial(plain, padding="same"), False),
    "padded round": (partial(plain, padding=1, padding_mode="circular"), False),
    "batch norm": (partial(plain, nn.BatchNorm2d(3)), False),
    "grouped": (partial(plain, nn.Conv2d(3, 3, 1, groups=3)), False),
    "used outside": (Twice, False),
    "used only outside": (Outside, False),
    "called twice": (Again, False),
    "tied": (Tied, False),
    "one by one": (OneByOne, False),
    "row by row": (Rows, False),
    "named": (Named, True),
    "weight norm": (partial(normed, nn.utils.parametrizations.weight_norm), False),
    "spectral norm": (partial(normed, nn.utils.parametrizations.spectral_norm), False),
}


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize("chunk", [1, 2**23])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_against_one_example_at_a_time(name, chunk, monkeypatch):
    monkeypatch.setattr(fisher, "CPU_BYTES", chunk)
    monkeypatch.setattr(fisher, "EXAMPLES", min(chunk, 32))
    make, quick = NETWORKS[name]
    torch.manual_seed(0)
    module = make().double()
    module(torch.zeros(2, 1, 4, 4, dtype=torch.float64))
    model, data = Model(module), client(205)  # more than two batches
    weights = model.initial()
    whole, made = fisher._by_example, []
    monkeypatch.setattr(fisher, "_by_example", lambda *a: made.append(len(a[3])) or whole(*a))
    found = diagonal_fisher(model, weights, data)
    tried = quick or name in ("used outside", "used only outside", "called twice")
    compared = fisher.COMPARED if tried else 0
    assert sum(made) == compared + (0 if quick else 205)
    for p in weights.params.values():
        p.requires_grad_(True)
    total = {n: torch.zeros_like(p) for n, p in weights.params.items()}
    for batch in data.batches(1):
        loss = nn.functional.cross_entropy(model.logits(weights, batch.x), batch.y)
        grads = torch.autograd.grad(loss, list(weights.params.values()), allow_unused=True)
        for n, g in zip(total, grads, strict=True):
            total[n] += 0 if g is None else g**2 / 205
    for n, t in total.items():
        torch.testing.assert_close(found[n], t, rtol=1e-10, atol=1e-15)


def aside() -> Model:
    torch.manual_seed(0)
    return Model(Aside().double())


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


def test_a_batch_of_which_no_example_is_taken_adds_nothing():
    model, data = convolutional(), client(201)  # in batches of 100 the last one holds a single example
    limited = diagonal_fisher(model, model.initial(), data, limit=2)
    rows = torch.tensor([0, 100])
    part = ClientData(data.x[rows], data.y[rows], 3, data.mean, data.std, dtype=torch.float64)
    for n, f in diagonal_fisher(model, model.initial(), part).items():
        torch.testing.assert_close(limited[n], f)


@pytest.mark.parametrize("make", [convolutional, aside])
def test_of_mini_batches_it_is_the_mean_square_of_their_gradients(make, monkeypatch):
    model, data = make(), client(230)
    weights, order = model.initial(), torch.arange(229, -1, -1)
    monkeypatch.setattr(torch, "randperm", lambda n, **_: order)
    found = diagonal_fisher(model, weights, data, together=100)
    (batch,) = data.batches(230)
    total = {n: torch.zeros_like(p) for n, p in weights.params.items()}
    for rows in (order[:100], order[100:200], order[200:]):  # what is left over counts as much
        params = {n: p.clone().requires_grad_() for n, p in weights.params.items()}
        logits = model.logits(weights._replace(params=params), batch.x[rows])
        loss = nn.functional.cross_entropy(logits, batch.y[rows])
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        for n, g in zip(total, grads, strict=True):
            total[n] += 0 if g is None else g**2 / 3
    for n, t in total.items():
        torch.testing.assert_close(found[n], t, rtol=1e-10, atol=1e-15)


def test_mini_batches_are_mixed_and_a_client_with_fewer_examples_is_one():
    model, data = linear(), client(90)

    def size(*rows, **options):
        part = ClientData(data.x[[*rows]], data.y[[*rows]], 3, data.mean, data.std, dtype=torch.float64)
        return diagonal_fisher(model, model.initial(), part, **options)["1.bias"].sum()

    by_class = torch.argsort(data.y, stable=True).tolist()
    alike = sum(size(*by_class[a : a + 30], together=30) for a in (0, 30, 60)) / 3
    mixed = size(*by_class, together=30)
    assert mixed < alike / 2
    assert mixed < size(*by_class) / 10
    assert mixed == size(*by_class, together=30)
    assert size(7, together=30) == pytest.approx(size(7))


def test_it_leaves_the_weights_alone():
    model, data = convolutional(), client(5)
    weights = model.initial()
    found = diagonal_fisher(model, weights, data)
    assert all(not p.requires_grad for p in [*weights.params.values(), *found.values()])


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
def test_half_precision_does_not_make_it_luck_which_way_is_taken(monkeypatch):
    """Trained clients, whose few examples that are still wrong make most of the gradient."""
    whole, made = fisher._by_example, []
    monkeypatch.setattr(fisher, "_by_example", lambda *a: made.append(len(a[3])) or whole(*a))
    settings = {"dataset": "digits", "clients": 10, "sample": 10, "rounds": 3, "backend": "serial"}
    fedrecall.run(algorithm="fedcurv:s=20", model="cnn", precision="bfloat16", **settings)
    assert made == [fisher.COMPARED] * 30
