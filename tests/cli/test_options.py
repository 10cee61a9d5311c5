"""What options are made of what is typed."""

import json
import sys

import pytest

from fedrecall.cli import main
from fedrecall.cli.options import several
from fedrecall.measures import MEASURES
from fedrecall.sinks import SINKS


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
    monkeypatch.setattr(sys, "argv", ["fedrecall", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
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
    monkeypatch.setattr(sys, "argv", ["fedrecall", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    found = json.loads((tmp_path / "r" / "metrics.jsonl").read_text())["measures"]
    assert found.keys() == {f"{own}:One", f"{own}:Two", "locals", "mine.py:One", "confusion"}
    assert [found[f"{own}:{name}"]["value"] for name in ("One", "Two")] == [1, 5]
