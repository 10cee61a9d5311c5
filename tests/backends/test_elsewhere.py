"""On a device that is not the CPU every algorithm and measure finds what it finds on the CPU.

Where there is a GPU, `test_vectorised.py` asks it. This asks `elsewhere.cpp`, a device that the CPU plays and
whose tensors do not mix with the CPU's: one made on the wrong side is an error there as on a GPU.
PyTorch must be told of it before the process takes its first gradient, and once a gradient was taken there
a fork of the process can take none: run these alone, as `make torture` does.
"""

import contextlib
import os
import shutil
import subprocess
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.cases import BATCH_NORM, CASES, NORMED, VARIANTS, Case, assert_same, data, experiment
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.cpp_extension import include_paths, library_paths

from fedrecall import trees
from fedrecall.backends.serial import Serial
from fedrecall.backends.vectorised import Options, Vectorised
from fedrecall.experiment import Experiment
from fedrecall.measures import MEASURES
from fedrecall.together import run_together

COMPILER = shutil.which(os.environ.get("CXX", "g++"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here to make a device with"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = [  # hooks that no algorithm of the package has
    Case(f"{EXAMPLES / 'fedrep.py'}:FedRep:keep=fc.,first=0.4"),
    Case(f"{EXAMPLES / 'fedsparse.py'}:FedSparse:share=0.3"),
    Case(f"{EXAMPLES / 'fedbyte.py'}:FedByte"),
    Case(f"{EXAMPLES / 'fedmean.py'}:FedMean:keep=0.7"),
    Case(f"{EXAMPLES / 'fedhard.py'}:FedHard"),
    Case(f"{EXAMPLES / 'localadam.py'}:LocalAdam", settings={"training": {"momentum": 0.0, "lr": 0.001}}),
]
SETTINGS = {"augmentation": "crop:1+flip+cutout:2", "partition": "lda:0.5", "rounds": 2}
HOW = {
    "one by one": Serial,
    "stacked": Vectorised,
    "stacked, matmul": lambda work: Vectorised(work, Options(convolutions="matmul")),
}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> torch.device:
    """The device, compiled and made known to PyTorch; for the rest of the process."""
    library = tmp_path_factory.mktemp("elsewhere") / "elsewhere.so"
    command = [str(COMPILER), "-std=c++20", "-O1", "-shared", "-fPIC"]
    command += [str(Path(__file__).with_name("elsewhere.cpp")), "-o", str(library)]
    command += [f"-isystem{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
    command += [
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend("elsewhere")
    module = types.ModuleType("torch.elsewhere")
    vars(module).update(is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0)
    vars(module).update(_is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None)
    torch._register_device_module("elsewhere", module)
    return torch.device("elsewhere:0")


@pytest.fixture
def there(elsewhere: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the small experiment on the device."""

    def make(how: Any, spec: str, *given: Any, **settings: Any) -> Experiment:
        with monkeypatch.context() as patch:
            patch.setattr("fedrecall.ingredients.device_of", lambda config: elsewhere)
            found = experiment(spec, *given, **settings)
        assert found.model.device == elsewhere
        monkeypatch.setattr("fedrecall.experiment.open_backend", lambda _, work: how(work))
        return found

    return make


def on_cpu(tree: Any) -> Any:
    return trees.transform(lambda t: t.cpu(), tree)


def test_the_device_is_none_that_the_cpu_mixes_with(elsewhere):
    x, y = torch.ones(3, device=elsewhere), torch.ones(3)
    for mix in (
        lambda: x + y,
        lambda: torch.equal(x, y),
        lambda: torch.cat([x, y]),
        lambda: torch.where(y > 0, x, x),
    ):
        with pytest.raises(RuntimeError, match=r"same device|devices are mixed"):
            mix()
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        np.asarray(x)
    torch.testing.assert_close((x + 1).cpu(), y + 1)


@pytest.mark.parametrize("how", HOW.values(), ids=list(HOW))
@pytest.mark.parametrize("case", [*CASES, *VARIANTS, *OWN], ids=lambda case: Path(case.spec).name)
def test_an_algorithm_trains_there_as_on_the_cpu(case: Case, how: Any, there: Any):
    settings = SETTINGS | case.settings
    expected = experiment(case.spec, **settings)
    expected.run()
    found = there(how, case.spec, **settings)
    found.run()
    assert_same(on_cpu(found.server), expected.server, 1e-9, case.spec)


@pytest.mark.parametrize("case", NORMED, ids=lambda case: case.spec)
def test_with_batch_norm_too(case: Case, there: Any):
    settings = SETTINGS | case.settings | {"model": BATCH_NORM}
    expected = experiment(case.spec, **settings)
    expected.run()
    found = there(Vectorised, case.spec, **settings)
    found.run()
    assert_same(on_cpu(found.server), expected.server, 1e-9, case.spec)


@pytest.mark.parametrize("spec", ["fedntd", "fedcurv", "sfedkd:teachers=2", "private:of=fedavg,noise=0.1"])
def test_every_measure_and_a_run_that_goes_on(spec: str, there: Any, tmp_path: Path):
    settings = {
        "measures": tuple(m for m in MEASURES if m != "chain" or spec.startswith("sfedkd")),
        "rounds": 3,
    }
    expected = experiment(spec, **settings).run()

    there(Vectorised, spec, tmp_path, **settings | {"rounds": 2}).run()
    found = there(Vectorised, spec, tmp_path, True, **settings).run()
    assert_same(on_cpu(found.weights), expected.weights, 1e-9, spec)
    assert len(found.history) == len(expected.history)
    for a, b in zip(found.history, expected.history, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds", "clients"}:
            np.testing.assert_allclose(
                _numbers(a[name]), _numbers(b[name]), rtol=1e-6, atol=1e-9, err_msg=name
            )


def test_runs_side_by_side_share_a_data_set_that_lies_there(elsewhere, monkeypatch, tmp_path: Path):
    expected = [experiment("fedntd", seed=seed, **SETTINGS) for seed in (1, 2)]
    for one in expected:
        one.run()
    monkeypatch.setattr("fedrecall.ingredients.device_of", lambda config: elsewhere)
    given = data().to(elsewhere)
    made = [
        Experiment(replace(one.config, backend="vectorised"), tmp_path / str(i), dataset=given)
        for i, one in enumerate(expected)
    ]
    assert all(one.federation.dataset.train.x is given.train.x for one in made)
    run_together(made)
    for mine, theirs in zip(made, expected, strict=True):
        assert_same(on_cpu(mine.server), theirs.server, 1e-9)
    again = Experiment(replace(made[0].config, rounds=3), tmp_path / "0", resume=True, dataset=data())
    again.close()  # it is known as the data that the run was begun on


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in _numbers(value[key])]
    if isinstance(value, (list, tuple)):
        return [x for one in value for x in _numbers(one)]
    return [] if value is None or isinstance(value, str) else [float(value)]


class Recording(TorchDispatchMode):
    """What a CUDA graph keeps: operations on tensors in memory that stays, to be done again.

    It refuses what a capture refuses: to wait for a number, for a size, or for the CPU's memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Any, Any, Any, list[tuple[torch.Tensor, int]]]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        given = [t for t in given if t.dim() or t.device.type != "cpu"]  # a number is kept as it is now
        name = func.name().partition(".")[0].removeprefix("aten::")
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2"), name
        assert not (name == "index" and any(t.dtype in (torch.bool, torch.uint8) for t in given[1:])), (
            "a mask"
        )
        out = func(*args, **(kwargs or {}))
        found = [(i, t) for i, t in enumerate(tree_leaves(out)) if isinstance(t, torch.Tensor)]
        assert len({t.device.type for t in given} | {t.device.type for _, t in found}) <= 1, (
            f"{name}: the CPU"
        )
        if found and found[0][1].device.type == "cpu":
            return out  # the CPU's own business is done once
        memory = {t.untyped_storage().data_ptr() for t in given}
        fresh = [(t, i) for i, t in found if t.untyped_storage().data_ptr() not in memory]
        if fresh or func._schema.is_mutable:  # what is a view is one already
            self.kept.append((func, args, kwargs or {}, fresh))
        return out

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, fresh in self.kept:
            made = tree_leaves(func(*args, **kwargs))
            for tensor, place in fresh:
                tensor.copy_(made[place])


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """CUDA's graphs and streams, played. Gives what was recorded."""
    made: list[Recording] = []

    def graph() -> Recording:
        made.append(Recording())
        return made[-1]

    monkeypatch.setattr("torch.cuda.CUDAGraph", graph)
    monkeypatch.setattr("torch.cuda.graph", lambda recording, stream: recording)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(
            f"torch.cuda.{name}", lambda *_: types.SimpleNamespace(wait_stream=lambda other: None)
        )
    for name in ("device", "stream"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda _: contextlib.nullcontext())
    return made


@pytest.mark.parametrize("options", [Options(graph=True), Options(graph=True, chunk=1, lanes=3)], ids=str)
@pytest.mark.parametrize("case", [*CASES, *VARIANTS, *OWN], ids=lambda case: Path(case.spec).name)
def test_a_recorded_training_is_done_again_with_what_is_new(
    case: Case, options: Options, there: Any, graphs: list[Recording]
):
    # Clients of one size, so that later rounds find a record; a rate that falls from round to round.
    settings = SETTINGS | case.settings | {"partition": "iid", "rounds": 4}
    expected = experiment(case.spec, **settings)
    expected.run()
    found = there(lambda work: Vectorised(work, options), case.spec, **settings)
    found.run()
    assert_same(on_cpu(found.server), expected.server, 1e-9, case.spec)
    assert max(graph.replays for graph in graphs) > 1
