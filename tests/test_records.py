import errno
import fcntl
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from fedrecall import records
from fedrecall.errors import UserError
from fedrecall.memories import Memories
from fedrecall.records import (
    PENDING,
    Checkpoint,
    Fault,
    History,
    RunFolder,
    how_often,
    read_metrics,
    steps,
    whole,
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def save(folder, number):
    return folder.save(Checkpoint(number, {"w": torch.full((3,), float(number))}, {}))


def test_the_last_two_checkpoints_are_kept(folder):
    assert folder.kept_rounds() == (0, 0)
    for number in (1, 2, 3):
        save(folder, number)
        assert folder.kept_rounds() == (number - 1, number)
    assert [c.round_number for c in folder.checkpoints()] == [3, 2]
    assert torch.equal(next(folder.checkpoints()).arrays["w"], torch.full((3,), 3.0))


def test_checkpoints_that_stay_are_kept_besides_the_last_two(folder):
    for number in range(1, 9):
        named = {"0": f"client-{number}"}
        used = folder.save(Checkpoint(number, {"w": torch.full((3,), float(number))}, named, number % 3 == 0))
        assert used == {f"client-{n}" for n in (number - 1, number) if n}  # memories of the last two alone
        assert folder.kept_rounds() == (number - 1, number)
    assert folder.saved_rounds() == [3, 6, 7, 8]
    for number in (3, 6, 7):
        (found,) = folder.checkpoints(remembering=False, of=number)
        assert torch.equal(found.arrays["w"], torch.full((3,), float(number)))
        assert found.stays == (number % 3 == 0)
    assert not list(folder.checkpoints(remembering=False, of=5))
    folder.rewind(6)
    assert folder.saved_rounds() == [3, 6]
    folder.save(Checkpoint(7, {"w": torch.zeros(3)}, {}))
    assert folder.saved_rounds() == [3, 6, 7]


def test_a_save_reads_no_more_manifests_where_more_models_stay(folder, monkeypatch):
    def counted(path):
        read.append(path)
        return manifest(path)

    manifest, read, counts = records._manifest, [], []
    monkeypatch.setattr(records, "_manifest", counted)
    for number in range(1, 13):
        folder.save(Checkpoint(number, {"w": torch.zeros(1)}, {}, True))
        counts.append(len(read))
        read.clear()
    assert counts[-1] == counts[3]
    RunFolder(folder.path).tidy()  # as a process does that goes on with the run
    assert folder.saved_rounds() == list(range(1, 13))
    folder.rewind(5)
    for number in (6, 7, 8):  # played again, and kept no more
        folder.save(Checkpoint(number, {"w": torch.zeros(1)}, {}))
    assert folder.saved_rounds() == [1, 2, 3, 4, 5, 7, 8]
    assert len(list((folder.path / "checkpoints").iterdir())) == 2 * 7


@pytest.mark.parametrize("content", ["[]", "{}", '{"round": "x"}'])
def test_a_note_of_a_failure_that_says_nothing_is_told(folder, content):
    assert folder.fault is None
    folder.fail(Fault(3, "NaN"))
    assert folder.fault == Fault(3, "NaN")
    (folder.path / "failed.json").write_text(content)
    with pytest.raises(
        UserError, match=r"failed\.json does not say in which round the run failed: delete it"
    ):
        print(folder.fault)
    folder.go_on()
    assert folder.fault is None


@pytest.mark.parametrize("name", ["failed.json", PENDING])
def test_what_is_taken_away_while_it_is_looked_for_is_not_there(folder, name, monkeypatch):
    """As a run does that goes on, or whose nodes have evaluated, while others look at its folder."""
    folder.acquire()
    folder.append({"round": 1})
    folder.fail(Fault(2, "NaN"))
    folder.hold({"round": 2})
    read = Path.read_bytes

    def too_late(path):
        if path.name == name:
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", too_late)
    found = (folder.fault, len(folder.metrics()))
    folder.release()
    assert found == ((None, 2) if name == "failed.json" else (Fault(2, "NaN"), 1))


def test_a_folder_that_was_removed_and_begun_anew_is_the_other_ones(folder):
    folder.acquire()
    folder.append({"round": 1})
    shutil.rmtree(folder.path)
    with pytest.raises(UserError, match="was removed or replaced"):
        folder.append({"round": 2})
    other = RunFolder(folder.path)
    other.acquire()
    other.append({"round": 1})
    with pytest.raises(UserError, match="was removed or replaced"):
        folder.append({"round": 2})
    with pytest.raises(UserError, match="was removed or replaced"):
        save(folder, 2)
    assert other.metrics() == [{"round": 1}]
    save(other, 1)
    for held in (folder, other):
        held.release()


def test_a_disk_without_locks_is_a_sentence(folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"cannot be locked \(No locks available\)"):
        folder.acquire()


def test_the_millionth_round_comes_after_the_others(folder):
    for number in (999_998, 999_999, 1_000_000, 1_000_001):
        save(folder, number)
    assert [c.round_number for c in folder.checkpoints()] == [1_000_001, 1_000_000]
    folder.append({"round": 1})
    folder.rewind(1_000_000)
    assert [c.round_number for c in folder.checkpoints()] == [1_000_000]


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([1, 2, 3], "every round"),
        ([4, 8, 12], "every 4 rounds"),
        ([3, 6, 7, 8], "every 3 rounds up to round 6, then every round"),
        ([2, 3, 6, 9], "every 2 rounds up to round 2, then every round up to round 3, then every 3 rounds"),
        ([], "at the end alone"),
    ],
)
def test_how_often_there_was_something_is_told_as_it_was(rounds, words):
    assert how_often(rounds) == words
    told, at = [], 0
    for step, end in steps(rounds):  # which says all of it
        told += range(at + step, end + 1, step)
        at = end
    assert told == rounds


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(folder, suffix):
    save(folder, 1)
    save(folder, 2)
    path = folder.path / "checkpoints" / f"round-000002.{suffix}"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        assert next(folder.checkpoints()).round_number == 1, place
    path.unlink()
    assert next(folder.checkpoints()).round_number == 1


def test_memories_named_by_a_kept_checkpoint_are_reported_and_must_exist(folder):
    store = Memories(torch.zeros(2), folder.path / "memories")
    names = []
    for number in (1, 2):
        store.put(0, torch.full((2,), float(number)))
        saved = store.save()
        names.append(saved["0"])
        used = folder.save(Checkpoint(number, {"w": torch.zeros(1)}, saved))
    assert used == set(names)
    assert [c.round_number for c in folder.checkpoints()] == [2, 1]
    newest = folder.path / "memories" / names[1]
    content = newest.read_bytes()
    for place in range(len(content)):  # a flipped byte anywhere
        newest.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        assert [c.round_number for c in folder.checkpoints()] == [1]
    newest.unlink()
    assert [c.round_number for c in folder.checkpoints()] == [1]


def test_a_memory_cannot_be_named_outside_its_folder(folder, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    folder.save(Checkpoint(1, {"w": torch.zeros(1)}, {"0": "../../elsewhere"}))
    folder.save(Checkpoint(2, {"w": torch.zeros(1)}, {"../1": "x"}))
    assert list(folder.checkpoints()) == []


def test_damaged_checkpoints_do_not_push_out_sound_ones(folder):
    for number in (8, 9):
        save(folder, number)
    for path in (folder.path / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    folder.rewind(0)
    save(folder, 1)
    assert [c.round_number for c in folder.checkpoints()] == [1]


def test_what_a_killed_writer_left_is_swept_away(folder):
    save(folder, 1)
    for place in ("", "checkpoints", "memories"):
        (folder.path / place).mkdir(exist_ok=True)
        (folder.path / place / ".round-000002.json.123.tmp").write_bytes(b"half")
    folder.acquire()
    folder.release()
    assert not list(folder.path.rglob("*.tmp"))
    assert [c.round_number for c in folder.checkpoints()] == [1]


RECORD = {
    "round": 1,
    "lr": 0.1,
    "chains": [[3], [4]],
    "train_loss": 1.0,
    "failures": [],
    "bytes_down": 5,
    "bytes_up": 5,
    "seconds": {"train": 1.0, "clients": [0.5, 0.5]},
    "accuracy": 0.5,
    "loss": 1.0,
    "class_accuracy": [0.5, 0.5],
    "forgetting": 0.0,
    "consistency": None,
}


def test_a_history_reads_what_it_does_not_keep(folder):
    folder.path.mkdir()
    history = History(folder)
    assert history == []
    for number in (1, 2, 3):
        record = RECORD | {"round": number}
        folder.append(record)
        history.append(record)
    folder.append(RECORD | {"round": 4})  # not its own yet
    assert [r["round"] for r in history] == [1, 2, 3]
    assert len(history) == 3
    assert history[-1] == RECORD | {"round": 3}
    assert history[0] == RECORD
    assert history[2] == history[-1]
    with pytest.raises(IndexError):
        history[3]
    assert [r["round"] for r in history[1:]] == [2, 3]
    assert history == list(whole(list(history), folder.path))
    (folder.path / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="lacks rounds"):
        list(history)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 2}, "stands where 1 should"),
        ({"seconds": {"train": 1.0}}, "lacks 'seconds'"),
        ({"seconds": {"train": 1.0, "clients": [0.5]}}, "seconds of other clients"),
    ],
)
def test_records_that_are_not_whole_are_told_apart(change, words, tmp_path):
    assert whole([RECORD], tmp_path) == [RECORD]
    with pytest.raises(UserError, match=words):
        whole([RECORD | change], tmp_path)
    for name in RECORD.keys() - {"round", "accuracy"}:
        with pytest.raises(UserError, match=f"lacks '{name}'"):
            whole([{k: v for k, v in RECORD.items() if k != name}], tmp_path)
    with pytest.raises(UserError, match="another number of classes"):
        whole([RECORD, RECORD | {"round": 2, "class_accuracy": [1.0]}], tmp_path)


@pytest.mark.parametrize("value", ["text", [["x"]], {"train": "long"}, True])
def test_a_record_with_a_part_of_another_type_is_refused(value, tmp_path):
    path = tmp_path / "metrics.jsonl"
    for name in RECORD:
        path.write_text(json.dumps(RECORD | {name: value}) + "\n")
        if name == "failures" and isinstance(value, list):
            continue
        with pytest.raises(UserError, match="line 1"):
            list(read_metrics(path))


def test_records_are_appended_read_and_rewound(folder):
    folder.path.mkdir()
    for number in (1, 2, 3):
        folder.append({"round": number, "x": 0.1})
    assert [r["round"] for r in folder.metrics()] == [1, 2, 3]
    assert [r["round"] for r in folder.rewind(2)] == [1, 2]
    assert [r["round"] for r in folder.metrics()] == [1, 2]


def test_numbers_that_json_has_no_word_for_are_written_as_nothing_and_read_as_none_at_all(folder):
    folder.path.mkdir()
    lines = folder.path / "metrics.jsonl"
    folder.append(RECORD | {"train_loss": -math.inf, "mine": {"a": [math.nan, 1.0]}})
    lines.write_text(
        lines.read_text() + json.dumps(RECORD | {"round": 2, "loss": math.inf}) + "\n"
    )  # an old one
    new, old = folder.metrics()
    assert math.isnan(new["train_loss"])
    assert new["mine"] == {"a": [None, 1.0]}
    assert old["loss"] == math.inf
    folder.rewind(2)

    def no(word):
        raise AssertionError(word)

    assert len([json.loads(line, parse_constant=no) for line in lines.read_text().splitlines()]) == 2
    assert all(math.isnan(r[n]) for r, n in zip(folder.metrics(), ("train_loss", "loss"), strict=True))
    folder.hold(RECORD | {"round": 3, "loss": math.nan})
    assert math.isnan(folder.metrics()[2]["loss"])


def test_a_record_is_amended_without_reading_the_others(folder):
    folder.path.mkdir()
    path = folder.path / "metrics.jsonl"
    for number in (1, 2):
        path.write_text("".join(f'{{ "round" : {n} }}\n' for n in range(1, number)))
        folder.append({"round": number})
        folder.amend({"round": number, "accuracy": 0.5})
        first = '{ "round" : 1 }\n' if number == 2 else ""  # as it was, byte for byte
        assert path.read_text() == first + f'{{"round":{number},"accuracy":0.5}}\n'
    with pytest.raises(AssertionError):
        folder.amend({"round": 1})


def test_a_record_that_is_held_is_the_last_until_it_has_its_line(folder):
    lines, held = folder.path / "metrics.jsonl", folder.path / PENDING
    folder.path.mkdir()
    assert not folder.recorded
    folder.hold({"round": 1})
    assert folder.recorded
    assert folder.metrics() == [{"round": 1}]
    folder.append({"round": 1, "accuracy": 0.5})
    assert folder.metrics() == [{"round": 1, "accuracy": 0.5}]
    assert not held.exists()
    folder.hold({"round": 2})
    kept = held.read_bytes()
    folder.append({"round": 2, "accuracy": 0.5})
    held.write_bytes(kept)  # as a kill leaves it that comes right after the line
    assert [len(r) for r in folder.metrics()] == [2, 2]
    lines.write_bytes(lines.read_bytes()[:-4])  # or in the middle of it
    assert [len(r) for r in folder.metrics()] == [2, 1]
    assert [len(r) for r in folder.rewind(2)] == [2, 1]
    assert not held.exists()
    assert list(read_metrics(lines)) == folder.metrics()  # a line a round, for who reads no other file
    folder.hold({"round": 3})
    assert len(folder.rewind(1)) == 1
    folder.append({"round": 2})
    assert [r["round"] for r in folder.metrics()] == [1, 2]
    for damaged in ("{", "[]", '{"round": true}'):
        held.write_text(damaged)
        with pytest.raises(UserError, match=r"pending\.json"):
            folder.metrics()


def test_a_line_cut_short_at_the_end_is_left_out_and_elsewhere_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps({"round": 1})
    for cut in range(1, len(whole)):
        path.write_text(whole + "\n" + whole[:cut])
        assert len(list(read_metrics(path))) == 1
    path.write_text(whole[:5] + "\n" + whole + "\n")
    with pytest.raises(UserError, match="line 1"):
        list(read_metrics(path))


def test_two_writers_are_refused(folder):
    folder.acquire()
    with pytest.raises(UserError, match="another run is writing"):
        RunFolder(folder.path).acquire()
    folder.release()
    second = RunFolder(folder.path)
    second.acquire()
    second.release()


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        RunFolder(tmp_path / "file" / "run").acquire()


def test_a_record_is_on_disk_when_the_round_goes_on(folder, monkeypatch):
    folder.path.mkdir()
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size) or real(fd))
    folder.append(RECORD)
    assert synced == [(folder.path / "metrics.jsonl").stat().st_size]


def test_the_documentation_names_all_that_a_record_has():
    page = (Path(__file__).parent.parent / "docs" / "report.md").read_text()
    section = page.split("## A round's record\n")[1].split("\n## ")[0]
    told = {name for row in section.splitlines() for name in re.findall(r"`(\w+)`", row)}
    assert told >= {"round", "off_grid", *records._PARTS, *records._EVALUATED, *records._OTHERS}
