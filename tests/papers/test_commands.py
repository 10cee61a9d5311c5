"""The command on an algorithm's page makes the run whose numbers stand below it."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from fedrecall import config as configs
from fedrecall.papers import table
from fedrecall.papers.reproduction import differences

CELLS = {
    "fedavg": ("fedntd/table1", "cifar10/shard2", "fedavg"),
    "fedprox": ("fedntd/table1", "cifar10/shard2", "fedprox"),
    "fednova": ("fedntd/table1", "cifar10/shard2", "fednova"),
    "scaffold": ("fedntd/table1", "cifar10/shard2", "scaffold"),
    "fedcurv": ("fedntd/table1", "cifar10/shard2", "fedcurv"),
    "moon": ("fedntd/table1", "cifar10/shard2", "moon"),
    "fedntd": ("fedntd/table1", "cifar10/shard2", "fedntd"),
    "fedalign": ("fedntd/table13", "16/lda0.1", "fedalign"),
    "fedlsd": ("fedcad/fig1", "cifar10/dirichlet0.5", "fedlsd"),
    "fedcad": ("fedcad/fig1", "cifar10/dirichlet0.5", "fedcad"),
    "fedssd": ("fedssd/table1", "cifar10", "fedssd"),
}


def setup(command: str) -> configs.Config:
    """The config that ``fedrecall run`` makes of its options."""
    words = shlex.split(command)
    values: dict[str, object] = {"training": {}}
    fields = configs.Config.__dataclass_fields__
    for option, value in zip(words[2::2], words[3::2], strict=True):
        name = option.removeprefix("--").replace("-", "_")
        number = int(value) if value.isdigit() else value
        if name in fields:
            values[name] = number
        else:
            values["training"][name] = float(value) if name in ("lr_decay", "weight_decay") else number
    return configs.make(values)


@pytest.mark.parametrize("page", CELLS)
def test_a_pages_first_command_is_the_setup_of_its_cell(page):
    text = (Path("docs/algorithms") / f"{page}.md").read_text()
    command = re.search(r"^    (fedrecall run .*)$", text, re.MULTILINE)[1]
    table_name, column, method = CELLS[page]
    cell = table(table_name).cell(column, method)
    config = setup(command)
    config = replace(config, sample=config.sampled)  # 0.1 of 100 is 10
    assert differences(cell.config(), config) == []
    assert config.rounds == cell.settings["rounds"]
