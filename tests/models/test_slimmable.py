"""A block at reduced width against a block that was built that narrow."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedrecall.errors import UserError
from fedrecall.models.model import Model
from fedrecall.models.networks import build
from fedrecall.models.resnets import BasicBlock, Bottleneck, norm_layer
from fedrecall.models.slimmable import last_block, narrow, slim


@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_narrow_block_is_one_built_narrow(kind, norm):
    torch.manual_seed(0)
    e = kind.expansion
    # 8 groups of 16 or 64 channels: a quarter of the channels are divided among gcd(8, channels) groups.
    wide = nn.Sequential(kind(8, 16, 2, norm_layer(norm, 8)), kind(16 * e, 16, 1, norm_layer(norm, 8)))
    thin = nn.Sequential(kind(2, 4, 2, norm_layer(norm, 8)), kind(4 * e, 4, 1, norm_layer(norm, 8)))
    module = nn.Sequential()
    module.add_module("stem", nn.Conv2d(3, 8, 1))
    module.add_module("block", wide)
    module = module.double()
    model = Model(module)
    weights = model.initial()
    own = {n.removeprefix("block."): p for n, p in weights.params.items() if n.startswith("block.")}
    cut = {}
    for name, like in thin.named_parameters():
        part = own[name][tuple(slice(0, n) for n in like.shape)]
        assert part.shape == like.shape
        cut[name] = part
    x = torch.randn(5, 8, 6, 6, dtype=torch.float64)
    student = model.student(weights.buffers, torch.tensor(0))
    given, made = student.narrow(weights.params, x, ("block",), 0.25)
    assert torch.equal(given, x[:, :2])
    torch.testing.assert_close(made, functional_call(thin.double(), cut, (x[:, :2],)), rtol=1e-12, atol=1e-12)
    # The running statistics belong to the full width.
    assert all(torch.equal(b, weights.buffers[n]) for n, b in student.buffers.items())
    train = model._train.get_submodule("block")
    assert all(m.num_groups == 8 for m in train.modules() if isinstance(m, nn.GroupNorm))


def test_parameters_are_cut_in_their_channels_alone():
    cut = narrow(
        {"conv": torch.arange(8 * 4 * 9).view(8, 4, 3, 3), "bias": torch.arange(8), "n": torch.tensor(7)}, 0.5
    )
    assert cut["conv"].shape == (4, 2, 3, 3)
    assert torch.equal(cut["bias"], torch.arange(4))
    assert cut["n"] == 7
    assert [slim(n, 0.45) for n in (1, 6, 9, 100)] == [1, 3, 4, 45]  # the nearest number


@pytest.mark.parametrize(
    ("model", "shape", "block"),
    [
        ("cnn", (3, 8, 8), ("conv2", "conv2_act", "pool2")),
        ("simple_cnn", (3, 8, 8), ("conv3", "conv3_act")),
        ("resnet10:width=4", (3, 8, 8), ("layer4",)),
        ("alexnet8:hidden=8+8", (3, 16, 16), ("conv5", "conv5_act", "pool5")),
        ("mlp:16+8", (10,), ("fc2", "fc2_act")),
    ],
)
def test_the_last_block_of_the_papers_networks(model, shape, block):
    module = build(model, shape, 4)
    assert last_block(module) == block
    x = torch.rand(2, *shape)
    module.last_block = "named"
    assert last_block(module) == ("named",)
    m = Model(module)
    w = m.initial()
    student = m.student(w.buffers, torch.tensor(0))
    seen = student.traced(w.params, x, block)
    torch.testing.assert_close(seen.logits, student(w.params, x))
    given, made = student.narrow(w.params, seen.given, block, 0.5)
    assert given.shape[1] == slim(seen.given.shape[1], 0.5)
    assert made.shape[2:] == seen.made.shape[2:]
    assert made.shape[1] == slim(seen.made.shape[1], 0.5)


def test_the_last_block_of_a_chain_ends_where_a_linear_layer_takes_over():
    class Rows(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), Rows(), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)]
    module = nn.Sequential(*layers)
    module.feature_layer = "5"
    assert last_block(module) == ("0", "1", "2")


def test_a_network_without_a_block_says_what_to_do():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 2)

    with pytest.raises(UserError, match="last_block"):
        last_block(Odd())
