"""Data sets by name: decoded once to tensors, cached, the same wherever they came from."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import stat
import tempfile
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from inspect import get_annotations
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError

from fedrecall import files
from fedrecall.data import folders, hub, store
from fedrecall.data.arrays import OF_OTHERS
from fedrecall.data.rows import Rows, Source, Told, join
from fedrecall.data.store import Dataset, Split, export, load_export
from fedrecall.errors import Missing, UserError
from fedrecall.specs import AT_LEAST_ONE, NON_NEGATIVE, Declared, Range, Registry, plain
from fedrecall.streams import numpy_stream

__all__ = ["DATASETS", "Dataset", "Recipe", "Split", "available", "export", "load", "load_export"]


class _Recipes(Registry):
    """Data sets by name; of what is none it says how it becomes one."""

    def cls(self, name: str) -> type:
        """The class behind a name."""
        unknown = ":" not in name and name not in self.entries
        if unknown and ("/" in name or files.found(Path(name), stat.S_ISDIR)):
            raise UserError(f"unknown dataset {name!r}; name a folder of your own as folder:{name}.")
        return super().cls(name)

    def parse(self, spec: Any) -> tuple[str, list[str], dict[str, Any]]:
        """Name and values of a spec."""
        mapping = type(spec) is dict or (isinstance(spec, Mapping) and "name" in spec)
        if not (isinstance(spec, str) or mapping or is_dataclass(spec)):
            kind = spec.__name__ if isinstance(spec, type) else type(spec).__name__
            raise UserError(
                f"dataset: a value of type {kind} is not read by itself: give a name, or what "
                f"fedrecall.from_arrays makes: {OF_OTHERS}"
            )
        return super().parse(spec)


DATASETS = _Recipes(
    "dataset",
    {
        "digits": "fedrecall.data.datasets:Digits",
        "mnist": "fedrecall.data.datasets:MNIST",
        "fashion_mnist": "fedrecall.data.datasets:FashionMNIST",
        "femnist": "fedrecall.data.datasets:FEMNIST",
        "cifar10": "fedrecall.data.datasets:CIFAR10",
        "cifar100": "fedrecall.data.datasets:CIFAR100",
        "cinic10": "fedrecall.data.datasets:CINIC10",
        "tiny_imagenet": "fedrecall.data.datasets:TinyImageNet",
        "ham10000": "fedrecall.data.datasets:HAM10000",
        "synthetic": "fedrecall.data.datasets:Synthetic",
        "folder": "fedrecall.data.datasets:Folder",
    },
)

_DECODER = 1  # raised when the same files come to give other tensors, so that caches are made anew
_FOLDERS = 4  # the same for users' own folders
_ORIGINS = 1  # the same for data sets that tell where examples are from
_COMPOSED = 1  # the same for folders in which a name is not in Unicode's composed form


Sizes = tuple[int | range, int | range]
"""Examples of the training and of the test split: how many, or from how many to how many."""


class Recipe(Declared, ABC):
    """How one data set is had; its dataclass fields are its parameters."""

    sizes: ClassVar[Sizes | None] = None
    """Examples of its splits, where these are known beforehand."""

    def cached(self, name: str, root: Path | None) -> tuple[str, str] | None:
        """What the cache file is called: (whose it is, which version); None: made anew each time."""
        return None

    def content(self, name: str, root: Path | None) -> str | None:
        """What copies of the same files have in common, which then share a cache file; None: nothing."""
        return None

    @abstractmethod
    def read(self, name: str, root: Path | None) -> Dataset:
        """Decode or compute it."""


def load(
    spec: str | Mapping[str, Any] | Recipe,
    root: Path | None = None,
    cache: Path | None = None,
    *,
    part: bool = False,
) -> Dataset:
    """A data set by name, with parameters, or from a folder that ``export`` wrote.

    ``root`` holds local copies laid out as on the hub (``root/uoft-cs/cifar10/*.parquet``) or as
    ``export`` writes them (``root/cifar10``); its default is the environment's FEDRECALL_DATA. Where a
    root is named, nothing is taken from the hub; where none is, what it sent before is used again.
    ``cache`` holds what was decoded; its default is FEDRECALL_CACHE, else ``~/.cache/fedrecall``.
    ``part``: it is a part of the data alone, which may have a single class, or one in its test split alone.
    """
    found = _load(spec, root, cache, part)
    if found.classes < 2 and not part:
        only = found.class_names[0]
        source = spec if isinstance(spec, str) else found.name
        raise UserError(f"{source} has only the class {only!r}; at least two are needed.")
    return found


def _load(
    spec: str | Mapping[str, Any] | Recipe, root: Path | None, cache: Path | None, part: bool
) -> Dataset:
    recipe, name = _recipe(spec, part)
    root = _root(root)
    labels = recipe.cached(name, root)
    if labels is None:
        return _read(recipe, name, root)
    whose, version = re.sub(r"[^a-zA-Z0-9_-]+", "_", labels[0]), labels[1]
    cache = _cache(cache)
    path = cache / f"{whose}-{version}.safetensors"
    kept = store.load(path)
    if kept is None:
        content = recipe.content(name, root)
        if content is not None and store.take_over(cache.glob(f"{whose}-*.safetensors"), path, content):
            kept = store.load(path)
    if kept is None:
        made = _read(recipe, name, root)
        try:
            store.save(path, made, content)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"the cache {path} cannot be written: {error}; name another with FEDRECALL_CACHE."
            ) from error
        for stale in cache.glob(f"{whose}-*.safetensors"):
            if not stale.name.startswith(f"{whose}-{_HUB}"):  # that may not be had again
                store.delete_unused(stale)
        kept = store.load(path) or made
    return kept


def _recipe(spec: str | Mapping[str, Any] | Recipe, part: bool) -> tuple[Recipe, str]:
    recipe = spec if isinstance(spec, Recipe) else DATASETS.make(spec)
    if not isinstance(recipe, Recipe):
        raise UserError(f"dataset {spec!r} does not derive from fedrecall.data.datasets.Recipe.")
    name = DATASETS.name(type(recipe))
    if part and type(recipe) is Folder:
        recipe = FolderPart(**plain(recipe))
    return recipe, name


def version(spec: str, root: Path | None = None, *, part: bool = False) -> str | None:
    """What changes when the files that ``load`` would read do; None where that cannot be told.

    So it is of a class of somebody's own, unless it says what its cache is called.
    """
    recipe, name = _recipe(spec, part)
    root = _root(root)
    if (labels := recipe.cached(name, root)) is not None:
        return labels[1]
    folder = Path(recipe.path) if isinstance(recipe, Folder) else None
    if isinstance(recipe, HubImages):
        folder = recipe.local(name, root)
    return None if folder is None else _digest(folders.fingerprint_of(folder, folders.walk(folder)))


def _read(recipe: Recipe, name: str, root: Path | None) -> Dataset:
    """What a recipe reads, or UserError: a user's own may return anything."""
    found: Any = recipe.read(name, root)
    if not isinstance(found, Dataset):
        kind = "None" if found is None else f"a {type(found).__name__}"
        raise UserError(
            f"dataset {name}: `read` returns {kind}, but must return a fedrecall.Dataset, as "
            "fedrecall.from_arrays(x, y) makes of arrays."
        )
    return found


def original(spec: Mapping[str, Any]) -> str:
    """The name of the data set that a spec stands for: of an export that is here, of what it was made of."""
    recipe = DATASETS.make(spec)
    exported = store.exported_name(Path(recipe.path)) if isinstance(recipe, Folder) else None
    return exported or str(spec["name"])


def _root(root: Path | None) -> Path | None:
    named = os.environ.get("FEDRECALL_DATA")
    chosen = root or named
    return files.expanded(chosen) if chosen else None


def missing_root(root: Path | None = None) -> Path | None:
    """The folder of local copies that this or FEDRECALL_DATA names, if there is no such folder."""
    named = _root(root)
    return named if named is not None and not files.found(named, stat.S_ISDIR) else None


def _cache(cache: Path | None) -> Path:
    named = cache or os.environ.get("FEDRECALL_CACHE")
    try:
        return files.expanded(named or "~/.cache/fedrecall")
    except UserError as error:
        raise UserError(f"{error} Name a folder for decoded data sets with FEDRECALL_CACHE.") from error


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps([_DECODER, *parts]).encode(), digest_size=8).hexdigest()


class Available(NamedTuple):
    """Whether a data set can be had here without a network."""

    name: str
    here: bool
    where: str


def available(root: Path | None = None, cache: Path | None = None) -> list[Available]:
    """Which data sets are here, by looking at names of files alone."""
    root, cache = _root(root), _cache(cache)
    found = []
    for name in DATASETS:
        recipe = DATASETS.cls(name)
        if issubclass(recipe, HubImages):
            local = recipe().local(name, root)
            sent = cache / f"{name}-{_HUB}.safetensors"
            here = local or (sent if root is None and files.found(sent) else None)
            where = str(here or f"not here; on the hub as {recipe.repository}")
            found.append(Available(name, here is not None, where))
        elif name != "folder":
            found.append(Available(name, True, "comes with the package"))
    return found


# What needs no files.


@dataclass(frozen=True)
class Digits(Recipe):
    """Handwritten digits of 8x8 pixels that scikit-learn brings along; a fifth is for testing."""

    def read(self, name: str, root: Path | None) -> Dataset:
        """1,438 for training and 359 for testing: a fifth of every class, always the same."""
        table = self._table()
        x = (table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)  # 0..16 to 0..255
        rows = Rows(list(x), table[:, -1].astype(int).tolist(), [f"digit {i}" for i in range(len(x))])
        return join(name, Source({"train": rows}), "digits", held_out=0.2, seed=0)

    @staticmethod
    def _table() -> Any:
        """A row for every digit: its 64 shades and which it is."""
        # From scikit-learn's file rather than by its code, whose import takes some two seconds.
        package = find_spec("sklearn")
        places = (package.submodule_search_locations if package else None) or ()
        for path in (Path(place, "datasets", "data", "digits.csv.gz") for place in places):
            if path.is_file():
                with gzip.open(path, "rt") as text:
                    return np.loadtxt(text, delimiter=",")
        from sklearn.datasets import load_digits

        return np.column_stack(load_digits(return_X_y=True))


@dataclass(frozen=True)
class Synthetic(Recipe):
    """Images scattered around one Gaussian prototype per class: as easy or hard, few or many as wanted."""

    classes: Annotated[int, Range(2)] = 10
    """Number of classes, which are equally frequent."""
    train: Annotated[int, AT_LEAST_ONE] = 1000
    """Training examples."""
    test: Annotated[int, AT_LEAST_ONE] = 200
    """Test examples."""
    channels: Annotated[int, AT_LEAST_ONE] = 1
    """Channels of an image."""
    size: Annotated[int, AT_LEAST_ONE] = 8
    """Height and width of an image."""
    noise: Annotated[float, NON_NEGATIVE] = 1.0
    """Standard deviation around a prototype, whose own entries have 1."""
    seed: int = 0
    """Another seed gives other prototypes and examples."""

    def read(self, name: str, root: Path | None) -> Dataset:
        """Draw it: the same for the same parameters."""
        shape = (self.channels, self.size, self.size)
        prototypes = numpy_stream(self.seed, "prototypes").standard_normal((self.classes, *shape), np.float32)
        train, test = self._split(prototypes, self.train, "train"), self._split(prototypes, self.test, "test")
        mean, std = store.statistics(train.x)
        return Dataset(name, tuple(str(c) for c in range(self.classes)), train, test, mean, std)

    def _split(self, prototypes: np.ndarray[Any, Any], count: int, part: str) -> Split:
        rng = numpy_stream(self.seed, part)
        y = rng.permutation(np.arange(count) % self.classes)
        x = np.empty((count, *prototypes.shape[1:]), np.uint8)
        level = 32 / max(1.0, self.noise)  # three deviations of the wider of the two stay below 127
        for start in range(0, count, 4096):
            label = y[start : start + 4096]
            noise = rng.standard_normal((len(label), *prototypes.shape[1:]), np.float32)
            value = 127.5 + level * (prototypes[label] + self.noise * noise)
            x[start : start + 4096] = np.clip(np.rint(value), 0, 255)
        return Split(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))


# What lies on the hub or in a local copy of it.

_HUB = "hub"


@dataclass(frozen=True)
class HubImages(Recipe):
    """A set of labelled images with a training and a test split."""

    repository: ClassVar[str]
    """Its id on the hub, and where a local copy lies under the root."""
    image: ClassVar[str] = "image"
    label: ClassVar[str] = "label"
    test: ClassVar[tuple[str, ...]] = ("test",)
    """Names of the test split, best first; none: there is none, and some examples are held out."""
    held_out: ClassVar[float] = 0.0
    """Share of every class that is, then."""
    origin: ClassVar[str] = ""
    """A column that tells who or where an example is from."""
    channels: ClassVar[int] = 3
    size: ClassVar[int] = 0
    """Side to resize to; 0: as they are."""
    key: ClassVar[str | None] = None
    """A column that tells whether two rows are the same image, where the splits overlap."""

    def local(self, name: str, root: Path | None) -> Path | None:
        """The folder of a local copy."""
        if root is None:
            return None
        places = [root / self.repository, root / self.repository.split("/")[1], root / name]
        return next((p for p in places if files.found(p, stat.S_ISDIR)), None)

    def _copy(self, name: str, root: Path | None) -> Path | None:
        """The folder of the local copy, or a UserError; None where no root is named: the hub has it."""
        folder = self.local(name, root)
        if folder is None and root is not None:
            lacking = "folder" if missing_root(root) else "copy in"
            raise UserError(
                f"the data set {name} cannot be had: there is no {lacking} {root}; put the parquet files of "
                f"{self.repository} into {root / self.repository}, or name no root (--data-root, "
                "FEDRECALL_DATA) to have them from the hub."
            )
        return folder

    def cached(self, name: str, root: Path | None) -> tuple[str, str] | None:
        """By the files of the local copy, or as the hub's; an export needs no cache."""
        folder, said = self._copy(name, root), self._said()
        if folder is None:
            return name, f"{_HUB}-{_digest(said)}" if said else _HUB
        if store.is_export(folder):
            return None
        return name, self._version(folders.fingerprint_of(folder, folders.walk(folder)))

    def content(self, name: str, root: Path | None) -> str | None:
        """By what is in the files: a copy that a job has just put on its own disk has other times."""
        folder = self._copy(name, root)
        return self._version(folders.contents_of(folder, folders.walk(folder))) if folder else None

    def _version(self, of_files: Any) -> str:
        return _digest(of_files, *([_ORIGINS] if self.origin else []), *self._said())

    def _said(self) -> list[Any]:
        """What somebody's own class says, which may come to be something else."""
        if type(self).__module__ == __name__:
            return []
        return [{n: getattr(self, n) for n in get_annotations(HubImages)}, plain(self)]

    def read(self, name: str, root: Path | None) -> Dataset:
        """Decode the local copy, or what the hub sends."""
        folder = self._copy(name, root)
        if folder is not None and store.is_export(folder):
            return load_export(folder)
        if folder is not None:
            hub.check_parquet([p for p in folders.walk(folder) if p.suffix == ".parquet"], self.label)
            with tempfile.TemporaryDirectory() as scratch:
                found = hub.hugging_face(lambda datasets: self._rows(datasets, folder, scratch), str(folder))
            return join(name, found, str(folder), self.held_out, seed=0)
        try:
            found = hub.hugging_face(lambda hf: self._rows(hf, None, None), "the hub")
        except UserError as error:
            tried, there = str(error).rstrip("."), f"ROOT/{self.repository}"
            raise UserError(
                f"the data set {name} cannot be had: no local root is named, none is cached from the hub, "
                f"and {tried}; put the parquet files of {self.repository} into {there} and set "
                "FEDRECALL_DATA=ROOT."
            ) from error
        return join(name, found, self.repository, self.held_out, seed=0)

    def _rows(self, datasets: Any, folder: Path | None, scratch: str | None) -> Source:
        if folder is None:
            hub.reach(self.repository)
        source = str(folder or self.repository)
        tables = datasets.load_dataset(source, cache_dir=scratch, verification_mode="no_checks")
        test = next((split for split in self.test if split in tables), None)
        if "train" not in tables or (self.test and test is None):
            needed = " and ".join(("train", *self.test[:1]))
            raise UserError(f"{source} has the splits {', '.join(tables)}, but needs {needed}.")
        splits = {}
        for part, split in (("train", "train"), ("test", test)):
            if split is None:
                continue
            splits[part] = hub.table_rows(
                tables[split],
                f"{source} ({split})",
                self.label,
                self.image,
                self.size,
                channels=self.channels,
                key=self.key,
                told=Told(self.origin),
            )
        if self.key:
            splits["train"] = _only_once(splits["train"], splits["test"])
        return Source(splits, hub.label_names(tables["train"], self.label))


def _only_once(train: Rows, test: Rows) -> Rows:
    seen = set(test.key)
    places = []
    for i, key in enumerate(train.key):
        if key not in seen:
            places.append(i)
            seen.add(key)
    return train.keep(places) if train.key else train


@dataclass(frozen=True)
class MNIST(HubImages):
    """Handwritten digits, 1x28x28, 60,000 and 10,000."""

    repository: ClassVar[str] = "ylecun/mnist"
    sizes: ClassVar[Sizes | None] = (60_000, 10_000)
    channels: ClassVar[int] = 1


@dataclass(frozen=True)
class FashionMNIST(HubImages):
    """Articles of clothing, 1x28x28, 60,000 and 10,000."""

    repository: ClassVar[str] = "zalando-datasets/fashion_mnist"
    sizes: ClassVar[Sizes | None] = (60_000, 10_000)
    channels: ClassVar[int] = 1


@dataclass(frozen=True)
class FEMNIST(HubImages):
    """Handwritten characters in 62 classes, 1x28x28, 814,277 by some 3,600 writers (LEAF): partition natural.

    A tenth of every class is held out to test on; there is no split of its own.
    """

    repository: ClassVar[str] = "flwrlabs/femnist"
    label: ClassVar[str] = "character"
    test: ClassVar[tuple[str, ...]] = ()
    held_out: ClassVar[float] = 0.1
    origin: ClassVar[str] = "writer_id"
    channels: ClassVar[int] = 1


@dataclass(frozen=True)
class CIFAR10(HubImages):
    """Photographs in 10 classes, 3x32x32, 50,000 and 10,000."""

    repository: ClassVar[str] = "uoft-cs/cifar10"
    sizes: ClassVar[Sizes | None] = (50_000, 10_000)
    image: ClassVar[str] = "img"


@dataclass(frozen=True)
class CIFAR100(HubImages):
    """Photographs in 100 classes (the fine labels), 3x32x32, 50,000 and 10,000."""

    repository: ClassVar[str] = "uoft-cs/cifar100"
    sizes: ClassVar[Sizes | None] = (50_000, 10_000)
    image: ClassVar[str] = "img"
    label: ClassVar[str] = "fine_label"


@dataclass(frozen=True)
class CINIC10(HubImages):
    """CIFAR-10's classes from CIFAR-10 and ImageNet, 3x32x32, 90,000 and 90,000; validation is not used."""

    repository: ClassVar[str] = "flwrlabs/cinic10"
    sizes: ClassVar[Sizes | None] = (90_000, 90_000)


@dataclass(frozen=True)
class TinyImageNet(HubImages):
    """Photographs in 200 classes, 3x64x64, 100,000 and 10,000; its validation split is the test set."""

    repository: ClassVar[str] = "zh-plus/tiny-imagenet"
    sizes: ClassVar[Sizes | None] = (100_000, 10_000)
    test: ClassVar[tuple[str, ...]] = ("valid", "validation")


@dataclass(frozen=True)
class HAM10000(HubImages):
    """Skin lesions in 7 classes, resized to 3x64x64.

    Its splits on the hub have 13,354 rows (9,577 for training, 2,492 for validation, 1,285 for testing) of
    10,015 images. The test split is kept whole; of the training split, images that are in the test split or
    came before are left out. Validation is not used.
    """

    repository: ClassVar[str] = "marmal88/skin_cancer"
    # An image that lies in none of the other two splits is left in the training split.
    sizes: ClassVar[Sizes | None] = range(10_015 - 2_492 - 1_285, 9_577 + 1), 1_285
    label: ClassVar[str] = "dx"
    size: ClassVar[int] = 64
    key: ClassVar[str | None] = "image_id"


# A user's own.


@dataclass(frozen=True)
class Folder(Recipe):
    """A user's own data: images in a folder per class, parquet or CSV files, or an export.

    ``train/CLASS/*.png`` with ``test/CLASS/*.png`` (or ``CLASS/*.png`` alone); parquet files with a
    column of images; CSV files with a column of image paths, or else every column but the label a
    number, standardised by the training split (`standardise`). Files and folders named train and test
    (or validation, when there is no test) say what is what; without, a share of every class is held out.
    With `origin` or `undivided` image folders are ``ORIGIN/CLASS/*.png``, and in files a column tells.
    """

    part: ClassVar[bool] = False
    path: str
    """The folder."""
    label: str = "label"
    """The column of labels, in parquet and CSV."""
    image: str = "image"
    """The column of images, in parquet, or of their paths relative to the file, in CSV."""
    size: Annotated[int, NON_NEGATIVE] = 0
    """Side to resize images to; 0: they must all be of one size."""
    held_out: Annotated[float, Range(0, 1, open_high=True)] = 0.2
    """Share of every class that becomes the test split when there is none; 0, none, is for nodes alone."""
    seed: int = 0
    """Another seed holds out others."""
    standardise: bool = True
    """Move and scale a table's columns by the training split; `private` needs them as they are: false."""
    origin: str = ""
    """Column of who or where an example is from (a site, a writer), by which partition `natural` goes."""
    undivided: str = ""
    """Column of what is held out whole, such as the patient: none is trained on and tested on."""
    ignore: str = ""
    """Columns of a table not to learn from, joined by +: `id+date`; those of the fields above are not."""

    def __post_init__(self) -> None:
        """A run may be gone on with from elsewhere."""
        object.__setattr__(self, "path", os.path.abspath(files.expanded(self.path)))

    def _folder(self) -> Path:
        folder = Path(self.path)
        if files.found(folder, stat.S_ISREG):
            raise UserError(
                f"dataset folder: {self.path} is a file: name the folder that it lies in, "
                f"folder:{folder.parent}."
            )
        if not files.found(folder, stat.S_ISDIR):
            raise Missing(f"dataset folder: there is no folder {self.path}.")
        return folder

    def _told(self) -> Told:
        if self.label in (self.origin, self.undivided, *self.ignore.split("+")):
            raise UserError(
                f"dataset folder: the column {self.label!r} is label, and cannot be origin, undivided or "
                "ignore as well."
            )
        return Told(self.origin, self.undivided, self.ignore)

    def _exported(self, folder: Path) -> Dataset:
        """What `export` wrote, which is as it was made: a UserError if it is asked for otherwise."""
        asked = [
            f.name for f in fields(type(self)) if f.name != "path" and getattr(self, f.name) != f.default
        ]
        if asked:
            raise UserError(
                f"{folder} is an exported data set, divided and decoded as it was made: {asked[0]} changes "
                "nothing about it. Give it where the data set is exported."
            )
        return load_export(folder)

    def cached(self, name: str, root: Path | None) -> tuple[str, str] | None:
        """By where the folder is, its files and the parameters."""
        folder = self._folder()
        if store.is_export(folder):
            return None
        slug = re.sub(r"[^a-zA-Z0-9]+", "_", folder.resolve().name)[:40]
        fingerprint = folders.fingerprint_of(folder, folders.walk(folder))
        whose = "part" if self.part else "folder"
        slug = f"{whose}-{slug}-{_digest(str(folder.resolve()))}"
        composed = all(unicodedata.is_normalized("NFC", name) for name, *_ in fingerprint)
        return slug, _digest(fingerprint, plain(self), _FOLDERS, *([] if composed else [_COMPOSED]))

    def read(self, name: str, root: Path | None) -> Dataset:
        """Decode it."""
        folder = self._folder()
        if store.is_export(folder):
            return self._exported(folder)
        found = folders.read_folder(
            folder, folders.walk(folder), self.label, self.image, self._told(), self.size
        )
        return join(name, found, str(folder), self.held_out, self.seed, self.standardise, self.part)


@dataclass(frozen=True)
class FolderPart(Folder):
    """A folder of which others have the rest: a silo."""

    part: ClassVar[bool] = True
