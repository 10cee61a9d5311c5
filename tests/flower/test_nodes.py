"""The server and the nodes without processes between them: what is computed, and what is refused."""

import errno
import json
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers
from safetensors.torch import load, save
from tests.flower.grids import Grid
from tests.flower.links import Link

from fedrecall import config as configs
from fedrecall import files, from_arrays, provenance, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.augmentation import Augmentation, plain
from fedrecall.data.datasets import Dataset, Recipe
from fedrecall.data.datasets import load as load_data
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.flower import code as codes
from fedrecall.flower import hosting, server, wire
from fedrecall.flower.node import own_statistics, told_statistics
from fedrecall.flower.nodes import Facts, Nodes
from fedrecall.flower.wire import Report
from fedrecall.ingredients import federate
from fedrecall.measures.accuracy import accuracy, class_accuracy, evaluate, forgetting
from fedrecall.measures.costs import cost
from fedrecall.records import RunFolder
from fedrecall.reports.runs import trained

BASE = {
    "clients": 3,
    "sample": 3,
    "rounds": 3,
    "dataset": "synthetic:classes=3,train=60,test=30",
    "model": "tests.flower.small_net:make",
    "precision": "float64",
    "training.local_epochs": 1,
    "training.batch_size": 7,
    "auxiliary_per_class": 4,
    "seed": 5,
}


@pytest.fixture(autouse=True)
def _in_root(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])


def nodes(folder: Path, count: int = 3, **more: object) -> dict[int, dict[str, object]]:
    own = {"data": BASE["dataset"], "divide": True, "custom": True, "memory": str(folder)}
    return {1000 + 7 * k: {"client": k, **own, **more} for k in reversed(range(count))}


def play(grid: Grid, **settings: object):
    config, host = hosting.read({**BASE, "poll": 0.001, "timeout": 0.05, "wait": 0.1, **settings})
    return server.serve(grid, config, host)


def alone(**settings: object):
    """The same run on the serial backend: what is expected."""
    values = {**BASE, **settings, "backend": "serial"}
    plain = {k: v for k, v in values.items() if "." not in k}
    dotted = {k: v for k, v in values.items() if "." in k}
    experiment = Experiment(configs.make(configs.override(plain, dotted)))
    experiment.run()
    return experiment


def same(a: object, b: object) -> None:
    torch.testing.assert_close(trees.arrays(a), trees.arrays(b), rtol=1e-12, atol=1e-12)


SPECS = {
    "fedssd": "fedssd:m_max=2,auxiliary_per_class=4",
    "feddf": "examples.feddf:FedDF:auxiliary_per_class=4",  # a server that learns, too
    "fedsparse": "examples.fedsparse:FedSparse:share=0.2",  # clients that send less than a model
    "fedbyte": "examples.fedbyte:FedByte",  # and that are sent less
}
MODELS = {"fedalign": "mlp:16"}  # which knows its last block


@pytest.mark.no_cover  # others cover it, and an algorithm at a time is what takes longest
@pytest.mark.parametrize(
    "name", [*(n for n in ALGORITHMS if n != "private"), "feddf", "fedsparse", "fedbyte"]
)
@pytest.mark.parametrize("chains", ["", 2])
def test_a_federation_computes_what_one_machine_does(name, chains, tmp_path):
    settings = {"algorithm": SPECS.get(name, name), "model": MODELS.get(name, BASE["model"])}
    late = {"training.local_epochs": 3, "training.stragglers": 0.5}
    settings |= {"chains": chains, **late} if chains else {}
    result = play(Grid(nodes(tmp_path)), **settings)
    expected = alone(**settings)
    same(result.weights, expected.server.weights)
    for mine, other in zip(result.history, expected.history, strict=True):
        for key in ("accuracy", "bytes_down", "bytes_up", "memory_bytes", "chains"):
            assert mine[key] == other[key]
        assert mine["train_loss"] == pytest.approx(other["train_loss"])


def test_a_federation_begins_with_the_model_of_an_earlier_one(tmp_path):
    """As a hospital joins one that is over: of the file, which is the server's, nodes are not told."""
    play(Grid(nodes(tmp_path / "nodes", count=2)), rounds=1, clients=2, sample=2, out=str(tmp_path / "old"))
    grid = Grid(nodes(tmp_path / "nodes"))
    result = play(grid, rounds=1, initial=str(tmp_path / "old"))
    same(result.weights, alone(rounds=1, initial=str(tmp_path / "old")).server.weights)
    assert not torch.equal(
        result.weights.params["out.bias"], alone(rounds=1).server.weights.params["out.bias"]
    )
    told = [m.content["values"]["config"] for m in grid.sent]
    assert not any("old" in text or '"initial"' in text for text in told)
    grid = Grid(nodes(tmp_path / "nodes"))
    with pytest.raises(UserError, match="gone is neither a run folder nor a file"):
        play(grid, initial=str(tmp_path / "gone"))
    assert not grid.sent


def test_what_nodes_keep_is_counted_though_the_server_has_receipts_alone(tmp_path):
    algorithm = "sfedkd:share=laplace,teachers=2,secret_noise=true"
    result, expected = play(Grid(nodes(tmp_path)), algorithm=algorithm), alone(algorithm=algorithm)
    found = [[r["memory_bytes"] for r in history] for history in (result.history, expected.history)]
    assert found == [[3 * 8] * 3] * 2  # a share of every class in double precision


def test_private_learning_is_the_same_in_a_federation(tmp_path, monkeypatch):
    settings: dict[str, object] = {"algorithm": {"name": "private", "of": "moon", "clip": 0.5, "noise": 0.7}}
    flat: dict[str, object] = {"algorithm": "private:moon,clip=0.5,noise=0.7"}
    flat["model"] = settings["model"] = "mlp:16"  # without running statistics
    with pytest.raises(UserError, match="every node is told and could subtract: say secret=true"):
        hosting.read({**BASE, **flat})
    monkeypatch.setattr(hosting, "_check_secret", lambda config: None)  # so that it can be compared
    result = play(Grid(nodes(tmp_path)), **flat)
    expected = alone(**settings)
    same(result.weights, expected.server.weights)
    assert result.history[-1]["epsilon"] == expected.history[-1]["epsilon"]


@pytest.mark.parametrize("share", ["laplace", "gaussian"])
def test_noise_that_follows_from_the_seed_is_the_same_in_a_federation(share, tmp_path, monkeypatch):
    algorithm = f"sfedkd:share={share},noise=0.2,teachers=2"
    with pytest.raises(UserError, match="from the run's seed, which every node is told"):
        hosting.read({**BASE, "algorithm": algorithm})
    monkeypatch.setattr(hosting, "_check_secret", lambda config: None)  # so that it can be compared
    same(play(Grid(nodes(tmp_path)), algorithm=algorithm).weights, alone(algorithm=algorithm).server.weights)


def said_of_data(grid: Grid) -> list[wire.Announcement]:
    found = [m.content["values"] for m in grid.received if m.metadata.message_type == "query"]
    return [wire.Announcement(**values) for values in found]


@pytest.mark.parametrize("own", [True, False])
def test_private_learning_asks_no_node_for_statistics_of_its_data(own, tmp_path):
    where: dict[str, object] = {} if own else {"dataset": "", "auxiliary_per_class": ""}
    common = {"model": "mlp:16", "rounds": 1, **where}
    open_grid, private_grid = Grid(nodes(tmp_path)), Grid(nodes(tmp_path))
    play(open_grid, **common)
    result = play(private_grid, algorithm="private:fedavg,noise=0", **common)
    assert all(len(a.mean) == len(a.std) == 1 for a in said_of_data(open_grid))
    assert [(a.mean, a.std) for a in said_of_data(private_grid)] == [([], [])] * 3
    tasks = [m.content["values"]["data"] for m in private_grid.sent if m.metadata.message_type == "train"]
    agreed = [wire.from_json(text, "") for text in tasks]
    assert [(d["mean"], d["std"]) for d in agreed] == [([0.5], [0.5])] * 3
    assert result.federation.dataset.mean.tolist() == [0.5]
    assert result.federation.test.mean.tolist() == result.federation.test.std.tolist() == [0.5]


def test_a_node_that_sends_statistics_unasked_is_left_out(tmp_path):
    def tell(node: int, message: Message) -> Message:
        if node == 1007 and message.metadata.message_type == "query":
            return value(mean=[0.4], std=[0.2])(message)
        return message

    with pytest.raises(UserError, match="2 of 3 clients are here, missing 1"):
        play(Grid(nodes(tmp_path), tell), algorithm="private:fedavg,noise=0", model="mlp:16", min_clients=3)


def test_nodes_evaluate_where_the_server_has_no_data(tmp_path):
    result = play(Grid(nodes(tmp_path)), dataset="", auxiliary_per_class="")
    expected = alone(auxiliary_per_class=0)
    for mine, other in zip(result.history, expected.history, strict=True):
        assert mine["accuracy"] == other["accuracy"]
        assert mine["class_accuracy"] == other["class_accuracy"]
        assert mine["loss"] == pytest.approx(other["loss"])


def test_what_is_sent_to_evaluate_is_counted(tmp_path):
    """To every node that has test examples, of which one does not answer, whoever was sampled."""

    def mute(node: int, reply: Message) -> Message | None:
        return None if reply.metadata.message_type == "evaluate" and node == 1000 else reply

    run = {"dataset": "", "auxiliary_per_class": "", "rounds": 2, "evaluate_every": 2, "sample": 1}
    first, second = play(Grid(nodes(tmp_path), mute), **run).history
    assert not any(key.startswith("bytes_evaluation") for key in first)
    assert second["bytes_evaluation_down"] == 3 * second["bytes_down"]  # of FedAvg it is a model each
    assert second["bytes_evaluation_up"] == 2 * (9 + 1) * 8  # counts and a loss
    assert cost([first, second]).total_bytes == 7 * second["bytes_down"] + 160


def test_each_nodes_accuracy_is_kept_where_nodes_evaluate(tmp_path, caplog):
    ragged = str(BASE["dataset"]).replace("test=30", "test=31")
    sent: dict[str, dict[int, np.ndarray]] = {}

    def look(node: int, reply: Message) -> Message:
        asked = grid.sent[-1].metadata
        if asked.message_type == "evaluate":
            counts = np.array(dict(reply.content["values"])["confusion"]).reshape(3, 3)
            sent.setdefault(asked.group_id, {})[(node - 1000) // 7] = counts
        return reply

    grid = Grid(nodes(tmp_path / "nodes", data=ragged), look)
    run = {"dataset": "", "auxiliary_per_class": "", "out": str(tmp_path / "run")}
    with caplog.at_level("INFO", logger="flwr"):
        result = play(grid, **run)
    for record in RunFolder(tmp_path / "run").metrics():
        found, matrices = record["sites"], sent[str(record["round"])]
        assert found["sites"] == ["client 0", "client 1", "client 2"]
        assert found["examples"] == [11, 10, 10]
        assert found["accuracy"] == [accuracy(matrices[k]) for k in range(3)]
        assert found["balanced_accuracy"] == pytest.approx(
            [class_accuracy(matrices[k]).mean() for k in range(3)]
        )
        # Together they are the round's own accuracy, which one machine has, too.
        assert np.average(found["accuracy"], weights=found["examples"]) == pytest.approx(record["accuracy"])
        assert f"least at {found['worst']}: {min(found['accuracy']):.2%}" in caplog.text
    assert [r["accuracy"] for r in result.history] == [
        r["accuracy"] for r in alone(dataset=ragged, auxiliary_per_class=None).history
    ]
    assert "sites" not in play(Grid(nodes(tmp_path / "others")), rounds=1).history[0]  # the server evaluates
    part = {**run, "out": str(tmp_path / "part")}
    play(Grid(nodes(tmp_path / "more", data=ragged)), **part, rounds=1)
    resumed = play(Grid(nodes(tmp_path / "more", data=ragged)), **part, resume=True)
    assert [r["sites"] for r in resumed.history] == [r["sites"] for r in result.history]


FEDPER = "examples.fedper:FedPer:keep=out."  # the last layer of small_net


def own_models(folder: Path, **settings: object) -> tuple[list[dict], Experiment, list[np.ndarray]]:
    """A federation's records, the same run on one machine, and there each client's model on its part of the
    test split."""
    run = {"algorithm": FEDPER, "sample": 2, "rounds": 2, "auxiliary_per_class": 0, **settings}
    result = play(Grid(nodes(folder / "nodes")), **run, dataset="", out=str(folder / "run"))
    one = alone(**run)
    same(result.weights, one.server.weights)
    found = []
    for k in range(3):
        memory = one.memories.get(k) or one.algorithm.remember(one.server.weights)
        part = replace(one.federation.dataset, test=one.federation.dataset.test.part(slice(k, None, 3)))
        test = replace(one.federation, dataset=part).test
        found.append(evaluate(one.model, one.algorithm.deploy(one.server.weights, memory), test).confusion)
    return list(result.history), one, found


def test_clients_own_models_are_evaluated_at_their_nodes(tmp_path, caplog):
    records, one, expected = own_models(tmp_path)
    last = records[-1]
    assert last["own_accuracy"] == accuracy(sum(expected))
    sites = last["sites"]
    assert sites["own_accuracy"] == [accuracy(c) for c in expected]
    assert np.average(sites["accuracy"], weights=sites["examples"]) == pytest.approx(last["accuracy"])
    assert sites["worst_accuracy"] == min(sites["own_accuracy"]) != min(sites["accuracy"])
    assert last["accuracy"] == one.history[-1]["accuracy"] != last["own_accuracy"]  # of what travels
    assert last["bytes_evaluation_up"] == 3 * (2 * 9 + 1) * 8
    assert f"accuracy of clients' own models {last['own_accuracy']:.2%}" in caplog.text
    assert "use their models at their nodes, with fedrecall predict --memory" in caplog.text
    assert "nobody evaluates these" not in caplog.text
    play(Grid(nodes(tmp_path / "more")), algorithm=FEDPER, rounds=1)
    assert "nobody evaluates these, as nodes would if the server had no dataset" in caplog.text


def test_what_a_client_uses_in_the_place_of_what_it_trains_is_evaluated_at_its_node(tmp_path):
    records, _, expected = own_models(tmp_path, algorithm="examples.ditto:Ditto", model="mlp:8")
    assert records[-1]["sites"]["own_accuracy"] == [accuracy(c) for c in expected]
    assert records[-1]["sites"]["own_accuracy"] != records[-1]["sites"]["accuracy"]


def test_a_client_that_lost_its_own_layers_evaluates_what_travels(tmp_path, caplog):
    def tamper(node: int, reply: Message) -> Message:
        if node == 1007 and grid.sent[-1].metadata.message_type == "train":
            for path in tmp_path.glob("*/client-000001/round-*"):
                path.unlink()
        return reply

    grid, run = Grid(nodes(tmp_path), tamper), {"algorithm": FEDPER, "rounds": 1}
    (record,) = play(grid, **run, dataset="", auxiliary_per_class=0, out=str(tmp_path / "run")).history
    assert record["accuracy"] == alone(**run, auxiliary_per_class=0).history[0]["accuracy"]
    said = "client 1, evaluation of round 1: it does not evaluate its own model, its own log says why"
    assert said in caplog.text
    assert "untested" not in record  # all test examples are in the accuracy
    assert (
        "client 1 does not evaluate its own model: what it remembered after round 1 is not in" in caplog.text
    )
    first, lost, last = record["sites"]["own_accuracy"]
    assert (lost, record["own_accuracy"]) == (None, (first + last) / 2)  # of as many examples
    assert record["sites"]["worst_accuracy"] == min(first, last)


def test_of_clients_own_models_too_no_single_matrix_is_kept_where_uploads_are_hidden(tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "rounds": 1, "secure": "equal", "model": "mlp:4"}
    (record,) = play(Grid(nodes(tmp_path)), **run, algorithm="examples.fedper:FedPer:keep=fc").history
    assert "own_accuracy" in record
    assert "sites" not in record


def test_a_clients_own_model_can_be_used_at_its_node(tmp_path):
    records, one, _ = own_models(tmp_path, sample=1, rounds=2)
    drawn = {k for record in records for chain in record["chains"] for k in chain}
    assert len(drawn) < 3  # and one was never there
    for k in range(3):
        own = trained(tmp_path / "run", client=k, memory=tmp_path / "nodes").network.state_dict()
        memory = one.memories.get(k) or one.algorithm.remember(one.server.weights)
        expected = one.algorithm.personal(one.server.weights, memory).params
        for name in expected:
            torch.testing.assert_close(own[name], expected[name], rtol=1e-12, atol=1e-12)
    with pytest.raises(UserError, match=r"at its node alone\. There, name the node's folder for memories"):
        trained(tmp_path / "run", client=0)
    with pytest.raises(UserError, match=r"what it remembered after round \d is not in .*elsewhere"):
        trained(tmp_path / "run", client=min(drawn), memory=tmp_path / "elsewhere")
    with pytest.raises(UserError, match="memory is a client's: say which"):
        trained(tmp_path / "run", memory=tmp_path / "nodes")


def test_what_is_one_nodes_alone_is_not_kept_where_uploads_are_hidden(tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "algorithm": "fedavg", "rounds": 1}
    assert "sites" in play(Grid(nodes(tmp_path / "open")), **run).history[0]
    assert "sites" not in play(Grid(nodes(tmp_path / "hidden")), **run, secure="examples").history[0]


def test_a_secret_model_is_saved_before_nodes_see_it(tmp_path):
    """Played again it would have other noise, so two models of a round would be out and epsilon of one."""

    class Killed(BaseException):
        pass

    seen: list[dict[str, torch.Tensor]] = []

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1]
        if sent.metadata.message_type == "evaluate" and sent.metadata.group_id == "2":
            seen.append(arrays_of(sent))
            if len(seen) == 1:
                raise Killed
        return reply

    grid = Grid(nodes(tmp_path / "nodes"), tamper)
    run = {"algorithm": "private:fedavg,clip=0.5,noise=1,secret=true", "model": "mlp:16", "rounds": 3}
    run |= {"dataset": "", "auxiliary_per_class": "", "out": str(tmp_path / "run")}
    with pytest.raises(Killed):
        play(grid, **run)
    result = play(grid, **run, resume=True)
    assert len(seen) == 4  # to one node before, to three after
    assert all(torch.equal(seen[0][n], model[n]) for model in seen for n in model)
    assert [sorted(r) for r in result.history] == [sorted(result.history[0])] * 3
    epsilons = [r["epsilon"] for r in result.history]
    assert epsilons == sorted(set(epsilons))
    with pytest.raises(UserError, match="leave checkpoint_every at 1"):
        play(grid, **run, resume=True, checkpoint_every=2)


def test_the_loss_is_that_of_all_nodes_examples_together(tmp_path):
    ragged = str(BASE["dataset"]).replace("test=30", "test=31")
    grid = Grid(nodes(tmp_path, data=ragged))
    [found] = play(grid, dataset="", auxiliary_per_class="", rounds=1).history
    counts = {a.client: a.test_examples for a in said_of_data(grid)}
    assert len(set(counts.values())) > 1
    [expected] = alone(dataset=ragged, auxiliary_per_class=None, rounds=1).history
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-9)


def test_where_nothing_depends_on_label_distributions_none_travels(tmp_path):
    run = {"algorithm": "sfedkd:teachers=2,selection=random,g=uniform,h=uniform", "rounds": 3}
    sizes = []

    def look(node: int, reply: Message) -> Message:
        if grid.sent[-1].metadata.message_type == "train":
            sizes.append(arrays_of(reply)["distribution"].numel())
        return reply

    grid = Grid(nodes(tmp_path), look)
    result = play(grid, **run)
    assert [r["failures"] for r in result.history] == [[]] * 3
    same(result.weights, alone(**run).server.weights)
    assert set(sizes) == {0}
    assert len(sizes) == 9


def test_who_does_not_evaluate_is_in_the_record(tmp_path):
    held = nodes(tmp_path)
    gone: dict[int, dict[str, object]] = {}

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if sent.message_type == "train" and sent.group_id == "2" and node == 1014:
            gone[1014] = held.pop(1014)
        if sent.message_type == "evaluate" and sent.group_id == "3" and node == 1000:
            return value(loss=-1.0)(reply)
        return reply

    grid = Grid(held, tamper)
    result = play(grid, dataset="", auxiliary_per_class="", rounds=3)
    away = "client 2, evaluation of round {}: its node is not connected"
    odd = "client 0, evaluation of round 3: its reply has a loss of -1, which cannot be less than 0"
    assert [r.get("untested") for r in result.history] == [None, [away.format(2)], [odd, away.format(3)]]
    there = [["client 0", "client 1", "client 2"], ["client 0", "client 1"], ["client 1"]]
    assert [r["sites"]["sites"] for r in result.history] == there
    assert result.history[2]["sites"]["accuracy"] == [result.history[2]["accuracy"]]  # one site is the whole


TESTED = {
    "counts of nobody": (lambda r: {"confusion": [2**62] * 9}, f"counts {9 * 2**62} examples"),
    "fewer counts": (lambda r: {"confusion": [0] * 9}, "counts 0 examples, and it said it has 10"),
    "one more": (lambda r: {"confusion": [r["confusion"][0] + 1, *r["confusion"][1:]]}, "counts 11 examples"),
    "a negative loss": (lambda r: {"loss": -1.0}, "has a loss of -1"),
    "a model of its own": (
        lambda r: {"own": r["confusion"]},
        "counts what its own model predicts, and clients",
    ),
}


@pytest.mark.parametrize("case", TESTED)
def test_an_evaluation_that_does_not_fit_is_left_out(case, tmp_path, caplog):
    change, said = TESTED[case]
    kept: dict[int, Message] = {}

    def tamper(node: int, reply: Message) -> Message:
        if grid.sent[-1].metadata.message_type == "evaluate":
            kept[node] = reply
            if node == 1007:
                return value(**change(dict(reply.content["values"])))(reply)
        return reply

    grid = Grid(nodes(tmp_path), tamper)
    (record,) = play(grid, dataset="", auxiliary_per_class="", rounds=1).history
    assert f"client 1, evaluation of round 1: its reply {said}" in caplog.text
    good = [dict(kept[node].content["values"]) for node in (1000, 1014)]
    right = sum(sum(v["confusion"][::4]) for v in good)
    assert record["accuracy"] == right / sum(sum(v["confusion"]) for v in good)
    assert record["loss"] == pytest.approx(sum(v["loss"] for v in good) / 2)
    assert "own_accuracy" not in record


def test_a_loss_as_large_as_a_number_can_be_is_averaged(tmp_path):
    def tamper(node: int, reply: Message) -> Message:
        evaluated = grid.sent[-1].metadata.message_type == "evaluate"
        return value(loss=1e308)(reply) if evaluated else reply

    grid = Grid(nodes(tmp_path), tamper)
    (record,) = play(grid, dataset="", auxiliary_per_class="", rounds=1).history
    assert record["loss"] == pytest.approx(1e308)


ANNOUNCED = {
    "no deviation": {"std": [0.0]},
    "a negative deviation": {"std": [-0.5]},
    "hardly a deviation": {"std": [1e-300]},
    "no pixel's mean": {"mean": [1e200]},
    "no pixel's deviation": {"std": [1e200]},
    "a little too large": {"mean": [-1.1]},
    "a column of images": {"columns": ["a"]},
    "too many columns": {"columns": ["a", "b", "c"]},
    "too many examples": {"examples": 10**15},
    "too many to test on": {"test_examples": 2**62},
}


@pytest.mark.parametrize("case", ANNOUNCED)
def test_a_node_that_says_what_cannot_be_is_left_out(case, tmp_path, caplog):
    def tell(node: int, message: Message) -> Message:
        lie = node == 1007 and message.metadata.message_type == "query"
        return value(**ANNOUNCED[case])(message) if lie else message

    run = {"rounds": 1, "dataset": "", "auxiliary_per_class": "", "min_clients": 2}
    result = play(Grid(nodes(tmp_path), tell), **run)
    (failure,) = result.history[0]["failures"]
    assert failure.startswith("client 1, round 1: its node is left out: client 1 ")
    assert "node 1007 is left out: client 1 " in caplog.text
    assert 0.1 < result.federation.dataset.std.item() < 1


def test_statistics_of_tables_may_be_large():
    from fedrecall.flower.nodes import _plausible

    assert _plausible(False, [-1e9, 0.0], [1e10, 1e-5])
    assert _plausible(False, [1.7e18, 0.0], [1e17, 1.0])  # nanoseconds since 1970
    assert not _plausible(False, [-1e31, 0.0], [1.0, 1.0])
    assert not _plausible(True, [2.0], [1.0])
    assert not _plausible(True, [math.nan], [1.0])


SHAPES = ["2x10", "2x10,along=true", "1x6x5", "1x6x5,along=false", "2x3x4x5,along=true"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", ["data", "fixed", "none"])
def test_signals_volumes_and_images_of_any_numbers_are_trained_on_as_on_one_machine(shape, how, tmp_path):
    own = f"tests.flower.series:Series:shape={shape}"
    common = {"normalisation": how, "rounds": 2, "algorithm": "fedntd"}
    elsewhere = {"dataset": "", "auxiliary_per_class": "", "out": str(tmp_path / "run")}
    grid = Grid(nodes(tmp_path, data=own))
    result, expected = play(grid, **common, **elsewhere), alone(dataset=own, **common, auxiliary_per_class=0)
    same(result.weights, expected.server.weights)
    assert [r["accuracy"] for r in result.history] == [r["accuracy"] for r in expected.history]
    assert {a.floats for a in said_of_data(grid)} == {True}
    test = expected.federation.dataset.test
    tested = trained(tmp_path / "run").predict(test.x)
    assert np.mean([int(said) == y for said, y in zip(tested, test.y, strict=True)]) == result.accuracy
    play(Grid(nodes(tmp_path, data=own)), **{**common, "rounds": 3}, **elsewhere, resume=True)
    with pytest.raises(UserError, match="was begun with other numbers than pixels of"):
        play(Grid(nodes(tmp_path)), **{**common, "rounds": 4}, **elsewhere, resume=True)


def test_pixels_and_other_numbers_of_the_same_shape_are_told_apart(tmp_path):
    run = {"rounds": 1, "dataset": "", "auxiliary_per_class": ""}
    held = nodes(tmp_path)
    held[1007]["data"] = "tests.flower.series:Series:shape=1x8x8"
    with pytest.raises(UserError, match="other numbers than pixels with 1: let all nodes"):
        play(Grid(held), **run, min_clients=3)
    held = nodes(tmp_path, data="tests.flower.series:Series:shape=2x10")
    held[1007]["data"] = "tests.flower.series:Series:shape=2x10,along=true"
    with pytest.raises(UserError, match=r"with 10: let all nodes|with 10 means"):
        play(Grid(held), **run, min_clients=3)
    with pytest.raises(UserError, match="or one has pixels where the other has other numbers"):
        play(Grid(nodes(tmp_path)), rounds=1, dataset="tests.flower.series:Series:shape=1x8x8")


def test_examples_larger_than_any_are_refused_before_a_model_is_made(tmp_path):
    def tell(node: int, message: Message) -> Message:
        large = value(shape=[1, 10**6, 10**6])
        return large(message) if message.metadata.message_type == "query" else message

    run = {"rounds": 1, "dataset": "", "auxiliary_per_class": "", "min_clients": 2}
    with pytest.raises(UserError, match="0 of 3 clients are here"):
        play(Grid(nodes(tmp_path), tell), **run)


def test_nothing_but_the_declared_travels(tmp_path):
    """No image and no label: what nodes send are the upload's arrays and a report's five numbers."""
    grid = Grid(nodes(tmp_path))
    play(grid, algorithm="scaffold")
    declared = set(trees.arrays(alone(algorithm="scaffold", rounds=1).server))
    for message in grid.received:
        kind = message.metadata.message_type
        fields = set(message.content["values"])
        if kind == "train":
            assert fields == set(Report._fields)
            arrays = load(message.content["arrays"]["safetensors"].data)
            assert {n.replace("change/", "variate/") for n in arrays} == declared
        else:
            assert kind == "query"
            assert fields == set(wire.Announcement._fields)
            assert set(message.content) == {"values"}


def arrays_of(message: Message) -> dict[str, torch.Tensor]:
    return load(message.content["arrays"]["safetensors"].data)


def with_arrays(message: Message, arrays: dict[str, torch.Tensor]) -> Message:
    text = save(arrays)
    message.content["arrays"] = ArrayRecord(
        {"safetensors": Array("uint8", (len(text),), "safetensors", text)}
    )
    return message


def changed(name: str, change) -> object:
    def tamper(message: Message) -> Message:
        arrays = arrays_of(message)
        return with_arrays(message, {**arrays, name: change(arrays[name])})

    return tamper


def without(name: str):
    def tamper(message: Message) -> Message:
        return with_arrays(message, {n: t for n, t in arrays_of(message).items() if n != name})

    return tamper


def added(message: Message) -> Message:
    return with_arrays(message, {**arrays_of(message), "x": torch.zeros(3)})


def value(**changes: object):
    def tamper(message: Message) -> Message:
        record = dict(message.content["values"]) | changes
        message.content["values"] = ConfigRecord({k: v for k, v in record.items() if v is not None})
        return message

    return tamper


def record(name: str, given: object):
    def tamper(message: Message) -> Message:
        message.content[name] = given
        return message

    return tamper


def bare(message: Message) -> Message:
    del message.content["arrays"]
    return message


def pickled(message: Message) -> Message:
    text = b"\x80\x04cos\nsystem\n(S'false'\ntR."
    message.content["arrays"] = ArrayRecord(
        {"safetensors": Array("uint8", (len(text),), "safetensors", text)}
    )
    return message


def numpy_array(message: Message) -> Message:
    message.content["arrays"] = ArrayRecord({"weights": Array(torch.zeros(2).numpy())})
    return message


BIAS = "weights/params/out.bias"
MALFORMED = {
    "missing array": (without(BIAS), f"lacks '{BIAS}'"),
    "no arrays": (bare, "lacks 'weights/"),
    "undeclared array": (added, "undeclared 'x'"),
    "wrong shape": (changed(BIAS, lambda t: t[:-1].clone()), f"'{BIAS}' has shape [2], declared is [3]"),
    "wrong type": (changed(BIAS, lambda t: t.float()), "torch.float32, declared is torch.float64"),
    "half precision": (changed(BIAS, lambda t: t.bfloat16()), "torch.bfloat16, declared is torch.float64"),
    "NaN": (changed(BIAS, lambda t: t * math.nan), "NaN or Inf"),
    "Inf": (changed(BIAS, lambda t: t + math.inf), "NaN or Inf"),
    "pickle": (pickled, "does not hold named arrays"),
    "another format": (numpy_array, "does not hold its arrays as safetensors"),
    "no examples": (value(examples=0), "trained on 0 examples"),
    "negative examples": (value(examples=-5), "trained on -5 examples"),
    "too many examples": (value(examples=10**15), "trained on 1000000000000000 examples"),
    "more examples than it has": (value(examples=10**9), "trained on 1000000000 examples, and before"),
    "negative seconds": (value(seconds=-1.0), "trained for -1 seconds"),
    "more seconds than there were": (value(seconds=1.7e308), "trained for 1.7e+308 seconds"),
    "fractional examples": (value(examples=2.5), "'examples' is 2.5, which is not a whole number"),
    "examples true": (value(examples=True), "'examples' is True"),
    "another client": (value(client=0), "is of client 0"),
    "another round": (value(round=9), "round 9"),
    "loss NaN": (value(loss=math.nan), "'loss' is nan"),
    "missing value": (value(loss=None), "lacks 'loss'"),
    "undeclared value": (value(labels=[1, 2, 3]), "undeclared 'labels'"),
    "undeclared record": (record("images", ConfigRecord({"a": 1})), "undeclared record 'images'"),
    "metrics for values": (record("values", MetricRecord({"round": 1})), "has no values"),
    "values for arrays": (record("arrays", ConfigRecord({"a": 1})), "does not hold its arrays"),
    "empty": (lambda m: Message(RecordDict(), reply_to=_question(m)), "has no values"),
    "error": (lambda m: Message(Error(2, "boom\nboom"), reply_to=_question(m)), "boom boom"),
    "refusal": (
        lambda m: Message(wire.pack(wire.Refusal("the disk is full")), reply_to=_question(m)),
        "the disk is full",
    ),
    "refusal that commands a terminal": (
        lambda m: Message(wire.pack(wire.Refusal("x\x1b]0;owned\x07y")), reply_to=_question(m)),
        "x\ufffd]0;owned\ufffdy",
    ),
    "nothing": (lambda m: None, "no reply within"),
}


def _question(reply: Message) -> Message:
    question = Message(RecordDict(), reply.metadata.src_node_id, "train")
    question.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return question


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_reply_leaves_its_client_out_of_the_round(case, tmp_path):
    change, said = MALFORMED[case]
    held = nodes(tmp_path)
    liar = next(node for node, own in held.items() if own["client"] == 1)

    def tamper(node: int, reply: Message) -> Message | None:
        last = reply.metadata.message_type == "train" and grid.sent[-1].metadata.group_id == "2"
        return change(reply) if node == liar and last else reply

    grid = Grid(held, tamper)
    result = play(grid, rounds=2)
    assert result.history[0]["failures"] == []
    (failure,) = result.history[1]["failures"]
    assert failure.startswith("client 1, round 2: ")
    assert said in failure
    # The round is the mean of the other two, by their examples.
    expected = alone(rounds=1)
    second = alone_second_round(expected, leave_out=1)
    same(result.weights, second)


def alone_second_round(after_first: Experiment, leave_out: int):
    """Plain weighted mean of two visits made by hand."""
    from fedrecall.training import visit

    e, good = after_first, []
    for k in range(3):
        if k == leave_out:
            continue
        down = e.algorithm.broadcast(e.model, e.server, None)
        good.append(
            visit(
                e.algorithm, e.model, e.config.training, e.federation.client(k), down,
                e.algorithm.remember(down.weights), seed=e.config.seed, round_number=2, client=k,
            )
        )  # fmt: skip
    total = sum(v.examples for v in good)

    def mean(*values: torch.Tensor) -> torch.Tensor:
        exact = sum(t.double() * (v.examples / total) for t, v in zip(values, good, strict=True))
        return exact if values[0].is_floating_point() else exact.round().to(values[0].dtype)

    return trees.transform(mean, *(v.up.weights for v in good))


def lying(folder: Path, round_number: int, name: str, change) -> Grid:
    """Nodes of which client 1 sends something else under this name in this round, well formed as it is."""
    held = nodes(folder)
    liar = next(node for node, own in held.items() if own["client"] == 1)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        now = sent.message_type == "train" and sent.group_id == str(round_number)
        return changed(name, change)(reply) if node == liar and now else reply

    grid = Grid(held, tamper)
    return grid


def test_an_upload_that_makes_the_model_nan_is_not_saved_and_the_run_can_go_on(tmp_path):
    run = {"algorithm": "fednova", "rounds": 3, "out": str(tmp_path / "run")}
    with pytest.raises(UserError, match="uploads make holds NaN or Inf\\. "):
        play(lying(tmp_path / "nodes", 2, "steps", torch.zeros_like), **run)
    [kept] = RunFolder(tmp_path / "run").checkpoints()
    assert kept.round_number == 1
    assert trees.finite(dict(kept.arrays))
    result = play(Grid(nodes(tmp_path / "nodes")), **run, resume=True)
    same(result.weights, alone(algorithm="fednova", rounds=3).server.weights)


def test_an_upload_that_stands_for_no_model_leaves_its_client_out(tmp_path):
    algorithm = SPECS["fedsparse"]
    far = lying(tmp_path, 2, "places", lambda t: t + 10**6)
    result = play(far, algorithm=algorithm, rounds=2)
    assert result.history[0]["failures"] == []
    (failure,) = result.history[1]["failures"]
    assert failure.startswith("client 1, round 2: `unpack` makes nothing of its upload (IndexError: index 10")
    assert trees.finite(result.weights)


def test_a_model_too_far_gone_to_be_tested_at_the_nodes_is_told_as_that(tmp_path):
    run = {"algorithm": "fedavg", "rounds": 3, "out": str(tmp_path / "run")}
    run |= {"dataset": "", "auxiliary_per_class": ""}
    spoil = lying(tmp_path / "nodes", 2, "weights/params/out.weight", lambda t: torch.full_like(t, 1.7e308))
    with pytest.raises(UserError, match=r"every client of the round failed.* delete the newest round-"):
        play(spoil, **run)
    records = RunFolder(tmp_path / "run").metrics()
    assert [math.isfinite(r["loss"]) for r in records] == [True, False]
    assert "untested" not in records[1]


def test_a_model_that_a_finite_upload_spoiled_is_left_by_going_back_a_checkpoint(tmp_path):
    """As docs/deploy.md says how; nodes start from the memories of the earlier round, too."""
    run = {"algorithm": "scaffold", "rounds": 3, "evaluate_every": 3, "out": str(tmp_path / "run")}
    spoil = lying(tmp_path / "nodes", 2, "weights/params/out.weight", lambda t: torch.full_like(t, 1.7e308))
    with pytest.raises(UserError, match="every client of the round failed"):
        play(spoil, **run)
    newest = sorted((tmp_path / "run/checkpoints").glob("round-*.json"))[-1]
    assert newest.stem == "round-000002"
    newest.unlink()
    result = play(Grid(nodes(tmp_path / "nodes")), **run, resume=True)
    same(result.weights, alone(algorithm="scaffold", rounds=3).server.weights)


def test_a_run_that_cannot_begin_leaves_its_folder_to_others(tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("enough")

    run = {"out": str(tmp_path / "run"), "rounds": 1}
    with monkeypatch.context() as patched:
        patched.setattr(server.payloads, "declared", fail)
        with pytest.raises(UserError, match="enough"):
            play(Grid(nodes(tmp_path)), **run)
    folder = RunFolder(tmp_path / "run")
    folder.acquire()
    folder.release()
    assert len(play(Grid(nodes(tmp_path)), **run).history) == 1


def test_the_log_says_how_a_round_went_and_who_was_left_out(caplog):
    caplog.set_level("INFO", "flwr")
    lines = server.Lines(7)
    lines.begin({"algorithm": {"name": "fedavg"}, "augmentation": "flip"}, [{}, {}])
    record = {"round": 3, "chains": [[4, 2], [1]], "failures": ["client 2, round 3: gone"], "train_loss": 0.5}
    lines.record(record | {"seconds": {"train": 2.0}})
    lines.record(record | {"failures": [], "seconds": {"train": 2.0}, "accuracy": 0.25, "forgetting": 0.125})
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "fedavg, rounds 3 to 7, augmentation flip"),
        ("INFO", "round 3 of 7: 2 of 3 clients, 2.0 s, loss 0.5000"),
        ("WARNING", "left out: client 2, round 3: gone"),
        ("INFO", "round 3 of 7: 3 of 3 clients, 2.0 s, loss 0.5000, accuracy 25.00%, forgetting 0.125"),
    ]


def test_the_log_says_how_examples_are_augmented(tmp_path, caplog):
    """Without data the server cannot know what suits the nodes', so it is none unless somebody says."""
    for given, taken in ({"dataset": ""}, "none"), ({"dataset": "", "augmentation": "flip"}, "flip"):
        with caplog.at_level("INFO", "flwr"):
            play(Grid(nodes(tmp_path / taken)), **given, auxiliary_per_class="", rounds=1)
        assert f"fedavg, rounds 1 to 1, augmentation {taken}" in caplog.messages


@pytest.mark.parametrize("said", [[-0.5, 1.0, 1.0], [1e308, 1e308, 1e308], [0.0, 0.0, 0.0]])
def test_labels_that_cannot_be_do_not_end_a_run_with_teachers(said, tmp_path):
    grid = lying(tmp_path, 1, "distribution", lambda t: torch.tensor(said, dtype=t.dtype))
    result = play(grid, algorithm="sfedkd:teachers=2", rounds=2)
    assert [r["failures"] for r in result.history] == [[], []]
    assert trees.finite(result.weights)


def test_all_clients_take_part_where_nothing_is_said(tmp_path):
    (record,) = play(Grid(nodes(tmp_path)), sample="", rounds=1).history
    assert sorted(record["chains"]) == [[0], [1], [2]]


@pytest.mark.parametrize("lone", ["sampled", "arrived", ""])
def test_a_round_in_which_nothing_is_averaged_is_warned_of(lone, tmp_path, caplog):
    def lose(node: int, reply: Message) -> Message | None:
        late = lone == "arrived" and reply.metadata.message_type == "train" and node != 1000
        return None if late else reply

    play(Grid(nodes(tmp_path), lose), sample=1 if lone == "sampled" else 3, rounds=1)
    said = ["one client of 3 is sampled a round", "round 1 has one upload of 3"]
    assert [text in caplog.text for text in said] == [lone == "sampled", lone == "arrived"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_that_keeps_nothing_is_warned_of(kept, tmp_path, caplog):
    play(Grid(nodes(tmp_path)), rounds=1, out=str(tmp_path / "run") if kept else "")
    assert ("without out nothing is kept" in caplog.text) is not kept


def test_too_few_uploads_stop_the_run_which_can_be_resumed(tmp_path):
    silent = {"on": True}

    def tamper(node: int, reply: Message) -> Message | None:
        late = grid.sent[-1].metadata.group_id == "2" and silent["on"]
        return None if late and node != 1000 else reply

    grid = Grid(nodes(tmp_path / "nodes"), tamper)
    out = str(tmp_path / "run")
    with pytest.raises(
        UserError, match=r"round 2 has 1 of 3 uploads, and min_clients is 2: client [12], round 2"
    ) as stopped:
        play(grid, min_clients=2, algorithm="scaffold", out=out)
    assert ".." not in str(stopped.value)
    silent["on"] = False
    result = play(grid, min_clients=2, algorithm="scaffold", out=out, resume=True)
    assert [r["failures"] for r in result.history] == [[], [], []]
    same(result.weights, alone(algorithm="scaffold").server.weights)


def apart(folder: Path) -> dict[int, dict[str, object]]:
    """Nodes with data of different statistics."""
    held = nodes(folder)
    for own in held.values():
        own |= {"divide": False, "data": f"synthetic:classes=3,train=60,test=30,seed={own['client']}"}
    return held


def told(grid: Grid) -> list[dict[str, object]]:
    """What nodes were told that the federation agreed on, each thing once."""
    texts = {m.content["values"]["data"] for m in grid.sent if m.metadata.message_type == "train"}
    return [wire.from_json(text, "") for text in texts]


def test_a_resumed_run_keeps_what_was_agreed_on_whoever_is_there(tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "min_clients": 2, "out": str(tmp_path / "run")}
    grid = Grid(apart(tmp_path))
    play(grid, **run, rounds=1)
    first = told(grid)
    del grid.nodes[1007]
    alone_here = Grid(dict(grid.nodes))
    play(alone_here, **{**run, "out": str(tmp_path / "other")}, rounds=1)
    assert told(alone_here) != first  # two nodes alone agree on something else
    again = Grid(dict(grid.nodes))
    result = play(again, **run, rounds=2, resume=True)
    assert told(again) == first
    assert result.federation.dataset.mean.tolist() == pytest.approx(first[0]["mean"])
    held = files.read_json(tmp_path / "run" / "federation.json")
    assert {k: held[k] for k in ("classes", "mean", "std")} == first[0]
    assert (len(held["run"]), held["shape"]) == (32, list(result.federation.dataset.shape))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": "synthetic:classes=3,train=60,test=30,channels=2"},
            r"begun with pixels of \[1, .* have pixels of \[2, ",
        ),
        ({"data": "synthetic:classes=4,train=60,test=30"}, "begun with classes 0, 1, 2, .* now 0, 1, 2, 3"),
    ],
)
def test_a_run_is_not_resumed_on_data_of_another_kind(change, message, tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "out": str(tmp_path / "run")}
    play(Grid(nodes(tmp_path)), **run, rounds=1)
    with pytest.raises(UserError, match=message):
        play(Grid(nodes(tmp_path, **change)), **run, rounds=2, resume=True)


def asked(grid: Grid) -> set[tuple[str, int]]:
    """Under what name nodes were asked to train, and at which start of the run."""
    values = [m.content["values"] for m in grid.sent if m.metadata.message_type == "train"]
    return {(v["run"], v["start"]) for v in values}


def untrained(node: int, reply: Message) -> Message | None:
    """All nodes but one are heard of until they train."""
    return None if node != 1000 and reply.metadata.message_type == "train" else reply


def test_another_run_in_the_folder_of_one_that_recorded_nothing_is_another_to_the_nodes(tmp_path):
    """They would answer it with what they drew for the first, with that one's noise, say."""
    run = {"algorithm": "scaffold", "rounds": 1, "out": str(tmp_path / "run"), "min_clients": 3}
    mute = Grid(nodes(tmp_path / "nodes"), untrained)
    with pytest.raises(UserError, match="min_clients"):
        play(mute, **run)
    [(name, start)] = asked(mute)
    other, resumed = Grid(mute.nodes), Grid(mute.nodes)
    play(other, **run | {"lr": 0.5})
    [(renamed, first)] = asked(other)
    assert renamed != name
    assert 0 < start <= first
    play(resumed, **run | {"lr": 0.5, "rounds": 2}, resume=True)
    [(resumed_name, second)] = asked(resumed)
    assert (resumed_name, second > first) == (renamed, True)


def test_the_same_run_begun_anew_is_the_same_to_the_nodes(tmp_path):
    """Who has told the server what it tells once does not draw anew."""
    run = {"algorithm": "scaffold", "rounds": 1, "out": str(tmp_path / "run"), "min_clients": 3}
    mute = Grid(nodes(tmp_path / "nodes"), untrained)
    with pytest.raises(UserError, match="min_clients"):
        play(mute, **run)
    again = Grid(mute.nodes)
    play(again, **run)
    [(name, start)] = asked(mute)
    [(same_name, later)] = asked(again)
    assert (same_name, later > start) == (name, True)


def test_the_run_folder_says_which_federation_it_was(tmp_path):
    """By the same keys whatever the data, for reports that compare runs."""

    def found(name: str, held: dict[int, dict[str, object]], **settings: object) -> dict[str, object]:
        common = {"dataset": "", "auxiliary_per_class": "", "rounds": 1, "out": str(tmp_path / name)}
        play(Grid(held), **common | settings)
        return files.read_json(tmp_path / name / "federation.json")

    first, again = (found(name, nodes(tmp_path)) for name in ("first", "again"))
    assert (first["shape"], first["class_names"], first["columns"]) == ([1, 8, 8], ["0", "1", "2"], [])
    assert (first["secure"], first["examples"]) == ("off", [20, 20, 20])
    assert len(first["statistics"]) == 16
    assert first.pop("run") != again.pop("run")
    assert first.pop("start") <= again.pop("start")
    assert first == again
    assert found("other", apart(tmp_path))["statistics"] != first["statistics"]
    assert found("fixed", nodes(tmp_path), normalisation="fixed")["statistics"] is None
    held = nodes(tmp_path)
    del held[1007]
    assert found("without", held, min_clients=2)["examples"] is None


def test_a_run_whose_folder_does_not_say_what_was_agreed_on_agrees_anew(tmp_path, caplog):
    """As folders of earlier versions do not; a damaged one is refused."""
    run = {"dataset": "", "auxiliary_per_class": "", "out": str(tmp_path / "run"), "resume": True}
    play(Grid(nodes(tmp_path)), **run, rounds=1)
    path = tmp_path / "run" / "federation.json"
    held = files.read_json(path)
    files.write_json(path, {"run": held["run"]})
    play(Grid(nodes(tmp_path)), **run, rounds=2)
    assert "they agree anew, on who is here now" in caplog.text
    assert files.read_json(path) | {"start": held["start"]} == held
    files.write_json(path, {**held, "mean": "x"})
    with pytest.raises(UserError, match=r"'mean' is 'x', which is not a list.* begin the run anew"):
        play(Grid(nodes(tmp_path)), **run, rounds=3)
    for been in ([1], {"0": 1000}, {"a": [1000]}, {"0": ["a"]}):
        files.write_json(path, {**held, "nodes": been})
        with pytest.raises(UserError, match=r"federation\.json is damaged"):
            play(Grid(nodes(tmp_path)), **run, rounds=3)


def test_a_run_is_not_resumed_on_other_statistics_of_the_servers_own_data(tmp_path):
    run = {"out": str(tmp_path / "run"), "resume": True}
    play(Grid(nodes(tmp_path)), **run, rounds=1)
    path = tmp_path / "run" / "federation.json"
    play(Grid(nodes(tmp_path)), **run, rounds=2)
    files.write_json(path, {**files.read_json(path), "mean": [0.125]})
    with pytest.raises(UserError, match="other channel statistics than when the run was begun"):
        play(Grid(nodes(tmp_path)), **run, rounds=3)


def test_a_run_that_noted_nothing_of_columns_goes_on_again_and_again(tmp_path, monkeypatch):
    """As earlier versions did not: the nodes' own are taken, whatever they are."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "table", UNLIKE, UNLIKE[:12])
    held = nodes(tmp_path / "m", data=f"folder:{tmp_path}/table", divide=False)
    run = {"dataset": "", "auxiliary_per_class": "", "model": "mlp:4", "out": str(tmp_path / "run")}
    play(Grid(held), **run, rounds=1)
    path = tmp_path / "run" / "federation.json"
    noted = files.read_json(path)
    assert noted.pop("columns") == ["a", "b"]
    files.write_json(path, noted)
    for rounds in (2, 3):
        grid = Grid(held)
        assert play(grid, **run, rounds=rounds, resume=True).history[-1]["failures"] == []
        assert told(grid)[0]["mean"] == noted["mean"]
        assert files.read_json(path)["columns"] is None


def test_what_was_agreed_on_before_anything_was_played_is_agreed_on_anew(tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "rounds": 1}
    play(Grid(nodes(tmp_path)), **run, out=str(tmp_path / "other"))
    (tmp_path / "run").mkdir()
    held = files.read_json(tmp_path / "other" / "federation.json")
    files.write_json(tmp_path / "run" / "federation.json", held)
    grid = Grid(apart(tmp_path))
    play(grid, **run, out=str(tmp_path / "run"), resume=True)
    assert told(grid)[0]["mean"] != held["mean"]
    assert files.read_json(tmp_path / "run" / "federation.json")["run"] == held["run"]


def test_nodes_are_told_the_statistics_of_the_servers_own_data(tmp_path):
    grid = Grid(nodes(tmp_path))
    own = "synthetic:classes=3,train=90,test=30,seed=4"
    result = play(grid, dataset=own, rounds=1)
    (said,) = told(grid)
    assert said["mean"] == pytest.approx(load_data(own).mean.tolist(), rel=1e-6)
    assert said["mean"] != pytest.approx(load_data(BASE["dataset"]).mean.tolist(), rel=1e-3)
    assert result.federation.dataset.mean.tolist() == pytest.approx(said["mean"])


def test_nodes_are_told_the_statistics_of_the_servers_own_table_as_it_was_read(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "table", UNLIKE, UNLIKE[:12])
    values = [float(row.split(",")[0]) for row in UNLIKE[::2]]
    write_table(
        tmp_path / "own",
        [f"{a!r},5.0,{row[-1]}" for a, row in zip(values, UNLIKE[::2], strict=True)],
        UNLIKE[:12],
    )
    grid = Grid(nodes(tmp_path / "m", data=f"folder:{tmp_path}/table"))
    play(grid, dataset=f"folder:{tmp_path}/own", auxiliary_per_class=0, model="mlp:4", rounds=1)
    (said,) = told(grid)
    assert said["mean"] == pytest.approx([sum(values) / len(values), 5.0])
    assert said["std"] == pytest.approx(
        [torch.tensor(values, dtype=torch.float64).std(correction=0).item(), 1.0]
    )


@pytest.mark.parametrize(
    ("algorithm", "given", "held"),
    [("fedavg", 4, 4), ("fedssd:auxiliary_per_class=2", 3, 3), ("fedssd:auxiliary_per_class=6", "", 6)],
)
def test_the_server_sets_apart_as_many_of_its_examples_as_was_said(algorithm, given, held):
    settings = {"algorithm": algorithm, "auxiliary_per_class": given}
    found = describe(**settings)
    assert torch.bincount(found.auxiliary.y).tolist() == [held] * 3
    config, _ = hosting.read(
        {**SERVERS, **settings, "partition_seed": 9}
    )  # which deals as it does on one machine
    alone = federate(config, load_data(SERVERS["dataset"]), ALGORITHMS.make(config.algorithm))
    assert describe(**settings, partition_seed=9).auxiliary_part.tolist() == alone.auxiliary_part.tolist()
    assert found.auxiliary_part.tolist() != alone.auxiliary_part.tolist()


@pytest.mark.parametrize("own", ["", f"{__name__}:Lacking:train"])
def test_a_server_without_the_examples_that_are_needed_is_refused_before_nodes_are_asked(own, tmp_path):
    grid = Grid(nodes(tmp_path))
    with pytest.raises(UserError, match="fedssd needs 4 examples of each class at the server: give it"):
        play(grid, algorithm="fedssd:auxiliary_per_class=4", dataset=own)
    assert not grid.sent


@dataclass(frozen=True)
class Lacking(Recipe):
    """A data set of one split alone."""

    split: str
    """The one that is empty."""

    def read(self, name: str, root: Path | None) -> Dataset:
        """The others' data without it."""
        whole = load_data(BASE["dataset"])
        return replace(whole, **{self.split: getattr(whole, self.split).part(slice(0))})


def test_a_server_that_holds_too_little_is_refused_as_on_one_machine():
    with pytest.raises(UserError, match=r"fedssd needs auxiliary_per_class >= 64, not 4\."):
        describe(algorithm="fedssd")


SERVERS = {**BASE, "dataset": "synthetic:classes=3,train=90,test=30"}


def describe(**settings):
    """The federation of a server that has data of its own."""
    dataset = load_data(SERVERS["dataset"])
    config, _ = hosting.read({**SERVERS, **settings})
    agreed = wire.Data(["0", "1", "2"], dataset.mean.tolist(), dataset.std.tolist())
    return server.describe(config, Facts(dataset.shape, agreed, ()), dataset)


def test_the_servers_test_examples_are_augmented_as_was_said():
    for said in ("none", "flip"):
        assert describe(test_augmentation=said).test_augmentation == Augmentation.parse(said)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            "synthetic:classes=3,train=60,test=30,channels=2",
            r"has examples of \[2, 8, 8\] .* have \[1, 8, 8\]",
        ),
        ("synthetic:classes=4,train=60,test=30", r"in 4 classes, the nodes have .* in 3; or the"),
    ],
)
def test_a_server_whose_data_are_of_another_kind_is_refused(own, said, tmp_path):
    with pytest.raises(UserError, match=said):
        play(Grid(nodes(tmp_path)), dataset=own, rounds=1)


def test_a_round_in_which_everybody_failed_is_told_in_sentences(tmp_path):
    def tamper(node: int, reply: Message) -> Message | None:
        asked = grid.sent[-1].metadata.message_type
        return (
            Message(wire.pack(wire.Refusal("no room.")), reply_to=grid.sent[-1])
            if asked == "train"
            else reply
        )

    grid = Grid(nodes(tmp_path), tamper)
    with pytest.raises(UserError, match=r"first client \d, round 1: no room\. A run without a folder"):
        play(grid)


def test_a_federation_is_the_same_whose_images_were_decoded_elsewhere():
    def statistics(mean, std=(0.25,)):
        data = wire.Data(["a", "b"], [mean], list(std))
        held = SimpleNamespace(config=configs.make({}), hosting=SimpleNamespace(secure="off"), examples=[1])
        return server.marks(Facts((1, 8, 8), data, ()), held)["statistics"]

    assert statistics(0.5) == statistics(0.500004) != statistics(0.5003)
    assert statistics(0.5) != statistics(0.5, [0.26])


def test_a_lost_upload_does_not_move_the_memory_that_the_server_means(tmp_path):
    """The node trained in round 2, nobody got it: in round 3 it starts from its memory of round 1."""
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message | None:
        lost = grid.sent[-1].metadata.message_type == "train" and grid.sent[-1].metadata.group_id == "2"
        return None if lost and node == 1000 else reply

    grid = Grid(held, tamper)
    play(grid, algorithm="scaffold")
    asked = [m for m in grid.sent if m.metadata.message_type == "train" and m.metadata.dst_node_id == 1000]
    assert [m.content["values"]["remembered"] for m in asked] == [0, 1, 1]


def test_a_client_that_is_late_for_rounds_on_end_takes_part_again(tmp_path):
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message | None:
        late = grid.sent[-1].metadata.message_type == "train" and node == 1000
        return None if late and 2 <= int(grid.sent[-1].metadata.group_id) <= 4 else reply

    grid = Grid(held, tamper)
    result = play(grid, algorithm="scaffold", rounds=6)
    assert [len(r["failures"]) for r in result.history] == [0, 1, 1, 1, 0, 0]
    assert all("no reply" in r["failures"][0] for r in result.history[1:4])


@pytest.mark.parametrize(
    ("every", "kept"), [(1, [6, 7, 8]), (3, [3, 6, 7, 8]), (100, [7, 8]), (None, [7, 8])]
)
def test_clients_remember_what_is_needed_and_no_more(every, kept, tmp_path):
    """What the last round and the two checkpoints began at, however far these are apart."""
    run = {"algorithm": "scaffold", "rounds": 8}
    if every is not None:
        run |= {"checkpoint_every": every, "out": str(tmp_path / "run"), "resume": True}
    grid = Grid(nodes(tmp_path / "nodes"))
    play(grid, **run)
    (folder,) = (tmp_path / "nodes").glob("*/client-000001")
    assert sorted(int(p.name[6:12]) for p in folder.iterdir()) == kept
    if every is None:
        return
    expected = alone(algorithm="scaffold", rounds=11).server.weights
    play(grid, **run | {"rounds": 10})  # it may go back to where it ended before, too
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("*.json"))
    assert checkpoints[0].stem == f"round-{8 if every == 100 else 9:06d}"
    checkpoints[1].unlink()
    result = play(grid, **run | {"rounds": 11})
    assert [r["failures"] for r in result.history] == [[]] * 11
    same(result.weights, expected)


def test_nothing_is_remembered_where_there_is_nothing_to_remember(tmp_path):
    play(Grid(nodes(tmp_path / "m")), algorithm="fedntd", rounds=1, out=str(tmp_path / "run"))
    assert {p.name for p in (tmp_path / "m").iterdir()} == {f"answers-{k:06d}.jsonl" for k in range(3)}
    assert not list((tmp_path / "run").rglob("*client-*"))  # nor has the server receipts


def noted(folder: Path, client: int) -> list[dict[str, object]]:
    """What a node has noted of its answers."""
    return [json.loads(line) for line in (folder / f"answers-{client:06d}.jsonl").read_text().splitlines()]


def test_a_node_notes_all_that_leaves_it(tmp_path):
    """Compared with what the server received."""
    grid, run = Grid(nodes(tmp_path / "m")), {"algorithm": "scaffold", "rounds": 2, "dataset": ""}
    play(grid, **run, auxiliary_per_class="", out=str(tmp_path / "run"))
    name = json.loads((tmp_path / "run" / "federation.json").read_text())["run"]
    for node, own in grid.nodes.items():
        received = [m for m in grid.received if m.metadata.src_node_id == node]
        lines = noted(tmp_path / "m", own["client"])
        assert [line["kind"] for line in lines] == ["query", *["train", "evaluate"] * 2]
        for line, message in zip(lines, received, strict=True):
            said = message.content["values"]
            assert line["kind"] == message.metadata.message_type
            assert line["values"] == sorted(said)
            assert line["algorithm"] == "scaffold"
            assert line.get("round") == said.get("round")
            assert line.get("run") == (None if line["kind"] == "query" else name)
            assert line["examples"] == (said["examples"] if "examples" in said else sum(said["confusion"]))
            if "arrays" not in message.content:
                assert not {"arrays", "bytes", "masked"} & line.keys()
                continue
            packed = message.content["arrays"]["safetensors"].data
            assert line["arrays"] == {name: list(t.shape) for name, t in load(packed).items()}
            assert (line["bytes"], line["masked"]) == (len(packed), False)
    assert len({line["config"] for k in range(3) for line in noted(tmp_path / "m", k)}) == 1
    (path, *_) = (tmp_path / "m").glob("answers-*")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_node_notes_what_it_refuses_and_what_is_masked(tmp_path):
    grid = Grid(nodes(tmp_path, secure=True))
    with pytest.raises(UserError, match="lets it train with secure aggregation only"):
        play(grid, rounds=1)
    play(grid, rounds=1, secure="equal")
    query, refused, *lines = noted(tmp_path, 0)
    assert (query["kind"], refused["kind"], refused["round"]) == ("query", "train", 1)
    assert refused["refused"].startswith("its owner lets it train with secure aggregation only")
    assert not {"values", "arrays"} & refused.keys()
    kinds = ["query", "query.keys", "query.shares", "train.masked", "query.unmask"]
    assert [line["kind"] for line in lines] == kinds
    assert [line.get("masked") for line in lines] == [None, None, None, True, None]
    assert lines[3]["algorithm"] == "fedavg"
    assert lines[3]["values"] == ["client", "round", "seconds"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"algorithm": 3}', '{"algorithm": {"name": [1]}}'])
def test_whatever_a_node_is_asked_its_answer_is_noted(text, tmp_path):
    grid = Grid(nodes(tmp_path, count=1))
    for content in ({}, {"config": text}, {"task": text, "round": "x" * 10**6, "run": text}, {"config": 1.5}):
        grid.push_messages([Message(RecordDict({"values": ConfigRecord(content)}), 1000, "train")])
    lines = noted(tmp_path, 0)
    assert ["refused" in line for line in lines] == [True] * 4
    assert all(len(json.dumps(line)) < 3000 for line in lines)


def test_what_a_node_cannot_note_does_not_leave_it(tmp_path):
    (tmp_path / "m").write_text("no folder")
    grid = Grid(nodes(tmp_path / "m"))
    with pytest.raises(UserError, match=r"cannot write to .*/m: File exists"):
        play(grid, rounds=1)
    assert all(set(m.content["values"]) == {"reason", "client"} for m in grid.received)


def test_a_node_that_lost_its_memory_says_so(tmp_path):
    def tamper(node: int, reply: Message) -> Message | None:
        if node == 1000 and grid.sent[-1].metadata.group_id == "1" and "arrays" in reply.content:
            for path in tmp_path.glob("*/client-000000/*"):
                path.unlink()
        return reply

    grid = Grid(nodes(tmp_path), tamper)
    result = play(grid, algorithm="scaffold", rounds=2)
    (failure,) = result.history[1]["failures"]
    assert "client 0, round 2: what it remembered after round 1 is not in" in failure


def test_a_node_whose_disk_is_full_says_so_and_takes_part_again(tmp_path, monkeypatch):
    full, write = [2], files.write

    def writes(path: Path, content: bytes) -> None:
        if "client-000001" in str(path) and grid.sent[-1].metadata.group_id in map(str, full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr(files, "write", writes)
    grid = Grid(nodes(tmp_path))
    result = play(grid, algorithm="scaffold", rounds=3)
    assert [len(r["failures"]) for r in result.history] == [0, 1, 0]
    (said,) = result.history[1]["failures"]
    assert said.startswith("client 1, round 2: cannot write to ")
    assert said.endswith(
        "client-000001: No space left on device. What was saved before is kept: see to it that there is room "
        "and that the folder may be written, and it takes part again."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": 9}, r"2 of 3 clients are here, missing 0"),
        ({"client": 1}, r"nodes \d+ and \d+ both say they are client 1: give every SuperNode its own"),
        ({"data": "synthetic:classes=3,train=60,test=30,channels=2"}, "different shapes"),
        ({"data": "synthetic:classes=4,train=60,test=30"}, "name different classes"),
        ({"data": "folder:/nowhere"}, r"missing 0"),
        ({"typo": 1}, r"missing 0"),
        ({"custom": False}, r"missing 0"),
    ],
)
def test_nodes_that_do_not_fit_are_named(change, message, tmp_path):
    held = nodes(tmp_path)
    held[1000] |= change
    with pytest.raises(UserError, match=message):
        play(Grid(held), dataset="", auxiliary_per_class="", min_clients=3)


def test_a_mistake_is_a_sentence_in_flowers_log_and_fails_the_run(tmp_path, caplog, monkeypatch):
    """Flower logs what a ServerApp raises, with a traceback, and marks the run as failed for it."""
    run = {**BASE, "poll": 0.001, "rounds": 1, "out": str(tmp_path / "run")}

    def flower(**settings: object) -> None:
        context = Context(1, 1, {}, RecordDict(), run_config={**run, **settings})
        grid.sent.clear()
        try:
            server.main(grid, context)
        except Exception as error:
            server.log.error("%s raised an exception", "ServerApp", exc_info=error)
            raise

    grid = Grid(nodes(tmp_path))
    monkeypatch.setattr(server.log, "filters", [])
    monkeypatch.setattr("warnings.showwarning", None)
    flower()
    for settings, said in (
        ({}, "already holds a run: continue it with resume=true, or give another out."),
        (
            {"resume": True, "lr": 7},
            "begun with training.lr = 0.01, not 7.0: resume it as it was, or give another out.",
        ),
        ({"algorithm": "fedntd:beta=-1"}, "beta = '-1' must be >= 0."),
    ):
        caplog.clear()
        with pytest.raises(UserError, match=re.escape(said)):
            flower(**settings)
        last = caplog.records[-1]
        assert last.getMessage().endswith(said)
        assert (last.exc_info, last.levelname) == (None, "ERROR")
        assert not grid.sent, "nodes were asked for a run that cannot be"
    warnings.warn("an odd thing", RuntimeWarning, stacklevel=1)
    assert caplog.messages[-1] == "an odd thing"
    server.log.error("another", exc_info=ValueError("not a user's"))
    assert caplog.records[-1].exc_info is not None


def test_who_is_left_out_is_not_said_to_be_away(tmp_path):
    """Nor that its SuperNode is to be started, which it has been."""
    held = nodes(tmp_path)
    held[1000]["data"], held[1007]["typo"] = "folder:/nowhere", 1
    with pytest.raises(UserError, match="1 of 3 clients are here, missing 0, 1") as error:
        play(Grid(held), min_clients=2)
    assert "node 1000, client 0 (it cannot read its data: its own log says why.)" in str(error.value)
    assert "node 1007 (--node-config has no 'typo'" in str(error.value)
    result = play(Grid(held), rounds=1)
    assert result.history[0]["failures"] == [
        "client 0, round 1: its node is left out: it cannot read its data: its own log says why.",
        "client 1, round 1: its node is not connected, or is one that is left out and does not say which "
        "client it is",
    ]


@pytest.mark.parametrize("mended", [1, 2])
def test_a_node_that_was_left_out_takes_part_once_it_is_mended(mended, tmp_path, monkeypatch, caplog):
    """It stays online all the time: its owner puts right what it could not read."""
    held = nodes(tmp_path)
    whole, held[1007]["data"] = held[1007]["data"], "folder:/nowhere"

    def tamper(node: int, reply: Message) -> Message:
        if grid.sent[-1].metadata.group_id == f"{mended}":
            held[1007]["data"] = whole
        return reply

    monkeypatch.setattr("fedrecall.flower.nodes.AGAIN", 0.0)
    grid = Grid(held, tamper)
    result = play(grid, rounds=4)
    assert [len(r["failures"]) for r in result.history] == [1] * mended + [0] * (4 - mended)
    told = [r for r in caplog.records if "node 1007 is left out" in r.getMessage()]
    assert len(told) == 1  # however often it was asked


def test_a_node_is_waited_for_that_is_mended_before_the_start(tmp_path, monkeypatch):
    held = nodes(tmp_path)
    whole, held[1007]["data"] = held[1007]["data"], "folder:/nowhere"
    refused = []

    def tamper(node: int, reply: Message) -> Message:
        if node == 1007 and "reason" in reply.content["values"]:
            refused.append(node)
            if len(refused) == 3:
                held[1007]["data"] = whole
        return reply

    monkeypatch.setattr("fedrecall.flower.nodes.AGAIN", 0.01)
    result = play(Grid(held, tamper), rounds=1, wait=30)
    assert (len(refused), result.history[0]["failures"]) == (3, [])


OTHERS = {
    "more examples": {"data": "synthetic:classes=3,train=90,test=30"},
    "other examples, as many": {"data": "synthetic:classes=3,train=60,test=30,seed=1"},
    "fewer to test on": {"data": "synthetic:classes=3,train=60,test=12"},
}


@pytest.mark.parametrize("secure", ["off", "examples"])
@pytest.mark.parametrize("case", OTHERS)
def test_a_node_that_comes_back_with_other_data_says_so_before_it_trains(case, secure, tmp_path):
    """Flower gives it the id that it had. Its next task is refused, then it takes part with what it has."""
    held = nodes(tmp_path, 4)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if sent.message_type.startswith("train") and sent.group_id == "1" and node == 1000:
            held[1000] |= OTHERS[case]
        return reply

    grid = Grid(held, tamper)
    run = {"clients": 4, "sample": 4, "dataset": "", "auxiliary_per_class": "", "min_clients": 3}
    result = play(grid, **run, secure=secure, rounds=4)
    said = "its data are not those that it announced: it is asked anew what they are."
    assert [r.get("untested") for r in result.history] == [
        [f"client 0, evaluation of round 1: {said}"], None, None, None
    ]  # fmt: skip
    assert [r["failures"] for r in result.history] == [[]] * 4
    train = {m.metadata.message_type for m in grid.sent} & {"train", "train.masked"}
    assert len(train) == 1
    asked = [m for m in grid.sent if m.metadata.message_type == "query" and m.metadata.dst_node_id == 1000]
    assert len(asked) == 2


@pytest.mark.parametrize("secure", ["off", "examples"])
def test_what_a_client_counts_for_follows_from_what_it_announced_anew(secure, tmp_path):
    held = nodes(tmp_path, 4)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if sent.message_type.startswith("train") and sent.group_id == "1" and node == 1000:
            held[1000] |= OTHERS["more examples"]
        return reply

    grid = Grid(held, tamper)
    run = {"clients": 4, "sample": 4, "min_clients": 3, "secure": secure, "rounds": 3}
    said = "client 0, round 2: its data are not those that it announced: it is asked anew what they are."
    assert [r["failures"] for r in play(grid, **run).history] == [[], [said], []]
    if secure == "examples":
        tasks = [m.content["values"] for m in grid.sent if m.metadata.message_type == "train.masked"]
        shares = [v["share"] for v in tasks if wire.from_json(v["task"], "")["client"] == 0]
        assert shares == [12 / 48, 12 / 48, 19 / (36 + 19)]


def test_a_node_that_is_another_client_by_now_is_asked_who_it_is(tmp_path):
    held = nodes(tmp_path, 4)
    del held[1021]

    def tamper(node: int, reply: Message) -> Message:
        if grid.sent[-1].metadata.message_type == "train" and grid.sent[-1].metadata.group_id == "1":
            held[1014]["client"] = 3
        return reply

    grid = Grid(held, tamper)
    result = play(grid, clients=4, sample=4, rounds=3)
    away = "client {}, round {}: its node is not connected"
    assert [r["failures"] for r in result.history] == [
        [away.format(3, 1)],
        ["client 2, round 2: it is client 3, not 2.", away.format(3, 2)],
        [away.format(2, 3)],
    ]


def test_with_enough_clients_the_run_goes_on_without_the_others(tmp_path, caplog):
    held = nodes(tmp_path)
    del held[1007]
    result = play(Grid(held), min_clients=2, rounds=1)
    assert result.history[0]["failures"] == ["client 1, round 1: its node is not connected"]
    assert "2 of 3 clients are here" in caplog.text


def moved(held: dict[int, dict[str, object]], node: int, sent: Metadata) -> bool:
    """Whether this is node 1000 in round 2, which then is gone and comes back as node 5."""
    if sent.message_type != "train" or sent.group_id != "2" or node != 1000:
        return False
    held[5] = held.pop(1000)
    return True


def test_a_client_that_comes_back_under_another_id_takes_part_again(tmp_path):
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message | None:
        sent = grid.sent[-1].metadata
        if moved(held, node, sent):
            return None
        return reply

    grid = Grid(held, tamper)
    result = play(grid, rounds=3)
    assert [len(r["failures"]) for r in result.history] == [0, 1, 0]


def test_who_was_a_client_first_gets_its_place_back_and_the_log_says_who_had_it(tmp_path, caplog):
    """With a registered key a node keeps its id, so that its return is not taken for somebody else's."""
    held = nodes(tmp_path)
    own = held[1007]

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if node == 1007 and (sent.message_type, sent.group_id) == ("train", "1"):
            del held[1007]
            held[2222] = own
        if node == 2222 and (sent.message_type, sent.group_id) == ("train", "2"):
            held[1007] = own
        return reply

    grid = Grid(held, tamper)
    result = play(grid, rounds=3)
    assert [r["failures"] for r in result.history] == [[]] * 3
    trained = [m.metadata for m in grid.sent if m.metadata.message_type == "train"]
    assert [{m.dst_node_id for m in trained if m.group_id == r} - {1000, 1014} for r in "123"] == [
        {1007}, {2222}, {1007}
    ]  # fmt: skip
    told = [r.getMessage().partition(":")[0] for r in caplog.records if r.levelname == "ERROR"]
    assert told == [
        "client 1 is now node 2222, and was node 1007",
        "client 1 is now node 1007, and was node 2222",
    ]


def test_who_was_a_client_first_gets_its_place_back_though_the_server_was_started_again(tmp_path, caplog):
    """Without keys every start of a node has a new id, and the one that is there first after it counts."""
    held = nodes(tmp_path / "nodes")
    run = {"out": str(tmp_path / "run"), "resume": True}
    play(Grid(held), **run, rounds=1)
    held[2222] = held.pop(1007)
    own, held[5] = held[2222], held.pop(1014)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if (sent.message_type, sent.group_id) == ("train", "2"):
            held[1007] = own
            held[6] = held[5]
        return reply

    grid = Grid(held, tamper)
    assert [r["failures"] for r in play(grid, **run, rounds=3).history] == [[]] * 3
    trained = [m.metadata for m in grid.sent if m.metadata.message_type == "train"]
    by = [{m.dst_node_id for m in trained if m.group_id == r} for r in "23"]
    assert by == [{1000, 2222, 5}, {1000, 1007, 5}]
    told = [r.getMessage().partition(":")[0] for r in caplog.records if r.levelname == "ERROR"]
    assert told == [
        "client 2 is now node 5, and was node 1014",
        "client 1 is now node 2222, and was node 1007",
        "client 1 is now node 1007, and was node 2222",
    ]
    noted = files.read_json(tmp_path / "run" / "federation.json")["nodes"]
    assert noted == {"0": [1000], "1": [1007, 2222], "2": [1014, 5]}
    del held[6], held[2222]
    caplog.clear()
    play(Grid(held), **run, rounds=4)
    assert "is now node" not in caplog.text


@pytest.mark.parametrize(("recorded", "resume"), [(1, True), (0, True), (0, False)])
def test_who_was_a_client_first_is_known_though_the_run_has_saved_nothing(recorded, resume, tmp_path):
    """It is played from its first round on, by the name that it had."""
    held, path = nodes(tmp_path / "nodes"), tmp_path / "run" / "federation.json"
    run = {"out": str(tmp_path / "run"), "rounds": 2, "checkpoint_every": 2}
    last = str(recorded + 1)
    grid = Grid(held, lambda node, reply: None if grid.sent[-1].metadata.group_id == last else reply)
    with pytest.raises(UserError, match="every client of the round failed"):
        play(grid, **run)
    name = files.read_json(path)["run"]
    held[2222] = own = held.pop(1007)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if (sent.message_type, sent.group_id) == ("train", "1"):
            held[1007] = own
        return reply

    grid = Grid(held, tamper)
    assert [r["failures"] for r in play(grid, **run, resume=resume).history] == [[], []]
    trained = [m.metadata for m in grid.sent if m.metadata.message_type == "train"]
    by = [{m.dst_node_id for m in trained if m.group_id == r} for r in "12"]
    assert by == [{1000, 2222, 1014}, {1000, 1007, 1014}]
    noted = files.read_json(path)
    assert (noted["run"], noted["nodes"]["1"]) == (name, [1007, 2222])


def test_a_node_with_a_registered_key_has_the_same_id_whenever_it_is_started():
    """As docs/deploy.md has it of Flower."""
    state = InMemoryLinkState(NoOpFederationManager(), InMemoryObjectStore())
    node = state.create_node("", "", b"its public key", 30.0)
    started = ActivateNodeRequest(public_key=b"its public key", heartbeat_interval=30.0)
    for _ in range(2):
        assert fleet_handlers.activate_node(started, state).node_id == node
        state.deactivate_node(node)


def test_a_client_that_is_slow_to_say_who_it_is_takes_part_again(tmp_path):
    held = nodes(tmp_path)
    late: dict[str, Message] = {}

    def tamper(node: int, reply: Message) -> Message | None:
        sent = grid.sent[-1].metadata
        if moved(held, node, sent):
            return None
        if node == 5 and sent.message_type == "query":
            late[sent.message_id] = reply
            return None
        if sent.message_type == "train" and sent.group_id == "3":
            grid._replies.update(late)
            late.clear()
        return reply

    grid = Grid(held, tamper)
    result = play(grid, rounds=5)
    assert [len(r["failures"]) for r in result.history] == [0, 1, 1, 0, 0]


def test_a_question_that_has_expired_is_asked_again(tmp_path):
    held = nodes(tmp_path)
    questions: list[str] = []

    def tamper(node: int, reply: Message) -> Message | None:
        sent = grid.sent[-1].metadata
        if moved(held, node, sent):
            return None
        if node == 5 and sent.message_type == "query":
            questions.append(sent.message_id)
            if len(questions) == 1:
                return None
        if sent.message_type == "train" and sent.group_id == "3" and node == 1007:
            question = Message(RecordDict(), 5, "query")
            question.metadata.__dict__["_message_id"] = questions[0]
            grid._replies[questions[0]] = Message(Error(code=1, reason="expired"), reply_to=question)
        return reply

    grid = Grid(held, tamper)
    result = play(grid, rounds=5)
    assert [len(r["failures"]) for r in result.history] == [0, 1, 1, 1, 0]
    assert len(questions) == 2


def test_a_reply_that_flower_cannot_read_costs_its_client_the_round_and_nobody_else(tmp_path):
    class Odd(Grid):
        def pull_messages(self, identities):
            found = super().pull_messages(identities)
            for reply in found:
                training = reply.metadata.message_type == "train" and self.sent[-1].metadata.group_id == "2"
                if training and reply.content["values"]["client"] == 1:
                    raise KeyError("an object of it")  # of several that were asked for all are lost
            return found

    result = play(Odd(nodes(tmp_path)), rounds=3)
    said = "client 1, round 2: its reply cannot be read (KeyError)"
    assert [r["failures"] for r in result.history] == [[], [said], []]


def test_what_is_wrong_with_a_nodes_data_stays_in_its_log(tmp_path, caplog):
    folder = tmp_path / "data"
    folder.mkdir()
    secret = "Jane Doe, ill since 2014"
    (folder / "patients.csv").write_text(
        f'age,note,label\n41,0,ill\n52,"{secret}",ill\n33,0,well\n20,0,well\n'
    )
    grid = Grid({1: {"client": 0, "data": f"folder:{folder}", "memory": str(tmp_path / "m")}})
    run = {"clients": 1, "sample": 1, "rounds": 1, "dataset": "", "auxiliary_per_class": "", "model": "mlp:4"}
    with pytest.raises(UserError, match="missing 0"):
        play(grid, **run)
    (reply,) = grid.received
    said = {"reason": "it cannot read its data: its own log says why.", "client": 0}
    assert dict(reply.content["values"]) == said
    assert secret in caplog.text


def test_what_a_node_did_not_expect_stays_in_its_log(tmp_path, monkeypatch, caplog):
    from fedrecall.flower import client

    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("an image of Jane Doe")

    monkeypatch.setattr(client, "visit", broken)
    grid = Grid(nodes(tmp_path))
    with pytest.raises(UserError, match=r"it failed \(RuntimeError\): its own log says why"):
        play(grid, rounds=1)
    assert all("Jane" not in str(dict(m.content["values"])) for m in grid.received)
    assert "an image of Jane Doe" in caplog.text


def test_uploads_that_were_hidden_stay_hidden_when_the_run_goes_on(tmp_path):
    run = {"out": str(tmp_path / "run"), "resume": True}
    play(Grid(nodes(tmp_path)), **run, rounds=1, secure="equal")
    for other in ("off", "examples"):
        with pytest.raises(UserError, match=f"was begun with secure = 'equal', not '{other}'"):
            play(Grid(nodes(tmp_path)), **run, rounds=2, secure=other)
    play(Grid(nodes(tmp_path)), **run, rounds=2, secure="equal")


class Waited(Grid):
    """What happens once while the server waits for its nodes."""

    meanwhile = staticmethod(lambda: None)

    def get_node_ids(self) -> list[int]:
        happens, self.meanwhile = self.meanwhile, lambda: None
        happens()
        return super().get_node_ids()


@pytest.mark.parametrize("other", [{"secure": "equal"}, {"rounds": 1}])
def test_what_was_looked_up_of_a_run_stays_true_while_nodes_are_waited_for(other, tmp_path):
    """Another start would change how uploads are hidden, or what was agreed on."""
    run = {"out": str(tmp_path / "run"), "resume": True, "rounds": 2}
    grid, rival = Waited(nodes(tmp_path)), Grid(nodes(tmp_path))

    def meanwhile() -> None:
        with pytest.raises(UserError, match="another run is writing to"):
            play(rival, **run | other)

    grid.meanwhile = meanwhile
    assert len(play(grid, **run).history) == 2
    assert not rival.sent
    play(rival, **run | {"rounds": 3})  # which it was let go of


def test_a_folder_that_cannot_be_had_is_said_before_nodes_are_waited_for(tmp_path):
    (tmp_path / "run").touch()
    grid = Grid(nodes(tmp_path))
    with pytest.raises(UserError, match=r"cannot write to .*run"):
        play(grid, out=str(tmp_path / "run"))
    assert not grid.sent
    (tmp_path / "run").unlink()
    with pytest.raises(UserError, match="0 of 3 clients are here"):
        play(Grid({}), out=str(tmp_path / "run"))
    play(grid, out=str(tmp_path / "run"), rounds=1)  # it was let go of by the one in vain


@pytest.mark.parametrize("own", [True, False])
def test_a_run_that_is_over_needs_no_node_to_be_looked_at(own, tmp_path):
    where = {} if own else {"dataset": "", "auxiliary_per_class": ""}
    run = {"out": str(tmp_path / "run"), "resume": True, "rounds": 2, **where}
    first = play(Grid(nodes(tmp_path)), **run)
    noted = files.read_json(tmp_path / "run" / "federation.json")
    result = play(Grid({}), **run)
    same(result.weights, first.weights)
    assert list(result.history) == list(first.history)
    assert files.read_json(tmp_path / "run" / "federation.json") == noted
    with pytest.raises(UserError, match="0 of 3 clients are here"):
        play(Grid({}), **run | {"rounds": 3})


def test_a_run_whose_last_model_is_not_evaluated_waits_for_those_who_do(tmp_path):
    def mute(node: int, reply: Message) -> Message | None:
        return None if reply.metadata.message_type == "evaluate" else reply

    run = {
        "out": str(tmp_path / "run"),
        "resume": True,
        "rounds": 1,
        "dataset": "",
        "auxiliary_per_class": "",
    }
    played = play(Grid(nodes(tmp_path), mute), **run)
    assert "accuracy" not in played.history[-1]
    with pytest.raises(UserError, match="0 of 3 clients are here"):
        play(Grid({}), **run)
    last = play(Grid(nodes(tmp_path)), **run).history[-1]
    assert "accuracy" in last
    assert "untested" not in last


def test_rounds_that_nobody_tests_are_played_and_say_so(tmp_path):
    def mute(node: int, reply: Message) -> Message | None:
        asked = reply.metadata
        return None if asked.message_type == "evaluate" and asked.group_id in ("2", "3") else reply

    run = {"dataset": "", "auxiliary_per_class": "", "out": str(tmp_path / "run"), "rounds": 4}
    result = play(Grid(nodes(tmp_path / "nodes"), mute), **run)
    expected = alone(auxiliary_per_class=0, rounds=4)
    same(result.weights, expected.server.weights)
    assert [r.get("accuracy") for r in result.history[::3]] == [
        r["accuracy"] for r in list(expected.history)[::3]
    ]
    accuracies = np.array([r["class_accuracy"] for r in result.history[::3]])
    assert result.forgetting == forgetting(accuracies)  # looks back on what was tested
    for record in list(result.history)[1:3]:
        assert "accuracy" not in record
        assert len(record["untested"]) == 4
        assert record["untested"][-1].startswith(f"nobody evaluated the model of round {record['round']}")


def test_where_nobody_has_test_examples_nothing_is_begun(tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "rounds": 2, "evaluate_every": 2}
    grid = Grid(nodes(tmp_path / "nodes", data=f"{__name__}:Lacking:test"))
    with pytest.raises(UserError, match="no node has test examples, and the server has none: let a node"):
        play(grid, **run, out=str(tmp_path / "run"))
    assert {m.metadata.message_type for m in grid.sent} == {"query"}
    result = play(grid, **run | {"dataset": BASE["dataset"]}, out=str(tmp_path / "run"))  # as it advises
    assert "accuracy" in result.history[-1]


@pytest.mark.parametrize(
    ("content", "said"), [(None, "is gone, which says under what name"), ("[]", "damaged")]
)
def test_a_run_does_not_go_on_where_what_was_agreed_on_is_lost(content, said, tmp_path):
    """Under another name no node remembers it, and nobody knows how uploads were hidden."""
    run = {"algorithm": "scaffold", "out": str(tmp_path / "run"), "resume": True}
    play(Grid(nodes(tmp_path)), **run, rounds=1)
    path = tmp_path / "run" / "federation.json"
    held = path.read_text()
    path.unlink()
    if content is not None:
        path.write_text(content)
    grid = Grid(nodes(tmp_path))
    with pytest.raises(UserError, match=said):
        play(grid, **run, rounds=2)
    assert not grid.sent
    path.write_text(held)
    assert play(grid, **run, rounds=2).history[-1]["failures"] == []


def test_what_a_client_says_of_its_labels_is_drawn_once_even_if_its_round_is_played_again(tmp_path):
    class Killed(BaseException):
        pass

    said: dict[int, set[tuple[float, ...]]] = {}
    kill = [2]

    def tamper(node: int, reply: Message) -> Message:
        if grid.sent[-1].metadata.message_type == "train":
            said.setdefault(node, set()).add(tuple(arrays_of(reply)["distribution"].tolist()))
            kill[0] -= 1
            if kill[0] == 0:
                raise Killed
        return reply

    grid = Grid(nodes(tmp_path / "nodes"), tamper)
    run = {"algorithm": "sfedkd:share=laplace,noise=0.1,secret_noise=true", "rounds": 2}
    run |= {"out": str(tmp_path / "run"), "resume": True}
    with pytest.raises(Killed):
        play(grid, **run)
    assert len(said) == 2
    play(grid, **run)
    assert [len(s) for s in said.values()] == [1, 1, 1]


def test_memories_are_for_their_owner_alone(tmp_path):
    play(Grid(nodes(tmp_path)), algorithm="scaffold", rounds=1)
    folders = [p.parent for p in tmp_path.rglob("round-*.safetensors")]
    assert len(folders) == 3
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in folders)


def test_classes_are_matched_by_name(tmp_path, tmp_path_factory):
    """Silos with different classes, one with a single one, train one model once somebody names all."""
    from PIL import Image

    for k, names in enumerate((["ant"], ["bee", "cat"], ["ant", "cat"])):
        for name in names:
            for split in ("train", "test"):
                for i in range(6):
                    path = tmp_path / f"silo{k}" / split / name / f"{i}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.new("L", (8, 8), 40 * ("ant", "bee", "cat").index(name) + i + k).save(path)
    held = nodes(tmp_path / "m")
    for own in held.values():
        own |= {"data": f"folder:{tmp_path}/silo{own['client']}", "divide": False}
    settings = {"dataset": "", "auxiliary_per_class": "", "model": "tests.flower.small_net:make"}
    with pytest.raises(UserError, match="give class_names, all of them in one order"):
        play(Grid(held), **settings)
    result = play(Grid(held), **settings, class_names="cat+bee+ant", algorithm="sfedkd", rounds=1)
    assert result.federation.dataset.class_names == ("cat", "bee", "ant")
    grid = Grid(held)
    play(grid, **settings, class_names="cat+bee+ant", algorithm="sfedkd", rounds=1)
    said = {
        m.content["values"]["client"]: arrays_of(m)["distribution"].tolist()
        for m in grid.received
        if m.metadata.message_type == "train"
    }
    assert said == {0: [0, 0, 1], 1: [0.5, 0.5, 0], 2: [0.5, 0, 0.5]}


def test_a_node_with_a_class_that_nobody_named_is_said_at_the_start(tmp_path):
    run = {"dataset": "", "auxiliary_per_class": "", "class_names": "2+1+two"}
    with pytest.raises(UserError, match=r"client 0 has the class 0, which class_names lacks: 2, 1, two\."):
        play(Grid(nodes(tmp_path)), **run)


def test_a_node_that_comes_later_with_a_class_of_its_own_is_left_out(tmp_path):
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message | None:
        if moved(held, node, grid.sent[-1].metadata):
            held[5]["data"] = "synthetic:classes=4,train=60,test=30"
            return None
        return reply

    grid = Grid(held, tamper)
    result = play(grid, dataset="", auxiliary_per_class="", rounds=3)
    said = "client 0, round 3: its node is left out: client 0 has the class 3, the run has 0, 1, 2"
    assert result.history[2]["failures"] == [said]


def test_nodes_may_train_on_all_they_have_and_test_on_what_they_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    rows = [f"{i % 3 + i / 99!r},{i / 7!r},{'xyz'[i % 3]}" for i in range(36)]
    write_table(tmp_path / "silo0", [r for r in rows if r[-1] != "z"], rows[:6])  # tests "z", too
    write_table(tmp_path / "silo1", rows, [])
    write_table(tmp_path / "silo2", rows[5:], rows[:9])
    held = nodes(tmp_path / "m", divide=False)
    for own in held.values():
        own["data"] = f"folder:{tmp_path}/silo{own['client']}" + ",held_out=0" * (own["client"] == 1)
    grid = Grid(held)
    result = play(grid, dataset="", auxiliary_per_class="", model="mlp:4", rounds=1)
    assert {a.client: (a.examples, a.test_examples) for a in said_of_data(grid)} == {
        0: (24, 6), 1: (36, 0), 2: (31, 9)
    }  # fmt: skip
    assert result.history[0]["failures"] == []
    tested = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert sorted(tested) == [1000, 1014]
    assert "untested" not in result.history[0]


def test_statistics_are_those_of_all_examples_together():
    from fedrecall.flower.nodes import _pooled

    stream = torch.Generator().manual_seed(0)
    parts = [
        torch.rand(n, 2, 50, generator=stream, dtype=torch.float64) * (k + 1) for k, n in enumerate((3, 8, 5))
    ]
    said = [
        wire.Announcement(
            k, len(p), 0, [2, 5, 10], ["a"],
            p.mean((0, 2)).tolist(), p.std((0, 2), correction=0).tolist(), [], False, "", False,
        )
        for k, p in enumerate(parts)
    ]  # fmt: skip
    mean, std = _pooled(said)
    together = torch.cat(parts)
    assert mean == pytest.approx(together.mean((0, 2)).tolist())
    assert std == pytest.approx(together.std((0, 2), correction=0).tolist())


def test_a_channel_that_never_varies_at_one_node_does_so_in_the_statistics_of_all():
    from fedrecall.data.store import statistics
    from fedrecall.flower.nodes import _pooled

    stream = torch.Generator().manual_seed(0)
    drawn = [torch.randint(90, 120, (n, 1, 6, 6), generator=stream, dtype=torch.uint8) for n in (4, 9)]
    for parts in ([torch.full((5, 1, 6, 6), 7, dtype=torch.uint8), *drawn], [drawn[0] * 0, drawn[1] * 0]):
        said = [
            wire.Announcement(
                k, len(x), 0, [1, 6, 6], ["a"], *(t.tolist() for t in statistics(x)), [], False, "", False
            )
            for k, x in enumerate(parts)
        ]
        mean, std = _pooled(said)
        expected = statistics(torch.cat(parts))
        assert mean == pytest.approx(expected[0].tolist())
        assert std == pytest.approx(expected[1].tolist())


@pytest.mark.parametrize("still", [0.0, 5.0])
@pytest.mark.parametrize("along", [False, True])
def test_numbers_that_never_vary_at_one_node_are_as_on_one_machine(still, along):
    from fedrecall.flower.nodes import _pooled

    stream = np.random.default_rng(0)
    x = stream.normal(still, 0.1, (16, 2, 3)).astype(np.float32)
    x[:8] = x[8:, :, 2] = still  # at the first node nothing varies, and at the other not the last place

    def told(standardise: bool) -> tuple[list[float], list[float]]:
        said = []
        for k, mine in enumerate((x[:8], x[8:])):
            d = from_arrays(mine, [0] * 8, mine[:0], [], standardise=standardise)
            if along and standardise:
                mean, std = mine.mean((0, 1)), mine.std((0, 1))
                d = replace(d, mean=torch.from_numpy(mean), std=torch.from_numpy(np.where(std > 0, std, 1)))
            said.append(wire.Announcement(k, 8, 0, [2, 3], ["a"], *own_statistics(d), [], False, "", True))
        return _pooled(said)

    axes = (0, 1) if along else None
    mean, std = told(True)
    assert mean == pytest.approx(np.ravel(x.mean(axes, dtype=float)), rel=1e-6, abs=1e-9)
    assert std == pytest.approx([s or 1 for s in np.ravel(x.std(axes, dtype=float))], rel=1e-5)
    assert told(False) == ([0.0], [1.0])
    as_it_is = from_arrays(x[:8], [0] * 8, x[:0], [], standardise=False)
    assert told_statistics(as_it_is) == ([0.0], [1.0])  # which does not tell that it never varies


def test_what_nodes_call_their_classes_is_printed_in_one_short_line(tmp_path):
    names = value(classes=["\x1b]0;owned\x07\n[INFO] all is well", "x" * 10**6, "c"])

    def tamper(node: int, reply: Message) -> Message:
        return names(reply) if node == 1000 and reply.metadata.message_type == "query" else reply

    grid = Grid(nodes(tmp_path), tamper)
    with pytest.raises(UserError, match="name different classes") as error:
        play(grid)
    assert len(str(error.value)) < 2000
    assert str(error.value).isprintable()


def tampered_task(grid: Grid, kind: str, change) -> Message:
    """What the node answers to a server that sends this."""
    sent = next(m for m in grid.sent if m.metadata.message_type == kind)
    changed = change(sent)
    changed.metadata.__dict__["_message_id"] = "again"
    return grid.answer(sent.metadata.dst_node_id, changed)


SERVER_LIES = {
    "undeclared array": (added, "undeclared 'x'"),
    "wrong shape": (changed(BIAS, lambda t: t[:1].clone()), "has shape [1]"),
    "NaN": (changed(BIAS, lambda t: t * math.nan), "NaN"),
    "undeclared value": (value(query="SELECT"), "undeclared 'query'"),
    "undeclared record": (record("more", ConfigRecord({"a": 1})), "undeclared record 'more'"),
    "another client": (value(client=7), "not 7"),
    "no round": (value(round=-5), "of no round"),
    "path as a run's name": (value(run="../../../etc"), "hexadecimal"),
}


@pytest.mark.parametrize("case", SERVER_LIES)
def test_a_node_refuses_what_is_not_declared(case, tmp_path):
    change, said = SERVER_LIES[case]
    grid = Grid(nodes(tmp_path))
    play(grid, rounds=1)
    reply = tampered_task(grid, "train", change)
    assert set(reply.content) == {"values"}
    assert said in reply.content["values"]["reason"]


def test_a_table_in_parts_is_standardised_as_a_whole(tmp_path, monkeypatch):
    """Each node has read its rows alone, one with another mean, one with a column that never varies there."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    stream = torch.Generator().manual_seed(0)
    rows: list[list[str]] = []
    for k, (centre, spread) in enumerate(((0.0, 1.0), (1.7e9, 3.0), (100.0, 0.0))):
        drawn = torch.randn(20, 2, generator=stream, dtype=torch.float64)
        drawn[:, 0] = centre + spread * drawn[:, 0]
        rows.append([f"{a!r},{b!r},{'xyz'[i % 3]}" for i, (a, b) in enumerate(drawn.tolist())])
        write_table(tmp_path / f"silo{k}", rows[-1], rows[-1][:3])
    write_table(
        tmp_path / "whole", [r for part in rows for r in part], [r for part in rows for r in part[:3]]
    )
    held = nodes(tmp_path / "m", divide=False)
    for own in held.values():
        own["data"] = f"folder:{tmp_path}/silo{own['client']}"
    settings = {"dataset": "", "auxiliary_per_class": "", "model": "mlp:4", "rounds": 1}
    grid = Grid(held)
    result = play(grid, **settings, out=str(tmp_path / "run"))
    kept = trained(tmp_path / "run")  # is used on rows as they are
    assert kept.inputs.columns == ("a", "b")
    tested = [r.split(",") for part in rows for r in part[:3]]
    named = kept.predict(torch.tensor([[float(a), float(b)] for a, b, _ in tested], dtype=torch.float64))
    assert sum(a == r[2] for a, r in zip(named, tested, strict=True)) / len(tested) == result.accuracy
    task = next(m for m in grid.sent if m.metadata.message_type == "train")
    said = wire.from_json(task.content["values"]["data"], "the data")
    whole = load_data(f"folder:{tmp_path}/whole")
    assert said["mean"] == pytest.approx(whole.columns.mean)
    assert said["std"] == pytest.approx(whole.columns.std)
    assert kept.inputs.mean == pytest.approx(said["mean"], rel=1e-14)  # 1.7e9 in single precision is 50 off
    assert kept.inputs.std == pytest.approx(said["std"], rel=1e-14)
    at = 0
    for k in range(3):
        part = load_data(f"folder:{tmp_path}/silo{k}").restandardised(said["mean"], said["std"])
        x = plain(part.train.x, part.mean, part.std)
        torch.testing.assert_close(x, whole.train.x[at : at + len(x)], rtol=1e-4, atol=1e-5)
        at += len(x)


LONG = "\x1b]0;owned\x07\n" + "x" * 10**6


@pytest.mark.parametrize(
    ("kind", "lie", "said"),
    [
        ("query", {LONG: 1}, "has an undeclared"),
        ("query", {"classes": [LONG, LONG]}, "says that its examples are"),
        ("query", {"shape": [1] * 10**5}, "says that its examples are"),
        ("train", {LONG: 1}, "its reply has an undeclared"),
    ],
)
def test_what_nodes_say_is_quoted_in_one_short_line(kind, lie, said, tmp_path, caplog):
    """In the log, and in the record of the round, which stays."""

    def tamper(node: int, reply: Message) -> Message:
        return value(**lie)(reply) if node == 1000 and reply.metadata.message_type == kind else reply

    grid = Grid(nodes(tmp_path), tamper)
    with caplog.at_level("WARNING", "flwr"):
        result = play(grid, rounds=1)
    lines = [r.getMessage() for r in caplog.records] + result.history[0]["failures"]
    assert any(said in line for line in lines)
    assert max(map(len, lines)) < 1000
    assert all(line.isprintable() for line in lines)


CONSTANT_AND_TINY = [f"0.1,{1.6e-19 * (i % 7)!r},{'xyz'[i % 3]}" for i in range(30)]
"""The mean of a column of 0.1 is not 0.1 as it is rounded, and a charge in coulombs is small."""


def test_a_column_that_never_varies_and_one_of_tiny_numbers_are_those_of_one_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "table", CONSTANT_AND_TINY, CONSTANT_AND_TINY[:6])
    table = {"dataset": f"folder:{tmp_path}/table", "model": "mlp:4", "auxiliary_per_class": 0}
    columns = load_data(table["dataset"]).columns
    assert (columns.mean[0], columns.std[0]) == (0.1, 0.0)
    held = nodes(tmp_path / "m", data=table["dataset"])
    result = play(Grid(held), **{**table, "dataset": ""})
    same(result.weights, alone(**table).server.weights)


@pytest.mark.parametrize("count", [1, 3])
def test_a_column_that_never_varies_anywhere_is_only_moved(count, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    held = nodes(tmp_path / "m", count, divide=False)
    for own in held.values():
        folder = tmp_path / f"silo{own['client']}"
        write_table(folder, CONSTANT_AND_TINY[own["client"] :], CONSTANT_AND_TINY[:6])
        own["data"] = f"folder:{folder}"
    settings = {"dataset": "", "auxiliary_per_class": "", "model": "mlp:4", "rounds": 1}
    result = play(Grid(held), **settings, clients=count, sample=count)
    dataset = result.federation.dataset
    assert dataset.mean.tolist()[0] == pytest.approx(0.1)
    assert dataset.std.tolist()[0] == 1
    assert result.history[0]["failures"] == []


def write_table(folder: Path, train: list[str], test: list[str]) -> None:
    folder.mkdir()
    for split, rows in (("train", train), ("test", test)):
        (folder / f"{split}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")


@pytest.mark.parametrize(
    ("header", "standardise", "said"),
    [
        (
            "b,a,label",
            "true",
            r"clients 0 and 2 have different columns, or in another order: \[a, b\] and \[b, a\]",
        ),
        ("a,b,label", "false", r"of clients 0 and 2 one has read its table with standardise=false"),
    ],
)
def test_tables_that_mean_something_else_are_not_averaged(header, standardise, said, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    held = nodes(tmp_path / "m", divide=False)
    for own in held.values():
        folder = tmp_path / f"silo{own['client']}"
        write_table(folder, CONSTANT_AND_TINY, CONSTANT_AND_TINY[:6])
        own["data"] = f"folder:{folder}"
        if own["client"] == 2:
            for path in folder.glob("*.csv"):
                path.write_text(path.read_text().replace("a,b,label", header))
            own["data"] += f",standardise={standardise}"
    with pytest.raises(UserError, match=said):
        play(Grid(held), dataset="", auxiliary_per_class="", model="mlp:4")


UNLIKE = [f"{i % 3 - 1 + i / 60!r},{5 + i % 7 / 7!r},{'xyz'[i % 3]}" for i in range(30)]
"""Rows of which some have another mean and deviation than all."""


def test_with_fixed_normalisation_a_table_is_taken_as_it_is_everywhere(tmp_path, monkeypatch):
    """What each node has scaled by its own rows nobody can use later: not a saved model, not another node."""
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    for name, rows in (("silo0", UNLIKE), ("silo1", UNLIKE[:20]), ("silo2", UNLIKE[::2]), ("own", UNLIKE)):
        write_table(tmp_path / name, rows, UNLIKE[:12])
    held = nodes(tmp_path / "m", divide=False)
    for own in held.values():
        own["data"] = f"folder:{tmp_path}/silo{own['client']}"
    settings = {"dataset": "", "auxiliary_per_class": "", "model": "mlp:8", "normalisation": "fixed"}
    settings |= {"training.lr": 0.05, "training.local_epochs": 4}
    with pytest.raises(UserError, match=r"client 0 has standardised .* standardise=false at every node"):
        play(Grid(held), **settings)
    for own in held.values():
        own["data"] += ",standardise=false"
    with pytest.raises(UserError, match=r"the server's folder are standardised .* standardise=false"):
        play(Grid(held), **settings | {"dataset": f"folder:{tmp_path}/own", "auxiliary_per_class": 0})
    result = play(Grid(held), **settings, out=str(tmp_path / "run"))
    rows = torch.tensor([[float(v) for v in row.split(",")[:2]] for row in UNLIKE[:12]], dtype=torch.float64)
    named = trained(tmp_path / "run").predict(rows)
    right = sum(a == row[-1] for a, row in zip(named, UNLIKE[:12], strict=True))
    assert right / len(rows) == result.accuracy > 0.8
    play(Grid(held), **settings, rounds=1, algorithm="private:fedavg,noise=0")


def test_a_node_that_comes_later_has_to_take_its_table_as_it_is_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "silo", UNLIKE, UNLIKE[:12])
    as_it_is = f"folder:{tmp_path}/silo,standardise=false"
    held = nodes(tmp_path / "m", divide=False, data=as_it_is)

    def tamper(node: int, reply: Message) -> Message | None:
        if moved(held, node, grid.sent[-1].metadata):
            held[5] |= {"data": as_it_is.partition(",")[0]}
            return None
        return reply

    grid = Grid(held, tamper)
    settings = {"dataset": "", "auxiliary_per_class": "", "model": "mlp:4", "normalisation": "none"}
    result = play(grid, **settings, rounds=3)
    assert [len(r["failures"]) for r in result.history] == [0, 1, 1]


def test_a_server_whose_table_has_other_columns_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "silo", CONSTANT_AND_TINY, CONSTANT_AND_TINY[:6])
    write_table(tmp_path / "own", CONSTANT_AND_TINY, CONSTANT_AND_TINY[:6])
    for path in (tmp_path / "own").glob("*.csv"):
        path.write_text(path.read_text().replace("a,b,label", "b,a,label"))
    held = nodes(tmp_path / "m", data=f"folder:{tmp_path}/silo")
    with pytest.raises(UserError, match="the server's folder has the columns"):
        play(Grid(held), dataset=f"folder:{tmp_path}/own", auxiliary_per_class=0, model="mlp:4")


def test_one_tensor_may_travel_under_two_names():
    shared = torch.arange(4.0)
    tree = {"w": shared, "again": shared, "part": shared[:2]}
    content = wire.pack(wire.Refusal("none"), tree)
    arrays = load(content["arrays"]["safetensors"].data)
    assert {n: t.tolist() for n, t in arrays.items()} == {n: t.tolist() for n, t in tree.items()}


def test_thousands_of_nodes_are_looked_through_once_a_question(tmp_path, monkeypatch):
    """Not once for every answer to it."""
    count, looks = 60, []
    clients = Nodes._clients
    monkeypatch.setattr(Nodes, "_clients", lambda self: looks.append(1) or clients(self))
    run = {"clients": count, "sample": 3, "rounds": 1, "dataset": "", "auxiliary_per_class": ""}
    run |= {"partition": "iid", "wait": 60}
    result = play(Grid(nodes(tmp_path, count)), **run)
    assert result.history[0]["failures"] == []
    assert len(looks) < count / 2


OWN = """
from dataclasses import dataclass
from fedrecall import FedAvg
from helper_at_both import factor

@dataclass(frozen=True)
class Mine(FedAvg):
    # by default two
    factor: float = factor()
"""


class Edited(Grid):
    """Node 1007 has other files than the server."""

    def __init__(self, held: dict[int, dict[str, object]], changes: dict[Path, str], kind: str = "query"):
        super().__init__(held)
        self.changes, self.kind = changes, kind

    def answer(self, node: int, message: Message) -> Message:
        """With its own files while it answers, in what is to be a process of its own."""
        mine = self.changes if node == 1007 and message.metadata.message_type == self.kind else {}
        before = {path: path.read_text() for path in mine}
        loaded = {name: sys.modules.pop(name, None) for name in (AT_BOTH if mine else ())}
        try:
            for path, text in mine.items():
                path.write_text(text)
            return super().answer(node, message)
        finally:
            for path, text in before.items():
                path.write_text(text)
            sys.modules.update({name: module for name, module in loaded.items() if module is not None})


AT_BOTH = ("plug_at_both", "helper_at_both")


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """An algorithm of somebody's own that takes a name from another module of theirs."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "plug_at_both.py").write_text(OWN)
    (folder / "helper_at_both.py").write_text("def factor():\n    return 2.0\n")
    monkeypatch.syspath_prepend(folder)
    for name in AT_BOTH:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


@pytest.mark.parametrize("kind", ["query", "train"])
@pytest.mark.parametrize("file", ["plug_at_both", "helper_at_both"])
def test_a_node_whose_own_code_is_another_is_left_out(file, kind, own_code, tmp_path, caplog):
    path = own_code / f"{file}.py"
    changed_file = path.read_text() + "# of no matter\nMORE = 1\n"
    run = {"algorithm": "plug_at_both:Mine", "rounds": 1, "min_clients": 2}
    result = play(Edited(nodes(tmp_path / "m"), {path: changed_file}, kind), **run)
    said = f"its {file} is other code than the server's: install the same at both."
    assert said in caplog.text + str(result.history[0]["failures"])
    assert len(result.history[0]["failures"]) == 1


def test_where_code_lies_and_how_it_is_commented_is_no_difference(own_code, tmp_path, monkeypatch, caplog):
    config, _ = hosting.read({**BASE, "algorithm": "private:plug_at_both:Mine,noise=0", "model": "mlp"})
    servers = codes.own(config)
    assert sorted(servers.modules) == ["helper_at_both", "plug_at_both"]
    (own_code / "plug_at_both.py").write_text(OWN.replace("# by default two", "# by default as it was\n\n"))
    codes.check(servers, config)
    own_code.rename(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    for name in servers.modules:
        monkeypatch.delitem(sys.modules, name)
    config = configs.make(configs.as_dict(config))
    codes.check(servers, config)
    (tmp_path / "elsewhere" / "helper_at_both.py").write_text("def factor():\n    return 3.0\n")
    codes.check(servers, config)  # what is loaded here is what it was
    for name in AT_BOTH:
        monkeypatch.delitem(sys.modules, name)
    config = configs.make(configs.as_dict(config))
    with pytest.raises(UserError, match="its helper_at_both is other code than the server's"):
        codes.check(servers, config)
    at = servers.modules.index("plug_at_both")  # the helper is a package's, at the server alone
    codes.check(servers._replace(modules=["plug_at_both"], digests=[servers.digests[at]]), config)
    for codes_say in (codes.check, codes.warn):  # sources are written down as Python's version does
        codes_say(servers._replace(python="3.99"), config)
    assert "the server has Python 3.99, this node has" in caplog.text


def test_a_network_of_ones_own_is_compared_as_well():
    config, _ = hosting.read(BASE)
    servers = codes.own(config)
    assert servers.modules == ["tests.flower.small_net"]
    with pytest.raises(UserError, match=r"its tests\.flower\.small_net is other code"):
        codes.check(servers._replace(digests=["0" * 16]), config)


def test_a_node_of_an_earlier_version_is_refused_with_its_own_words(tmp_path):
    """It does not know what it is asked, nor to say which client it is."""

    def tamper(node: int, reply: Message) -> Message:
        if node == 1007:
            reply.content["values"] = ConfigRecord({"reason": "the question has an undeclared 'code'"})
        return reply

    with pytest.raises(UserError, match=r"node 1007 \(the question has an undeclared 'code'\)"):
        play(Grid(nodes(tmp_path), tamper), min_clients=3)


class Versions(Grid):
    """Node 1007 has another version than the server, of which questions or answers have a value more."""

    def __init__(self, held: dict[int, dict[str, object]], later: str, monkeypatch):
        super().__init__(held)
        self.later, self.monkeypatch = later, monkeypatch

    def answer(self, node: int, message: Message) -> Message:
        if node == 1007 and self.later == "the server's":
            with self.monkeypatch.context() as there:
                there.setattr(provenance, "version", lambda: "0.0.9\x1b")
                return super().answer(node, value(more=1)(message))
        reply = super().answer(node, message)
        return value(version="0.0.9\x1b", more=1)(reply) if node == 1007 else reply


@pytest.mark.parametrize("later", ["the server's", "the node's"])
def test_a_node_with_another_version_of_fedrecall_is_refused_in_one_sentence(later, tmp_path, monkeypatch):
    run = {"rounds": 1, "min_clients": 2}
    (failure,) = play(Versions(nodes(tmp_path), later, monkeypatch), **run).history[0]["failures"]
    assert failure == (
        f"client 1, round 1: its node is left out: it has fedrecall 0.0.9\ufffd, the server has "
        f"{provenance.version()}: install the same at both, and start them again."
    )


def test_both_sides_are_warned_of_one_version_with_other_code(tmp_path, monkeypatch, caplog):
    own, number = provenance.version(), provenance.version().partition("+")[0]

    class Mended(Grid):
        def answer(self, node, message):
            with monkeypatch.context() as there:
                if node == 1007:
                    there.setattr(provenance, "version", lambda: f"{number}+00000000")
                return super().answer(node, message)

    assert not play(Mended(nodes(tmp_path)), rounds=1).history[0]["failures"]
    told = f"has fedrecall {number}+00000000, the server has {own}: install the same at both."
    assert {f"this node {told}", f"client 1 {told}"} <= set(caplog.messages)


def test_a_run_goes_on_where_server_and_nodes_have_a_later_version(tmp_path, monkeypatch):
    run = {"algorithm": "scaffold", "out": str(tmp_path / "run")}
    play(Grid(nodes(tmp_path / "nodes")), **run, rounds=1)
    monkeypatch.setattr(provenance, "version", lambda: "9.9.9")
    result = play(Grid(nodes(tmp_path / "nodes")), **run, resume=True)
    assert [r["failures"] for r in result.history] == [[]] * 3
    same(result.weights, alone(algorithm="scaffold").server.weights)


class Clock:
    """Time that passes while one sleeps."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Slow(Grid):
    """Node 1000 trains for so many seconds, and each time its reply is asked for in vain that takes some."""

    def __init__(self, held, clock: Clock, seconds: float, price: float = 0.0):
        super().__init__(held)
        self.clock, self.seconds, self.price = clock, seconds, price
        self.asked, self.began, self.looks = "", 0.0, 0

    def push_messages(self, messages):
        messages = list(messages)
        made = super().push_messages(messages)
        for identity, message in zip(made, messages, strict=True):
            if message.metadata.message_type == "train" and message.metadata.dst_node_id == 1000:
                self.asked, self.began = identity, self.clock.now
        return made

    def pull_messages(self, identities):
        identities = list(identities)
        if self.asked not in identities or self.clock.now >= self.began + self.seconds:
            return super().pull_messages(identities)
        self.looks += 1
        self.clock.now += self.price
        return []


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedrecall.flower.nodes.time", clock)
    monkeypatch.setattr("fedrecall.flower.replies.time", clock)
    return clock


@pytest.mark.parametrize(("late", "failures"), [(9, 0), (15, 1)])
def test_a_reply_is_waited_for_as_long_as_was_said(late, failures, tmp_path, clock):
    result = play(Slow(nodes(tmp_path), clock, late), rounds=1, timeout=10, poll=0.5, wait=1)
    assert len(result.history[0]["failures"]) == failures


class Ready(Grid):
    """Sending a round's tasks takes so long, and so many seconds later each node's reply is there.

    Asking for that of node 1014 takes a while, too.
    """

    def __init__(self, held, clock: Clock, *, sending: float = 0.0, after: float = 0.0, price: float = 0.0):
        super().__init__(held)
        self.clock, self.sending, self.after, self.price = clock, sending, after, price
        self.ready, self.node_of = 0.0, {}

    def push_messages(self, messages):
        messages = list(messages)
        made = super().push_messages(messages)
        if messages[0].metadata.message_type == "train":
            self.node_of |= dict(zip(made, (m.metadata.dst_node_id for m in messages), strict=True))
            self.clock.now += self.sending
            self.ready = self.clock.now + self.after
        return made

    def pull_messages(self, identities):
        identities, there = list(identities), self.clock.now >= self.ready
        self.clock.now += self.price * (self.node_of.get(identities[0]) == 1014)
        return super().pull_messages(identities) if there else []


def test_the_time_for_replies_begins_when_the_tasks_are_sent(tmp_path, clock):
    grid = Ready(nodes(tmp_path), clock, sending=60, after=1)
    assert play(grid, rounds=1, timeout=10, poll=0.5, wait=1).history[0]["failures"] == []


def test_who_was_asked_early_in_the_last_look_is_asked_again(tmp_path, clock):
    """The look takes 100 s, at whose beginning nobody was ready."""
    grid = Ready(nodes(tmp_path), clock, after=1, price=100)
    assert play(grid, rounds=1, timeout=10, poll=0.5, wait=1).history[0]["failures"] == []


class Sending(Grid):
    """Node 1000 sends its reply to such a message until the test is over, for which Flower waits."""

    def __init__(self, held, kind: str):
        super().__init__(held)
        self.kind, self.over = kind, threading.Event()

    def pull_messages(self, identities):
        found = super().pull_messages(identities)
        for reply in found:
            sent = next(m for m in self.sent if m.metadata.message_id == reply.metadata.reply_to_message_id)
            if (sent.metadata.message_type, sent.metadata.dst_node_id) == (self.kind, 1000):
                self.over.wait(60)
        return found


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("fedrecall.flower.replies.PATIENCE", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_reply_that_takes_long_to_send_is_not_waited_for_and_costs_nobody_else(tmp_path, clock):
    grid = Sending(nodes(tmp_path), "train")
    result = play(grid, rounds=2, timeout=10, poll=0.5, wait=1)
    grid.over.set()
    assert [r["failures"] for r in result.history] == [
        [f"client 0, round {number}: no reply within 10 s"] for number in (1, 2)
    ]
    assert clock.now <= 2 * (10 + 0.5)


@pytest.mark.usefixtures("impatient")
def test_who_takes_long_to_say_who_it_is_holds_up_no_start(tmp_path, clock):
    grid = Sending(nodes(tmp_path), "query")
    result = play(grid, rounds=1, timeout=10, poll=0.5, wait=10, min_clients=2)
    grid.over.set()
    assert result.history[0]["failures"] == ["client 0, round 1: its node is not connected"]
    assert clock.now <= 10 + 0.5 + 10 + 0.5


@pytest.mark.parametrize(("price", "looks"), [(0.0, 21), (0.1, 18), (0.5, 5), (1.2, 3), (1.9, 3)])
def test_the_superlink_is_not_kept_busy_with_questions(price, looks, tmp_path, clock):
    """Where one takes long, four times as long is waited before the next, and never past the deadline.

    The last begins when time is up: that at 9.5 s, of 1.9, is followed by another.
    """
    grid = Slow(nodes(tmp_path), clock, math.inf, price)
    result = play(grid, rounds=1, timeout=10, poll=0.5, wait=1)
    assert len(result.history[0]["failures"]) == 1
    assert grid.looks == looks
    assert 10 <= clock.now - grid.began <= 10 + 0.5 + 2 * price


def training_of(one: int) -> Callable[[int, Metadata], bool]:
    return lambda client, sent: client == one and sent.message_type == "train"


@pytest.mark.parametrize("case", ["dead", "slow"])
def test_what_nobody_waits_for_does_not_stay_with_the_superlink(case, tmp_path, monkeypatch):
    """A task that its node never received, and a reply that comes in the round after."""
    grid = Link(nodes(tmp_path).values(), **{case: training_of(0)})
    held: list[int] = []
    monkeypatch.setattr(server.Lines, "record", lambda self, record: held.append(grid.bytes_held))
    result = play(grid, rounds=4, timeout=0.3, wait=10)
    assert [r["failures"] for r in result.history] == [
        [f"client 0, round {number}: no reply within 0.3 s"] for number in (1, 2, 3, 4)
    ]
    assert held == [0] * 4


class Away(Link):
    """In round 1 client 0 is not there to be told."""

    def push_messages(self, messages):
        self.sent = messages[0].metadata
        return super().push_messages(messages)

    def _work(self, number):
        away = (self.sent.message_type, self.sent.group_id) == ("train", "1")
        return not (away and self.configs[number]["client"] == 0) and super()._work(number)


def test_a_task_that_was_given_up_is_not_begun(tmp_path):
    seen: list[str] = []

    def note(client: int, sent: Metadata) -> bool:
        if client == 0 and sent.message_type == "train":
            seen.append(sent.group_id)
        return False

    grid = Away(nodes(tmp_path).values(), dead=note)
    result = play(grid, rounds=2, timeout=0.3, wait=10)
    assert [len(r["failures"]) for r in result.history] == [1, 0]
    assert seen == ["2"]


def test_a_node_that_comes_back_before_it_is_to_test_does_so(tmp_path):
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if sent.message_type == "train" and sent.group_id == "2" and node == 1014:
            held[5] = held.pop(1014)  # its reply is on its way
        return reply

    grid = Grid(held, tamper)
    result = play(grid, dataset="", auxiliary_per_class="", rounds=2)
    assert 5 in {m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "evaluate"}
    assert [r.get("untested") for r in result.history] == [None, None]


def test_who_comes_back_with_nothing_to_test_on_is_not_missed(tmp_path):
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message:
        sent = grid.sent[-1].metadata
        if sent.message_type == "train" and (sent.group_id, node) == ("1", 1014):
            few = str(BASE["dataset"]).replace("test=30", "test=2")  # of which client 2 has none
            held[5] = {**held.pop(1014), "data": few}
        if sent.message_type == "train" and (sent.group_id, node) == ("3", 5):
            del held[5]
        return reply

    grid = Grid(held, tamper)
    result = play(grid, dataset="", auxiliary_per_class="", rounds=4)
    assert [r.get("untested") for r in result.history] == [None] * 4
