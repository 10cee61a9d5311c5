"""The hand-written loop that speed is compared with averages the clients it is given, and no others."""

from contextlib import closing

import numpy as np
import torch
from benchmarks.bench import synthetic
from benchmarks.floor import Floor

from fedrecall.models.networks import build


def test_a_round_may_have_fewer_clients_than_there_is_room_for():
    data, parts = synthetic(60), [np.arange(20 * k, 20 * k + 20) for k in range(3)]
    weights = [p.detach() for p in build("cnn", (3, 32, 32), 10).parameters()]
    found = []
    for room in (2, 3):
        with closing(Floor("fedavg", False, False, data, parts, weights, room, 1)) as floor:
            floor.round([0, 2], 0.01, 1)
            found.append([w.clone() for w in floor.shared["weights"]])
    assert not torch.equal(found[0][0], weights[0])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
