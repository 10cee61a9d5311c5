"""MOON's contrastive term."""

import numpy as np
import pytest
import torch
from tests.algorithms.cases import BATCH_NORM, NETS, assert_same, experiment
from tests.algorithms.nets import Small
from tests.algorithms.test_all import play
from torch import nn

from fedrecall.algorithms.moon import Anchor, Memory, Moon
from fedrecall.errors import UserError
from fedrecall.losses import cross_entropy
from fedrecall.models.model import Model, Weights
from fedrecall.models.projection import add_projection


def shaken(weights: Weights, seed: int) -> Weights:
    g = torch.Generator().manual_seed(seed)
    return Weights(
        {n: p + 0.2 * torch.randn(p.shape, generator=g, dtype=p.dtype) for n, p in weights.params.items()},
        {n: b * 1.5 + 0.1 if b.is_floating_point() else b for n, b in weights.buffers.items()},
    )


def start(model: str = NETS):
    run = experiment("moon:mu=0.7,tau=0.4", model=model)
    batch = next(iter(run.federation.client(0).batches(8)))
    return run, run.model.initial(), batch, run.model.student(run.model.initial().buffers, torch.tensor(0))


def test_before_the_first_visit_the_previous_model_is_the_global_one():
    run, weights, batch, student = start()
    memory = run.algorithm.remember(weights)
    assert memory == Memory(weights)
    anchor = run.algorithm.prepare(
        run.model, run.algorithm.broadcast(run.model, run.server, None), memory, None
    )
    params = {n: p.requires_grad_(True) for n, p in shaken(weights, 1).params.items()}
    loss = run.algorithm.loss(student, params, anchor, batch)
    plain = cross_entropy(student(params, batch.x), batch.y).mean()
    assert float((loss - plain).detach()) == pytest.approx(0.7 * np.log(2))  # both similarities are equal,
    for a, b in zip(  # whatever the parameters: nothing pulls
        torch.autograd.grad(loss, list(params.values())),
        torch.autograd.grad(plain, list(params.values())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_afterwards_it_is_what_the_client_sent_last():
    run = experiment("moon", sample=6)
    for number in (1, 2):
        made = play(run, list(range(6)), 6, number)
        for v in made.visits:
            assert_same(run.memories.get(v.client).previous, v.up.weights)
        run.server = made.server


def test_a_client_remembers_what_it_sends_and_not_what_arrived():
    run, weights, _, _ = start()
    arrived, before, sent = (shaken(weights, s) for s in (1, 2, 3))
    sgd = run.config.training.sgd(1, 8)
    up, memory = run.algorithm.finish(run.model, sent, Anchor(arrived, before), Memory(before), None, sgd)
    assert up.weights is memory.previous is sent


@pytest.mark.parametrize("model", [NETS, BATCH_NORM])
def test_loss_against_its_formula(model):
    run, weights, batch, student = start(model)
    now, near, far = (shaken(weights, s) for s in (1, 2, 3))
    loss = run.algorithm.loss(student, now.params, Anchor(near, far), batch)
    again = run.model.student(weights.buffers, torch.tensor(0)).output(now.params, batch.x)
    h, z = again.features.detach().numpy(), again.logits.detach().numpy()
    g, p = (run.model.frozen_output(w, batch.x).features.numpy() for w in (near, far))

    def cosine(a, b):
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    to_g, to_p = np.exp(cosine(h, g) / 0.4), np.exp(cosine(h, p) / 0.4)
    ce = np.log(np.exp(z).sum(1)) - z[np.arange(8), batch.y.numpy()]
    assert float(loss) == pytest.approx(np.mean(ce - 0.7 * np.log(to_g / (to_g + to_p))), rel=1e-10)


def test_pulls_towards_the_global_features_and_away_from_the_previous():
    run, weights, batch, student = start()
    now, near, far = (shaken(weights, s) for s in (1, 2, 3))
    params = {n: p.requires_grad_(True) for n, p in now.params.items()}

    def gap(values):
        h = run.model.output(Weights(values, {}), batch.x).features
        cos = torch.nn.functional.cosine_similarity
        g, p = (run.model.frozen_output(w, batch.x).features for w in (near, far))
        return float((cos(h, g) - cos(h, p)).mean())

    term = Moon(mu=1e6).loss(student, params, Anchor(near, far), batch)
    grads = torch.autograd.grad(term, list(params.values()))
    step = {n: p - 1e-10 * g for (n, p), g in zip(params.items(), grads, strict=True)}
    assert gap(step) > gap(params)


def test_features_that_are_all_zero_give_no_nan():
    run, weights, batch, student = start()
    zero = {n: torch.zeros_like(p).requires_grad_(True) for n, p in weights.params.items()}
    loss = run.algorithm.loss(student, zero, Anchor(weights, weights), batch)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, list(zero.values())))


def test_projection_head_stands_before_the_classifier():
    torch.manual_seed(0)
    module = add_projection(Small(classes=4, channels=1), 256)
    model = Model(module)
    x = torch.rand(3, 1, 6, 6)
    out = model.output(model.initial(), x)
    assert out.features.shape == (3, 256)
    w = model.initial().params
    logits = out.features @ w["fc.classifier.weight"].T + w["fc.classifier.bias"]
    torch.testing.assert_close(out.logits, logits)
    plain = Model(Small(classes=4, channels=1))
    weights = plain.initial()
    body = {n: w.get(n, p) for n, p in weights.params.items()}  # all but the classifier, which gave way
    given = plain.output(weights._replace(params=body), x).features
    hidden = (given @ w["fc.hidden.weight"].T + w["fc.hidden.bias"]).clamp(min=0)
    torch.testing.assert_close(out.features, hidden @ w["fc.project.weight"].T + w["fc.project.bias"])
    assert w["fc.hidden.weight"].shape == (8, 8)
    assert w["fc.project.weight"].shape == (256, 8)
    bare = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    with pytest.raises(UserError, match="feature_layer"):
        add_projection(bare, 8)


class Maps(nn.Module):
    """A net whose last layer is a convolution: what it is given has two more axes than features have."""

    feature_layer = "head"

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.head(self.body(x).relu()).mean((2, 3))


def test_features_of_whatever_shape_are_one_vector_an_example():
    model = Model(Maps())
    output = model.frozen_output(model.initial(), torch.randn(5, 1, 8, 8))
    assert output.features.shape == (5, 3 * 6 * 6)
