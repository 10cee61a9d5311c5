"""Names and values from outside become checked instances, or one sentence that helps."""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from fedrecall import specs
from fedrecall.errors import UserError
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
    share, count, mode, on, _names = specs.fields(Thing)
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


def test_a_users_own_file_is_loaded_once_and_named_in_the_spec(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    x: int = 1\n"
    )
    made = REGISTRY.make(f"{file}:Mine:x=3")
    assert made.x == 3
    assert REGISTRY.spec(made) == {"name": f"{file}:Mine", "x": 3}
    assert type(REGISTRY.make(REGISTRY.spec(made))) is type(made)


def test_a_users_file_may_import_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    name = f"beside_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text("AT_MOST = 7\ndef twice(x): return 2 * x\n")
    (tmp_path / "own.py").write_text(
        f"from dataclasses import dataclass\nfrom {name} import AT_MOST\n\n"
        f"@dataclass(frozen=True)\nclass Own:\n    most: int = AT_MOST\n"
        f"    def later(self):\n        import {name}\n        return {name}.twice(self.most)\n"
    )
    assert REGISTRY.make(f"{tmp_path / 'own.py'}:Own").later() == 14


def test_a_users_broken_file_is_their_error_not_ours(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        REGISTRY.make(f"{file}:Mine")


@pytest.mark.parametrize(
    ("limit", "inside", "outside", "words"),
    [
        (Range(0, open_low=True), 0.1, 0, "> 0"),
        (Range(0), 0, -1, ">= 0"),
        (Range(high=2, open_high=True), 1, 2, "< 2"),
        (Range(0, 1, open_high=True), 0, 1, "in [0, 1)"),
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


def test_a_class_that_lacks_what_its_kind_must_do_is_a_sentence(tmp_path):
    text = "from dataclasses import dataclass\nfrom fedrecall.measures.moment import Measure\n"
    (tmp_path / "half.py").write_text(text + "@dataclass(frozen=True)\nclass Half(Measure):\n    pass\n")
    with pytest.raises(UserError, match=r"measure .*half\.py:Half does not define __call__\."):
        MEASURES.make(f"{tmp_path}/half.py:Half")
