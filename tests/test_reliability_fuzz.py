"""Some hundred bad inputs of every kind, with other draws than the ten thousand of `make torture`."""

import os
import pickle
import time
from itertools import pairwise
from threading import Thread

import pytest
from tests.torture import watch
from tests.torture.fuzzing import (
    CAMPAIGNS,
    EVERY,
    GIVEN,
    READ,
    TAKES,
    Campaign,
    argument_lists,
    attack,
    called,
    stays,
)
from tests.torture.watch import Hangs, Outside, watched
from typer.models import TyperPath

from fedrecall.cli.app import COMMANDS
from fedrecall.data import partitions
from fedrecall.errors import UserError

SHORT = {"command lines": 40, "forged checkpoints": 10, "files of a run": 25, "image folders": 30}
SHORT |= {"CSV files": 30, "parquet files": 8}


@pytest.mark.parametrize("kind", CAMPAIGNS)
def test_bad_input_is_used_or_refused_in_a_sentence(kind, tmp_path):
    make, _ = CAMPAIGNS[kind]
    outcomes = attack(make(tmp_path), SHORT.get(kind, 60), key=7)
    assert outcomes["refused"]


def test_command_lines_have_all_that_the_command_line_takes_and_write_nowhere_else(tmp_path):
    taken = {called(p): p for own in TAKES.values() for p in own}
    assert set(GIVEN) == {name for name, p in taken.items() if not getattr(p, "is_flag", False)}
    options = {name: p for name, p in taken.items() if p.param_type_name == "option"}
    writing = {n for n, p in options.items() if isinstance(p.type, TyperPath)} - {*READ}
    assert writing == {"--out", "--json", "--results", "--csv", "--save", "--picture", "--table"}
    for command, own in TAKES.items():
        drawn = set()

        def look(line: list[str], drawn=drawn) -> None:
            drawn.update(line)
            assert all(stays(given) for name, given in pairwise(line) if name in writing)

        attack(Campaign(argument_lists([command]), look, (tmp_path,)), 10 + 14 * len(own), key=8)
        assert [p.opts for p in own if p.param_type_name == "option" and drawn.isdisjoint(p.opts)] == []
    assert set(EVERY) >= set(COMMANDS)


def test_the_watch_sees_what_it_must_not_miss(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SECONDS", 0.5)
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    with watched(inside):
        (inside / "a").write_text("x")
        (inside / "a").unlink()
    for bad in (
        lambda: outside.write_text("x"),
        lambda: os.mkdir(outside),
        lambda: pickle.loads(pickle.dumps(UserError)),  # noqa: S301
        lambda: os.system("true"),
    ):
        if outside.is_file():
            outside.unlink()
        with pytest.raises(Outside), watched(inside):
            bad()

    def spin(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    with pytest.raises(Hangs), watched(inside):
        spin(60)

    def caught() -> None:
        try:
            spin(60)
        except Exception:
            raise UserError("it is no image") from None

    with pytest.raises(Hangs), watched(inside):
        caught()
    other = Thread(target=spin, args=[1])
    with watched(inside):
        other.start()
        other.join()


def test_an_attack_finds_a_traceback(tmp_path):
    campaign = CAMPAIGNS["partition files"][0](tmp_path)

    def careless(content: bytes) -> None:
        (tmp_path / "partition.json").write_bytes(content)
        partitions.load(tmp_path / "partition.json", 6)
        if content.startswith(b'{"f'):
            raise KeyError("clients")

    with pytest.raises(KeyError):
        attack(Campaign(campaign.inputs, careless, campaign.folders), 200, key=1)
