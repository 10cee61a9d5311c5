"""A data set as somebody's own code makes it: what is taken, and what is refused before training."""

import numpy as np
import pytest
import torch

import fedrecall
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.datasets import Dataset, Split
from fedrecall.data.federation import Federation, set_apart
from fedrecall.errors import UserError

Y = torch.arange(60) % 3
TABLE = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def dataset(x, y=Y, channels=None, test=None):
    """Forty examples to train on and twenty to test with."""
    channels = x.shape[1] if channels is None else channels
    splits = Split(x[:40], y[:40]), Split(x[40:] if test is None else test, y[40:])
    return Dataset("mine", ("a", "b", "c"), *splits, torch.zeros(channels), torch.ones(channels))


def play(given, **settings):
    made = {"clients": 3, "sample": 2, "rounds": 1, "partition": "iid", "batch_size": 8, "model": "mlp:6"}
    return fedrecall.run(dataset=given, augmentation="none", backend="serial", **made | settings)


def test_what_holds_examples_is_shown_in_a_line():
    given = dataset(IMAGES)
    assert repr(given) == "<Dataset mine: 40 training and 20 test examples [3, 8, 8] of 3 classes>"
    assert repr(given.train) == "<Split of 40 examples [3, 8, 8]>"
    made = Federation(given, [np.arange(10), np.arange(10, 24)], Augmentation())
    assert repr(made) == "<Federation on mine: 2 clients with 10 to 14 examples each>"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("algorithm", ["fedavg", "sfedkd"])
def test_labels_are_whole_numbers_of_any_kind(dtype, algorithm):
    expected = play(dataset(TABLE), algorithm=algorithm)
    found = play(dataset(TABLE, Y.to(dtype)), algorithm=algorithm)
    assert found.federation.dataset.train.y.dtype == found.federation.dataset.test.y.dtype == torch.int64
    assert found.history[0]["loss"] == expected.history[0]["loss"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            dataset((TABLE * 9).int()),
            r"training split's examples are int32 of shape \[40, 4\]: .* as float32",
        ),
        (dataset(IMAGES.long()), r"examples are int64 of shape \[40, 3, 8, 8\]: give images as uint8"),
        (dataset(IMAGES > 9), r"examples are bool of shape \[40, 3, 8, 8\]: give images as uint8"),
        (
            dataset(IMAGES[:, 0]),
            r"examples are uint8 of shape \[40, 8, 8\]: give images as uint8 of \[n, chan",
        ),
        (
            dataset(IMAGES / 255),
            r"float32 of shape \[40, 3, 8, 8\], but the means are \[3\] .*: give one of all, or 8, one for",
        ),
        (
            dataset(IMAGES, channels=2),
            r"means are \[2\] and the deviations \[2\]: give one a channel, 3 in all",
        ),
        (
            dataset(TABLE.view(60, 2, 2), channels=3),
            "give one of all, or 2, one for each place along the last",
        ),
        (
            dataset(TABLE, test=TABLE[40:, :3]),
            r"test split's examples are \[3\], but those for training \[4\]",
        ),
        (dataset(TABLE, test=TABLE[41:]), "test split has 19 examples and 20 labels"),
        (dataset(TABLE, Y + 1), "labels run from 1 to 3, but there are 3 classes: number them from 0 to 2"),
    ],
)
def test_examples_that_are_none_are_refused_in_a_sentence(given, said):
    with pytest.raises(UserError, match=said):
        play(given)


@pytest.mark.parametrize("y", [Y.float(), Y[:, None], Y > 1])
def test_labels_that_are_none_are_refused_in_a_sentence(y):
    with pytest.raises(UserError, match="labels"):
        play(dataset(TABLE, y))


def test_what_was_taken_before_is_taken():
    for given in (
        dataset(TABLE.double()),
        dataset(IMAGES),
        dataset(IMAGES, channels=1),
        dataset(IMAGES[:, :1]),
    ):
        play(given)
    play(dataset(IMAGES[:, :1] / 255))
    for floats in (IMAGES / 255, TABLE.view(60, 2, 2), TABLE.view(60, 1, 2, 1, 2)):
        play(dataset(floats, channels=1))
        play(dataset(floats, channels=floats.shape[-1]))


def test_what_the_server_keeps_is_drawn_by_the_seed_and_may_be_all_of_a_class():
    labels = np.repeat(np.arange(3), 12)
    found = {}
    for seed in range(4):
        rest, kept = set_apart(labels, 3, 4, seed)
        assert np.bincount(labels[kept]).tolist() == [4, 4, 4]
        assert sorted([*rest, *kept]) == list(range(36))
        found[seed] = tuple(kept)
    assert len(set(found.values())) == 4
    assert set_apart(labels, 3, 12, 0)[1].tolist() == list(range(36))
    with pytest.raises(UserError, match="class 0 has 12"):
        set_apart(labels, 3, 13, 0)
