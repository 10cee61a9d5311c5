"""A data set from arrays: the same as from files of the same content, whatever their layout and library."""

import re

import numpy as np
import pytest
import torch

import fedrecall
from fedrecall import from_arrays
from fedrecall.data.datasets import load
from fedrecall.data.store import export, statistics
from fedrecall.errors import UserError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (30, 6, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)
TABLE = RNG.normal(3, 7, (30, 4))
SIGNALS = RNG.normal(-40, 90, (30, 2, 12))
Y = np.arange(30) % 3


@pytest.mark.parametrize(
    ("x", "want"),
    [
        (GREY, GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (torch.from_numpy(GREY), GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        (torch.from_numpy(COLOUR.transpose(0, 3, 1, 2).copy()), COLOUR.transpose(0, 3, 1, 2)),
    ],
)
def test_images_of_any_layout(x, want):
    d = from_arrays(x[:20], Y[:20], x[20:], Y[20:])
    assert np.array_equal(d.train.x, want[:20])
    assert np.array_equal(d.test.x, want[20:])
    assert (d.train.y.tolist(), d.test.y.tolist()) == (Y[:20].tolist(), Y[20:].tolist())
    mean, std = statistics(d.train.x)
    assert torch.equal(d.mean, mean)
    assert torch.equal(d.std, std)


VOLUMES = RNG.normal(1, 2, (30, 2, 4, 6, 5))
FLOATS = COLOUR / 50 - 2


@pytest.mark.parametrize(
    ("x", "want"),
    [
        (SIGNALS, SIGNALS),
        (torch.from_numpy(SIGNALS), SIGNALS),
        (VOLUMES, VOLUMES),
        (FLOATS, FLOATS.transpose(0, 3, 1, 2)),
        (FLOATS.transpose(0, 3, 1, 2), FLOATS.transpose(0, 3, 1, 2)),
    ],
)
def test_signals_volumes_and_images_of_floats_stay_what_they_are(x, want):
    d = from_arrays(x[:20], Y[:20], x[20:], Y[20:])
    assert torch.equal(d.train.x, torch.tensor(want[:20], dtype=torch.float32))
    assert torch.equal(d.test.x, torch.tensor(want[20:], dtype=torch.float32))
    assert (d.mean.tolist(), d.std.tolist()) == (
        pytest.approx([want[:20].mean()], rel=1e-5),
        pytest.approx([want[:20].std()], rel=1e-5),
    )
    plain = from_arrays(x, Y, standardise=False)
    assert (plain.mean.tolist(), plain.std.tolist(), len(plain.test)) == ([0], [1], 6)
    still = from_arrays(np.full_like(want, 0.1), Y)
    assert (still.mean.tolist(), still.std.tolist()) == (pytest.approx([0.1]), [1])


@pytest.mark.parametrize("x", [GREY, COLOUR, TABLE, SIGNALS, VOLUMES])
@pytest.mark.parametrize("given", [{}, {"origin": Y, "origin_test": []}, {"class_names": ["a", "b", "c"]}])
def test_an_empty_test_split_is_meant(x, given, tmp_path):
    d = from_arrays(x, Y.tolist(), x[:0], [], **given)
    assert torch.equal(d.train.x, from_arrays(x, Y, x[:3], Y[:3]).train.x)
    assert (d.train.y.tolist(), d.test.x.shape, d.test.y.tolist()) == (Y.tolist(), (0, *d.shape), [])
    export(d, tmp_path)
    assert load(f"folder:{tmp_path}").test.x.shape == d.test.x.shape
    small = {"clients": 2, "partition": "iid", "rounds": 1, "model": "mlp:4", "backend": "serial"}
    with pytest.raises(UserError, match="arrays has no test examples, and validation = 0 holds none out"):
        fedrecall.run(tmp_path / "run", dataset=d, **small)
    held = fedrecall.run(tmp_path / "run", dataset=d, validation=0.5, **small).federation
    assert (sum(map(len, held.parts)), len(held.dataset.test)) == (15, 15)


@pytest.mark.parametrize("shape", [(30, 5, 8, 3), (30, 5, 8, 1), (30, 3, 8, 1), (30, 1, 8, 3), (30, 5, 8, 2)])
def test_of_floats_the_last_axis_is_channels_where_it_alone_may_be(shape):
    x = RNG.normal(size=shape).astype(np.float32)
    last = shape[3] in (1, 3) and shape[1] not in (1, 3)
    made = from_arrays(x, Y, x[:3], Y[:3]).train.x
    assert torch.equal(made, torch.from_numpy(x).movedim(3, 1) if last else torch.from_numpy(x))


@pytest.mark.parametrize("algorithm", ["fedntd", "private:fedavg,noise=0"])
def test_signals_are_trained_on_moved_and_scaled_and_predicted_as_they_are(algorithm, tmp_path):
    x = SIGNALS + 60 * Y[:, None, None]
    made = {"clients": 3, "sample": 3, "rounds": 2, "partition": "iid", "batch_size": 8, "model": "mlp:8"}
    run = fedrecall.run(dataset=from_arrays(x, Y), algorithm=algorithm, out=tmp_path / "run", **made)
    d = run.federation.dataset
    moved = from_arrays((x - d.mean.item()) / d.std.item(), Y, standardise=False)
    again = fedrecall.run(dataset=moved, algorithm=algorithm, **made)
    assert run.history[-1]["loss"] == pytest.approx(again.history[-1]["loss"], rel=1e-4)
    said = fedrecall.trained(tmp_path / "run").predict(d.test.x)
    assert np.mean([int(s) == y for s, y in zip(said, d.test.y, strict=True)]) == run.accuracy
    export(d, tmp_path / "export")
    back = load(f"folder:{tmp_path / 'export'}")
    assert torch.equal(back.train.x, d.train.x)
    assert torch.equal(back.mean, d.mean)


@pytest.mark.parametrize("kind", [np.uint16, np.int16, np.int64, np.uint64, torch.int32, list])
@pytest.mark.parametrize("x", [GREY, COLOUR, COLOUR.transpose(0, 3, 1, 2)])
def test_images_are_the_same_in_whatever_holds_whole_numbers(x, kind):
    held = (
        x.tolist()
        if kind is list
        else x.astype(kind)
        if isinstance(kind, type)
        else torch.tensor(x, dtype=kind)
    )
    found, want = (from_arrays(images, Y) for images in (held, x))
    assert found.train.x.dtype == torch.uint8
    for a, b in ((found.train.x, want.train.x), (found.test.x, want.test.x), (found.mean, want.mean)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda x: x.tolist()])
@pytest.mark.parametrize(
    "labels", [Y, Y.tolist(), torch.from_numpy(Y), np.array([f"c{k}" for k in Y], object)]
)
def test_tables_are_what_a_file_of_theirs_is(tmp_path, monkeypatch, kind, labels):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    found = from_arrays(kind(TABLE), labels)
    names = [str(v) for v in (labels.tolist() if hasattr(labels, "tolist") else labels)]
    lines = [f"{','.join(map(repr, row))},{name}" for row, name in zip(TABLE.tolist(), names, strict=True)]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/all.csv").write_text("\n".join(["a,b,c,d,label", *lines]))
    file = load(f"folder:{tmp_path / 'mine'}")
    for a, b in ((found.train, file.train), (found.test, file.test)):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    assert found.class_names == file.class_names
    assert found.columns == file.columns
    raw = from_arrays(kind(TABLE[:20]), labels[:20], kind(TABLE[20:]), labels[20:], standardise=False)
    assert np.array_equal(raw.train.x, TABLE[:20].astype(np.float32))


def test_whole_numbers_are_in_their_order_whatever_holds_them():
    held = np.array([8 + k for k in range(3)] * 10, object)
    assert from_arrays(TABLE, held).class_names == ("8", "9", "10")


def test_origins_and_what_stays_together():
    site, patient = np.array(["south", "north"])[Y % 2], np.arange(30) // 3
    d = from_arrays(TABLE, Y, origin=site, undivided=patient, standardise=False)
    assert d.origins == ("north", "south")
    place = {float(np.float32(row[0])): i for i, row in enumerate(TABLE)}
    train, test = ([place[float(v)] for v in split.x[:, 0]] for split in (d.train, d.test))
    assert [d.origins[o] for o in d.train.origin] == [site[i] for i in train]
    assert not {patient[i] for i in train} & {patient[i] for i in test}
    assert [d.origins[o] for o in d.test.origin] == [site[i] for i in test]
    assert d.undivided
    assert not from_arrays(TABLE, Y, origin=site).undivided
    numbered = from_arrays(TABLE, Y, origin=torch.arange(30) // 10 + 8)
    assert numbered.origins == ("8", "9", "10")
    run = fedrecall.run(
        dataset=d, partition="natural", clients=2, sample=2, rounds=1, batch_size=8, model="mlp:6",
        augmentation="none", backend="serial",
    )  # fmt: skip
    assert run.federation.origins == [["north"], ["south"]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((GREY, Y, GREY), "give x_test and y_test, or neither"),
        ((GREY.astype(int) - 1, Y), "training images have values from -1 to 254: give whole numbers from 0"),
        ((GREY, Y, GREY.astype(np.uint16) + 9, Y), "the test images have values from 9 to 264: give whole"),
        ((GREY > 9, Y), r"are bool of shape \[30, 6, 5\]; give images as whole numbers"),
        ((RNG.integers(0, 9, (30, 4, 6, 5), dtype=np.uint8), Y), "no axis is that of 1 or 3 channels"),
        ((TABLE, Y[:29]), r"30 training examples have labels of \[29\]: give one of each"),
        ((TABLE, Y / 2), r"labels are float64; give whole numbers or names\.$"),
        ((TABLE, Y * 1j), r"labels are complex128; give whole numbers or names\.$"),
        (
            (TABLE, None),
            r"no labels: give from_arrays\(x, y\), .*from_arrays\(\*ds\.tensors\) of a TensorDataset",
        ),
        ((torch.utils.data.TensorDataset(torch.from_numpy(TABLE)),), "there are no labels: give"),
        ((TABLE, np.stack([Y, Y], 1)), r"30 training examples have labels of \[30, 2\]: give one of each\.$"),
        ((TABLE, np.array(["a", None, "b"] * 10, object)), "training example 1 has no 'label'"),
        ((TABLE, np.array(["a", float("nan"), "b"] * 10, object)), "training example 1 has no 'label'"),
        (([[1, 2], [3]], [0, 1]), "what is given is no array"),
        ((np.where(TABLE > 9, np.nan, TABLE), Y), "numbers that are not finite"),
        (
            (TABLE, Y, TABLE[:, :3], Y),
            r"test example is float64 of shape \[3\], a training example float64 of \[4\]",
        ),
        ((TABLE, Y, TABLE, Y + 1), "has the label 3, which no training example has"),
        ((TABLE[:0], Y[:0]), "has no training examples"),
        (
            (TABLE, Y, GREY, Y),
            r"test example is uint8 of shape \[6, 5\], a training example float64 of \[4\]",
        ),
        ((GREY, Y, GREY[:, :5], Y), "is 5x5 pixels and others are 5x6"),
        (
            (SIGNALS, Y, SIGNALS[..., :9], Y),
            r"test example is float32 of shape \[2, 9\], a training example fl",
        ),
        (
            (SIGNALS, Y, SIGNALS > 0, Y),
            r"bool of shape \[30, 2, 12\]; give images as whole numbers .* signals",
        ),
        ((GREY, Y, GREY / 255, Y), "a test example is float32 of shape .*, a training example uint8"),
        ((SIGNALS * 1e39, Y), "examples have numbers that are not finite"),
    ],
)
def test_what_is_no_data_set_is_one_sentence(given, said):
    with pytest.raises(UserError, match=said):
        from_arrays(*given)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_labels_in_another_form_are_told_how_they_become_some(kind):
    expected = from_arrays(TABLE, Y % 2).train.y
    for held in (Y % 2 * 1.0, Y % 2 == 1, (Y % 2)[:, None], (Y % 2)[None]):
        y = kind(held)
        told, cured = (
            ("asarray(y).astype(int)", np.asarray(y).astype(int))
            if held.ndim == 1
            else ("ravel(y)", np.ravel(y))
        )
        with pytest.raises(UserError, match=re.escape(f", as numpy.{told} has them.")):
            from_arrays(TABLE, y)
        assert torch.equal(from_arrays(TABLE, cured).train.y, expected)
    with pytest.raises(UserError, match=r"test examples have origin_test .* as numpy\.ravel\(origin_test\)"):
        from_arrays(TABLE, Y, TABLE, Y, origin_test=Y[:, None])
    with pytest.raises(UserError, match=r"test labels are float64.* as numpy\.asarray\(y_test\)\.astype"):
        from_arrays(TABLE, Y, TABLE, Y * 1.0)


def test_test_examples_may_say_where_they_are_from():
    site = np.array(["south", "north"])[Y % 2]
    d = from_arrays(TABLE, Y, TABLE[:4], Y[:4], origin=site, origin_test=["west", "south", "east", "south"])
    assert d.origins == ("north", "south", "east", "west")
    assert [d.origins[o] for o in d.test.origin] == ["west", "south", "east", "south"]
    assert [d.origins[o] for o in d.train.origin] == site.tolist()
    assert from_arrays(TABLE, Y, TABLE[:4], Y[:4], origin=site).test.origin is None
    alone = from_arrays(TABLE, Y, TABLE[:4], Y[:4], origin_test=[1, 2, 1, 2])
    assert (alone.train.origin, alone.test.origin.tolist()) == (None, [0, 1, 0, 1])


def test_origins_are_as_many_as_examples():
    with pytest.raises(UserError, match=r"have origin of \[29\]"):
        from_arrays(TABLE, Y, origin=Y[:29])
    with pytest.raises(UserError, match=r"4 test examples have origin_test of \[3\]"):
        from_arrays(TABLE, Y, TABLE[:4], Y[:4], origin_test=[1, 2, 3])
    with pytest.raises(UserError, match=r"origin_test is of x_test.*leave it out"):
        from_arrays(TABLE, Y, origin=Y, origin_test=[1, 2, 3])


@pytest.mark.parametrize("name", ["origin", "undivided"])
def test_a_parameter_that_would_do_nothing_is_refused(name):
    with pytest.raises(UserError, match=f"30 training examples have {name} 'patient'"):
        from_arrays(TABLE, Y, **{name: "patient"})  # a column's name, as of a folder
    for missing in (None, float("nan"), "", " "):
        column = np.array([missing, *"abc" * 10][:30], object)
        with pytest.raises(UserError, match=f"training example 0 has no {name!r}"):
            from_arrays(TABLE, Y, **{name: column})
    with pytest.raises(UserError, match="x_test has been: leave one out"):
        from_arrays(TABLE, Y, TABLE, Y, undivided=Y)
    for share in (-1, 1, 1.5):
        with pytest.raises(UserError, match=r"held_out = .* must be in"):
            from_arrays(TABLE, Y, held_out=share)


def test_classes_have_the_names_that_are_given_in_their_order():
    numbered = from_arrays(TABLE, Y, class_names=["cat", "ape", "dog"])
    named = from_arrays(TABLE, np.array(["cat", "ape", "dog"])[Y], class_names=("cat", "ape", "dog"))
    for d in (numbered, named):
        assert d.class_names == ("cat", "ape", "dog")
        assert torch.equal(d.train.y, from_arrays(TABLE, Y).train.y)
    assert from_arrays(TABLE, Y, TABLE, Y, class_names=np.array(["a", "b", "c", "d"])).classes == 4
    run = fedrecall.run(dataset=numbered, clients=2, sample=2, rounds=1, model="mlp:6", backend="serial")
    assert set(run.trained.predict(TABLE)) <= {"cat", "ape", "dog"}


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        (Y, ["a", "b"], "has the label 2, which is not one of the 2 classes 0 to 1"),
        (
            Y,
            ["a", "b", "a"],
            r"class_names = \['a', 'b', 'a'\]: give a list of the classes' names, each once",
        ),
        (Y, ["a", "b", ""], "give a list of the classes' names"),
        (Y, "abc", "give a list of the classes' names"),
        (Y, {0: "a", 1: "b", 2: "c"}, "give a list of the classes' names"),
        (Y, [1, 2, 3], "give a list of the classes' names"),
        (Y, 3, "give a list of the classes' names"),
        (
            np.array(["a", "b", "c"])[Y],
            ["a", "b"],
            "example 2 has the label 'c', which is not one of class_na",
        ),
    ],
)
def test_names_of_classes_that_do_not_fit_are_told(labels, names, said):
    with pytest.raises(UserError, match=said):
        from_arrays(TABLE, labels, class_names=names)
