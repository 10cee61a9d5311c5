"""A trained model, used: by who has its run folder and none of the training data."""

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedrecall
from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.cli import main
from fedrecall.cli.commands import predict as commands
from fedrecall.cli.commands.predict import _images
from fedrecall.data import folders
from fedrecall.data.datasets import export, load
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.ingredients import make_model
from fedrecall.models.trained import Inputs, Trained

SETTINGS = {
    "clients": 8,
    "sample": 2,
    "rounds": 2,
    "partition": "iid",
    "local_epochs": 1,
    "lr": 0.05,
    "backend": "serial",
}


def right(trained, dataset):
    """The share of the test split that the model gets right."""
    named = [dataset.class_names[c] for c in dataset.test.y.tolist()]
    return np.mean([a == b for a, b in zip(trained.predict(dataset.test.x), named, strict=True)])


@pytest.mark.parametrize("algorithm", ["private:fedavgm,noise=0", "private:moon", "sfedkd", "scaffold"])
def test_a_model_is_found_wherever_its_algorithm_keeps_it(algorithm, tmp_path):
    settings = SETTINGS | {"dataset": "synthetic:classes=3,train=60,test=30,size=6", "model": "mlp:8"}
    fedrecall.run(tmp_path / "run", algorithm=algorithm, normalisation="fixed", **settings)
    again = fedrecall.trained(tmp_path / "run")
    *_, last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert right(again, load("synthetic:classes=3,train=60,test=30,size=6")) == pytest.approx(
        last["accuracy"]
    )


FEDPER = f"{Path(__file__).parents[2] / 'examples' / 'fedper.py'}:FedPer"


@pytest.mark.parametrize("algorithm", [FEDPER, {"name": "private", "of": FEDPER, "noise": 0.1}])
def test_a_clients_model_has_the_layers_that_it_keeps(algorithm, tmp_path, capsys, monkeypatch):
    settings = SETTINGS | {"dataset": "digits", "model": "mlp:8", "normalisation": "fixed", "rounds": 3}
    result = fedrecall.run(tmp_path / "run", algorithm=algorithm, **settings)
    drawn = {k for record in result.history for chain in record["chains"] for k in chain}
    experiment = Experiment(result.config, tmp_path / "run", resume=True)
    experiment.close()
    heads = {k: experiment.memories.get(k).own for k in drawn}
    assert 2 < len(drawn) < 8
    for k in range(8):
        own = fedrecall.trained(tmp_path / "run", client=k).network.state_dict()
        for name, shared in result.weights.params.items():
            expected = heads[k][name] if k in drawn and name.startswith("fc2.") else shared
            assert torch.equal(own[name], expected)
    assert len({h["fc2.weight"].norm().item() for h in heads.values()}) == len(drawn)
    image, client = tmp_path / "digit.png", max(drawn)
    Image.fromarray(load("digits").test.x[0, 0].numpy()).save(image)
    code, out, _ = predict(capsys, monkeypatch, tmp_path / "run", image, "--client", client)
    share = fedrecall.trained(tmp_path / "run", client=client).probabilities(load("digits").test.x[:1]).max()
    assert code == 0
    assert f"{share:.1%}" in out


BIASED = """
from dataclasses import dataclass
from typing import NamedTuple
import torch
from fedrecall import FedAvg
from fedrecall.algorithms.fedavg import Up
from fedrecall.losses import cross_entropy

class Memory(NamedTuple):
    own: dict

@dataclass(frozen=True)
class Biased(FedAvg):
    def remember(self, weights):
        return Memory({"bias": torch.zeros(10)})

    def personal(self, weights, memory):
        return weights._replace(params=weights.params | memory.own)

    def loss(self, model, params, anchor, batch):
        return batch.mean(cross_entropy(model(params, batch.x) + params["bias"], batch.y))

    def finish(self, model, weights, anchor, memory, data, sgd):
        shared = {n: weights.params[n] for n in anchor.weights.params}
        return Up(weights._replace(params=shared)), Memory({"bias": weights.params["bias"]})
"""


def test_what_a_client_trains_beside_the_network_is_no_part_of_the_model_that_it_uses(tmp_path):
    (tmp_path / "mine.py").write_text(BIASED)
    settings = SETTINGS | {"dataset": "digits", "model": "mlp:8", "rounds": 1, "measures": ["personal"]}
    result = fedrecall.run(tmp_path / "run", algorithm=f"{tmp_path / 'mine.py'}:Biased", **settings)
    found = result.history[-1]["measures"]["personal"]
    used = [fedrecall.trained(tmp_path / "run", client=k).network.state_dict() for k in found["clients"]]
    for own in used:
        assert own.keys() == result.weights.params.keys()
        assert all(torch.equal(own[n], p) for n, p in result.weights.params.items())


def test_whose_model_cannot_be_had_is_said(tmp_path, capsys, monkeypatch):
    settings = SETTINGS | {"dataset": "digits", "model": "mlp:8", "rounds": 1}
    fedrecall.run(tmp_path / "alike", algorithm="fedavg", **settings)
    fedrecall.run(tmp_path / "own", algorithm=FEDPER, **settings)
    with pytest.raises(UserError, match="alike have no model of their own: theirs is the global one"):
        fedrecall.trained(tmp_path / "alike", client=0)
    for beyond in (8, -1):
        with pytest.raises(UserError, match=f"there is no client {beyond}, only 0 to 7"):
            fedrecall.trained(tmp_path / "own", client=beyond)
    code, _, err = predict(capsys, monkeypatch, tmp_path / "own", "digit.png", "--client", 8)
    assert (code, "there is no client 8, only 0 to 7" in err) == (2, True)
    drawn = json.loads((tmp_path / "own" / "metrics.jsonl").read_text())["chains"][0][0]
    for memory in (tmp_path / "own" / "memories").glob(f"client-{drawn:06d}-*"):
        memory.unlink()
    with pytest.raises(UserError, match=f"client-{drawn:06d}-.* cannot be read"):
        fedrecall.trained(tmp_path / "own", client=drawn)
    (tmp_path / "own" / "federation.json").write_text("{}")
    with pytest.raises(UserError, match="own was a federation: what client 0 keeps is at its node alone"):
        fedrecall.trained(tmp_path / "own", client=0)


def test_of_a_round_that_was_kept_the_global_model_is_there(tmp_path, capsys, monkeypatch):
    settings = SETTINGS | {"dataset": "digits", "model": "mlp:8", "rounds": 4, "sample": 8}
    fedrecall.run(tmp_path / "run", algorithm=FEDPER, keep_every=1, **settings)
    image = tmp_path / "digit.png"
    Image.fromarray(load("digits").test.x[0, 0].numpy()).save(image)
    code, out, _ = predict(capsys, monkeypatch, tmp_path / "run", image, "--round", 1)
    share = fedrecall.trained(tmp_path / "run", 1).probabilities(load("digits").test.x[:1]).max()
    assert (code, f"{share:.1%}" in out) == (0, True)
    said = "run has the global model of round 1 alone; what clients keep is there of rounds 3 and 4."
    with pytest.raises(UserError, match=said):
        fedrecall.trained(tmp_path / "run", 1, client=0)
    assert fedrecall.trained(tmp_path / "run", 3, client=0)
    with pytest.raises(UserError, match=r"no checkpoint of round 9, only of 1, 2, 3 and 4\."):
        fedrecall.trained(tmp_path / "run", 9)


@pytest.mark.parametrize("model", ["cnn:hidden=16", "resnet10", "mlp:8"])
def test_a_run_folder_is_all_that_it_takes_to_use_a_model(model, tmp_path, monkeypatch):
    result = fedrecall.run(tmp_path / "run", dataset="digits", model=model, **SETTINGS)
    digits = load("digits")
    assert right(result.trained, digits) == result.accuracy
    monkeypatch.setattr("fedrecall.reports.runs.load", None)  # no data
    again = fedrecall.trained(tmp_path / "run")
    assert right(again, digits) == result.accuracy
    assert again.inputs == Inputs.of(digits)
    shares = again.probabilities(digits.test.x[:700].numpy())
    assert torch.allclose(shares.sum(1), torch.ones(len(shares)))
    assert again.probabilities(digits.test.x[:0]).shape == (0, 10)
    assert not again.training


GONE = """
from dataclasses import dataclass
from fedrecall.data.datasets import DATASETS
from fedrecall.data.partitions import IID
from fedrecall.measures.moment import Measure

Plain = DATASETS.cls("synthetic")

@dataclass(frozen=True)
class Data(Plain):
    pass

@dataclass(frozen=True)
class Dealt(IID):
    pass

@dataclass(frozen=True)
class Count(Measure):
    def __call__(self, moment):
        return {"visits": len(moment.visits)}
"""


def test_a_model_needs_none_of_what_dealt_and_measured_it(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone.py").write_text(GONE)
    monkeypatch.chdir(tmp_path)
    own = {
        "dataset": "gone.py:Data:classes=3,train=60,test=30,size=4",
        "partition": "gone.py:Dealt",
        "measures": ["gone.py:Count"],
        "model": "mlp:4",
    }
    result = fedrecall.run(tmp_path / "run", **SETTINGS | own)
    monkeypatch.chdir("/")
    images = torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8)
    again = fedrecall.trained(tmp_path / "run")
    assert again.predict(images) == result.trained.predict(images)
    Image.new("L", (4, 4)).save(tmp_path / "one.png")
    code, out, err = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / "one.png")
    assert code == 0, err
    assert "one.png" in out


def test_statistics_are_those_that_the_run_was_trained_with(tmp_path):
    result = fedrecall.run(
        tmp_path / "run", dataset="digits", model="mlp:8", normalisation="fixed", **SETTINGS
    )
    trained = fedrecall.trained(tmp_path / "run")
    assert trained.inputs.mean == trained.inputs.std == (0.5,)
    assert right(trained, load("digits")) == result.accuracy


@pytest.mark.parametrize("model", ["cnn", "mlp:8", "resnet10"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_trained_model_is_a_plain_module_that_can_be_exported(model, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # which some kernels ask
    try:
        settings = configs.make({"dataset": "digits", "model": model})
        digits = load("digits")
        made = make_model(settings, digits, ALGORITHMS.make("fedavg"))
        trained, x = Trained(made, made.initial(), Inputs.of(digits)), digits.test.x
        count = torch.export.Dim("count", max=4096)
        program = torch.export.export(trained, (x[:2],), dynamic_shapes=({0: count},))
        for n in (1, 50):
            assert torch.allclose(program.module()(x[:n]), trained(x[:n]), atol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_answers_are_names_to_compare_labels_with_and_arrays_are_taken():
    result = fedrecall.run(dataset="digits", model="mlp:8", **SETTINGS)
    images, y = (t.numpy() for t in (load("digits").test.x, load("digits").test.y))
    trained = result.trained
    assert np.mean(np.array(trained.predict(images)) == np.array(y).astype(str)) == result.accuracy
    line = "np.mean(np.array(trained.predict(images)) == np.array(y).astype(str))"
    assert line in (Path(__file__).parents[2] / "docs" / "using.md").read_text()
    logits = result.trained(images[:9])
    assert torch.equal(logits, result.trained(torch.from_numpy(images[:9])))


def test_what_is_no_example_is_refused():
    trained = fedrecall.run(dataset="digits", model="mlp:8", **SETTINGS).trained
    with pytest.raises(UserError, match=r"shape \[n, 1, 8, 8\] are needed, not \[8, 8\]"):
        trained.predict(np.zeros((8, 8), np.uint8))
    with pytest.raises(UserError, match=r"pixels from 0 to 255 as uint8, not torch\.float32"):
        trained.predict(np.zeros((1, 1, 8, 8), np.float32))


def scaled(shape, mean, dtype=torch.float32):
    """A data set of numbers that are no pixels, which the class moves."""
    made = load("synthetic:classes=3,train=90,test=60,size=6")
    splits = []
    for split in (made.train, made.test):
        x = torch.randn(len(split), *shape, dtype=dtype)
        splits.append(replace(split, x=x + 2.0 * split.y.view(-1, *(1,) * len(shape))))
    train, test = splits
    return replace(made, train=train, test=test, mean=mean, std=torch.full_like(mean, 1.5))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "mean"),
    [
        ((1, 6, 6), [0.7]),
        ((1, 6, 4), [0.7]),
        ((3, 5), [0.7]),
        ((3, 5), [0.1, 0.2, 0.3, 0.4, 0.5]),
        ((1, 3, 4, 5), [0.7]),
        ((4,), [0.7]),
        ((4,), [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_what_a_run_was_trained_on_it_can_be_asked_about(shape, mean, precision, tmp_path):
    data = scaled(shape, torch.tensor(mean))
    settings = {**SETTINGS, "model": "mlp:8", "precision": precision, "local_epochs": 5}
    result = fedrecall.run(tmp_path / "run", dataset=data, **settings)
    assert result.accuracy > 0.4
    again = fedrecall.trained(tmp_path / "run")
    assert again.inputs == Inputs.of(data)
    for trained in (result.trained, again):
        assert right(trained, data) == result.accuracy
        assert trained.predict(data.test.x.double().numpy()) == trained.predict(data.test.x)


def test_images_that_are_no_pixels_are_told_from_pixels(tmp_path, capsys, monkeypatch):
    data = scaled((1, 6, 6), torch.tensor([0.7]))
    trained = fedrecall.run(tmp_path / "run", dataset=data, model="mlp:8", **SETTINGS).trained
    with pytest.raises(
        UserError, match=r"trained on images of floating-point numbers, not on pixels: .* not torch\.uint8"
    ):
        trained.predict(torch.zeros(1, 1, 6, 6, dtype=torch.uint8))
    with pytest.raises(UserError, match="something else than finite numbers"):
        trained.predict(torch.full((1, 1, 6, 6), torch.inf))
    Image.new("L", (6, 6)).save(tmp_path / "one.png")
    code, _, err = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / "one.png")
    assert code == 2
    assert "trained on images of floating-point numbers" in err
    path = tmp_path / "run" / "inputs.json"
    kept = json.loads(path.read_text())
    assert kept.pop("floats") is True
    path.write_text(json.dumps(kept))  # as a folder has it of which nobody said so
    with pytest.raises(UserError, match="pixels from 0 to 255 as uint8"):
        fedrecall.trained(tmp_path / "run").predict(data.test.x)
    path.write_text(json.dumps(kept | {"floats": 3}))
    with pytest.raises(UserError, match="is damaged"):
        fedrecall.trained(tmp_path / "run")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A folder with a table whose columns have very different sizes, and the rows that it tests with."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count in (("train", 300), ("test", 100)):
        kind = rng.integers(0, 2, count)
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["when", "always", "label", "share"])
            for k in kind:
                when = 1.7e9 + 1e6 * (k + rng.normal(scale=0.3))
                writer.writerow([when, 5, ["low", "high"][k], 0.01 * (k + rng.normal(scale=0.3))])
    return folder


def test_rows_of_a_table_are_moved_and_scaled_as_the_training_rows_were(table, tmp_path):
    settings = {**SETTINGS, "dataset": f"folder:{table}", "model": "mlp:8", "local_epochs": 30}
    result = fedrecall.run(tmp_path / "run", **settings)
    assert result.accuracy > 0.8
    trained = fedrecall.trained(tmp_path / "run")
    assert trained.inputs.columns == ("when", "always", "share")
    lines = [cells for _, _, cells, _ in folders.csv_lines(table / "test.csv")]
    rows = np.array([[float(a), float(b), float(d)] for a, b, _, d in lines])
    found = np.mean([p == c[2] for p, c in zip(trained.predict(rows), lines, strict=True)])
    assert found == result.accuracy
    with pytest.raises(UserError, match="something else than finite"):
        trained.predict(np.full((1, 3), np.nan))
    exported = tmp_path / "exported"
    export(load(f"folder:{table}"), exported)
    assert Inputs.of(load(f"folder:{exported}")) == trained.inputs


def test_predict_reads_tables_by_their_columns_names(table, tmp_path, capsys, monkeypatch):
    fedrecall.run(tmp_path / "run", **{**SETTINGS, "dataset": f"folder:{table}", "model": "mlp:8"})
    straight = table / "test.csv"
    rows = list(csv.DictReader(straight.open()))
    turned = tmp_path / "turned.csv"
    with open(turned, "w", newline="") as file:
        writer = csv.DictWriter(file, ["share", "note", "always", "when"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "note": "x"} for row in rows)
    shutil.rmtree(table)
    straight.parent.mkdir()
    code, out, _ = predict(capsys, monkeypatch, tmp_path / "run", turned, "--csv", tmp_path / "out.csv")
    assert code == 0
    assert "and 60 more" in out
    assert out.index("line 2") < out.index("line 41") < out.index("and 60 more")
    assert "line 42" not in out
    header, *lines = csv.reader((tmp_path / "out.csv").open())
    assert header == ["example", "class", "high", "low"]
    values = np.array([[float(r["when"]), float(r["always"]), float(r["share"])] for r in rows])
    trained = fedrecall.trained(tmp_path / "run")
    assert [line[1] for line in lines] == trained.predict(values)
    shares = np.array([line[2:] for line in lines], dtype=float)
    assert shares == pytest.approx(trained.probabilities(values).numpy(), abs=1e-6)
    assert np.ptp(shares[:, 0]) > 1e-4  # which are told apart
    for line, named in zip(out.splitlines()[1:41], lines[:40], strict=True):
        assert line.split()[-2:] == [named[1], f"{max(map(float, named[2:])):.1%}"]
    turned.write_text("share,always\n1,2\n")
    code, _, err = predict(capsys, monkeypatch, tmp_path / "run", turned)
    assert code == 2
    assert "has no column 'when', which the model was trained on" in err
    turned.write_text("share,always,when\n")
    (tmp_path / "folder.csv").mkdir()
    for name, said in (
        ("turned.csv", "turned.csv has no rows"),
        ("note.txt", "the model was trained on a table: give CSV files, not"),
        ("folder.csv", "folder.csv cannot be read: Is a directory"),
    ):
        code, _, err = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / name)
        assert code == 2
        assert said in " ".join(err.split())


def predict(capsys, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["fedrecall", "predict", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    return end.value.code or 0, said.out, " ".join(said.err.split())


def test_predict_names_the_classes_of_image_files(tmp_path, capsys, monkeypatch):
    result = fedrecall.run(tmp_path / "run", dataset="digits", model="mlp:8", **SETTINGS)
    digits = load("digits")
    files = []
    for i in range(5):
        files.append(tmp_path / f"digit{i}.png")
        Image.fromarray(digits.test.x[i, 0].numpy()).save(files[-1])
    expected = result.trained.predict(digits.test.x[:5])
    monkeypatch.setattr(commands, "CHUNK", 2)
    code, _, _ = predict(capsys, monkeypatch, tmp_path / "run", *files, "--csv", tmp_path / "out.csv")
    assert code == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [str(f), e] for f, e in zip(files, expected, strict=True)
    ]
    Image.new("L", (9, 9)).save(files[0])
    code, _, err = predict(capsys, monkeypatch, tmp_path / "run", files[0])
    assert code == 2
    assert "is 9x9 pixels, but the model was trained on 8x8" in err
    code, _, err = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / "none.png")
    assert "there is no file" in err
    code, _, err = predict(capsys, monkeypatch, tmp_path / "run", files[1], "--round", "7")
    assert "has no checkpoint of round 7, only of 1 and 2" in err


def test_predict_names_files_whose_names_are_no_text(tmp_path, capsys, monkeypatch):
    settings = SETTINGS | {"dataset": "synthetic:classes=3,train=60,test=30,size=4", "model": "mlp:4"}
    fedrecall.run(tmp_path / "run", **settings)
    file = tmp_path / os.fsdecode(b"\xff.png")
    Image.new("L", (4, 4)).save(file)
    code, out, _ = predict(capsys, monkeypatch, tmp_path / "run", file, "--csv", tmp_path / "out.csv")
    assert code == 0
    assert "\N{REPLACEMENT CHARACTER}.png" in out
    assert "?.png" in (tmp_path / "out.csv").read_text()


def test_what_is_too_far_away_for_an_answer_is_said(table, tmp_path):
    trained = fedrecall.run(tmp_path / "run", dataset=f"folder:{table}", model="mlp:4", **SETTINGS).trained
    rows = torch.zeros(3, *trained.inputs.shape, dtype=torch.float64)
    assert len(trained.probabilities(rows)) == 3
    rows[1, 0] = 1e300
    with pytest.raises(UserError, match="example 2 is too far"):
        trained.probabilities(rows)


def test_images_are_taken_as_they_are_and_of_one_size_alone(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "colour.png")
    inputs = Inputs((3, 8, 8), ("a", "b"), (0.5,) * 3, (1.0,) * 3)
    found = _images([tmp_path / "colour.png"] * 2, inputs, resized=False)
    assert np.array_equal(found[1].permute(1, 2, 0), pixels)
    assert np.array_equal(_images([tmp_path / "colour.png"], inputs, resized=True)[0], found[0])
    Image.fromarray(pixels[:, :6]).save(tmp_path / "narrow.png")
    with pytest.raises(UserError, match=r"is 6x8 pixels, .* trained on 8x8; --resize makes it so"):
        _images([tmp_path / "colour.png", tmp_path / "narrow.png"], inputs, resized=False)


def test_predict_resizes_images_as_the_data_set_itself_does(tmp_path, capsys, monkeypatch):
    """HAM10000's images are of another size than what a network is given, which its config does not say."""
    shape = "synthetic:2,train=20,test=10,channels=3,size=64"
    fedrecall.run(tmp_path / "run", dataset=shape, model="mlp:8", **SETTINGS)
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dataset": {"name": "ham10000"}}))
    Image.new("RGB", (120, 90), "brown").save(tmp_path / "lesion.png")
    code, out, _ = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / "lesion.png")
    assert code == 0
    assert "lesion.png" in out
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dataset": {"name": "cifar10"}}))
    code, _, err = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / "lesion.png")
    assert code == 2
    assert "is 120x90 pixels, but the model was trained on 64x64; --resize makes it so" in " ".join(
        err.split()
    )
    again = predict(capsys, monkeypatch, tmp_path / "run", tmp_path / "lesion.png", "--resize")
    assert again[:2] == (0, out)  # as it was, when the data set was said to be so
    wide = replace(fedrecall.trained(tmp_path / "run").inputs, shape=(3, 32, 64))
    with pytest.raises(UserError, match="made square alone"):
        _images([tmp_path / "lesion.png"], wide, resized=True)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"shape": [1, 8, 8], "class_names": ["a", "b"], "mean": [0.5, 1], "std": [1], "columns": []}',
        '{"shape": [1, 8, 8], "class_names": ["a", "b"], "mean": [0.5], "std": [0], "columns": []}',
        '{"shape": [1, 8, 8], "class_names": ["a", "b"], "mean": [NaN], "std": [1], "columns": []}',
        '{"shape": 3, "class_names": ["a", "b"], "mean": [0.5], "std": [1], "columns": []}',
        '{"shape": [], "class_names": ["a", "b"], "mean": [0.5], "std": [1], "columns": []}',
        '{"shape": [8, 8], "class_names": ["a", "b"], "mean": [0.5, 1], "std": [1, 1], "columns": []}',
        '{"shape": [1, 8, 1e999], "class_names": ["a", "b"], "mean": [0.5], "std": [1], "columns": []}',
        f'{{"shape": [1, 8, {2**63}], "class_names": ["a", "b"], "mean": [0.5], "std": [1], "columns": []}}',
        f'{{"shape": [1, 8, 8], "class_names": ["a", "b"], "mean": [{10**400}], "std": [1], "columns": []}}',
    ],
)
def test_damaged_inputs_are_told(content, tmp_path):
    (tmp_path / "inputs.json").write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        Inputs.load(tmp_path / "inputs.json")


def test_one_mean_for_all_channels_is_written_for_each(tmp_path):
    made = load("synthetic:classes=3,train=60,test=30,size=6,channels=3")
    Inputs.of(replace(made, mean=made.mean[:1], std=made.std[:1])).save(tmp_path / "inputs.json")
    found = Inputs.load(tmp_path / "inputs.json")
    assert (len(found.mean), len(set(found.mean)), len(found.std)) == (3, 1, 3)
