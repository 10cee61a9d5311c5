"""Secure aggregation: the server learns the mean, and nothing that could be taken apart."""

import contextlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Error, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from scipy import stats
from tests.flower import test_nodes
from tests.flower.circles import RUN, Circle, Server
from tests.flower.grids import Grid
from tests.flower.test_nodes import alone, changed, nodes, play, value

from fedrecall import files, trees
from fedrecall.errors import Malformed, Refused, UserError
from fedrecall.flower import hosting, masks, member, sums, wire
from fedrecall.flower.masks import BITS, LIMIT
from fedrecall.flower.node import Node
from fedrecall.flower.secure import Arrival, Round
from fedrecall.flower.wire import Call, Unmasking

KINDS = ("query.keys", "query.shares", "train.masked", "query.unmask")


@pytest.fixture(autouse=True)
def _in_root(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])


def close(a: object, b: object) -> None:
    torch.testing.assert_close(trees.arrays(a), trees.arrays(b), rtol=1e-9, atol=1e-9)


# The whole of it, without processes.


@pytest.mark.parametrize(
    ("algorithm", "secure"),
    [("fedavg", "examples"), ("fedntd", "examples"), ("scaffold", "equal"), ("feddyn", "equal")],
)
def test_the_model_is_that_of_one_machine(algorithm, secure, tmp_path):
    """48 examples over 3 clients: for "equal" all have as many, for "examples" they differ."""
    partition = "iid" if secure == "equal" else "lda:0.5,min_size=2"
    run = {"algorithm": algorithm, "partition": partition, "training.batch_size": 50}
    result = play(Grid(nodes(tmp_path)), secure=secure, **run)
    expected = alone(**run)
    close(result.weights, expected.server.weights)
    for mine, other in zip(result.history, expected.history, strict=True):
        assert mine["failures"] == []
        assert mine["train_loss"] == pytest.approx(other["train_loss"], abs=1e-9)
        assert (mine["accuracy"], mine["chains"]) == (other["accuracy"], other["chains"])


def test_clients_of_different_sizes_count_alike_or_by_their_examples(tmp_path):
    run = {"partition": "lda:0.3,min_size=2", "training.batch_size": 50, "rounds": 1}
    sizes = [len(part) for part in alone(**run).federation.parts]
    assert len(set(sizes)) > 1
    plain = Grid(nodes(tmp_path / "plain"))
    play(plain, **run)
    ups = {r.content["values"]["client"]: arrays_of(r) for r in replies(plain, "train")}
    for secure, weights in (("examples", sizes), ("equal", [1, 1, 1])):
        result = play(Grid(nodes(tmp_path / secure)), **run, secure=secure)
        for name, t in trees.leaves(result.weights):
            mean = sum(ups[k][f"weights/{name}"].double() * w for k, w in enumerate(weights)) / sum(weights)
            expected = mean if t.is_floating_point() else mean.round().to(t.dtype)
            torch.testing.assert_close(t, expected, rtol=1e-9, atol=1e-9)


def test_a_later_node_with_the_same_number_does_not_change_what_a_client_counts(tmp_path, caplog):
    run = {"rounds": 3, "partition": "lda:0.3,min_size=2", "training.batch_size": 50}
    held = nodes(tmp_path)

    def tamper(node: int, reply: Message) -> Message:
        if grid.sent[-1].metadata.group_id == "1" and node == 1000:
            held[9999] = dict(held[1000])
        return value(examples=10**6)(reply) if node == 9999 else reply

    grid = Grid(held, tamper)
    result = play(grid, **run, secure="examples")
    assert "node 9999 says it is client 0, which node 1000 is: it is left out" in caplog.text
    close(result.weights, alone(**run).server.weights)


def replies(grid: Grid, kind: str) -> list[Message]:
    return [m for m in grid.received if m.metadata.message_type == kind]


def arrays_of(message: Message) -> dict[str, torch.Tensor]:
    return load(message.content["arrays"]["safetensors"].data)


def numbers(message: Message) -> np.ndarray:
    """The masked upload and loss as one vector of whole numbers modulo 2^64."""
    return np.concatenate([t.numpy().reshape(-1) for _, t in sorted(arrays_of(message).items())])


def test_what_arrives_looks_random_and_only_the_sum_of_everything_does_not(tmp_path):
    """The server's own view: the masked uploads, and sums of some of them."""
    run = {"rounds": 1, "model": "mlp:512", "secure": "examples"}
    grid = Grid(nodes(tmp_path))
    play(grid, **run)
    masked = [numbers(m) for m in replies(grid, "train.masked")]
    assert all(v.dtype == np.uint64 for v in masked)
    # What it would be without masks has its upper bits all zero or all one.
    plain = Grid(nodes(tmp_path / "plain"))
    play(plain, rounds=1, model="mlp:512")
    for message in replies(plain, "train"):
        assert all(t.abs().max() < 2**8 for t in arrays_of(message).values())
    for subset in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
        seen = sum(masked[k] for k in subset)
        assert stats.kstest(seen / 2.0**64, "uniform").pvalue > 1e-4
        low = (seen & np.uint64(0xFFFF)).astype(float)  # the lowest bits, too
        assert stats.kstest(low / 2**16, "uniform").pvalue > 1e-4
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(masked[a] / 2.0**64, masked[b] / 2.0**64)[0, 1]) < 5 / math.sqrt(
            len(masked[a])
        )
    # Pairwise masks cancel in the sum of all, the clients' own do not: it is of no use before the last step.
    everything = sum(masked)
    assert stats.kstest(everything / 2.0**64, "uniform").pvalue > 1e-4


def test_nothing_but_the_declared_travels(tmp_path):
    """No loss of one client, and no upload but masked; keys and shares are all there is beside."""
    grid = Grid(nodes(tmp_path))
    play(grid, secure="examples")
    declared = {
        "query": wire.Announcement,
        "query.keys": wire.Keys,
        "query.shares": wire.Parcels,
        "train.masked": wire.MaskedReport,
        "query.unmask": wire.Revealed,
    }
    assert {m.metadata.message_type for m in grid.received} == set(declared)
    for message in grid.received:
        kind = message.metadata.message_type
        assert set(message.content["values"]) == set(declared[kind]._fields)
        assert ("arrays" in message.content) == (kind == "train.masked")
    assert all(not state for state in grid.states.values())  # nothing is left when a round is over


# Who drops out.


def dropping(kind: str, who: set[int], how=lambda m: None, round_number: str = "2"):
    """Replies of these clients to messages of a kind are lost, or what ``how`` makes of them."""
    held: dict[int, int] = {}

    def tamper(node: int, reply: Message) -> Message | None:
        sent = tamper.grid.sent[-1].metadata
        hit = held[node] in who and sent.message_type == kind and sent.group_id == round_number
        return how(reply) if hit else reply

    def grid(own: dict[int, dict[str, object]]) -> Grid:
        held.update({node: config["client"] for node, config in own.items()})
        tamper.grid = Grid(own, tamper)
        return tamper.grid

    return grid


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_of_those_whose_uploads_arrived(kind, tmp_path):
    """Four clients, one is lost at every step: before the last it does not count, at the last it does."""
    run = {"clients": 4, "sample": 4, "rounds": 2}
    lost = {2} if kind != "query.unmask" else set()
    grid = dropping(kind, {2})(nodes(tmp_path / "secure", 4))
    result = play(grid, **run, secure="examples")
    plain = dropping("train", lost)(nodes(tmp_path / "plain", 4))
    expected = play(plain, **run)
    close(result.weights, expected.weights)
    for mine, other in zip(result.history, expected.history, strict=True):
        assert mine["failures"] == other["failures"]
        assert mine["train_loss"] == pytest.approx(other["train_loss"], abs=1e-9)
    assert [len(r["failures"]) for r in result.history] == [0, len(lost)]


def test_clients_may_be_lost_at_every_step_of_one_round(tmp_path):
    run = {"clients": 9, "sample": 9, "rounds": 1, "partition": "iid"}
    lost = dict(zip(KINDS, ({1}, {2}, {5}, {0}), strict=True))
    held = nodes(tmp_path / "secure", 9)
    number = {node: own["client"] for node, own in held.items()}

    def tamper(node: int, reply: Message) -> Message | None:
        return None if number[node] in lost.get(grid.sent[-1].metadata.message_type, set()) else reply

    grid = Grid(held, tamper)
    result = play(grid, **run, secure="examples")
    expected = play(dropping("train", {1, 2, 5}, round_number="1")(nodes(tmp_path / "p", 9)), **run)
    close(result.weights, expected.weights)
    assert result.history[0]["failures"] == expected.history[0]["failures"]


@pytest.mark.parametrize("kind", KINDS)
def test_with_too_few_left_the_run_stops_and_can_be_resumed(kind, tmp_path):
    make = dropping(kind, {0, 2})
    grid, out = make(nodes(tmp_path / "nodes")), str(tmp_path / "run")
    run = {"algorithm": "scaffold", "partition": "iid", "secure": "equal"}
    with pytest.raises(UserError, match=r"The model of round . is kept") as raised:
        play(grid, **run, out=out)
    assert "every client of the round failed" in str(raised.value)
    grid.tamper = None
    result = play(grid, **run, out=out, resume=True)
    assert [r["failures"] for r in result.history] == [[], [], []]
    run.pop("secure")
    close(result.weights, alone(**run).server.weights)


AGAIN = {"clients": 4, "sample": 4, "rounds": 2, "partition": "iid", "secure": "equal", "checkpoint_every": 2}
WITHOUT_3 = "client 3, round 1: the round was summed without it before, and is played again as it was"


def stopped(folder: Path, lost: set[int]) -> tuple[Grid, dict[str, object]]:
    """Four nodes, and a run that ended in its second round and saved nothing of its first.

    In that one the masked uploads of these clients are lost.
    """
    grid = dropping("train.masked", lost, round_number="1")(nodes(folder / "nodes", 4))
    first = grid.tamper
    grid.tamper = lambda node, reply: None if grid.sent[-1].metadata.group_id == "2" else first(node, reply)
    run = {**AGAIN, "out": str(folder / "run")}
    with pytest.raises(UserError, match="every client of the round failed"):
        play(grid, **run)
    grid.received.clear()
    grid.tamper = None
    return grid, {**run, "resume": True}


def test_a_round_that_is_played_again_is_summed_over_the_same_clients(tmp_path):
    """Though another one is there by now: the difference of the two sums would be its upload."""
    grid, run = stopped(tmp_path, {3})
    result = play(grid, **run)
    assert [r["failures"] for r in result.history] == [[WITHOUT_3], []]
    plain = dropping("train", {3}, round_number="1")(nodes(tmp_path / "plain", 4))
    expected = play(plain, **{**AGAIN, "secure": "off"})  # clients of one size
    close(result.weights, expected.weights)


@pytest.mark.parametrize("knows", ["nodes", "server", "both"])
def test_no_round_is_summed_over_others_than_before(knows, tmp_path):
    """A client is away when it is played again: the server asks for no share, and no node has one for it."""
    grid, run = stopped(tmp_path, set())
    if knows == "nodes":
        (tmp_path / "run" / sums.NOTES).unlink()
    if knows == "server":
        shutil.rmtree(tmp_path / "nodes")
    grid.tamper = lambda node, reply: None if grid.nodes[node]["client"] == 3 else reply
    with pytest.raises(
        UserError, match=r"round 1 was summed over the clients \[0, 1, 2, 3\] before, and the"
    ):
        play(grid, **run)
    answers = replies(grid, "query.unmask")
    assert len(answers) == (3 if knows == "nodes" else 0)
    assert all("before" in wire.refused(reply.content).reason for reply in answers)
    grid.tamper = None
    assert [r["failures"] for r in play(grid, **run).history] == [[], []]


@pytest.mark.parametrize("noted", [None, [0, 1, 2, 3]])
def test_a_round_that_only_its_nodes_have_noted_is_summed_as_they_did(noted, tmp_path, caplog):
    """Client 3 has come since, would help to sum it over everyone, and has no part in it."""
    grid, run = stopped(tmp_path, {3})
    sums.correct(tmp_path / "run", 1, noted)
    result = play(grid, **run)
    assert [r["failures"] for r in result.history] == [[WITHOUT_3], []]
    assert "nodes have summed round 1 over the clients 0, 1, 2 before" in caplog.text
    plain = dropping("train", {3}, round_number="1")(nodes(tmp_path / "plain", 4))
    close(result.weights, play(plain, **{**AGAIN, "secure": "off"}).weights)


@pytest.mark.parametrize("lost", [set(), {2}])
def test_a_round_that_only_its_nodes_have_noted_waits_for_who_is_away(lost, tmp_path):
    """Client 3 is, and of the others' refusals one may be lost."""
    grid, run = stopped(tmp_path, set())
    (tmp_path / "run" / sums.NOTES).unlink()
    held = {node: own["client"] for node, own in grid.nodes.items()}

    def tamper(node: int, reply: Message) -> Message | None:
        last = grid.sent[-1].metadata.message_type == "query.unmask"
        return None if held[node] == 3 or (held[node] in lost and last) else reply

    grid.tamper = tamper
    with pytest.raises(
        UserError, match=r"over the clients \[0, 1, 2, 3\] before, .* let these clients take part"
    ):
        play(grid, **run)
    assert sums.noted(tmp_path / "run", 1) == [0, 1, 2, 3]
    grid.tamper = None
    result = play(grid, **run)
    assert [r["failures"] for r in result.history] == [[], []]
    plain = Grid(nodes(tmp_path / "plain", 4))
    close(result.weights, play(plain, **{**AGAIN, "secure": "off"}).weights)


@pytest.mark.parametrize(
    ("here", "said", "other"),
    [
        (4, [[0, 1, 2]], None),  # three are left, a majority
        (4, [[0, 1, 2]] * 2, [0, 1, 2]),
        (3, [[0, 1, 2, 3]], None),
        (3, [[0, 1, 2, 3]] * 2, [0, 1, 2, 3]),
        (5, [[0, 1, 3], [0, 1, 2], [0, 1, 2]], [0, 1, 2]),
        *((4, [wrong] * 4, None) for wrong in ([2, 1, 0], [0, 0, 1, 2], [0, 1, 9], [0.5], ["0", "1", "2"])),
    ],
)
def test_nodes_that_have_summed_a_round_over_others_are_heard_if_it_can_be_summed_no_other_way(
    here, said, other
):
    played = Round(lambda *asked: {}, "run", 1, up=torch.zeros(1))
    played.arrived = dict.fromkeys(range(here), Arrival(np.zeros(1, np.uint64), 1.0))
    played.refusals = {3: Refused("it is busy")}
    played.refusals |= {client: sums.OtherSum("no", clients) for client, clients in enumerate(said)}
    assert played.other_sum({0, 1, 2, 3, 4}) == other


def test_a_round_whose_masks_did_not_come_off_is_summed_over_the_same_clients(tmp_path):
    """Nodes have noted over whom by then, and the server has, too: it asks nobody who has come since."""
    grid = dropping("train.masked", {3}, round_number="1")(nodes(tmp_path / "nodes", 4))
    first = grid.tamper

    def tamper(node: int, reply: Message) -> Message | None:
        lost = grid.nodes[node]["client"] == 2 and grid.sent[-1].metadata.message_type == "query.unmask"
        return None if lost else first(node, reply)

    grid.tamper = tamper
    run = {**AGAIN, "out": str(tmp_path / "run")}
    with pytest.raises(UserError, match=r"2 clients are left .*, 3 are needed"):
        play(grid, **run)
    grid.tamper = None
    result = play(grid, **run, resume=True)
    assert [r["failures"] for r in result.history] == [[WITHOUT_3], []]
    plain = dropping("train", {3}, round_number="1")(nodes(tmp_path / "plain", 4))
    close(result.weights, play(plain, **{**AGAIN, "secure": "off"}).weights)


@pytest.mark.parametrize(("seed", "failures"), [(3, 1), (9, 0)])
def test_what_was_noted_is_of_one_run_alone(seed, failures, tmp_path):
    """Of one that recorded nothing the same may be begun anew, or another in its folder."""
    grid = dropping("train.masked", {0, 1, 2, 3}, round_number="1")(nodes(tmp_path / "nodes", 4))
    run = {**AGAIN, "rounds": 1, "seed": 3, "out": str(tmp_path / "run")}
    with pytest.raises(UserError, match="every client of the round failed"):
        play(grid, **run)
    sums.settle(tmp_path / "run", 1, [0, 1, 2])
    grid.tamper = None
    assert len(play(grid, **{**run, "seed": seed}).history[0]["failures"]) == failures


def test_nodes_note_over_whom_a_round_was_summed(tmp_path):
    play(Grid(nodes(tmp_path, 4)), **{**AGAIN, "checkpoint_every": 1})
    noted = [path.read_text() for path in tmp_path.glob(f"*/client-*/{sums.NOTES}")]
    lines = [json.dumps({"round": number, "clients": [0, 1, 2, 3]}) + "\n" for number in (1, 2)]
    assert noted == ["".join(lines)] * 4


def test_a_note_of_a_sum_is_a_line_that_is_added(tmp_path, monkeypatch):
    """However many rounds there are before it; earlier versions wrote all of them anew."""
    files.write_json(tmp_path / "sums.json", {"1": [0, 1, 2], "2": [0, 2, 3]})
    monkeypatch.setattr(files, "write", None)
    for number, clients in ((2, [0, 2, 3]), (3, [1, 2, 3]), (30, [4, 5, 6])):
        for _ in range(2):
            sums.settle(tmp_path, number, clients)
    path = tmp_path / sums.NOTES
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [3, 30]
    path.write_bytes(path.read_bytes()[:-4])  # the process was killed while it wrote
    assert sums.noted(tmp_path, 30) is None
    sums.settle(tmp_path, 31, [7, 8, 9])
    assert [sums.noted(tmp_path, number) for number in (1, 2, 3, 30, 31)] == [
        [0, 1, 2], [0, 2, 3], [1, 2, 3], None, [7, 8, 9]
    ]  # fmt: skip
    for number in (1, 3, 31):
        with pytest.raises(Malformed, match=f"round {number} was summed over the clients"):
            sums.settle(tmp_path, number, [0, 1, 9])
    monkeypatch.undo()
    held = path.read_bytes()
    for damaged in (b"{}\n", b"[\n", b"3\n"):
        path.write_bytes(held + damaged)
        with pytest.raises(UserError, match=r"sums\.jsonl is damaged: bring the file back"):
            sums.noted(tmp_path, 4)
    path.write_bytes(held)
    sums.correct(tmp_path, 3, None)
    sums.correct(tmp_path, 2, [0, 1, 2])  # which is in the earlier versions' file
    assert [sums.noted(tmp_path, number) for number in (2, 3, 31)] == [[0, 1, 2], None, [7, 8, 9]]
    sums.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_everyone_is_told_how_many_are_needed(tmp_path):
    grid = dropping("query.unmask", {0, 2}, round_number="1")(nodes(tmp_path))
    with pytest.raises(UserError, match=r"client \d, round 1: 1 clients are left .*, 2 are needed"):
        play(grid, rounds=1, secure="examples")


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "query.unmask"])
def test_of_three_none_may_drop_out_before_the_sum(kind, tmp_path):
    """The two that are left would know each other's upload from the mean."""
    with pytest.raises(UserError, match=r"2 clients are left .*, 3 are needed"):
        play(dropping(kind, {1}, round_number="1")(nodes(tmp_path)), rounds=1, secure="examples")


def test_of_three_one_may_drop_out_after_its_upload(tmp_path):
    grid = dropping("query.unmask", {1}, round_number="1")(nodes(tmp_path / "secure"))
    result = play(grid, rounds=1, secure="examples")
    close(result.weights, play(Grid(nodes(tmp_path / "plain")), rounds=1).weights)


@pytest.mark.parametrize("left", [1, 2])
def test_a_node_refuses_to_unmask_a_sum_of_fewer_than_three(left):
    """Whatever the server says of who is there."""
    circle = Circle(3)
    for c in circle.clients:
        circle.mask(c, circle.task(c))
    present = circle.clients[:left]
    with pytest.raises(Malformed, match=f"of 3 members only {left} are present"):
        member.reveal(circle.states[present[0]], circle.unmasking(present[0], present))


# What is not what was declared.


def refuse(reason: str):
    def tamper(message: Message) -> Message:
        return Message(wire.pack(wire.Refusal(reason)), reply_to=test_nodes._question(message))

    return tamper


def error(message: Message) -> Message:
    return Message(Error(2, "boom"), reply_to=test_nodes._question(message))


def bare(message: Message) -> Message:
    del message.content["arrays"]
    return message


def beside(message: Message) -> Message:
    message.content["arrays"] = wire.pack_arrays({"x": torch.zeros(3)})
    return message


def shorter(name: str):
    def tamper(message: Message) -> Message:
        return value(**{name: list(message.content["values"][name])[:-1]})(message)

    return tamper


P256 = ec.generate_private_key(ec.SECP256R1()).public_key()
P256 = P256.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
BIAS = "up/weights/params/out.bias"


def with_bad(name: str, text: bytes):
    def tamper(message: Message) -> Message:
        return value(**{name: [text, *list(message.content["values"][name])[1:]]})(message)

    return tamper


def one_key(message: Message) -> Message:
    return value(sealing=message.content["values"]["masking"])(message)


def with_a_blank(message: Message) -> Message:
    """The same key, written otherwise."""
    return value(sealing=message.content["values"]["sealing"] + b"\n")(message)


MALFORMED = {
    "one key for both": ("query.keys", one_key, "its two public keys are the same"),
    "a key written otherwise": ("query.keys", with_a_blank, "not written as it should be"),
    "a short parcel": ("query.shares", with_bad("parcels", b"x"), "sealed shares of 1 bytes, not 248"),
    "a short digest": ("query.shares", with_bad("key_digests", b"x"), "a digest of 1 bytes, not 32"),
    "no key": ("query.keys", value(masking=None), "lacks 'masking'"),
    "a text for a key": ("query.keys", value(masking="x"), "'masking' is 'x', which is not bytes"),
    "no PEM": ("query.keys", value(sealing=b"no key"), "a public key cannot be read"),
    "another curve": ("query.keys", value(sealing=P256), "a public key is not on the curve P-384"),
    "keys of another": ("query.keys", value(client=0), "is of client 0"),
    "keys of another round": ("query.keys", value(round=1), "round 1"),
    "keys and arrays": ("query.keys", beside, "undeclared arrays"),
    "keys and more": ("query.keys", value(more=1), "undeclared 'more'"),
    "refused keys": ("query.keys", refuse("out of entropy"), "out of entropy"),
    "missing parcel": ("query.shares", shorter("parcels"), "2 shares for 3 others"),
    "missing digest": ("query.shares", shorter("key_digests"), "two digests for each of 4 members"),
    "parcels of another": ("query.shares", value(client=3), "is of client 3"),
    "parcels of another round": ("query.shares", value(round=3), "round 3"),
    "parcels and arrays": ("query.shares", beside, "undeclared arrays"),
    "an error": ("query.shares", error, "boom"),
    "no upload": ("train.masked", bare, "lacks"),
    "upload of another": ("train.masked", value(client=0), "is of client 0"),
    "wrong shape": ("train.masked", changed(BIAS, lambda t: t[:-1].clone()), f"'{BIAS}' has shape [2]"),
    "wrong type": ("train.masked", changed(BIAS, lambda t: t.view(torch.int64)), "declared is torch.uint64"),
    "in the clear": (
        "train.masked",
        changed(BIAS, lambda t: torch.zeros(t.shape, dtype=torch.float64)),
        "torch.float64, declared is torch.uint64",
    ),
    "without loss": ("train.masked", test_nodes.without("loss"), "lacks 'loss'"),
    "with a plain loss": ("train.masked", value(loss=1.0), "undeclared 'loss'"),
    "refused upload": ("train.masked", refuse("the loss became nan"), "the loss became nan"),
}  # fmt: skip


@pytest.mark.no_cover  # others cover it, and in a long loop that is what takes longest
@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_reply_leaves_its_client_out(case, tmp_path):
    kind, change, said = MALFORMED[case]
    run = {"clients": 4, "sample": 4, "rounds": 2}
    result = play(dropping(kind, {1}, change)(nodes(tmp_path / "s", 4)), **run, secure="examples")
    assert result.history[0]["failures"] == []
    (failure,) = result.history[1]["failures"]
    assert failure.startswith("client 1, round 2: ")
    assert said in failure
    expected = play(dropping("train", {1})(nodes(tmp_path / "p", 4)), **run)
    close(result.weights, expected.weights)


@pytest.mark.parametrize("name", ["sealing", "masking"])
def test_clients_with_the_same_key_are_left_out(name, tmp_path):
    """Which of them made it so cannot be told, and the others would not go on with either."""
    run = {"clients": 5, "sample": 5, "rounds": 2, "partition": "iid"}
    seen: list[bytes] = []

    def same(message: Message) -> Message:
        seen.append(message.content["values"]["masking"])
        return message if len(seen) == 1 else value(**{name: seen[0]})(message)

    result = play(dropping("query.keys", {1, 3}, same)(nodes(tmp_path / "s", 5)), **run, secure="examples")
    said = "clients 1, 3 sent the same public key"
    assert [sorted(r["failures"]) for r in result.history] == [
        [],
        [f"client {c}, round 2: {said}" for c in (1, 3)],
    ]
    expected = play(dropping("train", {1, 3})(nodes(tmp_path / "p", 5)), **run)
    close(result.weights, expected.weights)


def test_shares_that_nobody_can_open_stop_the_run_and_name_their_sender(tmp_path, caplog):
    """They have the right length, so the server cannot tell."""
    run = {"clients": 4, "sample": 4, "rounds": 2}
    made = value(parcels=[b"x" * masks.sealed_size(masks.parcel_size())] * 3)
    with pytest.raises(UserError, match=r"1 clients are left .* A run without a folder"):
        play(dropping("query.shares", {1}, made)(nodes(tmp_path, 4)), **run, secure="examples")
    for client in (0, 2, 3):
        assert (
            f"client {client}, round 2: what should be client 1's shares for it was not made" in caplog.text
        )


def swapped(message: Message) -> Message:
    """Shares that were made, but are not those that were asked for."""
    return value(shares=list(message.content["values"]["shares"])[::-1])(message)


UNMASKED = {
    "missing share": (shorter("shares"), "its reply has 3 shares of 4 members"),
    "another's": (value(client=0), "is of client 0"),
    "another round's": (value(round=1), "round 1"),
    "refused": (refuse("the disk is full"), "the disk is full"),
}


@pytest.mark.parametrize("case", UNMASKED)
def test_a_malformed_last_reply_is_done_without(case, tmp_path, caplog):
    change, said = UNMASKED[case]
    run = {"clients": 4, "sample": 4, "rounds": 2}
    grid = dropping("query.unmask", {1}, change)(nodes(tmp_path / "s", 4))
    result = play(grid, **run, secure="examples")
    assert [r["failures"] for r in result.history] == [[], []]
    assert f"client 1, taking off the masks of round 2: {said}" in caplog.text or said in caplog.text
    close(result.weights, alone(**run).server.weights)


def test_a_share_that_was_not_made_is_told_by_its_digest(tmp_path):
    """One of four lies: the other three are enough. Two of four: nothing can be put together."""
    run = {"clients": 4, "sample": 4, "rounds": 2}
    result = play(dropping("query.unmask", {1}, swapped)(nodes(tmp_path / "one", 4)), **run, secure="equal")
    close(result.weights, alone(**run).server.weights)
    assert [r["failures"] for r in result.history] == [[], []]
    with pytest.raises(UserError, match=r"of client \d's secret 2 shares are right, 3 are needed"):
        play(dropping("query.unmask", {1, 2}, swapped)(nodes(tmp_path / "two", 4)), **run, secure="equal")


def test_an_upload_that_is_changed_on_its_way_stops_the_run(tmp_path):
    """Whatever is not what the client masked leaves numbers that no upload has."""

    def other(message: Message) -> Message:
        return changed(BIAS, lambda t: torch.from_numpy(t.numpy() ^ np.uint64(2**63)))(message)

    with pytest.raises(UserError, match="the masks do not come off the sum"):
        play(dropping("train.masked", {1}, other)(nodes(tmp_path)), secure="examples")


# What a node refuses.


def test_members_reveal_one_kind_of_share_each_and_that_once():
    circle = Circle(4)
    secrets = {c: circle.secrets(c) for c in circle.clients}
    for c in circle.clients:
        circle.mask(c, circle.task(c))
    present = [0, 10, 30]
    revealed = {c: member.reveal(circle.states[c], circle.unmasking(c, present)) for c in present}
    for place, owner in enumerate(circle.clients):
        found = masks.joined([revealed[c].shares[place] for c in present], 4)
        assert found == secrets[owner][0 if owner in present else 1]
        digests = circle.parcels[owner]
        made = digests.seed_digests if owner in present else digests.key_digests
        for holder in present:
            assert masks.digest(revealed[holder].shares[place]) == made[circle.clients.index(holder)]
    for again in (present, circle.clients, [0, 10, 20]):  # nor the other kind when asked once more
        with pytest.raises(Malformed, match="not at this step"):
            member.reveal(circle.states[0], circle.unmasking(0, again))


class Late(Grid):
    """Keeps what each question was answered from, as a SuperNode does if its ClientApp is killed then."""

    def __init__(self, *given):
        super().__init__(*given)
        self.questions: list[tuple[int, Message, RecordDict]] = []

    def answer(self, node: int, message: Message) -> Message:
        self.questions.append((node, message, RecordDict({**self.states.get(node, {})})))
        return super().answer(node, message)

    def once_more(self, number: int) -> RecordDict:
        node, message, self.states[node] = self.questions[number]
        return super().answer(node, message).content


def test_nothing_is_answered_twice_though_the_process_that_answers_is_killed(tmp_path):
    """Its answer has left by then. Other members, another task, others present: each would undo a mask."""
    grid = Late(nodes(tmp_path))
    play(grid, rounds=1, secure="equal")
    kinds = [message.metadata.message_type for _, message, _ in grid.questions]
    for number, kind in enumerate(kinds):
        refused = wire.refused(grid.once_more(number))
        if kind in KINDS[1:]:
            assert refused.reason == "it has answered at this step of secure aggregation before"
        else:
            assert refused is None
    assert {kinds.count(kind) for kind in KINDS} == {3}


def test_marks_of_what_was_answered_from_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrecall.flower.node.ANSWERED", 4)
    play(Grid(nodes(tmp_path)), rounds=3, secure="equal", algorithm="scaffold")
    for folder in tmp_path.glob("*/client-*"):
        names = [p.name.partition("-")[0] for p in folder.iterdir()]
        assert (names.count("answered"), names.count("round"), len(names)) == (
            4,
            2,
            7,
        )  # and the notes of sums
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_a_server_that_says_different_things_to_different_members_gets_no_secret(count):
    """It tells half of them that one is there and the others that it is not, to get its seed and its key."""
    circle = Circle(count)
    for c in circle.clients:
        circle.mask(c, circle.task(c))
    target, *others = circle.clients
    got = {True: 0, False: 0}
    for number, c in enumerate([target, *others]):
        there = number % 2 == 0
        asked = circle.unmasking(c, circle.clients if there else others)
        with contextlib.suppress(Malformed):
            member.reveal(circle.states[c], asked)
            got[there] += 1
    assert min(got.values()) < masks.threshold(count)


@pytest.mark.parametrize(
    ("present", "said"),
    [
        ([10, 20, 30], "itself among them"),
        ([0, 10], "of 4 members only 2 are present"),
        ([0, 10, 10], "in order"),
        ([0, 20, 10], "in order"),
        ([0, 10, 50], "are not members"),
        ([], "itself among them"),
    ],
)
def test_members_reveal_nothing_to_an_odd_question(present, said):
    circle = Circle(4)
    circle.mask(0, circle.task(0))
    with pytest.raises(Malformed, match=said):
        member.reveal(circle.states[0], circle.unmasking(0, present))
    assert not circle.states[0]  # nor to another one after it


def test_shares_of_another_round_session_sender_or_receiver_are_not_taken():
    wrong = {
        "the same round, other keys": lambda circle: Circle(4).parcel(10, 0),
        "another round": lambda circle: Circle(4, round_number=4).parcel(10, 0),
        "for another member": lambda circle: circle.parcel(10, 20),
        "of another member": lambda circle: circle.parcel(20, 0),
        "its own, sent back": lambda circle: circle.parcel(0, 10),
        "nothing": lambda circle: b"",
    }
    for parcel in wrong.values():
        circle = Circle(4)
        task = circle.task(0)
        with pytest.raises(Malformed, match="client 10's shares for it was not made for it now"):
            circle.mask(0, task._replace(parcels=[parcel(circle), *task.parcels[1:]]))
        assert not circle.states[0]


def test_shares_of_another_length_are_not_taken():
    circle = Circle(4)
    sender, public = circle.states[10][member.STATE], circle.keys[0].sealing
    sealed = masks.seal(b"too short", sender["sealing"], public, sender["session"], 10, 0)
    task = circle.task(0)
    with pytest.raises(Malformed, match="client 10's shares are 9 bytes long, not 120"):
        circle.mask(0, task._replace(parcels=[sealed, *task.parcels[1:]]))


@pytest.mark.parametrize("size", [0, 9, 15, 16, 120, 200])
def test_the_length_of_what_is_sealed_is_known(size):
    (a, _), (_, b_public) = masks.key_pair(), masks.key_pair()
    assert len(masks.seal(bytes(size), a, b_public, b"s", 1, 2)) == masks.sealed_size(size)


def test_what_is_sealed_is_bound_to_session_sender_and_receiver():
    (a, a_public), (b, b_public) = masks.key_pair(), masks.key_pair()
    sealed = masks.seal(b"x" * 5, a, b_public, b"s", 1, 2)
    assert masks.unseal(sealed, b, a_public, b"s", 1, 2) == b"x" * 5
    for session, sender, receiver in ((b"t", 1, 2), (b"s", 2, 1), (b"s", 1, 3), (b"s", 3, 2)):
        with pytest.raises(Malformed):
            masks.unseal(sealed, b, a_public, session, sender, receiver)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"others": [10, 20, 40]}, "others than the members"),
        ({"others": [10, 30, 20]}, "not in order"),
        ({"others": [0, 10, 20]}, "others than the members"),
        ({"others": [10, 10, 20]}, "not in order"),
        ({"others": [10, 20]}, "of 2 others there are 3 shares"),
        ({"others": [10], "parcels": [b""]}, "of 4 members only 2 have sent shares"),
        ({"share": 0.0}, "share of 0.0"),
        ({"share": -0.5}, "share of -0.5"),
        ({"share": 1.5}, "share of 1.5"),
    ],
)
def test_members_mask_nothing_for_an_odd_task(change, said):
    circle = Circle(4)
    with pytest.raises(Malformed, match=said):
        circle.mask(0, circle.task(0)._replace(**change))
    assert not circle.states[0]


def test_members_check_who_the_members_are():
    for change, said in (
        (lambda m: m._replace(clients=m.clients[::-1]), "not in order"),
        (lambda m: m._replace(clients=[0, 10, 10, 30]), "twice"),
        (lambda m: m._replace(masking=m.masking[:-1]), "two public keys"),
        (lambda m: m._replace(sealing=[*m.sealing[:-1], m.sealing[0]]), "twice"),
        (lambda m: m._replace(sealing=m.masking, masking=m.sealing), "its own public keys are not among"),
        (lambda m: m._replace(clients=[0, 20, 30, 40]), "its own public keys are not among"),
        (
            lambda m: m._replace(clients=[0, 10], sealing=m.sealing[:2], masking=m.masking[:2]),
            "2 members are too few for secure aggregation: 3 are needed",
        ),
        (lambda m: m._replace(sealing=[b"x", *m.sealing[1:]]), "a public key cannot be read"),
    ):
        circle = Circle(4)
        state = RecordDict()
        circle.keys[10] = member.offer(state, Call(RUN, 3, 10))
        with pytest.raises(Malformed, match=said):
            member.share(state, change(circle.members(10)))
        assert not state


def test_steps_are_taken_in_order_in_one_run_and_round():
    circle = Circle(3)
    state = circle.states[0]
    with pytest.raises(Malformed, match="not at this step"):  # the shares are made already
        member.share(state, circle.members(0))
    circle = Circle(3)
    with pytest.raises(Malformed, match="not at this step"):  # nothing was masked yet
        member.reveal(circle.states[0], circle.unmasking(0, [0, 10, 20]))
    circle = Circle(3)
    circle.mask(0, circle.task(0))
    with pytest.raises(Malformed, match="not at this step"):  # a second upload under the same masks
        circle.mask(0, circle.task(0), value=2.0)
    for run, number in ((RUN[::-1], 3), (RUN, 4)):
        circle = Circle(3)
        circle.mask(0, circle.task(0))
        with pytest.raises(Malformed, match=f"not at this step of secure aggregation in round {number}"):
            member.reveal(circle.states[0], Unmasking(run, number, 0, [0, 10, 20]))


def test_a_node_may_insist_on_it(tmp_path):
    grid = Grid(nodes(tmp_path, secure=True))
    with pytest.raises(UserError, match="lets it train with secure aggregation only"):
        play(grid, rounds=1)
    assert play(grid, rounds=1, secure="examples").history[0]["failures"] == []
    assert Node.of({"client": 0, "data": "digits"}).secure is False


# The arithmetic.


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_sum_is_that_of_those_who_are_there(data):
    """Whoever is lost, at whatever step, if enough are left; otherwise nothing comes of it."""
    count = data.draw(st.integers(3, 7))
    clients = [10 * k for k in range(count)]
    steps = data.draw(st.lists(st.sampled_from([*KINDS, "", "", ""]), min_size=count, max_size=count))
    lost = {kind: {c for c, step in zip(clients, steps, strict=True) if step == kind} for kind in KINDS}
    stream = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    uploads = {
        c: torch.from_numpy(stream.normal(size=(2, 3)) * 10.0 ** stream.integers(-3, 6)) for c in clients
    }
    weights = {c: int(stream.integers(1, 1000)) for c in clients}
    server = Server(lost, uploads)
    left = [count - sum(len(lost[k]) for k in KINDS[: n + 1]) for n in range(len(KINDS))]
    needed = [3, *[left[0] // 2 + 1] * 3]
    there = [c for c in clients if not any(c in lost[k] for k in KINDS[:3])]
    if short := [(have, need) for have, need in zip(left, needed, strict=True) if have < need]:
        said = "{} clients are left for secure aggregation, {} are needed".format(*short[0])
        with pytest.raises(Malformed, match=said):
            server.play(weights)
        return
    mean = server.play(weights)
    total = sum(weights[c] for c in there)
    expected = sum(uploads[c] * (weights[c] / total) for c in there)
    # Rounding: half of 2^-40 for each client, over what those who are there count of those who were asked.
    asked = sum(weights[c] for c in clients if not any(c in lost[k] for k in KINDS[:2]))
    bound = count * 2.0 ** -(BITS + 1) * asked / total + 1e-15 * float(expected.abs().max())
    assert float((mean.up["w"] - expected).abs().max()) <= bound
    assert mean.loss == pytest.approx(np.mean(there), abs=1e-9)
    assert set(mean.seconds) == set(there)
    assert set(server.round.failures) == set(clients) - set(there)


@pytest.mark.parametrize("kind", ["own_mask", "pair_mask"])
def test_with_one_mask_left_on_there_is_no_sum(kind, monkeypatch):
    """All shares but one client's, or one pair's: the sum is as random as before."""
    uploads = {10 * k: torch.zeros(300) for k in range(4)}
    server = Server({"train.masked": {20}}, uploads)
    real, seen = getattr(masks, kind), []

    def without(*given):
        mask = real(*given)
        if server.round.arrived:  # now it is the server that asks for masks, to take them off
            seen.append(mask)
            return mask * 0 if len(seen) == 1 else mask
        return mask

    monkeypatch.setattr(masks, kind, without)
    with pytest.raises(Malformed, match="the masks do not come off"):
        server.play(dict.fromkeys(uploads, 1))
    assert len(seen) == 3
    assert stats.kstest(seen[0] / 2.0**64, "uniform").pvalue > 1e-4


def test_a_key_that_is_not_the_clients_own_is_not_used(monkeypatch):
    """Client 20 shares another private key than it showed (here no number of the curve), and is lost."""
    real = masks.shares
    server = Server({"train.masked": {20}}, {10 * k: torch.zeros(3) for k in range(4)})

    def shares(secret: bytes, members: int) -> list[bytes]:
        own = server.said[-1][1] == 10 and server.said[-1][0] == "query.shares"  # it is 20's turn
        return real(bytes(48) if own and len(secret) == 48 else secret, members)

    monkeypatch.setattr(masks, "shares", shares)
    with pytest.raises(Malformed, match="the key that client 20 shared is not its own"):
        server.play(dict.fromkeys(server.visits, 1))


def test_masks_of_a_pair_cancel_and_nobody_elses_do():
    (a, a_public), (b, b_public), (_, c_public) = (masks.key_pair() for _ in range(3))
    one = masks.pair_mask(a, b_public, b"s", 1, 2, 50)
    two = masks.pair_mask(b, a_public, b"s", 2, 1, 50)
    assert not (one + two).any()
    assert one.any()
    for other in (
        masks.pair_mask(a, c_public, b"s", 1, 2, 50),
        masks.pair_mask(a, b_public, b"t", 1, 2, 50),
        masks.pair_mask(a, b_public, b"s", 1, 3, 50),
    ):
        assert (other != one).all()
    assert (masks.own_mask(b"x", b"s", 1, 50) != masks.own_mask(b"x", b"t", 1, 50)).all()
    assert (masks.own_mask(b"x", b"s", 1, 50) != masks.own_mask(b"x", b"s", 2, 50)).all()


def test_a_session_is_of_one_run_and_round_and_of_these_members_keys():
    given = ("run", 3, [1, 2], [b"a", b"b"], [b"c", b"d"])
    others = ("ruin", 4, [1, 3], [b"a", b"e"], [b"c", b"e"])
    found = {masks.bind(*given)}
    for place, other in enumerate(others):
        found.add(masks.bind(*given[:place], other, *given[place + 1 :]))
    assert len(found) == 1 + len(given)


def test_a_mask_is_the_key_stream_of_chacha20():
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter are zero."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert masks._stream(bytes(32), 4).tobytes().hex() == expected


@pytest.mark.parametrize("members", [3, 4, 5, 10])
def test_a_majority_of_shares_makes_the_secret_and_no_fewer(members):
    secret = bytes(range(48))
    made = masks.shares(secret, members)
    needed = masks.threshold(members)
    assert {len(s) for s in made} == {masks.share_size(48)}
    for start in range(members):
        some = [made[(start + k) % members] for k in range(needed)]
        assert masks.joined(some, members) == secret
        with contextlib.suppress(ValueError):
            assert masks.joined(some[:-1], members) != secret
    assert needed > members / 2


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(-LIMIT, LIMIT, exclude_min=True, exclude_max=True), min_size=1, max_size=20),
    weight=st.floats(1e-6, 1),
)
def test_numbers_are_rounded_to_the_nearest_step(values, weight):
    tree = {"b": torch.tensor(values, dtype=torch.float64), "a": torch.tensor(3)}
    back = masks.real(tree, masks.flat(masks.fixed(tree, weight)))
    for name, t in tree.items():
        error = (back[name] - t.double() * weight).abs()
        assert float((error - 1e-15 * t.double().abs()).max()) <= 2.0 ** -(BITS + 1)


def test_the_largest_numbers_of_all_clients_together_do_not_overflow():
    tree = {"w": torch.tensor([np.nextafter(LIMIT, 0), -np.nextafter(LIMIT, 0)])}
    for count in (3, 7, 1000):
        part = masks.flat(masks.fixed(tree, 1 / count))
        total = part.copy()
        for _ in range(count - 1):
            total += part
        back = masks.real(tree, total)["w"]
        torch.testing.assert_close(back, tree["w"], rtol=1e-12, atol=0)


@pytest.mark.parametrize("number", [LIMIT, -LIMIT, 1e300, math.inf, -math.inf, math.nan])
def test_numbers_that_do_not_fit_are_refused(number):
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(UserError, match="not smaller than 4,194,304"):
            masks.fixed({"w": torch.tensor([0.0, number], dtype=dtype)}, 0.1)


def test_a_client_whose_upload_does_not_fit_says_so(tmp_path):
    """A learning rate at which the network's numbers are finite and large."""
    with pytest.raises(UserError, match=r"has a number that is not smaller than 4,194,304"):
        play(Grid(nodes(tmp_path)), model="mlp:4", secure="examples", **{"training.lr": 1e8})


def test_the_order_of_names_does_not_matter():
    a = {"x": torch.tensor([1, 2]), "y": {"b": torch.tensor(3), "a": torch.tensor([[4], [5]])}}
    b = {"y": {"a": a["y"]["a"], "b": a["y"]["b"]}, "x": a["x"]}
    assert masks.flat(a).tolist() == masks.flat(b).tolist() == [1, 2, 4, 5, 3]
    assert trees.arrays(masks.shaped(b, masks.flat(a).view(np.int64))).keys() == trees.arrays(b).keys()
    for name, t in trees.leaves(masks.shaped(a, masks.flat(b).view(np.int64))):
        assert torch.equal(t, trees.arrays(a)[name])


# What it is refused for.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"algorithm": "fednova", "secure": "examples"},
            "cannot aggregate fednova, .* it can: fedavg, .*fedssd",
        ),
        ({"algorithm": "scaffold", "secure": "examples"}, "'examples' cannot aggregate scaffold"),
        ({"algorithm": "sfedkd", "secure": "equal"}, "'equal' cannot aggregate sfedkd, .* scaffold, feddyn"),
        ({"algorithm": "private:fedavg,noise=0", "secure": "equal"}, "cannot aggregate private"),
        ({"algorithm": "private:fedavg,noise=0,clip=1e9", "secure": "equal"}, "cannot aggregate private"),
        ({"chains": 2, "secure": "equal"}, "let every client be a chain with chains = 4"),
        ({"algorithm": "fedseq", "secure": "examples"}, "let every client be a chain with chains = 4"),
        ({"sample": 2, "secure": "equal"}, "needs at least 3 clients a round, not 2"),
        ({"secure": "yes"}, "secure = 'yes' is not"),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(UserError, match=message):
        hosting.read({"clients": 4, "sample": 4, **given})


def test_parallel_chains_of_one_client_are_not_refused():
    hosting.read({"clients": 4, "sample": 4, "chains": 4, "algorithm": "fedseq", "secure": "examples"})


def test_nobody_trains_where_too_few_have_sent_shares(tmp_path):
    """Three of nine are no majority: the members would refuse, after they had been sent the model."""
    grid = dropping("query.shares", {0, 1, 2, 3, 4, 5}, round_number="1")(nodes(tmp_path, 9))
    run = {"clients": 9, "sample": 9, "rounds": 1, "partition": "iid", "secure": "examples"}
    with pytest.raises(UserError, match="every client of the round failed"):
        play(grid, **run)
    assert not [m for m in grid.sent if m.metadata.message_type == "train.masked"]
