from dataclasses import replace

import pytest
import torch
from numpy.random import mtrand

import fedrecall
from fedrecall import trees
from fedrecall.data.datasets import Split, load
from fedrecall.errors import UserError
from fedrecall.reports.replay import stage
from fedrecall.reports.runs import Run

SMALL = {
    "dataset": "synthetic:4,train=200,test=60",
    "model": "mlp",
    "clients": 6,
    "sample": 6,
    "seed": 5,
    "partition": "shards:2",
    "precision": "float64",
    "training.local_epochs": 3,
    "augmentation": "flip",
    "backend": "serial",
}


def _same(a, b):
    return all(torch.equal(x, y) for (_, x), (_, y) in zip(trees.leaves(a), trees.leaves(b), strict=True))


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "scaffold", "examples/fedsparse.py:FedSparse", "examples/fedbyte.py:FedByte"]
)  # some remember
def test_replaying_a_round_gives_the_next_round(tmp_path, algorithm):
    short = fedrecall.run(tmp_path / "short", algorithm=algorithm, rounds=2, **SMALL)
    long = fedrecall.run(tmp_path / "long", algorithm=algorithm, rounds=3, **SMALL)
    at = stage(Run(tmp_path / "short"))
    assert _same(at.weights, short.weights)
    assert at.round_number == 3
    share = [at.federation.size(k) / 200 for k in range(6)]
    mean = {
        n: sum(s * w.params[n] for s, w in zip(share, at.locals(range(6)), strict=True))
        for n in at.weights.params
    }
    for name, value in long.weights.params.items():
        assert mean[name].numpy() == pytest.approx(value.numpy(), abs=1e-12)
    # And from the checkpoint before the last of the long run.
    earlier = stage(Run(tmp_path / "long"), round_number=2)
    assert _same(earlier.visit(4).up.weights, at.visit(4).up.weights)


DROPOUT = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


SHAKING = """
from dataclasses import dataclass
import random
import numpy as np
import torch
from fedrecall import FedAvg

@dataclass(frozen=True)
class Shaking(FedAvg):
    def loss(self, model, params, anchor, batch):
        drawn = torch.rand(()) + np.random.rand() + random.random()
        return super().loss(model, params, anchor, batch) * (1 + drawn)
"""


@pytest.mark.parametrize(
    "algorithm", ["fedntd", "examples/fedmean.py:FedMean:keep=0.5", "shaking.py:Shaking"]
)
def test_epochs_end_where_a_visit_ends(tmp_path, algorithm):
    (tmp_path / "net.py").write_text(DROPOUT)  # which draws anew in every step
    (tmp_path / "shaking.py").write_text(SHAKING)
    algorithm = algorithm.replace("shaking.py", f"{tmp_path}/shaking.py")
    fedrecall.run(
        tmp_path / "run", algorithm=algorithm, rounds=1, **SMALL | {"model": f"{tmp_path}/net.py:net"}
    )
    at = stage(Run(tmp_path / "run"))
    before = torch.get_rng_state()
    seen = [w for w in at.epochs(2) if torch.rand(1) + mtrand.rand() < 2]  # whoever draws in between
    torch.set_rng_state(before)
    assert len(seen) == 4
    assert _same(seen[0], at.weights)
    assert _same(seen[-1], at.visit(2).up.weights)
    assert not _same(seen[1], seen[2])


def test_a_straggler_is_followed_as_far_as_it_comes(tmp_path):
    fedrecall.run(tmp_path / "run", rounds=1, stragglers=1.0, **SMALL)
    at = stage(Run(tmp_path / "run"))
    came = {k: at.recipe.epochs(at.seed, at.round_number, k) for k in range(6)}
    assert len(set(came.values())) > 1
    for k, epochs in came.items():
        seen = list(at.epochs(k))
        assert len(seen) == 1 + epochs
        assert _same(seen[-1], at.visit(k).up.weights)
    asked = stage(Run(tmp_path / "run"), local_epochs=2)  # as figures do of any run
    assert {len(list(asked.epochs(k))) for k in range(6)} == {3}


def test_local_models_have_the_layers_that_clients_keep(tmp_path):
    fedrecall.run(tmp_path / "run", algorithm="examples/fedper.py:FedPer", rounds=1, **SMALL)
    at = stage(Run(tmp_path / "run"))
    (local,), visit = at.locals([2]), at.visit(2)
    assert not _same(local, visit.up.weights)
    assert _same(local, at.algorithm.personal(visit.up.weights, visit.memory))


def test_another_algorithm_partition_and_recipe(tmp_path):
    fedrecall.run(tmp_path / "run", algorithm="fedavg", rounds=1, **SMALL)
    run = Run(tmp_path / "run")
    plain = stage(run)
    assert _same(stage(run, algorithm="fedntd:beta=0").visit(1).up.weights, plain.visit(1).up.weights)
    assert not _same(stage(run, algorithm="fedntd").visit(1).up.weights, plain.visit(1).up.weights)
    even = stage(run, partition="iid")
    assert even.federation.counts.min() > 0 == plain.federation.counts.min()
    assert _same(even.weights, plain.weights)
    assert len(list(stage(run, local_epochs=1).epochs(0))) == 2
    strange = stage(run, lr=1e300)
    with pytest.raises(UserError, match=r"^replaying client 1, round 2, step \d+: the .* became"):
        strange.visit(1)
    with pytest.raises(UserError):
        stage(run, round_number=7)


def test_another_partition_is_dealt_by_the_global_seed_where_that_deals_it(tmp_path):
    fedrecall.run(tmp_path / "run", rounds=1, global_seed=3, **SMALL)
    run = Run(tmp_path / "run")
    assert stage(run, partition="shards:2").federation.counts.tolist() == run.counts.tolist()
    assert stage(run, partition="iid").federation.counts.min() > 0
    assert len(stage(run, partition="classes:2").locals([0])) == 1


def test_a_round_is_not_replayed_on_other_data(tmp_path):
    named = load(SMALL["dataset"])
    own = replace(named, name="own", train=Split(named.train.x, (named.train.y + 1) % 4))
    fedrecall.run(tmp_path / "own", rounds=1, **SMALL | {"dataset": own, "partition": "iid"})
    with pytest.raises(UserError, match=r"begun on other data, own of .*, not digits of .*--data-root"):
        stage(Run(tmp_path / "own"))


def test_what_clients_remember_is_of_their_own_data_alone(tmp_path):
    fedrecall.run(tmp_path / "run", algorithm="scaffold", rounds=2, **SMALL)
    run = Run(tmp_path / "run")

    def remembers(at):
        return any(bool(tensor.any()) for _, tensor in trees.leaves(at.memories.get(1)))

    assert remembers(stage(run))
    assert not remembers(stage(run, partition="iid"))
    assert not remembers(stage(run, algorithm="scaffold"))
