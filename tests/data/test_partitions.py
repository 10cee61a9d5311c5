"""Every partition: disjoint, complete, deterministic, and what its definition says."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall.data import partitions
from fedrecall.data.partitions import (
    PARTITIONS,
    label_counts,
    out_local_distribution,
)
from fedrecall.errors import UserError

SPECS = ["iid", "shards:2", "shards:3", "lda:0.5,min_size=1", "lda:0.5,balance=false,min_size=1"]
SPECS += ["dirichlet:0.5,min_size=1", "classes:2", "exdir:2,0.5", "quantity:1,min_size=1"]


def labels_of(sizes, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def counts_of(spec, labels, clients, seed=0):
    parts = PARTITIONS.make(spec).split(labels, clients, seed)
    return label_counts(labels, parts, int(labels.max()) + 1)


@pytest.mark.parametrize("spec", SPECS)
@given(
    sizes=st.lists(st.integers(60, 150), min_size=2, max_size=7),
    clients=st.integers(4, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_disjoint_complete_ascending_and_deterministic(spec, sizes, clients, seed):
    labels = labels_of(sizes)
    partition = PARTITIONS.make(spec)
    parts = partition.split(labels, clients, seed)
    assert len(parts) == clients
    assert all(p.dtype == np.int64 and len(p) and (np.diff(p) > 0).all() for p in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = partition.split(labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = partition.split(labels, clients, seed + 1)
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_labels_with_gaps_are_as_good_as_any():
    labels = labels_of([50, 50, 50])
    for spec in SPECS:
        parts = PARTITIONS.make(spec).split(labels, 4, 0)
        gaps = PARTITIONS.make(spec).split(np.array([3, 10, 77])[labels], 4, 0)
        assert all(np.array_equal(a, b) for a, b in zip(parts, gaps, strict=True))


@given(st.integers(1, 50), st.integers(0, 30))
def test_iid_parts_are_near_equal_and_mixed(clients, extra):
    sizes = counts_of("iid", labels_of([100, 100 + extra]), clients).sum(1)
    assert sizes.max() - sizes.min() <= 1


def test_iid_gives_every_client_every_class_in_proportion():
    counts = counts_of("iid", labels_of([5000] * 10), 10)
    assert (abs(counts - 500) < 5 * 500**0.5).all()


def test_quantities_follow_a_dirichlet_draw_and_labels_do_not():
    labels = labels_of([500] * 4)
    parts = partitions.Quantity(beta=2.0, min_size=1)
    draws = [label_counts(labels, parts.split(labels, 5, seed), 4) for seed in range(400)]
    sizes = np.array([counts.sum(1) for counts in draws]) / 2000
    # A share of Dir(2, 2, 2, 2, 2) is Beta(2, 8), of mean 1/5 and variance 2 8 / (10^2 11).
    assert sizes.mean(0) == pytest.approx(np.full(5, 0.2), abs=0.03)
    assert sizes.var() == pytest.approx(16 / 1100, rel=0.15)
    # Given its size a client's classes are drawn without replacement: hypergeometric.
    for counts in draws[:50]:
        n = counts.sum(1, keepdims=True)
        deviation = np.sqrt(n * 0.25 * 0.75 * (2000 - n) / 1999)
        assert (abs(counts - n / 4) <= 5 * deviation + 1e-9).all()
    assert min(len(p) for p in partitions.Quantity(beta=0.3, min_size=25).split(labels, 10, 0)) >= 25


def test_shards_of_one_class_each():
    counts = counts_of("shards:2", labels_of([500] * 10), 100)
    assert set(np.unique(counts)) <= {0, 25, 50}
    assert (counts.sum(1) == 50).all()
    assert ((counts > 0).sum(1) == 1).any()  # a client may get one class twice
    uneven = counts_of("shards:2", labels_of([101, 203, 55, 90, 77]), 10)
    for c, n in enumerate([101, 203, 55, 90, 77]):  # four near-equal shards of every class
        held = uneven[:, c]
        shards = np.array([n // 4, -(-n // 4)])
        possible = {0, *shards, *(shards[:, None] + shards).ravel()}
        assert set(held.tolist()) <= possible


def test_shards_that_straddle_classes_lose_nothing():
    labels = labels_of([33, 34, 35])
    parts = partitions.Shards(s=2).split(labels, 5, 0)  # ten shards of three classes: not a multiple
    sizes = np.array([len(p) for p in parts])
    assert sizes.sum() == 102
    assert set(sizes) <= {20, 21, 22}
    counts = label_counts(labels, parts, 3)
    assert ((counts > 0).sum(1) <= 4).all()


def test_shards_are_dealt_at_random():
    labels = labels_of([500] * 10)
    first, second = counts_of("shards:2", labels, 100, 0), counts_of("shards:2", labels, 100, 1)
    assert (first != second).any()
    assert len(np.unique(first > 0, axis=0)) > 30


@pytest.mark.parametrize("balance", [True, False])
def test_lda_gives_everyone_the_least_and_balance_caps(balance):
    labels = labels_of([5000] * 10)
    counts = counts_of(f"lda:0.1,balance={balance}", labels, 100)
    assert counts.sum(1).min() >= 10
    if balance:  # who holds an even share before a class gets nothing of it
        before = np.cumsum(counts, axis=1) - counts
        assert (counts[before >= 500] == 0).all()
    else:
        before = np.cumsum(counts, axis=1) - counts
        assert (counts[before >= 500] > 0).any()


def test_a_client_with_just_its_even_share_gets_none_of_the_classes_that_follow():
    """With so small a concentration one client gets all of a class, which here is an even share."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        dealt = partitions.shared_out(np.array([6, 6]), 2, 1e-4, balance=True, rng=rng)
        assert sorted(dealt.tolist()) == [[0, 6], [6, 0]]


def test_dirichlet_is_lda_without_balance_and_can_have_it():
    labels = labels_of([500, 300, 700, 400])
    for seed in range(3):
        for one, other in (
            ("dirichlet:0.3", "lda:0.3,balance=false"),
            ("dirichlet:0.3,balance=true", "lda:0.3"),
        ):
            assert (counts_of(one, labels, 12, seed) == counts_of(other, labels, 12, seed)).all()
    assert (counts_of("dirichlet:0.3", labels, 12) != counts_of("lda:0.3", labels, 12)).any()


def test_smaller_concentration_is_more_skewed():
    labels = labels_of([5000] * 10)

    def skew(spec):
        counts = counts_of(spec, labels, 20)
        p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return abs(p - 0.1).sum(1).mean()

    assert skew("lda:0.2") > skew("lda:1") > skew("lda:100")
    assert skew("dirichlet:0.2") > skew("dirichlet:1") > skew("dirichlet:100")


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    """The share of a client in a class has mean 1/N and variance (1/N)(1-1/N)/(N a + 1)."""
    labels = labels_of([4000] * 200)
    partition = partitions.Dirichlet(delta=0.5, min_size=1)
    shares = label_counts(labels, partition.split(labels, 5, 0), 200) / 4000
    assert abs(shares.mean() - 0.2) < 1e-12
    assert shares.var() == pytest.approx(0.2 * 0.8 / 3.5, rel=0.15)


@given(st.integers(1, 6), st.integers(3, 40), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_classes_owned(k, clients, seed):
    labels = labels_of([80] * 6)
    if clients * k < 6:
        with pytest.raises(UserError, match="own at most"):
            counts_of(f"classes:{k}", labels, clients, seed)
        return
    counts = counts_of(f"classes:{k}", labels, clients, seed)
    owners = counts > 0
    assert (owners.sum(1) == k).all()
    assert owners.any(0).all()
    for c in range(6):
        held = counts[owners[:, c], c]
        assert held.max() - held.min() <= 1


@given(st.integers(1, 6), st.integers(6, 40), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_exdir_owners_are_spread_evenly(k, clients, seed):
    labels = labels_of([2000] * 6)
    counts = counts_of(f"exdir:{k},1000", labels, clients, seed)
    owners = counts > 0  # at this concentration every owner gets something
    assert (owners.sum(1) == k).all()
    assert owners.any(0).all()
    assert owners.sum(0).max() - owners.sum(0).min() <= 1


def test_exdir_shares_follow_alpha():
    labels = labels_of([5000] * 10)
    even, skewed = counts_of("exdir:2,1000", labels, 20), counts_of("exdir:2,0.5", labels, 20)
    assert np.ptp(even.sum(1)) < np.ptp(skewed.sum(1))
    assert abs(even.sum(1) - 2500).max() < 500


@pytest.mark.parametrize("spec", ["classes:1", "exdir:1,0.5", "shards:1"])
def test_one_class_per_client(spec):
    assert ((counts_of(spec, labels_of([100] * 5), 10) > 0).sum(1) == 1).all()


@pytest.mark.parametrize(
    ("spec", "sizes", "clients", "said"),
    [
        ("iid", [5, 5], 11, "cannot be shared by 11 clients"),
        ("iid", [5, 5], 0, "at least one client"),
        (
            "quantity",
            [30, 30],
            7,
            "beta=0.5 cannot give each of N=7 clients min_size=10 .* only 60",
        ),
        ("shards:3", [5, 5], 4, "12 shards"),
        ("shards:2", [20, 1], 4, "smallest class has 1"),
        ("classes:4", [9, 9, 9], 5, "more than the 3 classes"),
        ("classes:1", [9, 9, 9], 2, "own at most 2 of 3"),
        ("exdir:1,1", [9, 9, 9], 2, "own at most 2 of 3"),
        ("exdir:4,1", [9, 9, 9], 5, "more than the 3 classes"),
        ("lda:0.001", [100] * 4, 30, "alpha=0.001.*N=30.*min_size=10.*1,000 draws"),
        ("lda:1", [50, 50], 11, "alpha=1.*N=11.*min_size=10.*only 100 examples"),
        ("dirichlet:0.001", [100] * 4, 30, "delta=0.001"),
        ("exdir:1,0.01", [100] * 2, 60, "alpha=0.01"),
        ("lda:0.001", [100] * 4, 30, "raise draws, such as draws=100000, .* or use fewer clients"),
        ("exdir:1,0.01,draws=7", [100] * 2, 60, "not in 7 draws.*raise draws, such as draws=700,"),
        ("classes:1", [2, 500], 100, "without an example"),
        ("shards:0", [9, 9], 2, "s = '0' must be >= 1"),
        ("lda:0", [9, 9], 2, "alpha = '0' must be > 0"),
        ("lda:-1", [9, 9], 2, "must be > 0"),
        ("ldda", [9, 9], 2, "did you mean 'lda'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_no_endless_loop(spec, sizes, clients, said):
    with pytest.raises(UserError, match=said):
        PARTITIONS.make(spec).split(labels_of(sizes), clients, 0)


@pytest.mark.parametrize(("spec", "clients"), [("dirichlet:0.001", 30), ("lda:1", 41)])
def test_draws_are_named_only_where_more_of_them_would_do(spec, clients):
    with pytest.raises(UserError, match=r": use fewer clients") as told:
        PARTITIONS.make(spec).split(labels_of([100] * 4), clients, 0)
    assert "raise draws" not in str(told.value)


@pytest.mark.parametrize("labels", [np.zeros((2, 2), int), np.zeros(4), ["a", "b"]])
def test_labels_must_be_whole_numbers(labels):
    with pytest.raises(UserError, match="whole numbers"):
        partitions.IID().split(labels, 1, 0)


def test_fast_enough():
    labels = labels_of([5000] * 10)
    for spec in ("iid", "shards:2", "lda:0.1", "dirichlet:0.3", "classes:2", "exdir:2,0.5"):
        start = time.perf_counter()
        PARTITIONS.make(spec).split(labels, 100, 0)
        assert time.perf_counter() - start < 0.5, spec
    for spec in ("iid", "shards:2", "lda:10,min_size=1", "classes:2", "exdir:2,10"):
        start = time.perf_counter()
        PARTITIONS.make(spec).split(labels, 10_000, 0)
        assert time.perf_counter() - start < 5, spec


def test_the_out_local_distribution_is_equation_7():
    p = np.array([[0.75, 0.25, 0], [0, 0, 1]])
    out = out_local_distribution(p)
    np.testing.assert_allclose(out, [[0.125, 0.375, 0.5], [0.5, 0.5, 0]])
    np.testing.assert_allclose(out.sum(1), 1)
    with pytest.raises(UserError, match="two classes"):
        out_local_distribution([1.0])
    with pytest.raises(UserError, match="classes"):
        label_counts([0, 5], [np.array([0, 1])], 3)


def test_saved_and_loaded(tmp_path):
    labels = labels_of([50] * 4)
    parts = PARTITIONS.make("lda:0.5").split(labels, 6, 3)
    path = tmp_path / "run" / "partition.json"
    partitions.save(path, parts, {"partition": "lda:0.5", "seed": 3})
    loaded, meta = partitions.load(path, examples=200)
    assert meta == {"partition": "lda:0.5", "seed": 3}
    assert all(np.array_equal(a, b) and b.dtype == np.int64 for a, b in zip(parts, loaded, strict=True))
    assert [p.name for p in path.parent.iterdir()] == ["partition.json"]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a saved partition"),
        ({"clients": [[0]]}, "not a saved partition"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": []}, "no clients"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[0.5]]}, "whole numbers"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[True]]}, "whole numbers"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [0]}, "whole numbers"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[-1]]}, "example -1"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[9]]}, "example 9, but there are 9"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[1], [1]]}, "two clients"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[1, 1]]}, "twice"),
        ({"format": "fedrecall partition 1", "meta": {}, "clients": [[10**30]]}, "example 10"),
    ],
)
def test_a_damaged_partition_is_refused(tmp_path, held, said):
    path = tmp_path / "partition.json"
    path.write_text(held if isinstance(held, str) else json.dumps(held))
    with pytest.raises(UserError, match=said):
        partitions.load(path, examples=9)


def test_a_missing_partition_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        partitions.load(tmp_path / "none.json")


@pytest.mark.parametrize(("spec", "field"), [("dirichlet:0.5", "min_size"), ("lda:0.5", "min_size")])
def test_every_client_has_ten_examples_unless_told_otherwise(spec, field):
    assert getattr(PARTITIONS.make(spec), field) == 10


def test_the_least_is_enough():
    found = partitions.repeat(lambda: np.array([[3, 5]]), 3, 2, 8, "partition mine")
    assert found.tolist() == [[3, 5]]


def test_who_owns_what_in_exdir_is_drawn():
    labels = labels_of([50] * 10)
    found = [counts_of("exdir:2,10", labels, 10, seed) > 0 for seed in range(40)]
    assert len({tuple(np.flatnonzero(owns[0])) for owns in found}) > 15  # of 45 pairs
    # No two clients are always apart, as neighbours in a fixed order would be.
    for other in range(1, 10):
        assert any((owns[0] & owns[other]).any() for owns in found)


def test_what_is_left_of_a_class_goes_to_any_of_its_owners():
    labels = labels_of([51, 51])
    larger = set()
    for seed in range(30):
        counts = counts_of("classes:2", labels, 2, seed)
        larger |= {(c, int(counts[:, c].argmax())) for c in range(2)}
    assert larger == {(c, k) for c in range(2) for k in range(2)}


def written(path, clients, **meta):
    path.write_text(json.dumps({"format": "fedrecall partition 1", "meta": meta, "clients": clients}))
    return f"file:{path}"


@pytest.mark.parametrize("spec", SPECS)
@given(sizes=st.lists(st.integers(60, 150), min_size=2, max_size=7), clients=st.integers(4, 9))
@settings(max_examples=5, deadline=None)
def test_a_file_deals_what_was_saved_whatever_the_seed(tmp_path_factory, spec, sizes, clients):
    labels, path = labels_of(sizes), tmp_path_factory.mktemp("saved") / "p.json"
    parts = PARTITIONS.make(spec).split(labels, clients, 3)
    partitions.save(path, parts, {})
    for seed in (3, 4):
        again = PARTITIONS.make(f"file:{path}").split(labels, clients, seed)
        assert [p.tolist() for p in again] == [p.tolist() for p in parts]
        assert all(p.dtype == np.int64 for p in again)


def test_a_file_may_be_written_by_hand_in_any_order_and_leave_examples_out(tmp_path):
    partition = PARTITIONS.make(written(tmp_path / "p.json", [[5, 0], [3]]))
    assert [p.tolist() for p in partition.split(np.arange(7) % 2, 2, 0)] == [[0, 5], [3]]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ([[0], [1], [2]], "is of 3 clients, not 2: give --clients 3."),
        ([[0, 1], []], "gives client 1 no example"),
        ([[0], [4]], "names example 4, but there are 4"),
        ([[0], [1, 0]], "gives one example to two clients"),
    ],
)
def test_a_file_that_cannot_deal_these_examples_is_a_sentence(tmp_path, held, said):
    with pytest.raises(UserError, match=said):
        PARTITIONS.make(written(tmp_path / "p.json", held)).split(np.arange(4) % 2, 2, 0)


def test_a_file_that_is_not_there_is_a_sentence_and_begins_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    partition = PARTITIONS.make("file:sub/p.json")
    assert partition.path == str(tmp_path / "sub" / "p.json")
    with pytest.raises(UserError, match=r"sub/p\.json cannot be read: No such file"):
        partition.split(np.arange(4) % 2, 2, 0)
