import pytest
import torch

from fedrecall.models.model import Model
from fedrecall.models.networks import build


def test_one_example_is_centred_by_the_statistics_so_far_as_in_use():
    model = Model(build("circle", (1, 8, 8), 5))
    weights = model.initial()
    weights.buffers["centre.running_mean"].copy_(torch.tensor([0.1, -0.1]))
    weights.buffers["centre.running_var"].copy_(torch.tensor([1e-5, 3e-5]))
    x = torch.randn(1, 1, 8, 8)
    student = model.student(weights.buffers, torch.tensor(0))
    torch.testing.assert_close(student(weights.params, x), model.logits(weights, x))


def test_features_lie_on_the_circle_and_feed_the_classifier():
    torch.manual_seed(0)
    model = Model(build("circle:radius=3", (1, 8, 8), 5))
    x = torch.randn(7, 1, 8, 8)
    out = model.output(model.initial(), x)
    assert out.features.shape == (7, 2)
    assert out.features.norm(dim=1).tolist() == pytest.approx([3.0] * 7, rel=1e-5)
    w = model.initial().params
    assert torch.allclose(out.logits, out.features @ w["fc3.weight"].T + w["fc3.bias"], atol=1e-6)
    assert w["fc2.weight"].shape == (2, 512)
