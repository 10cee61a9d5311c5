"""What options are made of what is typed."""

import json
import sys

import pytest

from fedrecall.cli import main
from fedrecall.cli.options import several
from fedrecall.measures import MEASURES


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("locals", ["locals"]),
        ("alignment,chain", ["alignment", "chain"]),
        ("locals:10, alignment", ["locals:10", "alignment"]),
        ("chain:2,drift=False,locals:every=3", ["chain:2,drift=False", "locals:every=3"]),
        ("confusion:1,true,personal", ["confusion:1,true", "personal"]),
        ("alignment,nobody", ["alignment", "nobody"]),  # to be refused by its name
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
