"""Data sets: every recipe on a small copy of the hub's layout, the cache, a user's folders, the errors."""

import csv
import dataclasses
import errno
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fedrecall.data import datasets, folders, hub, store
from fedrecall.data.datasets import DATASETS, Dataset, Split, available, export, load, load_export
from fedrecall.data.federation import sound
from fedrecall.data.images import decode
from fedrecall.data.store import fixed_statistics, statistics
from fedrecall.errors import UserError
from fedrecall.specs import plain


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No network, and no data or cache but the test's own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "default-cache"))
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)


def png(array, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


def picture(seed, height=5, width=6, channels=3):
    shape = (height, width, 3) if channels == 3 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


# A copy of the hub's layout for each of its data sets.

LAYOUTS = {
    # name: (folder, column of images, of labels, splits, size, channels)
    "mnist": ("ylecun/mnist/mnist", "image", "label", ("train", "test"), 28, 1),
    "fashion_mnist": (
        "zalando-datasets/fashion_mnist/fashion_mnist",
        "image",
        "label",
        ("train", "test"),
        28,
        1,
    ),
    "cifar10": ("uoft-cs/cifar10/plain_text", "img", "label", ("train", "test"), 32, 3),
    "cifar100": ("uoft-cs/cifar100/cifar100", "img", "fine_label", ("train", "test"), 32, 3),
    "cinic10": ("flwrlabs/cinic10/data", "image", "label", ("train", "validation", "test"), 32, 3),
    "tiny_imagenet": ("zh-plus/tiny-imagenet/data", "image", "label", ("train", "valid"), 64, 3),
    "ham10000": ("marmal88/skin_cancer/data", "image", "dx", ("train", "validation", "test"), 90, 3),
}


def mirror(root, name, train=8, rest=4, names=("ant", "bee", "cow")):
    """A few images in the hub's layout; returns what each split holds."""
    import datasets

    place, image, label, splits, size, channels = LAYOUTS[name]
    held = {}
    for s, split in enumerate(splits):
        count = train if split == "train" else rest
        pictures = [picture(100 * s + i, size, size, channels) for i in range(count)]
        if name == "tiny_imagenet":
            pictures[0] = picture(100 * s, size, size, 1)  # some of its images are grey
        columns = {image: [{"bytes": png(p), "path": None} for p in pictures]}
        features = {image: datasets.Image()}
        if name == "ham10000":
            columns["dx"] = [("nevus", "melanoma")[i % 2] for i in range(count)]
            columns["image_id"] = [f"{split}-{i}" for i in range(count)]
            if split == "train":
                columns["image_id"][-2:] = ["test-0", "train-0"]  # as on the hub: in two splits, or twice
            features |= {"dx": datasets.Value("string"), "image_id": datasets.Value("string")}
        else:
            columns[label] = [i % len(names) for i in range(count)]
            features[label] = datasets.ClassLabel(names=list(names))
        if name == "cifar100":
            columns["coarse_label"] = [0] * count
            features["coarse_label"] = datasets.ClassLabel(names=["all"])
        folder = root / place
        folder.mkdir(parents=True, exist_ok=True)
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        halves = 2 if name == "cifar10" and split == "train" else 1
        for part in range(halves):
            shard = table.shard(halves, part, contiguous=True)
            shard.to_parquet(str(folder / f"{split}-{part:05d}-of-{halves:05d}.parquet"))
        held[split] = pictures
    return held


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_recipe_reads_the_hubs_layout(tmp_path, name):
    held = mirror(tmp_path / "data", name)
    _, _, _, _, size, channels = LAYOUTS[name]
    d = load(name, root=tmp_path / "data", cache=tmp_path / "cache")
    assert d.name == name
    side = 64 if name == "ham10000" else size
    assert d.shape == (channels, side, side)
    assert d.train.x.dtype == d.test.x.dtype == torch.uint8
    assert d.train.y.dtype == torch.int64
    if name == "ham10000":
        assert d.class_names == ("melanoma", "nevus")
        assert len(d.train) == 6  # without the one of the test split and the one that is there twice
        assert d.train.y.tolist() == [1, 0] * 3
        assert len(d.test) == 4
        return
    assert d.class_names == ("ant", "bee", "cow")
    test = {"tiny_imagenet": "valid"}.get(name, "test")
    for split, pictures in ((d.train, held["train"]), (d.test, held[test])):
        assert split.y.tolist() == [i % 3 for i in range(len(pictures))]
        for x, p in zip(split.x, pictures, strict=True):
            want = np.broadcast_to(p[None], (channels, size, size)) if p.ndim == 2 else p.transpose(2, 0, 1)
            np.testing.assert_array_equal(x.numpy(), want)
    pixels = d.train.x.double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(d.mean, pixels.mean(1).float())
    torch.testing.assert_close(d.std, pixels.std(1, correction=0).float())


@pytest.mark.parametrize("place", ["cifar10", "uoft-cs/cifar10", "uoft-cs/cifar10/data"])
def test_a_copy_may_lie_in_several_places(tmp_path, place):
    mirror(tmp_path / "made", "cifar10")
    (tmp_path / "root" / place).parent.mkdir(parents=True)
    (tmp_path / "made/uoft-cs/cifar10/plain_text").rename(tmp_path / "root" / place)
    assert len(load("cifar10", root=tmp_path / "root").train) == 8


# The cache.


def cached(folder):
    return sorted(folder.glob("*.safetensors"))


def refuse(*_):
    raise AssertionError("decoded again")


def test_decoded_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    root, cache = tmp_path / "data", tmp_path / "cache"
    mirror(root, "mnist")
    first = load("mnist", root, cache)
    with monkeypatch.context() as patch:
        patch.setattr(hub, "hugging_face", refuse)
        second = load("mnist", root, cache)
        assert torch.equal(first.train.x, second.train.x)
        assert second.class_names == first.class_names
    file = next((root / "ylecun/mnist").rglob("train*.parquet"))
    labels = pyarrow.parquet.read_table(file)
    pyarrow.parquet.write_table(labels.slice(1), file)
    with monkeypatch.context() as patch:
        patch.setattr(hub, "hugging_face", refuse)
        with pytest.raises(AssertionError, match="again"):
            load("mnist", root, cache)
    (stale,) = cached(cache)
    os.utime(stale, (1, 1))  # nobody has used it for long
    assert len(load("mnist", root, cache).train) == 7
    assert len(cached(cache)) == 1
    assert not stale.exists()


def test_copies_of_the_same_files_share_what_was_decoded(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    mirror(tmp_path / "data", "mnist")
    first = load("mnist", tmp_path / "data", cache)
    (file,) = cached(cache)
    inode = file.stat().st_ino
    for job in ("a", "b", "a"):
        shutil.copytree(tmp_path / "data", tmp_path / job, copy_function=shutil.copyfile, dirs_exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(hub, "hugging_face", refuse)
            found = load("mnist", tmp_path / job, cache)
        assert torch.equal(found.train.x, first.train.x)
        assert [path.stat().st_ino for path in cached(cache)] == [inode]  # no run loses what it has mapped


def test_one_folder_with_two_settings_is_decoded_once_for_each(tmp_path, monkeypatch):
    folder, cache = image_folder(tmp_path / "mine"), tmp_path / "cache"
    specs = [f"folder:{folder},size={size}" for size in (4, 8)]
    for spec in specs:
        load(spec, cache=cache)
    monkeypatch.setattr(datasets, "_read", refuse)
    assert [load(spec, cache=cache).shape for spec in specs * 2] == [(3, 4, 4), (3, 8, 8)] * 2


def test_a_cache_that_is_in_use_stays(tmp_path):
    folder, cache = image_folder(tmp_path / "mine"), tmp_path / "cache"
    load(f"folder:{folder},size=4", cache=cache)
    (file,) = cached(cache)
    os.utime(file, (1, 1))
    load(f"folder:{folder},size=4", cache=cache)  # opened again, it is in use again
    load(f"folder:{folder},size=8", cache=cache)
    assert file.exists()


def test_what_killed_processes_left_among_the_caches_goes_in_time(tmp_path):
    mirror(tmp_path / "data", "mnist")
    cache = tmp_path / "cache"
    cache.mkdir()
    left, being_written = cache / ".mnist-a.safetensors.17.tmp", cache / ".mnist-b.safetensors.18.tmp"
    for path in (left, being_written):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    load("mnist", tmp_path / "data", cache)
    assert not left.exists()
    assert being_written.exists()


@pytest.mark.parametrize("damage", [b"", b"garbage", "cut", "labels", "one pixel"])
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    root, cache = tmp_path / "data", tmp_path / "cache"
    mirror(root, "mnist")
    first = load("mnist", root, cache)
    (file,) = cached(cache)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "labels":
        train = store.Split(first.train.x.clone(), first.train.y + 7)
        store.save(file, Dataset("mnist", first.class_names, train, first.test, first.mean, first.std))
    elif damage == "one pixel":
        content, pixels = bytearray(file.read_bytes()), first.test.x.numpy().tobytes()
        content[content.rindex(pixels) + len(pixels) - 3] ^= 4
        file.write_bytes(content)
    else:
        file.write_bytes(damage)
    assert store.load(file) is None
    assert torch.equal(load("mnist", root, cache).train.y, torch.arange(8) % 3)
    assert store.load(file) is not None


@pytest.fixture
def online(monkeypatch, tmp_path):
    """A hub of its own, whose MNIST has nine examples; called with False it is out of reach."""
    import datasets

    mirror(tmp_path / "hub", "mnist", train=9)
    really = datasets.load_dataset

    def sent(source, cache_dir, **how):
        place = source if Path(source).is_absolute() else tmp_path / "hub" / source
        return really(str(place), cache_dir=cache_dir or str(tmp_path / "scratch"), **how)

    def switch(on):
        def reach(_):
            if not on:
                raise ConnectionError("no route")

        monkeypatch.setattr(hub, "reach", reach)

    monkeypatch.setattr(datasets, "load_dataset", sent)
    switch(True)
    return switch


def test_only_what_the_hub_sent_opens_without_a_root_and_without_the_hub(tmp_path, online):
    root, cache = tmp_path / "data", tmp_path / "cache"
    mirror(root, "mnist")
    assert len(load("mnist", root, cache).train) == 8
    online(False)
    with pytest.raises(UserError, match="mnist cannot be had: no local root is named, none is cached from"):
        load("mnist", cache=cache)  # a local copy's cache is not the hub's
    assert not {a.name: a.here for a in available(cache=cache)}["mnist"]
    online(True)
    assert len(load("mnist", cache=cache).train) == 9
    online(False)
    assert len(load("mnist", root, cache).train) == 8  # decoded anew, beside the hub's
    assert len(load("mnist", cache=cache).train) == 9
    assert {a.name: a.here for a in available(cache=cache)}["mnist"]


def own_images(**says):
    """Somebody's own class of images, as its file has it now."""
    settings = {"repository": "ylecun/mnist", "channels": 1, "__module__": "mine"} | says
    return dataclasses.dataclass(frozen=True)(type("Mine", (datasets.HubImages,), settings))()


@pytest.mark.parametrize("from_hub", [False, True])
def test_a_class_of_ones_own_that_says_something_else_is_read_anew(tmp_path, monkeypatch, online, from_hub):
    mirror(tmp_path / "data", "mnist")
    mirror(tmp_path / "hub", "fashion_mnist", train=7)
    place = None if from_hub else tmp_path / "data", tmp_path / "cache"
    assert load(own_images(), *place).shape == (1, 28, 28)
    assert load(own_images(size=14), *place).shape == (1, 14, 14)
    assert load(own_images(channels=3), *place).shape == (3, 28, 28)
    if from_hub:
        assert len(load(own_images(repository="zalando-datasets/fashion_mnist"), *place).train) == 7
    with monkeypatch.context() as patch:
        patch.setattr(hub, "hugging_face", refuse)
        last = own_images(repository="zalando-datasets/fashion_mnist") if from_hub else own_images(channels=3)
        load(last, *place)
        if from_hub:  # what it sent may not be had again
            assert load(own_images(), *place).shape == (1, 28, 28)


def test_shipped_data_sets_are_cached_as_they_were(tmp_path):
    mirror(tmp_path / "data", "mnist")
    recipe, folder = datasets.MNIST(), tmp_path / "data" / "ylecun" / "mnist"
    assert recipe.cached("mnist", None) == ("mnist", "hub")
    files = folders.fingerprint_of(folder, folders.walk(folder))
    assert recipe.cached("mnist", tmp_path / "data") == ("mnist", datasets._digest(files))


@pytest.mark.parametrize("named", ["option", "environment"])
@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_nothing_stands_in_for_the_root_that_is_named(tmp_path, monkeypatch, online, named, place):
    cache = tmp_path / "cache"
    mirror(tmp_path / "data", "mnist")
    (tmp_path / "empty").mkdir()
    load("mnist", cache=cache)
    load("mnist", tmp_path / "data", cache)
    if named == "environment":
        monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path / place))
    root = tmp_path / place if named == "option" else None
    lacking = "folder" if place == "nowhere" else "copy in"
    with pytest.raises(UserError, match=f"mnist cannot be had: there is no {lacking} /") as raised:
        load("mnist", root, cache)
    assert f"{tmp_path / place}/ylecun/mnist" in str(raised.value)
    assert not {a.name: a.here for a in available(root, cache)}["mnist"]


def test_a_cached_data_set_opens_without_the_library_that_decoded_it(tmp_path):
    root, cache = tmp_path / "data", tmp_path / "cache"
    mirror(root, "mnist")
    load("mnist", root, cache)
    program = (
        "import sys; sys.modules['datasets'] = sys.modules['PIL'] = sys.modules['pyarrow'] = None\n"
        "from fedrecall.data.datasets import load\n"
        f"print(len(load('mnist', {str(root)!r}, {str(cache)!r}).train))\n"
        f"try: load('cifar10', None, {str(cache)!r})\n"
        "except ValueError as error: print(error)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.startswith("8\n")
    assert "needs the package 'datasets'" in done.stdout


def test_the_cache_is_mapped_and_writing_to_it_changes_no_file(tmp_path):
    cache = tmp_path / "cache.safetensors"
    store.save(cache, load("synthetic:4,40,8,3,16"))
    before = cache.read_bytes()
    d = store.load(cache)
    assert str(cache) in Path("/proc/self/maps").read_text() if sys.platform == "linux" else True
    d.train.x.zero_()
    assert cache.read_bytes() == before


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    mirror(tmp_path / "data", "mnist")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="FEDRECALL_CACHE"):
        load("mnist", tmp_path / "data", tmp_path / "file")


# In parts.


@pytest.mark.parametrize("spec", ["synthetic:3,50,20,3,8", "digits"])
def test_exported_in_parts_and_joined(tmp_path, spec):
    d = load(spec)
    written = export(d, tmp_path / "parts", part_bytes=4096)
    assert len(written) > 5
    assert all(path.stat().st_size <= 4096 for path in written if path.suffix == ".npz")
    again = load_export(tmp_path / "parts")
    assert (again.name, again.class_names) == (d.name, d.class_names)
    pairs = [(d.train.x, again.train.x), (d.train.y, again.train.y), (d.test.x, again.test.x)]
    pairs += [(d.test.y, again.test.y), (d.mean, again.mean), (d.std, again.std)]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    assert torch.equal(load(f"folder:{tmp_path / 'parts'}").train.x, d.train.x)


def test_no_part_is_too_large_even_of_what_does_not_compress(tmp_path):
    d = load("synthetic:3,50,20,3,8")
    noise = torch.randint(0, 256, d.train.x.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    d = dataclasses.replace(d, train=dataclasses.replace(d.train, x=noise))
    for size in (2048, 4096, 5000):
        written = export(d, tmp_path / str(size), part_bytes=size)
        assert max(path.stat().st_size for path in written if path.suffix == ".npz") <= size


def test_statistics_are_of_all_images_whatever_their_number():
    x = torch.randint(0, 256, (9000, 3, 1, 2), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    x[4095:4097], x[8191:8193], x[-1], x[:, 2] = 255, 0, 255, 51
    mean, std = statistics(x)
    scaled = x.double() / 255
    torch.testing.assert_close(mean.double(), scaled.mean((0, 2, 3)), rtol=1e-6, atol=0)
    right = scaled.std((0, 2, 3), correction=0)
    right[2] = 1  # never varies
    torch.testing.assert_close(std.double(), right, rtol=1e-6, atol=0)


def test_fixed_statistics_map_pixels_to_one_around_nought_and_leave_tables_alone():
    assert [t.tolist() for t in fixed_statistics((3, 8, 8))] == [[0.5] * 3, [0.5] * 3]
    for shape, mapped in ((3, 8, 8), False), ((4,), True), ((4,), False):
        assert [t.tolist() for t in fixed_statistics(shape, mapped)] == [[0.0] * shape[0], [1.0] * shape[0]]
    for shape in (12, 30), (2, 3, 4, 5), (1, 8, 8):  # signals, volumes, images of any numbers
        assert [t.tolist() for t in fixed_statistics(shape, floats=True)] == [[0.0], [1.0]]


@pytest.mark.parametrize("kind", [torch.uint8, torch.float64, torch.float16])
def test_whatever_may_be_trained_on_is_exported(kind, tmp_path):
    """One mean of all channels, examples in another precision, labels of another type."""
    whole = torch.arange(10 * 3 * 4 * 4).reshape(10, 3, 4, 4) % 250
    splits = [Split(x.to(kind), torch.arange(len(x), dtype=torch.int32) % 2) for x in (whole[:8], whole[8:])]
    given = sound(Dataset("own", ("a", "b"), *splits, torch.tensor([0.4]), torch.tensor([0.2])))
    export(given, tmp_path)
    again = load_export(tmp_path)
    for mine, other in ((again.train, given.train), (again.test, given.test)):
        assert torch.equal(mine.x.double(), other.x.double())
        assert torch.equal(mine.y, other.y)
    channels = 3 if kind == torch.uint8 else 1
    assert torch.equal(again.mean, torch.full((channels,), 0.4))
    assert torch.equal(again.std, torch.full((channels,), 0.2))


def test_an_export_under_the_root_is_found_by_name(tmp_path):
    mirror(tmp_path / "data", "cifar10")
    d = load("cifar10", tmp_path / "data", tmp_path / "cache")
    export(d, tmp_path / "parts" / "cifar10")
    again = load("cifar10", tmp_path / "parts", tmp_path / "other-cache")
    assert torch.equal(d.test.x, again.test.x)


def test_a_damaged_export_is_refused(tmp_path):
    folder = tmp_path / "parts"
    export(load("synthetic:3,30,9"), folder)
    index = json.loads((folder / "dataset.json").read_text())
    part = folder / "train.x-0000.npz"
    whole = part.read_bytes()
    for content in (b"", whole[:-50], b"PK" + whole[10:]):
        part.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            load_export(folder)
    np.savez(part, array=np.array([{"code": 1}], dtype=object))  # would need unpickling
    with pytest.raises(UserError, match="cannot be read"):
        load_export(folder)
    part.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        load_export(folder)
    for change in ({"format": "x"}, {"parts": [["train.x", "../x"]]}, {"class_names": 3}, {"mean": [1, 2]}):
        part.write_bytes(whole)
        (folder / "dataset.json").write_text(json.dumps(index | change))
        with pytest.raises(UserError, match="cannot be read"):
            load_export(folder)
    (folder / "dataset.json").write_text("{")
    with pytest.raises(UserError, match="JSON"):
        load_export(folder)
    with pytest.raises(UserError, match="cannot hold one example"):
        export(load("synthetic"), tmp_path / "tiny", part_bytes=10)


# What comes without files.


def test_digits():
    d = load("digits")
    assert (d.shape, d.classes, len(d.train), len(d.test)) == ((1, 8, 8), 10, 1438, 359)
    assert d.train.x.min() == 0
    assert d.train.x.max() == 255
    share = torch.bincount(d.test.y) / (torch.bincount(d.test.y) + torch.bincount(d.train.y))
    assert ((share - 0.2).abs() < 0.005).all()
    assert torch.equal(load("digits").test.x, d.test.x)


def test_digits_are_scikit_learns_wherever_it_keeps_them(monkeypatch):
    images, labels = load_digits(return_X_y=True)
    expected = sorted(
        [*np.rint(x * 255 / 16).astype(int).tolist(), int(y)] for x, y in zip(images, labels, strict=True)
    )

    def rows() -> list[list[int]]:
        d = load("digits")
        x, y = (torch.cat([getattr(d.train, part), getattr(d.test, part)]) for part in "xy")
        return sorted(torch.cat([x.flatten(1), y[:, None]], dim=1).tolist())

    assert rows() == expected
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    assert rows() == expected


def test_digits_do_not_wait_for_scikit_learn():
    code = "import sys, fedrecall.data.datasets as d; d.load('digits'); print('sklearn' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_synthetic():
    d = load("synthetic:classes=5,train=103,test=51,channels=3,size=6,noise=0.5,seed=2")
    assert (d.shape, d.classes, len(d.train), len(d.test)) == ((3, 6, 6), 5, 103, 51)
    assert sorted(torch.bincount(d.train.y).tolist()) == [20, 20, 21, 21, 21]
    again = load("synthetic:classes=5,train=103,test=51,channels=3,size=6,noise=0.5,seed=2")
    assert torch.equal(d.train.x, again.train.x)
    other = load("synthetic:classes=5,train=103,test=51,channels=3,size=6,noise=0.5,seed=3")
    assert not torch.equal(d.train.x, other.train.x)


@pytest.mark.parametrize(("noise", "low", "high"), [(0.3, 0.99, 1.01), (50, 0.05, 0.5)])
def test_synthetic_is_as_hard_as_its_noise(noise, low, high):
    d = load(f"synthetic:classes=5,train=1000,test=500,noise={noise}")
    train, test = d.train.x.flatten(1).double(), d.test.x.flatten(1).double()
    centres = torch.stack([train[d.train.y == c].mean(0) for c in range(5)])
    right = (torch.cdist(test, centres).argmin(1) == d.test.y).double().mean()
    assert low < right < high


# A user's own folder.


def image_folder(folder, splits=("train", "test"), classes=("cat", "dog"), count=5, **shape):
    for s, split in enumerate(splits):
        for c, name in enumerate(classes):
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(count):
                (place / f"{i}.png").write_bytes(png(picture(1000 * s + 100 * c + i, **shape)))
    return folder


def test_image_folders(tmp_path):
    d = load(f"folder:{image_folder(tmp_path / 'mine')}")
    assert (d.shape, d.class_names, len(d.train), len(d.test)) == ((3, 5, 6), ("cat", "dog"), 10, 10)
    np.testing.assert_array_equal(d.test.x[6].numpy(), picture(1101).transpose(2, 0, 1))
    assert d.test.y.tolist() == [0] * 5 + [1] * 5


def test_image_folders_with_validation_but_no_test(tmp_path):
    both = image_folder(tmp_path / "both", ("train", "val", "test"), count=2)
    assert len(load(f"folder:{both}").test) == 4
    one = image_folder(tmp_path / "one", ("train", "val"))
    np.testing.assert_array_equal(load(f"folder:{one}").test.x[0].numpy(), picture(1000).transpose(2, 0, 1))


def test_without_a_test_split_a_share_of_every_class_is_held_out(tmp_path):
    folder = image_folder(tmp_path / "mine", ("",), count=10)
    d = load(f"folder:{folder}")
    assert torch.bincount(d.train.y).tolist() == [8, 8]
    assert torch.bincount(d.test.y).tolist() == [2, 2]
    everything = torch.cat([d.train.x, d.test.x]).flatten(1).tolist()
    assert len({tuple(x) for x in everything}) == 20
    assert torch.equal(load(f"folder:{folder}", cache=tmp_path / "other").test.x, d.test.x)
    assert len(load({"name": "folder", "path": str(folder), "held_out": 0.5}).test) == 10


NFC, NFD = "caf\u00e9", "cafe\u0301"
"""One name as two systems write it."""


def test_a_class_is_the_same_however_its_folders_accents_are_written(tmp_path):
    image_folder(tmp_path / "mixed", ("train",), (NFC, "dog"))
    image_folder(tmp_path / "mixed", ("test",), (NFD, "dog"))
    image_folder(tmp_path / "mixed", ("train",), (NFD,))
    d = load(f"folder:{tmp_path / 'mixed'}")
    assert d.class_names == (NFC, "dog")
    assert torch.bincount(d.train.y).tolist() == [10, 5]
    assert torch.bincount(d.test.y).tolist() == [5, 5]
    for name, spelt in (("composed", NFC), ("decomposed", NFD), ("plain", "cafe")):
        image_folder(tmp_path / name, ("train", "test"), (spelt, "dog"))
        folder = datasets.Folder(str(tmp_path / name))
        files = folders.fingerprint_of(tmp_path / name, folders.walk(tmp_path / name))
        as_it_was = datasets._digest(files, plain(folder), 4)
        # What was cached of it by another name is made anew; nothing else is.
        assert (folder.cached("folder", None)[1] == as_it_was) == (spelt != NFD)


def test_grey_images_keep_one_channel_unless_some_have_colour(tmp_path):
    folder = image_folder(tmp_path / "mine", channels=1)
    assert load(f"folder:{folder}").shape == (1, 5, 6)
    (folder / "test/cat/0.png").write_bytes(png(picture(7)))
    mixed = load(f"folder:{folder}")
    assert mixed.shape == (3, 5, 6)
    assert torch.equal(mixed.train.x[:, 0], mixed.train.x[:, 2])


def test_images_of_several_kinds(tmp_path):
    folder = image_folder(tmp_path / "mine")
    deep = (np.arange(30).reshape(5, 6) * 2000).astype(np.uint16)
    Image.fromarray(deep).save(folder / "train/cat/0.png")
    Image.fromarray(picture(3)).convert("P").save(folder / "train/cat/1.png")
    Image.fromarray(picture(3)).convert("RGBA").save(folder / "train/cat/2.png")
    Image.fromarray(picture(3)).convert("CMYK").save(folder / "train/cat/3.jpg")
    d = load(f"folder:{folder}")
    np.testing.assert_array_equal(d.train.x[0, 1].numpy(), deep >> 8)
    assert d.shape == (3, 5, 6)


@pytest.mark.parametrize(("mode", "kind"), [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "WEBP")])
def test_ink_on_a_transparent_ground_is_seen_as_on_paper(mode, kind):
    drawn = Image.new("RGBA", (6, 5), (0, 0, 0, 0))
    drawn.putpixel((2, 1), (0, 0, 0, 255))
    buffer = io.BytesIO()
    drawn.convert(mode).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    expected = np.full((5, 6), 255)
    expected[1, 2] = 0
    found = decode(buffer.getvalue(), "it")
    np.testing.assert_array_equal(found if found.ndim == 2 else found[..., 1], expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_picture_stands_as_its_camera_was_held(kind):
    exif = Image.Exif()
    exif[274] = 6  # a quarter turn
    buffer = io.BytesIO()
    Image.new("RGB", (6, 10)).save(buffer, kind, exif=exif)
    assert decode(buffer.getvalue(), "it").shape == (6, 10, 3)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_that_a_byte_would_not_hold_are_refused(kind):
    for most, shades in ((4000, 16), (200, 1)):
        buffer = io.BytesIO()
        Image.fromarray(np.linspace(0, most, 30).reshape(5, 6).astype(np.uint16)).save(buffer, kind)
        with pytest.raises(UserError, match=rf"brightest is {most}: 8 bits would leave {shades} shades"):
            decode(buffer.getvalue(), "it")
    deep = (np.arange(30).reshape(5, 6) * 2000).astype(np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(deep).save(buffer, kind)
    np.testing.assert_array_equal(decode(buffer.getvalue(), "it"), deep >> 8)


def labelled(path, names, labels):
    import datasets

    columns = {"image": [{"bytes": png(picture(i)), "path": None} for i in labels], "label": labels}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(path))


def test_files_that_number_classes_otherwise_are_refused(tmp_path):
    labelled(tmp_path / "train.parquet", ["cat", "dog", "eel"], [0, 1, 2, 0])
    labelled(tmp_path / "test.parquet", ["cat", "eel"], [0, 1])
    with pytest.raises(UserError, match=r"numbers its classes otherwise .*\(cat, dog, eel, .* and cat, eel"):
        load(f"folder:{tmp_path}")
    labelled(tmp_path / "test.parquet", ["cat", "dog", "eel"], [0, 2])
    assert load(f"folder:{tmp_path}").test.y.tolist() == [0, 2]


def test_a_part_that_is_missing_is_named(tmp_path):
    mirror(tmp_path, "cifar10")
    file = next(tmp_path.rglob("train-00000-of-00002.parquet"))
    file.unlink()
    with pytest.raises(UserError, match=r"train-00000-of-00002.parquet is missing, of which train-00001"):
        load("cifar10", root=tmp_path)


def test_files_that_are_passed_over_are_counted(tmp_path):
    folder = image_folder(tmp_path / "mine")
    for name in ("train/cat/8.jfif", "holdout/cat/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(picture(8)))
    with pytest.warns(RuntimeWarning, match=r"2 of \d+ files in .* are not read, such as holdout/cat/1.png"):
        load(f"folder:{folder}")
    table = tmp_path / "table"
    table.mkdir()
    for name in ("train.csv", "test.csv", "2024.csv"):
        (table / name).write_text("a,label\n1,0\n2,1\n3,1\n4,0\n")
    with pytest.warns(RuntimeWarning, match=r"1 of 3 files in .* are not read, such as 2024.csv"):
        load(f"folder:{table}")


def csv_folder(folder, *rows):
    folder.mkdir(exist_ok=True)
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text("\n".join(["a,b,label", *rows, ""]))
    return f"folder:{folder}"


@pytest.mark.parametrize("bad", ["1e200", "1e308", "-1e300"])
def test_a_column_that_cannot_be_computed_with_is_named(tmp_path, bad):
    rows = [f"{i},{i},{i % 2}" for i in range(9)]
    for how in ("", ",standardise=false"):
        with pytest.raises(UserError, match=r"the column b has values from .* cannot be computed with"):
            load(csv_folder(tmp_path / "mine", *rows, f"3,{bad},1") + how)
    tiny = [f"{i},{i}e-300,{i % 2}" for i in range(1, 9)]
    with pytest.raises(UserError, match="the column b has values from 1e-300"):
        load(csv_folder(tmp_path / "mine", *tiny))


def test_codes_with_a_leading_zero_stay_as_they_are_written(tmp_path):
    coded = load(csv_folder(tmp_path / "mine", "1,1,01", "2,2,1", "3,1,02", "4,1,10"))
    assert coded.class_names == ("01", "02", "1", "10")
    large = load(csv_folder(tmp_path / "mine", "1,1,9007199254740993.0", "2,2,9007199254740992.0"))
    assert large.classes == 2


def test_a_file_with_the_old_size_and_time_is_read_anew(tmp_path):
    where = csv_folder(tmp_path / "mine", "1,1,0", "2,2,1", "3,1,0", "4,1,1")
    file = tmp_path / "mine" / "train.csv"
    os.utime(file, (1, 1))
    assert load(where).train.y.tolist() == [0, 1, 0, 1]
    csv_folder(tmp_path / "mine", "1,1,1", "2,2,1", "3,1,0", "4,1,0")
    os.utime(file, (1, 1))
    assert load(where).train.y.tolist() == [1, 1, 0, 0]


def test_images_are_resized_when_asked(tmp_path):
    folder = image_folder(tmp_path / "mine")
    (folder / "train/dog/4.png").write_bytes(png(picture(7, 9, 9)))
    with pytest.raises(UserError, match=r"4\.png is 9x9 pixels and others are 6x5: give size=SIDE"):
        load(f"folder:{folder}")
    assert load(f"folder:{folder},size=7").shape == (3, 7, 7)


def test_a_changed_folder_is_decoded_anew(tmp_path):
    folder = image_folder(tmp_path / "mine")
    load(f"folder:{folder}")
    (folder / "train/cat/new.png").write_bytes(png(picture(9)))
    assert len(load(f"folder:{folder}").train) == 11
    assert load(f"folder:{folder},size=4").shape == (3, 4, 4)  # other parameters, another cache
    assert load(f"folder:{folder}").shape == (3, 5, 6)


def truncate(folder):
    file = folder / "train/cat/1.png"
    file.write_bytes(file.read_bytes()[:60])


def not_an_image(folder):
    (folder / "train/cat/1.png").write_text("hello")


def link_outside(folder):
    (folder / "train/cat/link.png").symlink_to("/etc/hostname")


def linked_folder_outside(folder):
    (folder / "train/bird").symlink_to("/etc")


def dangling_link(folder):
    (folder / "train/cat/link.png").symlink_to(folder / "nowhere.png")


def folder_linked_within(folder):
    (folder / "train/kitten").symlink_to(folder / "train/cat")


def pipe(folder):
    os.mkfifo(folder / "train/cat/pipe.png")


def more_bits(folder):
    Image.fromarray(np.full((5, 6), 0.5, np.float32)).save(folder / "train/cat/deep.tiff")


def strange_name(folder):
    with open(os.fsencode(folder) + b"/train/cat/\xff.png", "wb") as file:
        file.write(png(picture(0)))


def new_class_in_test(folder):
    (folder / "test/owl").mkdir()
    (folder / "test/owl/1.png").write_bytes(png(picture(0)))


def too_deep(folder):
    (folder / "train/cat/more").mkdir()
    (folder / "train/cat/more/1.png").write_bytes(png(picture(0)))


def only_one_class(folder):
    for split in ("train", "test"):
        for file in (folder / split / "dog").iterdir():
            file.unlink()


def only_tests(folder):
    for file in (folder / "train").rglob("*.png"):
        file.rename(folder / "test/cat" / f"t{file.parent.name}{file.name}")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncate, r"cat/1\.png is not an image that can be decoded"),
        (not_an_image, r"cat/1\.png is not an image that can be decoded: cannot identify image file\.$"),
        (link_outside, r"link\.png is a link to a place outside"),
        (linked_folder_outside, "bird is a link to a place outside"),
        (dangling_link, r"link\.png is a link, but not to a file"),
        (folder_linked_within, "kitten is a link, but not to a file"),
        (pipe, r"cat/pipe\.png is neither a file nor a folder: take it away"),
        (more_bits, r"cat/deep\.tiff has pixels of more than 16 bits"),
        (strange_name, r"\\xff\.png is not UTF-8"),
        (new_class_in_test, r"owl/1\.png has the label 'owl', which no training example has \(cat, dog\)"),
        (too_deep, "does not lie in a folder named after its class"),
        (only_one_class, "only the class 'cat'"),
        (only_tests, r"no file to train on: test/cat/0\.png is named as one for testing\. Rename it"),
    ],
)
def test_a_bad_image_folder_is_one_sentence(tmp_path, spoil, said):
    folder = image_folder(tmp_path / "mine")
    spoil(folder)
    with pytest.raises(UserError, match=said) as raised:
        load(f"folder:{folder}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("locked", ["train/dog", "test", "."])
def test_a_folder_that_may_not_be_listed_is_said_and_not_passed_over(tmp_path, monkeypatch, locked):
    folder = image_folder(tmp_path / "mine").resolve()
    scandir = os.scandir

    def refusing(place):
        if Path(place) == folder / locked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refusing)  # as without the permission, which root needs not
    with pytest.raises(UserError, match="cannot be listed: Permission denied") as raised:
        load(f"folder:{folder}")
    assert str(raised.value).startswith(f"{folder / locked} ")
    assert "take it away" in str(raised.value)


def test_a_file_in_a_folder_that_may_be_listed_but_not_entered_is_one_sentence(tmp_path, monkeypatch):
    folder = image_folder(tmp_path / "mine").resolve()

    def but_there(really):
        def refusing(place, *given, **how):
            if not isinstance(place, int) and Path(place).parent == folder / "train/dog":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
            return really(place, *given, **how)

        return refusing

    monkeypatch.setattr(os, "stat", but_there(os.stat))
    monkeypatch.setattr(os, "lstat", but_there(os.lstat))
    with pytest.raises(UserError, match=r"train/dog/0\.png cannot be looked up: Permission denied"):
        load(f"folder:{folder}")


def test_without_a_home_only_what_is_cached_needs_to_be_told_where(tmp_path, monkeypatch):
    def nobody(_):
        raise KeyError("uid not found")

    mirror(tmp_path / "data", "mnist")
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("FEDRECALL_CACHE")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert len(load("synthetic:3,30,9").train) == 30
    with pytest.raises(UserError, match=r"~/\.cache/fedrecall: Could not determine home.* FEDRECALL_CACHE"):
        load("mnist", tmp_path / "data")
    assert len(load("mnist", tmp_path / "data", tmp_path / "cache").train) == 8


def test_links_within_the_folder_are_fine(tmp_path):
    folder = image_folder(tmp_path / "mine")
    (folder / "train/cat/same.png").symlink_to(folder / "train/cat/0.png")
    assert len(load(f"folder:{folder}").train) == 11


def test_empty_and_missing_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images"):
        load(f"folder:{tmp_path / 'empty'}")
    with pytest.raises(UserError, match="no folder"):
        load(f"folder:{tmp_path / 'none'}")
    with pytest.raises(UserError, match="needs 'path'"):
        load("folder")


def parquet(path, images, labels, features=None):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": images, "label": labels}), path)


@pytest.mark.parametrize("wrap", [lambda b: b, lambda b: {"bytes": b, "path": "a.png"}])
@pytest.mark.parametrize("labels", [[3, 3, 7, 7, 7], ["a", "a", "b", "b", "b"], [0.0, 0.0, 1.0, 1.0, 1.0]])
def test_parquet(tmp_path, wrap, labels):
    images = [wrap(png(picture(i))) for i in range(5)]
    for split in ("train", "test"):
        parquet(tmp_path / "mine" / f"{split}.parquet", images, labels)
    d = load(f"folder:{tmp_path / 'mine'}")
    assert d.train.y.tolist() == [0, 0, 1, 1, 1]
    assert d.class_names == tuple(str(n if isinstance(n, str) else int(n)) for n in sorted(set(labels)))
    np.testing.assert_array_equal(d.test.x[3].numpy(), picture(3).transpose(2, 0, 1))


def test_parquet_without_a_test_split(tmp_path):
    parquet(tmp_path / "mine/all.parquet", [png(picture(i)) for i in range(20)], [0, 1] * 10)
    d = load(f"folder:{tmp_path / 'mine'}")
    assert (len(d.train), len(d.test)) == (16, 4)


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        ([b"x"] * 4, [0, 1, 0, 1], "row 0 is not an image"),
        ([None] * 4, [0, 1, 0, 1], "image"),
        ([3] * 4, [0, 1, 0, 1], "row 0 has no image"),
        (None, [0, None, 0, 1], "row 1 has no 'label'"),
        (None, [0.0, 0.5, 0.0, 1.0], "neither a whole number nor a name"),
        (None, [[0], [1], [0], [1]], "neither a whole number nor a name"),
        (None, [True, False, True, False], "neither a whole number nor a name"),
        (None, [1, 1, 1, 1], "only the class '1'"),
    ],
)
def test_bad_parquet_is_one_sentence(tmp_path, images, labels, said):
    parquet(tmp_path / "mine/train.parquet", images or [png(picture(i)) for i in range(4)], labels)
    with pytest.raises(UserError, match=said) as raised:
        load(f"folder:{tmp_path / 'mine'}")
    assert "\n" not in str(raised.value)


def test_a_part_of_the_data_may_have_a_single_class(tmp_path):
    folder = image_folder(tmp_path / "mine")
    only_one_class(folder)
    assert load(f"folder:{folder}", part=True).class_names == ("cat",)
    with pytest.raises(UserError, match="only the class 'cat'"):
        load(f"folder:{folder}")


def test_a_part_of_the_data_may_be_tested_on_a_class_that_others_train(tmp_path):
    folder = image_folder(tmp_path / "mine")
    new_class_in_test(folder)
    d = load(f"folder:{folder}", part=True)
    assert d.class_names == ("cat", "dog", "owl")
    assert torch.bincount(d.train.y, minlength=3)[2] == 0
    assert torch.bincount(d.test.y)[2] == 1
    for _ in range(2):  # nor is one taken for the other from the cache
        with pytest.raises(UserError, match="'owl', which no training example has"):
            load(f"folder:{folder}")
        assert load(f"folder:{folder}", part=True).classes == 3


@pytest.mark.parametrize("kind", ["images", "csv"])
def test_a_part_of_the_data_may_be_trained_on_as_a_whole(tmp_path, kind):
    if kind == "images":
        folder = image_folder(tmp_path / "mine", ("",), count=1)
    else:
        folder = table(tmp_path / "mine/data.csv", [["a", "b", "label"], [1, 5, "cat"], [2, 4, "dog"]])
    for _ in range(2):  # the second time from the cache
        d = load(f"folder:{folder},held_out=0", part=True)
        assert (len(d.train), len(d.test), d.classes) == (2, 0, 2)
        assert d.test.x.shape[1:] == d.train.x.shape[1:]
        assert d.test.x.dtype == d.train.x.dtype
    with pytest.raises(UserError, match="no test split, and held_out = 0 holds none of it out"):
        load(f"folder:{folder},held_out=0")
    with pytest.raises(UserError, match="too few examples to hold some out; with held_out=0 all of them"):
        load(f"folder:{folder}", part=True)


def test_labels_outside_their_names_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    for wrong in (2, -1):
        images = [{"bytes": png(picture(i)), "path": None} for i in range(4)]
        table = pa.table({"image": images, "label": [0, 1, wrong, 1]}).replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": info}})}
        )
        folder = tmp_path / f"mine{wrong}"
        folder.mkdir()
        for split in ("train", "test"):
            pq.write_table(table, folder / f"{split}.parquet")
        with pytest.raises(UserError, match=r"not one of the 2 classes|cannot be read"):
            load(f"folder:{folder}")


def test_parquet_that_is_cut_short_or_has_other_columns(tmp_path):
    path = tmp_path / "mine/train.parquet"
    parquet(path, [png(picture(i)) for i in range(4)], [0, 1, 0, 1])
    with pytest.raises(UserError, match=r"no column 'labels'; did you mean 'label'"):
        load(f"folder:{path.parent},label=labels")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train\.parquet is not a whole parquet file"):
        load(f"folder:{path.parent}")
    parquet(path, [png(picture(i)) for i in range(4)], [0, 1, 0, 1])
    whole = path.read_bytes()
    for place in range(len(whole) - 400, len(whole) - 8, 17):  # its description, which pyarrow reads first
        path.write_bytes(whole[:place] + b"\0" + whole[place:])
        with pytest.raises(UserError, match=r"cannot be read|is not a whole parquet file|has no column"):
            load(f"folder:{path.parent}", cache=tmp_path / "other")
    mirror(tmp_path / "data", "cifar10")
    cut = next((tmp_path / "data").rglob("train-00001*"))
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-00001.*is not a whole parquet file"):
        load("cifar10", tmp_path / "data")


def table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path.parent


def test_csv_of_numbers(tmp_path):
    rng = np.random.default_rng(0)
    values = {"train": rng.normal(size=(30, 2)), "test": rng.normal(size=(10, 2))}
    values["train"][:, 1] = 1.7e9 + np.arange(30)  # time stamps: float32 would round them to 128 s
    for split, v in values.items():
        rows = [["age", "label", "time"], *([a, 10 - i % 3, t] for i, (a, t) in enumerate(v))]
        folder = table(tmp_path / f"mine/{split}.csv", rows)
    d = load(f"folder:{folder}")
    assert (d.shape, d.class_names) == ((2,), ("8", "9", "10"))  # in order of number, not of text
    assert d.train.x.dtype == torch.float32
    assert d.train.y.tolist() == [2 - i % 3 for i in range(30)]
    want = (values["train"] - values["train"].mean(0)) / values["train"].std(0)
    np.testing.assert_allclose(d.train.x.numpy(), want, atol=1e-5)
    want = (values["test"] - values["train"].mean(0)) / values["train"].std(0)
    np.testing.assert_allclose(d.test.x.numpy(), want, rtol=1e-5, atol=1e-5)
    assert d.mean.tolist() == [0, 0]
    assert d.std.tolist() == [1, 1]
    plain = load(f"folder:{folder},standardise=false")
    np.testing.assert_array_equal(plain.train.x.numpy(), values["train"].astype(np.float32))
    for found, standardised in ((d, True), (plain, False)):  # as read, from the cache, from an export
        spec = f"folder:{folder}" + ("" if standardised else ",standardise=false")
        export(found, tmp_path / f"export-{standardised}")
        kept = load_export(tmp_path / f"export-{standardised}")
        assert found.standardised == load(spec).standardised == kept.standardised == standardised
        index = tmp_path / f"export-{standardised}/dataset.json"
        older = {k: v for k, v in json.loads(index.read_text()).items() if k != "standardised"}
        index.write_text(json.dumps(older))
        assert load_export(index.parent).standardised  # as every table was


def test_csv_of_image_paths(tmp_path):
    images = tmp_path / "mine/images"
    images.mkdir(parents=True)
    rows = [["image", "label"]]
    for i in range(10):
        (images / f"{i}.png").write_bytes(png(picture(i)))
        rows.append([f"images/{i}.png", "ab"[i % 2]])
    folder = table(tmp_path / "mine/list.csv", rows)
    d = load(f"folder:{folder}")
    assert (d.shape, d.class_names, len(d.train), len(d.test)) == ((3, 5, 6), ("a", "b"), 8, 2)


def test_of_folders_for_testing_and_for_validation_those_for_testing_count(tmp_path):
    for head, count in (("train", 6), ("val", 5), ("validation", 3), ("test", 4), ("dev", 2)):
        for name in "ab":
            (tmp_path / head / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / head / name / f"{i}.png").write_bytes(png(picture(i)))
    d = load(f"folder:{tmp_path}")
    assert (len(d.train), len(d.test)) == (12, 8)


def listing(folder, *heads):
    """A list of four pictures in each of these folders; what a picture itself is called says nothing."""
    rows = [["image", "label"]]
    for h, head in enumerate(heads):
        (folder / head).mkdir(parents=True)
        for i in range(4):
            (folder / head / f"test{i}.png").write_bytes(png(picture(10 * h + i)))
            rows.append([f"{head}/test{i}.png", "ab"[i % 2]])
    return table(folder / "list.csv", rows)


def test_listed_images_are_tested_on_where_their_folder_says_so(tmp_path):
    folder = listing(tmp_path / "mine", "train", "test")
    d = load(f"folder:{folder}")
    assert (len(d.train), len(d.test)) == (4, 4)
    others = load(f"folder:{listing(tmp_path / 'other', 'train', 'elsewhere', 'val')}")
    assert (len(others.train), len(others.test)) == (8, 4)
    apart = {t.numpy().tobytes() for t in d.train.x} & {t.numpy().tobytes() for t in d.test.x}
    assert not apart
    with pytest.warns(RuntimeWarning, match="4 images that are listed .* for validation, such as .*line 6"):
        d = load(f"folder:{listing(tmp_path / 'three', 'train', 'val', 'test')}")
    assert (len(d.train), len(d.test)) == (4, 4)
    with pytest.raises(UserError, match="no image to train on"):
        load(f"folder:{listing(tmp_path / 'none', 'test')}")


def test_a_list_that_is_named_for_training_is_for_that(tmp_path):
    folder = listing(tmp_path / "mine", "train", "test")
    (tmp_path / "mine/list.csv").rename(tmp_path / "mine/train.csv")
    d = load(f"folder:{folder}")
    assert (len(d.train), len(d.test)) == (6, 2)


def test_a_folders_name_is_no_pattern(tmp_path):
    for number, name in ((0, "site1"), (100, "site[12]"), (0, "a*")):
        parquet(tmp_path / name / "all.parquet", [png(picture(number + i)) for i in range(20)], [0, 1] * 10)
    found = {name: load(f"folder:{tmp_path / name}") for name in ("site1", "site[12]", "a*")}
    assert not torch.equal(found["site1"].train.x, found["site[12]"].train.x)
    assert torch.equal(found["site1"].train.x, found["a*"].train.x)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([["a", "class"], [1, 2]], "no column 'label'"),
        ([["a", "label"], [1, 0], ["x", 1]], "line 3: a = 'x' is not a finite number"),
        ([["a", "label"], [1, 0], ["", 1]], "line 3: a = '' is not a finite number"),
        ([["a", "label"], [1, 0], ["nan", 1]], "not a finite number"),
        ([["a", "label"], [1, 0], ["1e999", 1]], "not a finite number"),
        ([["a", "label"], [1, 0], ["1_0", 1]], "line 3: a = '1_0' is not a finite number"),
        ([["a", "label"], [1, 0], [2, ""]], "line 3 has no 'label'"),
        ([["a", "label"], [1, 0], [2]], "line 3 has 1 cells, not 2"),
        ([["a", "a", "label"], [1, 1, 0]], "two columns of the same name"),
        ([["label"], [1], [0]], "nothing to learn it from"),
        ([["a", "label"], [1, 0.5], [2, 1]], "a label is a class"),
        ([["a", "label"], [1, 0], [2, 0]], "only the class"),
        ([["a", "label"], [1, 0], [2, 1]], "too few examples to hold some out"),
        ([["a", "label"]], "no training examples"),
        ([], "is empty"),
        ([["image", "label"], ["../x.png", 0]], "outside"),
        ([["image", "label"], ["/etc/hostname", 0]], "outside"),
        ([["image", "label"], ["a\0.png", 0]], r"data\.csv names 'a\\x00\.png', which is no file"),
        ([["image", "label"], ["none.png", 0]], r"line 2 names .*none\.png, which cannot be read"),
        ([["image", "label"], [".hidden/x.png", 0]], r"names '\.hidden/x\.png', which is hidden"),
        ([["image", "label"], ["seen/../.x.png", 0]], "which is hidden"),
    ],
)
def test_bad_csv_is_one_sentence(tmp_path, rows, said):
    folder = table(tmp_path / "mine/data.csv", rows)
    with pytest.raises(UserError, match=said) as raised:
        load(f"folder:{folder}")
    assert "\n" not in str(raised.value)


SITES = [["3,5", "-1,25e1", "12", "cat; old"], ["7,25", ",5", "8", "dog"]] * 10


def european(path, mark, quoted=False, rows=SITES):
    """As a spreadsheet, or R's write.csv2, writes a table where the comma is for decimals."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        how = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        csv.writer(file, delimiter=mark, quoting=how).writerows(
            [["dose, mg" if quoted else "dose", "b", "n", "label"], *rows]
        )
    return path.parent


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_table_as_spreadsheets_write_it_where_the_comma_is_for_decimals(tmp_path, mark, quoted):
    plain = [[*(cell.replace(",", ".") for cell in row[:3]), row[3]] for row in SITES]
    d = load(f"folder:{european(tmp_path / 'mine/train.csv', mark, quoted)}")
    same = load(f"folder:{table(tmp_path / 'plain/train.csv', [['dose', 'b', 'n', 'label'], *plain])}")
    points = load(f"folder:{european(tmp_path / 'points/train.csv', mark, quoted, plain)}")
    assert d.class_names == ("cat; old", "dog")
    assert d.columns.mean == pytest.approx([5.375, -6.0, 10.0])
    for other in (same, points):
        assert torch.equal(d.train.x, other.train.x)
        assert torch.equal(d.test.y, other.test.y)
        assert (d.columns, d.class_names) == (other.columns, other.class_names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a;label\n3,5;0\n1.234;1\n",
            r"line 2: a \(3,5\) has a decimal comma and .* line 3: a \(1\.234\) a point",
        ),
        ("a;label\n1.234,5;0\n2;1\n", r"line 2: a = '1\.234,5' is not a finite number"),
        ("a;label\n1,234,567;0\n2;1\n", r"line 2: a = '1,234,567' is not a finite number"),
        ("a;b\tlabel\n1;2\t0\n", "semicolons and tabs in its first line"),
        ("a;label\n3,5;0\n4;1;2\n", "line 3 has 3 cells, not 2"),
        ("a;label\n3,5;0,5\n4;1\n", "the column 'label' has 0.5: a label is a class"),
        ('a,label\n"3,5",0\n4,1\n', "a = '3,5' is not a finite number"),
        ("a;b,label\n3,0\n4;1\n", "line 3 has 1 cells, not 2"),
    ],
)
def test_what_separates_cells_or_decimals_is_not_guessed(tmp_path, text, said):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/data.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        load(f"folder:{tmp_path / 'mine'}")


def test_codes_with_points_may_be_labels_beside_decimal_commas(tmp_path):
    rows = [["3,5", "1", "1", "250.0"], ["4,5", "2", "1", "E11.9"]] * 5
    assert load(f"folder:{european(tmp_path / 'mine/d.csv', ';', rows=rows)}").class_names == (
        "250.0",
        "E11.9",
    )


def test_a_file_named_in_the_place_of_its_folder_is_told_so(tmp_path):
    folder = table(tmp_path / "mine/data.csv", [["a", "label"], *([k, k % 2] for k in range(20))])
    with pytest.raises(
        UserError, match=r"data\.csv is a file: name the folder that it lies in, folder:.*/mine\.$"
    ):
        load(f"folder:{folder / 'data.csv'}")
    with pytest.raises(UserError, match=r"there is no folder .*/none\.$"):
        load(f"folder:{tmp_path / 'none'}")


def test_large_whole_labels_stay_apart(tmp_path):
    first = 2**53
    rows = [["a", "label"], *([i, first + i % 4] for i in range(40))]
    d = load(f"folder:{table(tmp_path / 'mine/data.csv', rows)}")
    assert d.class_names == tuple(str(first + i) for i in range(4))


def test_a_label_with_an_underscore_is_a_name(tmp_path):
    names = ("11", "1_1", "20", "2_0")
    rows = [["a", "label"], *([i, names[i % 4]] for i in range(40))]
    assert load(f"folder:{table(tmp_path / 'mine/data.csv', rows)}").class_names == names


def test_a_file_is_for_testing_if_a_whole_word_says_so(tmp_path):
    for place, count in {"train/x": 20, "val/latest": 4, "val/older": 6}.items():
        rows = [["a", "label"], *([i, i % 2] for i in range(count))]
        table(tmp_path / f"mine/{place}.csv", rows)
    assert len(load(f"folder:{tmp_path / 'mine'}").test) == 10
    table(tmp_path / "mine/val/test2.csv", [["a", "label"], [0, 0], [1, 1]])
    assert len(load(f"folder:{tmp_path / 'mine'}").test) == 2


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_for_testing_alone_are_refused(tmp_path, kind):
    path = tmp_path / "mine" / f"test.{kind}"
    if kind == "parquet":
        parquet(path, [png(picture(i)) for i in range(4)], [0, 1] * 2)
    else:
        table(path, [["a", "label"], [1, 0], [2, 1]])
    with pytest.raises(UserError, match=rf"no file to train on: test\.{kind} is named as one for testing"):
        load(f"folder:{tmp_path / 'mine'}")


def test_csv_in_another_encoding_or_with_other_columns(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/data.csv").write_bytes(b"a,label\n\xe9,1\n")
    with pytest.raises(UserError, match="not UTF-8"):
        load(f"folder:{tmp_path / 'mine'}")
    table(tmp_path / "two/train.csv", [["a", "label"], [1, 0], [2, 1]])
    table(tmp_path / "two/test.csv", [["b", "label"], [1, 0]])
    with pytest.raises(UserError, match="has the columns"):
        load(f"folder:{tmp_path / 'two'}")


# What cannot be had.


def test_a_data_set_that_cannot_be_had_says_what_was_tried(tmp_path, monkeypatch):
    def unreachable(_):
        raise ConnectionError("no route")

    monkeypatch.setattr(hub, "reach", unreachable)
    with pytest.raises(UserError, match="cifar100 cannot be had: no local root") as raised:
        load("cifar100")
    assert "FEDRECALL_DATA=ROOT" in str(raised.value)
    assert "uoft-cs/cifar100" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="no copy in"):
        load("cifar100", root=tmp_path)


def test_a_copy_without_the_needed_split_says_so(tmp_path):
    mirror(tmp_path, "cifar10")
    next(tmp_path.rglob("test-*")).unlink()
    with pytest.raises(UserError, match="has the splits train, but needs train and test"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cifar11", "did you mean 'cifar10"),
        ("cifar10:3", "at most 0 values"),
        ("synthetic:1", "must be >= 2"),
        ("synthetic:noise=-1", "must be >= 0"),
        ({"path": "x"}, "needs a 'name'"),
        ("fedrecall.data.partitions:IID", "does not derive"),
    ],
)
def test_bad_names_and_parameters(spec, said):
    with pytest.raises(UserError, match=said):
        load(spec)


def test_available_looks_at_names_alone(tmp_path, monkeypatch):
    mirror(tmp_path / "data", "mnist")
    monkeypatch.setattr(hub, "hugging_face", refuse)
    found = {a.name: a for a in available(tmp_path / "data", tmp_path / "cache")}
    assert set(found) == set(DATASETS) - {"folder"}
    assert {n for n, a in found.items() if a.here} == {"digits", "synthetic", "mnist"}
    assert "uoft-cs/cifar100" in found["cifar100"].where


# The real ones, where the environment has them.

REAL = {"mnist": ((1, 28, 28), 60_000, 0.1307, 0.3081), "cifar10": ((3, 32, 32), 50_000, 0.4914, 0.2470)}
HERE = [a.name for a in available() if a.name in REAL and a.here] if os.environ.get("FEDRECALL_DATA") else []
DATA = os.environ.get("FEDRECALL_DATA")
CACHE = os.environ.get("FEDRECALL_CACHE")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mnist", (60_000, 10_000)),
        ("fashion_mnist", (60_000, 10_000)),
        ("cifar10", (50_000, 10_000)),
        ("cifar100", (50_000, 10_000)),
        ("cinic10", (90_000, 90_000)),
        ("tiny_imagenet", (100_000, 10_000)),
        ("synthetic", None),
    ],
)
def test_sizes_are_what_is_published_and_what_the_help_says(name, sizes):
    recipe = DATASETS.cls(name)
    assert recipe.sizes == sizes
    assert sizes is None or f"{sizes[0]:,} and {sizes[1]:,}" in recipe.__doc__


def test_what_the_splits_of_ham10000_share_bounds_its_training_split():
    recipe = DATASETS.cls("ham10000")
    rows = {"training": 9_577, "validation": 2_492, "testing": 1_285}
    assert all(f"{count:,} for {split}" in recipe.__doc__ for split, count in rows.items())
    assert f"{sum(rows.values()):,} rows" in recipe.__doc__
    assert recipe.sizes == (range(10_015 - 2_492 - 1_285, 9_577 + 1), 1_285)


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize("name", HERE)
def test_real_data(name, tmp_path_factory):
    shape, count, mean, std = REAL[name]
    d = load(name, DATA, CACHE or tmp_path_factory.mktemp("cache"))
    assert (d.shape, len(d.train), len(d.test), d.classes) == (shape, count, 10_000, 10)
    assert float(d.mean[0]) == pytest.approx(mean, abs=1e-4)
    assert float(d.std[0]) == pytest.approx(std, abs=1e-4)
    assert torch.bincount(d.test.y).min() >= 890


def test_a_quote_that_nobody_closes_does_not_swallow_the_rest(tmp_path):
    lines = ["a,b,label", *(f"{i},1,{'xy'[i % 2]}" for i in range(9)), '"1,2,x', "3,4,y"]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"train\.csv is not a CSV file: unexpected end of data"):
        load(f"folder:{tmp_path}")


def test_an_export_cut_short_over_another_is_none(tmp_path, monkeypatch):
    folder = tmp_path / "parts"
    export(load("synthetic:3,30,9"), folder)
    parts = []

    def full(_fd):
        parts.append(1)
        if len(parts) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        export(load("synthetic:3,30,9,seed=1"), folder)
    with pytest.raises(UserError, match="cannot be read"):
        load_export(folder)


def test_files_with_the_old_sizes_and_times_are_read_anew(tmp_path):
    where = csv_folder(tmp_path / "mine", "1,1,0", "2,2,1", "3,1,0", "4,1,1")
    both = [tmp_path / "mine" / name for name in ("train.csv", "test.csv")]
    for file in both:
        os.utime(file, (1, 1))
    assert load(where).train.y.tolist() == [0, 1, 0, 1]
    csv_folder(tmp_path / "mine", "1,1,1", "2,2,1", "3,1,0", "4,1,0")
    for file in both:  # or the other one alone would tell
        os.utime(file, (1, 1))
    assert load(where).train.y.tolist() == [1, 1, 0, 0]


READS = """
from dataclasses import dataclass

import fedrecall
from fedrecall.data.datasets import Recipe


@dataclass(frozen=True)
class Mine(Recipe):
    cache: bool = False

    def cached(self, name, root):
        return ("mine", "1") if self.cache else None

    def read(self, name, root):
        x, y = [[1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 1]
        return {returned}
"""


@pytest.mark.parametrize(
    ("returned", "said"), [("(x, y)", "a tuple"), ("None", "None"), ("fedrecall.from_arrays", "a function")]
)
@pytest.mark.parametrize("cache", ["true", "false"])
def test_what_a_recipe_of_ones_own_returns_must_be_a_data_set(tmp_path, returned, said, cache):
    (tmp_path / "mine.py").write_text(READS.format(returned=returned))
    with pytest.raises(UserError, match=f"`read` returns {said}, but must return a fedrecall.Dataset"):
        load(f"{tmp_path / 'mine.py'}:Mine:{cache}")


@pytest.mark.parametrize("cache", ["true", "false"])
def test_a_recipe_of_ones_own_is_read(tmp_path, cache):
    (tmp_path / "mine.py").write_text(READS.format(returned="fedrecall.from_arrays(x, y, x, y)"))
    for _ in range(2):  # the second time from the cache, if there is one
        found = load(f"{tmp_path / 'mine.py'}:Mine:{cache}")
        assert (found.train.y.tolist(), found.test.y.tolist()) == ([0, 1, 0, 1],) * 2
        assert found.columns.mean == [2.5]
