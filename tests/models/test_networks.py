import copy
import dataclasses
import itertools
import json
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import fedrecall
from fedrecall.errors import UserError
from fedrecall.fields import fields
from fedrecall.models import MODELS, KeyedDropout, activation_layer, build, module_from, networks

DIGITS, MNIST, CIFAR, TINY = (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def conv(inputs: int, outputs: int, size: int) -> int:
    return outputs * (inputs * size * size + 1)


def fc(*sizes: int) -> int:
    return sum((a + 1) * b for a, b in itertools.pairwise(sizes))


def basic(*blocks: tuple[int, int]) -> int:
    """Basic blocks of a ResNet: two bias-free 3x3 convolutions, two norms, a projection where it widens."""
    return sum(9 * a * b + 9 * b * b + 4 * b + (a * b + 2 * b if a != b else 0) for a, b in blocks)


def bottlenecks(inputs: int, width: int, depth: int) -> int:
    out, total = 4 * width, 0
    for i in range(depth):
        a = inputs if i == 0 else out
        total += a * width + 9 * width * width + width * out + 4 * width + 2 * out
        total += a * out + 2 * out if i == 0 else 0
    return total


ALEX = conv(3, 64, 3) + conv(64, 192, 3) + conv(192, 384, 3) + conv(384, 256, 3) + conv(256, 256, 3)
STEM = 27 * 64 + 128


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "expected"),
    [
        ("cnn", MNIST, 10, 1_663_370),  # the number McMahan et al. give
        ("cnn", CIFAR, 10, conv(3, 32, 5) + conv(32, 64, 5) + fc(4096, 512, 10)),
        ("cnn", DIGITS, 10, conv(1, 32, 5) + conv(32, 64, 5) + fc(256, 512, 10)),
        ("cnn", TINY, 200, conv(3, 32, 5) + conv(32, 64, 5) + fc(16384, 512, 200)),
        ("lenet5", MNIST, 10, 61_706),  # LeNet-5's well-known count
        ("lenet5:tanh,avg", MNIST, 10, 61_706),
        ("lenet_cifar", CIFAR, 10, conv(3, 6, 5) + conv(6, 16, 5) + fc(400, 120, 84, 10)),
        ("alexnet8", CIFAR, 10, ALEX + fc(1024, 1024, 512, 10)),
        ("alexnet8:4096+4096", CIFAR, 10, ALEX + fc(1024, 4096, 4096, 10)),
        ("simple_cnn", CIFAR, 100, conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + fc(4096, 128, 100)),
        (
            "resnet10",
            CIFAR,
            10,
            STEM + basic((64, 64), (64, 128), (128, 256), (256, 512)) + fc(512, 10),
        ),
        (
            "resnet18",
            CIFAR,
            10,
            STEM
            + basic((64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512))
            + fc(512, 10),
        ),
        ("resnet18:group", CIFAR, 10, 11_173_962),
        (
            "resnet50",
            CIFAR,
            100,
            STEM
            + bottlenecks(64, 64, 3)
            + bottlenecks(256, 128, 4)
            + bottlenecks(512, 256, 6)
            + bottlenecks(1024, 512, 3)
            + fc(2048, 100),
        ),
        (
            "resnet56",
            CIFAR,
            10,
            27 * 16
            + 32
            + bottlenecks(16, 16, 6)
            + bottlenecks(64, 32, 6)
            + bottlenecks(128, 64, 6)
            + fc(256, 10),
        ),
        ("mlp", (16,), 4, fc(16, 64, 4)),
        ("mlp:32+8", (3, 2, 2), 4, fc(12, 32, 8, 4)),
        ({"name": "mlp", "hidden": []}, (5,), 2, fc(5, 2)),
    ],
)
def test_parameter_counts_equal_the_layers_added_by_hand(spec, shape, classes, expected):
    assert count(build(spec, shape, classes)) == expected


SMALL = {name: f"{name}:width=4" if name.startswith("resnet") else name for name in MODELS}
CASES = [
    (spec, shape)
    for name, spec in SMALL.items()
    for shape in (DIGITS, MNIST, CIFAR, (3, 36, 28))
    if shape != DIGITS or name not in ("lenet_cifar", "lenet5", "alexnet8")
]


@pytest.mark.parametrize(("spec", "shape"), CASES)
def test_logits_and_features_have_their_shapes(spec, shape):
    net = build(spec, shape, 7)
    seen = []
    layer = net.get_submodule(net.feature_layer)
    assert isinstance(layer, nn.Linear)
    layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    assert net(torch.randn(2, *shape)).shape == (2, 7)
    assert seen[0].shape == (2, layer.in_features)


@pytest.mark.parametrize("spec", [*SMALL.values(), "resnet10:group,width=4", "resnet50:group,4,4"])
def test_vmapped_gradients_equal_a_loop(spec):
    shape = (3, 16, 16)
    net = build(spec, shape, 3).double().train()
    params = {n: torch.stack([p.detach(), 1.1 * p.detach()]) for n, p in net.named_parameters()}
    buffers = {n: torch.stack([b, b]) for n, b in net.named_buffers()}
    x = torch.randn(2, 3, *shape, dtype=torch.float64)

    def loss(params, buffers, x):
        state = {**params, **{n: b.clone() for n, b in buffers.items()}}
        return functional_call(net, state, (x,)).logsumexp(1).mean()

    both = vmap(grad(loss))(params, buffers, x)
    for i in range(2):
        one = grad(loss)({n: p[i] for n, p in params.items()}, {n: b[i] for n, b in buffers.items()}, x[i])
        for name, value in one.items():
            torch.testing.assert_close(both[name][i], value, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("spec", SMALL.values())
def test_memory_format_changes_nothing_and_bfloat16_stays_near(spec):
    net = build(spec, CIFAR, 5).eval()
    x = torch.randn(2, *CIFAR)
    logits = net(x)
    last = copy.deepcopy(net).to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x.to(memory_format=torch.channels_last)), logits, atol=1e-5, rtol=1e-4)
    # (Rounding turns what lies near the middle of the circle as far as it likes: nothing drawn here does.)
    half = net.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), logits, atol=0.05, rtol=0.05)


def test_the_same_seed_gives_the_same_weights():
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(build("cnn", DIGITS, 10))
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_alignment_layers_of_cnn_are_the_512_after_relu_and_the_classifier():
    net = build("cnn", DIGITS, 10)
    assert net.get_submodule("fc1").out_features == 512
    assert net.feature_layer == "fc2"
    assert activation_layer(net, "fc1") == "fc1_act"
    assert isinstance(net.get_submodule("fc1_act"), nn.ReLU)
    assert activation_layer(net, "fc2") == "fc2"
    with pytest.raises(UserError, match="did you mean 'fc1'"):
        activation_layer(net, "fc1x")


def test_group_norm_has_no_running_statistics_and_batch_norm_has():
    assert not list(build("resnet10:group,width=4", CIFAR, 3).buffers())
    assert list(build("resnet10:batch,width=4", CIFAR, 3).buffers())


def test_a_residual_block_of_zeros_is_the_relu_of_its_input():
    net = build("resnet10:group,width=4", CIFAR, 3)
    block = net.layer1[0]
    nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        ("lenet_cifar", DIGITS, "at least 16x16, not 8x8"),
        ("lenet5", DIGITS, "at least 12x12"),
        ("alexnet8", (3, 14, 32), "at least 15x15"),
        ("cnn", (16,), "use mlp"),
        ("cnnn", DIGITS, "did you mean 'cnn'"),
        ("resnet18:norm=layer", CIFAR, "one of batch, group"),
        ("alexnet8:8", CIFAR, "two positive widths"),
        ("mlp:0", CIFAR, "positive widths"),
        ("mlp:dropout=1", CIFAR, r"in \[0, 1\)"),
    ],
)
def test_what_cannot_be_built_is_said_in_a_sentence(spec, shape, sentence):
    with pytest.raises(UserError, match=sentence):
        build(spec, shape, 10)


def test_the_smallest_images_allowed_can_be_run():
    for spec, side in {"lenet_cifar": 16, "lenet5": 12, "alexnet8": 15, "cnn": 4, "simple_cnn": 4}.items():
        assert build(spec, (1, side, side), 2)(torch.zeros(1, 1, side, side)).shape == (1, 2)


def test_every_field_of_every_model_is_documented_and_its_spec_makes_it_again():
    for name in MODELS:
        made = MODELS.make(name)
        assert MODELS.make(MODELS.spec(made)) == made
        assert dataclasses.is_dataclass(made)
        for field in fields(type(made)):
            assert field.doc, (name, field.name)


def test_dropout_of_a_registered_model_is_keyed():
    net = build("alexnet8:64+32,0.5", CIFAR, 10)
    assert [m.salt for m in net.modules() if isinstance(m, KeyedDropout)] == [1, 2]
    assert build(MODELS.make("mlp"), (4,), 2)(torch.zeros(1, 4)).shape == (1, 2)


USER = textwrap.dedent(
    """
    import functools
    import torch
    from dataclasses import dataclass
    from torch import nn

    class Net(nn.Module):
        def __init__(self, in_channels, num_classes, width=8, *, act="relu"):
            super().__init__()
            self.act = act
            self.body = nn.Sequential(nn.Conv2d(in_channels, width, 3), nn.ReLU(), nn.Dropout(0.5))
            self.head = nn.Linear(width, num_classes)

        def forward(self, x):
            return self.head(self.body(x).mean((2, 3)))

    class Named(Net):
        feature_layer = "body"

    class Lost(Net):
        feature_layer = "hed"

    class Positional(Net):
        def __init__(self, classes, channels):
            super().__init__(channels, classes)

    def convs(shape, classes):
        return nn.Sequential(nn.Conv2d(shape[0], classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def loose(**kwargs):
        return Net(3, **kwargs)

    def needy(classes, depth):
        return nn.Linear(depth, classes)

    def breaks(classes):
        raise RuntimeError("boom")

    def number(classes):
        return 3

    def wrong(classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes + 1))

    def pair(classes):
        class Pair(nn.Module):
            def forward(self, x):
                return x, x
        return Pair()

    def misfit():
        return nn.Linear(5, 5)

    def hidden(classes):
        return nn.Sequential(nn.AlphaDropout(), nn.Flatten(), nn.Linear(3 * 32 * 32, classes))

    @dataclass(frozen=True)
    class Spec:
        width: int = 4
        def build(self, shape, classes):
            return Net(shape[0], classes, self.width)

    built = Net(3, 10)
    text = "no"
    smallest = min

    class Opaque:
        __signature__ = 3

        def __call__(self):
            return Net(3, 10)

    opaque = Opaque()
    wide = functools.partial(Net, width=9)
    """
)


@pytest.fixture
def user(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER)
    return str(path)


def test_a_users_class_is_built_keyed_and_given_a_feature_layer(user):
    net = build(f"{user}:Net", CIFAR, 10)
    assert net.feature_layer == "head"
    assert isinstance(net.body[2], KeyedDropout)
    assert net.training
    assert net.body[0].in_channels == 3


def test_a_users_options_arrive_as_values(user):
    net = build(f"{user}:Net:width=5,act=tanh,feature_layer=body", CIFAR, 10)
    assert (net.body[0].out_channels, net.act, net.feature_layer) == (5, "tanh", "body")
    net = build({"name": f"{user}:Net", "width": 6}, CIFAR, 10)
    assert net.body[0].out_channels == 6
    assert module_from(f"{user}:loose", CIFAR, 4, width=3).head.out_features == 4


def test_the_feature_layer_is_the_users_else_the_last_linear_else_none(user):
    assert build(f"{user}:Named", CIFAR, 10).feature_layer == "body"
    assert build(f"{user}:convs", CIFAR, 10).feature_layer is None


def test_every_name_for_the_sizes_is_understood(user):
    net = build(f"{user}:Positional", (1, 9, 9), 4)
    assert (net.body[0].in_channels, net.head.out_features) == (1, 4)


def test_building_a_users_model_leaves_its_modes_as_made(user):
    net = build(f"{user}:Net", CIFAR, 10)
    assert all(m.training for m in net.modules())


def test_a_users_spec_class_is_validated_like_the_packages_own(user):
    assert build(f"{user}:Spec:width=7", CIFAR, 10).body[0].out_channels == 7
    with pytest.raises(UserError, match="did you mean 'width'"):
        build(f"{user}:Spec:widht=7", CIFAR, 10)


def test_a_dotted_module_path_works():
    net = build("torch.nn:Linear:in_features=6,out_features=3", (6,), 3)
    assert count(net) == 21


@pytest.mark.parametrize(
    ("tail", "sentence"),
    [
        ("Nte", "did you mean 'Net'"),
        ("Net:widht=3", "did you mean 'width'"),
        ("Net:3", "key=value"),
        ("Net:feature_layer=bdoy", "did you mean 'body'"),
        ("Lost", "no layer 'hed'"),
        ("needy", "needs 'depth', which nobody gives.*depth="),
        ("breaks", "failed: RuntimeError: boom"),
        ("number", "made a int"),
        ("wrong", r"returned \(2, 11\).*expected logits of shape \(2, 10\)"),
        ("pair", "returned tuple"),
        ("misfit", r"failed on a batch of shape \(2, 3, 32, 32\)"),
        ("hidden", "AlphaDropout"),
        ("built", "is a Net; name an nn.Module class"),
        ("text", "is a str"),
        ("opaque", "no readable signature"),
        ("smallest", "is a function of Python's or PyTorch's own, which makes no network"),
    ],
)
def test_what_is_wrong_with_a_users_model_is_said_in_a_sentence(user, tail, sentence):
    with pytest.raises(UserError, match=sentence):
        build(f"{user}:{tail}", CIFAR, 10)


@pytest.mark.parametrize(
    "spec",
    [
        "os:system:command=touch {proof}",
        "subprocess:check_call:args=touch {proof},shell=true",
        "subprocess:Popen:args=touch {proof},shell=true",
        "builtins:eval:source=__import__('pathlib').Path('{proof}').touch()",
        "pathlib:Path.touch:self={proof}",
        "fedrecall.models.networks:functools.reduce",
        "torch:save:obj=1,f={proof}",
        "torch.hub:load:repo_or_dir=somebody/something,model=net",
        "{user}:torch.save:obj=1,f={proof}",
        "{user}:functools.partial:func=print",
    ],
)
def test_what_makes_no_network_is_not_called(spec, user, tmp_path):
    proof = tmp_path / "proof"
    with pytest.raises(UserError, match=r"Python's or PyTorch's own|no torch\.nn\.Module"):
        build(spec.format(user=user, proof=proof), CIFAR, 10)
    assert not proof.exists()


def test_functions_that_stand_for_others_are_called(user, tmp_path):
    assert build(f"{user}:wide", CIFAR, 10).body[0].out_channels == 9
    own = tmp_path / "random.py"  # which Python has, too
    own.write_text(USER)
    assert count(build(f"{own}:convs", CIFAR, 10)) == count(build(f"{user}:convs", CIFAR, 10))


def test_a_missing_or_broken_file_or_module_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="there is no file"):
        build(f"{tmp_path}/none.py:Net", CIFAR, 10)
    with pytest.raises(UserError, match="no module 'nowhere_at_all'"):
        build("nowhere_at_all:Net", CIFAR, 10)
    (tmp_path / "broken.py").write_text("import nowhere_at_all")
    with pytest.raises(UserError, match="nowhere_at_all"):
        build(f"{tmp_path}/broken.py:Net", CIFAR, 10)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unfinished_networks.py").write_text("1 / 0")
    with pytest.raises(UserError, match="unfinished_networks could not be imported: ZeroDivisionError"):
        build("unfinished_networks:Net", CIFAR, 10)


class Given(nn.Module):
    """A user's network."""

    def __init__(self, shape, classes, width=3):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, classes))
        self.net(torch.zeros(1, *shape))

    def forward(self, x):
        return self.net(x)


def given(shape, classes):
    return Given(shape, classes, width=5)


@dataclasses.dataclass(frozen=True)
class Settings:
    """A user's network as settings that build it."""

    width: int = 4

    def build(self, shape, classes):
        return Given(shape, classes, self.width)


@pytest.mark.parametrize(
    ("model", "width"),
    [(Given, 3), (given, 5), (Settings(7), 7), (Settings, 4), (MODELS.make("cnn:hidden=6"), 6)],
)
def test_a_model_given_as_it_is_becomes_a_spec_that_makes_it_again(model, width, tmp_path):
    spec = networks.named(model)
    assert networks.named(json.loads(json.dumps(spec))) == spec
    assert width in {len(p) for p in build(spec, DIGITS, 10).parameters()}
    settings = {
        "dataset": "synthetic:classes=3,train=60,test=30",
        "clients": 3,
        "sample": 2,
        "partition": "iid",
    }
    first = fedrecall.run(tmp_path / "run", model=model, rounds=1, **settings)
    assert first.config.model == spec
    assert len(fedrecall.run(tmp_path / "run", model=model, rounds=2, resume=True, **settings).history) == 2


def test_a_model_that_no_name_finds_again_is_refused(monkeypatch):
    with pytest.raises(UserError, match="a Given that is made already: give its class"):
        networks.named(Given(DIGITS, 10))
    with pytest.raises(UserError, match="made within a function or is a lambda"):
        networks.named(lambda shape, classes: Given(shape, classes))
    before = given
    monkeypatch.setattr(sys.modules[__name__], "given", lambda shape, classes: None)
    with pytest.raises(UserError, match="is not the function that was given any more"):
        networks.named(before)
    assert networks.named("cnn") == "cnn"
