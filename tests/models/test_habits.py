"""Networks and hooks as users write them: whatever they do with their tensors, they train."""

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrecall
from fedrecall import FedAvg, UserError, Weights
from fedrecall.data.client import ClientData
from fedrecall.losses import cross_entropy
from fedrecall.models import kernels, trial
from fedrecall.models.kernels import Layout
from fedrecall.models.model import Model
from fedrecall.models.networks import MODELS, build
from fedrecall.training import Recipe, Visit, visit

NETS = Path(__file__).with_name("users_nets.py")
SMALL = f"{Path(__file__).parents[1] / 'algorithms' / 'nets.py'}:Small"
PRECISIONS = ["float32", "bfloat16"]
BACKENDS = ["serial", "vectorised"]
WORKERS = "processes"


def run(model: str, channels: int = 3, **settings: Any) -> Any:
    values = {
        "dataset": f"synthetic:classes=3,train=60,test=30,size=32,channels={channels}",
        "clients": 3,
        "sample": 3,
        "rounds": 1,
        "partition": "iid",
        "batch_size": 8,
        "local_epochs": 1,
        "backend": "serial",
    }
    model = f"{NETS}:{model}" if model[0].isupper() else model
    return fedrecall.run(model=model, progress=False, **values | settings)


def loss(result: Any) -> float:
    return result.history[-1]["train_loss"]


def network(spec: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return build(f"{NETS}:{spec}", shape, classes)


VIEWS = [("Tutorial", 3), ("OneConv", 1), ("OneConv", 3), ("WeightStandardised", 3), ("Strided", 3)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("model", "channels", "backend"),
    [*((*net, backend) for net in VIEWS for backend in BACKENDS), ("Tutorial", 3, WORKERS)],
)
def test_a_network_that_needs_pytorchs_layout_trains(model, channels, backend, precision):
    found, expected = (
        run(f"{model}:flat={flat}", channels, backend=backend, precision=precision) for flat in (False, True)
    )
    assert loss(found) == pytest.approx(loss(expected), rel=1e-2 if precision == "bfloat16" else 1e-5)
    assert found.accuracy == pytest.approx(expected.accuracy, abs=0.07)


@pytest.mark.parametrize(("model", "channels"), VIEWS)
def test_only_a_network_that_needs_it_has_pytorchs_layout(model, channels):
    made = {flat: Model(network(f"{model}:flat={flat}", (channels, 32, 32))) for flat in (False, True)}
    assert {flat: m.layout for flat, m in made.items()} == {False: Layout.USUAL, True: Layout.KEPT}
    again = pickle.loads(pickle.dumps(made[False]))  # noqa: S301 - its own
    assert again.layout is made[False].exact().layout is Layout.USUAL
    inside = nn.Sequential(network(model, (channels, 32, 32)), nn.Identity())
    assert Model(inside).layout is Layout.USUAL


@pytest.mark.parametrize("name", list(MODELS))
def test_the_packages_own_networks_have_the_fast_layout(name):
    assert Model(build(name, (3, 32, 32), 3)).layout is Layout.KEPT


@dataclass(frozen=True)
class Prox(FedAvg):
    """The usual proximal term, and every other hook that may view what it is given."""

    flat: bool = False
    """With ``flatten`` in the place of ``view``."""
    within: bool = False
    """With a gradient of its own in the loss."""

    def row(self, tensors: dict[str, Tensor]) -> Tensor:
        return torch.cat([t.flatten() if self.flat else t.view(-1) for t in tensors.values()])

    def loss(self, model, params, anchor, batch):
        def alone(params):
            return batch.mean(cross_entropy(model(params, batch.x), batch.y))

        if self.within:
            grads = torch.func.grad(alone)(params)
            away = 1e-3 / (1e-6 + self.row(grads).norm())
            return alone({n: p + away * grads[n].detach() for n, p in params.items()})
        moved = self.row({n: p - anchor.weights.params[n] for n, p in params.items()})
        return alone(params) + moved.square().sum()

    def correct(self, grads, anchor):
        norm = self.row(grads).norm()
        return {n: g / norm.clamp_min(1.0) for n, g in grads.items()}


@dataclass(frozen=True)
class Settling(Prox):
    """Looks at what a step has made, and keeps it."""

    def settle(self, params, before, anchor, batch):
        size = self.row({n: p - before[n] for n, p in params.items()}).norm()
        return {n: torch.where(size > 0.5, before[n], p) for n, p in params.items()}

    def advance(self, anchor, weights, grads, batch):
        self.row(grads)
        mean = {n: 0.5 * p + 0.5 * weights.params[n] for n, p in anchor.weights.params.items()}
        return anchor._replace(weights=anchor.weights._replace(params=mean))


@dataclass(frozen=True)
class Keeping(FedAvg):
    """Clients hold on to their means from visit to visit, and look at them when they end."""

    flat: bool = False
    """With ``flatten`` in the place of ``view``."""

    row = Prox.row

    def remember(self, weights):
        return Weights({n: torch.zeros_like(p) for n, p in weights.params.items()}, {})

    def prepare(self, model, down, memory, data):
        self.row(memory.params)
        return memory

    def advance(self, anchor, weights, grads, batch):
        return Weights({n: 0.5 * p.clone() for n, p in weights.params.items()}, {})

    def finish(self, model, weights, anchor, memory, data, sgd):
        size = self.row(anchor.params).norm()
        up, _ = super().finish(model, weights, anchor, memory, data, sgd)
        return up, Weights({n: p / (1 + size) for n, p in anchor.params.items()}, {})


@dataclass(frozen=True)
class Learning(FedAvg):
    """The server learns, too, and both it and clients look at gradients that they take."""

    flat: bool = False
    """With ``flatten`` in the place of ``view``."""

    row = Prox.row

    @property
    def auxiliary_per_class(self) -> int:
        return 2

    def gradient(self, model, weights, data):
        batch = next(iter(data.batches()))
        params = {n: p.detach().requires_grad_() for n, p in weights.params.items()}
        with torch.enable_grad():
            logits = model.logits(weights._replace(params=params), batch.x)
            found = torch.autograd.grad(cross_entropy(logits, batch.y).mean(), [*params.values()])
        return dict(zip(params, found, strict=True))

    def prepare(self, model, down, memory, data):
        self.row(self.gradient(model, down.weights, data))
        return super().prepare(model, down, memory, data)

    def finish(self, model, weights, anchor, memory, data, sgd):
        self.row(self.gradient(model, weights, data))
        return super().finish(model, weights, anchor, memory, data, sgd)

    def refine(self, model, server, auxiliary):
        grads = self.gradient(model, server.weights, auxiliary)
        rate = 0.01 / self.row(grads).norm()
        params = {n: p - rate * grads[n] for n, p in server.weights.params.items()}
        return server._replace(weights=server.weights._replace(params=params))


HOOKS = ["Prox", "Prox:within=true", "Settling", "Keeping", "Learning"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("algorithm", "model", "backend"),
    [
        *((hooks, "cnn:8", backend) for hooks in HOOKS for backend in BACKENDS),
        *(("Prox", model, "serial") for model in ("resnet10:group,width=4", "Tutorial")),
        ("Prox", "cnn:8", WORKERS),
    ],
)
def test_hooks_that_view_weights_and_gradients_train(algorithm, model, backend, precision):
    options = {"backend": backend, "precision": precision, "rounds": 2}
    name, _, more = algorithm.partition(":")
    found, expected = (
        run(model, algorithm=f"{__file__}:{name}:flat={flat}{',' * bool(more)}{more}", **options)
        for flat in (False, True)
    )
    assert loss(found) == pytest.approx(loss(expected), rel=1e-2 if precision == "bfloat16" else 1e-4)
    assert found.history[-1]["failures"] == expected.history[-1]["failures"] == []


def visited(algorithm: FedAvg, model: Model) -> Visit:
    stream = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20, 3, 32, 32), generator=stream, dtype=torch.uint8)
    data = ClientData(x, torch.arange(20) % 3, 3, torch.full((3,), 0.5), torch.full((3,), 0.25))
    down = algorithm.broadcast(model, algorithm.start(model.initial()), None)
    memory = algorithm.remember(model.initial())
    where = {"seed": 0, "round_number": 1, "client": 0}
    return visit(algorithm, model, Recipe(2, 8), data, down, memory, **where)


@pytest.mark.parametrize("algorithm", [Prox(), Settling(), Prox(within=True)])
def test_a_visit_of_hooks_that_view_is_a_function_of_its_job_and_leaves_the_model_as_it_was(algorithm):
    model = Model(build("cnn:8", (3, 32, 32), 3))
    first, then = visited(algorithm, model), visited(algorithm, model)
    assert model.layout is Layout.KEPT
    for name, p in first.up.weights.params.items():
        assert torch.equal(p, then.up.weights.params[name])
        assert p.is_contiguous()
    other = visited(replace(algorithm, flat=True), model)
    for name, p in first.up.weights.params.items():
        torch.testing.assert_close(p, other.up.weights.params[name], rtol=1e-4, atol=1e-5)


def test_an_error_that_has_nothing_to_do_with_layouts_ends_a_visit_at_once():
    calls = []

    @dataclass(frozen=True)
    class Broken(FedAvg):
        def loss(self, model, params, anchor, batch):
            calls.append(batch)
            raise RuntimeError("boom")

    @dataclass(frozen=True)
    class Misshapen(FedAvg):
        def loss(self, model, params, anchor, batch):
            calls.append(batch)
            return model(params, batch.x).view(7, 11, 13)

    model = Model(build("cnn:8", (3, 32, 32), 3))
    with pytest.raises(RuntimeError, match="boom"):
        visited(Broken(), model)
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        visited(Misshapen(), model)
    assert len(calls) == 2


@pytest.mark.parametrize("create", [False, True])
def test_the_gradient_of_a_weight_lies_as_the_weight_does(create):
    model, x = Model(build("cnn:8", (3, 8, 8), 3)), torch.rand(4, 3, 8, 8)
    grads = []
    for params in (model.initial().params, model.laid_out(model.initial()).params):
        params = {n: p.requires_grad_() for n, p in params.items()}
        total = model.logits(Weights(params, {}), x).square().sum()
        grads.append(torch.autograd.grad(total, [*params.values()], create_graph=create))
        for g, p in zip(grads[-1], params.values(), strict=True):
            assert g.stride() == p.stride()
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
    if create:
        params = {n: p.requires_grad_() for n, p in model.initial().params.items()}
        total = model.logits(Weights(params, {}), x).square().sum()
        (first,) = torch.autograd.grad(total, params["conv1.weight"], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), params["conv2.weight"])
        exact = {n: p.detach().double().requires_grad_() for n, p in params.items()}
        total = model.logits(Weights(exact, {}), x.double()).square().sum()
        (first,) = torch.autograd.grad(total, exact["conv1.weight"], create_graph=True)
        (right,) = torch.autograd.grad(first.square().sum(), exact["conv2.weight"])
        assert float((second - right).norm()) <= 1e-3 * float(right.norm())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("algorithm", ["sfedkd", "fedntd", "moon"])
@pytest.mark.parametrize(
    ("backend", "precision"), [("serial", "float32"), ("vectorised", "float32"), ("serial", "float64")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_that_changes_its_images_in_place_does_so_for_each_pass(
    channels, backend, precision, algorithm, training
):
    options = {"algorithm": algorithm, "backend": backend, "precision": precision, "rounds": 2}
    found, expected = (
        run(f"InPlace:flat={flat},training={training}", channels, **options) for flat in (False, True)
    )
    assert loss(found) == pytest.approx(loss(expected), rel=1e-6)
    assert found.accuracy == expected.accuracy


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4), (6,)])
@pytest.mark.parametrize("compute", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_network_is_given_stays_as_it_is(shape, dtype, compute):
    module = network("InPlace", shape).to(dtype)
    model, other = (
        Model(m, compute=compute) for m in (module, network("InPlace:flat=True", shape).to(dtype))
    )
    weights, x = model.initial(), torch.randn(5, *shape, dtype=dtype)
    given = x.clone()
    expected = other.logits(weights, x)
    for _ in range(2):
        assert torch.equal(model.logits(weights, x), expected)
        assert torch.equal(model.student({}, torch.tensor(0))(weights.params, x), expected)
    assert torch.equal(x, given)
    if compute is None:
        slope = [
            torch.func.grad(lambda x, m=m: m.logits(weights, x).square().sum())(x) for m in (model, other)
        ]
        assert torch.equal(*slope)


def test_images_are_copied_for_a_network_alone_that_changes_them(monkeypatch):
    copies = []
    clone = Tensor.clone
    monkeypatch.setattr(Tensor, "clone", lambda t, **how: copies.append(t.shape) or clone(t, **how))
    x = torch.rand(5, 3, 4, 4)
    for name, count in (("InPlace", 1), ("InPlace:flat=True", 0)):
        model = Model(network(name, (3, 4, 4)))
        weights = model.initial()
        copies.clear()
        model.logits(weights, x)
        assert copies == [x.shape] * count


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedntd", "sfedkd", "fedcurv"])
def test_floating_buffers_are_of_the_type_that_a_network_computes_in(algorithm, backend):
    options = {"algorithm": algorithm, "backend": backend, "rounds": 2}
    found, right = (run("Buffers", precision=p, **options) for p in ("bfloat16", "float32"))
    assert loss(found) == pytest.approx(loss(right), rel=0.02)
    buffers, exact = found.weights.buffers, right.weights.buffers
    assert {b.dtype for b in buffers.values()} == {torch.float32, torch.int64}
    assert torch.equal(buffers["scale"], exact["scale"])  # which nothing changes, and nothing rounds
    assert not torch.equal(buffers["scale"], buffers["scale"].bfloat16().float())
    for name in ("mean", "norm.running_mean", "norm.running_var"):
        assert not torch.equal(buffers[name], buffers[name].bfloat16().float())
        torch.testing.assert_close(buffers[name], exact[name], rtol=0.02, atol=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", ["centred", "none", "batch", "group", "cumulative"])
def test_layers_take_what_running_statistics_in_single_precision_make_of_their_input(norm, backend):
    found, right = (
        run(f"{SMALL}:norm={norm}", backend=backend, precision=p, rounds=2) for p in ("bfloat16", "float32")
    )
    assert loss(found) == pytest.approx(loss(right), rel=0.02)
    for name, b in right.weights.buffers.items():
        torch.testing.assert_close(found.weights.buffers[name], b, rtol=0.05, atol=0.02)


def test_what_a_weight_is_made_with_is_of_its_type_and_is_followed():
    found, right = (run("Spectral", precision=p, rounds=2) for p in ("bfloat16", "float32"))
    assert loss(found) == pytest.approx(loss(right), rel=0.02)
    start = dict(network("Spectral").named_buffers())
    for name, b in found.weights.buffers.items():
        assert b.dtype == torch.float32
        assert not torch.equal(b, start[name])
        assert float((b - right.weights.buffers[name]).norm()) < 0.1


def test_a_buffer_that_only_some_passes_change_is_followed_all_the_same():
    class Rare(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.fc = nn.Linear(shape[0], classes)
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("most", torch.zeros(shape[0]))

        def forward(self, x):
            if self.training and len(x) == 4:
                self.seen = self.seen + 1
                self.most.fill_(2.0)
            return self.fc(x * (1 + self.most))

    net = Rare((6,), 3)
    trial.attempt("rare", net, (6,), 3)
    model = Model(net, compute=torch.bfloat16)
    weights, x = model.initial(), torch.rand(4, 6)
    for size, seen in ((3, 0.0), (4, 1.0), (4, 2.0)):
        student = model.student(weights.buffers, torch.tensor(0))
        student(weights.params, x[:size])
        weights = weights._replace(buffers=student.buffers)
        assert (weights.buffers["seen"].item(), weights.buffers["seen"].dtype) == (seen, torch.float32)
        assert weights.buffers["most"].tolist() == [2.0 if seen else 0.0] * 6
    model.logits(weights, x)
    assert weights.buffers["most"].tolist() == [2.0] * 6


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("Squeezed", r"returned \(3,\) for a batch of shape \(1, 3, 32, 32\); expected .* shape \(1, 3\)"),
        ("Squeezed:training=True", r"returned \(3,\) in training for a batch of shape \(1, 3, 32, 32\)"),
    ],
)
def test_a_network_that_cannot_take_one_example_is_told_before_it_trains(spec, said):
    with pytest.raises(UserError, match=said):
        run(spec)


@pytest.mark.parametrize("norm", ["nn.BatchNorm1d(4)", "OwnNorm(4)"])
def test_batch_norm_alone_may_need_more_than_one_example(norm, tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
        "class OwnNorm(nn.BatchNorm1d):\n"
        "    def forward(self, x):\n"
        "        return F.batch_norm(x, self.running_mean, self.running_var, training=self.training)\n"
        "def net(shape, classes):\n"
        f"    return nn.Sequential(nn.Flatten(), nn.Linear(48, 4), {norm}, nn.Linear(4, classes))\n"
    )
    build(f"{tmp_path}/net.py:net", (3, 4, 4), 3)


@pytest.mark.parametrize(("buffer", "kind"), [(False, "parameter"), (True, "buffer")])
def test_complex_numbers_are_refused_as_they_would_be_cut(buffer, kind):
    with pytest.raises(UserError, match=f"the model's {kind} 'filter' is torch.complex64.*view_as_real"):
        run(f"Filter:buffer={buffer}")


def test_trying_a_network_leaves_the_stream_and_the_network_as_they_were(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.norm, self.fc = nn.BatchNorm2d(3), nn.Linear(48, classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(F.dropout(self.norm(x), training=self.training).flatten(1))\n"
    )
    torch.manual_seed(4)
    net = build(f"{tmp_path}/net.py:Net", (3, 4, 4), 3)
    then = torch.rand(3)
    torch.manual_seed(4)
    nn.BatchNorm2d(3), nn.Linear(48, 3)
    assert torch.equal(then, torch.rand(3))
    assert net.norm.num_batches_tracked == 0
    assert all(p.grad is None for p in net.parameters())
    assert kernels.plain(*net.parameters())


def test_a_backbone_that_is_frozen_whole_is_tried_all_the_same(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.conv, self.fc = nn.Conv2d(3, 4, 5), nn.Linear(4 * 28 * 28, classes)\n"
        "        self.requires_grad_(False)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.conv(x).view(len(x), -1))\n"
    )
    net = build(f"{tmp_path}/net.py:Net", (3, 32, 32), 3)
    net.fc.requires_grad_(True)
    model = Model(net)
    assert model.layout is Layout.USUAL
    model.logits(model.initial(), torch.rand(2, 3, 32, 32))


def test_a_network_that_settings_build_is_tried_like_any_other(tmp_path):
    (tmp_path / "net.py").write_text(
        "from dataclasses import dataclass\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.conv, self.fc = nn.Conv2d(3, 4, 5), nn.Linear(4 * 28 * 28, classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.conv(x).view(len(x), -1))\n"
        "@dataclass(frozen=True)\nclass Net2:\n"
        "    more: int = 0\n"
        "    def build(self, shape, classes):\n"
        "        return Net(classes + self.more)\n"
    )
    assert Model(build(f"{tmp_path}/net.py:Net2", (3, 32, 32), 3)).layout is Layout.USUAL
    with pytest.raises(UserError, match=r"returned \(2, 4\)"):
        build(f"{tmp_path}/net.py:Net2:more=1", (3, 32, 32), 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_norms_that_are_derived_from_pytorchs_train(backend, precision):
    found, right = (
        run("Normed", backend=b, precision=p) for b, p in ((backend, precision), ("serial", "float64"))
    )
    assert loss(found) == pytest.approx(loss(right), rel=0.02 if precision == "bfloat16" else 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_circle_trains_in_both_precisions_on_every_backend(backend, precision):
    data = {"dataset": "synthetic:classes=3,train=51,test=30,size=8", "batch_size": 16}  # a last batch of one
    found, right = (
        run("circle", backend=b, precision=p, **data)
        for b, p in ((backend, precision), ("serial", "float64"))
    )
    assert loss(found) == pytest.approx(loss(right), rel=0.03 if precision == "bfloat16" else 1e-3)
