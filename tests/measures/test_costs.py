import pytest

from fedrecall.measures import costs as C

# Round 1 in parallel, round 2 as two chains, round 3 as one; round 2 was not evaluated.
RECORDS = [
    {
        "round": 1, "chains": [[0], [1], [2]], "bytes_down": 30, "bytes_up": 60,
        "memory_bytes": 8, "accuracy": 0.2,
        "seconds": {"train": 5.0, "clients": [1.0, 3.0, 0.5], "evaluate": 0.25, "measures": {"locals": 2.0}},
    },
    {
        "round": 2, "chains": [[0, 1], [2]], "bytes_down": 30, "bytes_up": 60, "memory_bytes": 12,
        "seconds": {"train": 4.0, "clients": [1.0, 1.0, 4.0]},
    },
    {
        "round": 3, "chains": [[2, 1]], "bytes_down": 20, "bytes_up": 40, "memory_bytes": 8, "accuracy": 0.5,
        "seconds": {"train": 4.0, "clients": [1.5, 2.0], "evaluate": 0.75, "measures": {"locals": 1.0}},
    },
]  # fmt: skip


def test_seconds_of_the_longest_chain_and_of_all():
    assert [C.local_seconds(r, "waiting") for r in RECORDS] == [3.0, 4.0, 3.5]
    assert [C.local_seconds(r, "working") for r in RECORDS] == [4.5, 6.0, 3.5]
    assert C.elapsed(RECORDS) == [3.0, 7.0, 10.5]


def test_rounds_and_seconds_to_a_target():
    assert C.rounds_to(RECORDS, 0.2) == 1
    assert C.rounds_to(RECORDS, 0.21) == 3
    assert C.rounds_to(RECORDS, 0.51) is None
    assert C.seconds_to(RECORDS, 0.5) == 10.5
    assert C.seconds_to(RECORDS, 0.5, "working") == 14.0
    assert C.seconds_to(RECORDS, 0.9) is None


def test_what_nodes_evaluate_is_in_the_total_alone():
    evaluated = {**RECORDS[0], "bytes_evaluation_down": 500, "bytes_evaluation_up": 4}
    before, after = C.cost(RECORDS), C.cost([evaluated, *RECORDS[1:]])
    assert after == before._replace(total_bytes=before.total_bytes + 504)


def test_cost_by_hand():
    found = C.cost(RECORDS, auxiliary=640)
    assert found.down == pytest.approx(80 / 8)  # eight visits
    assert found.up == pytest.approx(160 / 8)
    assert found.total_bytes == 240
    assert (found.memory, found.auxiliary) == (12, 640)
    assert (found.train, found.evaluate, found.measures) == (13.0, 1.0, {"locals": 3.0})
