"""What options are made of what is typed."""

import importlib.util
import json
import sys

import pytest
from typer.testing import CliRunner

from fedrecall.cli import app, main
from fedrecall.cli.options import several
from fedrecall.measures import MEASURES
from fedrecall.sinks import SINKS


def ended(monkeypatch, *words):
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["fedrecall", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("locals", ["locals"]),
        ("alignment,chain", ["alignment", "chain"]),
        ("locals:10, alignment", ["locals:10", "alignment"]),
        ("chain:2,drift=False,locals:every=3", ["chain:2,drift=False", "locals:every=3"]),
        ("confusion:1,true,personal", ["confusion:1,true", "personal"]),
        ("alignment,nobody", ["alignment", "nobody"]),  # to be refused by its name
        ("own.py:Auc,own.py:PerSite", ["own.py:Auc", "own.py:PerSite"]),
        ("locals:2, own.py:Auc", ["locals:2", "own.py:Auc"]),
        ("own.py:Auc,locals:2,every=3", ["own.py:Auc", "locals:2,every=3"]),
        ("own.py:Auc:site=3,unit=mm,own.py:Auc:4,5", ["own.py:Auc:site=3,unit=mm", "own.py:Auc:4,5"]),
        (
            "mine.measures:auc,mine.measures:Auc,mine:Auc:1",
            ["mine.measures:auc", "mine.measures:Auc", "mine:Auc:1"],
        ),
        ("own.py:Auc,own.py:Auc:1,mine.measures:Auc", ["own.py:Auc", "own.py:Auc:1", "mine.measures:Auc"]),
        ("own.py:Auc,nobody", ["own.py:Auc", "nobody"]),
        ("own.py:Net:net=nets.py:Net,2", ["own.py:Net:net=nets.py:Net,2"]),  # a value
        ("/data/a,b/own.py:Auc,locals", ["/data/a,b/own.py:Auc", "locals"]),
        ("locals,./a,b,c.py:Auc:1,2", ["locals", "./a,b,c.py:Auc:1,2"]),
        ("sub/own.py,locals", ["sub/own.py", "locals"]),  # whose class was forgotten
    ],
)
def test_names_and_their_values_are_told_apart_at_commas(text, specs):
    assert several(text, MEASURES.entries) == specs


def test_several_measures_in_one_option_are_all_taken(tmp_path, monkeypatch):
    line = "run --dataset digits --clients 4 --sample 2 --rounds 1 --model mlp:4 --backend serial"
    words = [*line.split(), "--measure", "locals,confusion:1", "--measure", "personal"]
    words += ["--out", str(tmp_path / "r")]
    assert not ended(monkeypatch, *words)
    record = json.loads((tmp_path / "r" / "metrics.jsonl").read_text())
    assert record["measures"].keys() == {"locals", "confusion", "personal"}


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("mlflow:http://host:80,mine", ["mlflow:http://host:80,mine"]),
        ("wandb,mlflow:uri=http://me.org:80/a,b", ["wandb", "mlflow:uri=http://me.org:80/a,b"]),
        (
            "mlflow:sqlite:///a.db,x,own.py:Mail:to@me.org",
            ["mlflow:sqlite:///a.db,x", "own.py:Mail:to@me.org"],
        ),
        (
            "own.py:Web:http://a.org:80,https://b.org:443/x",
            ["own.py:Web:http://a.org:80,https://b.org:443/x"],
        ),
        ("tensorboard:/data/a,b,wandb", ["tensorboard:/data/a,b", "wandb"]),
    ],
)
def test_colons_in_values_begin_no_other_sink(text, specs):
    assert several(text, SINKS.entries) == specs


OWN = """
from dataclasses import dataclass

from fedrecall.measures.moment import Measure


@dataclass(frozen=True)
class One(Measure):
    value: int = 1

    def __call__(self, moment):
        return {"value": self.value}


@dataclass(frozen=True)
class Two(One):
    value: int = 2
"""


@pytest.mark.parametrize("words", [["--measure", "{}"], ["-s", "measures={}"]])
def test_measures_of_ones_own_stand_beside_others_in_one_option(tmp_path, monkeypatch, words):
    own = tmp_path / "own, mine.py"
    for path in (own, tmp_path / "mine.py"):
        path.write_text(OWN)
    monkeypatch.chdir(tmp_path)
    listed = f"{own}:One,{own}:Two:value=5,locals:1,mine.py:One,confusion"
    line = "run --dataset digits --clients 4 --sample 2 --rounds 1 --model mlp:4 --backend serial"
    words = [*line.split(), *(word.format(listed) for word in words), "--out", str(tmp_path / "r")]
    assert not ended(monkeypatch, *words)
    found = json.loads((tmp_path / "r" / "metrics.jsonl").read_text())["measures"]
    assert found.keys() == {f"{own.name}:One", f"{own.name}:Two", "locals", "mine.py:One", "confusion"}
    assert [found[f"{own.name}:{name}"]["value"] for name in ("One", "Two")] == [1, 5]


@pytest.mark.parametrize("words", [["--sink", "none"], ["-s", "sinks="], ["-s", "sinks=none"], []])
def test_a_run_begun_with_a_service_goes_on_without_it_where_its_package_is_missing(
    tmp_path, monkeypatch, capsys, words
):
    line = "run --dataset digits --clients 4 --sample 2 --rounds 1 --model mlp:4 --backend serial"
    folder = ["--out", str(tmp_path / "r")]
    assert not ended(monkeypatch, *line.split(), *folder, "--sink", "tensorboard", "--measure", "locals")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code = ended(monkeypatch, "run", "--resume", *folder, "--rounds", "2", *words)
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    if not words:
        assert code == 2
        assert "tensorboard is not installed" in (said := capsys.readouterr().err)
        assert "--sink none" in said
    else:
        assert not code
        assert (config["sinks"], config["measures"], config["rounds"]) == ([], ["locals"], 2)


@pytest.mark.parametrize("words", [["--measure", "none"], ["-s", "measures="], ["-s", "measures=none"]])
def test_measures_can_be_taken_off_a_run_that_goes_on(tmp_path, monkeypatch, words):
    line = "run --dataset digits --clients 4 --sample 2 --rounds 1 --model mlp:4 --backend serial"
    folder = ["--out", str(tmp_path / "r")]
    assert not ended(monkeypatch, *line.split(), *folder, "--measure", "locals,confusion")
    assert not ended(monkeypatch, "run", "--resume", *folder, "--rounds", "2", *words)
    records = [json.loads(text) for text in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [record.get("measures", {}).keys() for record in records] == [{"locals", "confusion"}, set()]


def test_partition_takes_what_a_deal_depends_on():
    shown = CliRunner().invoke(app, ["partition", "--help"]).output
    assert "--partition-seed" in shown
    assert not [name for name in ("--initial", "--test-augmentation", "--rounds", "--lr") if name in shown]
