"""FedSeq: orders, and what it is with one client."""

import pytest
import torch
from tests.algorithms.cases import assert_same, experiment
from tests.algorithms.test_all import play

from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.federation import Federation
from fedrecall.rounds import sample


def test_orders():
    random, fixed, cyclic = (ALGORITHMS.make(f"fedseq:{o}") for o in ("random", "fixed", "cyclic"))
    assert random.arrange([5, 1, 9], 1) == [5, 1, 9]
    assert fixed.arrange([5, 1, 9], 1) == fixed.arrange([9, 5, 1], 2) == [1, 5, 9]
    starts = [cyclic.arrange([5, 1, 9], r)[0] for r in range(1, 7)]
    assert starts[:3] == starts[3:]
    assert set(starts) == {1, 5, 9}
    assert cyclic.arrange([5, 1, 9], 4) == [5, 9, 1]


def test_every_client_goes_on_where_the_last_one_stopped():
    run = experiment("fedseq")
    whole = play(run, [4, 2, 0], 1)
    for k, visit in zip([4, 2, 0], whole.visits, strict=True):
        (alone,) = play(run, [k], 1).visits
        assert_same(alone.up, visit.up)
        run.server = run.server._replace(weights=visit.up.weights)
    assert_same(whole.server.weights, run.server.weights)


def plain_sgd(run, client, round_number):
    """The visit written out with an ordinary module and torch.optim."""
    module = run.model._train
    recipe = run.config.training
    params = {n: p.clone().requires_grad_(True) for n, p in run.server.weights.params.items()}
    rate = recipe.lr * recipe.lr_decay ** (round_number - 1)
    optimiser = torch.optim.SGD(
        params.values(), rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    data: Federation = run.federation.client(client)
    draws = data.draw(recipe.local_epochs, run.config.seed, round_number, client)
    for batch in data.training_batches(draws, recipe.batch_size):
        optimiser.zero_grad()
        logits = torch.func.functional_call(module, params, (batch.x,))
        torch.nn.functional.cross_entropy(logits, batch.y).backward()
        optimiser.step()
    return {n: p.detach() for n, p in params.items()}


@pytest.mark.parametrize("name", ["fedseq", "fedavg"])
def test_with_one_client_it_is_fedavg_and_plain_sgd(name):
    run = experiment(name, sample=1, rounds=1)
    (client,) = sample(6, 1, run.config.seed, 1)
    expected = plain_sgd(run, client, 1)
    assert_same(run.run().weights.params, expected, 1e-12)


@pytest.mark.parametrize("spec", ["fedntd:beta=0", "fedprox:mu=0"])
def test_another_algorithms_local_objective_in_one_chain(spec):
    """Any local objective may train a chain; where its term is off the chain is FedSeq's."""
    chained = experiment(spec, chains=1).run()
    assert_same(chained.weights, experiment("fedseq").run().weights)
    active = experiment(spec.partition(":")[0], chains=1).run()
    assert any(not torch.equal(p, active.weights.params[n]) for n, p in chained.weights.params.items())


def test_as_many_chains_as_clients_are_fedavg():
    parallel = experiment("fedseq", chains=3).run()
    assert_same(parallel.weights, experiment("fedavg").run().weights)
