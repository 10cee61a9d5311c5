"""The GPU table's script runs from end to end, on a CPU and a few small images."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu

SMALL = "synthetic:classes=10,train=400,test=50,channels=3,size=8"


def test_measures_every_part_that_a_cpu_can_do(tmp_path: Path):
    out = tmp_path / "gpu.json"
    arguments = ["--device", "cpu", "--tiny", "--dataset", SMALL, "--epochs", "1"]
    assert gpu.main([*arguments, "--rounds", "2", "--run-rounds", "2", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    here = [name for name, backend in gpu.VARIANTS.items() if "graph" not in backend]
    assert [r["variant"] for r in found["rounds"]] == here * len(gpu.METHODS) * 2
    assert all(r["seconds"] > 0 and len(r["times"]) == 2 for r in found["rounds"])
    assert all(r["gap"] < 1e-12 for r in found["agreement"])
    assert [r["rounds"] for r in found["run"]] == [2, 2]
    assert all(r["ratio"] > 0 for r in found["together"])


@pytest.mark.parametrize("methods", [["fedavg"], ["fedntd"], ["fedavg", "fedntd"]])
def test_plays_no_other_methods_than_it_was_asked_for(methods, monkeypatch, tmp_path: Path):
    made: list[tuple[str, int]] = []
    experiment = gpu.Bench.experiment

    def noted(self: gpu.Bench, algorithm: str, variant: str, precision: str, **settings: Any) -> Any:
        made.append((algorithm, settings.get("seed", 0)))
        return experiment(self, algorithm, variant, precision, **settings)

    monkeypatch.setattr(gpu.Bench, "experiment", noted)
    arguments = ["--device", "cpu", "--tiny", "--dataset", SMALL, "--epochs", "1", "--rounds", "1"]
    arguments += ["--run-rounds", "1", "--variants", "stack", "--precisions", "float32"]
    arguments += ["--parts", "run", "together", "--out", str(tmp_path / "gpu.json"), "--methods", *methods]
    assert gpu.main(arguments) == 0
    whole, alone, *six = made
    assert whole == alone == (methods[-1], 0)
    assert len(set(six)) == len(six) == 6
    assert {algorithm for algorithm, _ in six} == {*methods}


def test_a_variant_that_fails_is_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(gpu, "VARIANTS", {"one by one": "serial", "broken": "vectorised:chunk=0"})
    out = tmp_path / "gpu.json"
    arguments = ["--device", "cpu", "--tiny", "--dataset", SMALL, "--epochs", "1", "--rounds", "1"]
    assert gpu.main([*arguments, "--parts", "variants", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rounds"]
    assert all(("error" in r) == (r["variant"] == "broken") for r in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_says_so_when_there_is_no_gpu(capsys: pytest.CaptureFixture[str]):
    assert gpu.main([]) == 2
    assert "no GPU here" in capsys.readouterr().out
