import errno
import os
import stat

import pytest
import torch

from fedrecall import files
from fedrecall.data.store import is_export
from fedrecall.errors import UserError
from fedrecall.records import RunFolder
from fedrecall.reports.runs import open_runs


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {
        "a": torch.arange(6).view(2, 3),
        "b": torch.randn(3, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
    }
    path = tmp_path / "x.safetensors"
    digest = files.write_arrays(path, arrays)
    back = files.read_arrays(path, digest)
    assert back.keys() == arrays.keys()
    assert all(torch.equal(back[n], arrays[n]) and back[n].dtype == arrays[n].dtype for n in arrays)


def test_every_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    digest = files.write_arrays(path, {"a": torch.arange(10.0)})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(UserError):
            files.read_arrays(path, digest)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_json(path, {"old": 1})

    def full(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"new": 2})
    assert files.read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_what_cannot_be_looked_up_is_a_sentence_and_not_missing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for name, kinds in (("file", (True, False)), (".", (False, True)), ("none", (False, False))):
        assert (
            files.found(tmp_path / name, stat.S_ISREG),
            files.found(tmp_path / name, stat.S_ISDIR),
        ) == kinds
        assert files.found(tmp_path / name) == any(kinds)
    assert not files.found(tmp_path / "file" / "below")
    assert not files.found(tmp_path / "nu\0ll")
    with pytest.raises(UserError, match="cannot be looked up: File name too long"):
        files.found(tmp_path / ("x" * 300))

    def refusing(path, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "stat", refusing)  # as without the permission, which root needs not
    for look in (files.found, lambda p: RunFolder(p).started, is_export, lambda p: open_runs([p])):
        with pytest.raises(UserError, match=f"{tmp_path}.* cannot be looked up: Permission denied"):
            look(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_bad_json_is_a_sentence(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json"):
        files.read_json(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"\xff" * 64])
def test_bad_arrays_are_a_sentence(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.safetensors"):
        files.read_arrays(path)


def test_only_what_a_killed_writer_left_is_swept(tmp_path):
    for name in (".x.json.123.tmp", ".notes.tmp", "x.tmp", ".x.json"):
        (tmp_path / name).write_text("")
    files.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".notes.tmp", ".x.json", "x.tmp"]


def test_nobodys_home_is_a_sentence():
    with pytest.raises(UserError, match="~nobody-of-that-name/x: "):
        files.expanded("~nobody-of-that-name/x")


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "page", tmp_path / "link"
    link.symlink_to(target)
    files.check_writable(link)
    for content in (b"first", b"second"):
        files.write(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    files.check_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write(pipe, b"into it")
        assert os.read(reader, 99) == b"into it"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "there"]
