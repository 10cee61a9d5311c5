"""The examples that the documentation shows run as they stand."""

import json
import re
import sys
from pathlib import Path

import pytest
from tools import reliability

import fedrecall
from fedrecall import config as configs
from fedrecall import files
from fedrecall.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples"
DOCS = Path(__file__).parent.parent / "docs"


def configs_of(page, folder):
    """The configs that a page's YAML makes."""
    found = []
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)):
        path = folder / f"{page.stem}-{number}.yaml"
        path.write_text(block)
        found.append(configs.make(configs.nested(configs.load(path))))
    return found


def test_five_lines_of_python(capsys):
    text = (EXAMPLES / "five_lines.py").read_text()
    assert '"rounds": 10,' in text
    exec(compile(text.replace('"rounds": 10,', '"rounds": 2,'), "five_lines.py", "exec"), {})
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["fedavg", "fedntd"]


def test_the_settings_that_the_documentation_shows_are_some(tmp_path):
    assert all(configs_of(page, tmp_path) for page in (DOCS / "settings.md", DOCS / "privacy.md"))
    long, short = configs_of(DOCS / "settings.md", tmp_path)
    assert long == short
    files.write_json(tmp_path / "config.json", configs.as_dict(long))
    assert configs.make(configs.load(tmp_path / "config.json")) == long


def test_an_algorithm_from_a_file_of_ones_own_on_the_command_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = (
        "--dataset digits --clients 20 --sample 2 --rounds 1 --model mlp:8 --backend processes --workers 2"
    )
    algorithm = f"{EXAMPLES / 'fedmargin.py'}:FedMargin:margin=0.5"
    monkeypatch.setattr(sys, "argv", ["fedrecall", "run", "--algorithm", algorithm, *small.split()])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code in (0, None)


def distance(algorithm, **settings):
    """How far one round with an algorithm ends from FedAvg's."""
    common = {
        "dataset": "digits",
        "clients": 20,
        "sample": 2,
        "rounds": 1,
        "model": "mlp:8",
        "backend": "serial",
        **settings,
    }
    mine, plain = (fedrecall.run(algorithm=a, **common) for a in (algorithm, "fedavg"))
    return max((mine.weights.params[n] - v).abs().max() for n, v in plain.weights.params.items())


def test_without_its_margin_the_example_is_fedavg():
    assert distance(f"{EXAMPLES / 'fedmargin.py'}:FedMargin:margin=0") < 1e-6


def test_equal_weights_are_those_of_fedavg_where_clients_hold_equally_much():
    equal = f"{EXAMPLES / 'fedequal.py'}:FedEqual"
    assert distance(equal, partition="iid") < 1e-6 < 1e-3 < distance(equal, partition="lda:0.1")


def test_the_example_with_a_memory_is_fedavg_without_its_teacher_and_remembers_when_it_goes_on(tmp_path):
    assert distance(f"{EXAMPLES / 'fedself.py'}:FedSelf:beta=0") < 1e-6
    own = f"{EXAMPLES / 'fedself.py'}:FedSelf:beta=100"
    settings = {"dataset": "digits", "clients": 4, "sample": 4, "model": "mlp:8", "backend": "serial"}
    whole = fedrecall.run(algorithm=own, rounds=3, **settings)
    fedrecall.run(tmp_path / "run", algorithm=own, rounds=2, **settings)
    assert len(list((tmp_path / "run" / "memories").iterdir())) >= 4
    resumed = fedrecall.run(tmp_path / "run", resume=True, rounds=3)
    for name, value in whole.weights.params.items():
        assert value.equal(resumed.weights.params[name])


def test_the_page_on_reliability_is_that_of_its_results():
    assert reliability.PAGE.read_text() == reliability.page(json.loads(reliability.RESULTS.read_text()))
