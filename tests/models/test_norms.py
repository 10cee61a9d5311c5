"""Norms of one value, and norms that keep 32 bits in a network of 16."""

import copy
import pickle

import pytest
import torch
from tests.algorithms.cases import assert_same
from torch import Tensor, nn
from torch.func import grad, vmap

from fedrecall.models.model import Model, Params
from fedrecall.models.norms import KINDS, equip, of_norms

KEY = torch.tensor(0)


def randomised(module: nn.Module) -> nn.Module:
    """In float64, with nothing left as it was initialised."""
    stream = torch.Generator().manual_seed(0)
    for t in [*module.double().parameters(), *module.buffers()]:
        if t.is_floating_point():
            t.data = torch.rand(t.shape, generator=stream, dtype=t.dtype) + 0.5
    return module


def images(n: int, *shape: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4), (4,)),
        (nn.BatchNorm1d(4), (4, 1)),
        (nn.BatchNorm2d(4, eps=0.1), (4, 1, 1)),
        (nn.BatchNorm3d(4), (4, 1, 1, 1)),
        (nn.BatchNorm2d(4, affine=False), (4, 1, 1)),
        (nn.BatchNorm2d(4, momentum=None), (4, 1, 1)),
    ],
    ids=str,
)
def test_one_value_is_normalised_by_the_running_statistics_and_leaves_them_alone(layer, shape):
    model = Model(nn.Sequential(randomised(layer), nn.Identity()))
    params, buffers = model.initial()
    x = images(1, *shape)
    student = model.student(buffers, KEY)
    expected = (x.flatten() - buffers["0.running_mean"]) / (buffers["0.running_var"] + layer.eps).sqrt()
    if layer.affine:
        expected = expected * params["0.weight"] + params["0.bias"]
    torch.testing.assert_close(student(params, x).flatten(), expected)
    assert_same(student.buffers, buffers)


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4), (4,)),
        (nn.BatchNorm2d(4), (4, 1, 1)),
        (nn.BatchNorm2d(4, momentum=None), (4, 1, 1)),
        (nn.GroupNorm(2, 4), (4,)),
        (nn.GroupNorm(2, 4, eps=0.1), (4,)),
        (nn.LayerNorm(4, eps=0.1), (4,)),
    ],
    ids=str,
)
def test_more_values_are_pytorchs_own(layer, shape, training, n):
    layer = randomised(copy.deepcopy(layer)).train(training)
    model = Model(nn.Sequential(copy.deepcopy(layer)))
    weights, x = model.initial(), images(n, *shape)
    student = model.student(weights.buffers, KEY)
    found = student(weights.params, x) if training else model.logits(weights, x)
    assert torch.equal(found, layer(x))
    rounding = 1e-12 if getattr(layer, "momentum", 0) is None else 0.0
    assert_same(student.buffers, {f"0.{name}": b for name, b in layer.named_buffers()}, rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_over_all_batches_are_pytorchs_own_and_each_ones_own_in_a_stack(dtype):
    layer = nn.BatchNorm2d(4, momentum=None).to(dtype)
    model = Model(nn.Sequential(copy.deepcopy(layer)))
    params, buffers = model.initial()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6

    def step(buffers: Params, x: Tensor) -> tuple[Tensor, Params]:
        student = model.student(buffers, KEY)
        return student(params, x), student.buffers

    batches = images(6, 5, 4, 3, 3).to(dtype)
    alone = []
    for x in batches:
        out, buffers = step(buffers, x)
        torch.testing.assert_close(out, layer(x))
        assert_same(buffers, {f"0.{name}": b for name, b in layer.named_buffers()}, tolerance)
        alone.append((out, buffers))
    # Three at once that have seen 1, 2 and 3 batches.
    before = {n: torch.stack([seen[n] for _, seen in alone[:3]]) for n in buffers}
    out, after = vmap(step)(before, batches[1:4])
    for i in range(3):
        assert_same((out[i], {n: b[i] for n, b in after.items()}), alone[i + 1], tolerance)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4, track_running_stats=False), nn.GroupNorm(4, 4)], ids=str)
def test_a_value_that_is_its_own_mean_becomes_the_bias(layer):
    model = Model(nn.Sequential(randomised(layer)))
    weights = model.initial()
    for n in (1, 2) if isinstance(layer, nn.GroupNorm) else (1,):
        found = model.student({}, KEY)(weights.params, images(n, 4))
        torch.testing.assert_close(found, weights.params["0.bias"].expand(n, 4))
        torch.testing.assert_close(model.logits(weights, images(n, 4)), found)


def test_norms_alone_are_equipped_and_stay_exact():
    norms = [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.BatchNorm3d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4)]
    net = nn.Sequential(nn.Linear(4, 4), *norms)
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert of_norms(net) == {f"{i}.{p}" for i in range(1, 6) for p in ("weight", "bias")} | {
        f"{i}.{b}" for i in range(1, 4) for b in statistics
    }
    assert [type(layer) for layer in equip(copy.deepcopy(net))] == [
        nn.Linear,
        *(KINDS[type(n)] for n in norms),
    ]


class Set(nn.BatchNorm1d):
    """Its settings are another's."""

    def __init__(self, features: int):
        super().__init__(features, eps=0.1, momentum=None)


class Twice(nn.GroupNorm):
    """What it inherits, doubled."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Again(Twice):
    """And doubled once more."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Alone(nn.LayerNorm):
    """By itself, with another argument and a parameter that PyTorch's has not."""

    def __init__(self, features: int):
        super().__init__(features)
        self.gain = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor, shift: float = 1.0) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        return (x - mean) / (var + self.eps).sqrt() * self.weight * self.gain + shift


class Checked(nn.modules.batchnorm._BatchNorm):
    """Of PyTorch's base class."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.dim() == 2


DERIVED = [Set(4), Twice(2, 4), Again(2, 4), Alone(4), Checked(4)]


@pytest.mark.parametrize("layer", DERIVED, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("training", [True, False])
def test_a_norm_that_is_derived_from_pytorchs_keeps_its_own_forward(layer, training):
    layer = randomised(copy.deepcopy(layer)).train(training)
    model = Model(nn.Sequential(copy.deepcopy(layer)))
    assert isinstance(model.module[0], type(layer))
    assert {f"0.{n}" for n, _ in layer.named_parameters()} <= of_norms(model.module)
    weights, x = model.initial(), images(5, 4)
    student = model.student(weights.buffers, KEY)
    found = student(weights.params, x) if training else model.logits(weights, x)
    torch.testing.assert_close(found, layer(x), rtol=1e-12, atol=1e-12)
    assert_same(student.buffers, {f"0.{name}": b for name, b in layer.named_buffers()}, 1e-12)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # noqa: S301 - its own
        assert type(again.module[0]) is type(model.module[0])
        assert torch.equal(again.logits(again.initial(), x), model.logits(weights, x))
    assert type(equip(copy.deepcopy(model.module))[0]) is type(model.module[0])


@pytest.mark.parametrize("layer", DERIVED, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("compute", [torch.bfloat16, None])
def test_a_derived_norm_is_stacked_and_takes_one_example_in_both_precisions(layer, compute):
    net = nn.Sequential(nn.Linear(3, 4), copy.deepcopy(layer), nn.Tanh(), nn.Linear(4, 2))
    model = Model(randomised(net).float(), compute=compute)
    params, buffers = model.initial()

    def out(buffers: Params, x: Tensor) -> Tensor:
        return model.student(buffers, KEY)(params, x)

    near = dict.fromkeys(("rtol", "atol"), 0.05 if compute else 1e-4)
    for n in (1, 6):
        x = images(4 * n, 3).float().view(4, n, 3)
        each = {name: torch.stack([b] * 4) for name, b in buffers.items()}
        stacked = vmap(out)(each, x)
        for i in range(4):
            torch.testing.assert_close(stacked[i], out(buffers, x[i]), **near)


def test_a_derived_norm_is_called_by_name_and_with_more_than_its_input():
    net = nn.Sequential(nn.Linear(3, 4), Alone(4)).float()
    model = Model(net, compute=torch.bfloat16)
    layer = model.module[1]
    x = images(5, 4).to(torch.bfloat16)
    assert layer(x, shift=2.0).dtype == layer(x=x).dtype == torch.bfloat16
    one = vmap(lambda x: layer(x=x, shift=2.0))(x)
    assert one.dtype == torch.bfloat16
    torch.testing.assert_close(one, layer(x, 2.0), rtol=0.05, atol=0.05)


def test_a_stack_of_single_examples_is_each_of_them_alone():
    model = Model(randomised(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))))
    params, buffers = model.initial()

    def wave(params: Params, x: Tensor) -> Tensor:
        return model.student(buffers, KEY)(params, x).sin().sum()

    x = images(5, 1, 3)
    stacked = vmap(grad(wave), in_dims=(None, 0))(params, x)
    given = {n: p.clone().requires_grad_() for n, p in params.items()}
    for i in range(len(x)):
        alone = torch.autograd.grad(wave(given, x[i]), list(given.values()))
        for g, expected in zip(stacked.values(), alone, strict=True):
            torch.testing.assert_close(g[i], expected)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.GroupNorm(2, 4),
        nn.LayerNorm((4, 5, 5)),
    ],
    ids=str,
)
def test_transforms_take_norms_in_single_precision_in_a_network_of_sixteen_bits(norm):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm, nn.Tanh(), nn.Flatten(), nn.Linear(100, 2))
    model = Model(randomised(net).float(), compute=torch.bfloat16)
    params, buffers = model.initial()
    seen: list[torch.dtype] = []

    def wave(params: Params, buffers: Params, x: Tensor) -> Tensor:
        found = model.student(buffers, KEY).traced(params, x, ["1"])
        seen.extend((found.given.dtype, found.made.dtype))
        return (found.logits / 100).sin().sum()

    x = images(24, 3, 5, 5).float().view(4, 6, 3, 5, 5)
    each = {n: torch.stack([b] * 4) for n, b in buffers.items()}
    stacked = vmap(grad(wave), in_dims=(None, 0, 0))(params, each, x)
    given = {n: p.clone().requires_grad_() for n, p in params.items()}
    for i in range(len(x)):
        alone = torch.autograd.grad(wave(given, buffers, x[i]), list(given.values()))
        expected = torch.cat([g.flatten() for g in alone])
        found = torch.cat([g[i].flatten() for g in stacked.values()])
        assert found.dtype == torch.float32
        assert float((found - expected).norm()) <= 0.05 * float(expected.norm())
    assert set(seen) == {torch.bfloat16}
