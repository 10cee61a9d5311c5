"""How a model does at each site: identities between the sites and the whole."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedrecall
from fedrecall.data.datasets import Dataset
from fedrecall.errors import UserError
from fedrecall.measures import MEASURES
from fedrecall.measures.accuracy import accuracy, class_accuracy, evaluate
from fedrecall.measures.sites import by_client, by_site
from fedrecall.records import RunFolder, scalars

FEDPER = Path(__file__).parents[2] / "examples/fedper.py"
unchanging = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
LISTS = ("sites", "examples", "accuracy", "balanced_accuracy")


def measured(moment, origin=None, names=None):
    """What is recorded where the test examples are from these places."""
    if origin is not None:
        dataset = moment.federation.dataset
        test = replace(dataset.test, origin=torch.as_tensor(origin))
        dataset = replace(dataset, test=test, origins=names or tuple("abcdef"))
        moment = replace(moment, federation=replace(moment.federation, dataset=dataset))
    return MEASURES.make("sites")(moment)


def test_each_site_by_hand(moment):
    # The model takes class 1 for class 0: north has classes 0, 0, 1 and south 1, 2, 2; west tests nothing.
    assert measured(moment) == {
        "sites": ["north", "south"],
        "examples": [3, 3],
        "accuracy": [pytest.approx(2 / 3)] * 2,
        "balanced_accuracy": [pytest.approx(1 / 2)] * 2,
        "worst": "north",
        "worst_accuracy": pytest.approx(2 / 3),
    }
    assert measured(moment, [0, 0, 3, 3, 3, 0])["accuracy"] == pytest.approx([1, 1 / 3])
    assert measured(moment, [0, 0, 3, 3, 3, 0])["worst"] == "d"


def test_the_predictions_are_those_of_the_confusion_matrix(moment):
    found = evaluate(moment.model, moment.after, moment.federation.test, batch=4)
    counted = np.zeros((3, 3), int)
    np.add.at(counted, (moment.federation.dataset.test.y.numpy(), found.predicted), 1)
    assert np.array_equal(counted, found.confusion)


@unchanging
@given(origin=st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_sites_weighted_by_their_examples_are_the_whole(moment, origin):
    found = measured(moment, origin)
    assert sum(found["examples"]) == 6
    weighted = np.average(found["accuracy"], weights=found["examples"])
    assert weighted == pytest.approx(accuracy(moment.evaluation.confusion))
    assert found["sites"] == ["abcdef"[o] for o in sorted(set(origin))]
    assert found["worst_accuracy"] == min(found["accuracy"])
    assert found["accuracy"][found["sites"].index(found["worst"])] == found["worst_accuracy"]


@unchanging
@given(origin=st.lists(st.integers(0, 5), min_size=6, max_size=6), order=st.permutations(range(6)))
def test_other_numbers_of_the_sites_change_the_order_of_the_rows_alone(moment, origin, order):
    names = [""] * 6
    for old, new in enumerate(order):
        names[new] = "abcdef"[old]
    rows = [
        sorted(zip(*(found[part] for part in LISTS), strict=True))
        for found in (
            measured(moment, origin),
            measured(moment, [order[o] for o in origin], tuple(names)),
        )
    ]
    assert rows[0] == rows[1]


def test_one_site_is_the_whole(moment):
    (found,) = zip(*(measured(moment, [4] * 6)[part] for part in LISTS), strict=True)
    whole = moment.evaluation.confusion
    assert found == ("e", 6, accuracy(whole), pytest.approx(class_accuracy(whole).mean()))


def test_balanced_accuracy_is_over_the_classes_that_a_site_has():
    found = by_site(["a", "b"], np.array([[9, 0, 0], [1, 0, 1]]), np.array([[9, 1, 0], [2, 0, 1]]))
    assert found["accuracy"] == [0.9, pytest.approx(2 / 3)]
    assert found["balanced_accuracy"] == [0.5, 0.75]


def test_the_worst_site_is_one_where_a_client_is_who_has_a_model_of_its_own():
    tested = np.full((3, 1), 10)
    right = np.array([[1], [9], [5]])  # of what travels
    for own, worst, least in (
        (None, "a", 0.1),
        ([0.9, 0.2, 0.4], "b", 0.2),
        ([0.9, 0.2, None], "b", 0.2),
        ([None, None, 0.4], "ext", 0.4),
        ([None] * 3, "a", 0.1),
    ):
        found = by_site(["a", "b", "ext"], right, tested, own)
        assert (found["worst"], found["worst_accuracy"]) == (worst, least)


def test_clients_matrices_are_sites():
    north, south = np.array([[3, 1], [0, 4]]), np.array([[0, 2], [2, 0]])
    found = by_client({2: south, 0: north, 1: 0 * north})
    assert found["sites"] == ["client 0", "client 2"]
    assert found["examples"] == [8, 4]
    assert found["accuracy"] == [accuracy(north), accuracy(south)]
    assert found["worst"] == "client 2"


def test_the_numbers_for_sinks_are_means_over_sites(moment):
    found = {"a": [0.5, 1.0]}
    assert scalars({"measures": {"sites": found}})["measures/sites/a/1"] == 1.0  # no sites, no mean
    told = scalars({"round": 1, "class_accuracy": [0.0, 1.0], "sites": measured(moment, [0, 0, 3, 3, 3, 0])})
    assert told == {
        "class_accuracy/0": 0,
        "class_accuracy/1": 1,
        "sites/examples": 3,
        "sites/accuracy": pytest.approx((1 + 1 / 3) / 2),
        "sites/balanced_accuracy": pytest.approx((1 + 1 / 2) / 2),
        "sites/worst_accuracy": pytest.approx(1 / 3),
    }


# A run.

RUN = {"algorithm": "fedavg", "partition": "natural", "clients": 3, "sample": 2, "batch_size": 20}
RUN |= {"model": "mlp:8", "augmentation": "none", "backend": "serial", "measures": ["sites:2"]}


def sites_of(seed=0) -> Dataset:
    """Three sites of different sizes and noise, whose fifth is held out."""
    rng = np.random.default_rng(seed)
    site, y = np.repeat(["a", "b", "c"], [150, 90, 60]), np.arange(300) % 3
    x = np.eye(3)[y] + rng.normal(0, 1, (300, 3)) * np.repeat([0.2, 0.5, 2.0], [150, 90, 60])[:, None]
    return fedrecall.from_arrays(x, y, origin=site)


def test_a_run_says_where_its_model_is_bad_and_so_does_one_that_was_resumed(tmp_path):
    result = fedrecall.run(dataset=sites_of(), rounds=5, **RUN, out=tmp_path / "whole")
    found = {r["round"]: r["measures"]["sites"] for r in result.history if "measures" in r}
    assert list(found) == [2, 4, 5]
    test = result.federation.dataset.test
    for number, of_sites in found.items():
        assert of_sites["sites"] == ["a", "b", "c"]
        assert of_sites["examples"] == torch.bincount(test.origin).tolist()
        whole = np.average(of_sites["accuracy"], weights=of_sites["examples"])
        assert whole == pytest.approx(result.history[number - 1]["accuracy"])
    assert found[5]["worst"] == "c"
    # Each site is what the model does on that site's examples alone.
    for place in range(3):
        own = result.federation.test.part((test.origin == place).nonzero()[:, 0])
        seen = evaluate(result.model, result.weights, own).confusion
        assert found[5]["accuracy"][place] == pytest.approx(accuracy(seen))
    fedrecall.run(dataset=sites_of(), rounds=3, **RUN, out=tmp_path / "part")
    fedrecall.run(dataset=sites_of(), rounds=5, **RUN, out=tmp_path / "part", resume=True)
    resumed = RunFolder(tmp_path / "part").metrics()
    assert [r["measures"]["sites"] for r in resumed if r["round"] in (2, 4, 5)] == list(found.values())


def test_sites_that_label_oppositely_are_served_by_heads_of_their_own():
    """Of each site's own test examples every client's model is right, though both have the same classes."""
    x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    site = np.repeat(["a", "b"], 200)
    y = ((x[:, 0] > 0) ^ (site == "b")).astype(int)
    shared = RUN | {"clients": 2, "rounds": 12, "lr": 0.1, "measures": ["fairness", "personal", "sites"]}
    shared |= {
        "algorithm": f"{FEDPER}:FedPer",
        "dataset": fedrecall.from_arrays(x, y, origin=site),
    }
    last = fedrecall.run(**shared).history[-1]["measures"]
    assert last["fairness"]["at_home"]["worst_accuracy"] > 0.9
    assert min(last["personal"]["at_home"]) > 0.9
    assert min(last["sites"]["own_accuracy"]) == last["fairness"]["at_home"]["worst_accuracy"]
    assert last["sites"]["worst_accuracy"] == min(last["sites"]["own_accuracy"])
    assert sum(last["sites"]["accuracy"]) < 1.5  # one head cannot serve both


def test_data_that_do_not_say_where_they_are_tested_are_refused_before_anything_is_played(tmp_path):
    dataset = sites_of()
    untold = replace(dataset, test=replace(dataset.test, origin=None))
    with pytest.raises(UserError, match=r"test examples of arrays do not say where .* origin=COLUMN"):
        fedrecall.run(dataset=untold, rounds=1, **RUN, out=tmp_path / "run")
    assert not (tmp_path / "run/metrics.jsonl").exists()
    fedrecall.run(dataset=dataset, rounds=1, **RUN, out=tmp_path / "run")


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s["accuracy"].pop(),
        lambda s: s["sites"].append(3),
        lambda s: s.pop("examples"),
        lambda s: s.update({part: [] for part in LISTS}),
        lambda s: s.update(own_accuracy=[0.5]),
        lambda s: s.update(own_accuracy=[None, "a"]),
        lambda s: s.update(own_accuracy=0.5),
    ],
)
def test_a_record_whose_sites_do_not_fit_is_told(tmp_path, damage):
    of_sites = by_client({0: np.eye(2, dtype=int), 1: np.ones((2, 2), int)})
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"round": 1, "sites": of_sites}) + "\n")
    assert RunFolder(tmp_path).metrics()[0]["sites"] == of_sites
    damage(of_sites)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"round": 1, "sites": of_sites}) + "\n")
    with pytest.raises(UserError, match="line 1: sites are not names and as many numbers"):
        RunFolder(tmp_path).metrics()
