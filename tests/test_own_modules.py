"""Modules and files of somebody's own, as they are loaded by their names."""

import sys

import pytest

from fedrecall import own_modules
from fedrecall.errors import UserError
from fedrecall.specs import Registry

REGISTRY = Registry("thing", {})
MINE = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    x: int = 1\n"


def test_a_users_own_file_is_loaded_once_and_named_in_the_spec(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
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
    assert not [name for name in sys.modules if name.startswith("fedrecall_user_broken")]


LATER = "def fail():\n    return {}['nothing']\n\n\nfail()\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\n\n1 / 0\n", "ZeroDivisionError: division by zero (broken.py, line 3); "),
        (LATER, "KeyError: 'nothing' (broken.py, line 2); "),
        ("x = 1\ny = (2\n", "SyntaxError: '(' was never closed (broken.py, line 2); "),
        ("import json\n\njson.loads('{')\n", "(broken.py, line 3); "),
        ("import no_such_package_xyz\n", "No module named 'no_such_package_xyz' (broken.py, line 1); "),
        ("x = '\0'\n", "could not be imported: "),
    ],
)
@pytest.mark.parametrize("kind", ["file", "module"])
def test_the_line_that_fails_in_a_users_file_is_named(tmp_path, monkeypatch, text, said, kind):
    place = f"{kind}_{tmp_path.name}".replace("-", "_")
    (tmp_path / place).mkdir()
    (tmp_path / place / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as raised:
        REGISTRY.make(f"{tmp_path / place / 'broken.py'}:Mine" if kind == "file" else f"{place}.broken:Mine")
    assert said in str(raised.value)
    assert str(raised.value).endswith("; fedrecall --debug COMMAND shows the whole traceback.")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("lacks", ["no_such_package_xyz", "needy"])
def test_a_users_module_that_lacks_another_is_not_said_to_be_missing_itself(lacks, tmp_path, monkeypatch):
    name = f"needy_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(f"import {lacks}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=f"{name} could not be imported: ModuleNotFoundError: .*'{lacks}'"):
        REGISTRY.make(f"{name}:Mine")


def test_what_lies_beside_a_users_file_hides_nothing_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "own.py").write_text("import colorsys\n" + MINE)
    assert REGISTRY.make(f"{tmp_path}/own.py:Mine").x == 1


def test_a_users_file_that_is_gone_serves_on_in_the_process_that_loaded_it(tmp_path):
    file = tmp_path / "gone.py"
    file.write_text(MINE)
    before = REGISTRY.make(f"{file}:Mine")
    file.unlink()
    assert REGISTRY.make(f"{file}:Mine") == before


def test_a_file_is_not_given_another_folders_neighbour(tmp_path, monkeypatch):
    name = f"near_{tmp_path.name}".replace("-", "_")
    for folder, share in (("one", 0.1), ("two", 0.2), ("copy", 0.1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(f"from {name}_too import SHARE\n")
        (tmp_path / folder / f"{name}_too.py").write_text(f"SHARE = {share}\n")
        (tmp_path / folder / "mine.py").write_text(
            f"from {name} import SHARE\n" + MINE + "    y: float = SHARE\n"
        )
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = "{}/{}/mine.py:Mine"
    for folder in ("one", "copy"):
        assert REGISTRY.make(spec.format(tmp_path, folder)).y == 0.1
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            REGISTRY.make(spec.format(tmp_path, "two"))
        for folder in ("one", "two"):
            assert str(tmp_path / folder / f"{name}_too.py") in str(caught.value)


def test_source_becomes_the_same_module_wherever_it_is_read(tmp_path):
    path = tmp_path / "thing.py"
    module = own_modules.load_source(path, b"value = 2\n")  # there is no such file here
    assert module.value == 2
    assert own_modules.load_source(path, b"value = 3\n") is module
    assert own_modules.loaded_sources[path] == b"value = 2\n"
    with pytest.raises(UserError, match="could not be imported: ZeroDivisionError"):
        own_modules.load_source(tmp_path / "other.py", b"1 / 0")
