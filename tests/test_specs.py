"""Names and values from outside become checked instances, or one sentence that helps."""

import contextlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, NewType, Protocol, TypedDict, TypeVar

import numpy as np
import pytest
import torch

from fedrecall import specs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.config import Config
from fedrecall.data.partitions import PARTITIONS
from fedrecall.errors import UserError
from fedrecall.fields import fields
from fedrecall.measures import MEASURES
from fedrecall.specs import Range, Registry


@dataclass(frozen=True)
class Base:
    """A thing."""

    share: Annotated[float, Range(0, 1)] = 0.5
    """A share.

    More about it.
    """
    count: Annotated[int | None, Range(1)] = None
    """How many."""


@dataclass(frozen=True)
class Thing(Base):
    mode: Literal["a", "b"] = "a"
    """Which way."""
    on: bool = False
    names: tuple[str, ...] = ()
    """Some names."""


@dataclass(frozen=True)
class Needy:
    must: int


REGISTRY = Registry("thing", {"thing": f"{__name__}:Thing", "needy": f"{__name__}:Needy"})


def test_fields_carry_type_range_default_and_docstring_also_inherited_ones():
    share, count, mode, on, _names = fields(Thing)
    assert (share.name, share.default, share.range) == ("share", 0.5, Range(0, 1))
    assert share.doc.startswith("A share.")
    assert count.doc == "How many."
    assert mode.allowed == "one of a, b"
    assert on.doc == ""


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("thing", Thing()),
        ("thing:0.25", Thing(share=0.25)),
        ("thing:0.25,3,mode=b", Thing(0.25, 3, "b")),
        ("thing:on=yes,count=none", Thing(on=True)),
        ("thing:names=x+y", Thing(names=("x", "y"))),
        ({"name": "thing", "share": 1, "names": ["p"]}, Thing(share=1.0, names=("p",))),
    ],
)
def test_a_spec_becomes_an_instance_and_back(spec, expected):
    made = REGISTRY.make(spec)
    assert made == expected
    assert REGISTRY.make(REGISTRY.spec(made)) == made


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("thign", "did you mean 'thing'?"),
        ("zzz", "known: needy, thing."),
        ("thing:2", "share = '2' must be in [0, 1]"),
        ("thing:x", "share = 'x' is not a number"),
        ("thing:nan", "share = 'nan' is not a number"),
        ("thing:count=1.5", "count = '1.5' is not a whole number or none"),
        ("thing:count=0", "count = '0' must be >= 1"),
        ("thing:mode=c", "one of a, b"),
        ("thing:shar=1", "has no 'shar'; did you mean 'share'?"),
        ("thing:mode=a,0.5", "comes after a key=value"),
        ("thing:0.5,share=0.7", "'thing:0.5,share=0.7' says share twice"),
        ("thing:1,1,a,no,x,y", "takes at most 5 values"),
        ("needy", "needs 'must'"),
        ({"share": 1}, "needs a 'name'"),
        (7, "a name, a mapping or a dataclass is wanted, not 7"),
        ("no_such_package_xyz:Thing", "there is no module"),
        ("thingy:0.1", "unknown thing 'thingy', nor is there a module of that name; did you mean 'thing'"),
        ("Thing:0.1", "unknown thing 'Thing', nor is there a module of that name; did you mean 'thing'"),
        (f"{__name__}:test_fields_carry", "has no dataclass"),
        (f"{__name__}:Unlistd", "has no dataclass 'Unlistd'; did you mean 'Unlisted'?"),
        ("nowhere.py:Thing", "there is no file"),
        ("__main__:Mine", "made in a notebook or a script, which alone can go on with it"),
    ],
)
def test_a_wrong_spec_ends_in_a_sentence_that_names_what_would_do(spec, said):
    with pytest.raises(UserError) as caught:
        REGISTRY.make(spec)
    assert said in str(caught.value)


@dataclass(frozen=True)
class Unlisted(Thing):
    far: float = 2.0


@pytest.mark.parametrize("thing", [Thing(share=0.25, names=("x",)), Unlisted(far=3.0), Needy(must=3)])
def test_an_instance_is_its_own_spec(thing):
    assert REGISTRY.make(thing) == thing
    assert REGISTRY.make(REGISTRY.spec(thing)) == thing


def test_a_class_stands_for_its_defaults():
    assert REGISTRY.make(Unlisted) == Unlisted()
    with pytest.raises(UserError, match="needs 'must'"):
        REGISTRY.make(Needy)


def test_an_instance_is_checked_as_its_text_is():
    with pytest.raises(UserError, match="share = 7 must be in"):
        REGISTRY.make(Thing(share=7))


def test_a_class_that_its_name_does_not_find_is_refused(monkeypatch):
    @dataclass(frozen=True)
    class Inner(Thing):
        """Within a function."""

    with pytest.raises(UserError, match=r"made within a function.*at the top of its file"):
        REGISTRY.make(Inner())
    before = Unlisted(far=5.0)
    monkeypatch.setattr(sys.modules[__name__], "Unlisted", type("Unlisted", (Thing,), {}))
    with pytest.raises(UserError, match="is not the class that was given any more"):
        REGISTRY.make(before)


@dataclass(frozen=True)
class Kinds:
    """One field of each kind."""

    any_of: str | float | int | None = None
    number: float = 1.0
    whole: int = 1
    level: Literal[1, 2] = 1
    on: bool | None = None
    made: int = field(default=7, init=False)


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("any_of", "3", 3),
        ("any_of", "0.5", 0.5),
        ("any_of", "x", "x"),
        ("any_of", "none", "none"),
        ("any_of", 3.0, 3.0),
        ("any_of", None, None),
        ("number", "2", 2.0),
        ("number", 2, 2.0),
        ("whole", 2.0, 2),
        ("whole", str(2**63 - 1), 2**63 - 1),
        ("level", "2", 2),
        *[("on", word, True) for word in ("true", "True", "YES", "on", "1", True)],
        *[("on", word, False) for word in ("false", "False", "no", "Off", "0", False)],
        *[("on", word, None) for word in ("none", "None", "null", None)],
    ],
)
def test_a_value_becomes_the_narrowest_that_its_field_takes(key, given, expected):
    found = getattr(specs.build(Kinds, {key: given}, "kinds"), key)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("key", "given", "allowed"),
    [
        ("number", math.inf, "a number"),
        ("number", "-inf", "a number"),
        ("number", math.nan, "a number"),
        ("number", True, "a number"),
        ("whole", 2.5, "a whole number"),
        ("whole", 2**63, "a whole number"),
        ("whole", False, "a whole number"),
        ("whole", "2.0", "a whole number"),
        ("level", 3, "one of 1, 2"),
        ("on", 1, "true or false or none"),
        ("any_of", [], "text or a number or a whole number or none"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_what_the_field_takes(key, given, allowed):
    with pytest.raises(UserError) as caught:
        specs.build(Kinds, {key: given}, "kinds")
    assert str(caught.value) == f"kinds: {key} = {given!r} is not {allowed}."


def test_what_a_class_makes_of_itself_is_no_setting():
    assert [f.name for f in fields(Kinds)] == ["any_of", "number", "whole", "level", "on"]
    with pytest.raises(UserError, match="kinds has no 'made'"):
        specs.build(Kinds, {"made": 8}, "kinds")


@dataclass(frozen=True)
class Retold(Base):
    count: int | None = None
    """How many, told anew."""


def test_what_a_class_says_of_a_field_goes_before_what_its_base_says():
    share, count = fields(Retold)
    assert share.doc.startswith("A share.")
    assert count.doc == "How many, told anew."


class Constant(Thing):
    KIND: ClassVar[str] = "constant"


class Undecorated(Thing):
    more: int = 3


def test_a_class_without_its_decorator_may_have_constants_but_no_settings():
    assert REGISTRY.make(f"{__name__}:Constant").KIND == "constant"
    with pytest.raises(UserError, match=r"its more would be no settings: write @dataclass"):
        REGISTRY.make(f"{__name__}:Undecorated")


class Initialised(Thing):
    def __init__(self, mu=0.5, **others):
        super().__init__(**others)
        self.mu = mu


class Counted(Thing):
    def __init__(self, count=2, **others):
        super().__init__(count=count, **others)


class Bare(FedAvg):
    mu: float = 0.5


class Told(FedAvg):
    def __init__(self, mu=0.5):
        self.mu = mu


class ToldMore(Told):
    pass


def test_what_an_init_takes_is_no_setting_unless_it_is_a_field():
    for kind in (Told, ToldMore):
        name, said = (
            f"{__name__}:{kind.__name__}",
            r"its mu would be no settings: make them fields.*mu: float = 1",
        )
        for give in (
            lambda kind=kind: kind(0.3),
            lambda name=name: ALGORITHMS.make(f"{name}:0.3"),
            lambda name=name: ALGORITHMS.make({"name": name, "mu": 0.3}),
        ):
            with pytest.raises(UserError, match=said):
                give()
        with pytest.raises(UserError, match="has no 'nu'; it has no settings"):
            ALGORITHMS.make(f"{name}:nu=0.3")
        specs._tell_init.cache_clear()
        with pytest.warns(RuntimeWarning, match=said):
            assert ALGORITHMS.make(name).mu == 0.5  # a constant, as it ever was
    with pytest.raises(UserError, match=r"Initialised: its mu = 0\.3 is no setting.*make it a field"):
        REGISTRY.make(Initialised(0.3))
    assert REGISTRY.make(Counted(3, share=0.1)).count == 3


@dataclass(frozen=True)
class Once(FedAvg):
    mu: float = 0.5
    by: InitVar[float] = 2.0

    def __post_init__(self, by: float) -> None:
        object.__setattr__(self, "scale", by * self.mu)


@pytest.mark.parametrize(
    "make", [lambda: Once(0.5, 3.0), lambda: Once(by=3.0), lambda: ALGORITHMS.make(f"{__name__}:Once:by=3")]
)
def test_what_only_a_post_init_is_given_is_no_setting(make):
    with pytest.raises(UserError, match="class Once: its by would be no settings: make them fields"):
        make()
    specs._tell_init.cache_clear()
    with pytest.warns(RuntimeWarning, match="class Once: its by would be no settings"):
        assert ALGORITHMS.make(Once(0.25)).scale == 0.5


@pytest.mark.parametrize("made", [lambda: Bare(mu=0.3), lambda: Bare(0.3), Bare])
def test_an_instance_of_a_class_without_its_decorator_is_refused_when_it_is_made(made):
    with pytest.raises(UserError, match=r"class Bare: its mu would be no settings: .*@dataclass"):
        made()


@dataclass(frozen=True)
class Doubled(FedAvg):
    mu: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", 2 * self.mu)


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(Enum):
    HERE = (0, 0)
    THERE = (0, 1)


@dataclass(frozen=True)
class Clipped(FedAvg):
    mu: float = 0.5
    side: Side = Side.LEFT
    more: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", min(self.mu, 1.0))
        object.__setattr__(self, "_drawn", object())
        object.__setattr__(self, "_noted", {})

    @cached_property
    def half(self) -> float:
        return self.mu / 2


@dataclass(frozen=True)
class Weighted(FedAvg):
    weights: tuple[float, ...] = (1.0,)
    sides: tuple[Side, ...] = ()
    born: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(w / sum(self.weights) for w in self.weights))
        object.__setattr__(self, "born", time.monotonic_ns())
        object.__setattr__(self, "tag", id(self))


@dataclass(frozen=True)
class Written(FedAvg):
    mu: float = 0.5

    def __init__(self, mu: float = 0.5, table: Any = None) -> None:
        object.__setattr__(self, "mu", mu)


def test_what_is_made_anew_each_time_or_rounded_is_no_lost_setting():
    stream = np.random.default_rng(0)
    for _ in range(20):
        given = Weighted(tuple(stream.random(3).tolist()), (Side.LEFT, Side.RIGHT))
        spec = Config(
            algorithm={"name": f"{__name__}:Weighted", **{k: getattr(given, k) for k in ("weights", "sides")}}
        ).algorithm
        assert spec["weights"] == pytest.approx(given.weights)
        assert json.loads(json.dumps(spec))["sides"] == ["left", "right"]
    with pytest.raises(UserError, match="class Written: its table would be no settings"):
        Written(0.3, table=torch.ones(2))
    with pytest.warns(RuntimeWarning, match="class Written: its table would be no settings"):
        assert ALGORITHMS.make(Written(0.3)).mu == 0.3


CLOCK = ["08:00"]


@dataclass(frozen=True)
class Noting(FedAvg):
    mu: float = 0.5
    calls = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", CLOCK[0])

    def note(self) -> None:
        object.__setattr__(self, "calls", self.calls + 1)


class Hooks(FedAvg):
    mu = 0.5


def test_an_instance_is_the_one_that_is_made_of_its_settings():
    for given in (Doubled(0.3), f"{__name__}:Doubled:0.3"):  # whatever asks for it makes it anew
        with pytest.raises(UserError, match=r"made again of its settings it has mu = 1\.2, not 0\.6: let it"):
            Config(algorithm=given)
    given = Clipped(np.float32(3), Side.RIGHT, [1, ["a", None], {"b": 0.5}])
    assert given.half == 0.5
    given._noted[0] = torch.ones(2)
    spec = Config(algorithm=given).algorithm
    assert ALGORITHMS.make(json.loads(json.dumps(spec))) == given
    noting = Noting(2.0)
    noting.note()
    CLOCK[0] = "08:01"
    assert ALGORITHMS.make(noting) == noting
    plain = Hooks()
    plain.seen = 7  # as a method may note it
    assert ALGORITHMS.make(plain) == Hooks()
    plain.mu = 3
    with pytest.raises(UserError, match="Hooks: its mu = 3 is no setting"):
        ALGORITHMS.make(plain)


@pytest.mark.parametrize("value", [torch.ones(2), np.ones(2), np.int64(3), len, {1, 2}, Path("x")])
def test_a_setting_that_no_file_could_hold_is_refused_before_a_run(value):
    name = f"{__name__}:Clipped"
    for given in (Clipped(more=value), {"name": name, "more": value}):
        with pytest.raises(
            UserError, match=r"Clipped: more = .* cannot be written down: give numbers, texts"
        ):
            Config(algorithm=given)


Value = TypeVar("Value")


class Held(TypedDict):
    rate: float


Rate = NewType("Rate", float)


@dataclass(frozen=True)
class Mapped(FedAvg):
    """Mappings of every kind."""

    rates: Mapping[str, Annotated[float, Range(0)]] = field(default_factory=dict)
    numbered: dict[int, float] = field(default_factory=dict)
    sides: dict[Side, tuple[int, ...]] | None = None
    within: dict[str, dict[int, bool]] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    usual: dict[str, Rate] = field(default_factory=lambda: {"a": 0.5, "b": 1.0})
    free: dict = field(default_factory=dict)
    some: Sequence[float] = ()
    several: list = field(default_factory=list)
    pair: tuple = ()
    places: tuple[int, float] = (3, 0.5)
    level: Level | None = None
    levels: dict[Level, float] = field(default_factory=dict)
    places_of: tuple[Place, ...] = ()
    last: Final[float] = 1.0
    whole: int = 0
    any_of: Any = None


MAPPED = f"{__name__}:Mapped"


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("rates", {"fc1.weight": 0.5, "": 1.0}),
        ("numbered", {1: 10.0, -3: 0.25}),
        ("sides", {Side.LEFT: (1, 2), Side.RIGHT: ()}),
        ("within", {"a": {0: True, 7: False}, "b": {}}),
        ("held", {"a": {"rate": 0.5}}),
        ("free", {"a": {"b": [1, "x"]}}),
        ("some", (0.5, 2.0)),
        ("several", [0.5, {"a": 1}]),
        ("pair", (1, "x")),
        ("places", (1, 2.0)),
        ("level", Level.HIGH),
        ("levels", {Level.LOW: 0.5, Level.HIGH: 1.0}),
        ("places_of", (Place.HERE, Place.THERE)),
        ("any_of", [None, {"a": [True, "x"]}, math.inf]),
    ],
)
def test_lists_and_mappings_are_what_they_were_when_a_file_gives_them_back(key, given):
    made = ALGORITHMS.make(Mapped(**{key: given}))
    assert getattr(made, key) == given
    read = json.loads(json.dumps(ALGORITHMS.spec(made)))
    assert getattr(ALGORITHMS.make(read), key) == given
    assert ALGORITHMS.spec(ALGORITHMS.make(read)) == ALGORITHMS.spec(made)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"free": {1: 1.0}},
            "{1: 1.0} would be {'1': 1.0} in the run: write its type as free: dict[int, float].",
        ),
        ({"several": [{None: 1}]}, "several = [{None: 1}] cannot be written down: give"),
        ({"free": {"a": (1.0, 2.0)}}, "its type as free: dict[str, tuple[float, ...]]."),
        ({"pair": (1, ("a", None))}, "its type as pair: tuple[int, tuple[str, None]]."),
        ({"any_of": (1.0, (2, 3.0))}, "its type as any_of: tuple[float, tuple[int, float]]."),
        ({"any_of": ()}, "any_of = () would be [] in the run: write its type as any_of: tuple."),
        ({"any_of": [1, {}, [(None,)]]}, "its type as any_of: list[int | dict | list[tuple[None, ...]]]."),
        ({"any_of": Side.LEFT}, "would be 'left' in the run: write its type as any_of: Side."),
        ({"any_of": {Side.LEFT: [Level.LOW]}}, "its type as any_of: dict[Side, list[Level]]."),
        ({"any_of": Level.LOW}, "would be 1 in the run: write its type as any_of: Level."),
        ({"any_of": {"a": math.nan}}, "any_of = {'a': nan} cannot be written down: give"),
    ],
)
def test_what_a_file_would_change_is_refused_before_a_run(given, said):
    for make in (
        lambda: Config(algorithm={"name": MAPPED, **given}),
        lambda: ALGORITHMS.make(Mapped(**given)),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert said in str(caught.value)


@dataclass(frozen=True)
class Converted(FedAvg):
    side: Any = "left"
    sizes: Any = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "side", Side(self.side))
        object.__setattr__(self, "sizes", (self.sizes,) if isinstance(self.sizes, int) else tuple(self.sizes))


def test_what_a_class_makes_of_what_a_file_gives_back_needs_no_type():
    for given in (Converted(), Converted("right", 4), Converted(Side.RIGHT, [1, 2])):
        assert ALGORITHMS.make(given) == given
        assert ALGORITHMS.make(json.loads(json.dumps(ALGORITHMS.spec(given)))) == given


def test_a_member_of_an_enum_that_is_a_number_too_is_not_taken_for_one():
    with pytest.raises(UserError, match="would be 1 in the run: write its type as whole: Level"):
        ALGORITHMS.make(Mapped(whole=Level.LOW))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rates": {"fc1": "fast"}}, "rates = {'fc1': 'fast'} is not a mapping from text to a number >= 0."),
        ({"rates": {"fc1": -1}}, "rates = {'fc1': -1} is not a mapping from text to a number >= 0."),
        ({"rates": {1: 0.5}}, "rates = {1: 0.5} is not a mapping from text to"),
        ({"rates": [0.5]}, "rates = [0.5] is not a mapping"),
        ({"rates": "{fc1: 1}"}, """>= 0, written as rates.KEY=VALUE or {"KEY": VALUE}."""),
        ({"numbered": {1: 0.5, "1": 0.5}}, "is not a mapping from a whole number to a number."),
        ({"within": {"a": {0: "x"}}}, "to a mapping from a whole number to true or false."),
        ({"free": "x"}, "free = 'x' is not a mapping, written as"),
        ({"some": "0.1,0.2"}, "some = '0.1,0.2' is not a list of a number, written as 0.1+0.2."),
        ({"several": 3}, "several = 3 is not a list."),
        ({"places": (0.5, 3)}, "places = (0.5, 3) is not a list of a whole number and a number."),
        ({"places": (1,)}, "places = (1,) is not a list of a whole number and a number."),
        ({"places": "1,2"}, "is not a list of a whole number and a number, written as 1+0.2."),
        (
            {"sides": {"up": [1]}},
            "is not a mapping from one of left, right to a list of a whole number or none.",
        ),
    ],
)
def test_what_a_mapping_holds_is_checked_as_any_value_is(given, said):
    with pytest.raises(UserError) as caught:
        ALGORITHMS.make({"name": MAPPED, **given})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "held"),
    [
        ("rates.fc1.weight=0.25,rates.0.bias=1", "rates", {"fc1.weight": 0.25, "0.bias": 1.0}),
        ('rates={"fc1.weight": 0.25, "a=b": 1}', "rates", {"fc1.weight": 0.25, "a=b": 1.0}),
        ("rates={}", "rates", {}),
        ("numbered.1=0.5,numbered.-2=3", "numbered", {1: 0.5, -2: 3.0}),
        ("sides.left=1+2", "sides", {Side.LEFT: (1, 2)}),
        ("usual.b=2,usual.c=3", "usual", {"a": 0.5, "b": 2.0, "c": 3.0}),
        ("some=0.5+2", "some", (0.5, 2.0)),
        ("some=[0.5, 2]", "some", (0.5, 2.0)),
        ("several=0.5+b", "several", ["0.5", "b"]),
        ("places=1+2", "places", (1, 2.0)),
        ("level=2", "level", Level.HIGH),
        ("last=2", "last", 2.0),
    ],
)
def test_lists_and_mappings_can_be_written_in_a_spec(text, key, held):
    assert getattr(ALGORITHMS.make(f"{MAPPED}:{text}"), key) == held


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, ""),
        ({"rates": {"fc1.weight": 0.25, "0.bias": 1.0}}, ":rates.fc1.weight=0.25,rates.0.bias=1"),
        ({"rates": {"a=b,c": 1.0}}, ':rates={"a=b,c": 1.0}'),
        ({"numbered": {1: 10.0}}, ":numbered.1=10"),
        ({"usual": {"a": 0.5, "b": 2.0}}, ":usual.b=2"),
        ({"usual": {"a": 0.5}}, ':usual={"a": 0.5}'),
        ({"usual": {}}, ":usual={}"),
        ({"rates": {"name": 0.5}}, ":rates.name=0.5"),
        ({"within": {"a": {0: True}}, "free": {"b": 1}}, ':within={"a": {"0": true}},free={"b": 1}'),
        ({"sides": {Side.LEFT: (1, 2)}}, ":sides.left=1+2"),
    ],
)
def test_a_spec_names_the_entries_that_are_not_the_defaults_and_is_read_so(given, text):
    made = ALGORITHMS.make(Mapped(**given))
    assert specs.spec_text(ALGORITHMS, ALGORITHMS.spec(made)) == f"{MAPPED}{text}"
    assert specs.short_text(ALGORITHMS, ALGORITHMS.spec(made)) == f"{MAPPED}{text}"
    assert ALGORITHMS.make(f"{MAPPED}{text}") == made


class Acts(Protocol):
    def __call__(self, x: torch.Tensor, /) -> torch.Tensor: ...


@dataclass(frozen=True)
class Frozen(FedAvg, Generic[Value]):
    names: frozenset[str] | None = None
    act: Callable[[torch.Tensor], torch.Tensor] | None = None
    acts: Acts | None = None
    of: Value | None = None
    weights: torch.Tensor | None = None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": frozenset({"a"})}, "names = frozenset({'a'}) cannot be written down: give numbers"),
        ({"act": torch.relu}, "cannot be written down: give numbers"),
        ({"acts": torch.relu}, "cannot be written down: give numbers"),
        ({"of": torch.relu}, "cannot be written down: give numbers"),
        ({"weights": torch.ones(2)}, "cannot be written down: give numbers"),
        (
            {"weights": [1.0]},
            "= [1.0] is not Tensor or none, which cannot be written down: write its type as",
        ),
    ],
)
def test_a_type_that_no_setting_can_have_is_said_to_be_none(given, said):
    for make in (lambda: Config(algorithm=Frozen(**given)), lambda: ALGORITHMS.make(Frozen(**given))):
        with pytest.raises(UserError) as caught:
            make()
        assert said in str(caught.value)
    assert ALGORITHMS.make(Frozen(of=[0.5])).of == [0.5]


@dataclass(frozen=True)
class Strict:
    low: int = 0

    def __post_init__(self) -> None:
        if self.low > 3:
            raise ValueError("low is high.")


def test_what_a_class_refuses_by_itself_is_a_users_error_too():
    with pytest.raises(UserError, match=r"^strict: low is high\.$"):
        specs.build(Strict, {"low": 4}, "strict")


@dataclass(frozen=True)
class Holder:
    inner: Any = None
    """A thing within."""
    share: float = 0.5
    flags: tuple[bool, ...] = ()


HOLDERS = Registry("holder", {"holder": f"{__name__}:Holder", **REGISTRY.entries})


@pytest.mark.parametrize(
    ("spec", "text", "short"),
    [
        ({"name": "holder"}, "holder", "holder"),
        ({"name": "thing"}, "thing:0.5", "thing"),
        ({"name": "thing", "share": 0.5, "on": True}, "thing:0.5,on=true", "thing:0.5,on=true"),
        ({"name": "holder", "share": 0.25}, "holder:share=0.25", "holder:share=0.25"),
        ({"name": "holder", "flags": [True, False]}, "holder:flags=true+false", "holder:flags=true+false"),
        ({"name": "holder", "inner": {"name": "thing"}}, "holder:thing", "holder:thing"),
        (
            {"name": "holder", "inner": {"name": "thing", "share": 0.25, "count": 3}},
            "holder:(thing:0.25,count=3)",
            "holder:(thing:0.25,count=3)",
        ),
        ({"name": "elsewhere.py:Gone", "x": 1}, "elsewhere.py:Gone", "elsewhere.py:Gone"),
    ],
)
def test_a_spec_as_text_says_what_differs_from_the_default(spec, text, short):
    assert specs.spec_text(HOLDERS, spec) == text
    assert specs.short_text(HOLDERS, spec) == short


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("holder:(thing:0.25,count=3),share=0.5", "thing:0.25,count=3"),
        ("holder: ( thing ) ,share=0.5", " thing "),
        ("holder:share=0.5, inner=(holder:(thing:1,on=true),share=1)", "holder:(thing:1,on=true),share=1"),
        ("holder:inner=/a (1)/b,share=0.5", "/a (1)/b"),  # a path is no spec
        ("holder:(1)/b,share=0.5", "(1)/b"),
    ],
)
def test_a_spec_within_a_spec_is_in_brackets(text, inner):
    assert HOLDERS.make(text) == Holder(inner, 0.5)


def test_a_spec_as_text_is_read_as_what_it_says():
    within = {"name": "thing", "share": 0.25, "count": 3}
    text = specs.spec_text(HOLDERS, {"name": "holder", "inner": within, "share": 0.75})
    made = HOLDERS.make(text)
    assert (HOLDERS.make(made.inner), made.share) == (HOLDERS.make(within), 0.75)


def test_a_bracket_that_is_not_closed_is_said_so():
    with pytest.raises(UserError, match=r"the bracket of '\(thing:0.25,on=true' is not closed\.$"):
        HOLDERS.make("holder:share=1,inner=(thing:0.25,on=true")


@pytest.mark.parametrize(
    ("limit", "inside", "outside", "words"),
    [
        (Range(0, open_low=True), 0.1, 0, "> 0"),
        (Range(0), 0, -1, ">= 0"),
        (Range(high=2, open_high=True), 1, 2, "< 2"),
        (Range(0, 1, open_high=True), 0, 1, "in [0, 1)"),
        (Range(0, 1, open_low=True), 1, 0, "in (0, 1]"),
        (Range(high=2), 2, 3, "<= 2"),
    ],
)
def test_a_range_knows_its_ends(limit, inside, outside, words):
    assert inside in limit
    assert outside not in limit
    assert str(limit) == words


def test_a_class_that_is_none_of_the_kind_is_said_so(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom fedrecall.specs import Range\n"
        "@dataclass(frozen=True)\nclass Other:\n    x: int = 1\n"
        "@dataclass(frozen=True)\nclass Derived(Range):\n    x: int = 1\n"
    )
    registry = Registry("thing", {}, base="fedrecall.specs:Range")
    assert registry.make(f"{file}:Derived").x == 1
    with pytest.raises(
        UserError, match=r"thing .*mine\.py:Other does not derive from fedrecall\.specs\.Range"
    ):
        registry.make(f"{file}:Other")


def test_numbers_that_differ_are_written_differently():
    for value, written in ((0.1, "0.1"), (1.0, "1"), (1e-05, "1e-05"), (1e-05 + 1e-12, "1.0000001e-05")):
        assert specs.word(value) == written
        assert float(specs.word(value)) == value
    assert specs.word([0.5, 1 / 3]) == "0.5+0.3333333333333333"


CHECKED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from fedrecall import FedAvg
if TYPE_CHECKING:
    from collections.abc import Sequence

@dataclass(frozen=True)
class Mine(FedAvg):
    mus: Sequence[float] = (1.0,)
"""


def test_a_type_that_is_imported_for_type_checkers_alone_is_asked_for(tmp_path):
    (tmp_path / "mine.py").write_text(CHECKED)
    with pytest.raises(UserError, match=r"class Mine: a type of its fields names 'Sequence'.*import"):
        ALGORITHMS.make(f"{tmp_path}/mine.py:Mine")


MISSPELT = """
from dataclasses import dataclass
from fedrecall import FedAvg

@dataclass(frozen=True)
class Base(FedAvg):
    sequental = True
    auxilary_per_class: int = 5

@dataclass(frozen=True)
class Slips(Base):
    def agregate(self, server, ups, cohort):
        return server

@dataclass(frozen=True)
class Helpers(FedAvg):
    delay: float = 1.0

    def start(self, weights):
        return super().start(weights)

    def starts(self):
        return self.losses

    @property
    def losses(self):
        return []
"""


def test_a_hook_that_is_nearly_one_is_told_once(tmp_path):
    """It would be FedAvg that is trained, without a word."""
    (tmp_path / "slips.py").write_text(MISSPELT)
    with pytest.warns(RuntimeWarning) as told:
        ALGORITHMS.make(f"{tmp_path}/slips.py:Slips")
    said = [str(w.message) for w in told]
    meant = {"agregate": "aggregate", "auxilary_per_class": "auxiliary_per_class", "sequental": "sequential"}
    assert said == [
        f"algorithm Slips has {name!r}, which nobody asks it for: did you mean {hook!r}?"
        for name, hook in meant.items()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ALGORITHMS.make(f"{tmp_path}/slips.py:Slips")
        ALGORITHMS.make(f"{tmp_path}/slips.py:Helpers")
        for name in ALGORITHMS:
            ALGORITHMS.make(name)


UNUSED = """
from dataclasses import dataclass
from fedrecall import FedAvg
from fedrecall.algorithms.fedprox import FedProx

@dataclass(frozen=True)
class Elsewhere(FedAvg):
    gamma: float = 1.0
    def server_aggregate(self, weights): return weights
    def train(self, model): return model

@dataclass(frozen=True)
class Same(FedProx):
    def __repr__(self): return "same"

@dataclass(frozen=True)
class Stronger(FedProx):
    mu: float = 1.0

class Strongest(FedProx):
    def __init__(self): super().__init__(mu=9.0)

@dataclass(frozen=True)
class Checked(FedProx):
    def __post_init__(self): assert self.mu < 1

@dataclass(frozen=True)
class Helped(FedAvg):
    def loss(self, model, params, anchor, batch): return super().loss(model, params, anchor, batch)
    def train(self, model): return model

class Second(Helped):
    pass
"""


def test_a_class_that_overrides_nothing_is_told(tmp_path):
    (tmp_path / "unused.py").write_text(UNUSED)
    for name, base in {"Elsewhere": "FedAvg", "Same": "FedProx"}.items():
        with pytest.warns(RuntimeWarning, match=f"^algorithm {name} overrides nothing of {base}, so it does"):
            ALGORITHMS.make(f"{tmp_path}/unused.py:{name}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("Stronger", "Strongest", "Checked", "Helped", "Second"):
            ALGORITHMS.make(f"{tmp_path}/unused.py:{name}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aggregation", "aggregate"),
        ("personalise", "personal"),
        ("preparation", "prepare"),
        ("broadcasting", "broadcast"),
    ],
)
def test_so_is_one_that_begins_as_a_hook(name, meant, tmp_path):
    text = "from dataclasses import dataclass\nfrom fedrecall import FedAvg\n\n@dataclass(frozen=True)\n"
    text += f"class Own(FedAvg):\n    {name} = 3\n    prepare_images, everyone = 4, 5\n"
    (tmp_path / "own.py").write_text(text)
    with pytest.warns(RuntimeWarning) as told:
        ALGORITHMS.make(f"{tmp_path}/own.py:Own")
    (said,) = (str(w.message) for w in told)
    assert said.endswith(f"has {name!r}, which nobody asks it for: did you mean {meant!r}?")


CALLED = """
from dataclasses import dataclass
from fedrecall import FedAvg
from fedrecall.data.partitions import Partition

@dataclass(frozen=True)
class {0}({1}):
    {2}
"""


@pytest.mark.parametrize(
    ("kind", "base", "line", "said"),
    [
        (
            "algorithm",
            "FedAvg",
            "name: str = 'x'",
            "its field 'name' is what it is called by: name it otherwise",
        ),
        (
            "algorithm",
            "FedAvg",
            "personal: str = 'fc2.'",
            "its field 'personal' takes the place of the hook personal: name it otherwise",
        ),
        (
            "algorithm",
            "FedAvg",
            "def finish(self, model, weights, anchor, memory, data): pass",
            r"its finish takes \(model, weights, anchor, memory, data\) and is called with "
            r"\(model, weights, anchor, memory, data, sgd\): give it these parameters\.",
        ),
        (
            "algorithm",
            "FedAvg",
            "def loss(self, model, params, anchor, batch, tau): pass",
            r"its loss takes \(.*, batch, tau\) and is called with \(.*, batch\)",
        ),
        (
            "partition",
            "Partition",
            "def owners(self, labels): pass",
            r"its owners takes \(labels\) and is called with \(labels, clients, rng\)",
        ),
        ("algorithm", "FedAvg", "relay = staticmethod(lambda down, up, more=1: down)", ""),
        ("algorithm", "FedAvg", "def relay(self, *given): pass", ""),
        ("algorithm", "FedAvg", "secret: bool = False", ""),
    ],
)
def test_a_class_that_could_not_be_called_is_refused(kind, base, line, said, tmp_path):
    (tmp_path / "own.py").write_text(CALLED.format("Own", base, line))
    registry = {"algorithm": ALGORITHMS, "partition": PARTITIONS}[kind]
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        registry.make(f"{tmp_path}/own.py:Own")


def test_a_class_that_lacks_what_its_kind_must_do_is_a_sentence(tmp_path):
    text = "from dataclasses import dataclass\nfrom fedrecall.measures.moment import Measure\n"
    (tmp_path / "half.py").write_text(text + "@dataclass(frozen=True)\nclass Half(Measure):\n    pass\n")
    with pytest.raises(UserError, match=r"measure .*half\.py:Half does not define __call__\."):
        MEASURES.make(f"{tmp_path}/half.py:Half")
