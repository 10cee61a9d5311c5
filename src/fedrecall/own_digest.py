"""The code of a run's owner: what a config names of somebody's own, and a digest of what that depends on.

A run notes the digests, and `provenance.check_code` compares them with those of the code there is now.
"""

import ast
import copy
import hashlib
import re
import symtable
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedrecall import own_code, own_modules, own_values

UNKNOWN = "unknown"
"""What is noted instead of the digest of code whose source is nowhere, as a prompt's."""
_OF = " of "
_Node = TypeVar("_Node", bound=ast.AST)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Digest(str):
    """Of code that something depends on."""

    earlier: tuple[str, ...]
    """What earlier versions noted of it."""


def looking_up(name: str) -> str | None:
    """What looks up the value that a digest of this name is of; None if it is of code."""
    return name.rpartition(_OF)[2] if _OF in name else None


def differs(then: str, now: str) -> bool:
    """Whether a digest that a run noted is not of the code there is now, as far as both are known."""
    return UNKNOWN not in (then, now) and then not in (now, *getattr(now, "earlier", ()))


def code(config: Mapping[str, Any]) -> dict[str, str]:
    """A digest of what the config names of somebody's own, by file or module and name.

    It is that of the part of the module that this depends on, and of the modules that this part takes names
    from, as far as these are nobody's package; comments and layout have no part in it. There are also
    those of the values that it looks up, which a loop or another module may have given them.
    """
    found: dict[str, str] = {}
    for text, module in modules(config):
        name = _attribute(text)
        read = sources(module, name)
        digest = Digest(_digest(read) if any(read.values()) else UNKNOWN)
        digest.earlier = tuple(_digest(sources(module, n, declared=False)) for n in (name, None))
        found[own_modules.named(text)] = digest
        for looked_up, value in _values(module, name).items():
            found[f"{looked_up}{_OF}{own_modules.named(text)}"] = _digest({looked_up: value.encode()})
    return found


def _values(module: types.ModuleType, name: str) -> dict[str, str]:
    """The settings that what a module calls ``name`` looks up, by what they are called in it."""
    thing = vars(module)[name]
    mine = getattr(thing, "__module__", None) or module.__name__
    sinks = [one for one in vars(module).values() if isinstance(one, type) and hasattr(one, "record")]
    found = own_values.looked_up(thing, sinks) if own_values.own(mine) else {}
    anew: dict[str, set[str]] = {}
    called = {path: "".join(path[1:])[1:] for path in found}
    return {
        (called[path] if path[0] == mine else f"{path[0]}.{called[path]}"): value
        for path, value in found.items()
        if called[path] not in _made_anew(path[0], anew)
    }


def _made_anew(module: str, known: dict[str, set[str]]) -> set[str]:
    """The names that a module gives, or takes from another, what no other process or machine would have."""
    if module in known:
        return known[module]
    found = known[module] = set[str]()
    todo = list[ast.AST](filter(None, [_tree(module)]))
    for node in todo:  # which grows
        todo += () if isinstance(node, _DEFINES) else ast.iter_child_nodes(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            called = [ast.unparse(n.func) for n in ast.walk(node.value) if isinstance(n, ast.Call)]
            given = _given(node)
            found |= given if len(given) == 1 and any(map(_ANEW.search, called)) else set()
        if isinstance(node, ast.ImportFrom):
            place = own_code.taken_from(node, own_code.package_of(module))
            if place is not None and own_values.own(place):
                taken = _made_anew(place, known)
                names = {alias.asname or alias.name for alias in node.names if alias.name in taken}
                found |= taken if node.names[0].name == "*" else names
    return found


_ANEW = re.compile(
    r"\b((perf_counter|monotonic|process_time|time)(_ns)?|strftime|ctime|(utc)?now|today|getpid|uuid\d|token_\w+|"
    r"mkd?s?temp|gettempdir|gethostname|(cpu|device)_count|is_available)$"
)


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
    elif not (isinstance(place, ast.Attribute) and own_values.CHANGES.fullmatch(place.attr)):
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


def _packaged(module: types.ModuleType) -> bool:
    """Whether the module came with Python, with this package or with another one that was installed."""
    ours = module.__name__.partition(".")[0] in ("fedrecall", "__main__")
    return ours or own_code.installed(str(getattr(module, "__file__", None) or ""))
