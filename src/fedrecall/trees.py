"""Trees of tensors: named tuples and dicts, as they travel, are stored and are averaged.

A tree is a tensor, a dict of trees by names or whole numbers, or a (named) tuple of trees. Anything else
(``None``, a number) is carried along unchanged and is not a leaf.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedrecall.errors import Malformed

Tree = TypeVar("Tree")


def leaves(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the tree with its dotted path, in a fixed order."""
    found: list[tuple[str, Tensor]] = []
    _collect(tree, "", found)
    return iter(found)


def _collect(tree: Any, path: str, found: list[tuple[str, Tensor]]) -> None:
    """`leaves`, which every visit asks for dozens of times: a list is filled in half a generator's time."""
    if isinstance(tree, Tensor):
        found.append((path, tree))
        return
    before = f"{path}/" if path else ""
    for name, child in _children(tree):
        if isinstance(child, Tensor):
            found.append((f"{before}{name}", child))
        else:
            _collect(child, f"{before}{name}", found)


def transform(fn: Callable[..., Any], tree: Tree, *others: Any) -> Tree:
    """The tree with ``fn`` applied to its tensors (and the tensors at the same place in others)."""
    if isinstance(tree, Tensor):
        return fn(tree, *others)  # type: ignore[no-any-return]
    if isinstance(tree, Mapping):
        return type(tree)((k, transform(fn, v, *(o[k] for o in others))) for k, v in tree.items())  # type: ignore
    if isinstance(tree, tuple):
        rows = zip(tree, *others, strict=True)
        return _like(tree, [transform(fn, *row) for row in rows])  # type: ignore[return-value]
    return tree


def arrays(tree: Any) -> dict[str, Tensor]:
    """The tree as a flat dict from path to tensor, ready for a file or a message."""
    return dict(leaves(tree))


def others(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What is in the tree beside tensors, with its dotted path: no file and no message would carry it.

    So are dicts by anything else than names or whole numbers, or by one as both.
    """
    if isinstance(tree, Mapping) and not _named(tree):
        yield path, tree
        return
    children = list(_children(tree))
    for name, child in children:
        yield from others(child, f"{path}/{name}" if path else str(name))
    if not children and not isinstance(tree, (Tensor, Mapping, tuple)) and tree is not None:
        yield path, tree


def restore(template: Tree, flat: Mapping[str, Tensor], what: str = "state") -> Tree:
    """A tree of the template's structure holding these arrays, where its own are; every name must match.

    Raises Malformed when a name is missing or unknown. Shapes are the caller's to check.
    """
    expected = {path for path, _ in leaves(template)}
    if missing := sorted(expected - flat.keys()):
        raise Malformed(f"{what} lacks {missing[0]!r} ({len(missing)} missing)")
    if extra := sorted(flat.keys() - expected):
        raise Malformed(f"{what} has an undeclared {extra[0]!r} ({len(extra)} undeclared)")
    restored: Tree = _restore(template, flat, "")
    return restored


def _restore(template: Any, flat: Mapping[str, Tensor], path: str) -> Any:
    if isinstance(template, Tensor):
        return flat[path].to(template.device)
    children = [(n, _restore(c, flat, f"{path}/{n}" if path else str(n))) for n, c in _children(template)]
    if isinstance(template, Mapping):
        return dict(children)
    if isinstance(template, tuple):
        return _like(template, [child for _, child in children])
    return template


def stack(trees: Sequence[Tree], *, copy: bool = True) -> Tree:
    """Trees of one structure as one tree whose leaves have a leading axis over them.

    Without ``copy`` leaves that lie in one memory at equal distances, as results of workers do, stay there.
    """
    return transform(_stacked_copy if copy else _stacked, trees[0], *trees[1:])


def _stacked_copy(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors)


def _stacked(*tensors: Tensor) -> Tensor:
    first, starts = tensors[0], [t.storage_offset() for t in tensors]
    kinds = {(t.untyped_storage().data_ptr(), t.dtype, t.shape, t.stride(), t.requires_grad) for t in tensors}
    steps = {after - before for before, after in pairwise(starts)}
    step = steps.pop() if len(steps) == 1 else 0
    if step <= 0 or len(kinds) > 1 or first.requires_grad:
        return torch.stack(tensors)
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))


def take(tree: Tree, index: Any) -> Tree:
    """Entry (or entries) ``index`` along the leading axis of every leaf."""
    return transform(lambda t: t[index], tree)


def detached(tree: Tree) -> Tree:
    """A copy that shares no storage and no graph with the original."""
    return transform(lambda t: t.detach().clone(), tree)


def without_graph(tree: Tree) -> Tree:
    """The same tensors without what they were computed from, which would be kept as long as they are."""
    return transform(Tensor.detach, tree) if any(t.requires_grad for _, t in leaves(tree)) else tree


def zeros(tree: Tree) -> Tree:
    """A tree of zeros of the same structure and shapes."""
    return transform(torch.zeros_like, tree)


def size_in_bytes(tree: Any) -> int:
    """What the tree weighs on a wire: the sum of its tensors' bytes."""
    return sum(t.numel() * t.element_size() for _, t in leaves(tree))


def finite(tree: Any) -> bool:
    """Whether no floating tensor of the tree holds a NaN or an infinity."""
    # A sum is one pass and NaN or Inf survive it; only a non-finite sum (it may have overflowed) needs the
    # exact look. All sums are looked at together, for which a GPU is waited for once.
    found = [t for _, t in leaves(tree) if t.is_floating_point()]
    sums: dict[torch.device, list[Tensor]] = {}
    for t in found:
        sums.setdefault(t.device, []).append(t.sum().float())
    if all(bool(torch.isfinite(torch.stack(several)).all()) for several in sums.values()):
        return True
    return all(bool(torch.isfinite(t).all()) for t in found)


def _named(tree: Mapping[Any, Any]) -> bool:
    """Whether paths tell its entries apart, in every process alike."""
    if all(type(key) is str for key in tree):
        return True
    return all(isinstance(key, (str, Integral)) for key in tree) and len({*map(str, tree)}) == len(tree)


def _children(tree: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(tree, tuple):
        return zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=True)
    return tree.items() if isinstance(tree, (dict, Mapping)) else ()  # a dict is known sooner


def _like(template: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    return type(template)(*items) if hasattr(template, "_fields") else tuple(items)
