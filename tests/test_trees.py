from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedrecall import trees


class Pair(NamedTuple):
    a: torch.Tensor
    b: dict


def tree(x=1.0):
    return Pair(torch.full((2,), x), {"p": torch.tensor([x, 2 * x]), "q": (torch.tensor(3), None)})


def test_leaves_have_paths_in_a_fixed_order():
    assert [path for path, _ in trees.leaves(tree())] == ["a", "b/p", "b/q/0"]


def test_restore_inverts_arrays_and_keeps_the_types():
    restored = trees.restore(tree(0.0), trees.arrays(tree(5.0)))
    assert type(restored) is Pair
    assert torch.equal(restored.a, torch.full((2,), 5.0))
    assert restored.b["q"][1] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda d: d.pop("a"), "lacks 'a'"), (lambda d: d.update(z=d["a"]), "undeclared 'z'")],
)
def test_restore_refuses_missing_and_undeclared_names(change, said):
    flat = trees.arrays(tree())
    change(flat)
    with pytest.raises(ValueError, match=said):
        trees.restore(tree(), flat)


def test_stack_and_take_are_inverse():
    stacked = trees.stack([tree(1.0), tree(2.0)])
    assert stacked.b["p"].shape == (2, 2)
    assert torch.equal(trees.take(stacked, 1).b["p"], tree(2.0).b["p"])


def test_leaves_in_rows_of_one_memory_are_a_stack_already():
    memory = torch.arange(60.0)
    rows = [{"a": memory[k : k + 4], "b": memory[k + 4 : k + 10].view(2, 3)} for k in (0, 20, 40)]
    for chosen in (rows, rows[::2], rows[1:]):
        found = trees.stack(chosen, copy=False)
        assert found["b"].data_ptr() == chosen[0]["b"].data_ptr()
        for name, leaf in trees.stack(chosen).items():
            assert torch.equal(found[name], leaf)
            assert leaf.data_ptr() != chosen[0][name].data_ptr()


@pytest.mark.parametrize(
    "leaves",
    [
        [torch.ones(3), torch.zeros(3)],  # in memories of their own
        [torch.arange(9.0)[k : k + 2] for k in (0, 2, 5)],  # at other distances
        [torch.arange(9.0)[k : k + 2] for k in (4, 2, 0)],  # backwards
        [torch.arange(9.0)[:4:2], torch.arange(9.0)[4:6]],  # laid out otherwise
        [torch.ones(2)] * 2,
        [torch.ones(2)],
        [torch.empty(0), torch.empty(0)],
    ],
)
def test_leaves_that_are_no_rows_are_copied(leaves):
    found = trees.stack(leaves, copy=False)
    assert torch.equal(found, torch.stack(leaves))
    found.fill_(7)
    assert not any((leaf == 7).any() for leaf in leaves)


def test_detached_shares_nothing():
    original = tree()
    copy = trees.detached(original)
    copy.a.add_(1)
    assert torch.equal(original.a, torch.ones(2))


def test_size_counts_bytes():
    assert trees.size_in_bytes(tree()) == 2 * 4 + 2 * 4 + 8


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite_sees_nan_and_inf_and_only_them(bad):
    assert trees.finite(tree())
    assert trees.finite(torch.full((4,), 3e38))  # a sum that overflows float32 is no infinity
    spoilt = tree()
    spoilt.b["p"][1] = bad
    assert not trees.finite(spoilt)


def test_what_is_no_tensor_is_found_wherever_it_is():
    class Pair(NamedTuple):
        t: torch.Tensor
        n: object

    t = torch.zeros(1)
    assert list(trees.others(Pair(t, {"a": t, "b": Pair(t, None)}))) == []
    assert list(trees.others(())) == list(trees.others({})) == []
    assert list(trees.others(Pair(t, {"a": Pair(t, 3)}))) == [("n/a/n", 3)]
    assert list(trees.others(Pair(t, [t]))) == [("n", [t])]
    assert list(trees.others(2.0)) == [("", 2.0)]


def test_dicts_may_be_by_whole_numbers_and_by_nothing_else_than_these_and_names():
    held = Pair(torch.ones(2), {3: torch.zeros(1), np.int64(1): {"p": torch.arange(2.0)}})
    flat = trees.arrays(held)
    assert [*flat] == ["a", "b/3", "b/1/p"]
    restored = trees.restore(trees.zeros(held), flat)
    assert restored.b.keys() == {1, 3}
    assert torch.equal(trees.take(trees.stack([held, restored]), 1).b[1]["p"], torch.arange(2.0))
    assert list(trees.others(held)) == []
    bare = {0: {0: torch.zeros(1)}, 1: torch.ones(1)}  # 0 is a path as well
    assert trees.restore(trees.zeros(bare), trees.arrays(bare)) == bare
    assert list(trees.others({0: {"a": 3}})) == [("0/a", 3)]
    for b in ({(1, 2): held.a}, {None: held.a}, {held.a: held.a}, {1: held.a, "1": held.a}):
        assert [path for path, _ in trees.others(Pair(held.a, {"x": b}))] == ["b/x"]
