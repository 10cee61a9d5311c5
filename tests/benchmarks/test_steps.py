"""Which of its measurements the steps' benchmark keeps."""

import pytest
import torch

from benchmarks import steps
from fedrecall.backends.processes import WORKERS
from fedrecall.files import read_json


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Ask it with these words for what costs nothing to measure."""
    for name, value in WORKERS.items():  # as it would start itself anew with
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(steps, "measure", lambda case, model: {"fedrecall": 1.0})
    monkeypatch.setattr(steps, "RESULTS", tmp_path / "steps.json")
    threads = torch.get_num_threads()

    def ask(*words):
        monkeypatch.setattr("sys.argv", ["steps", *words])
        steps.main()

    yield ask
    torch.set_num_threads(threads)


@pytest.mark.parametrize("words", [[], [*reversed(steps.CASES)]])
def test_all_cases_are_kept(asked, words):
    asked(*words)
    assert read_json(steps.RESULTS) == {case: {"fedrecall": 1.0} for case in words or steps.CASES}


@pytest.mark.parametrize(
    "words", [["fedavg:float32"], [*steps.CASES, "feddyn:float32"], ["--model", "lenet_cifar"]]
)
def test_others_take_the_place_of_none(asked, words):
    steps.RESULTS.write_text("kept")
    asked(*words)
    assert steps.RESULTS.read_text() == "kept"


def test_any_are_kept_where_that_is_asked_for(asked, tmp_path):
    asked("fedavg:float32", "--out", str(tmp_path / "one.json"))
    assert read_json(tmp_path / "one.json") == {"fedavg:float32": {"fedrecall": 1.0}}
    assert not steps.RESULTS.exists()
