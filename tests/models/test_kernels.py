"""The faster kernels compute what PyTorch's own do."""

import copy
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from fedrecall.algorithms.hooks import Sgd
from fedrecall.models import kernels
from fedrecall.models.model import Model, Weights
from fedrecall.models.networks import CNN, MODELS, build
from fedrecall.training import descend


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channels", [6, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relu_and_pooling_at_once_are_bit_for_bit_the_two_in_turn(dtype, channels):
    # Few different values, so that ties, zeros and negative maxima are everywhere.
    x = torch.randint(-3, 4, (5, channels, 8, 10), generator=stream()).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    g = torch.randn(5, channels, 4, 5, generator=stream(1)).to(dtype)
    expected, found = F.max_pool2d(F.relu(x), 2), kernels.relu_pool(x)
    assert torch.equal(expected, found)
    (a,), (b,) = torch.autograd.grad(expected, x, g), torch.autograd.grad(found, x, g)
    assert torch.equal(a, b)
    twice = torch.autograd.grad(kernels.relu_pool(x), x, g, create_graph=True)[0]
    assert torch.equal(a, twice)


@pytest.mark.parametrize("channels", [1, 6, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_whose_four_pixels_are_channels_are_pooled_alike(dtype, channels):
    x = torch.randint(-3, 4, (5, channels, 8, 10), generator=stream()).to(dtype).requires_grad_()
    g = torch.randn(5, channels, 4, 5, generator=stream(1)).to(dtype)
    # [N, row, down, column, right, C] -> [N, row, column, right, down, C]
    squares = x.permute(0, 2, 3, 1).reshape(5, 4, 2, 5, 2, channels).permute(0, 1, 3, 4, 2, 5).contiguous()
    found = kernels._ReluPool.apply(squares, 3, 3).permute(0, 3, 1, 2)
    expected = F.max_pool2d(F.relu(x), 2)
    assert torch.equal(expected, found)
    (a,) = torch.autograd.grad(expected, x, g)
    for again in (False, True):
        assert torch.equal(a, torch.autograd.grad(found, x, g, retain_graph=True, create_graph=again)[0])


@pytest.mark.parametrize(
    ("dtype", "fast"), [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)]
)
@pytest.mark.parametrize(
    ("kernel", "padding", "bias"), [(5, 0, True), (3, 1, False), (1, 0, True), ((5, 3), (2, 0), True)]
)
def test_a_narrow_convolution_with_its_pooling_is_what_the_three_layers_compute(
    dtype, fast, kernel, padding, bias, monkeypatch
):
    monkeypatch.setattr(kernels, "FAST_BFLOAT16", fast)
    conv = nn.Conv2d(3, 6, kernel, padding=padding, bias=bias).to(dtype)
    layers = [conv, nn.ReLU(), nn.MaxPool2d(2)]
    x = torch.randn(4, 3, 12, 14, generator=stream()).to(dtype).contiguous(memory_format=torch.channels_last)
    assert kernels.narrow(conv, x)
    found = kernels.chain(layers, x)
    exact = F.max_pool2d(F.relu(conv(x)), 2)
    rounding = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, exact, rtol=rounding, atol=rounding)
    g = torch.randn(found.shape, generator=stream(1)).to(dtype)
    for a, b in zip(
        torch.autograd.grad(found, list(conv.parameters()), g, retain_graph=True),
        torch.autograd.grad(exact, list(conv.parameters()), g),
        strict=True,
    ):
        assert float((a - b).norm()) <= (1e-5 if dtype is torch.float32 else 3e-2) * float(b.norm())
    if dtype is torch.float32:  # and once more by the way that can itself be differentiated
        again = torch.autograd.grad(found, conv.weight, g, create_graph=True)[0]
        torch.testing.assert_close(
            again, torch.autograd.grad(kernels.chain(layers, x), conv.weight, g)[0], rtol=1e-4, atol=1e-5
        )


SKIPPING = """
import torch
from fedrecall.models import kernels
held = []
for channels in (2, 4, 7):
    conv = kernels.equip(torch.nn.Conv2d(channels, 8, 1, stride=2))
    x = kernels.images(torch.rand(8, channels, 32, 32))
    conv.weight.data = kernels.weight(conv.weight.data)
    for i in range(150):
        torch.autograd.grad(conv(x).sum(), conv.weight)
        held = held[-9:] + [torch.empty(37 + i)]
print("alive")
"""


def test_a_convolution_of_few_channels_that_skips_pixels_does_not_end_the_process():
    done = subprocess.run([sys.executable, "-c", SKIPPING], capture_output=True, text=True, check=False)
    assert done.stdout == "alive\n", done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("stride", [2, (3, 1)])
def test_a_convolution_that_skips_pixels_is_pytorchs_own(stride, dtype):
    conv = nn.Conv2d(4, 8, 1, stride=stride).to(dtype)
    x = torch.rand(3, 4, 9, 8, generator=stream()).to(dtype)
    exact = conv(x)  # in PyTorch's layout, in which nothing is written where it does not belong
    found = kernels.equip(conv)(kernels.images(x))
    torch.testing.assert_close(found, exact, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-2)
    assert torch.equal(conv(x[0]), conv(x[:1])[0])


def test_of_equal_results_of_a_narrow_convolution_the_first_in_reading_order_gets_the_gradient():
    conv = nn.Conv2d(3, 6, 3)
    with torch.no_grad():  # every result is the bias
        conv.weight.zero_()
        conv.bias.fill_(1.0)
    x = torch.randn(4, 3, 12, 14, generator=stream())
    assert kernels.narrow(conv, x)
    found = kernels.chain([conv, nn.ReLU(), nn.MaxPool2d(2)], x)
    exact = F.max_pool2d(F.relu(conv(x)), 2)
    g = torch.randn(found.shape, generator=stream(1))
    (a,), (b,) = (torch.autograd.grad(out, conv.weight, g) for out in (found, exact))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_convolution_that_another_way_is_faster_or_watched_stays_one():
    x = torch.randn(2, 3, 12, 12)
    assert kernels.narrow(nn.Conv2d(3, 6, 5), x)
    assert not kernels.narrow(nn.Conv2d(3, 32, 5), x)
    assert not kernels.narrow(nn.Conv2d(3, 6, 4), x)  # nine pixels across: the last has no partner
    assert not kernels.narrow(nn.Conv2d(3, 6, 5, stride=2), x)
    assert not kernels.narrow(nn.Conv2d(3, 6, 5), x.clone().requires_grad_())
    assert not kernels.narrow(nn.Conv2d(3, 6, 5, padding=2, padding_mode="reflect"), x)
    assert not kernels.narrow(nn.Conv2d(3, 6, 5, padding="same"), x)
    seen = []
    conv = nn.Conv2d(3, 6, 5)
    conv.register_forward_hook(lambda layer, given, out: seen.append(out.shape))
    kernels.chain([conv, nn.ReLU(), nn.MaxPool2d(2)], x)
    assert seen == [(2, 6, 8, 8)]


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, 2, 1),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.AvgPool2d(2),
        nn.MaxPool2d(2),  # of nine pixels the last is left out
    ],
    ids=str,
)
@pytest.mark.parametrize(("channels", "kernel"), [(6, 5), (32, 5), (32, 4)])
def test_pooling_of_another_kind_stays_as_it_is(pool, channels, kernel):
    conv, relu = nn.Conv2d(3, channels, kernel), nn.ReLU()
    x = kernels.images(torch.randn(2, 3, 12, 12, generator=stream()))
    found, right = kernels.chain([conv, relu, pool], x), pool(relu(conv(x)))
    torch.testing.assert_close(found, right, rtol=0, atol=0)


def test_a_gradient_through_the_kernels_can_be_differentiated(monkeypatch):
    monkeypatch.setattr(kernels, "LEAST", 1)
    net = build("cnn:32", (1, 8, 8), 3)
    fast, slow = Model(net), Model(net)
    monkeypatch.setattr(slow._eval.fc1, "__class__", nn.Linear)
    x = torch.rand(4, 1, 8, 8, generator=stream())
    found = []
    for model in (fast, slow):
        params = {n: p.requires_grad_() for n, p in model.initial().params.items()}
        if model is slow:
            params["conv1.weight"].data = params["conv1.weight"].data.contiguous()
        names = list(params)
        loss = model.logits(Weights(params, {}), x).square().sum()
        first = torch.autograd.grad(loss, [params[n] for n in names], create_graph=True)
        total = sum((g.square().sum() for g in first), torch.zeros(()))
        found.append([g.detach() for g in torch.autograd.grad(total, [params[n] for n in names])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-4 * float(b.abs().max()))


def test_linear_is_what_pytorch_computes():
    x = torch.randn(7, 300, generator=stream()).requires_grad_()
    w = torch.randn(200, 300, generator=stream(1)).requires_grad_()
    g = torch.randn(7, 200, generator=stream(2))
    exact = torch.autograd.grad(F.linear(x.double(), w.double()), (x, w), g.double())
    found = torch.autograd.grad(kernels.product(x, w), (x, w), g)
    torch.testing.assert_close(
        kernels.product(x, w).double(), F.linear(x.double(), w.double()), rtol=1e-4, atol=1e-4
    )
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(12, 7), (5, 12)),
        (lambda: nn.Conv2d(3, 6, 3, stride=2), (5, 3, 9, 9)),
        (lambda: nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular", bias=False), (5, 3, 8, 8)),
    ],
)
def test_bfloat16_is_multiplied_on_a_cpu_that_is_slow_at_it_as_on_a_fast_one(make, shape, fast, monkeypatch):
    monkeypatch.setattr(kernels, "FAST_BFLOAT16", fast)
    torch.manual_seed(0)
    layer = kernels.equip(make()).bfloat16()
    x = torch.randn(shape, generator=stream()).bfloat16()
    wide = copy.deepcopy(layer).float()  # the same rounded numbers
    found, exact = layer(x), wide(x.float())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=1e-2, atol=1e-2)
    g = torch.randn(exact.shape, generator=stream(1)).bfloat16()
    of_exact = torch.autograd.grad(exact, list(wide.parameters()), g.float())
    for a, b in zip(torch.autograd.grad(found, list(layer.parameters()), g), of_exact, strict=True):
        assert a.dtype == torch.bfloat16
        assert float((a.float() - b).norm()) <= 1e-2 * float(b.norm())


def test_a_cpu_that_is_slow_at_bfloat16_is_asked_for_single_precision(monkeypatch):
    asked = []
    for where, name in ((F, "linear"), (F, "conv2d"), (kernels, "product")):
        real = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda x, *rest, real=real, **more: asked.append(x.dtype) or real(x, *rest, **more)
        )
    model = Model(build("lenet_cifar", (3, 32, 32), 4), compute=torch.bfloat16)
    for fast in (False, True):
        monkeypatch.setattr(kernels, "FAST_BFLOAT16", fast)
        asked.clear()
        model.frozen(model.initial(), torch.rand(2, 3, 32, 32, generator=stream()))
        assert set(asked) == {torch.bfloat16 if fast else torch.float32}
        assert len(asked) == len(list(filter(lambda m: hasattr(m, "weight"), model.module.modules())))


@pytest.mark.parametrize(
    ("name", "flags", "fast"),
    [
        ("AMD EPYC", {"avx512_bf16"}, True),  # Zen 4 and 5
        ("AMD EPYC", {"avx512_bf16", "avx512_fp16"}, True),
        ("AMD EPYC", set(), False),  # Zen 3: no AVX-512
        ("Intel Xeon", {"avx512_f"}, False),  # Skylake to Ice Lake: emulated
        ("Intel Xeon", {"avx512_bf16"}, True),  # Cooper Lake
        ("Intel Xeon", {"avx512_bf16", "avx512_fp16", "amx_bf16"}, True),  # Sapphire Rapids
        ("Intel Xeon", {"avx512_bf16", "avx512_fp16"}, False),  # the same with its tiles hidden
    ],
)
def test_bfloat16_is_multiplied_where_a_cpu_is_fast_at_it(name, flags, fast):
    known = dict.fromkeys(("avx512_f", "avx512_bf16", "avx512_fp16", "amx_bf16"), False)
    cpu = {**known, **dict.fromkeys(flags, True), "architecture": "x86_64", "cpu_name": name}
    assert kernels.fast_bfloat16(cpu) is fast


def test_this_cpus_capabilities_are_understood():
    known = torch.cpu.get_capabilities()
    assert "architecture" in known
    assert kernels.fast_bfloat16(known) in (False, True)
    assert kernels.fast_bfloat16({})  # one that says nothing of itself: oneDNN's word counts


def test_only_pytorchs_own_layers_are_replaced():
    class Derived(nn.Conv2d):
        pass

    class Twice(nn.Linear):
        pass

    net = kernels.equip(nn.Sequential(nn.Conv2d(1, 1, 1), Derived(1, 1, 1), nn.Linear(1, 1), Twice(1, 1)))
    assert [type(layer) for layer in net] == [kernels.Conv2d, Derived, kernels.Linear, Twice]
    layers = [*net, nn.Conv2d(1, 1, 1)]
    assert [kernels.is_convolution(layer) for layer in layers] == [True, False, False, False, True]


@pytest.mark.parametrize(
    "name", ["cnn", "lenet_cifar", "alexnet8", "simple_cnn", "resnet10:group", "resnet10"]
)
def test_networks_compute_in_single_precision_what_they_do_in_double(name):
    torch.manual_seed(0)
    net = build(name, (3, 32, 32), 10)
    x = torch.randn(4, 3, 32, 32, generator=stream())
    y = torch.tensor([1, 0, 3, 3])
    gradients = []
    for dtype in (torch.float64, torch.float32):
        model = Model(net.to(dtype))
        weights = model.laid_out(model.initial())
        params = {n: p.requires_grad_() for n, p in weights.params.items()}
        student = model.student(weights.buffers, torch.tensor(0))
        loss = F.cross_entropy(student(params, x.to(dtype)), y)
        gradients.append([g.double() for g in torch.autograd.grad(loss, list(params.values()))])
    for a, b in zip(*gradients, strict=True):
        assert float((a - b).norm()) <= 1e-3 * float(a.norm()) + 1e-6


def test_under_transforms_pytorch_does_it(monkeypatch):
    monkeypatch.setattr(kernels, "LEAST", 1)
    model = Model(build("cnn:16", (1, 8, 8), 3))
    weights = model.initial()
    x, y = torch.rand(5, 1, 8, 8, generator=stream()), torch.tensor([0, 1, 2, 1, 0])

    def loss(params, x, y):
        return F.cross_entropy(model.logits(Weights(params, {}), x[None]), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights.params, x, y)
    params = {n: p.requires_grad_() for n, p in weights.params.items()}
    for i in range(len(x)):
        alone = torch.autograd.grad(loss(params, x[i], y[i]), list(params.values()))
        for a, b in zip(each.values(), alone, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_a_teacher_is_prepared_once_and_again_when_it_changes(compute):
    model = Model(build("cnn:16", (3, 8, 8), 3), compute=compute)
    x = torch.rand(5, 3, 8, 8, generator=stream())
    weights = model.initial()
    model.frozen(weights, x)
    kept = {n: model._ready_one(n, p) for n, p in weights.params.items()}
    assert all(model._ready_one(n, p) is kept[n] for n, p in weights.params.items())
    for p in weights.params.values():
        p.mul_(2)
    fresh = Weights({n: p.clone() for n, p in weights.params.items()}, {})
    assert torch.equal(model.frozen(weights, x), model.frozen(fresh, x))
    ones, zeros = ({n: f(p) for n, p in weights.params.items()} for f in (torch.ones_like, torch.zeros_like))
    descend(weights.params, ones, zeros, Sgd(0.1, 0.9, 0.0, 1))
    fresh = Weights({n: p.clone() for n, p in weights.params.items()}, {})
    assert torch.equal(model.frozen(weights, x), model.frozen(fresh, x))
    del weights, fresh, ones, zeros, p, x
    assert not len(model._known)


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_prepared_once_for_all_models_that_see_it_and_again_when_it_changes(channels, compute):
    model, other = (Model(build("cnn:16", (channels, 8, 8), 3), compute=compute) for _ in range(2))
    weights, x = model.initial(), torch.rand(5, channels, 8, 8, generator=stream())
    prepared = []
    model._images = lambda x: prepared.append(x.shape) or Model._images(model, x)
    model.frozen(weights, x), model.student({}, torch.tensor(0))(weights.params, x)
    assert len(prepared) == 1 or (channels, compute) == (1, None)  # where it is but a view
    x.mul_(-1)
    assert torch.equal(model.frozen(weights, x), other.frozen(weights, x.clone()))
    gone = weakref.ref(x)
    del x
    assert gone() is None


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_what_is_prepared_under_torch_func_ends_with_the_call(compute):
    model = Model(build("cnn:16", (3, 8, 8), 3), compute=compute)
    weights, x = model.initial(), torch.rand(5, 3, 8, 8, generator=stream())

    def total(params):
        return model.logits(Weights(params, {}), x).sum()

    found = torch.func.grad(lambda params: torch.func.grad(total)(params)["fc2.bias"].sum())(weights.params)
    assert all(torch.isfinite(g).all() for g in found.values())
    assert all(kernels.plain(made) for _form, _versions, made in model._known.values())
    assert torch.equal(total(weights.params), model.logits(weights, x.clone()).sum())


def test_nothing_is_kept_of_what_inference_mode_makes():
    model = Model(build("cnn:16", (3, 8, 8), 3), compute=torch.bfloat16)
    weights, x = model.initial(), torch.rand(5, 3, 8, 8, generator=stream())
    with torch.inference_mode():
        inside = model.logits(weights, x)
    weights.params["fc2.bias"].requires_grad_(True)
    outside = model.logits(weights, x)
    assert torch.equal(inside, outside)
    assert torch.equal(*torch.autograd.grad(outside.sum(), weights.params["fc2.bias"]), torch.full((3,), 5.0))


def test_a_network_that_changes_its_images_in_place_does_so_for_itself_alone():
    model = Model(
        nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 2)), compute=torch.bfloat16
    )
    weights, x = model.initial(), torch.randn(5, 3, 4, 4, generator=stream())
    given = x.clone()
    model.frozen(weights, x)
    assert torch.equal(x, given)
    seen = []
    model._eval[1].register_forward_pre_hook(lambda layer, args: seen.append(args[0].clone()))
    model._eval[0] = nn.Identity()
    model.frozen(weights, x)
    assert torch.equal(seen[0], x.bfloat16())


def test_teachers_in_a_stack_are_those_alone():
    model = Model(build("cnn:16", (3, 8, 8), 3), compute=torch.bfloat16)
    x = torch.rand(5, 3, 8, 8, generator=stream())
    weights = [Weights({n: p * k for n, p in model.initial().params.items()}, {}) for k in (1.0, 0.5)]
    stacked = Weights({n: torch.stack([w.params[n] for w in weights]) for n in weights[0].params}, {})
    for _ in range(2):
        assert torch.equal(model.frozen_many(stacked, x), torch.stack([model.frozen(w, x) for w in weights]))
    stacked.params["fc1.weight"].zero_()
    assert not torch.equal(model.frozen_many(stacked, x)[0], model.frozen(weights[0], x))


def test_looking_between_the_layers_is_possible():
    net = CNN().build((3, 8, 8), 3)
    model = Model(net)
    x = torch.rand(2, 3, 8, 8, generator=stream())
    seen = model.activations(model.initial(), x, ["conv1_act", "pool1"])
    assert seen["conv1_act"].shape == (2, 32, 8, 8)
    torch.testing.assert_close(seen["conv1_act"], F.relu(net.conv1(x)))
    torch.testing.assert_close(seen["pool1"], F.max_pool2d(F.relu(net.conv1(x)), 2))


@pytest.mark.parametrize("name", list(MODELS))
def test_models_go_from_process_to_process(name):
    model = Model(build(name, (3, 32, 32), 4), compute=torch.bfloat16)
    x = torch.rand(2, 3, 32, 32, generator=stream())
    model.frozen(model.initial(), x)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - its own
    assert torch.equal(again.frozen(again.initial(), x), model.frozen(model.initial(), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_optimiser_is_pytorchs_whatever_the_layout_of_the_gradient(dtype):
    p = torch.randn(6, 4, 3, 3, generator=stream(), dtype=dtype)
    g = torch.randn(2, 6, 4, 3, 3, generator=stream(1), dtype=dtype)
    reference = nn.Parameter(p.clone())
    sgd = torch.optim.SGD([reference], lr=0.1, momentum=0.9, weight_decay=0.01)
    for gradient in g:
        reference.grad = gradient.clone()
        sgd.step()
    last = torch.channels_last
    for layout in (torch.contiguous_format, last):
        params = {"w": p.clone(memory_format=torch.preserve_format).contiguous(memory_format=last)}
        velocity = {"w": torch.zeros_like(params["w"])}
        for gradient in g:
            descend(
                params, {"w": gradient.contiguous(memory_format=layout)}, velocity, Sgd(0.1, 0.9, 0.01, 2)
            )
        torch.testing.assert_close(params["w"], reference.detach())


def test_what_a_layer_is_given_may_be_given_by_name():
    class Net(nn.Module):
        feature_layer = "last"

        def __init__(self):
            super().__init__()
            self.conv, self.batch, self.group = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
            self.layer, self.last = nn.LayerNorm(16), nn.Linear(16, 3)

        def forward(self, x):
            x = self.group(input=self.batch(input=self.conv(input=x)))
            return self.last(input=self.layer(input=x.flatten(1)))

    model, x = Model(Net()), torch.rand(3, 1, 4, 4, generator=stream())
    found = model.output(model.initial(), x)
    torch.testing.assert_close(found.logits, Net.forward(model.module, x))
    assert found.features.shape == (3, 16)
    traced = model.student(model.initial().buffers, torch.tensor(0)).traced(
        model.initial().params, x, ["group", "layer"]
    )
    assert (traced.given.shape, traced.made.shape) == ((3, 4, 2, 2), (3, 16))
