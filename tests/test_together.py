"""Runs side by side are the same runs one after another."""

import os
import signal
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.algorithms.cases import NETS, assert_same, experiment

from fedrecall import config as configs
from fedrecall import trees
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.backends import vectorised
from fedrecall.backends.backend import Job
from fedrecall.backends.vectorised import Vectorised
from fedrecall.errors import Diverged, Interrupted, UserError
from fedrecall.experiment import Experiment
from fedrecall.together import group, play, run_together, stacks

RUNS: list[dict[str, Any]] = [
    {"algorithm": "fedntd", "seed": 1},
    {"algorithm": "fedntd", "seed": 2, "rounds": 2},
    {"algorithm": "fedntd", "seed": 2, "sample": 5, "partition": "iid", "training": {"lr": 0.01}},
    {"algorithm": "fedntd:beta=0.3", "seed": 1},
    {"algorithm": "scaffold", "seed": 5},
    {"algorithm": "scaffold", "seed": 6, "chains": 2},
    {"algorithm": "fedseq", "seed": 5},
    {"algorithm": "fedseq", "seed": 6, "evaluate_every": 2},
]


def together(runs: Any = RUNS, **settings: Any) -> list[Experiment]:
    return [experiment(**{**run, "backend": "vectorised", **settings}) for run in runs]


@pytest.mark.parametrize("backend", ["auto", "vectorised:2,lanes=2", "vectorised:convolutions=matmul"])
def test_every_run_is_what_it_is_alone(backend: str):
    experiments = together(backend=backend)
    results = run_together(experiments)
    for run, side, result in zip(RUNS, experiments, results, strict=True):
        alone = experiment(**run)
        expected = alone.run()
        assert_same(side.server, alone.server, 1e-12, str(run))
        assert len(result.history) == len(expected.history)
        for a, b in zip(result.history, expected.history, strict=True):
            same = [
                "round",
                "lr",
                "chains",
                "failures",
                "bytes_up",
                "bytes_down",
                "class_accuracy",
                "forgetting",
            ]
            assert {k: a.get(k) for k in same} == {k: b.get(k) for k in same}
            assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-11)


def test_only_runs_whose_steps_are_the_same_are_one_stack():
    made = [e.config for e in together()]
    assert group(made) == [[0, 1, 2], [3], [4, 5], [6, 7]]
    by_inputs = [configs.make({"normalisation": how}) for how in ("data", "fixed", "data")]
    assert group(by_inputs) == [[0, 2], [1]]
    apart = {
        "algorithm": ("fedavg", "fedprox"),
        "model": ("cnn:8", "cnn:9"),
        "dataset": ("digits", "mnist"),
        "device": ("cpu", "cuda"),
        "precision": ("float32", "float64"),
        "augmentation": ("none", "flip"),
        "training": ({"batch_size": 10}, {"batch_size": 20}),
    }
    for key, values in apart.items():
        assert group([configs.make({key: value}) for value in (*values, values[0])]) == [[0, 2], [1]], key
    with pytest.raises(UserError, match="not by 'processes'"):
        group([configs.make({"backend": "processes"})])


def test_data_sets_of_one_name_are_normalised_each_by_its_own():
    first = experiment(algorithm="fedavg", backend="vectorised")
    run_config, data = first.config, first.federation.dataset
    given = [data, replace(data, mean=data.mean + 0.3, std=2 * data.std)]
    results = run_together([Experiment(run_config, dataset=d) for d in given])
    for result, own in zip(results, given, strict=True):
        alone = Experiment(run_config, dataset=own).run()
        assert_same(result.weights, alone.weights, 1e-12)


def test_networks_that_their_seeds_built_unlike_are_not_one_stack(monkeypatch: pytest.MonkeyPatch):
    stacks: list[int] = []
    real = Vectorised.map_all
    monkeypatch.setattr(Vectorised, "map_all", lambda self, t: stacks.append(len(t)) or real(self, t))
    runs = [{"algorithm": "fedavg", "seed": s, "model": NETS.replace("Small", "Masked")} for s in (1, 2, 2)]
    for run, result in zip(runs, run_together(together(runs, rounds=1)), strict=True):
        assert_same(result.weights, experiment(**run, rounds=1).run().weights, 1e-12)
    assert stacks == [3, 6]


def test_one_stack_holds_everybodys_clients(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    real = Vectorised.map_all

    def counted(self: Vectorised, tasks: Any) -> Any:
        sizes.append(len(tasks))
        return real(self, tasks)

    monkeypatch.setattr(Vectorised, "map_all", counted)
    run_together(together(RUNS[:3], rounds=1))
    assert sizes == [3 + 3 + 5]


def test_runs_keep_folders_and_can_be_resumed(tmp_path: Path):
    runs = [{"algorithm": "scaffold", "seed": s} for s in (1, 2)]
    first = [
        experiment(out=tmp_path / str(i), **{**run, "rounds": 1 + i}, backend="vectorised")
        for i, run in enumerate(runs)
    ]
    run_together(first)
    again = [
        experiment(out=tmp_path / str(i), resume=True, **run, backend="vectorised")
        for i, run in enumerate(runs)
    ]
    assert [len(e.history) for e in again] == [1, 2]
    run_together(again)
    for run, resumed in zip(runs, again, strict=True):
        alone = experiment(**run)
        alone.run()
        assert_same(resumed.server, alone.server, 1e-12)
    # Finished runs have nothing left to do.
    done = [experiment(out=tmp_path / "0", resume=True, **runs[0], backend="vectorised")]
    assert len(run_together(done)[0].history) == 3


class Signal:
    """A sink that sends a signal after the first round."""

    def begin(self, config: Any, history: Any) -> None:
        self.ended = False

    def record(self, record: Any) -> None:
        if record["round"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        self.ended = True


def test_a_signal_lets_everybody_finish_the_round(tmp_path: Path):
    experiments = together(RUNS[3:6])
    sink = Signal()
    experiments[0].sinks.append(sink)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as stopped:
        run_together(experiments)
    assert stopped.value.signum == signal.SIGTERM
    assert [len(e.history) for e in experiments] == [1, 1, 1]
    assert sink.ended
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_failing_run_lets_go_of_every_folder(tmp_path: Path):
    runs = [{"algorithm": "fedavg", "seed": 1}, {"algorithm": "fedavg", "seed": 2, "training": {"lr": 1e300}}]
    experiments = [
        experiment(out=tmp_path / str(i), **run, backend="vectorised") for i, run in enumerate(runs)
    ]
    with pytest.raises(UserError, match="every client of the round failed"):
        run_together(experiments)
    again = [
        experiment(out=tmp_path / str(i), resume=True, **run, backend="vectorised")
        for i, run in enumerate(runs)
    ]
    assert [len(e.history) for e in again] == [1, 0]
    for e in again:
        e.close()


@pytest.mark.parametrize("backend", ["vectorised", "serial"])
def test_a_run_that_diverges_ends_alone_and_at_once(tmp_path: Path, backend: str):
    runs = [{"seed": s, "training": {"lr": lr}} for s, lr in ((1, 0.05), (2, 1e300), (3, 0.05))]
    ends: dict[int, Any] = {}
    for places in [[0, 1, 2]] if backend == "vectorised" else [[0], [1], [2]]:
        made = [experiment("fedavg", tmp_path / str(i), **runs[i], backend=backend) for i in places]

        def ended(k: int, end: Any, places: list[int] = places, made: list[Experiment] = made) -> None:
            ends[places[k]] = end
            assert made[k].folder is not None
            made[k].folder.acquire()  # it has been let go
            made[k].folder.release()
            if isinstance(end, Diverged):
                assert all(i == 1 or ends.get(i) is None for i in places)

        play(made, ended)
    assert ends.keys() == {0, 1, 2}
    assert "every client of the round failed" in str(ends[1])
    for i in (0, 2):
        assert_same(ends[i].weights, experiment("fedavg", **runs[i]).run().weights, 1e-12)


def test_a_signal_in_the_last_round_is_heeded_when_all_have_ended():
    made = together(RUNS[4:6], rounds=1)
    made[0].sinks.append(Signal())
    ended: list[int] = []
    with pytest.raises(Interrupted, match="after round 1"):
        play(made, lambda k, end: ended.append(k))
    assert ended == [0, 1]


def test_runs_are_played_side_by_side_where_that_makes_stacks(monkeypatch: pytest.MonkeyPatch):
    names = ["fedavg", "fedntd", "fedavg", "fedntd"]

    def of(*backends: str) -> list[list[int]]:
        return stacks(
            [
                configs.make({"algorithm": name, "backend": backend, "seed": i})
                for i, (name, backend) in enumerate(zip(names, backends, strict=True))
            ]
        )

    assert of(*["vectorised"] * 4) == [[0, 2], [1, 3]]
    assert of("vectorised", "serial", "vectorised", "processes") == [[0, 2], [1], [3]]
    assert of(*["auto"] * 4) == [[0], [1], [2], [3]]  # on a CPU it stacks none
    monkeypatch.setattr("fedrecall.together.device_of", lambda config: torch.device("cuda"))
    assert of(*["auto"] * 4) == [[0, 2], [1, 3]]
    assert of(*["serial"] * 4) == [[0], [1], [2], [3]]


class Replayed:
    """A recorded training without its GPU: results lie where those of the last replay lay."""

    def __init__(self, *given: Any):
        *self.parts, stack = given
        self.inputs = trees.detached(stack)
        self.outputs: Any = None

    def start(self, stack: Any) -> Any:
        trees.transform(lambda mine, new: mine.copy_(new), self.inputs, stack)
        made = vectorised.local_training(*self.parts, self.inputs, self.inputs.lr)
        if self.outputs is None:
            self.outputs = trees.detached(made)
        trees.transform(lambda kept, new: kept.copy_(new), self.outputs, made)
        return self.outputs

    def wait(self) -> None:
        pass


def test_recorded_trainings_of_one_wave_do_not_take_one_anothers_place(monkeypatch: pytest.MonkeyPatch):
    def recording(config: Any, work: Any) -> Vectorised:
        backend = Vectorised(work)
        backend.options = vectorised.Options(graph=True)
        return backend

    monkeypatch.setattr(vectorised, "Recorded", Replayed)
    monkeypatch.setattr("fedrecall.together.open_vectorised", recording)
    runs = [{"algorithm": "fedavg", "partition": "iid", "training": {"lr": lr}} for lr in (0.01, 0.1)]
    for run, result in zip(runs, run_together(together(runs)), strict=True):
        assert_same(result.weights, experiment(**run).run().weights, 1e-12)


def test_a_recorded_training_that_counts_what_batches_are_filled_with_is_refused(monkeypatch: Any):
    @dataclass(frozen=True)
    class Plain(FedAvg):
        def loss(self, model: Any, params: Any, anchor: Any, batch: Any) -> Any:
            return torch.nn.functional.cross_entropy(model(params, batch.x), batch.y)

    monkeypatch.setattr(vectorised, "Recorded", Replayed)
    work = experiment(algorithm="fedavg", sample=6).work
    down = work.algorithm.broadcast(work.model, work.algorithm.start(work.model.initial()), None)
    backend = Vectorised(replace(work, algorithm=Plain()))
    backend.options = vectorised.Options(graph=True)
    with pytest.raises(UserError, match="counts what a small batch"):
        list(backend.map([Job(0, client, 1, down, None) for client in range(6)]))


def test_recorded_trainings_of_chunks_that_were_too_large_are_freed(monkeypatch: pytest.MonkeyPatch):
    stacked, limit = vectorised.stacked, 6

    def small(begun: Any, *args: Any) -> Any:
        if len(begun) > limit:
            raise torch.OutOfMemoryError
        return stacked(begun, *args)

    monkeypatch.setattr(vectorised, "Recorded", Replayed)
    monkeypatch.setattr(vectorised, "stacked", small)
    work = experiment(algorithm="fedavg", partition="iid", sample=6).work
    down = work.algorithm.broadcast(work.model, work.algorithm.start(work.model.initial()), None)
    jobs = [Job(0, client, 1, down, None) for client in range(6)]
    backend = Vectorised(work)
    backend.options = vectorised.Options(graph=True)
    list(backend.map(jobs))
    (recorded,) = map(weakref.ref, backend._graphs[0].values())
    limit = 3
    list(backend.map(jobs))
    assert recorded() is None
    assert backend._graphs
