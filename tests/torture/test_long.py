"""Long and large: memory and open files stay flat, what is written is read in linear time."""

import time

import pytest
from tests.reports import synthetic
from tests.torture.long import EVERY, Gauge, long_run
from tests.torture.watch import descriptors, resident

import fedrecall
from fedrecall.measures import MEASURES
from fedrecall.records import History, read_metrics
from fedrecall.reports import report
from fedrecall.reports.runs import open_runs

pytestmark = pytest.mark.slow


def test_five_thousand_rounds_with_every_measure(tmp_path, figures):
    assert EVERY.keys() == set(MEASURES)
    gauge, since = Gauge(every=50), time.monotonic()
    result = long_run(tmp_path / "run", 5_000, gauge)
    seconds = time.monotonic() - since
    assert isinstance(result.records, History)
    assert len(result.history) == 5_000
    slope = gauge.slope(after=1_000)
    assert slope <= 1
    assert len(set(gauge.files)) == 1
    reading = {}
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for share in (1, 2, 4):
        part = tmp_path / f"{share}.jsonl"
        part.write_bytes(b"".join(lines[: len(lines) * share // 4]))
        best = min(_timed(part) for _ in range(5))
        reading[len(lines) * share // 4] = round(best, 3)
    times = list(reading.values())
    assert times[2] < 3 * times[1] < 9 * times[0]
    figures.add(
        "long",
        rounds=5_000,
        slope_mb_per_1000_rounds=round(slope, 3),
        memory_mb={
            str(r): round(m) for r, m in zip(gauge.rounds, gauge.memory, strict=True) if r % 1000 == 0
        },
        descriptors=gauge.files[-1],
        metrics_mb=round(path.stat().st_size / 1e6, 1),
        reading_seconds_by_rounds=reading,
        every=EVERY,
        seconds=round(seconds),
    )


def _timed(path):
    since = time.process_time()
    for _ in read_metrics(path):
        pass
    return time.process_time() - since


@pytest.mark.parametrize("algorithm", ["fedntd", "scaffold"])
def test_ten_thousand_clients(algorithm, tmp_path, figures):
    before, since = resident(), time.monotonic()
    files = descriptors()
    result = fedrecall.run(
        tmp_path / "run",
        algorithm=algorithm,
        dataset="synthetic:classes=10,train=30000,test=200,size=4",
        partition="iid",
        model="mlp:8",
        clients=10_000,
        sample=100,
        rounds=10,
        backend="serial",
        training={"local_epochs": 1},
    )
    assert all(len(r["seconds"]["clients"]) == 100 for r in result.history)
    assert descriptors() <= files + 1
    figures.add(
        f"large/{algorithm}",
        clients=10_000,
        sampled=100,
        seconds_a_round=round((time.monotonic() - since) / 10, 2),
        memory_mb=round(resident() - before),
    )


def test_a_report_over_a_hundred_runs(tmp_path, figures):
    for i in range(100):
        algorithm = ["fedavg", "fedntd", "fedseq", "scaffold"][i % 4]
        synthetic.write(tmp_path / f"{i}", algorithm=algorithm, seed=i // 4, rounds=50, classes=10)
    since = time.monotonic()
    page = report.build(open_runs([tmp_path])).encode()
    figures.add("report", runs=100, seconds=round(time.monotonic() - since, 1), mb=round(len(page) / 1e6, 1))
    assert len(page) < 20e6
