"""Where somebody's own code fails is said in a sentence, and a traceback begins there."""

from dataclasses import dataclass

import pytest

import fedrecall
from fedrecall import own_faults
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.errors import UserError

HERE = "test_own_faults.py"
SMALL = {"dataset": "digits", "clients": 4, "sample": 2, "rounds": 1, "model": "mlp:8", "progress": False}


@dataclass(frozen=True)
class Typo(FedAvg):
    def loss(self, model, params, anchor, batch):
        return helped(batch)


def helped(batch):
    return batch.X


@dataclass(frozen=True)
class Call(FedAvg):
    def loss(self, model, params, anchor, batch):
        return model(batch.x)


@dataclass(frozen=True)
class Logits(FedAvg):
    def loss(self, model, params, anchor, batch):
        return model.logits(params, batch.x)


@dataclass(frozen=True)
class Frozen(FedAvg):
    def loss(self, model, params, anchor, batch):
        return model.frozen(params, batch.x)


@dataclass(frozen=True)
class Refines(FedAvg):
    def refine(self, model, server, auxiliary):
        return auxiliary.batches(8)


@dataclass(frozen=True)
class Starts(FedAvg):
    def start(self, weights):
        return weights.nothing


@dataclass(frozen=True)
class Notes(FedAvg):
    def aggregate(self, server, ups, cohort):
        self.momentum = 0.9


def raised(algorithm, backend="serial"):
    with pytest.raises(Exception) as caught:
        fedrecall.run(algorithm=algorithm, backend=backend, **SMALL)
    return caught.value


def line(function, within=0):
    return function.__code__.co_firstlineno + 1 + within


@pytest.mark.parametrize("backend", ["serial", "vectorised"])
def test_a_traceback_begins_where_ones_own_code_does(backend):
    error = raised(Typo(), backend)
    said = f"In `loss` of {HERE}:Typo, line {line(Typo.loss)}."
    assert error.__notes__ == [said]
    lines = own_faults.told(error).splitlines()
    assert [text.rpartition(" in ")[2] for text in lines if text.startswith("  File")] == ["loss", "helped"]
    assert lines[-1] == said
    assert own_faults.reason(error) == f"AttributeError: 'Batch' object has no attribute 'X'. {said}"


@pytest.mark.parametrize(
    ("algorithm", "hook", "hint"),
    [
        (Call(), Call.loss, "model(params, batch.x)"),
        (Logits(), Logits.loss, "model(params, batch.x) is its logits"),
        (Frozen(), Frozen.loss, "anchor.weights"),
        (Refines(), Refines.refine, "auxiliary_per_class"),
        (Notes(), Notes.aggregate, "keep what changes in the server's state"),
        (Starts(), Starts.start, ""),
    ],
)
def test_what_many_mean_is_hinted_at(algorithm, hook, hint):
    (note,) = raised(algorithm).__notes__
    place = f"In `{hook.__name__}` of {HERE}:{type(algorithm).__name__}, line {line(hook)}."
    assert note.startswith(f"{place} " if hint else place)
    assert hint in note


def test_an_error_of_nobodys_own_code_is_shown_whole_and_a_sentence_as_it_is():
    with pytest.raises(AttributeError) as caught:
        fedrecall.losses.cross_entropy(None, None)
    error = caught.value
    own_faults.note(error)
    assert not hasattr(error, "__notes__")
    assert own_faults.reason(error) == f"AttributeError: {error}"
    assert "losses.py" in own_faults.told(error)
    assert HERE in own_faults.told(error)
    assert own_faults.reason(UserError("do this.")) == "do this."
    assert own_faults.reason(KeyError()) == "KeyError"
