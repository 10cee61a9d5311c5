import json

import pytest
import torch

from fedrecall.errors import UserError
from fedrecall.records import Checkpoint, RunFolder, read_metrics


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def save(folder, number):
    return folder.save(Checkpoint(number, {"w": torch.full((3,), float(number))}, {}))


def test_the_last_two_checkpoints_are_kept(folder):
    for number in (1, 2, 3):
        save(folder, number)
    assert [c.round_number for c in folder.checkpoints()] == [3, 2]
    assert torch.equal(next(folder.checkpoints()).arrays["w"], torch.full((3,), 3.0))


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
    folder.save(Checkpoint(1, {"w": torch.zeros(1)}, {"0": "a"}))
    assert folder.save(Checkpoint(2, {"w": torch.zeros(1)}, {"0": "b"})) == {"a", "b"}
    (folder.path / "memories").mkdir()
    (folder.path / "memories" / "a").touch()
    assert [c.round_number for c in folder.checkpoints()] == [1]


def test_records_are_appended_read_and_rewound(folder):
    folder.path.mkdir()
    for number in (1, 2, 3):
        folder.append({"round": number, "x": 0.1})
    assert [r["round"] for r in folder.metrics()] == [1, 2, 3]
    assert [r["round"] for r in folder.rewind(2)] == [1, 2]
    assert [r["round"] for r in folder.metrics()] == [1, 2]


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
