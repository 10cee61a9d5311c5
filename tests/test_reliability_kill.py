"""The short form of `tests/torture/test_kill.py`: a few kills of every kind, and a pretended full disk."""

import errno
import os
import signal

import pytest
from tests.torture import kills

from fedrecall.errors import UserError
from fedrecall.experiment import Experiment
from fedrecall.records import PENDING


@pytest.mark.parametrize("algorithm", kills.ALGORITHMS)
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(algorithm, tmp_path):
    assert sum(kills.campaign(tmp_path, algorithm, "serial", 3, key=5).values()) >= 3


def test_a_run_whose_models_others_evaluate_killed_anywhere_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """Its records wait for that in a file of their own."""
    monkeypatch.setattr(Experiment, "evaluated_elsewhere", True)
    changes = {"measures": [], "rounds": 3}  # what a measure looks at is gone with the process
    expected = kills.run(tmp_path / "whole", "fedavg", "serial", **changes)
    moments = kills.Moments()
    with moments.counted():
        kills.run(tmp_path / "counted", "fedavg", "serial", **changes)
    for fatal in range(3, moments.count, 11):
        folder = tmp_path / str(fatal)

        def play(folder=folder, fatal=fatal) -> None:
            with kills.Moments(fatal).counted():
                kills.run(folder, "fedavg", "serial", **changes)

        assert kills.forked(play) == -signal.SIGKILL
        kills.readable(folder)
        assert kills.same(kills.run(folder, "fedavg", "serial", **changes), expected)
        assert not (folder / PENDING).exists()
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_run_on_processes_too(tmp_path):
    assert kills.campaign(tmp_path, "scaffold", "processes", 1, key=6)


def test_a_report_killed_while_it_is_written_is_whole_or_not_there(tmp_path):
    assert kills.killed_reports(tmp_path, 3, key=5)


def test_every_write_that_fails_for_want_of_room_costs_the_round_and_no_more(tmp_path, monkeypatch):
    expected = kills.run(None, "scaffold", "serial")
    syncs = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (syncs.append(fd), real(fd)))
    kills.run(tmp_path / "counted", "scaffold", "serial")
    total = len(syncs)

    for fatal in range(0, total, 7):
        count = iter(range(10**9))

        def full(fd: int, fatal: int = fatal, count=count) -> None:
            if next(count) == fatal:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(fd)

        folder = tmp_path / str(fatal)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"No space left on device.*resume the run"):
            kills.run(folder, "scaffold", "serial")
        monkeypatch.setattr(os, "fsync", real)
        kills.readable(folder)
        assert kills.same(kills.run(folder, "scaffold", "serial"), expected)
        kills.clean(folder)
