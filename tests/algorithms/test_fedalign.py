"""FedAlign's distance between a block and its narrow self."""

import pytest
import torch
from tests.algorithms.cases import experiment

from fedrecall.algorithms import fedalign
from fedrecall.algorithms.fedalign import FedAlign, lipschitz
from fedrecall.losses import cross_entropy


def test_the_constant_is_the_spectral_norm_of_the_transmitting_matrix():
    g = torch.Generator().manual_seed(0)
    given = torch.rand(
        4, 5, 6, 6, generator=g, dtype=torch.float64
    )  # positive, as after ReLU: one large value
    made = torch.rand(4, 7, 3, 3, generator=g, dtype=torch.float64)
    pooled = given.view(4, 5, 3, 2, 3, 2).mean((3, 5))
    for i, found in enumerate(lipschitz(given, made)):
        matrix = pooled[i].view(5, 9) @ made[i].view(7, 9).T / 9
        assert float(found) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-9)
    rows = lipschitz(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0, 2.0]]))  # |a| |b| of a vector a b^T
    assert rows.item() == pytest.approx(15.0)
    assert lipschitz(torch.zeros(1, 2, 3, 3), torch.zeros(1, 4, 3, 3)).isfinite().all()


def test_the_constant_of_halves_is_that_of_the_same_numbers():
    """Also where clients are mapped over; in bfloat16 it would be off by hundredths."""
    g = torch.Generator().manual_seed(0)
    given = torch.rand(3, 4, 5, 6, 6, generator=g).bfloat16()
    made = torch.rand(3, 4, 7, 3, 3, generator=g).bfloat16()
    found = torch.vmap(lipschitz)(given, made)
    assert found.dtype == torch.float32
    for i in range(3):
        exact = lipschitz(given[i].double(), made[i].double())
        torch.testing.assert_close(found[i].double(), exact, rtol=1e-5, atol=0)
        torch.testing.assert_close(lipschitz(given[i], made[i]).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_in_bfloat16_the_distance_is_a_number_of_single_precision(backend, monkeypatch):
    seen = []
    monkeypatch.setattr(
        fedalign, "lipschitz", lambda *given: seen.append(found := lipschitz(*given)) or found
    )
    experiment("fedalign", precision="bfloat16", rounds=1, backend=backend).run()
    found = {constant.dtype for constant in seen}
    assert torch.float32 in found
    assert torch.bfloat16 not in found


def start(spec: str):
    run = experiment(spec)
    weights = run.model.initial()
    batch = next(iter(run.federation.client(0).batches(8)))
    params = {n: p.requires_grad_(True) for n, p in weights.params.items()}
    return run.algorithm, run.model.student({}, torch.tensor(0)), params, batch


def test_balanced_makes_the_term_as_large_as_the_cross_entropy():
    algorithm, student, params, batch = start("fedalign:mu=0.45,width=0.5")
    ce = cross_entropy(student(params, batch.x), batch.y).mean()
    found = algorithm.loss(student, params, None, batch)
    assert found.item() == pytest.approx(1.45 * ce.item(), rel=1e-9)
    outside = [params[n] for n in ("first.weight", "fc.weight")]  # to which the factor is a number
    for whole, alone in zip(
        torch.autograd.grad(found, outside), torch.autograd.grad(ce, outside), strict=True
    ):
        torch.testing.assert_close(whole, alone, rtol=1e-9, atol=1e-14)


def test_loss_against_its_formula_and_only_the_narrow_block_learns_from_it():
    algorithm, student, params, batch = start("fedalign:mu=2,width=0.5,balanced=false")
    ce = cross_entropy(student(params, batch.x), batch.y).mean()
    first = torch.relu(
        torch.nn.functional.conv2d(batch.x, params["first.weight"], params["first.bias"], 2, 1)
    )
    conv = torch.nn.functional.conv2d
    full = torch.relu(conv(first, params["last.0.weight"], params["last.0.bias"], 2, 1))
    thin = torch.relu(conv(first[:, :2], params["last.0.weight"][:4, :2], params["last.0.bias"][:4], 2, 1))
    pooled = torch.nn.functional.adaptive_avg_pool2d(first, full.shape[2:])

    def norm(a, b):
        matrices = a.flatten(2) @ b.flatten(2).mT / a.shape[-1] / a.shape[-2]
        return torch.linalg.matrix_norm(matrices, 2)

    distance = (norm(pooled[:, :2], thin) - norm(pooled, full)).square().mean()
    loss = algorithm.loss(student, params, None, batch)
    assert loss.item() == pytest.approx((ce + 2 * distance).item(), rel=1e-6)
    names = list(params)
    whole = torch.autograd.grad(loss, list(params.values()))
    alone = torch.autograd.grad(ce, list(params.values()))
    extra = {n: a - b for n, a, b in zip(names, whole, alone, strict=True)}
    learns = torch.zeros_like(extra["last.0.weight"], dtype=torch.bool)
    learns[:4, :2] = True
    assert extra["last.0.weight"][learns].abs().max() > 1e-6
    assert extra["last.0.weight"][~learns].abs().max() < 1e-14
    for n in ("first.weight", "first.bias", "fc.weight", "fc.bias"):
        assert extra[n].abs().max() < 1e-14


def test_long_gradients_are_shortened():
    grads = {"a": torch.tensor([30.0, 0.0]), "b": torch.tensor([[40.0]])}
    short = FedAlign(clip=10).correct(grads, None)
    torch.testing.assert_close(short, {"a": torch.tensor([6.0, 0.0]), "b": torch.tensor([[8.0]])})
    assert torch.equal(FedAlign(clip=60).correct(grads, None)["b"], grads["b"])
    assert FedAlign(clip=0).correct(grads, None) is grads


def test_a_constant_that_is_hardly_larger_than_the_next_is_found():
    """Ten power iterations leave a ten-thousandth, three a twentieth."""
    given = torch.diag(torch.tensor([1.0, 0.8, 0.8, 0.8], dtype=torch.float64)).view(1, 4, 2, 2)
    made = torch.eye(4, dtype=torch.float64).view(1, 4, 2, 2)
    assert float(lipschitz(given, made)) == pytest.approx(1 / 4, rel=1e-3)
