"""Many teachers at once are each of them alone."""

import pytest
import torch
from torch.func import vmap

from fedrecall import trees
from fedrecall.models.model import Model
from fedrecall.models.networks import build


@pytest.mark.parametrize("spec", ["cnn", "resnet10:width=4", "alexnet8:32+16,0.5"])
def test_logits_of_stacked_teachers_are_each_ones(spec):
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(Model(build(spec, (3, 32, 32), 5).double()))
    shaken = [
        trees.transform(lambda t: t * 1.1 + t.abs() * 0.1 if t.is_floating_point() else t, m.initial())
        for m in models
    ]
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    stacked = trees.stack(shaken)
    found = models[0].frozen_many(stacked, x)
    assert found.shape == (3, 4, 5)
    for j, weights in enumerate(shaken):
        torch.testing.assert_close(found[j], models[0].frozen(weights, x), rtol=1e-10, atol=1e-10)
    # As on a device, and for several clients' batches side by side.
    torch.testing.assert_close(vmap(models[0].frozen, in_dims=(0, None))(stacked, x), found)
    several = vmap(models[0].frozen_many, in_dims=(None, 0))(stacked, torch.stack([x, x + 1]))
    torch.testing.assert_close(several[0], found)
