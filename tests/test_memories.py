"""What clients remember: in RAM up to a size, on disk beyond it, and back after a stop."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedrecall import trees
from fedrecall.errors import UserError
from fedrecall.memories import Memories


class Memory(NamedTuple):
    inner: dict[str, Tensor]
    count: Tensor


def memory(value: float, size: int = 100) -> Memory:
    return Memory(
        {"a": torch.full((size,), value), "b": torch.full((2, 2), -value)}, torch.tensor(int(value))
    )


BYTES = trees.size_in_bytes(memory(0))
TEMPLATE = memory(0)


def value(m: Memory) -> int:
    assert torch.equal(m.inner["a"], torch.full((100,), float(m.count)))
    assert torch.equal(m.inner["b"], torch.full((2, 2), -float(m.count)))
    return int(m.count)


def test_thousands_of_clients_do_not_sit_in_ram(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)  # of 2,000 files
    store = Memories(TEMPLATE, tmp_path, cache_bytes=50 * BYTES)
    for k in range(2_000):
        store.put(k, memory(k))
    assert len(store._cache) == 50
    assert store._cached == 50 * BYTES
    assert len(list(tmp_path.iterdir())) == 2_000 - 50
    for k in (0, 1, 999, 1949, 1950, 1999):
        assert value(store.get(k)) == k
    assert len(store._cache) <= 50


def test_their_folder_is_synced_once_a_save_after_all_files_in_it(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or real(fd))
    store = Memories(TEMPLATE, tmp_path, cache_bytes=2 * BYTES)
    for k in range(5):  # three of them are spilled before they are saved
        store.put(k, memory(k))
    names = store.save()
    assert len(names) == 5
    *written, last = synced
    assert last == str(tmp_path.resolve())
    assert [Path(path).parent for path in written] == [tmp_path.resolve()] * 5
    store.save()
    assert len(synced) == 6  # nothing is new
    store.put(0, memory(9))
    store.load(store.save())
    assert len(synced) == 8
    assert value(store.get(0)) == 9


def test_a_client_has_no_memory_before_its_first_visit(tmp_path):
    store = Memories(TEMPLATE, tmp_path)
    assert store.get(3) is None
    assert store.save() == {}
    store.put(3, memory(7))
    assert value(store.get(3)) == 7


def test_the_least_recently_used_goes_to_disk_first(tmp_path):
    store = Memories(TEMPLATE, tmp_path, cache_bytes=2 * BYTES)
    store.put(1, memory(1))
    store.put(2, memory(2))
    store.get(1)
    store.put(3, memory(3))
    assert [p.name[:20] for p in tmp_path.iterdir()] == ["client-000002-000001"]
    assert value(store.get(2)) == 2


def test_one_memory_larger_than_the_cache_still_works(tmp_path):
    store = Memories(TEMPLATE, tmp_path, cache_bytes=1)
    for k in range(3):
        store.put(k, memory(k))
    assert [value(store.get(k)) for k in range(3)] == [0, 1, 2]
    assert len(store._cache) == 1


def test_going_back_to_a_checkpoint(tmp_path):
    store = Memories(TEMPLATE, tmp_path, cache_bytes=2 * BYTES)
    for k in range(4):
        store.put(k, memory(k))
    saved = store.save()
    for k in (0, 3, 0, 5):  # the rounds after it, which spill
        store.put(k, memory(10 + k))
    other = Memories(TEMPLATE, tmp_path, cache_bytes=2 * BYTES)
    other.load(saved)
    assert [value(other.get(k)) for k in range(4)] == [0, 1, 2, 3]
    assert other.get(5) is None
    store.load(saved)  # in the same process too
    assert [value(store.get(k)) for k in range(4)] == [0, 1, 2, 3]


def test_what_is_written_after_going_back_does_not_touch_the_checkpoint(tmp_path):
    store = Memories(TEMPLATE, tmp_path)
    store.put(0, memory(1))
    first = store.save()
    store.put(0, memory(2))
    second = store.save()
    assert first != second
    store.load(first)
    store.put(0, memory(3))
    assert store.save()["0"] not in first.values()
    store.load(first)
    assert value(store.get(0)) == 1


def test_versions_that_no_checkpoint_names_do_not_pile_up(tmp_path):
    store = Memories(TEMPLATE, tmp_path, cache_bytes=1)
    for round_number in range(5):
        for k in range(3):
            store.put(k, memory(round_number))
    assert len(list(tmp_path.iterdir())) <= 3
    saved = store.save()
    for k in range(3):
        store.put(k, memory(9))
    store.save()
    assert {p.name for p in tmp_path.iterdir()} >= set(saved.values())
    store.prune(set())
    assert len(list(tmp_path.iterdir())) == 3
    assert [value(store.get(k)) for k in range(3)] == [9, 9, 9]


def test_pruning_keeps_what_a_checkpoint_names(tmp_path):
    store = Memories(TEMPLATE, tmp_path)
    store.put(0, memory(1))
    old = store.save()
    store.put(0, memory(2))
    store.save()
    store.prune(set(old.values()))
    store.load(old)
    assert value(store.get(0)) == 1


def test_clients_that_remember_nothing_cost_nothing(tmp_path):
    class Nothing(NamedTuple):
        pass

    store = Memories(Nothing(), tmp_path)
    store.put(1, Nothing())
    assert store.get(1) == Nothing()
    assert store.save() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_its_own_is_deleted():
    store = Memories(TEMPLATE)
    folder = store.folder
    store.put(0, memory(1))
    store.save()
    assert list(folder.iterdir())
    store.close()
    assert not Path(folder).exists()


def test_a_file_of_another_structure_is_refused(tmp_path):
    store = Memories(TEMPLATE, tmp_path, cache_bytes=1)
    store.put(0, memory(1))
    saved = store.save()
    other = Memories(Memory({"a": torch.zeros(100)}, torch.tensor(0)), tmp_path)
    other.load(saved)
    with pytest.raises(ValueError, match=r"client 0 has an undeclared"):
        other.get(0)
    (tmp_path / saved["0"]).write_bytes(b"torn")
    store.load(saved)
    with pytest.raises(UserError, match=saved["0"]):
        store.get(0)


def test_a_client_that_is_put_again_takes_its_room_once(tmp_path):
    store = Memories(TEMPLATE, tmp_path, cache_bytes=2 * BYTES)
    for n in range(5):
        store.put(0, memory(n))
    store.put(1, memory(1))
    assert set(store._cache) == {0, 1}
    assert list(tmp_path.iterdir()) == []
