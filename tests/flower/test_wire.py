"""What comes from outside is what was declared, or refused."""

from typing import NamedTuple

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedrecall.errors import Malformed
from fedrecall.flower import wire
from fedrecall.flower.wire import Refusal


class Said(NamedTuple):
    number: int
    share: float
    name: str
    whether: bool
    parts: list[int]


GOOD = {"number": 3, "share": 0.5, "name": "x", "whether": True, "parts": [1, 2]}


@pytest.mark.parametrize(
    "other",
    [{}, {"share": 1}, {"share": -(2**53)}, {"parts": []}, {"number": 10**30}],
    ids=str,
)
def test_what_is_declared_is_taken(other):
    assert wire.values(GOOD | other, Said, "it") == Said(**GOOD | other)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"number": True}, "'number' is True, which is not a whole number"),
        ({"number": 3.0}, "'number' is 3.0, which is not a whole number"),
        ({"share": 2**53 + 1}, "'share' is 9007199254740993, which is not a finite number"),
        ({"share": 10**400}, "'share' is 10{400}, which is not a finite number"),
        ({"share": float("inf")}, "'share' is inf, which is not a finite number"),
        ({"share": float("nan")}, "'share' is nan, which is not a finite number"),
        ({"share": True}, "'share' is True, which is not a finite number"),
        ({"share": "0.5"}, "'share' is '0.5', which is not a finite number"),
        ({"name": b"x"}, "'name' is b'x', which is not text"),
        ({"whether": 1}, "'whether' is 1, which is not true or false"),
        ({"parts": [1, True]}, r"'parts' is \[1, True\], which is not a list, each a whole number"),
        ({"parts": 1}, "'parts' is 1, which is not a list"),
        ({"more": 1}, "it has an undeclared 'more'"),
    ],
    ids=str,
)
def test_what_is_not_is_refused(other, said):
    with pytest.raises(Malformed, match=said):
        wire.values(GOOD | other, Said, "it")


def test_what_is_missing_is_named():
    for name in GOOD:
        with pytest.raises(Malformed, match=f"it lacks '{name}'"):
            wire.values({k: v for k, v in GOOD.items() if k != name}, Said, "it")


@pytest.mark.parametrize(
    ("record", "refusal"),
    [
        ({"reason": "no", "client": 3}, Refusal("no", 3)),
        ({"reason": "no"}, Refusal("no")),  # as earlier versions say it
        ({"reason": "no", "client": "3"}, Refusal("no")),
        ({"reason": "no", "client": True}, Refusal("no")),
        ({"reason": "no", "client": 3, "summed": [0, 1, 2]}, Refusal("no", 3, [0, 1, 2])),
        ({"reason": "no", "client": 3, "summed": 2}, Refusal("no", 3)),
        ({"reason": " one\n  two\x1b[2J"}, Refusal("one two\N{REPLACEMENT CHARACTER}[2J")),
        ({"reason": "no", "loss": 0.5}, None),
        ({"client": 3}, None),
    ],
    ids=str,
)
def test_a_refusal_is_a_reason_and_nothing_else(record, refusal):
    content = RecordDict({"values": ConfigRecord(record)})
    assert wire.refused(content) == refusal
    content["arrays"] = ArrayRecord()
    assert wire.refused(content) is None


def test_a_reason_is_as_long_as_a_line():
    assert wire.tidy("x" * 500) == "x" * 500
    assert wire.tidy("x" * 501) == "x" * 500 + " ..."
    assert wire.tidy("x " * 10) == " ".join("x" * 10)
    assert wire.tidy("x" + " " * 5000 + "y") == "x ..."  # who knows what else is there


@pytest.mark.parametrize("seconds", [0.0, 1, 10.0**8])
def test_a_visit_may_be_as_long_as_a_visit(seconds):
    wire.check_seconds(seconds)


@pytest.mark.parametrize("seconds", [-0.1, 10.0**8 + 1])
def test_a_visit_is_not_of_another_time(seconds):
    with pytest.raises(Malformed, match="says it trained for"):
        wire.check_seconds(seconds)


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "3", "[" * 100_000, '{"a": 1'])
def test_a_text_that_is_no_mapping_is_refused(text):
    with pytest.raises(Malformed, match="the config is not"):
        wire.from_json(text, "the config")
    assert wire.from_json('{"a": [1, null]}', "the config") == {"a": [1, None]}


def test_arrays_are_one_text_of_their_own_kind():
    good = wire.pack(Said(**GOOD), (torch.arange(3),))
    found, arrays = wire.unpack(good, Said, "it")
    assert found == Said(**GOOD)
    assert [a.tolist() for a in arrays.values()] == [[0, 1, 2]]
    text = good["arrays"][wire.FORMAT].data
    for name, stype in ((wire.FORMAT, "numpy.ndarray"), ("other", wire.FORMAT)):
        good["arrays"] = ArrayRecord({name: Array("uint8", (len(text),), stype, text)})
        with pytest.raises(Malformed, match="does not hold its arrays as safetensors"):
            wire.unpack(good, Said, "it")
    good["arrays"] = ArrayRecord({wire.FORMAT: Array("uint8", (9,), wire.FORMAT, text[:9])})
    with pytest.raises(Malformed, match="does not hold named arrays"):
        wire.unpack(good, Said, "it")
    good["more"] = ConfigRecord()
    with pytest.raises(Malformed, match="it has an undeclared record 'more'"):
        wire.unpack(good, Said, "it")
