"""Every network's forward pass against its formula, written out with functions and the weights' names."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.test_norms import randomised
from torch import Tensor

from fedrecall.models import MODELS, build
from fedrecall.models.model import Model


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def conv(w: dict[str, Tensor], name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
    return F.conv2d(x, w[f"{name}.weight"], w.get(f"{name}.bias"), stride, padding)


def relu(x: Tensor) -> Tensor:
    return x * (x > 0)


def pooled(x: Tensor, how=torch.amax) -> Tensor:
    """Each square of 2x2 pixels as one; what is left at the edges is cut."""
    n, c, h, w = x.shape
    squares = x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2)
    return how(squares, (3, 5))


def norm(w: dict[str, Tensor], name: str, x: Tensor, groups: int | None) -> Tensor:
    shape = (1, -1, 1, 1)
    if groups is None:
        mean, var = (w[f"{name}.running_{s}"].view(shape) for s in ("mean", "var"))
    else:
        each = x.reshape(len(x), groups, -1)
        mean, var = each.mean(2), each.var(2, correction=0)
        mean, var = (s.repeat_interleave(x.shape[1] // groups, 1).view(len(x), -1, 1, 1) for s in (mean, var))
    return (x - mean) / (var + 1e-5).sqrt() * w[f"{name}.weight"].view(shape) + w[f"{name}.bias"].view(shape)


def cnn_body(w, x):
    x = pooled(relu(conv(w, "conv1", x, 2)))
    x = pooled(relu(conv(w, "conv2", x, 2)))
    return relu(linear(w, "fc1", x.flatten(1)))


def cnn(w, x):
    return linear(w, "fc2", cnn_body(w, x))


def circle(w, x):
    x = linear(w, "fc2", cnn_body(w, x))
    x = (x - w["centre.running_mean"]) / (w["centre.running_var"] + 1e-5).sqrt()
    return linear(w, "fc3", 3 * x / (x * x).sum(1, keepdim=True).sqrt())


def lenet(padding, act, pool):
    def forward(w, x):
        x = pooled(act(conv(w, "conv1", x, padding)), pool)
        x = pooled(act(conv(w, "conv2", x)), pool).flatten(1)
        return linear(w, "fc3", act(linear(w, "fc2", act(linear(w, "fc1", x)))))

    return forward


def alexnet8(w, x):
    x = pooled(relu(conv(w, "conv1", x, 1, 2)))
    x = pooled(relu(conv(w, "conv2", x, 1)))
    x = relu(conv(w, "conv3", x, 1))
    x = relu(conv(w, "conv4", x, 1))
    x = pooled(relu(conv(w, "conv5", x, 1))).flatten(1)
    return linear(w, "fc3", relu(linear(w, "fc2", relu(linear(w, "fc1", x)))))


def simple_cnn(w, x):
    x = pooled(relu(conv(w, "conv1", x, 1)))
    x = pooled(relu(conv(w, "conv2", x, 1)))
    x = relu(conv(w, "conv3", x, 1)).flatten(1)
    return linear(w, "fc2", relu(linear(w, "fc1", x)))


def mlp(w, x):
    return linear(w, "fc3", relu(linear(w, "fc2", relu(linear(w, "fc1", x.flatten(1))))))


def resnet(depths, sizes, groups=None):
    """``sizes``: of the convolutions of a block. The stride is that of its first 3x3 one."""

    def normed(w, name, x):  # as many groups as divide the channels: all widths here are powers of two
        return norm(w, name, x, groups and min(groups, x.shape[1]))

    def forward(w, x):
        x = relu(normed(w, "norm1", conv(w, "conv1", x, 1)))
        for stage, depth in enumerate(depths, 1):
            for i in range(depth):
                block = f"layer{stage}.{i}"
                stride = 2 if stage > 1 and i == 0 else 1
                y = x
                for k, size in enumerate(sizes, 1):
                    mine = stride if size == 3 and sizes.index(3) == k - 1 else 1
                    y = normed(w, f"{block}.norm{k}", conv(w, f"{block}.conv{k}", y, size // 2, mine))
                    y = relu(y) if k < len(sizes) else y
                if f"{block}.shortcut.0.weight" in w:
                    x = normed(w, f"{block}.shortcut.1", conv(w, f"{block}.shortcut.0", x, 0, stride))
                x = relu(y + x)
        return linear(w, "fc", x.mean(3).mean(2))

    return forward


BASIC, BOTTLENECK = (3, 3), (1, 3, 1)
FORMULAS = {
    "cnn": cnn,
    "circle": circle,
    "lenet_cifar": lenet(0, relu, torch.amax),
    "lenet5": lenet(2, relu, torch.amax),
    "lenet5:tanh,avg": lenet(2, torch.tanh, torch.mean),
    "alexnet8:16+8": alexnet8,
    "simple_cnn": simple_cnn,
    "mlp:16+8": mlp,
    "resnet10:width=8": resnet((1, 1, 1, 1), BASIC),
    "resnet10:group,groups=4,width=8": resnet((1, 1, 1, 1), BASIC, 4),
    "resnet18:width=4": resnet((2, 2, 2, 2), BASIC),
    "resnet50:width=2": resnet((3, 4, 6, 3), BOTTLENECK),
    "resnet50:group,groups=4,width=2": resnet((3, 4, 6, 3), BOTTLENECK, 4),
    "resnet56:width=2": resnet((6, 6, 6), BOTTLENECK),
}


@pytest.mark.parametrize("spec", FORMULAS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 24)])
def test_logits_are_what_the_formula_gives(spec, shape):
    torch.manual_seed(0)
    model = Model(randomised(build(spec, shape, 5)))
    weights = model.initial()
    # Small and of both signs: so rectifiers cut, and fifty layers neither explode nor vanish.
    params = {
        n: (p - 1) * (2 / p[0].numel()) ** 0.5 * 2.4 if p.dim() > 1 else p for n, p in weights.params.items()
    }
    x = torch.randn(3, *shape, dtype=torch.float64)
    found = model.logits(weights._replace(params=params), x)
    right = FORMULAS[spec](params | weights.buffers, x)
    assert right.std() > 1e-3
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12)


def test_every_network_has_a_formula():
    assert {spec.partition(":")[0] for spec in FORMULAS} == {*MODELS}
