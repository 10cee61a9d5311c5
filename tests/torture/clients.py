"""Federations whose clients are wrong in every way that data can be."""

from typing import Any

import numpy as np
import torch

from fedrecall import config as configs
from fedrecall.data.augmentation import Augmentation
from fedrecall.data.federation import Federation
from fedrecall.data.store import Dataset, Split
from fedrecall.experiment import Experiment

FEATURES, CLASSES = 6, 3


def examples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of numbers around one centre a class."""
    stream = np.random.default_rng(seed)
    y = stream.integers(CLASSES, size=count)
    x = stream.standard_normal((count, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[y]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def federation(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> Federation:
    """These clients, and a sound test set."""
    x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    test = Split(*examples(90, 99))
    names = tuple(map(str, range(CLASSES)))
    dataset = Dataset("odd", names, Split(x, y), test, torch.zeros(FEATURES), torch.ones(FEATURES))
    cuts = np.cumsum([len(p[1]) for p in parts])[:-1]
    return Federation(dataset, np.split(np.arange(len(y)), cuts), Augmentation.parse("none"))


def odd_ones() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A client of every kind."""
    sound, other, one_class = examples(40, 1), examples(30, 2), examples(60, 3)
    kinds = {"sound": sound, "other": other, "one example": examples(1, 4), "empty": examples(0, 5)}
    kinds["one class"] = (one_class[0][one_class[1] == 1], one_class[1][one_class[1] == 1])
    for name, value in {"nan": torch.nan, "inf": torch.inf}.items():
        x, y = examples(20, 6)
        x[3, 2] = value
        kinds[name] = (x, y)
    x, y = examples(20, 7)
    kinds["exploding"] = (x * 1e30, y)
    return kinds


FAILING = {"empty": "no examples", "nan": "loss became nan", "inf": "became", "exploding": "became"}
"""The kinds that are left out of a round, and why."""


def run(given: Federation, out: Any = None, **changes: Any) -> Any:
    """Two rounds of everybody."""
    values = {
        "clients": len(given),
        "sample": len(given),
        "rounds": 2,
        "model": "mlp:5",
        "backend": "serial",
        "training": {"local_epochs": 2, "batch_size": 8, "lr": 0.1},
        **changes,
    }
    return Experiment(configs.make(values), out, federation=given).run()
