"""Forgetting along a chain, on the hand-made round of `conftest.py` and on a real one."""

from dataclasses import replace

import numpy as np
import pytest
from tests.algorithms.cases import experiment
from tests.measures.conftest import EYE, SWAP, in_chains, weights

from fedrecall.measures import MEASURES


def test_along_a_chain_by_hand(moment):
    """All right, then 0 and 1 swapped by client 0, then (after one that fails) all right again."""
    (found,) = MEASURES.make("chain")(in_chains(moment, [[0, 1, 1]]))["chains"]
    assert found["clients"] == [0, 1]
    assert found["accuracy"] == pytest.approx([1 / 3, 1.0])
    assert found["class_accuracy"] == [[0, 0, 1], [1, 1, 1]]
    # (1, 1, 1) with (0, 0, 1) and back.
    assert found["consistency"] == pytest.approx([1 / np.sqrt(3)] * 2)
    assert found["forgetting"] == 0  # the chain's end knows all that was ever known
    # Client 0 has three of class 0 and one of class 1: its own model swaps them, the next one does not.
    assert found["drift"] == {"own": [0.0], "next": [1.0]}


def test_forgetting_of_a_chain_is_towards_its_end(moment):
    first, failed, second = moment.visits
    turned = in_chains(moment, [[1, 1, 0]], visits=[second, failed, first])
    (found,) = MEASURES.make("chain:drift=false")(turned)["chains"]
    assert found["forgetting"] == pytest.approx(2 / 3)
    assert "drift" not in found


def test_what_nobody_tested_is_not_forgotten_in_a_chain(moment):
    first, failed, second = moment.visits
    confusion = moment.evaluation.confusion.copy()
    confusion[2] = 0
    turned = in_chains(
        moment,
        [[1, 1, 0]],
        visits=[second, failed, first],
        evaluation=moment.evaluation._replace(confusion=confusion),
    )
    (found,) = MEASURES.make("chain:drift=false")(turned)["chains"]
    assert found["forgetting"] == 1  # of classes 0 and 1, both


def test_chains_are_kept_apart(moment):
    first, second, third = MEASURES.make("chain")(moment)["chains"]
    assert (first["clients"], second["clients"], third["clients"]) == ([0], [], [1])
    assert first["forgetting"] == pytest.approx(2 / 3)
    assert second["forgetting"] == 0
    assert third["forgetting"] == 0
    assert first["drift"] == {"own": [], "next": []}


def test_of_a_round_the_last_link_is_the_global_model():
    run = experiment("fedseq", measures=["chain"], rounds=2).run()
    for record in run.history:
        (chain,) = record["measures"]["chain"]["chains"]
        assert chain["clients"] == record["chains"][0]
        assert chain["class_accuracy"][-1] == record["class_accuracy"]
        assert len(chain["drift"]["own"]) == len(chain["drift"]["next"]) == 2


def test_drift_is_what_the_next_client_undoes_of_ones_own_examples(moment):
    first, _, second = moment.visits
    swapped = [first._replace(up=second.up), second._replace(up=first.up)]  # right, then 0 and 1 swapped
    (found,) = MEASURES.make("chain")(in_chains(moment, [[0, 1]], visits=swapped))["chains"]
    assert found["drift"] == {"own": [1.0], "next": [0.0]}
    assert found["forgetting"] == pytest.approx(2 / 3)


def test_a_chain_begins_with_the_model_that_arrived(moment):
    wrong = weights(EYE, SWAP)
    coded = replace(moment, chains=[[0, 1, 1]], sent=[wrong] * 3)
    (found,) = MEASURES.make("chain")(coded)["chains"]
    assert found["consistency"] == pytest.approx([1, 1 / np.sqrt(3)])  # the first client leaves it as it is
    assert found["accuracy"] == pytest.approx([1 / 3, 1.0])
