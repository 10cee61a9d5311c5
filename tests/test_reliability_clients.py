"""Clients whose data are wrong: each kind has one defined outcome, under every family of algorithms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.torture import clients

import fedrecall
from fedrecall import trees
from fedrecall.errors import UserError

FAMILIES = ["fedavg", "fedntd", "fedseq", "scaffold", "fednova", "sfedkd"]


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_odd_clients_are_used_or_left_out_with_their_reason(algorithm, backend):
    kinds = clients.odd_ones()
    names = list(kinds)
    result = clients.run(clients.federation(list(kinds.values())), algorithm=algorithm, backend=backend)
    for record in result.history:
        failed = {names[int(f.split()[1].rstrip(","))]: f for f in record["failures"]}
        assert failed.keys() == clients.FAILING.keys(), record["failures"]
        for name, words in clients.FAILING.items():
            assert words in failed[name]
        assert np.isfinite(record["train_loss"])
        assert np.isfinite(record["loss"])
    assert trees.finite(result.weights)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_round_with_failures_is_the_round_of_the_others(algorithm):
    kinds = clients.odd_ones()
    sound = [k for k in kinds if k not in clients.FAILING]
    parts = [kinds[k] for k in sound]
    nothing = clients.examples(0, 5)
    # Failing clients stand last, so that the others' numbers, which key their draws, stay as they are.
    failing = [kinds[k] for k in clients.FAILING]
    with_them = clients.run(clients.federation(parts + failing), algorithm=algorithm, rounds=1)
    # SCAFFOLD's variate counts the population, so the federation has as many members, who are empty.
    without = clients.run(clients.federation(parts + [nothing] * 4), algorithm=algorithm, rounds=1)
    a, b = trees.arrays(with_them.weights), trees.arrays(without.weights)
    assert all(torch.allclose(a[n], b[n], atol=1e-6) for n in a)
    if algorithm == "fedavg":
        alone = clients.run(clients.federation(parts), algorithm=algorithm, rounds=1)
        assert with_them.history[0]["train_loss"] == pytest.approx(alone.history[0]["train_loss"], rel=1e-5)


def test_the_run_stops_at_a_failure_if_asked_to_and_keeps_what_it_has():
    kinds = clients.odd_ones()
    with pytest.raises(UserError, match=r"client 1, round 1, step \d: the loss became nan"):
        clients.run(clients.federation([kinds["sound"], kinds["nan"]]), on_failure="stop")
    with pytest.raises(UserError, match="every client of the round failed"):
        clients.run(clients.federation([kinds["nan"], kinds["inf"], kinds["empty"]]))


@pytest.mark.parametrize("label", [-1, clients.CLASSES, 10**9])
@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_out_of_range_are_refused_before_anything_is_trained(label, split):
    given = clients.federation([clients.examples(20, 1), clients.examples(20, 2)])
    getattr(given.dataset, split).y[7] = label
    with pytest.raises(UserError, match=f"labels run from .*{label}.* number them from 0 to 2"):
        replace(given)
    with pytest.raises(UserError, match="labels run from"):
        fedrecall.run(dataset=given.dataset, clients=2, sample=2, rounds=1, model="mlp", partition="iid")


def test_sizes_from_one_to_a_hundred_thousand_in_one_federation():
    sizes = [1, 10, 100, 1_000, 10_000, 100_000]
    given = clients.federation([clients.examples(n, n) for n in sizes])
    training = {"local_epochs": 1, "batch_size": 500, "lr": 0.1}
    result = clients.run(given, training=training, rounds=1)
    assert result.history[0]["failures"] == []
    assert result.accuracy > 0.6
    other = clients.run(given, training=training, rounds=1, backend="processes", workers=2)
    assert trees.arrays(result.weights).keys() == trees.arrays(other.weights).keys()
    for name, value in trees.arrays(result.weights).items():
        assert torch.equal(value, trees.arrays(other.weights)[name])
