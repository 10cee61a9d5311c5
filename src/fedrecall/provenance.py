"""What a run was made from: its data, its owner's code, and the versions and the machine that computed it."""

import ast
import copy
import dis
import hashlib
import inspect
import platform
import re
import shlex
import subprocess
import symtable
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedrecall import __version__, files, own_code, own_modules, secrecy
from fedrecall.data.datasets import Dataset
from fedrecall.errors import UserError


@cache
def version() -> str:
    """fedrecall's version with a digest of its code that trains: two of one number may differ in hooks."""
    package, digest = Path(__file__).parent, hashlib.blake2b(digest_size=4)
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).as_posix()
        if not part.startswith(("cli/", "papers/", "reports/")):
            digest.update(part.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return f"{__version__}+{digest.hexdigest()}"


def starts(path: Path) -> list[dict[str, Any]]:
    """What made the run so far, a part for every start."""
    found = files.read_json(path) if path.exists() else []
    if not isinstance(found, list) or not all(
        isinstance(start, dict) and all(isinstance(start.get(part, {}), dict) for part in ("data", "code"))
        for start in found
    ):
        raise UserError(f"{path} is damaged: move it elsewhere to go on.")
    return found


_known: dict[int, tuple[list[int | None], list[float]]] = {}
"""Of data sets that are there the sketch, and at which versions of their examples."""


def facts(dataset: Dataset) -> dict[str, Any]:
    """What tells data from other data, and costs little: sizes, a digest of labels and statistics, a sketch.

    The statistics are rounded: the same files may be decoded a little differently elsewhere.
    """
    digest = hashlib.blake2b(digest_size=8)
    for split in (dataset.train, dataset.test):
        digest.update(split.y.cpu().to(torch.int64).numpy().tobytes())
    # A table's columns have been moved and scaled, and say no more: its first example does.
    first = [s.x[:1] for s in (dataset.train, dataset.test) if s.x.is_floating_point()]
    for values in (dataset.mean, dataset.std, *first):
        digest.update(" ".join(f"{v:.4g}" for v in values.flatten().tolist()).encode())
    sizes = {"train": len(dataset.train.y), "test": len(dataset.test.y)}
    found = {"name": dataset.name, **sizes, "digest": digest.hexdigest(), "sketch": _sketched(dataset)}
    if dataset.train.origin is not None:
        found["origins"] = _whence(dataset.train.origin, _of_training(dataset))
    if dataset.test.origin is not None:
        found[TESTED] = _whence(dataset.test.origin, dataset.origins)
    return found


def _sketched(dataset: Dataset) -> list[float]:
    """The sketch of both splits, which alone looks at all examples: a comparison asks for it with every run.

    It is kept as long as the data set is, and as its examples are, as far as torch knows.
    """
    place, splits = id(dataset), (dataset.train, dataset.test)
    versions = [None if s.x.is_inference() else s.x._version for s in splits]
    if place not in _known:
        weakref.finalize(dataset, _known.pop, place, None)
    if place not in _known or _known[place][0] != versions:
        _known[place] = versions, [v for s in splits for v in _sketch(s.x)]
    return _known[place][1]


def _whence(origin: Tensor, names: Sequence[str]) -> str:
    where = origin.numpy().tobytes() + "\0".join(names).encode()
    return hashlib.blake2b(where, digest_size=8).hexdigest()


def _of_training(dataset: Dataset) -> list[str]:
    """The origins without those that test examples alone are from, which earlier versions did not know of."""
    trained, tested = (
        set() if split.origin is None else set(np.unique(split.origin.numpy()).tolist())
        for split in (dataset.train, dataset.test)
    )
    return [name for i, name in enumerate(dataset.origins) if i not in tested - trained]


TESTED = "test_origins"
"""What `facts` calls where test examples are from."""
SKETCHED = 4
"""Numbers that tell examples from others of the same labels and statistics."""
DECODED = 0.02
"""By how much each may differ where it is computed: decoders of JPEG differ by a thousandth of what other
images, or the same in another order, make."""


def _sketch(x: Tensor) -> list[float]:
    """Sums over all examples with fixed random signs, each divided by its standard deviation over signs."""
    if not len(x):
        return []
    flat = x.reshape(len(x), -1)
    shape = flat.shape[1], SKETCHED
    signs = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], shape).astype(np.float32))
    mine = torch.cat([flat[i : i + 4096].cpu().float() @ signs for i in range(0, len(flat), 4096)]).double()
    by_example = torch.from_numpy(np.random.default_rng(1).choice([-1.0, 1.0], (len(x), 1)))
    sums = (mine * by_example).sum(0) / mine.square().sum(0).sqrt().clamp_min(1e-30)
    return [round(v, 6) for v in sums.tolist()]


def _resembles(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the examples may be the same, as far as both were sketched."""
    one, other = before.get("sketch"), now.get("sketch")
    if one is None or other is None:
        return True
    if not isinstance(one, list) or not all(type(v) in (int, float) for v in one):
        return False
    return len(one) == len(other) and all(abs(a - b) <= DECODED for a, b in zip(one, other, strict=True))


def said(data: Mapping[str, Any]) -> str:
    """What `facts` says, in words."""
    digest = f" (digest {data['digest']})" if "digest" in data else ""
    return f"{data.get('name')} of {data.get('train')} and {data.get('test')} examples{digest}"


def check_data(
    folder: Path, starts: Sequence[Mapping[str, Any]], data: Mapping[str, Any], remedy: str
) -> None:
    """Raise UserError if the run in the folder was begun on other data; ``remedy`` ends the message."""
    before = starts[-1].get("data", data) if starts else data
    if not same(before, data):
        raise UserError(f"{folder} was begun on other data, {said(before)}, not {said(data)}: {remedy}")


def same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether these facts are of the same data, as far as both tell."""
    left_out = {"sketch", *({"digest", TESTED} - before.keys())}  # earlier versions had none of them
    one, other = ({k: v for k, v in part.items() if k not in left_out} for part in (before, now))
    return one == other and _resembles(before, now)


def check_code(
    folder: Path, starts: Sequence[Mapping[str, Any]], code: Mapping[str, str], remedy: str
) -> None:
    """Raise UserError if the owner's code that the run in the folder was begun with has changed since.

    ``remedy``: what would do, but for putting the code back.
    """
    before = starts[-1].get("code", {}) if starts else {}
    for name, digest in before.items():
        now = code.get(name, digest)
        if UNKNOWN in (digest, now):
            warnings.warn(
                f"whether {name} is still what {folder} was begun with cannot be told, as it was made in a "
                "prompt: write it into a file.",
                RuntimeWarning,
                stacklevel=2,
            )
        elif differs(digest, now):
            what = "another value" if _VALUE in name else "other code"
            raise UserError(
                f"{folder} was begun with {what} than {name} has now: put that back{remedy}. "
                f"To go on with the new code all the same, move {folder / 'made.json'} elsewhere."
            )


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """What made a result: versions, hardware, git revision, command, time.

    Of several GPUs it names ``device``, or the one that torch takes by default; none if that is the CPU.
    """
    packages = ("fedrecall", "torch", "numpy", "safetensors", "datasets", "ray", "flwr")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    on_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
    gpu = torch.cuda.get_device_name(device) if on_gpu else None
    rounding = {
        "convolutions": torch.backends.cudnn.allow_tf32,
        "products": torch.backends.cuda.matmul.allow_tf32,
    }
    return {
        "command": shlex.join(secrecy.in_words([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        **({"tensor floats": rounding} if on_gpu else {}),
        "git": git_revision(),
    }


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def git_revision(code: Path = Path(__file__)) -> str | None:
    """The revision that holds this file, with a plus if its folder has been changed since.

    None of a file that no repository holds: an installed package may lie inside somebody else's.
    """

    def ask(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(code.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", code.name)
        return ask("rev-parse", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


# The code of a run's owner: an algorithm, a network, a data set of their own.

_Node = TypeVar("_Node", bound=ast.AST)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

UNKNOWN = "unknown"
"""What is noted instead of the digest of code whose source is nowhere, as a prompt's."""


class Digest(str):
    """Of code that something depends on."""

    earlier: tuple[str, ...]
    """What earlier versions noted of it."""


def differs(then: str, now: str) -> bool:
    """Whether a digest that a run noted is not of the code there is now, as far as both are known."""
    return UNKNOWN not in (then, now) and then not in (now, *getattr(now, "earlier", ()))


def code(config: Mapping[str, Any], *, values: bool = True) -> dict[str, str]:
    """A digest of what the config names of somebody's own, by file or module and name.

    It is that of the part of the module that this depends on, and of the modules that this part takes names
    from, as far as these are nobody's package; comments and layout have no part in it. Of a script's and a
    notebook's own there are also the ``values`` that it looks up, which loops give them.
    """
    found: dict[str, str] = {}
    for text, module in modules(config):
        name = _attribute(text)
        read = sources(module, name)
        digest = Digest(_digest(read) if any(read.values()) else UNKNOWN)
        digest.earlier = tuple(_digest(sources(module, n, declared=False)) for n in (name, None))
        found[own_modules.named(text)] = digest
        if values and module.__name__ == "__main__":
            for looked_up, value in _values(module, name).items():
                found[f"{own_modules.named(text)}{_VALUE}{looked_up}"] = _digest({looked_up: value.encode()})
    return found


_VALUE = " with "
"""Between what is somebody's own and the name that it looks up the value of."""


def _values(module: types.ModuleType, name: str) -> dict[str, str]:
    """The settings that what a module calls ``name`` looks up in it, but never assigns or changes."""
    held, found, kept = vars(module), dict[str, str](), set[str]()
    todo, seen = [held[name]], set[int]()
    for thing in todo:  # which grows
        if id(thing) in seen or getattr(thing, "__module__", None) != module.__name__:
            continue
        seen.add(id(thing))
        todo += thing.__mro__ if isinstance(thing, type) else ()
        for code in _codes(thing):
            steps = list(dis.get_instructions(code))
            names = {s.argval for s in steps if s.opname == "LOAD_GLOBAL" and s.argval in held}
            kept |= {s.argval for s in steps if s.opname == "STORE_GLOBAL"}
            if any(s.opname in _STORES or _CHANGES.fullmatch(str(s.argval)) for s in steps):
                kept |= {n for n in names if isinstance(held[n], dict)}  # as hooks note what they see
            found |= {n: repr(value) for n in names if (value := _setting(held[n])) not in (_NONE, {})}
            todo += [held[n] for n in names if callable(held[n])]
    return {k: v for k, v in found.items() if k not in kept and not k.startswith("__")}


_STORES = ("STORE_SUBSCR", "DELETE_SUBSCR")


def _codes(thing: Any) -> Iterator[types.CodeType]:
    """What a function's or a class's own functions do, with those that are defined within them."""
    own = list(vars(thing).values()) if isinstance(thing, type) else [thing]
    parts = [getattr(o, part, None) for o in own for part in ("__func__", "fget", "fset", "func")]
    functions = [inspect.unwrap(f) for f in (*own, *parts) if callable(f)]
    codes = [f.__code__ for f in functions if isinstance(f, types.FunctionType)]
    for one in codes:  # which grows
        codes += [c for c in one.co_consts if isinstance(c, types.CodeType)]
        yield one


_NONE = object()
"""What is no setting."""


def _setting(value: Any) -> Any:
    """A number, a text that is no place on a machine, or a tuple of these, and what a dict has of them."""
    if type(value) is dict:
        entries = {k: _setting(v) for k, v in value.items()}
        return {k: v for k, v in entries.items() if v is not _NONE}
    if isinstance(value, tuple):
        parts = tuple(map(_setting, value))
        return _NONE if _NONE in parts else parts
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        return _NONE if "/" in value or "\\" in value or value.startswith(("cpu", "cuda")) else value
    return value if value is None or type(value) in (bool, int, float, complex, bytes) else _NONE


def _digest(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for one in sorted(set(sources.values())):
        digest.update(one)
    return digest.hexdigest()


def modules(value: Any) -> Iterator[tuple[str, types.ModuleType]]:
    """Each text in a value that names something of somebody's own, and the module that has it."""
    for text in texts(value):
        place, _, rest = text.partition(":")
        module = own_modules.loaded(place) if rest else None
        if module is not None and hasattr(module, _attribute(text)):
            yield text, module


def _attribute(spec: str) -> str:
    return spec.partition(":")[2].partition(":")[0].partition(".")[0]


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from texts(inner)


def sources(module: types.ModuleType, name: str | None = None, *, declared: bool = True) -> dict[str, bytes]:
    """The source of a module and of all that it takes names from, without comments, by module.

    With a ``name``, of this module what that depends on alone. What is not ``declared`` is that of which the
    modules hold a class, a function or the module itself, and not all that their statements import.
    """
    found: dict[str, bytes] = {}
    todo = [module.__name__]
    while todo:
        place = todo.pop()
        tree = None if place in found else _tree(place)
        if tree is None:
            continue
        held = vars(sys.modules[place]) if place in sys.modules else {}
        if name is not None:
            tree, names = (_of_program if place == "__main__" else _reached)(tree, name)
            held, name = {k: v for k, v in held.items() if k in names}, None
        found[place] = ast.unparse(tree).encode()
        for value in list(held.values()):
            taken = value if isinstance(value, types.ModuleType) else None
            if isinstance(value, (type, types.FunctionType)):
                taken = sys.modules.get(value.__module__)
            if taken is not None and not _packaged(taken):
                todo.append(taken.__name__)
        if declared:
            todo += [n for n, _ in own_code.imports(found[place], own_code.package_of(place))]
    return found


def _tree(name: str) -> ast.Module | None:
    """A module as it was loaded; None of what was not loaded from a file in Python."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name == "__main__" and file is None:
        return _cells(getattr(module, "In", None))
    try:
        return ast.parse(_text(name, Path(str(file))))
    except (OSError, SyntaxError, ValueError):
        return None


def _text(name: str, path: Path) -> bytes:
    if path in own_modules.loaded_sources:
        return own_modules.loaded_sources[path]
    if name == "__main__":
        return _script(path)
    source = own_code.read(name)
    return path.read_bytes() if source is None else source.text


@cache
def _script(path: Path) -> bytes:
    """The script that was started; who edits it while it runs does so for its next start."""
    return path.read_bytes()


def _cells(cells: Any) -> ast.Module:
    """What a notebook's cells say last of each name, in an order that does not tell when each was run."""
    kept, again = set[str](), set[str]()
    for cell in reversed(cells if isinstance(cells, list) else []):
        try:
            statements = ast.parse(cell).body
        except (SyntaxError, TypeError, ValueError):  # which nobody has run
            continue
        for statement in reversed(statements):
            given, changed = _given(statement), _changed(statement)
            if (given | changed) - again:
                kept.add(ast.unparse(statement))
            if not isinstance(statement, ast.AugAssign):
                again |= given - changed
    return ast.parse("\n".join(sorted(kept)))


def _of_program(tree: ast.Module, name: str) -> tuple[ast.Module, set[str]]:
    """As `_reached`, of what also calls run: what gives no name that is used has no part in it."""
    names, before = {name}, 0

    def counts(node: ast.AST) -> bool:
        given = {word for text in _given(node) for word in _FIRST.findall(text)}
        return bool((given | _changed(node)) & {*names, "*"})

    while before != len(names):
        before = len(names)
        kept = [_part(statement, counts) for statement in tree.body if counts(statement)]
        names.update(*map(_looked_up, kept))
    return ast.Module(kept, []), names


def _part(node: _Node, counts: Callable[[ast.AST], bool]) -> _Node:
    """A statement without those in it that do not count, but for where a loop is left."""
    part = copy.copy(node)
    for block in () if isinstance(node, _DEFINES) else ("body", "orelse", "finalbody", "handlers", "cases"):
        if inner := getattr(node, block, []):
            kept = [_part(n, counts) for n in inner if not isinstance(n, ast.stmt) or counts(n) or _leaves(n)]
            setattr(part, block, kept if kept or block == "orelse" else [ast.Pass()])
    return part


def _leaves(node: ast.AST) -> bool:
    """Whether a statement may leave the loop that it is in, or its turn."""
    if isinstance(node, (*_DEFINES, ast.For, ast.AsyncFor, ast.While)):
        return False
    return isinstance(node, (ast.Break, ast.Continue)) or any(map(_leaves, ast.iter_child_nodes(node)))


def _given(node: ast.AST) -> set[str]:
    """What a statement gives its module another value of, however deep in it: names, entries, attributes."""
    if isinstance(node, _DEFINES):
        return {node.name}
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        return {f"* of {node.module}"}
    if isinstance(node, ast.alias):
        return {node.asname or node.name.partition(".")[0]}
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        return {ast.unparse(node)}
    if isinstance(node, (ast.Lambda, ast.comprehension)):
        return set()
    return {text for child in ast.iter_child_nodes(node) for text in _given(child)}


def _changed(node: ast.AST) -> set[str]:
    """The names of what a statement changes by `setattr` or a method that is known to, however deep in it."""
    if isinstance(node, _DEFINES):
        return set()
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return {name for child in ast.iter_child_nodes(node) for name in _changed(child)}
    place, given = node.value.func, node.value.args
    if ast.unparse(place) == "setattr" and given:
        place = given[0]
    elif not (isinstance(place, ast.Attribute) and _CHANGES.fullmatch(place.attr)):
        return set()
    while isinstance(place, (ast.Attribute, ast.Subscript, ast.Call)):
        place = place.func if isinstance(place, ast.Call) else place.value
    return {place.id} if isinstance(place, ast.Name) else set()


def _looked_up(statement: ast.stmt) -> set[str]:
    """The module's names that a statement looks up, now or when what it defines is called."""
    found, tables = set[str](), [symtable.symtable(ast.unparse(statement), "", "exec")]
    for table in tables:  # which grows
        tables += table.get_children()
        of_module = table.get_type() == "module"
        found |= {
            s.get_name() for s in table.get_symbols() if s.is_referenced() and (of_module or s.is_global())
        }
    return found


def _reached(tree: ast.Module, name: str) -> tuple[ast.Module, set[str]]:
    """The part of a module that what it calls ``name`` may depend on, and the names that this uses.

    Definitions and imports are part of it if it uses their names, all else is.
    """
    names, kept, before = {name}, set[ast.stmt](), -1
    while before != len(kept):
        before = len(kept)
        for statement in tree.body:
            bound = _bound(statement)
            if statement not in kept and (bound is None or bound & names):
                kept.add(statement)
                names |= _used(statement)
    return ast.Module([s for s in tree.body if s in kept], []), names


def _bound(statement: ast.stmt) -> set[str] | None:
    """The names that a definition or an import gives; None of what may do more, as a decorator may."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        given = {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        return None if "*" in given else given
    if not isinstance(statement, _DEFINES):
        return None
    decorators = {ast.unparse(d).partition("(")[0] for d in statement.decorator_list}
    return {statement.name} if decorators <= {"dataclass", "dataclasses.dataclass"} else None


def _used(statement: ast.stmt) -> set[str]:
    """The names in a statement, also in texts that may be annotations or looked up, as docstrings may not."""
    nodes = list(ast.walk(statement))
    idle = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in idle:
            found.update(_WORD.findall(node.value))
    return found


_WORD = re.compile(r"[^\W\d]\w*")
_FIRST = re.compile(rf"^(?:{_WORD.pattern}|\*)")
_CHANGES = re.compile(
    r"append(left)?|extend(left)?|insert|add|(\w+_)?update|setdefault|pop(item|left)?|remove|discard|clear|sort|"
    r"reverse|rotate|fill|__setitem__|__delitem__|\w*[^\W_]_|register\w*|load_state_dict|train|eval"
)
"""The methods that change Python's containers, and torch's tensors and modules."""


def _packaged(module: types.ModuleType) -> bool:
    """Whether the module came with Python, with this package or with another one that was installed."""
    ours = module.__name__.partition(".")[0] in ("fedrecall", "__main__")
    return ours or own_code.installed(str(getattr(module, "__file__", None) or ""))
