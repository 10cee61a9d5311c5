"""The table behind the shared tests: one row for every algorithm, and what makes it equal to a simpler one.

A new algorithm is a row here, after which `test_all.py` proves its identities, its backends, its
resuming, its batch norm and its tuples. Then `python -m tests.algorithms.golden NAME` records its
short run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrecall import config as configs
from fedrecall import trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.datasets import Dataset, load
from fedrecall.experiment import Experiment


@dataclass(frozen=True)
class Case:
    """One algorithm, or one variant of it, in the shared tests."""

    spec: str
    """As on the command line; a variant names its options (`fedntd:distance=mse`)."""
    equals: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters with which it is `like`, parameter by parameter; empty: there are none."""
    like: str = "fedavg"
    """What it then equals."""
    teacher: bool = False
    """Whether its loss looks at the outputs of the model that arrived (or of other frozen models)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the small experiment needs for the algorithm's term to be more than nothing."""
    refuses: tuple[str, ...] = ()
    """What the algorithm says that it cannot do: ``chains`` of several clients, ``batch norm``."""

    @property
    def name(self) -> str:
        """The algorithm's name in the registry."""
        return self.spec.partition(":")[0]


# FedSSD trusts a model only once it is better than chance.
WELL_TRAINED = {"training": {"local_epochs": 10, "lr": 0.1}}

CASES = [
    Case("fedavg"),
    Case("fedprox", equals={"mu": 0}),
    Case("fedlsd", equals={"alpha": 0}, teacher=True),
    Case("fedavgm", equals={"beta": 0}),
    Case("fednova"),
    Case("fednova:recoil=true"),
    Case("scaffold"),
    Case("scaffold:momentum_aware=false,uniform=true"),
    Case("feddyn"),
    Case("fedcurv", equals={"lam": 0}),
    Case("fedcurv:together=7"),
    Case("moon", equals={"mu": 0}, teacher=True),
    Case("moon:projection=5", teacher=True),
    Case("fedalign", equals={"mu": 0, "clip": 0}),
    Case("fedntd", equals={"beta": 0}, teacher=True),
    Case("fedcad", equals={"beta": 0, "gamma": 0}, teacher=True),
    Case("fedssd", equals={"m_max": 0}, teacher=True, settings=WELL_TRAINED),
    Case("calibrated", equals={"calibration": 0}),
    Case("fedtrio", equals={"beta": 0, "calibration": 0}, like="scaffold", teacher=True),
    Case("fedseq"),
    Case("cwc:lam=0.1", equals={"lam": 0}, like="fedseq"),
    Case("sfedkd:teachers=2", equals={"gamma": 0, "beta": 0}, like="fedseq"),
    Case("fedseq+aver", equals={"beta": 0}, like="fedseq"),
    Case("fedseq+ebkd", equals={"teachers": 0}, like="fedseq"),
    Case("fedseq+ca-mkd", equals={"beta": 0}, like="fedseq"),
    Case(
        "private",
        equals={"noise": 0, "clip": 1e6},
        # Where counting alike and by examples are the same, and inputs are normalised alike.
        settings={"partition": "iid", "normalisation": "fixed"},
        refuses=("chains", "batch norm"),
    ),
]
CHAINED = [case for case in CASES if "chains" not in case.refuses]
NORMED = [case for case in CASES if "batch norm" not in case.refuses]

# Other settings of the same hooks: for the tests that an option could break.
VARIANTS = [
    Case("fedntd:distance=mse", equals={"beta": 0}, teacher=True),
    Case("fedntd:kd_mix=0.5,tau=2", equals={"kd_mix": 1}, like="fedntd:tau=2", teacher=True),
    Case("fedcad:gamma=0.9,tau=2", equals={"gamma": 0.25}, like="fedlsd:alpha=0.25,tau=2", teacher=True),
    Case("fedssd:m_max=1,square_weights=false", equals={"m_max": 0}, teacher=True, settings=WELL_TRAINED),
    Case("fedssd:distillation=mse", equals={"m_max": 0}, teacher=True),
    Case("fedssd:distillation=kl", equals={"m_max": 0}, teacher=True),
    Case(
        "fedtrio:calibration=0.5,tau=2", equals={"beta": 0, "calibration": 0}, like="scaffold", teacher=True
    ),
    Case("sfedkd", equals={"teachers": 0}, like="fedseq", settings={"augmentation": "flip"}),
    Case(
        "sfedkd:selection=random,teachers=2,g=uniform,metric=js,tau=2", equals={"teachers": 0}, like="fedseq"
    ),
    Case("sfedkd:share=laplace,noise=0.1,h=uniform,metric=l1", equals={"teachers": 0}, like="fedseq"),
]


def each(cases: Iterable[Case] = CASES) -> dict[str, Any]:
    """For `pytest.mark.parametrize(**each())`."""
    cases = list(cases)
    return {"argnames": "case", "argvalues": cases, "ids": [c.spec for c in cases]}


NETS = f"{Path(__file__).with_name('nets.py')}:Small"
BATCH_NORM = f"{NETS}:norm=batch"
_data: dict[str, Dataset] = {}


def data() -> Dataset:
    """Enough examples for six clients and for a server that holds 64 of each class; tested at three sites."""
    if "small" not in _data:
        made = load("synthetic:classes=4,train=480,test=40,size=6,noise=2")
        test = replace(made.test, origin=torch.arange(len(made.test)) % 3)
        _data["small"] = replace(made, test=test, origins=("a", "b", "c"))
    return _data["small"]


def experiment(algorithm: Any, out: Path | None = None, resume: bool = False, **settings: Any) -> Experiment:
    """A small experiment in float64: six clients of unequal sizes, three of which take part."""
    training = {"local_epochs": 1, "batch_size": 16, "lr": 0.05, **settings.pop("training", {})}
    values = {
        "algorithm": algorithm,
        "dataset": "synthetic",
        "partition": "lda:1",
        "model": NETS,
        "clients": 6,
        "sample": 3,
        "rounds": 3,
        "seed": 3,
        "precision": "float64",
        "backend": "serial",
        **settings,
    }
    return Experiment(configs.make({**values, "training": training}), out, resume=resume, dataset=data())


def with_values(spec: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as a mapping, with these hyperparameters replaced."""
    return ALGORITHMS.spec(ALGORITHMS.make(spec)) | dict(values)


def assert_same(a: Any, b: Any, tolerance: float = 0.0, what: str = "state") -> None:
    """Two trees agree name by name: bit for bit, or to a tolerance relative to each tensor's size."""
    found, expected = trees.arrays(a), trees.arrays(b)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        x: Tensor = found[name]
        assert x.dtype == value.dtype, f"{what} {name}: {x.dtype}, not {value.dtype}"
        if tolerance == 0:
            assert torch.equal(x, value), f"{what} {name} differs by {(x - value).abs().max()}"
        else:
            scale = max(1.0, float(value.double().abs().max())) if value.numel() else 1.0
            gap = float((x.double() - value.double()).abs().max()) if value.numel() else 0.0
            assert gap <= tolerance * scale, f"{what} {name} differs by {gap}"
