"""The code of a run's owner: it is the same, or the run is not gone on with."""

import ast
import importlib
import json
import sys
import types
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fedrecall
from fedrecall import config as configs
from fedrecall import own_digest, own_modules
from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.datasets import load
from fedrecall.errors import UserError
from fedrecall.experiment import check
from fedrecall.own_digest import code

MINE = '''
from dataclasses import dataclass
from fedrecall import FedAvg
from torch.nn import functional
from {helper} import scale

@dataclass(frozen=True)
class Mine(FedAvg):
    """A scaled loss."""
    mu: float = 1.0
    def loss(self, net, params, anchor, batch):
        return scale() * functional.cross_entropy(net(params, batch.x), batch.y)
'''
RUN = {
    "dataset": "synthetic:classes=4,train=80,test=40,size=8",
    "model": "mlp:4",
    "clients": 4,
    "sample": 2,
    "backend": "serial",
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of somebody's own code, and what makes this process a new one that has loaded none of it."""
    name = f"helper_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE.format(helper=name))
    (folder / f"{name}.py").write_text("def scale(): return 1.0")
    monkeypatch.syspath_prepend(str(folder))

    def anew():
        monkeypatch.setattr(own_modules, "loaded_files", {})
        monkeypatch.setattr(own_modules, "loaded_sources", {})
        sys.modules.pop(name, None)
        importlib.invalidate_caches()

    anew()
    return folder, folder / f"{name}.py", anew


def play(folder, algorithm, rounds, **settings):
    return fedrecall.run(folder, resume=True, algorithm=algorithm, rounds=rounds, **RUN | settings)


@pytest.mark.parametrize("which", ["the file", "what it imports"])
def test_a_model_is_not_used_with_other_code(which, home, tmp_path):
    folder, helper, anew = home
    edited = helper if which == "what it imports" else folder / "mine.py"
    play(tmp_path / "run", f"{folder / 'mine.py'}:Mine", 1)
    source = edited.read_text()
    anew()
    fedrecall.trained(tmp_path / "run")
    edited.write_text(source.replace("1.0", "2.0"))
    anew()
    with pytest.raises(UserError, match=r"begun with other code than mine.py:Mine has now: put that back\."):
        fedrecall.trained(tmp_path / "run")
    edited.write_text(source)
    anew()
    fedrecall.trained(tmp_path / "run")


@pytest.mark.parametrize("which", ["the file", "what it imports"])
def test_a_run_is_not_gone_on_with_by_other_code(which, home, tmp_path):
    folder, helper, anew = home
    mine, edited = folder / "mine.py", helper if which == "what it imports" else folder / "mine.py"
    play(tmp_path / "run", f"{mine}:Mine", 1)
    source = edited.read_text()
    edited.write_text("# a note\n" + source.replace("\n\n", "\n\n\n"))  # says the same
    anew()
    play(tmp_path / "run", f"{mine}:Mine", 2)
    edited.write_text(source.replace("scale() *", "2 * scale() *").replace("return 1.0", "return 2.0"))
    anew()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"begun with other code than mine\.py:Mine has now"):
        play(tmp_path / "run", f"{mine}:Mine", 3)
    made = configs.make({"algorithm": f"{mine}:Mine", "rounds": 3, **RUN})
    with pytest.raises(UserError, match="begun with other code"):
        check(made, tmp_path / "run", load(made.dataset))
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    (tmp_path / "run" / "made.json").unlink()
    assert len(play(tmp_path / "run", f"{mine}:Mine", 3).history) == 3


ANOTHER = """
from fractions import Fraction

HALF = 0.5

@dataclass(frozen=True)
class Another(FedAvg):
    mu: float = 3.0

    def lead(self):
        return Fraction(1, 2)

def other():
    return Another
"""


def test_what_a_class_does_not_use_is_no_part_of_its_code(home, tmp_path):
    """Somebody who keeps all that they try in one file goes on with what is tried already."""
    folder, helper, anew = home
    mine = folder / "mine.py"
    play(tmp_path / "run", f"{mine}:Mine", 1)
    source = mine.read_text()
    unused = ANOTHER.replace("HALF = 0.5", "")
    for added, same in ((unused, True), (unused.replace("3.0", "4.0"), True), (ANOTHER, False)):
        mine.write_text(source + added)
        anew()
        with nullcontext() if same else pytest.raises(UserError, match="begun with other code"):
            fedrecall.trained(tmp_path / "run")
    mine.write_text(source + unused)
    anew()
    play(tmp_path / "other", f"{mine}:Another", 1)
    helper.write_text("def scale(): return 3.0")  # which it does not use, either
    anew()
    fedrecall.trained(tmp_path / "other")
    with pytest.raises(UserError, match="begun with other code"):
        fedrecall.trained(tmp_path / "run")


def test_what_an_earlier_version_noted_of_a_whole_file_is_still_known(home, tmp_path):
    folder, *_ = home
    mine, made = folder / "mine.py", tmp_path / "run" / "made.json"
    mine.write_text(mine.read_text() + ANOTHER.replace("HALF = 0.5", ""))
    play(tmp_path / "run", f"{mine}:Mine", 1)
    (now,) = code({"algorithm": f"{mine}:Mine"}).values()
    assert now not in now.earlier[1:]
    starts = json.loads(made.read_text())
    assert starts[-1]["code"] == {"mine.py:Mine": now}
    starts[-1]["code"]["mine.py:Mine"] = now.earlier[1]
    made.write_text(json.dumps(starts))
    fedrecall.trained(tmp_path / "run")
    for rounds in (1, 2):  # also where nothing is left to play
        play(tmp_path / "run", f"{mine}:Mine", rounds)
        assert json.loads(made.read_text())[-1]["code"] == {"mine.py:Mine": now}


def noted_of(folder):
    ALGORITHMS.make(f"{folder}/mine.py:Mine")
    return code({"algorithm": f"{folder}/mine.py:Mine"})["mine.py:Mine"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("scale = 1.0", "from {helper} import scale"),
        ("scale = {'a': 1.0}", "from {helper} import scale"),
        ("from functools import partial\nscale = partial(max, 1.0)", "from {helper} import scale"),
        ("from functools import cache\n@cache\ndef scale(): return 1.0", "from {helper} import scale"),
        ("scale = 1.0", "import importlib\nscale = importlib.import_module('{helper}').scale"),
        ("scale = 1.0", "def scale():\n    from {helper} import scale\n    return scale"),
    ],
)
def test_whatever_is_imported_is_part_of_the_code(given, taken, home):
    folder, helper, anew = home
    mine = folder / "mine.py"
    mine.write_text(
        mine.read_text().replace(f"from {helper.stem} import scale", taken.format(helper=helper.stem))
    )
    helper.write_text(given)
    then = noted_of(folder)
    helper.write_text(f"{given}  # a note")
    anew()
    assert noted_of(folder) == then
    helper.write_text(given.replace("1.0", "2.0"))
    anew()
    now = noted_of(folder)
    assert own_digest.differs(then, now)
    assert not own_digest.differs(then.earlier[0], now)  # as it was noted by what did not see this


def test_what_only_a_finder_finds_is_part_of_the_code_imported_or_not(home, tmp_path, monkeypatch):
    folder, helper, anew = home
    mine, moved = folder / "mine.py", tmp_path / helper.name  # as a package that is installed to be edited
    taken = f"from {helper.stem} import scale"
    mine.write_text(mine.read_text().replace(taken, f"def scale():\n    {taken}\n    return scale()"))
    helper.rename(moved)

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            ours = name == helper.stem
            return importlib.util.spec_from_file_location(name, moved) if ours else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    anew()
    importlib.import_module(helper.stem)
    then = noted_of(folder)
    anew()
    assert noted_of(folder) == then  # not imported yet
    assert helper.stem not in sys.modules
    moved.write_text(moved.read_text().replace("1.0", "2.0"))
    anew()
    assert noted_of(folder) != then


def test_a_finder_that_refuses_a_module_keeps_nobody_from_noting_the_code(home, monkeypatch):
    folder, helper, anew = home
    then = noted_of(folder)
    mine, asked = folder / "mine.py", []
    mine.write_text(mine.read_text() + "\n\ntry:\n    import refused\nexcept ImportError:\n    pass\n")

    class Finder:
        @staticmethod
        def find_spec(name, path, target):
            asked.append(name)
            if name == "refused":
                raise ImportError("not here")

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    anew()
    assert noted_of(folder) != then
    assert {"refused", helper.stem} <= {*asked}


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("class A(B): pass", "B"),
        ("class A:\n    x: 'B' = 1", "B"),
        ("class A:\n    def f(self): return g()\ndef g(): return B", "B"),
        ("class A: pass\nB.attach(A)", "B"),
        ("class A: pass\n@register\nclass C:\n    x = B", "B"),
        ("def A(): return globals()['B']", "B"),
        ("from m import *\nclass A(B): pass", "B"),
        ("class A: 'as B is'", None),
        ("class A: pass\nclass C(B): pass", None),
        ("class A: pass\n@dataclass\nclass C(B): pass", None),
        ("class A: pass\nimport C\ndef f(): return B, C", None),
    ],
)
def test_what_a_class_uses_is_found_by_its_names(text, used):
    tree = ast.parse(f"class B: pass\n{text}")
    found, names = own_digest._reached(tree, "A")
    assert ("class B:" in ast.unparse(found)) == (used is not None) == ("B" in names)
    assert "A" in names
    assert not {"C", "f"} & {s.name for s in found.body if hasattr(s, "name")} or "register" in text


def test_code_that_moved_is_the_same_code(home, tmp_path):
    folder, _, anew = home
    run = tmp_path / "run"
    play(run, f"{folder}/mine.py:Mine:mu=2", 1)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (folder / "mine.py").rename(other / "mine.py")
    anew()
    with pytest.raises(UserError, match=r"algorithm.mu = 2.0, not 1.0"):
        play(run, f"{other}/mine.py:Mine", 2)
    assert len(play(run, f"{other}/mine.py:Mine:mu=2", 2).history) == 2
    (other / "mine.py").rename(other / "yours.py")
    anew()
    with pytest.raises(UserError, match=r"cannot be continued: .*there is no file .*mine\.py"):
        play(run, f"{other}/yours.py:Mine:mu=2", 3)


def test_options_of_ones_own_network_are_no_place(home, tmp_path):
    folder, _, anew = home
    net = "import torch\ndef net(shape, classes, width=4):\n    "
    net += "layers = torch.nn.Linear(64, width), torch.nn.Linear(width, classes)\n    "
    net += "return torch.nn.Sequential(torch.nn.Flatten(), *layers)"
    (folder / "net.py").write_text(net)
    play(tmp_path / "run", "fedavg", 1, model=f"{folder}/net.py:net:width=3")
    (tmp_path / "moved").mkdir()
    (folder / "net.py").rename(tmp_path / "moved" / "net.py")
    anew()
    with pytest.raises(UserError, match=r"begun with model = .*width=3', not .*width=4'"):
        play(tmp_path / "run", "fedavg", 2, model=f"{tmp_path}/moved/net.py:net:width=4")
    assert len(play(tmp_path / "run", "fedavg", 2, model=f"{tmp_path}/moved/net.py:net:width=3").history) == 2


def test_a_file_that_changed_since_it_was_loaded_is_told_of(home):
    folder, _, _ = home
    named = {"algorithm": f"{folder}/mine.py:Mine"}
    ALGORITHMS.make(named["algorithm"])
    loaded = code(named)
    (folder / "mine.py").write_text(MINE.format(helper="os"))
    with pytest.warns(RuntimeWarning, match="has changed since it was loaded"):
        ALGORITHMS.make(named["algorithm"])
    assert code(named) == loaded  # what runs is the old one


@pytest.mark.parametrize("by", ["module", "file"])
def test_what_was_imported_and_edited_since_is_told_of_and_noted_as_it_was(by, home):
    folder, helper, anew = home
    module = f"mine_{helper.stem}"
    file = (folder / "mine.py").rename(folder / f"{module}.py")
    named = {"algorithm": f"{module if by == 'module' else file}:Mine"}
    with warnings.catch_warnings(action="error"):
        ALGORITHMS.make(named["algorithm"])
    loaded = code(named)
    helper.write_text("def scale(): return 2.0")
    with pytest.warns(RuntimeWarning, match=f"{helper.name} has changed since it was loaded"):
        ALGORITHMS.make(named["algorithm"])
    assert code(named) == loaded  # what runs is the old one
    if by == "module":
        importlib.reload(sys.modules[helper.stem])
        file.write_text(file.read_text().replace("mu: float = 1.0", "mu: float = 3.0"))
        importlib.reload(sys.modules[module])
        with warnings.catch_warnings(action="error"):
            assert ALGORITHMS.make(named["algorithm"]).mu == 3.0
    else:
        anew()
        ALGORITHMS.make(named["algorithm"])
    assert code(named) != loaded


PROGRAM = """
from dataclasses import dataclass
from fedrecall import FedAvg
from math import *
SCALE = 1.0
rounds = 5
[0, 1][0] = 2
LIMITS = {"top": 7.0}
LIMITS["low"] = 3.0
import math as module
ROOTS = {"of": []}
for root in (1.0, 9.0):
    ROOTS["of"].append(root)
module.sqrt(25.0)

@dataclass(frozen=True)
class Base(FedAvg):
    def loss(self, model, params, anchor, batch):
        rounds = SCALE * super().loss(model, params, anchor, batch)
        return rounds.clamp(max=LIMITS["top"] + module.sqrt(ROOTS["of"][0]))

setattr(Base, "half", 0.5)
LIMITS.items()

@dataclass(frozen=True)
class Mine(Base):
    mu: float = 1.0

if __name__ == "__main__":
    LIMITS.setdefault("many", []).append(8.0)
    for extra in (16.0, 36.0, 49.0):
        if extra == 49.0:
            break
        ROOTS["of"].append(extra)
        see(rounds)
    try:
        LIMITS["one"] = 0.5
        see(rounds)
    except ValueError:
        see("none")
    else:
        see("each")
"""


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Starts a program anew: a script by its text, a notebook by its cells, a prompt by what was typed."""

    def start(kind, *texts):
        main = types.ModuleType("__main__")
        main.seen = []
        main.see = main.seen.append
        if kind == "script":
            main.__file__ = str(tmp_path / "exp.py")
            Path(main.__file__).write_text(texts[-1])
        elif kind == "notebook":
            main.In = ["", "%no python", *texts]
        own_digest._script.cache_clear()
        monkeypatch.setitem(sys.modules, "__main__", main)
        for text in texts:
            exec(text, main.__dict__)
        assert main.seen
        return main.Mine

    return start


@pytest.mark.parametrize("kind", ["script", "notebook"])
@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("rounds = 5", "rounds = 7\n# more", True),
        ("see(rounds)", "see(7)", True),
        ("none", "nothing", True),
        ("each", "every", True),
        ("items", "values", True),
        ("append(8.0)", "append(9.0)", False),
        ("append(extra)", "append(-extra)", False),
        ("36.0", "37.0", False),
        ("== 49.0", "== 36.0", False),
        ("= 0.5", "= 0.25", False),
        ("mu: float = 1.0", "mu: float = 1.0\n    def own(self): return 3", False),
        ("SCALE *", "3 * SCALE *", False),
        ("SCALE = 1.0", "SCALE = 2.0", False),
        ("= 3.0", "= 4.0", False),
        ("append(root)", "append(2 * root)", False),
        ("half", "quarter", False),
        ("sqrt(25.0)", "sqrt(36.0)", True),  # as the call of fedrecall.run
        ("from math", "from cmath", False),
    ],
)
def test_a_script_and_a_notebook_are_not_gone_on_with_by_other_code(kind, old, new, same, program, tmp_path):
    named = {"algorithm": {"name": "__main__:Mine"}}
    program(kind, PROGRAM)
    then = code(named)
    program(kind, PROGRAM.replace(old, new))
    assert (code(named) == then) == same
    if kind == "notebook" and "from" not in old:  # the edited cell was run where the first one had been
        once = code(named)
        program(kind, PROGRAM, PROGRAM.replace(old, new))
        assert code(named) == once


def test_a_script_is_resumed_by_itself_alone(program, tmp_path):
    run = tmp_path / "run"
    play(run, program("script", PROGRAM), 1)
    assert json.loads((run / "made.json").read_text())[-1]["code"].keys() == {
        f"{looked_up}__main__:Mine"
        for looked_up in ("", "LIMITS['top'] of ", "SCALE of ", "ROOTS['of'] of ", "Base.half of ")
    }
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        play(run, program("script", PROGRAM.replace("= 5", "= 6")), 2)
    with pytest.raises(UserError, match="begun with other code than __main__:Mine has now"):
        play(run, program("script", PROGRAM.replace("SCALE *", "2 *")), 3)


SWEEP = """
import torch
from dataclasses import dataclass
from functools import cache
from numpy import float64
from fedrecall import FedAvg

SCALE, CFG, calls, LOG, SEEN, ROOT, STEP = 1.0, {"top": 2.0, "of": [1]}, 0, [], {}, "/data/a", float64(0.5)

@cache
def step():
    return STEP

def scale():
    global calls
    calls += 1
    SEEN[calls] = ROOT, __name__
    return SCALE * step() * 2

@dataclass(frozen=True)
class Mine(FedAvg):
    def loss(self, model, params, anchor, batch):
        LOG.append(batch.y.sum())
        see(batch.y)
        return (lambda loss: scale() * loss)(super().loss(model, params, anchor, batch)).clamp(max=self.top())

    @staticmethod
    @torch.no_grad()
    def top():
        return CFG["top"]

see(SCALE)
"""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        *(("SCALE", 0.1), ("CFG", {"top": 3.0, "of": [1]}), ("STEP", np.float64(0.25))),
        *(("calls", 7), ("LOG", [1]), ("SEEN", {1: 2.0}), ("ROOT", "/data/b"), ("__name__", "main")),
    ],
)
@pytest.mark.parametrize("kind", ["script", "notebook", "prompt"])
def test_a_sweep_over_a_programs_own_number_is_not_answered_by_its_first_run(
    kind, change, what, program, tmp_path
):
    """No statement says so: a loop does, as notebooks have it."""
    mine = program(kind, SWEEP)
    play(tmp_path / "run", mine, 1)
    setattr(sys.modules["__main__"], change, what)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of a prompt
        if change not in ("SCALE", "CFG", "STEP"):  # what it keeps itself, or never looks at
            assert len(play(tmp_path / "run", mine, 2).history) == 2
            return
        with pytest.raises(
            UserError, match=rf"begun with another value than {change}(\['top'\])? of __main__:Mine has now"
        ):
            play(tmp_path / "run", mine, 2)
        fedrecall.trained(tmp_path / "run")


HELD = """
import time, torch
from argparse import Namespace
from dataclasses import dataclass
from enum import Flag
from functools import cached_property, partial, wraps
from fedrecall import FedAvg
import {helper} as other
try:
    from .{helper} import BORN
except ImportError:
    from {helper} import BORN

def absolute(x): return x.abs().sum()
def squared(x): return (x * x).sum()
def weighted(weight):
    def penalty(x): return weight * x.sum()
    return penalty
def counted(function):
    count = 0
    @wraps(function)
    def inner(*given):
        nonlocal count
        count += 1
        return function(*given)
    return inner

@dataclass(frozen=True)
class Options:
    mu: float
class Bag:
    def __init__(self, mu): self.mu = mu
class Fixed:
    mu = 0.0
class Kind(Flag):
    A, B = 1, 2
class Meter:
    def __init__(self, top): self.top, self.calls, self.seen, self.by = top, 0, [], {{}}
    @cached_property
    def begun(self): return 1
    @torch.no_grad()
    def __call__(self, x):
        self.calls += self.begun
        self.seen.append(self.calls)
        self.by[self.calls] = len(self.seen)
        return self.top

KIND, METER = Kind.A, Meter(0.0)
args, options, bag = Namespace(mu=0.0, rounds=1), Options(0.0), Bag(0.0)
PENALTY, CLOSED, PART, LAMBDA = absolute, weighted(0.0), partial(torch.mul, 0.0), lambda x: x * 2
WEIGHTS, TENSOR, LATER, SEEN, ROUND = [0.0], torch.zeros(2), None, {{}}, 0
START = time.time()
CFG, WHOLE = {{"mu": 0.0, "rounds": 1, "n": 0}}, {{"a": 1.0, "b": (0.0, 2.0)}}
WHOLE["self"] = WHOLE

class Sink:
    def begin(self, config, history): ...
    def end(self): ...
    def record(self, record):
        global ROUND
        ROUND = record["round"]

@dataclass(frozen=True)
class Mine(FedAvg):
    lambda_: float = 1.0
    top = 0.0
    calls = 0

    @counted
    def loss(self, model, params, anchor, batch):
        CFG["n"] += 1
        args.calls = time.time() - START - BORN
        type(self).calls += 1
        zeros = torch.zeros(2)
        zeros[0] = 1.0
        SEEN.setdefault(ROUND, []).append("train")
        x = next(iter(params.values()))
        x = x * METER(x) * bool(~KIND)
        x = x * (args.mu + options.mu + bag.mu + Fixed.mu + other.MU + CFG["mu"] + self.lambda_ * self.top)
        x = PENALTY(x) + CLOSED(x) + PART(x).sum() + LAMBDA(x).sum() + WEIGHTS[0] + TENSOR.sum()
        return super().loss(model, params, anchor, batch) + 0 * x * len(WHOLE) * bool(LATER)

see(0)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("args.mu = 5.0", r"args\.mu"),
        ("args = Namespace(mu=5.0)", r"args\.mu"),
        ("options = Options(5.0)", r"options\.mu"),
        ("bag.mu = 5.0", r"bag\.mu"),
        ("Fixed.mu = 5.0", r"Fixed\.mu"),
        ("Mine.top = 5.0", r"Mine\.top"),
        ("other.MU = 5.0", r"helper_\w+\.MU"),
        ("CFG['mu'] = 5.0", r"CFG\['mu'\]"),
        ("WHOLE['b'] = (0.0, 2.5)", "WHOLE"),
        ("WEIGHTS[0] = 5.0", "WEIGHTS"),
        ("TENSOR[0] = 5.0", "TENSOR"),
        ("PENALTY = squared", "PENALTY"),
        ("CLOSED = weighted(5.0)", "CLOSED"),
        ("PART = partial(torch.mul, 5.0)", "PART"),
        ("LAMBDA = lambda x: x + 2", "LAMBDA"),
        ("LATER = [5.0]", "LATER"),
        ("LATER = object()", "LATER"),
        ("KIND = Kind.B", "KIND"),
        ("METER.top = 5.0", "METER"),
        ("args.rounds = CFG['rounds'] = bag.other = 5", None),
        ("WHOLE = {'b': (0, torch.tensor(2)), 'a': 1}; WHOLE['self'] = WHOLE", None),
        ("args, bag, CLOSED = Namespace(mu=0), Bag(0), weighted(0)", None),
        ("START = time.time()", None),
        ("BORN = time.time() + 5000", None),
    ],
)
def test_what_is_looked_up_counts_by_its_value_however_it_is_held(change, said, program, home, tmp_path):
    _, helper, _ = home
    helper.write_text("import time\nMU = 0.0\nBORN = time.time()")
    run = {"resume": True, "out": tmp_path / "run", **RUN, "progress": False}
    mine = program("notebook", HELD.format(helper=helper.stem))
    main = vars(sys.modules["__main__"])
    fedrecall.run(algorithm=mine, rounds=2, sinks=[main["Sink"]()], **run)
    assert main["ROUND"] == 2
    exec(change, main)
    with nullcontext() if said is None else pytest.raises(UserError, match=f"another value than {said} of "):
        assert len(fedrecall.run(algorithm=mine, rounds=3, **run).history) == 3


MUCH = """
LONG, KEYED, SPAN = list(range(10_000)), dict.fromkeys(range(10_000)), range(10**12)
DEEP, TWICE, PARTS = [], [], {"much": LONG, "mu": 1.0}
for _ in range(2000):
    DEEP = [DEEP]
for _ in range(40):
    TWICE = [TWICE, TWICE]

def scale():
    return float(None not in (LONG, KEYED, SPAN, DEEP, TWICE, PARTS))
"""


def test_what_holds_too_much_or_too_deep_is_no_setting(home):
    """To look through it takes longer than a run, or does not end."""
    folder, helper, _ = home
    helper.write_text(MUCH)
    ALGORITHMS.make(f"{folder}/mine.py:Mine")
    noted = code({"algorithm": f"{folder}/mine.py:Mine"})
    assert noted.keys() == {"mine.py:Mine", f"{helper.stem}.PARTS of mine.py:Mine"}
    sys.modules[helper.stem].PARTS["mu"] = 2.0
    assert code({"algorithm": f"{folder}/mine.py:Mine"}) != noted


def test_values_that_earlier_versions_noted_are_passed_over(program, tmp_path):
    mine = program("script", SWEEP)
    play(tmp_path / "run", mine, 1)
    made = tmp_path / "run" / "made.json"
    noted = json.loads(made.read_text())
    code = noted[-1]["code"]
    noted[-1]["code"] = {"__main__:Mine": code["__main__:Mine"], "__main__:Mine with CFG": "0" * 16}
    made.write_text(json.dumps(noted))
    assert len(play(tmp_path / "run", mine, 2).history) == 2


def test_of_a_prompts_class_it_is_said_that_its_code_is_not_known(program, tmp_path):
    run = tmp_path / "run"
    play(run, program("prompt", PROGRAM), 1)
    with pytest.warns(
        RuntimeWarning, match="whether __main__:Mine is still what .*run was begun with cannot"
    ):
        play(run, program("prompt", PROGRAM), 2)


def test_only_what_is_somebodys_own_is_their_code(home):
    folder, _, _ = home
    ALGORITHMS.make(f"{folder}/mine.py:Mine")
    named = {
        "algorithm": {"name": f"{folder}/mine.py:Mine"},
        "model": "cnn:hidden=8",
        "sinks": ["json:dumps"],
    }
    assert code(named).keys() == {"mine.py:Mine", "json:dumps"}
    assert code({"algorithm": "fedrecall.algorithms.fedavg:FedAvg", "dataset": "folder:x"}) == {}
    inner = {"algorithm": {"name": "private", "algorithm": f"{folder}/mine.py:Mine:mu=2"}}
    assert code(inner) == {k: v for k, v in code(named).items() if k == "mine.py:Mine"}
