"""Runs that are long or large, and what they hold on to."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.torture.watch import descriptors, resident

import fedrecall
from fedrecall.data.datasets import load

EVERY = {
    "locals": 1,
    "personal": 1,
    "divergence": 1,
    "confusion": 1,
    "sites": 1,
    "fairness": 1,
    "chain": 2,
    "diversity": 2,
    "alignment": 10,
    "landscape": 250,
}
"""How often each measure is taken: all of them are, the dear ones less often."""


class Gauge:
    """A sink that looks at memory and open files every so many rounds."""

    def __init__(self, every: int):
        self.every = every
        self.rounds: list[int] = []
        self.memory: list[float] = []
        self.files: list[int] = []

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Nothing to do."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Look."""
        if record["round"] % self.every == 0:
            gc.collect()
            self.rounds.append(record["round"])
            self.memory.append(resident())
            self.files.append(descriptors())

    def end(self) -> None:
        """Nothing to do."""

    def slope(self, after: int) -> float:
        """MB of memory a thousand rounds, by least squares over the rounds after the first ones."""
        late = [(r, m) for r, m in zip(self.rounds, self.memory, strict=True) if r > after]
        return float(np.polyfit(*zip(*late, strict=True), 1)[0] * 1000)


def long_run(folder: Path, rounds: int, gauge: Gauge, **changes: Any) -> Any:
    """Digits with every measure on."""
    measures = [f"{name}:{min(every, max(rounds // 2, 1))}" for name, every in EVERY.items()]
    measures[-1] += ",examples=100,draws=1,iterations=5"
    digits = load("digits")
    seen = replace(digits.test, origin=torch.arange(len(digits.test)) % 3)
    values: dict[str, Any] = {
        "dataset": replace(digits, test=seen, origins=("a", "b", "c")),
        "model": "mlp:4",
        "clients": 50,
        "sample": 2,
        "rounds": rounds,
        "checkpoint_every": 25,
        "backend": "serial",
        "measures": measures,
        "training": {"local_epochs": 1, "batch_size": 20, "lr": 0.05, "lr_decay": 0.999},
        **changes,
    }
    return fedrecall.run(folder, sinks=[gauge], **values)
