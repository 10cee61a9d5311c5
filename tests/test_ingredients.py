"""What a run is made of by its config: who holds what, what is measured, where it computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.datasets import load
from fedrecall.errors import UserError
from fedrecall.ingredients import device_of, federate, make_model, measures_of

SMALL = {"dataset": "synthetic:classes=4,train=160,test=80,size=8", "clients": 8, "sample": 3, "seed": 3}


def config(**changes):
    return configs.make(SMALL | changes)


def divided(made, dataset=None):
    return federate(made, dataset or load(made.dataset), ALGORITHMS.make(made.algorithm))


def test_the_seed_of_the_partition_can_stand_alone():
    a, b = divided(config(partition_seed=1, seed=0)), divided(config(partition_seed=1, seed=5))
    assert all((p == q).all() for p, q in zip(a.parts, b.parts, strict=True))


def test_auxiliary_examples_are_the_servers_alone():
    federation = divided(config(auxiliary_per_class=5))
    held = set(federation.auxiliary_part.tolist())
    assert torch.equal(federation.auxiliary.counts, torch.full((4,), 5))
    assert held.isdisjoint(np.concatenate(federation.parts).tolist())
    assert len(held) + sum(map(len, federation.parts)) == 160
    with pytest.raises(UserError, match="class 0 has 40"):
        divided(config(auxiliary_per_class=41))


def test_validation_holds_the_same_share_of_every_class_out_of_what_anybody_trains_on():
    federation = divided(config(validation=0.2, auxiliary_per_class=5))
    assert torch.equal(federation.test.counts, torch.full((4,), 8))  # of 40
    given = [*federation.parts, federation.auxiliary_part]
    trained = np.concatenate(given)
    assert len(trained) == len(set(trained.tolist())) == 160 - 4 * 8
    left = np.setdiff1d(np.arange(160), trained)
    train = load(SMALL["dataset"]).train
    assert torch.equal(federation.test.x, train.x[left])
    assert torch.equal(federation.test.y, train.y[left])
    # As the partition, it is the dealing seed's: other runs of it are evaluated on the same.
    again = divided(config(validation=0.2, auxiliary_per_class=5, seed=7, partition_seed=3))
    other = divided(config(validation=0.2, auxiliary_per_class=5, seed=7))
    assert torch.equal(again.test.x, federation.test.x)
    assert not torch.equal(other.test.x, federation.test.x)
    assert all(map(np.array_equal, again.parts, federation.parts))


def test_what_cannot_be_held_out_is_said():
    with pytest.raises(UserError, match="validation = 1 must be"):
        config(validation=1)
    kept = config(validation=0.2, dataset={"name": "folder", "path": "x", "undivided": "patient"})
    with pytest.raises(UserError, match="divide what undivided keeps together"):
        divided(kept, load(SMALL["dataset"]))
    with pytest.raises(UserError, match="divide what undivided keeps together"):
        divided(config(validation=0.2), replace(load(SMALL["dataset"]), undivided=True))
    single = "synthetic:classes=4,train=4,test=4,size=8"
    with pytest.raises(UserError, match="holds nothing out"):
        divided(config(validation=0.2, dataset=single, clients=2, sample=2))


def test_validation_leaves_no_origin_without_examples_and_knows_where_its_own_are_from():
    data = load(SMALL["dataset"])
    train = replace(data.train, origin=torch.arange(160) // 2)  # pairs
    data = replace(data, train=train, origins=tuple(map(str, range(80))))
    federation = divided(config(validation=0.5, partition="natural", clients=80), data)
    assert min(map(len, federation.parts)) == 1
    for client, places in enumerate(federation.at_home):
        assert len(places) + len(federation.parts[client]) == 2
        assert (federation.dataset.test.origin[places] == client).all()


def test_a_measure_is_taken_with_one_setting():
    twice = config(measures=["confusion", "confusion:locals=true"])
    with pytest.raises(UserError, match="measure confusion is asked for with two settings"):
        measures_of(twice)
    assert measures_of(config(measures=["confusion:every=2", "confusion:2"])).keys() == {"confusion"}


@pytest.mark.parametrize(
    ("device", "said"), [("meta", "'meta' cannot be used; use auto"), ("warp", "'warp' is none; use auto")]
)
def test_a_device_that_no_run_can_use_is_refused(device, said):
    with pytest.raises(UserError, match=said):
        device_of(config(device=device))


def test_where_there_is_a_gpu_the_backends_for_one_take_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    expected = {"auto": "cuda", "serial": "cpu", "processes": "cpu", "vectorised:lanes=2": "cuda"}
    assert {b: device_of(config(backend=b)).type for b in expected} == expected
    assert device_of(config(backend="serial", device="cuda")).type == "cuda"
    with pytest.raises(UserError, match="backend = 'processes' trains on the CPU; for a GPU use vectorised"):
        device_of(config(backend="processes", device="cuda"))


DRAWN = """
import math
import random
import numpy as np
import torch

class Drawn(torch.nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(math.prod(shape), classes)
        self.weight.data[:] = random.random()
        self.register_buffer("mask", torch.tensor(np.random.rand(4)))

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


def test_what_a_network_draws_while_it_is_built_follows_from_the_seed(tmp_path):
    (tmp_path / "drawn.py").write_text(DRAWN)
    made = config(model=f"{tmp_path}/drawn.py:Drawn")
    dataset, algorithm = load(made.dataset), ALGORITHMS.make("fedavg")
    built = [make_model(replace(made, seed=seed), dataset, algorithm).initial() for seed in (3, 3, 4)]
    for one, again, other in zip(*((w.params | w.buffers).values() for w in built), strict=True):
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
