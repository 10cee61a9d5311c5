"""What travels between server and nodes: named arrays and a few declared values, nothing else.

Every message has a record of values, whose names and types are those of a named tuple below, and
perhaps a tree's named arrays. Whoever receives one refuses what is missing and what is not declared.

The arrays are one safetensors text in one of Flower's arrays. Flower makes each array several
objects and carries every object from server to node in half a dozen HTTP requests, one after
another, so that a record with an entry for each array of a network is many times slower.
"""

import json
import math
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedrecall import files, trees
from fedrecall.data.store import pixels
from fedrecall.errors import Malformed, printable

FORMAT = "safetensors"
LONGEST_REASON = 500
LARGEST = 2**53
"""Up to which a whole number is one of floating point, too."""
UNKNOWN = -1
"""The number of a node whose owner has given it none that can be read."""
LONGEST_VISIT = 10**8
"""Seconds; three years."""


class Code(NamedTuple):
    """What the server runs, for a node to compare with what it runs itself."""

    fedrecall: str
    """The version."""
    python: str
    modules: list[str]
    """Those of somebody's own that the run names, and those that these take names from."""
    digests: list[str]
    """Of their sources."""


class Question(NamedTuple):
    """Sent to ask a node who it is."""

    config: str
    """The run's config as JSON."""
    code: str
    """A `Code` as JSON."""


class Announcement(NamedTuple):
    """What a node says of itself: all that the server learns of its data besides the uploads."""

    client: int
    """The number that its owner gave it."""
    examples: int
    test_examples: int
    shape: list[int]
    """Of one example."""
    classes: list[str]
    """Names of the classes, in the order of their numbers."""
    mean: list[float]
    """Of the training images' channels, a table's columns or other numbers; none if the run's normalisation
    is not of the data."""
    std: list[float]
    columns: list[str]
    """What a table's columns are called, in their order; none of images."""
    standardised: bool
    """Whether a table's columns have been moved and scaled when they were read."""
    version: str
    """Of fedrecall."""
    floats: bool
    """Whether examples are any numbers, not pixels."""

    @property
    def pixels(self) -> bool:
        """Whether examples are an image's pixels."""
        return pixels(self.shape, self.floats)


class Data(NamedTuple):
    """How nodes are to read their examples, so that they mean the same everywhere."""

    classes: list[str]
    mean: list[float]
    std: list[float]


class Task(NamedTuple):
    """Sent with a Down to ask for a visit, with the weights alone to ask for an evaluation."""

    config: str
    data: str
    """A `Data` as JSON."""
    run: str
    """Under what name the node keeps its memories."""
    round: int
    client: int
    remembered: int
    """The round of the client's last visit that the server has; 0 before the first."""
    keep: int
    """The round of the older of the two checkpoints that the server may go back to; 0 is the start."""
    code: str
    """A `Code` as JSON."""
    announced: str
    """A digest of the `Announcement` that the server goes by."""
    start: int
    """Which start of the run it is, by its time: what was asked last is of the last start, and round."""
    saved: int
    """The round of the newer one."""


class Report(NamedTuple):
    """Sent with an Up."""

    round: int
    client: int
    examples: int
    loss: float
    seconds: float


class Tested(NamedTuple):
    """What came of an evaluation: counts and a mean, of the node's own test examples."""

    round: int
    client: int
    confusion: list[int]
    """[C x C], true class by predicted class, row by row."""
    loss: float
    """0 where it is not finite."""
    finite: bool
    """Whether it is."""
    own: list[int]
    """As ``confusion``, of the client's own model; none where clients keep no layers to themselves, or where
    this one's are lost."""


class Call(NamedTuple):
    """Sent first in a round of secure aggregation, to ask for public keys."""

    run: str
    round: int
    client: int


class Keys(NamedTuple):
    """The answer: public keys as PEM, new in every round."""

    round: int
    client: int
    sealing: bytes
    """To seal shares for the client."""
    masking: bytes
    """To agree with the client on a mask."""


class Members(NamedTuple):
    """Sent second, to ask for shares of the node's secrets."""

    run: str
    round: int
    client: int
    clients: list[int]
    """Everyone who sent keys, by number."""
    sealing: list[bytes]
    masking: list[bytes]


class Parcels(NamedTuple):
    """The answer."""

    round: int
    client: int
    parcels: list[bytes]
    """For every other member its two shares, which it alone can read."""
    seed_digests: list[bytes]
    """Of the shares of the own mask's seed, for every member."""
    key_digests: list[bytes]
    """Of the shares of the private masking key."""


class MaskedTask(NamedTuple):
    """Sent third, with a Down, to ask for a visit whose upload is masked."""

    task: str
    """A `Task` as JSON."""
    share: float
    """What the client counts in the mean; all shares are one together."""
    others: list[int]
    """The other members whose shares arrived."""
    parcels: list[bytes]
    """What they sealed for this node."""


class MaskedReport(NamedTuple):
    """Sent with a masked Up and loss."""

    round: int
    client: int
    seconds: float


class Masked(NamedTuple):
    """What is masked together and only ever read as a mean."""

    up: Any
    loss: Any


class Unmasking(NamedTuple):
    """Sent last, to ask for shares: of the seeds of those who are present, of the keys of the others."""

    run: str
    round: int
    client: int
    present: list[int]
    """Everyone whose masked upload arrived."""


class Revealed(NamedTuple):
    """The answer."""

    round: int
    client: int
    shares: list[bytes]
    """One of every member whose shares the node holds, by number."""


class Refusal(NamedTuple):
    """Sent by a node that did not do what it was asked."""

    reason: str
    client: int = UNKNOWN
    summed: list[int] | None = None
    """Over whom it has helped to sum the round, where it refuses to sum it over others."""


Value = TypeVar("Value", int, str, list[Any])
Values = TypeVar("Values", bound=tuple[Any, ...])


def pack(values: Any, tree: Any = None) -> RecordDict:
    """A message's content: the values, and the tree's tensors as named arrays, perhaps packed already."""
    said = {name: value for name, value in values._asdict().items() if value is not None}
    content = RecordDict({"values": ConfigRecord(said)})
    if tree is not None:
        content["arrays"] = tree if isinstance(tree, ArrayRecord) else pack_arrays(tree)
    return content


def pack_arrays(tree: Any) -> ArrayRecord:
    """The tree's tensors as a record, for more messages than one."""
    text = files.packed(trees.arrays(tree))
    return ArrayRecord({FORMAT: Array("uint8", (len(text),), FORMAT, text)})


def unpack(content: RecordDict, kind: type[Values], what: str) -> tuple[Values, dict[str, Tensor]]:
    """The values and the arrays of a message, or `Malformed`; what the arrays should be is not looked at."""
    if extra := sorted(set(content) - {"values", "arrays"}):
        raise Malformed(f"{what} has an undeclared record {extra[0]!r}")
    record, arrays = content.get("values"), content.get("arrays")
    if not isinstance(record, ConfigRecord):
        raise Malformed(f"{what} has no values")
    if arrays is None:
        return values(record, kind, what), {}
    if not isinstance(arrays, ArrayRecord) or list(arrays) != [FORMAT] or arrays[FORMAT].stype != FORMAT:
        raise Malformed(f"{what} does not hold its arrays as {FORMAT}")
    try:
        return values(record, kind, what), load(arrays[FORMAT].data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed(f"{what} does not hold named arrays: {tidy(str(error))}") from error


def refused(content: RecordDict) -> Refusal | None:
    """The refusal, if a reply is one."""
    record = content.get("values")
    if len(content) != 1 or not isinstance(record, ConfigRecord):
        return None
    if not {"reason"} <= set(record) <= set(Refusal._fields):  # earlier versions say the reason alone
        return None
    summed = said(content, "summed", []) or None
    return Refusal(tidy(str(record["reason"])), said(content, "client", UNKNOWN), summed)


def said(content: RecordDict, name: str, otherwise: Value) -> Value:
    """A value in a message of perhaps another version; ``otherwise``, if it has none of that type."""
    record = content.get("values")
    found: Any = record.get(name) if isinstance(record, ConfigRecord) else None
    return found if type(found) is type(otherwise) else otherwise


def tidy(reason: str) -> str:
    """Somebody else's text, fit for a line of ours."""
    looked_at = reason[: 4 * LONGEST_REASON]  # of what may be megabytes
    line = printable(" ".join(looked_at.split()))
    whole = len(looked_at) == len(reason) and len(line) <= LONGEST_REASON
    return line if whole else line[:LONGEST_REASON] + " ..."


def check_seconds(said: float) -> None:
    """Raise `Malformed` if nobody can have trained for so long."""
    if not 0 <= said <= LONGEST_VISIT:
        raise Malformed(f"it says it trained for {said:g} seconds")


def values(record: Mapping[str, Any], kind: type[Values], what: str) -> Values:
    """The named tuple in a mapping from outside, each name there and each type right, or `Malformed`."""
    hints = typing.get_type_hints(kind)
    if missing := sorted(hints.keys() - record.keys()):
        raise Malformed(f"{what} lacks {missing[0]!r}")
    if extra := sorted(record.keys() - hints.keys()):
        raise Malformed(f"{what} has an undeclared {extra[0]!r}")
    for name, hint in hints.items():
        if not _is(record[name], hint):
            raise Malformed(f"{what}: {name!r} is {tidy(repr(record[name]))}, which is not {_said(hint)}")
    return kind(**record)  # a NamedTuple's fields are its arguments


def digest(given: Any) -> str:
    """What tells a named tuple from another."""
    return files.checksum(as_json(given).encode())


def as_json(given: Any) -> str:
    """A named tuple or mapping as one line."""
    return json.dumps(given._asdict() if hasattr(given, "_asdict") else given, separators=(",", ":"))


def from_json(text: str, what: str) -> dict[str, Any]:
    """The mapping in a JSON text, or `Malformed`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{what} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise Malformed(f"{what} is not a mapping")
    return found


def _is(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is list:
        inner = typing.get_args(hint)[0]
        return isinstance(value, list) and all(_is(item, inner) for item in value)
    if hint is float:
        return abs(value) <= LARGEST if type(value) is int else type(value) is float and math.isfinite(value)
    return type(value) is hint


def _said(hint: Any) -> str:
    plain = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "text",
        bytes: "bytes",
    }
    if typing.get_origin(hint) is list:
        return f"a list, each {plain[typing.get_args(hint)[0]]}"
    return plain[hint]
