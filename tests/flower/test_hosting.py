import re
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from tests.flower.federation import app_config

from fedrecall import config as configs
from fedrecall.algorithms import ALGORITHMS
from fedrecall.config import Config
from fedrecall.errors import UserError
from fedrecall.fields import fields
from fedrecall.flower import APP, hosting
from fedrecall.flower.hosting import NOT_HERE, Hosting
from fedrecall.training import Recipe


def flat(given, prefix=""):
    for key, value in given.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_the_app_offers_every_setting_with_its_default():
    """`flwr run` refuses keys that the app does not list: a new field must be listed there."""
    known = {f.name: f for f in fields(Config) if f.name not in (*NOT_HERE, "training")}
    known |= {f.name: f for f in fields(Hosting)}
    known |= {f"training.{f.name}": f for f in fields(Recipe)}
    offered = dict(flat(app_config()))
    assert offered.keys() == known.keys()
    for name, field in known.items():
        usual = {**hosting.DEFAULTS, "clients": "", "dataset": ""}.get(name, field.default)
        assert offered[name] == ("" if usual in (None, ()) else usual), name
    comments = re.findall(r"^# (.*)\n(\w+) =", (APP / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(comments) == len(known)


def test_the_apps_defaults_are_the_configs():
    config, host = hosting.read(dict(flat(app_config())) | {"clients": 4})
    expected = configs.make({"clients": 4, "sample": 4, "dataset": "fedrecall.flower.node:Elsewhere"})
    assert config == expected
    assert host == Hosting()


def test_dashes_and_dots_are_understood():
    given = {"clients": 4, "sample": 2, "min-clients": 2, "training.lr": 0.5, "class-names": " a + b"}
    config, host = hosting.read(given)
    assert config.training.lr == 0.5
    assert host.min_clients == 2
    assert host.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "clients is needed"),
        ({"clients": 4, "sample": 2, "min_clients": 3}, "min_clients = 3 is more than the 2 sampled"),
        ({"clients": 4, "class_names": "a+b+"}, "has a name that is empty"),
        ({"clients": 4, "class_names": "a+b+ a"}, "class_names has 'a' twice"),
        ({"clients": 4, "timeout": 0}, "timeout = 0 must be > 0"),
        ({"clients": 4, "sampel": 2}, "did you mean 'sample'"),
        ({"clients": 4, "measures": "locals"}, "measures cannot be set in a federation: they look at"),
        ({"clients": 4, "validation": 0.1}, "validation cannot be set in a federation: nodes evaluate on"),
        ({"clients": 4, "backend": "ray"}, "backend cannot be set in a federation"),
        ({"clients": 4, "algorithm": "private:fedavg"}, "which every node is told .* say secret=true"),
        ({"clients": 4, "algorithm": "sfedkd:share=laplace"}, "every node is told .* say secret_noise=true"),
        (
            {"clients": 4, "algorithm": "fedseq+ca-mkd:share=gaussian"},
            "every node is told .* say secret_noise=true",
        ),
        (
            {"clients": 4, "algorithm": "private:fedavg,secret=true", "checkpoint_every": 2},
            "leave checkpoint_every at 1",
        ),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(UserError, match=message):
        hosting.read(given)


def test_private_is_told_two_settings_of_what_it_protects_as_flower_passes_them_on():
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    (line,) = re.findall(r"^  '(algorithm=\"private.*)'$", page, re.MULTILINE)
    config, _ = hosting.read(parse_config_args([line]))
    assert config.algorithm["of"] == ALGORITHMS.spec(ALGORITHMS.make("fedntd:beta=0.5,tau=2"))
    assert (config.algorithm["clip"], config.clients) == (0.5, 3)


@pytest.mark.parametrize("form", ["{0}:Mine", "private:{0}:Mine"])
def test_a_file_of_the_servers_is_not_named_to_nodes(form, tmp_path, monkeypatch):
    """They have no such file, or another one."""
    (tmp_path / "mine_at_server.py").write_text(
        "from dataclasses import dataclass\nfrom fedrecall import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pass\n"
    )
    given = {"clients": 4, "normalisation": "fixed", "model": "mlp"}
    with pytest.raises(UserError, match=r"^algorithm = 'mine_at_server.py:Mine' .* name it as package"):
        hosting.read({**given, "algorithm": form.format(tmp_path / "mine_at_server.py")})
    with pytest.raises(UserError, match=r"^model = 'net.py:make' is a file of the server's"):
        hosting.read({**given, "model": "/somewhere/net.py:make"})
    monkeypatch.syspath_prepend(tmp_path)
    config, _ = hosting.read({**given, "algorithm": "mine_at_server:Mine"})
    assert config.algorithm["name"] == "mine_at_server:Mine"
