"""The short form of `tests/torture/test_long.py`, and results that are pinned."""

import hashlib
import time

import numpy as np
import pytest
from tests.torture import kills, long

import fedrecall
from fedrecall import trees
from fedrecall.experiment import Experiment
from fedrecall.measures import MEASURES
from fedrecall.records import RunFolder, read_metrics


def test_every_measure_is_taken_and_nothing_piles_up(tmp_path):
    assert long.EVERY.keys() == set(MEASURES)
    gauge = long.Gauge(every=4)
    result = long.long_run(tmp_path / "run", 40, gauge)
    assert set(result.history[-1]["measures"]) == set(MEASURES)
    assert len(set(gauge.files[1:])) == 1
    # The records are on disk alone: the run holds the last one.
    assert not [v for v in vars(result.records).values() if isinstance(v, list) and len(v) > 1]


def test_metrics_are_read_in_linear_time(tmp_path):
    line = '{"round":%d,"accuracy":0.5,"loss":1.0,"class_accuracy":[0.5,0.5],"forgetting":0.1}\n'
    seconds = []
    for count in (5_000, 20_000):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(line % i for i in range(count)))
        best = 1e9
        for _ in range(3):
            since = time.process_time()
            assert sum(1 for _ in read_metrics(path)) == count
            best = min(best, time.process_time() - since)
        seconds.append(best)
    assert seconds[1] < 8 * seconds[0]  # four times as much


def test_a_round_that_others_evaluate_costs_no_more_the_later_it_is(tmp_path, monkeypatch):
    """What there is of the rounds before is not written anew: the file stays the one that it was."""
    monkeypatch.setattr(Experiment, "evaluated_elsewhere", True)
    lines, found = tmp_path / "run" / "metrics.jsonl", []

    class Look:
        def begin(self, config, history):
            pass

        def record(self, record):
            found.append((lines.stat().st_ino, len(lines.read_text().splitlines())))

        def end(self):
            pass

    settings = {**kills.BASE, "algorithm": "fedavg", "backend": "serial"}
    fedrecall.run(tmp_path / "run", sinks=[Look()], **settings)
    assert found == [(lines.stat().st_ino, number) for number in (1, 2, 3, 4)]


def test_ten_thousand_clients_a_few_of_whom_have_a_memory(tmp_path):
    result = fedrecall.run(
        tmp_path / "run",
        algorithm="scaffold",
        dataset="synthetic:classes=10,train=20000,test=50,size=2",
        partition="iid",
        model="mlp:2",
        clients=10_000,
        sample=100,
        rounds=2,
        backend="serial",
        training={"local_epochs": 1},
    )
    assert result.history[-1]["failures"] == []
    visited = {k for r in result.history for chain in r["chains"] for k in chain}
    newest = next(RunFolder(tmp_path / "run").checkpoints())
    assert {int(k) for k in newest.memories} == visited


def digest(result):
    arrays = trees.arrays(result.weights)
    content = b"".join(n.encode() + arrays[n].contiguous().numpy().tobytes() for n in sorted(arrays))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@pytest.mark.parametrize("algorithm", ["fedntd", "scaffold"])
def test_bit_for_bit_the_same_whatever_the_number_of_workers(algorithm):
    found = {digest(kills.run(None, algorithm, "processes", rounds=2, workers=w)) for w in (1, 2, 3)}
    assert len(found) == 1


# Two rounds of full-batch FedAvg of a linear model, which plain numpy computes as well: what it must give on
# any machine, any torch, any number of threads, to rounding in double precision.


def test_a_result_is_pinned_in_double_precision():
    settings = {
        "algorithm": "fedavg",
        "dataset": "digits",
        "partition": "shards:2",
        "model": {"name": "mlp", "hidden": []},
        "clients": 10,
        "sample": 4,
        "rounds": 3,
        "seed": 5,
        "precision": "float64",
        "augmentation": "none",
    }
    training = {"local_epochs": 2, "batch_size": 10_000, "lr": 0.1, "lr_decay": 0.5, "momentum": 0.9}
    result = fedrecall.run(**settings, backend="serial", training=training | {"weight_decay": 0.01})
    data = result.federation.dataset
    mean, std = data.mean.double().numpy(), data.std.double().numpy()
    x = (data.train.x.numpy() / 255 - mean[:, None, None]) / std[:, None, None]
    x, y = x.reshape(len(x), -1), np.eye(10)[data.train.y.numpy()]
    start = fedrecall.run(**settings | {"rounds": 1}, backend="serial", training=training | {"lr": 1e-300})
    w, b = (start.weights.params[n].numpy() for n in ("fc1.weight", "fc1.bias"))
    for record in result.history:
        lr, sums, total = 0.1 * 0.5 ** (record["round"] - 1), [0.0, 0.0], 0
        for (client,) in record["chains"]:
            part = result.federation.parts[client]
            params, velocity = [w, b], [0.0, 0.0]
            for _ in range(2):
                z = x[part] @ params[0].T + params[1]
                p = np.exp(z - z.max(1, keepdims=True))
                error = (p / p.sum(1, keepdims=True) - y[part]) / len(part)
                grads = [error.T @ x[part], error.sum(0)]
                velocity = [0.9 * v + g + 0.01 * q for v, g, q in zip(velocity, grads, params, strict=True)]
                params = [q - lr * v for q, v in zip(params, velocity, strict=True)]
            sums = [s + len(part) * q for s, q in zip(sums, params, strict=True)]
            total += len(part)
        w, b = (s / total for s in sums)
    assert np.allclose(result.weights.params["fc1.weight"].numpy(), w, rtol=1e-9, atol=1e-12)
    assert np.allclose(result.weights.params["fc1.bias"].numpy(), b, rtol=1e-9, atol=1e-12)
    # The clients drawn in three rounds: integers, which no rounding touches.
    assert [sorted(k for chain in r["chains"] for k in chain) for r in result.history] == PINNED_CLIENTS


PINNED_CLIENTS = [[1, 3, 7, 9], [0, 1, 5, 6], [0, 5, 7, 8]]
