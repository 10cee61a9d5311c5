"""Penalties are their formulas, and so are their gradients, however often they are differentiated."""

import pytest
import torch
from torch.func import grad, vmap

from fedrecall.penalties import inner, quadratic

CASES = [(centred, curved) for centred in (False, True) for curved in (False, True)]


def tensors(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    made = {
        "conv": torch.randn(4, 3, 2, 2, generator=generator, dtype=dtype),
        "bias": torch.randn(4, generator=generator, dtype=dtype),
        "scale": torch.randn((), generator=generator, dtype=dtype),
    }
    made["conv"] = made["conv"].contiguous(memory_format=torch.channels_last)
    return made


def given(centred, curved):
    return tensors(1) if centred else None, tensors(2) if curved else None


def by_hand(params, centre, curvature):
    """The value, number by number."""
    total = 0.0
    for n, w in params.items():
        for i, x in enumerate(w.flatten().tolist()):
            a = 0.0 if centre is None else centre[n].flatten()[i].item()
            c = 1.0 if curvature is None else curvature[n].flatten()[i].item()
            total += c * (x - a) ** 2
    return total


@pytest.mark.parametrize(("centred", "curved"), CASES)
def test_it_is_its_formula(centred, curved):
    params, (centre, curvature) = tensors(0), given(centred, curved)
    assert quadratic(params, centre, curvature).item() == pytest.approx(by_hand(params, centre, curvature))


@pytest.mark.parametrize(("centred", "curved"), CASES)
def test_its_gradient_is_twice_curvature_times_gap(centred, curved):
    params, (centre, curvature) = tensors(0), given(centred, curved)
    ws = [w.requires_grad_(True) for w in params.values()]
    found = torch.autograd.grad(3 * quadratic(params, centre, curvature), ws)
    for (n, w), g in zip(params.items(), found, strict=True):
        gap = w if centre is None else w - centre[n]
        torch.testing.assert_close(g, 6 * gap * (1 if curvature is None else curvature[n]))


@pytest.mark.parametrize(("centred", "curved"), CASES)
def test_it_may_be_asked_for_its_gradient_again(centred, curved):
    params, (centre, curvature) = tensors(0), given(centred, curved)
    before = {n: w.clone() for n, w in params.items()}
    ws = [w.requires_grad_(True) for w in params.values()]
    value = quadratic(params, centre, curvature)
    first = [g.clone() for g in torch.autograd.grad(value, ws, retain_graph=True)]
    again = torch.autograd.grad(value, ws)
    for (n, w), g, h in zip(params.items(), first, again, strict=True):
        torch.testing.assert_close(h, g)
        assert torch.equal(w, before[n])


@pytest.mark.parametrize(("centred", "curved"), CASES)
def test_gradients_agree_with_differences_of_values_twice(centred, curved):
    params, (centre, curvature) = tensors(0), given(centred, curved)
    names, ws = list(params), [w.requires_grad_(True) for w in params.values()]

    def cubed(*values):
        return quadratic(dict(zip(names, values, strict=True)), centre, curvature) ** 3 / 100

    assert torch.autograd.gradcheck(cubed, ws)
    assert torch.autograd.gradgradcheck(cubed, ws)


def test_a_centre_that_is_learnt_has_its_gradient():
    params, centre = tensors(0), tensors(1)
    centre["bias"].requires_grad_(True)
    (found,) = torch.autograd.grad(quadratic(params, centre), [centre["bias"]])
    torch.testing.assert_close(found, 2 * (centre["bias"] - params["bias"]).detach())


@pytest.mark.parametrize(("centred", "curved"), CASES)
def test_clients_as_one_stack_get_what_each_gets_alone(centred, curved):
    clients, (centre, curvature) = [tensors(seed) for seed in (3, 4)], given(centred, curved)
    alone = [grad(quadratic)(c, centre, curvature) for c in clients]
    stacked = {n: torch.stack([c[n] for c in clients]) for n in clients[0]}
    together = vmap(lambda params: grad(quadratic)(params, centre, curvature))(stacked)
    for i, one in enumerate(alone):
        for n, g in one.items():
            torch.testing.assert_close(together[n][i], g)


def test_the_inner_product_is_its_formula_and_pulls_by_the_other():
    params, others = tensors(0), tensors(1)
    ws = [w.requires_grad_(True) for w in params.values()]
    value = inner(params, others)
    expected = sum((w * others[n]).sum().item() for n, w in params.items())
    assert value.item() == pytest.approx(expected)
    for b, g in zip(others.values(), torch.autograd.grad(value, ws), strict=True):
        torch.testing.assert_close(g, b)
