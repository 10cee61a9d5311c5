"""Augmentation against a formula written image by image, and what makes its draws reproducible."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall.data.augmentation import AUGMENTATIONS, Augmentation, default_for, plain
from fedrecall.errors import UserError


def by_hand(x, shift, flip, hole, mean, std, crop, cutout, reflect):
    """Every pixel of every image, in plain Python."""
    count, channels, height, width = x.shape
    sides = [(0, 0), (0, 0), (crop, crop), (crop, crop)]
    padded = np.pad(x, sides, mode="reflect") if reflect else np.pad(x, sides)
    out = np.zeros(x.shape)
    for i in range(count):
        centre = [hole[i, 0] * height // 2**31, hole[i, 1] * width // 2**31]
        for row in range(height):
            for column in range(width):
                r = row + shift[i, 0]
                c = ((width - 1 - column) if flip[i] else column) + shift[i, 1]
                low = [centre[0] - cutout // 2, centre[1] - cutout // 2]
                gone = low[0] <= row < low[0] + cutout and low[1] <= column < low[1] + cutout
                for channel in range(channels):
                    pixel = int(padded[i, channel, r, c])
                    value = (pixel / 255 - mean[channel]) / std[channel]
                    out[i, channel, row, column] = 0.0 if gone else value
    return out


def some(count=6, channels=3, height=7, width=9, seed=0):
    stream = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=stream)
    return x, torch.rand(channels, generator=stream), torch.rand(channels, generator=stream) + 0.1


@given(
    st.integers(0, 5),
    st.booleans(),
    st.integers(0, 12),
    st.booleans(),
    st.integers(1, 7),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_equals_the_formula_by_hand(crop, flip, cutout, reflect, height, seed):
    augmentation = Augmentation(crop, flip, cutout, reflect and crop > 0)
    x, mean, std = some(height=height, seed=seed)
    draws = augmentation.draw(torch.Generator().manual_seed(seed), len(x))
    got = augmentation.apply(x, draws, mean, std, torch.float64)
    numbers = (t.numpy() for t in (x, *draws, mean.double(), std.double()))
    want = by_hand(*numbers, crop, cutout, augmentation.reflect)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_plain_normalises(dtype):
    x, mean, std = some()
    want = (x.double() / 255 - mean[:, None, None]) / std[:, None, None]
    got = plain(x, mean, std, dtype)
    assert got.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", ["crop+flip+cutout", "crop+reflect+flip"])
def test_works_under_vmap_and_with_more_leading_dimensions(name):
    augmentation = AUGMENTATIONS[name]
    x, mean, std = some(count=12, height=20, width=20)
    draws = augmentation.draw(torch.Generator().manual_seed(3), 12)
    want = augmentation.apply(x, draws, mean, std)
    clients = x.reshape(3, 4, *x.shape[1:])
    theirs = type(draws)(*(d.reshape(3, 4, *d.shape[1:]) for d in draws))
    mapped = torch.func.vmap(lambda x, d: augmentation.apply(x, d, mean, std))(clients, theirs)
    assert torch.equal(mapped.flatten(0, 1), want)
    assert torch.equal(augmentation.apply(clients, theirs, mean, std).flatten(0, 1), want)


def test_applying_changes_neither_the_images_nor_the_draws():
    augmentation = AUGMENTATIONS["crop+flip+cutout"]
    x, mean, std = some()
    draws = augmentation.draw(torch.Generator().manual_seed(3), len(x))
    before = [t.clone() for t in (x, *draws)]
    first = augmentation.apply(x, draws, mean, std)
    assert torch.equal(first, augmentation.apply(x, draws, mean, std))
    assert all(torch.equal(a, b) for a, b in zip(before, (x, *draws), strict=True))


@given(st.integers(0, 20), st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_draws_come_image_by_image_and_consume_the_same_whatever_is_switched_on(first, second):
    full = AUGMENTATIONS["crop+flip+cutout"]
    once = full.draw(torch.Generator().manual_seed(1), first + second)
    stream = torch.Generator().manual_seed(1)
    twice = [full.draw(stream, first), full.draw(stream, second)]
    for whole, *parts in zip(once, *twice, strict=True):
        assert torch.equal(whole, torch.cat(parts))
    none = torch.Generator().manual_seed(1)
    AUGMENTATIONS["none"].draw(none, first + second)
    assert torch.equal(none.get_state(), stream.get_state())


def test_draws_are_uniform_over_all_their_values():
    count = 90_000
    draws = Augmentation(crop=4, flip=True, cutout=16).draw(torch.Generator().manual_seed(0), count)
    for axis in (0, 1):
        shifts = torch.bincount(draws.shift[:, axis], minlength=9)
        assert len(shifts) == 9
        assert (shifts - count / 9).abs().max() < 5 * (count / 9) ** 0.5
        holes = torch.bincount((draws.hole[:, axis] * 30) >> 31, minlength=30)
        assert len(holes) == 30
        assert (holes - count / 30).abs().max() < 5 * (count / 30) ** 0.5
    assert abs(draws.flip.sum() - count / 2) < 5 * (count / 4) ** 0.5


def test_an_images_draws_have_nothing_to_do_with_one_another():
    count = 40_000
    draws = Augmentation(crop=4, flip=True, cutout=16).draw(torch.Generator().manual_seed(0), count)
    columns = torch.cat([draws.shift, draws.flip[:, None], draws.hole >> 20], 1).double().T
    apart = torch.corrcoef(columns) - torch.eye(5, dtype=torch.float64)
    assert apart.abs().max() < 5 / count**0.5


def test_half_precision_is_rounded_once():
    x, mean, std = some()
    assert torch.equal(
        plain(x, mean, std, torch.bfloat16), plain(x, mean, std, torch.float32).to(torch.bfloat16)
    )


def test_tables_are_only_normalised():
    x = torch.randn(5, 3)
    augmentation = AUGMENTATIONS["crop+flip+cutout"]
    draws = augmentation.draw(torch.Generator(), 5)
    mean, std = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 2, 4])
    assert torch.equal(augmentation.apply(x, draws, mean, std), (x - mean) / std)


def test_parse():
    assert Augmentation.parse("none") == Augmentation()
    assert Augmentation.parse("crop+flip+cutout") == Augmentation(4, True, 16)
    assert Augmentation.parse("crop:2 + cutout:8") == Augmentation(2, False, 8)
    assert Augmentation.parse("flip+crop:2+reflect") == Augmentation(2, True, reflect=True)
    assert Augmentation.parse({"crop": 1}) == Augmentation(1)
    for name, preset in AUGMENTATIONS.items():
        assert Augmentation.parse(name) == preset
        assert str(preset) == name
    assert Augmentation.parse(str(Augmentation(3, False, 5))) == Augmentation(3, False, 5)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("crop+flop", "did you mean 'flip'"),
        ("crop:-1", r"must be in \[0, 4096\]"),
        ("crop:3000000000", r"must be in \[0, 4096\]"),
        ("cutout:3000000000", r"must be in \[0, 4096\]"),
        ("crop:x", "a whole number"),
        ("crop+crop", "twice"),
        ("reflect+flip", "crop\\+reflect"),
        (7, "is text"),
        ({"crop": 1, "hole": 2}, "no 'hole'"),
    ],
)
def test_what_cannot_be_parsed_is_said_in_a_sentence(spec, said):
    with pytest.raises(UserError, match=said):
        Augmentation.parse(spec)


def test_defaults_follow_the_papers_and_leave_digits_unmirrored():
    assert default_for("cifar10") == Augmentation(4, True, 16)
    assert default_for("cifar100") == Augmentation(4, True, 16)
    assert default_for("cinic10") == Augmentation(crop=4, flip=True, reflect=True)
    assert default_for("tiny_imagenet") == Augmentation(crop=4, flip=True)
    assert default_for("ham10000") == Augmentation(flip=True)
    for name in ("mnist", "digits", "folder", "synthetic"):
        assert not default_for(name).flip
