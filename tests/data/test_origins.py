"""Who or where examples are from: read from files, kept, dealt by, and never on both sides of the test."""

import csv
import io
import json
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedrecall
from fedrecall.data.datasets import Dataset, Split, export, load, load_export
from fedrecall.data.partitions import PARTITIONS
from fedrecall.data.rows import Rows, _whole_units, hold_out
from fedrecall.errors import UserError

SITES = ("north", "south", "west")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))


def picture(number):
    """A flat image whose shade says which it is."""
    held = io.BytesIO()
    Image.fromarray(np.full((4, 4), number, np.uint8)).save(held, "PNG")
    return held.getvalue()


def examples(patients=20, each=3):
    """(number, label, site, patient); a patient is of one site, and has both labels."""
    return [(p * each + i, (p + i) % 2, SITES[p % 3], f"p{p}") for p in range(patients) for i in range(each)]


def as_csv(folder, rows=None, name="all.csv"):
    folder.mkdir(exist_ok=True)
    with open(folder / name, "w", newline="") as file:
        lines = [(n, label, site, -n, patient) for n, label, site, patient in rows or examples()]
        csv.writer(file).writerows([("n", "label", "site", "m", "patient"), *lines])
    return folder, (lambda d, split: getattr(d, split).x[:, 0].round().long().tolist()), ",standardise=false"


def as_parquet(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    number, label, site, patient = (list(column) for column in zip(*examples(), strict=True))
    columns = {"image": [picture(n) for n in number], "label": label, "site": site, "patient": patient}
    pq.write_table(pa.table(columns), folder / "all.parquet")
    return folder, (lambda d, split: getattr(d, split).x[:, 0, 0, 0].long().tolist()), ""


def as_image_list(folder):
    folder.mkdir()
    with open(folder / "all.csv", "w", newline="") as file:
        lines = [(f"{n}.png", label, site, patient) for n, label, site, patient in examples()]
        csv.writer(file).writerows([("image", "label", "site", "patient"), *lines])
    for n, *_ in examples():
        (folder / f"{n}.png").write_bytes(picture(n))
    return folder, (lambda d, split: getattr(d, split).x[:, 0, 0, 0].long().tolist()), ""


@pytest.mark.parametrize("written", [as_csv, as_parquet, as_image_list])
def test_a_column_tells_where_examples_are_from_and_whom_to_hold_out_whole(tmp_path, written):
    folder, numbers, how = written(tmp_path / "mine")
    spec = f"folder:{folder},origin=site,undivided=patient{how}"
    site, patient = ({n: row[i] for n, *row in examples()} for i in (1, 2))
    for d in (load(spec), load(spec)):  # as read, and from the cache
        assert d.origins == SITES
        train, test = numbers(d, "train"), numbers(d, "test")
        assert sorted(train + test) == list(range(60))
        assert [SITES[o] for o in d.train.origin] == [site[n] for n in train]
        assert [SITES[o] for o in d.test.origin] == [site[n] for n in test]
        assert not {patient[n] for n in train} & {patient[n] for n in test}
        assert len(test) == 12
        if how:
            assert d.features == ("n", "m")  # a number is not learnt from because it tells the patient
    export(d, tmp_path / "parts")
    kept = load_export(tmp_path / "parts")
    assert kept.origins == SITES
    assert torch.equal(kept.train.origin, d.train.origin)
    assert torch.equal(kept.test.origin, d.test.origin)
    ignoring = ",ignore=patient" if how else ""
    by_example = load(f"folder:{folder},origin=site{how}{ignoring}")
    assert {patient[n] for n in numbers(by_example, "train")} & {
        patient[n] for n in numbers(by_example, "test")
    }


def folders(top, split="", sites=SITES):
    for n, label, site, _ in examples():
        if site in sites:
            place = top / split / site / "ab"[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{n}.png").write_bytes(picture(n))
    return top


def test_folders_above_the_classes_are_origins(tmp_path):
    site = {n: where for n, _, where, _ in examples()}
    d = load(f"folder:{folders(tmp_path / 'mine')},origin=site")
    assert d.class_names == ("a", "b")
    assert [SITES[o] for o in d.train.origin] == [site[n] for n in d.train.x[:, 0, 0, 0].tolist()]
    apart = folders(folders(tmp_path / "apart", "train", SITES[:2]), "test", SITES[2:])
    elsewhere = load(f"folder:{apart},origin=site")
    assert elsewhere.origins == SITES  # west is tested on alone, and comes after those that are trained on
    assert set(elsewhere.train.origin.tolist()) == {0, 1}
    assert set(elsewhere.test.origin.tolist()) == {2}
    assert len(load(f"folder:{apart},origin=site,undivided=site").train) == 42
    with pytest.raises(UserError, match=r"'north' in the training and in the test split.*undivided"):
        load(f"folder:{folders(apart, 'test')},undivided=site")


def test_origins_that_are_numbers_are_in_their_order(tmp_path):
    rows = [(n, n % 2, 10 - n % 10, "p") for n in range(40)]
    d = load(f"folder:{as_csv(tmp_path / 'mine', rows)[0]},origin=site,ignore=patient + m")
    assert d.features == ("n",)
    assert d.origins == tuple(str(i) for i in range(1, 11))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("origin=sitte", "has no column 'sitte'; did you mean 'site'"),
        ("undivided=patients", "has no column 'patients'; did you mean 'patient'"),
        ("origin=site,undivided=patient", r"all.csv line 4 has no 'site'"),
        ("origin=label", "the column 'label' is label, and cannot be origin"),
        ("label=site,undivided=site", "the column 'site' is label, and cannot be"),
        ("ignore=n+label", "the column 'label' is label, and cannot be"),
        ("ignore=sites", "has no column 'sites'; did you mean 'site'"),
        ("ignore=site", "patient = 'p0' is not a finite number; ignore="),
    ],
)
def test_columns_that_do_not_tell_are_named(tmp_path, spec, said):
    rows = examples()
    rows[2] = (2, 0, " ", "p0")
    with pytest.raises(UserError, match=said):
        load(f"folder:{as_csv(tmp_path / 'mine', rows)[0]},{spec}")


def test_folders_tell_one_thing_and_lie_as_deep_as_that_needs(tmp_path):
    with pytest.raises(UserError, match="one alone is above that of the class"):
        load(f"folder:{folders(tmp_path / 'mine')},origin=site,undivided=patient")
    with pytest.raises(UserError, match="named after its class, right below"):
        load(f"folder:{tmp_path / 'mine'}")
    with pytest.raises(UserError, match="named after its class, in one named after its site, right below"):
        load(f"folder:{tmp_path / 'mine/north'},origin=site")


def test_columns_to_ignore_must_be_there(tmp_path):
    with pytest.raises(UserError, match="has no column 'patiend'; did you mean 'patient'"):
        load(f"folder:{as_parquet(tmp_path / 'table')[0]},ignore=patiend")
    load(f"folder:{tmp_path / 'table'},ignore=patient")
    with pytest.raises(UserError, match="images in folders, and no columns to ignore"):
        load(f"folder:{folders(tmp_path / 'mine')},origin=site,ignore=patient")


@given(
    sizes=st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any), min_size=1, max_size=40),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 9),
)
@settings(max_examples=100, deadline=None)
def test_whole_units_are_held_out_and_every_class_stays_to_be_trained_on(sizes, share, seed):
    rows = Rows()
    for unit, counts in enumerate(sizes):
        for label, count in enumerate(counts):
            for _ in range(count):
                rows.x.append(np.array([float(len(rows.x))]))
                rows.y.append(label)
                rows.where.append("")
                rows.unit.append(f"u{unit}")
    train, test = hold_out(rows, share, seed)
    assert sorted(float(x[0]) for x in [*train.x, *test.x]) == list(range(len(rows.x)))
    assert not set(train.unit) & set(test.unit)
    assert set(train.y) == set(rows.y)
    # Never further from the shares (by chi-squared) than if nothing were held out.
    total = np.bincount(rows.y)
    held = np.bincount(np.array(test.y, int), minlength=len(total))
    seen = total > 0
    far = [((share * total - h)[seen] ** 2 / total[seen]).sum() for h in (held, 0 * held)]
    assert far[0] <= far[1] or len(set(test.unit)) == 1  # better one than none
    again = hold_out(rows, share, seed)[1]
    assert again.unit == test.unit


def test_the_share_is_met_where_units_are_many():
    rng = np.random.default_rng(0)
    rows = Rows()
    for unit in range(500):
        for label in rng.integers(0, 4, rng.integers(1, 9)).tolist():
            rows.x.append(np.zeros(1))
            rows.y.append(label)
            rows.where.append("")
            rows.unit.append(str(unit))
    test = hold_out(rows, 0.2, 0)[1]
    np.testing.assert_allclose(np.bincount(test.y) / np.bincount(rows.y), 0.2, atol=0.01)
    assert hold_out(rows, 0.2, 1)[1].unit != test.unit


def test_one_patient_alone_cannot_be_held_out(tmp_path):
    rows = [(n, n % 2, "north", "p0") for n in range(30)]
    with pytest.raises(UserError, match="too few of what stays together to hold some out"):
        load(f"folder:{as_csv(tmp_path / 'mine', rows)[0]},undivided=patient,ignore=site")


def test_femnist_is_read_with_its_writers(tmp_path):
    import datasets

    writers = [f"f{i % 7:04d}_14" for i in range(140)]
    columns = {
        "image": [{"bytes": picture(i), "path": None} for i in range(140)],
        "writer_id": writers,
        "hsf_id": [0] * 140,
        "character": [i % 4 for i in range(140)],
    }
    features = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "hsf_id": datasets.Value("int64"),
        "character": datasets.ClassLabel(names=["0", "1", "A", "a"]),
    }
    place = tmp_path / "data/flwrlabs/femnist/data"
    place.mkdir(parents=True)
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    table.to_parquet(str(place / "train-00000-of-00001.parquet"))
    for d in (load("femnist", tmp_path / "data"), load("femnist", tmp_path / "data")):
        assert (d.shape, d.class_names) == ((1, 4, 4), ("0", "1", "A", "a"))
        assert torch.bincount(d.test.y).tolist() == [4] * 4  # a tenth of 35, or the nearest to it
        numbers = d.train.x[:, 0, 0, 0].tolist()
        assert [d.origins[o] for o in d.train.origin] == [writers[n] for n in numbers]
        tested = d.test.x[:, 0, 0, 0].tolist()
        assert [d.origins[o] for o in d.test.origin] == [writers[n] for n in tested]
        assert d.train.y.tolist() == [n % 4 for n in numbers]
        assert len(PARTITIONS.make("natural").split(d.train.y, 7, 0, origins=d.train.origin.numpy())) == 7


def test_an_export_is_as_it_was_made(tmp_path):
    folder = as_csv(tmp_path / "mine")[0]
    for _ in range(2):  # read, and from its cache
        made = load(f"folder:{folder},origin=site,undivided=patient")
        assert made.undivided
    assert not load(f"folder:{folder},origin=site,ignore=patient").undivided
    export(made, tmp_path / "parts")
    parts = load(f"folder:{tmp_path / 'parts'}")
    assert (parts.origins, parts.undivided) == (SITES, True)
    index = json.loads((tmp_path / "parts/dataset.json").read_text())
    del index["undivided"]  # as an earlier version wrote it
    (tmp_path / "parts/dataset.json").write_text(json.dumps(index))
    assert not load(f"folder:{tmp_path / 'parts'}").undivided
    for asked in (
        "undivided=patient",
        "origin=site",
        "ignore=m",
        "held_out=0.5",
        "standardise=false",
        "seed=1",
    ):
        with pytest.raises(UserError, match=f"exported data set.*{asked.partition('=')[0]} changes nothing"):
            load(f"folder:{tmp_path / 'parts'},{asked}")


def as_hub_writes(path, names, numbers):
    import datasets

    columns = {
        "image": [{"bytes": picture(i), "path": None} for i in range(len(numbers))],
        "label": [i % 2 for i in range(len(numbers))],
        "site": numbers,
    }
    features = {"image": datasets.Image(), "label": datasets.Value("int64")}
    features["site"] = datasets.ClassLabel(names=list(names))
    path.parent.mkdir(exist_ok=True)
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(str(path))


def test_a_parquet_column_of_numbers_with_names_is_told_by_the_names(tmp_path):
    as_hub_writes(tmp_path / "one/train.parquet", ("oslo", "bergen"), [0, 1] * 10)
    as_hub_writes(tmp_path / "one/test.parquet", ("oslo", "bergen"), [0, 1] * 5)
    d = load(f"folder:{tmp_path / 'one'},origin=site")
    assert d.origins == ("bergen", "oslo")
    assert d.train.origin.tolist() == [1, 0] * 10
    with pytest.raises(UserError, match="'bergen' in the training and in the test split"):
        load(f"folder:{tmp_path / 'one'},undivided=site")
    as_hub_writes(tmp_path / "one/test.parquet", ("bergen", "oslo"), [0, 1] * 5)
    with pytest.raises(UserError, match="numbers 'site' otherwise than"):
        load(f"folder:{tmp_path / 'one'},origin=site")
    as_hub_writes(tmp_path / "two/train.parquet", ("oslo", "bergen"), [0, 1, -1, 1] * 5)
    with pytest.raises(UserError, match="has no 'site'"):
        load(f"folder:{tmp_path / 'two'},origin=site")


def test_ways_to_write_the_same_patient_are_one(tmp_path):
    rows = [(n, n % 2, "s", f"{n // 4}") for n in range(80)]
    folder = as_csv(tmp_path / "mine", rows, "train.csv")[0]
    as_csv(tmp_path / "mine", [(n, n % 2, "s", f"{n // 4}.0") for n in range(40)], "test.csv")
    with pytest.raises(UserError, match=r"'0' in the training and in the test split .and 9 more"):
        load(f"folder:{folder},undivided=patient,ignore=site")
    accents = [
        (n, n % 2, unicodedata.normalize(("NFC", "NFD")[n // 2 % 2], "José"), "p") for n in range(40)
    ]  # one sign, and two
    found = load(f"folder:{as_csv(tmp_path / 'accents', accents)[0]},origin=site,ignore=patient")
    assert found.origins == ("José",)
    codes = load(f"folder:{as_csv(tmp_path / 'codes', [(n, n % 2, f'0{n % 2}', 'p') for n in range(40)])[0]}"
                 ",origin=site,ignore=patient")  # fmt: skip
    assert codes.origins == ("00", "01")  # as they are written
    for missing in ("nan", "NaN", "None"):
        rows[3] = (3, 1, missing, "p")
        with pytest.raises(UserError, match="line 5 has no 'site'"):
            load(f"folder:{as_csv(tmp_path / 'missing', rows)[0]},origin=site,undivided=patient")


def test_columns_with_a_plus_and_tables_with_a_column_image_can_be_read(tmp_path):
    folder = table_of(
        tmp_path / "mine", ["CD4+", "n", "label", "image"], [(i, i, i % 2, f"s{i}.dcm") for i in range(40)]
    )
    assert load(f"folder:{folder},ignore=image").features == ("CD4+", "n")
    alone = table_of(tmp_path / "alone", ["CD4+", "n", "label"], [("low", i, i % 2) for i in range(40)])
    assert load(f"folder:{alone},ignore=CD4+").features == ("n",)
    scans, numbers, _ = as_image_list(tmp_path / "scans")
    assert (
        len(numbers(load(f"folder:{scans},undivided=image"), "train")) == 48
    )  # an image may be listed often


def table_of(folder, header, rows):
    folder.mkdir()
    with open(folder / "all.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder


def test_no_site_is_held_out_whole(tmp_path):
    rows = [*examples(30), *((n, n % 2, "small", "p99") for n in (200, 201))]
    folder = as_csv(tmp_path / "mine", rows)[0]
    for seed in range(6):
        for how in ("undivided=patient", "ignore=patient"):
            assert load(f"folder:{folder},origin=site,{how},seed={seed}").origins == (
                *SITES[:1],
                "small",
                *SITES[1:],
            )


def test_two_patients_are_enough_to_hold_one_out(tmp_path):
    rows = [(n, n % 2, "s", f"p{n // 20}") for n in range(40)]
    d = load(f"folder:{as_csv(tmp_path / 'mine', rows)[0]},undivided=patient,ignore=site")
    assert (len(d.train), len(d.test)) == (20, 20)


def test_other_sites_are_other_data(tmp_path):
    from fedrecall import provenance

    first = dataset(torch.arange(40) % 2, ("x", "y"))
    others = [
        replace(first, train=replace(first.train, origin=torch.arange(40) // 20)),
        replace(first, origins=("x", "z")),
        replace(first, train=replace(first.train, origin=None), origins=()),
    ]
    facts = [provenance.facts(d) for d in (first, *others)]
    told = [f.get("origins") for f in facts]
    assert len(set(told)) == 4
    assert told[3] is None  # earlier runs have noted nothing of the kind
    assert len({f["digest"] for f in facts}) == 1


def at_places(d, places, *more):
    """The data set with test examples of these places, and names of places that are only tested."""
    return replace(d, test=replace(d.test, origin=torch.as_tensor(places)), origins=(*d.origins, *more))


def test_where_test_examples_are_from_is_noted_beside_what_earlier_runs_have(tmp_path):
    from fedrecall import provenance

    first = dataset(torch.arange(40) % 2, ("x", "y"))
    noted = [
        provenance.facts(d) for d in (first, at_places(first, [0] * 40), at_places(first, [2] * 40, "z"))
    ]
    assert len({f["origins"] for f in noted}) == 1  # what is trained on is the same
    assert [f.get("test_origins") for f in noted].count(None) == 1
    earlier, *others = ([{"data": f}] for f in noted)
    for now in noted:
        provenance.check_data(tmp_path, earlier, now, "resume it.")
    with pytest.raises(UserError, match="begun on other data"):
        provenance.check_data(tmp_path, others[0], noted[2], "resume it.")


def test_a_part_of_a_split_knows_where_its_examples_are_from():
    d = at_places(dataset(torch.arange(40) % 2, ("x", "y")), torch.arange(40) // 20)
    part = d.test.part(slice(1, None, 15))
    assert part.origin.tolist() == [0, 0, 1]
    assert torch.equal(part.x, d.test.x[[1, 16, 31]])
    assert torch.equal(d.to(torch.device("cpu")).test.origin, d.test.origin)
    assert dataset(None, ()).test.part(slice(3)).origin is None


def test_a_cache_of_an_earlier_version_is_made_anew(tmp_path, monkeypatch):
    from fedrecall.data import datasets, store

    spec = f"folder:{as_csv(tmp_path / 'mine')[0]},origin=site,undivided=patient"
    monkeypatch.setattr(datasets, "_FOLDERS", 3)
    d = load(spec)
    (old,) = (tmp_path / "cache").glob("*.safetensors")
    store.save(old, replace(d, test=replace(d.test, origin=None)))  # as it was written then
    assert load(spec).test.origin is None
    monkeypatch.undo()
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    assert torch.equal(load(spec).test.origin, d.test.origin)


# The partition.


def test_natural_gives_every_client_an_origin_in_their_order():
    origins = np.array([2, 0, 1, 1, 2, 2, 0, 1])
    parts = PARTITIONS.make("natural").split(np.arange(8) % 2, 3, seed=5, origins=origins)
    assert [part.tolist() for part in parts] == [[1, 6], [2, 3, 7], [0, 4, 5]]


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_natural_deals_whole_origins_evenly(clients, more, seed):
    origins = np.random.default_rng(seed).permutation(np.repeat(np.arange(clients + more), 3))
    labels = np.arange(len(origins)) % 2
    parts = PARTITIONS.make("natural").split(labels, clients, seed, origins=origins)
    held = [np.unique(origins[part]) for part in parts]
    assert sorted(np.concatenate(held)) == list(range(clients + more))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert sum(map(len, parts)) == len(labels)


def test_natural_says_what_it_needs():
    natural, labels = PARTITIONS.make("natural"), np.arange(8) % 2
    with pytest.raises(UserError, match="origin=COLUMN"):
        natural.split(labels, 2, 0)
    with pytest.raises(UserError, match="set clients=2"):
        natural.split(labels, 3, 0, origins=np.arange(8) % 2)
    with pytest.raises(UserError, match="global_seed deals shards and lda, not natural"):
        natural.split(labels, 2, 0, global_seed=1, origins=np.arange(8) % 2)


def test_other_partitions_go_by_labels_alone():
    labels, origins = np.arange(60) % 3, np.arange(60) % 4
    for name in ("iid", "lda:1,min_size=1", "shards:1"):
        pairs = zip(
            PARTITIONS.make(name).split(labels, 3, 0),
            PARTITIONS.make(name).split(labels, 3, 0, origins=origins),
            strict=True,
        )
        assert all(np.array_equal(a, b) for a, b in pairs)


# A run.


def test_sites_are_clients(tmp_path):
    folder = as_csv(tmp_path / "mine", examples(60))[0]
    settings = {"partition": "natural", "clients": 3, "sample": 3, "rounds": 2, "batch_size": 10}
    spec = f"folder:{folder},origin=site,undivided=patient"
    made = {**settings, "model": "mlp:6", "augmentation": "none", "backend": "serial", "measures": ()}
    run = fedrecall.run(algorithm="fedavg", dataset=spec, **made, out=tmp_path / "run")
    dataset, federation = run.federation.dataset, run.federation
    assert federation.origins == [[site] for site in SITES]
    for client in range(3):
        assert set(dataset.train.origin[federation.parts[client]].tolist()) == {client}
    noted = json.loads((tmp_path / "run/partition.json").read_text())["meta"]
    assert noted["origins"] == [[site] for site in SITES]
    # The server's own examples are taken from sites, too.
    apart = fedrecall.run(algorithm="fedssd", dataset=spec, **made).federation
    assert len(apart.auxiliary_part)
    for client in range(3):
        assert set(dataset.train.origin[apart.parts[client]].tolist()) == {client}
    # The sites of a partition by labels are in several clients, and are not told.
    assert (
        fedrecall.run(algorithm="fedavg", dataset=spec, **{**made, "partition": "iid"}).federation.origins
        is None
    )


def dataset(origin, names):
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    return Dataset(
        "m", ("a", "b"), Split(x, y, origin), Split(x, y), torch.zeros(4), torch.ones(4), origins=names
    )


def test_origins_of_ones_own_code():
    settings = {"partition": "natural", "clients": 2, "sample": 2, "rounds": 1, "batch_size": 8}
    settings |= {"model": "mlp:6", "augmentation": "none", "backend": "serial"}
    run = fedrecall.run(dataset=dataset(torch.arange(40) // 30, ("x", "y")), **settings)
    assert [len(part) for part in run.federation.parts] == [30, 10]
    for origin, names in [
        (torch.arange(39) % 2, ("x", "y")),
        (torch.arange(40) % 2, ("x",)),
        (torch.arange(40) % 2 * 1.0, ("x", "y")),
    ]:
        with pytest.raises(UserError, match="training split's origins are"):
            fedrecall.run(dataset=dataset(origin, names), **settings)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d, names: (d["train.origin"].add_(7), names),
        lambda d, names: (d.update({"train.origin": d["train.origin"][:-1]}), names),
        lambda d, names: ((d.pop("train.origin"), d.pop("test.origin")), names),
        lambda d, names: (d["test.origin"].sub_(1), names),
        lambda d, names: (d.update({"test.origin": d["test.origin"].float()}), names),
        lambda d, names: (None, [*names[:-1], 3]),
    ],
)
def test_a_cache_with_other_origins_is_none(tmp_path, damage):
    from fedrecall.data import store

    arrays = store._arrays(at_places(dataset(torch.arange(40) % 2, ("x", "y")), [0] * 40))
    given = [("m", ["a", "b"]), {n: t.clone() for n, t in arrays.items()}, ["x", "y"]]
    assert store._dataset(*given[0], given[1], False, (), given[2]).origins == ("x", "y")
    _, names = damage(given[1], given[2])
    with pytest.raises(ValueError, match="origin"):
        store._dataset(*given[0], given[1], False, (), names)


def test_which_origins_a_client_gets_is_drawn():
    origins = np.repeat(np.arange(8), 3)
    natural = PARTITIONS.make("natural")
    dealt = {
        tuple(np.unique(origins[natural.split(origins % 2, 4, seed, origins=origins)[0]]).tolist())
        for seed in range(20)
    }
    assert len(dealt) > 5


def test_where_all_units_are_larger_than_what_is_asked_for_the_smallest_is_held_out():
    sizes = {"a": 30, "b": 20, "c": 25}
    unit = [name for name, n in sizes.items() for _ in range(n)]
    for seed in range(6):
        held = _whole_units(Rows(y=[0] * len(unit), unit=unit), 0.1, np.random.default_rng(seed))
        assert {u for u, h in zip(unit, held, strict=True) if h} == {"b"}


def test_a_rare_class_counts_as_much_as_a_frequent_one_where_units_are_held_out():
    """Five of ten of a rare class for one of a hundred of the other bring the shares no nearer."""
    rows = Rows()
    for unit, counts in {"large": (98, 5), "rare": (1, 5), "one": (1, 0)}.items():
        for label, count in enumerate(counts):
            for _ in range(count):
                rows.x.append(np.zeros(1))
                rows.y.append(label)
                rows.where.append("")
                rows.unit.append(unit)
    for seed in range(6):
        assert set(hold_out(rows, 0.2, seed)[1].unit) == {"one"}
