"""What released codes draw with global generators, beside plain loops with those very generators."""

# ruff: noqa: NPY002  (the generators that are looked down upon are what this is about)

import random

import numpy as np
import pytest

from fedrecall import config as configs
from fedrecall import global_draws
from fedrecall.data.partitions import PARTITIONS, label_counts
from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.papers.paper import load_paper, table

EVEN = [60, 60, 60, 60, 60]
UNEVEN = [61, 75, 52, 88, 69]


@pytest.fixture(autouse=True)
def _global_generators_are_left_alone():
    numpy_state, python_state = np.random.get_state(), random.getstate()
    yield
    np.random.set_state(numpy_state)
    random.setstate(python_state)


def labels_of(sizes):
    return np.random.default_rng(5).permutation(np.repeat(np.arange(len(sizes)), sizes))


def dealt_by_hand(labels, clients, each, seed):
    """Shuffle classes, cut each class into shards, and let one client after another take its own."""
    np.random.seed(seed)
    random.seed(seed)
    classes = sorted(set(labels.tolist()))
    per_class = clients * each // len(classes)
    slips = [c for _ in range(per_class) for c in classes]
    random.shuffle(slips)
    piles = {c: np.array_split(np.flatnonzero(labels == c), per_class) for c in classes}
    hands = []
    for k in range(clients):
        hand = [
            piles[c].pop(np.random.choice(len(piles[c]), replace=False))
            for c in slips[k * each : (k + 1) * each]
        ]
        hands.append(np.concatenate(hand))
    return hands


def shared_by_hand(labels, clients, alpha, balance, least, seed):
    """Shuffle a class, cut it at the running sums of a Dirichlet vector; all over until all have enough."""
    np.random.seed(seed)
    while True:
        hands = [[] for _ in range(clients)]
        for c in sorted(set(labels.tolist())):
            examples = np.flatnonzero(labels == c)
            np.random.shuffle(examples)
            share = np.random.dirichlet([alpha] * clients)
            if balance:
                share = np.array(
                    [s * (len(h) < len(labels) / clients) for h, s in zip(hands, share, strict=True)]
                )
            ends = np.cumsum(share / share.sum()) * len(examples)
            ends[-1] = len(examples)
            begin = 0
            for hand, end in zip(hands, ends, strict=True):
                hand.extend(examples[begin : int(end)].tolist())
                begin = int(end)
        if min(map(len, hands)) >= least:
            return [np.array(h) for h in hands]


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 19940817])
def test_shards_are_dealt_as_global_generators_deal_them(sizes, each, seed):
    labels = labels_of(sizes)
    found = PARTITIONS.make(f"shards:{each}").split(labels, 10, 3, global_seed=seed)
    expected = label_counts(labels, dealt_by_hand(labels, 10, each, seed), 5)
    assert np.array_equal(label_counts(labels, found, 5), expected)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(labels)))


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize(("alpha", "least"), [(0.3, 12), (2.0, 5)])  # the first takes several draws
def test_shares_are_drawn_as_global_generators_draw_them(sizes, balance, alpha, least):
    labels = labels_of(sizes)
    spec = f"lda:{alpha},balance={str(balance).lower()},min_size={least}"
    found = PARTITIONS.make(spec).split(labels, 8, 3, global_seed=19940817)
    expected = label_counts(labels, shared_by_hand(labels, 8, alpha, balance, least, 19940817), 5)
    assert np.array_equal(label_counts(labels, found, 5), expected)


@pytest.mark.filterwarnings("error")
def test_a_draw_that_leaves_nothing_to_share_is_drawn_again():
    with pytest.raises(UserError, match="not in 50 draws"):
        PARTITIONS.make("lda:0.0001,draws=50").split(labels_of(EVEN), 3, 0, global_seed=0)


def test_the_run_meets_the_clients_that_a_rounds_number_draws_whatever_its_seed():
    expected = []
    for number in range(3):
        np.random.seed(number)
        expected.append(np.random.choice(6, 3, replace=False).tolist())
    parts = []
    for seed in (0, 7):
        made = {"seed": seed, "global_seed": 11, "clients": 6, "sample": 3, "rounds": 3, "model": "cnn:4"}
        experiment = Experiment(
            configs.make({**made, "partition": "lda:1.0", "training": {"local_epochs": 1}})
        )
        history = experiment.run().history
        asked = [[k for chain in record["chains"] for k in chain] for record in history]
        assert asked == expected
        parts.append(experiment.federation.parts)
    assert all(np.array_equal(a, b) for a, b in zip(*parts, strict=True))  # example by example
    assert global_draws.clients(6, 3, 1) == expected[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition_seed": 1}, "leave partition_seed out"),
        ({"algorithm": "private:fedavg"}, "hides nobody"),
    ],
)
def test_what_cannot_go_with_it_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        configs.make({"global_seed": 0, **settings})


@pytest.mark.parametrize(
    ("spec", "message"), [("iid", "deals shards and lda, not iid"), ("shards:3", "no multiple of 5 classes")]
)
def test_partitions_that_it_cannot_deal_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        PARTITIONS.make(spec).split(labels_of(EVEN), 9, 0, global_seed=1)


def test_the_switch_with_the_authors_draw_means_something_where_their_code_drew():
    draw = load_paper("fedntd").variant("authors-draw")
    for name, column, meant in (
        ("table1", "cifar10/shard2", True),
        ("table1", "mnist/lda0.1", True),
        ("table2", "iid", False),
        ("table13", "64/lda0.1", False),
    ):
        cell = table(f"fedntd/{name}").cell(column, "fedavg")
        assert cell.changed_by(draw) == meant, (name, column)
    config = table("fedntd/table1").cell("cifar10/lda0.1", "fedavg").config(variant=draw)
    assert (config.global_seed, config.partition_seed) == (19940817, None)
