"""Every figure draws what its runs recorded, and says what is missing where they did not."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
from matplotlib.figure import Figure as Page
from PIL import Image
from tests.reports.synthetic import MADE, changed, write
from tools.docs import MEASURES

import fedrecall
from fedrecall.algorithms import ALGORITHMS
from fedrecall.cli.app import app
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.measures.accuracy import accuracy, class_accuracy, consistency, evaluate, in_local
from fedrecall.measures.alignment import preferences
from fedrecall.measures.features import circle_density, features, on_circle
from fedrecall.models.networks import MODELS
from fedrecall.papers import table
from fedrecall.records import Fault, RunFolder
from fedrecall.reports.figures import FIGURES, draw
from fedrecall.reports.figures.figure import heat, legend_below, page
from fedrecall.reports.figures.forgetting import skew
from fedrecall.reports.figures.replayed import stages
from fedrecall.reports.figures.sequential import SequentialForgetting
from fedrecall.reports.replay import stage
from fedrecall.reports.runs import Run, open_runs
from fedrecall.reports.statistics import correlation

BASE = {
    "dataset": "synthetic:4,train=240,test=60",
    "model": "cnn:hidden=16",
    "clients": 6,
    "sample": 3,
    "rounds": 3,
    "partition": "shards:2",
    "training.local_epochs": 2,
    "training.lr": 0.05,
    "backend": "serial",
}
SEEN = {"measures": ["locals", "personal", "divergence"]}
SEQUENTIAL = {**BASE, "algorithm": "fedseq", "measures": ["chain"], "model": "mlp"}
WANTED = {
    "fedavg-0": {**BASE, **SEEN, "algorithm": "fedavg"},
    "fedavg-1": {**BASE, **SEEN, "algorithm": "fedavg", "seed": 1},
    "fedntd-0": {**BASE, **SEEN, "algorithm": "fedntd"},
    "iid-0": {**BASE, "algorithm": "fedavg", "partition": "iid"},
    "late-0": {**BASE, "training.local_epochs": 4, "training.stragglers": 0.7},
    "beta-3": {**BASE, "algorithm": "fedntd:beta=3"},
    "tau-2": {**BASE, "algorithm": "fedntd:tau=2"},
    "aux-0": {**BASE, **SEEN, "algorithm": "fedavg", "auxiliary_per_class": 20},
    "circle": {**BASE, "algorithm": "fedavg", "model": "circle"},
    "seq-0": SEQUENTIAL,
    "seq-iid": {**SEQUENTIAL, "partition": "iid"},
    "seq-2": {**SEQUENTIAL, "rounds": 5, "measures": ["chain:2"]},
    "seq-chains": {**SEQUENTIAL, "sample": 4, "chains": 2},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, settings in WANTED.items():
        fedrecall.run(root / name, **settings)
    return lambda *names: [root / name for name in names]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "figures"


def test_files_and_numbers_are_written(runs, out):
    drawn = draw("fedntd/fig3:clients=2", runs("fedavg-0"), out)
    assert [p.name for p in drawn.files] == ["fedntd-fig3.png", "fedntd-fig3.pdf", "fedntd-fig3.json"]
    with Image.open(drawn.files[0]) as image:
        assert image.width > 300
    assert drawn.files[1].read_bytes().startswith(b"%PDF")
    assert json.loads(drawn.files[2].read_text()) == drawn.data
    assert np.array(drawn.data["in_local"]).shape == (2, 4)
    assert np.array(drawn.data["out_local"]) == pytest.approx((1 - np.array(drawn.data["in_local"])) / 3)
    before = drawn.files[0].read_bytes(), drawn.files[1].read_bytes()
    again = draw("fedntd/fig3:clients=2", runs("fedavg-0"), out)
    assert (again.files[0].read_bytes(), again.files[1].read_bytes()) == before


def test_curves_are_mean_and_deviation_over_seeds(runs, out):
    found = draw("fedntd/fig7", runs("fedavg-0", "fedavg-1", "fedntd-0"), out).data["lines"]
    line = next(x for x in found if x["quantity"] == "accuracy" and x["algorithm"] == "fedavg")
    rows = np.stack([Run(p).series("accuracy") for p in runs("fedavg-0", "fedavg-1")])
    assert line["mean"] == pytest.approx(rows.mean(0))
    assert line["std"] == pytest.approx(rows.std(0, ddof=1))
    single = next(x for x in found if x["quantity"] == "out-local" and x["algorithm"] == "fedntd")
    measured = Run(*runs("fedntd-0")).measured("locals")
    assert single["std"] is None
    assert single["mean"] == pytest.approx([np.mean(m["out_local"]["local"]) for _, m in measured])


@pytest.mark.parametrize(
    ("name", "quantities"),
    [
        ("fedntd/fig11", ["personalised", "accuracy"]),
        ("fedntd/fig12", ["local train", "personalised", "accuracy"]),
        ("fedntd/fig13", ["accuracy"]),
        ("fedcad/fig1", ["accuracy", "local average"]),
        ("fedssd/fig7", ["accuracy", "local average"]),
        ("fedssd/fig8", ["accuracy"]),
    ],
)
def test_learning_curves(runs, out, name, quantities):
    lines = draw(name, runs("fedavg-0", "fedntd-0"), out).data["lines"]
    assert [(x["quantity"], x["algorithm"]) for x in lines] == [
        (q, a) for q in quantities for a in ("fedavg", "fedntd")
    ]


def test_forgetting_from_even_to_skewed(runs, out):
    data = draw("fedntd/fig2", runs("fedavg-0", "fedavg-1", "iid-0"), out).data
    assert [b["group"] for b in data["forgetting"]] == ["fedavg (iid)", "fedavg (shards:2)"]
    bar = data["forgetting"][1]
    two = [Run(p).records[-1]["forgetting"] for p in runs("fedavg-0", "fedavg-1")]
    assert (bar["mean"], bar["n"]) == (pytest.approx(np.mean(two)), 2)
    assert bar["std"] == pytest.approx(np.std(two, ddof=1))
    assert [p["group"] for p in data["class_accuracy"]] == ["fedavg (iid)", "fedavg (shards:2)"]
    curve = data["consistency"][0]
    assert curve["rounds"] == [2, 3]
    assert curve["mean"] == pytest.approx([r["consistency"] for r in Run(*runs("iid-0")).records[1:]])
    both = [[r["consistency"] for r in Run(p).records[1:]] for p in runs("fedavg-0", "fedavg-1")]
    assert data["consistency"][1]["mean"] == pytest.approx(np.mean(both, axis=0))


def test_skew_is_the_mean_distance_of_clients_labels_from_all_clients(tmp_path):
    run = write(tmp_path / "run")
    held = json.loads((run / "partition.json").read_text())
    held["meta"]["counts"] = [[10, 0, 0], [0, 10, 0]]
    (run / "partition.json").write_text(json.dumps(held))
    assert skew(Run(run)) == pytest.approx(0.5)  # half of each client's labels would have to move
    held["meta"]["counts"] = [[30, 10, 0], [0, 0, 0], [0, 0, 0]]
    (run / "partition.json").write_text(json.dumps(held))
    assert skew(Run(run)) == pytest.approx((0 + 0.5 + 0.5) / 3)


def skewed(folder, by, **settings):
    """A run whose three kinds of clients have so many examples more of one class than of the others."""
    write(folder, **settings)
    meta = json.loads((folder / "partition.json").read_text())["meta"]
    meta["counts"] = [[10 + by * (k % 3 == c) for c in range(3)] for k in range(len(meta["counts"]))]
    (folder / "partition.json").write_text(json.dumps({"meta": meta}))
    return folder


def test_forgettings_pictures_are_of_the_pair_that_is_asked_for(tmp_path, out):
    folders = {
        spec: skewed(tmp_path / spec, by, partition=PARTITIONS.spec(PARTITIONS.make(spec)))
        for spec, by in (("shards:1", 90), ("lda:0.1", 50), ("iid", 0), ("shards:2", 20))
    }

    def pictured(given="", without=()):
        data = draw(f"fedntd/fig2{given}", [f for n, f in folders.items() if n not in without], out).data
        assert [p["group"] for p in data["consistency"]] == [p["group"] for p in data["class_accuracy"]]
        return [p["group"].removeprefix("fedavg (").removesuffix(")") for p in data["class_accuracy"]]

    assert pictured() == ["iid", "lda:0.1"]  # the paper's, though shards:1 is more skewed
    assert pictured(":pair=lda:0.1+shards:2") == ["lda:0.1", "shards:2"]
    assert pictured(without=["lda:0.1"]) == ["iid", "shards:1"]
    assert pictured(without=["iid"]) == ["shards:2", "lda:0.1"]
    assert pictured(without=["iid", "lda:0.1"]) == ["shards:2", "shards:1"]
    with pytest.raises(UserError, match="pair is two partitions"):
        pictured(":pair=iid")
    with pytest.raises(UserError, match="unknown partition"):
        pictured(":pair=iid+nothing")


def test_several_data_sets_stand_side_by_side(tmp_path, out):
    cifar, even = {"dataset": {"name": "cifar10"}}, {"partition": {"name": "iid"}}
    folders = [
        skewed(tmp_path / "digits", 20),
        skewed(tmp_path / "digits-iid", 0, **even, better=1),
        skewed(tmp_path / "cifar10", 20, **cifar, better=2),
        skewed(tmp_path / "cifar10-iid", 0, **cifar, **even, better=3),
    ]
    data = draw("fedntd/fig2", folders, out).data
    assert [b["dataset"] for b in data["forgetting"]] == ["digits", "digits", "cifar10", "cifar10"]
    last = [Run(folder).records[-1]["forgetting"] for folder in folders]
    assert [b["mean"] for b in data["forgetting"]] == [last[i] for i in (1, 0, 3, 2)]  # even ones first
    pictures = [p["values"] for p in data["class_accuracy"]]
    assert pictures == [Run(folder).series("class_accuracy").tolist() for folder in (folders[1], folders[0])]

    lines = draw("sfedkd/fig6", folders[::2], out).data["lines"]
    assert [(x["dataset"], x["group"]) for x in lines] == [("digits", "fedavg"), ("cifar10", "fedavg")]
    bars = draw("sfedkd/fig7", folders[::2], out).data["bars"]
    reached = [round(0.9 * Run(folder).series("accuracy").max(), 3) for folder in folders[::2]]
    assert [bars[2]["target"], bars[5]["target"]] == reached


TURNS = """
from dataclasses import dataclass
from fedrecall.data.partitions import Partition

@dataclass(frozen=True)
class Turns(Partition):
    step: int = 1

    def owners(self, labels, clients, rng):
        return rng.integers(clients, size=len(labels))
"""


def test_seeds_on_own_data_are_of_one_data_set_wherever_its_file_lies_and_that_is_not_loaded(tmp_path, out):
    folders = []
    for partition, by in (("Turns", 10), ("Skews", 60), ("Most", 90)):
        for seed in (0, 1):
            (tmp_path / f"{seed}").mkdir(exist_ok=True)
            (tmp_path / f"{seed}" / "own.py").write_text("raise SystemExit('it was loaded')")
            made = MADE | {"code": {f"own.py:{name}": "0123" for name in ("Mine", partition)}}
            folder = skewed(tmp_path / f"{partition}{seed}", by, seed=seed, made=made)
            config = json.loads((folder / "config.json").read_text())
            config["dataset"] = {"name": f"{tmp_path}/{seed}/own.py:Mine", "size": 60}
            config["partition"] = {"name": f"{tmp_path}/{seed}/own.py:{partition}"}
            (folder / "config.json").write_text(json.dumps(config))
            folders.append(folder)
    bars = draw("fedntd/fig2", folders, out).data["forgetting"]
    assert [(b["dataset"], b["n"]) for b in bars] == [("own.py:Mine(size=60)", 2)] * 3
    lines = draw("sfedkd/fig6", folders, out).data["lines"]
    assert [x["dataset"] for x in lines] == ["own.py:Mine(size=60)"] * 3
    (tmp_path / "mine.py").write_text(TURNS)
    for folder in folders[2:4]:
        made = json.loads((folder / "made.json").read_text())
        made[0]["code"] |= {"mine.py:Turns": "4567"}
        (folder / "made.json").write_text(json.dumps(made))
        config = json.loads((folder / "config.json").read_text())
        config["partition"] = {"name": "elsewhere/mine.py:Turns", "step": 2}
        (folder / "config.json").write_text(json.dumps(config))
    data = draw(f"fedntd/fig2:pair={tmp_path}/mine.py:Turns:2+iid", folders, out).data
    assert [p["group"] for p in data["class_accuracy"]] == [
        "fedavg (mine.py:Turns(step=2))",
        "fedavg (own.py:Most)",
    ]


def test_in_and_out_local_bars(runs, out):
    lines = draw("fedntd/fig4", runs("fedavg-0"), out).data["lines"]
    _, measured = Run(*runs("fedavg-0")).measured("locals")[-1]
    inside = next(x for x in lines if x["side"] == "in_local")
    assert inside["local"][-1] == pytest.approx(np.mean(measured["in_local"]["local"]))
    assert inside["local_std"][-1] == pytest.approx(np.std(measured["in_local"]["local"], ddof=1))
    assert inside["sent"][-1] == pytest.approx(np.mean(measured["in_local"]["before"]))


def test_distances_and_their_correlation(runs, out):
    data = draw("fedntd/fig8", runs("fedavg-0", "fedavg-1"), out).data
    points = data["scatter"][0]
    assert len(points["weights"]) == 2 * 3 * 3  # seeds, rounds, clients
    assert points["correlation"] == pytest.approx(correlation(points["distribution"], points["weights"]))
    measured = [m for p in runs("fedavg-0", "fedavg-1") for _, m in Run(p).measured("divergence")]
    for key in ("weights", "distribution"):
        assert points[key] == pytest.approx([v for m in measured for v in m[key]])


def test_normalised_pictures_sum_to_one(runs, out):
    picture = draw("fedntd/fig10", runs("fedavg-0"), out).data["pictures"][0]
    assert np.sum(picture["values"], axis=1) == pytest.approx([1, 1, 1])


def test_during_training_starts_from_the_global_model(runs, out):
    line = draw("fedntd/fig6:clients=2,epochs=1", runs("fedavg-0"), out).data["lines"][0]
    run = Run(*runs("fedavg-0"))
    last = np.array(run.records[-1]["class_accuracy"])
    for client in range(2):
        assert line["in_local"][client][0] == pytest.approx(in_local(run.distributions[client], last))
    assert np.shape(line["out_local"]) == (2, 2)
    line = draw("fedntd/fig6:clients=6,epochs=0", runs("late-0"), out).data["lines"][0]  # with stragglers
    assert np.shape(line["out_local"]) == (6, 5)


def test_sweeps_pick_one_setting_at_a_time(runs, out):
    names = ("fedavg-0", "fedntd-0", "beta-3", "tau-2")
    points = draw("fedntd/fig15", runs(*names), out).data["points"]
    beta = {p["x"]: p["mean"] for p in points if p["setting"] == "algorithm.beta"}
    last = {name: Run(*runs(name)).records[-1] for name in names}
    assert beta == {
        1: last["fedntd-0"]["accuracy"],
        3: last["beta-3"]["accuracy"],
        None: last["fedavg-0"]["accuracy"],
    }
    tau = [p["x"] for p in points if p["setting"] == "algorithm.tau"]
    assert tau == [1, 2, None]
    points = draw("fedntd/fig16", runs(*names), out).data["points"]
    assert points[0]["mean"] == last["fedntd-0"]["forgetting"]
    with pytest.raises(UserError, match="teachers"):
        draw("sfedkd/fig4", runs("fedavg-0"), out)


def test_loss_space(runs, out):
    options = "examples=20,points=3,draws=2,sizes=0+0.1,iterations=5"
    model = draw(f"fedntd/fig14:{options}", runs("fedavg-0"), out).data["models"][0]
    assert np.shape(model["curve"]) == (2, 2)
    assert model["surface"][1][1] == pytest.approx(model["curve"][0][0], rel=1e-6)  # both are at the weights
    assert abs(model["eigenvalues"][0]) >= abs(model["eigenvalues"][1]) * 0.5


def test_preferred_classes_agree_with_themselves(runs, out):
    row = draw("fedntd/fig17:clients=2", runs("fedavg-0"), out).data["rows"][0]
    assert row["layer"] == "fc1"
    assert row["alignment"]["global, sent"] == 1
    assert len(row["preferred"]["aggregated"]) == 16
    sent, after = (np.array(row["preferred"][k]) for k in ("global, sent", "aggregated"))
    alive = (sent >= 0) | (after >= 0)
    assert row["alignment"]["aggregated"] == pytest.approx((sent == after)[alive].mean())
    run = Run(*runs("fedavg-0"))
    (chosen,) = [[k for chain in r["chains"] for k in chain][:2] for r in run.records[-1:]]
    assert list(row["preferred"]) == ["global, sent", *(f"client {k}" for k in chosen), "aggregated"]
    at = stage(run, round_number=2)
    test = at.federation.test
    for number, found in ((2, sent), (3, after)):
        assert found.tolist() == preferences(run.model, run.weights(number), test, ("fc1",))["fc1"].tolist()
    for k, weights in zip(chosen, at.locals(chosen), strict=True):
        expected = preferences(run.model, weights, test, ("fc1",))["fc1"]
        assert row["preferred"][f"client {k}"] == expected.tolist()


def test_hypersphere(runs, out):
    row = draw("fedntd/fig18:clients=1,averaged=2", runs("circle"), out).data["rows"][0]
    assert set(row["models"]) == {"global", "client 0", "aggregated"}
    angles = row["models"]["global"]["angles"]
    for density in row["models"]["global"]["classes"]:
        assert np.trapezoid(density, angles) == pytest.approx(1, abs=1e-3)
    run = Run(*runs("circle"))
    at = stage(run)
    models = [at.visit(k).up.weights for k in (0, 1)]
    assert at.federation.size(0) == at.federation.size(1)  # so that the mean is halfway between them
    half = [{n: (t + two[n]) / 2 for n, t in one.items()} for one, two in zip(*models, strict=True)]
    for name, weights in (
        ("global", run.weights()),
        ("client 0", models[0]),
        ("aggregated", type(models[0])(*half)),
    ):
        values, labels = features(run.model, weights, at.federation.test)
        for c, density in enumerate(row["models"][name]["classes"]):
            own = on_circle(values[labels == c])
            assert density == pytest.approx(circle_density(own, np.array(angles)), rel=1e-3, abs=1e-4)
    with pytest.raises(UserError, match="--model circle"):
        draw("fedntd/fig18", runs("fedavg-0"), out)


def test_maps(runs, out):
    maps = draw("fedntd/fig19:clients=2,examples=10", runs("fedavg-0"), out).data["maps"]
    assert set(maps["heterogeneous"]) == {"global", "client 0", "client 1"}
    assert np.shape(maps["homogeneous"]["global"]["points"]) == (10, 2)
    labels = [m["labels"] for m in maps["homogeneous"].values()]
    assert labels[0] == labels[1] == labels[2]  # every model maps the same examples
    models = draw("fedntd/fig21:clients=1,examples=10", runs("fedavg-0"), out).data["models"]
    assert list(models) == ["global", "fedavg 0", "fedntd 0"]
    assert draw("fedntd/fig20:clients=2,examples=8,shown=1", runs("fedavg-0"), out).files[0].exists()


def test_algorithms_that_change_the_network_are_replayed_with_theirs(runs, out):
    figure = "fedntd/fig21:clients=1,examples=10,algorithms=fedavg"
    models = draw(f"{figure}+fedalign+moon", runs("fedavg-0"), out).data["models"]
    assert list(models) == ["global", "fedavg 0", "fedalign 0", "moon 0"]
    with pytest.raises(UserError, match=r"moon trains another network than that of .*fedavg-0: leave it out"):
        draw(f"{figure}+moon:projection=8", runs("fedavg-0"), out)


def test_an_algorithm_is_replayed_with_the_settings_that_are_named(runs):
    (run,) = map(Run, runs("beta-3"))
    made = stages(run, ("fedntd", "fedntd:beta=3"), 0)
    assert [at.algorithm.beta for at in made.values()] == [ALGORITHMS.make("fedntd").beta, 3]
    assert made["fedntd"].server is not made["fedntd:beta=3"].server


def test_special_confusion_and_confusion_matrices(runs, out):
    rows = draw("fedcad/fig2:client=2,epochs=1", runs("aux-0"), out).data["rows"]
    run = Run(*runs("aux-0"))
    assert rows["labels"] == pytest.approx(run.distributions[2].tolist())
    assert rows["global"] == pytest.approx(run.records[-1]["class_accuracy"])
    at = stage(run, local_epochs=1)
    trained = evaluate(at.model, at.visit(2).up.weights, at.federation.test)
    assert rows["fedavg"] == pytest.approx(class_accuracy(trained.confusion).tolist())
    data = draw("fedssd/fig4:client=2,epochs=1,algorithms=fedavg", runs("aux-0"), out).data
    assert np.diag(data["matrices"]["fedavg"]) == pytest.approx(rows["fedavg"])
    assert accuracy(trained.confusion) == pytest.approx(np.mean(rows["fedavg"]))  # the test set is even
    with pytest.raises(UserError, match="--auxiliary-per-class 64"):
        draw("fedssd/fig4", runs("fedavg-0"), out)
    for figure in ("fedcad/fig2", "fedssd/fig4"):
        with pytest.raises(UserError, match="there is no client 99, only 0 to "):
            draw(f"{figure}:client=99", runs("aux-0"), out)


def test_global_against_local_and_one_client(runs, out):
    points = draw("fedssd/fig2", runs("fedavg-0"), out).data["points"][0]
    run = Run(*runs("fedavg-0"))
    after = [r["accuracy"] for r in run.records]
    assert points["rounds"] == [r["round"] for r in run.records]
    assert points["global"][1:] == pytest.approx(after[:-1])  # what is sent is what the round before made
    assert points["global"][0] not in (pytest.approx(after[0]), pytest.approx(points["local"][0]))
    assert points["local"] == [m["local_average_accuracy"] for _, m in run.measured("locals")]
    client = run.records[0]["chains"][0][0]
    data = draw(f"fedssd/fig3:client={client}", runs("fedavg-0"), out).data
    assert data["rounds"][0] == 1
    assert data["local"][0] == run.records[0]["measures"]["locals"]["class_accuracy"][0]
    assert data["global"][0] != run.records[0]["class_accuracy"]
    measured = run.records[1]["measures"]["locals"]
    unlike = [k for k, own in enumerate(run.distributions) if list(own) != list(run.distributions[0])]
    client = next(k for k in measured["clients"][1:] if k in unlike)
    data = draw(f"fedssd/fig3:client={client}", runs("fedavg-0"), out).data
    place = measured["clients"].index(client)
    at = data["rounds"].index(2)
    assert data["local"][at] == measured["class_accuracy"][place]
    assert data["global"][at] == run.records[0]["class_accuracy"]
    assert data["distribution"] == pytest.approx(run.distributions[client].tolist())
    with pytest.raises(UserError, match=r"client 6 took part in no measured round of .*fedavg-0"):
        draw("fedssd/fig3:client=6", runs("fedavg-0"), out)


def test_of_earlier_versions_runs_what_was_sent_is_the_model_of_the_round_before(tmp_path, out):
    run = Run(write(tmp_path / "old"))
    (points,) = draw("fedssd/fig2", [run.path], out).data["points"]
    assert points["rounds"] == [2, 3, 4, 5, 6]
    assert points["global"] == pytest.approx([r["accuracy"] for r in run.records[:-1]])
    with pytest.raises(UserError, match="was measured by an earlier version"):
        draw("fedssd/fig2", [write(tmp_path / "one", played=1)], out)


def test_what_clients_of_a_chain_were_sent_is_not_the_global_model(out, tmp_path):
    write(tmp_path / "run")

    def in_a_chain(record):
        record["chains"] = [[0, 1]]
        record["measures"]["locals"]["class_accuracy"] = [record["class_accuracy"]] * 2

    changed(tmp_path / "run", in_a_chain)
    for figure in ("fedssd/fig2", "fedssd/fig3"):
        with pytest.raises(UserError, match="along its chains these are others"):
            draw(figure, [tmp_path / "run"], out)


def test_local_models_are_drawn_at_home_where_that_was_measured_and_not_averaged_otherwise(out, tmp_path):
    for seed, told in enumerate(
        ({"at_home": [0.25, None]}, {"at_home": [0.5, 1.0]}, {"personalised": [0, 1]})
    ):
        write(tmp_path / str(seed), seed=seed)
        changed(
            tmp_path / str(seed),
            lambda r, of=told: r["measures"].update(personal={"clients": [0, 1], "train": [1, 1], **of}),
        )
    lines = draw("fedntd/fig11", [tmp_path / "0", tmp_path / "1"], out).data["lines"]
    assert [line["quantity"] for line in lines] == ["at home", "accuracy"]
    assert lines[0]["mean"] == pytest.approx([(0.25 + 0.75) / 2] * 6)
    lines = draw("fedntd/fig12", [tmp_path / "2"], out).data["lines"]
    assert lines[1]["quantity"] == "personalised"
    assert lines[1]["mean"] == pytest.approx([0.5] * 6)
    with pytest.raises(UserError, match="2 was measured by an earlier version, on clients' mixture"):
        draw("fedntd/fig11", [tmp_path / "1", tmp_path / "2"], out)


def test_bubbles_are_the_partition(runs, out):
    data = draw("fedssd/fig6", runs("fedavg-0", "iid-0"), out).data["runs"]
    assert np.array(data[0]["counts"]).sum() == 240
    assert data[1]["counts"] == Run(*runs("iid-0")).counts.tolist()


def test_sequential_forgetting(runs, out):
    data = draw("sfedkd/fig1", runs("seq-0", "seq-iid"), out).data
    assert [b["group"] for b in data["forgetting"]] == ["fedseq (iid)", "fedseq (shards:2)"]
    values = np.array(data["class_accuracy"][1]["values"])
    assert values.shape == (9, 4)  # three rounds of three clients
    assert data["consistency"][1]["values"][5] == pytest.approx(consistency(values[4], values[5]))
    assert data["consistency"][1]["breaks_before"] == []
    drift = data["drift"][0]
    assert len(drift["own"]) == len(drift["next"]) == 6  # the last of each chain has no next
    assert drift["breaks_before"] == [3, 5]


def test_without_its_drift_a_chain_is_not_drawn(out, tmp_path):
    fedrecall.run(tmp_path / "run", **{**SEQUENTIAL, "rounds": 1, "measures": ["chain:drift=false"]})
    with pytest.raises(UserError, match="run lacks the drift along its chains: run it with --measure chain"):
        draw("sfedkd/fig1", [tmp_path / "run"], out)


@pytest.mark.parametrize(
    ("name", "last", "breaks"),
    [("seq-0", 9, []), ("seq-2", 9, [4]), ("seq-2", 7, [2]), ("seq-chains", 12, [3, 5, 7, 9, 11])],
)
def test_consistency_along_chains_is_the_recorded_one_and_broken_where_models_do_not_follow(
    runs, name, last, breaks
):
    made, data = SequentialForgetting(last=last).plot(open_runs(runs(name)))
    recorded = [
        v for _, m in Run(*runs(name)).measured("chain") for c in m["chains"] for v in c["consistency"]
    ]
    (found,) = data["consistency"]
    assert found["values"].tolist() == recorded[-last:]
    seen = [
        row for _, m in Run(*runs(name)).measured("chain") for c in m["chains"] for row in c["class_accuracy"]
    ]
    assert data["class_accuracy"][0]["values"].tolist() == seen[-last:]
    assert found["breaks_before"].tolist() == breaks
    (panel,) = (ax for ax in made.axes if ax.get_title() == "cosine with client before")
    x, y = panel.lines[0].get_data()
    assert x[~np.isnan(x)].tolist() == list(range(1, last + 1))
    assert [x[i + 1] for i in np.flatnonzero(np.isnan(y))] == breaks


def test_columns_of_a_picture_are_at_their_rounds():
    axes = Page().subplots()
    mesh = heat(axes, np.arange(8).reshape(2, 4), [1, 2, 10, 12])
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0.5, 1.5, 6, 11, 13]
    assert mesh.get_array().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert axes.get_xlim() == (0.5, 13)
    assert axes.get_ylim() == (1.5, -0.5)  # the first row is on top
    one = heat(Page().subplots(), np.ones((2, 1)), [7])
    assert one.get_coordinates()[0, :, 0].tolist() == [6.5, 7.5]


def test_settings_that_are_not_swept_make_lines_of_their_own(tmp_path, out):
    better = 0
    for lr in (0.1, 0.5):
        for epochs in (1, 2):
            more = {"training": {"lr": lr, "local_epochs": epochs}, "better": better}
            write(tmp_path / "runs" / f"{lr}-{epochs}", **more)
            better += 1
    points = draw("fedssd/fig9", [tmp_path / "runs"], out).data["points"]
    ends = [r.records[-1]["accuracy"] for r in open_runs([tmp_path / "runs"])]
    assert [(p["line"], p["x"]) for p in points] == [
        *(("fedavg lr=0.1", 1), ("fedavg lr=0.1", 2)),
        *(("fedavg lr=0.5", 1), ("fedavg lr=0.5", 2)),
    ]
    assert [p["mean"] for p in points] == ends


def test_two_experiments_are_not_one_point(tmp_path, out):
    for name in ("a", "b"):  # what code was there was not noted
        path = write(tmp_path / name, model="mlp") / "config.json"
        gone = {"algorithm": {"name": f"{tmp_path}/{name}/gone.py:Mine"}}
        path.write_text(json.dumps(json.loads(path.read_text()) | gone))
    with pytest.raises(UserError, match=r"two experiments .*local_epochs = 5 of 'gone.py:Mine'"):
        draw("fedssd/fig9", [tmp_path], out)


def test_a_setting_that_a_run_was_saved_without_has_its_default_in_a_sweep(tmp_path, out):
    for beta in (1, 2):
        write(tmp_path / f"{beta}", algorithm=f"fedntd:beta={beta}")
    path = tmp_path / "1" / "config.json"
    config = json.loads(path.read_text())
    del config["algorithm"]["beta"], config["normalisation"]
    path.write_text(json.dumps(config))
    points = draw("fedntd/fig15", [tmp_path], out).data["points"]
    assert [(p["line"], p["x"]) for p in points if p["setting"] == "algorithm.beta"] == [
        ("fedntd", 1),
        ("fedntd", 2),
    ]


def test_a_figure_says_which_runs_are_not_finished_or_counted_twice(tmp_path, out, capsys):
    write(tmp_path / "runs" / "done")
    shutil.copytree(tmp_path / "runs" / "done", tmp_path / "runs" / "done-copy")
    write(tmp_path / "runs" / "going", seed=1, played=4)
    drawn = draw("fedssd/fig9", [tmp_path / "runs"], out)
    assert drawn.notes == drawn.data["notes"]
    assert drawn.notes == [
        "going stands at round 4 of 6.",
        "done-copy is the same experiment with the same seed as done and is left out.",
    ]
    assert drawn.data["points"][0]["n"] == 2
    assert json.loads(drawn.files[2].read_text())["notes"] == drawn.notes
    assert len(draw("fedssd/fig6", [tmp_path / "runs"], out).data["runs"]) == 2
    assert not draw("fedssd/fig9", [tmp_path / "runs" / "done"], out).notes
    with pytest.raises(SystemExit, match="0"):
        app(["figure", "fedssd/fig9", str(tmp_path / "runs"), "--out", str(out)])
    assert "going stands at round 4 of 6." in capsys.readouterr().out


def test_a_figure_leaves_out_a_seed_that_failed_and_says_so(tmp_path, out):
    for seed, played in ((0, 6), (1, 6), (2, 2)):
        write(tmp_path / str(seed), seed=seed, played=played)
    RunFolder(tmp_path / "2").fail(Fault(3, "client 4 gave NaN."))
    drawn = draw("fedntd/fig13", [tmp_path], out)
    assert drawn.notes == ["2 failed at round 3 of 6: client 4 gave NaN."]
    RunFolder(tmp_path / "2").go_on()
    assert draw("fedntd/fig13", [tmp_path], out).notes == ["2 stands at round 2 of 6."]


def test_accuracy_over_time_and_time_to_target(runs, out):
    line = draw("sfedkd/fig6", runs("fedavg-0"), out).data["lines"][0]
    records = Run(*runs("fedavg-0")).records
    slowest = [max(r["seconds"]["clients"]) for r in records]
    assert line["seconds"] == pytest.approx(np.cumsum(slowest))
    target = records[1]["accuracy"]
    bar = draw(f"sfedkd/fig7:targets={target},clock=working", runs("fedavg-0"), out).data["bars"][0]
    reached = next(i for i, r in enumerate(records) if r["accuracy"] >= target)
    assert bar["rounds"] == [reached + 1]
    assert bar["seconds"] == pytest.approx(sum(sum(r["seconds"]["clients"]) for r in records[: reached + 1]))
    never = draw("sfedkd/fig7:targets=1.0", runs("fedavg-0"), out).data["bars"][0]
    assert never["seconds"] is None
    for wrong in ("60", "0.5+1.1", "0"):
        with pytest.raises(UserError, match=r"is no accuracy above 0 and up to 1, such as 0\.6"):
            draw(f"sfedkd/fig7:targets={wrong}", runs("fedavg-0"), out)
    names = runs("fedavg-0", "fedavg-1")
    two = draw("sfedkd/fig6", names, out).data["lines"][0]
    waited = [np.cumsum([max(r["seconds"]["clients"]) for r in Run(p).records]) for p in names]
    assert two["seconds"] == pytest.approx(np.mean(waited, axis=0))
    best = sorted(max(r["accuracy"] for r in Run(p).records) for p in names)
    assert best[0] < best[1]
    bars = draw("sfedkd/fig7", names, out).data["bars"]
    assert [b["target"] for b in bars] == [round(f * best[0], 3) for f in (0.5, 0.75, 0.9)]
    assert None not in [b["seconds"] for b in bars]
    (one,) = draw(f"sfedkd/fig7:targets={best[1]}", names, out).data["bars"]
    assert (one["seconds"], sorted(r is None for r in one["rounds"])) == (None, [False, True])


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_says_what_it_needs(name):
    cls = FIGURES.cls(name)
    assert cls.__doc__
    assert cls.caption
    assert cls.needs
    for command in cls.commands:
        words = shlex.split(command, comments=True)
        assert words[:2] == ["fedrecall", "run"]
        options = dict(zip(words[2::2], words[3::2], strict=True))
        for option, registry in (("algorithm", ALGORITHMS), ("partition", PARTITIONS), ("model", MODELS)):
            for spec in options.get(f"--{option}", "").strip("[]").split("|"):
                if spec:
                    registry.make(spec)  # it can be run
        if "lenet_cifar" in words or "alexnet8" in words or "fedseq" in words:
            assert "--augmentation" in words  # the default is FedNTD's, with Cutout


def test_commands_with_a_hundred_very_unequal_clients_ask_for_enough_draws():
    """It takes about 24,000 of CIFAR-10, which is more than the default; the papers' recipes say so, too."""
    recipe = PARTITIONS.make(table("fedntd/table1").cell("cifar10/lda0.05", "fedavg").config().partition)
    blocks = [
        b for b in MEASURES.read_text().split("```")[1::2] if "--clients 100 --sample 10 --rounds 200" in b
    ]
    asked = [spec for b in blocks for spec in re.findall(r"lda:0\.05\b[^\s|\]]*", b)]
    assert [PARTITIONS.make(spec) for spec in asked] == [recipe] * 2


def test_a_missing_measure_is_named(runs, out):
    for name, measure in (
        ("fedntd/fig4", "locals"),
        ("fedntd/fig12", "personal"),
        ("fedntd/fig8", "divergence"),
    ):
        with pytest.raises(UserError, match=f"--measure {measure}"):
            draw(name, runs("iid-0"), out)
    with pytest.raises(UserError, match="--measure chain"):
        draw("sfedkd/fig1", runs("iid-0"), out)
    with pytest.raises(UserError, match="fedntd/fig4"):
        draw("fedntd/fig44", runs("iid-0"), out)


def test_captions_say_what_is_drawn():
    assert "ten clients" not in FIGURES.cls("fedntd/fig3").caption  # their number is an option
    assert "largest in magnitude" in FIGURES.cls("fedntd/fig14").caption  # power iteration finds these


def options(command):
    """The options of a figure's command by name, what stands in brackets as a list."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["fedrecall", "run"]
    return {k: v.strip("[]").split("|") for k, v in zip(words[2::2], words[3::2], strict=True)}


@pytest.mark.parametrize(
    ("figure", "recipe", "datasets"),
    [
        ("fedcad/fig1", "fedcad/fig1", ["cifar10"]),
        ("fedcad/fig2", "fedcad/fig2", ["cifar10"]),
        ("fedssd/fig7", "fedssd/table1", ["cifar10", "cifar100", "tiny_imagenet"]),
        ("fedssd/fig8", "fedssd/table1", ["cifar10", "cifar100"]),
        ("fedssd/fig9", "fedssd/table1", ["cifar10"]),
        ("sfedkd/fig6", "sfedkd/table1", ["fashion_mnist", "cifar10", "cinic10"]),
        ("sfedkd/fig7", "sfedkd/table1", ["fashion_mnist", "cifar10", "cinic10"]),
    ],
)
def test_a_figures_commands_have_its_papers_settings(figure, recipe, datasets):
    paper, seen = table(recipe), []
    for given in map(options, FIGURES.cls(figure).commands):
        for dataset in given["--dataset"]:
            cells = [c for c in paper.cells if c.settings["dataset"] == dataset]
            column = cells[0].column  # the first of a data set
            own = {c.method: c.config() for c in cells if c.column == column}
            seen.append(dataset)
            methods = {ALGORITHMS.parse(spec)[0]: spec for spec in given["--algorithm"]}
            if figure in ("fedcad/fig1", "fedssd/fig7", "fedssd/fig8"):
                assert methods.keys() == own.keys()
            for name, spec in methods.items():
                config = own[name]
                if not figure.startswith("sfedkd"):  # which compares numbers of teachers
                    assert ALGORITHMS.spec(ALGORITHMS.make(spec)) == config.algorithm
                assert given["--model"] == [config.model]
                assert PARTITIONS.spec(PARTITIONS.make(*given["--partition"])) == config.partition
                assert given["--augmentation"] == [config.augmentation]
                assert int(*given["--batch-size"]) == config.training.batch_size
                assert float(*given["--lr-decay"]) == config.training.lr_decay
                assert [int(n) for n in given.get("--auxiliary-per-class", [])] == (
                    [config.auxiliary_per_class] if config.auxiliary_per_class else []
                )
                if figure != "fedcad/fig2":  # of which table and figure have a model of ten rounds
                    assert int(*given["--rounds"]) == config.rounds
                if figure in ("fedssd/fig7", "sfedkd/fig6", "sfedkd/fig7"):
                    assert [int(*given[k]) for k in ("--clients", "--sample")] == [
                        config.clients,
                        config.sample,
                    ]
                if figure.startswith("sfedkd"):
                    training = config.training
                    assert float(*given["--momentum"]) == training.momentum
                    assert float(*given["--weight-decay"]) == training.weight_decay
    assert seen == datasets


def test_seconds_are_of_the_numbers_of_teachers_whose_speedup_is_published():
    (given, *rest) = map(options, FIGURES.cls("sfedkd/fig6").commands)
    assert [other["--algorithm"] for other in rest] == [given["--algorithm"]]
    asked = [ALGORITHMS.spec(ALGORITHMS.make(spec)) for spec in given["--algorithm"]]
    cells = table("sfedkd/time_to_accuracy").cells
    assert all(cell.config().algorithm in asked for cell in cells)
    assert len(asked) == len({cell.method for cell in cells})


@pytest.mark.parametrize("figure", ["fedntd/fig2", "fedntd/fig4"])
def test_the_motivating_experiment_is_fedavg_at_a_constant_rate(figure):
    (given,) = map(options, FIGURES.cls(figure).commands)
    assert (given["--algorithm"], given["--lr-decay"]) == (["fedavg"], ["1"])
    assert "lda:0.1" in given["--partition"]


def test_a_legend_names_what_any_panel_shows():
    made, axes = page(1, 2)
    for panel, names in zip(axes.flat, (["fedavg"], ["fedavg", "fedntd"]), strict=True):
        for name in names:
            panel.plot([0, 1], [0, 1], label=name)
    legend_below(made, *axes.flat)
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["fedavg", "fedntd"]
