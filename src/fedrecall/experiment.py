"""The loop over rounds: play, evaluate, measure, record, checkpoint; resume; stop on a signal."""

import json
import math
import os
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fedrecall import config as configs
from fedrecall import (
    contracts,
    files,
    initial,
    own_digest,
    own_faults,
    payloads,
    provenance,
    rounds,
    streams,
    trees,
)
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import FedAvg, keeps_own
from fedrecall.backends import open_backend
from fedrecall.backends.backend import Work
from fedrecall.config import Config
from fedrecall.data import partitions
from fedrecall.data.datasets import Dataset, load
from fedrecall.data.federation import Federation
from fedrecall.errors import Diverged, Interrupted, UserError, sentence, shown
from fedrecall.ingredients import (
    chain_count,
    describe,
    federate,
    file_changed,
    make_model,
    measures_of,
    normalised,
)
from fedrecall.measures.accuracy import Evaluation, Recall, accuracy, class_accuracy, evaluate
from fedrecall.measures.moment import Measure, Moment
from fedrecall.measures.sites import by_client
from fedrecall.memories import Memories
from fedrecall.models.model import Model, Weights
from fedrecall.models.trained import Inputs, Trained
from fedrecall.own_modules import named
from fedrecall.records import AGAIN, INPUTS, Checkpoint, Fault, History, RunFolder, accuracy_word, whole
from fedrecall.sinks import following
from fedrecall.training import Failure


class Sink(Protocol):
    """Whoever wants to know how a run goes: a progress bar, TensorBoard, a notebook."""

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """The run starts, after the rounds in ``history``."""

    def record(self, record: Mapping[str, Any]) -> None:
        """A round was played."""

    def end(self) -> None:
        """The run is over, finished or not; not called if it did not begin."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    config: Config
    records: Sequence[dict[str, Any]]
    """One record a round, as in metrics.jsonl; of a run with a folder they are read from there each time."""
    weights: Weights
    """The final global model."""
    model: Model
    federation: Federation
    out: Path | None

    def __repr__(self) -> str:
        of = f"{self.config.algorithm['name']} on {self.federation.dataset.name}"
        last, found = self.records[-1], "last round tested by nobody"
        if "accuracy" in last:
            found = f"{accuracy_word(last)} {self.accuracy:.2%}, forgetting {self.forgetting:.3f}"
        return f"<Result of {of}: {found} after {len(self.records)} rounds>"

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The records as a list."""
        return list(self.records)

    @property
    def trained(self) -> Trained:
        """The final global model, to be used: it takes examples as they are and names classes."""
        return Trained(self.model, self.weights, Inputs.of(self.federation.dataset))

    @property
    def accuracy(self) -> float:
        """Accuracy of the last round on the test split, or on what `validation` held out.

        NaN where no node of a federation tested that round; `records` have those before.
        """
        return float(self.records[-1].get("accuracy", math.nan))

    @property
    def forgetting(self) -> float:
        """Forgetting F after the last round, NaN as `accuracy` is."""
        return float(self.records[-1].get("forgetting", math.nan))


class Experiment:
    """One run of one algorithm over one federation."""

    def __init__(
        self,
        config: Config,
        out: Path | str | RunFolder | None = None,
        *,
        resume: bool = False,
        dataset: Dataset | None = None,
        federation: Federation | None = None,
        data_root: Path | None = None,
        sinks: Sequence[Sink] = (),
    ):
        """``dataset`` replaces the one that the config names; ``out`` is the run folder, if any.

        A host that has looked into the folder gives it as it has taken it; it is let go of with the run.

        ``federation`` replaces the one that the config describes: of clients whose data are elsewhere.
        """
        for one in sinks:
            able = all(callable(getattr(one, method, None)) for method in ("begin", "record", "end"))
            if isinstance(one, type) or not able:
                raise UserError(
                    f"sinks: {shown(one)} is no object with the methods begin, record and end of "
                    "fedrecall.experiment.Sink; one with a name, such as tensorboard, is named in the config."
                )
        self.config = config
        self.folder = out if isinstance(out, RunFolder) or out is None else RunFolder(files.expanded(out))
        self.sinks: list[Sink] = [*sinks, *following(config.sinks, self.folder.path if self.folder else None)]
        self._watching: list[Sink] = []
        self._stop: int | None = None
        self._saved = 0
        self.broken = False
        """Whether an error has ended its rounds."""
        if self.folder is not None:
            self._claim(self.folder, resume)
        try:
            self._build(dataset, federation, data_root)
        except BaseException as error:
            own_faults.note(error)
            if self.folder is not None:
                self.folder.release()
            raise

    def _claim(self, folder: RunFolder, resume: bool) -> None:
        folder.acquire()
        try:
            if folder.started and not resume and not folder.recorded:
                folder.forget()  # one that failed before its first round
            check_folder(folder, self.config, resume=resume)
        except BaseException:
            folder.release()
            raise

    def _build(self, dataset: Dataset | None, given: Federation | None, data_root: Path | None) -> None:
        config = self.config
        self.algorithm: FedAvg = ALGORITHMS.make(config.algorithm)
        data, starts = dict[str, Any](), list[dict[str, Any]]()
        if self.folder is not None and self.folder.started:
            starts = provenance.starts(self.folder.path / "made.json")
        if given is None:
            dataset = dataset if dataset is not None else load(config.dataset, root=data_root)
            if self.folder is not None:
                data = provenance.facts(dataset)
                _check_data(self.folder, starts, data)
            self.federation = federate(config, dataset, self.algorithm, self.folder)
            if not len(self.federation.dataset.test):
                raise UserError(
                    f"{dataset.name} has no test examples, and validation = 0 holds none out to evaluate on: "
                    "give some, or say validation = 0.1."
                )
            if self.folder is not None and self.folder.started and file_changed(config, self.federation):
                warnings.warn(
                    f"{config.partition['path']} has changed since {self.folder.path} was begun, "
                    "which goes on with what clients held then.",
                    RuntimeWarning,
                )
        else:
            self.federation = replace(given, dataset=normalised(config, given.dataset))
        self.model = make_model(config, self.federation.dataset, self.algorithm)
        weights = self._initial(starts)
        with streams.seeded(None if self.algorithm.secret else config.seed, "start"):
            self.server = trees.without_graph(self.algorithm.start(weights))
            memory = self.algorithm.remember(weights)  # for its form: clients draw their own
        self.measures = measures_of(config)
        for measure in self.measures.values():
            measure.check(self.federation)
        contracts.weighted(self.server, "start", "the server's state")
        _check_kept(self.server, "the server's state")
        contracts.full(self.server.weights, weights, "start", "the server's state")
        _check_kept(memory, "a client's memory")
        shape, classes = self.federation.dataset.shape, self.federation.dataset.classes
        self.memory_bytes = trees.size_in_bytes(payloads.kept(self.algorithm, self.model, shape, classes))
        self.memories = self.open_memories(memory, self.folder.path / "memories" if self.folder else None)
        self.history: list[dict[str, Any]] | History = []
        self._recall, self._told = Recall(), False
        if self.folder is not None:
            with files.writing(self.folder.path):
                self._open(self.folder, starts, data)

    def _initial(self, starts: Sequence[Mapping[str, Any]]) -> Weights:
        """What the run begins with; of one that goes on from a checkpoint the form is all that matters."""
        weights, place = self.model.initial(), _needed(self.config, self.folder)
        self._begun_with = starts[-1].get("initial") if starts else None
        if place is None:
            return weights
        weights = initial.loaded(place, weights, self.federation.dataset.class_names)
        found = initial.digest(weights)
        _check_initial(starts, place, found)
        self._begun_with = found
        return weights

    def _open(self, folder: RunFolder, starts: list[dict[str, Any]], data: dict[str, Any]) -> None:
        """Begin the run folder, or go on from what is there, but for what `begin` writes.

        ``data`` tells what this process divided among clients, if it did.
        """
        code = own_digest.code(configs.what(self.config))
        again = _played_again(folder, starts) if self.algorithm.secret else 0
        _check_code(folder, starts, code)
        if folder.started:
            self._restore(folder, again)
        else:
            self.history = History(folder, folder.rewind(0))
            if data:
                parts, told = describe(self.federation)
                partitions.save(folder.path / "partition.json", parts, {**told, "data": data})
        Inputs.of(self.federation.dataset).save(folder.path / INPUTS)
        start = provenance.environment(self.model.device)
        start |= ({"data": data} if data else {}) | ({"code": code} if code else {})
        start["own models"] = keeps_own(self.algorithm)
        if self._begun_with is not None:
            start["initial"] = self._begun_with
        if not starts:
            start["run"] = secrets.token_hex(8)  # what others may know this run by, wherever it is moved
        self._starts = [*starts, start]

    def _restore(self, folder: RunFolder, again: int) -> None:
        """Go on from the newest sound checkpoint; ``again``: rounds that were played again before."""
        played, refused, recorded = 0, list[str](), folder.metrics()
        _check_rounds(folder, len(recorded), self.config.rounds)
        for checkpoint in folder.checkpoints(refused):
            if not _fits(self.server, checkpoint.arrays):
                raise UserError(
                    f"{folder.path} holds the checkpoint of another algorithm or model than its config now "
                    "makes: resume it with the code that it was begun with, or give another --out."
                )
            self.server = trees.restore(self.server, checkpoint.arrays, "checkpoint")
            self.memories.load(checkpoint.memories)
            played = checkpoint.round_number
            if refused:
                warnings.warn(f"{refused[0]} Going on from round {played}.", RuntimeWarning)
            break
        else:
            self._check_nothing_is_lost(folder, recorded, refused)
        if self.algorithm.secret:
            lost = max(0, len(recorded) - played)
            if lost:
                files.write_json(folder.path / AGAIN, {"rounds": again + lost})
            self.server = self.algorithm.recount(self.server, played + again + lost)
        kept = whole(folder.rewind(played, recorded), folder.path / "metrics.jsonl")
        if len(kept) != played:
            raise UserError(f"{folder.path}/metrics.jsonl lacks rounds before round {played}.")
        for record in kept:
            if "class_accuracy" in record and not record.get("off_grid"):
                self._recall.step(np.array(record["class_accuracy"]))
        self.history = History(folder, kept)
        self._saved = played
        self.memories.prune(folder.tidy())

    def _check_nothing_is_lost(
        self, folder: RunFolder, recorded: Sequence[Mapping[str, Any]], refused: Sequence[str]
    ) -> None:
        """Raise UserError unless a run without a checkpoint is one that was killed before its first.

        Such a run has no manifest, and its rounds were not saved, but for the last: a kill may come between
        a round's record and its checkpoint.
        """
        saved = any("memories" in r.get("seconds", {}) for r in recorded[:-1])
        if refused or saved or len(recorded) > configs.begun(folder.config()).checkpoint_every:
            why = refused[0] if refused else f"{folder.path / 'checkpoints'} holds none that can be read."
            raise UserError(
                f"{folder.path} holds {len(recorded)} rounds, but no checkpoint to go on from: {why} "
                "Nothing was changed: put back what is missing, or give another --out."
            )

    def run(self) -> Result:
        """Play the rounds that are left."""
        backend = None
        try:
            with signals([self]):
                if not self.finished:
                    backend = open_backend(self.config.backend, self.work)
            self.begin()
            with signals([self]):
                return rounds.drive(self.loop(), backend.map if backend is not None else lambda _: ())
        finally:
            if backend is not None:
                backend.close()
            self.close()

    @property
    def finished(self) -> bool:
        """Whether no round is left."""
        return len(self.history) >= self.config.rounds

    @property
    def work(self) -> Work:
        """What a backend needs to know of this run."""
        return Work(
            self.algorithm,
            self.model,
            self.config.training,
            self.federation,
            self.config.seed,
            self._chain_count,
            self.config.workers,
        )

    def begin(self) -> None:
        """Note in the folder, and tell the sinks, that rounds will follow, as the backend is open.

        Only a folder with a config has begun.
        """
        if self.folder is not None:
            with files.writing(self.folder.path):
                files.write_json(self.folder.path / "config.json", configs.as_dict(self.config))
                files.write_json(self.folder.path / "made.json", self._starts)
                self.folder.go_on()
        last = self.history[-1] if self.history else {}
        awaited = self.finished or (self.evaluated_elsewhere and self._due(len(self.history)))
        if self.folder is not None and last and "accuracy" not in last and awaited:
            with files.writing(self.folder.path):
                self._evaluate_last(self.folder)
        for sink in self.sinks:
            sink.begin(configs.as_dict(self.config), self.history)
            self._watching.append(sink)

    def loop(self) -> rounds.Dialogue[Result]:
        """The rounds that are left, as a dialogue with whoever makes the visits."""
        while not self.finished:
            try:
                yield from self._round(len(self.history) + 1)
            except Exception as error:
                self._note(error)
                raise
            if self._stop is not None and not self.finished:
                self._save_stopped(len(self.history))
                self.heed_stop()
        return Result(
            self.config,
            self.history,
            self.server.weights,
            self.model,
            self.federation,
            self.folder.path if self.folder else None,
        )

    def _note(self, error: Exception) -> None:
        """Leave word in the run folder of what ends the run, if that can be written."""
        self.broken = True
        own_faults.note(error)
        said = own_faults.reason(error)
        if self.folder is not None:
            with suppress(OSError, UserError):
                self.folder.fail(Fault(min(len(self.history) + 1, self.config.rounds), said))

    def ask_to_stop(self, signum: int) -> None:
        """Stop after the round that is being played; asked twice, at once."""
        if self._stop is not None:
            raise KeyboardInterrupt
        self._stop = signum

    def heed_stop(self) -> None:
        """Raise Interrupted if the run was asked to stop in its last round, which it then finished.

        For whoever has other runs to play after it.
        """
        if self._stop is not None:
            raise Interrupted(self._stop, len(self.history), saved=self.folder is not None)

    def close(self) -> None:
        """Let go of the run folder and tell the sinks that were told of the begin."""
        try:
            for sink in self._watching:
                sink.end()
        finally:
            self.memories.close()
            if self.folder is not None:
                self.folder.release()

    @property
    def _chain_count(self) -> int:
        return chain_count(self.config, self.algorithm)

    def _round(self, number: int) -> rounds.Dialogue[None]:
        config, clock = self.config, Clock()
        before: Weights = self.server.weights
        try:
            played = yield from self._played(number)
        except Diverged as error:
            raise Diverged(f"{error} {self.kept}") from error
        failures = [v.failure for v in played.visits if v.failure is not None]
        self.check_failures(failures, len(played.visits))
        self.server = played.server
        good = [v for v in played.visits if v.failure is None]
        record: dict[str, Any] = {
            "round": number,
            "lr": config.training.sgd(number, 1).lr,
            "chains": played.chains,
            "train_loss": sum(v.loss / len(good) for v in good),  # the sum of finite ones may be infinite
            "failures": [str(f) for f in failures],
            "bytes_down": played.bytes_down,
            "bytes_up": played.bytes_up,
            "memory_bytes": self.memory_bytes,
            "seconds": {"train": clock.lap(), "clients": [round(v.seconds, 6) for v in played.visits]},
        }
        shown = self._due(number) and self.evaluated_elsewhere
        if shown:  # a model that others have seen must not be made anew, with other noise
            self._save(number, record, clock, pending=True)
        if self._due(number):
            evaluation = self.evaluation(self.server.weights, number)
            if not (shown or math.isfinite(evaluation.loss)):
                raise Diverged(
                    f"the loss of round {number}'s model is {evaluation.loss} on the {config.split} split. "
                    f"{self.kept}"
                )
            record |= self._evaluated(evaluation, record)
            record["seconds"]["evaluate"] = clock.lap()
            moment = Moment(
                number,
                self.model,
                self.federation,
                before,
                self.server.weights,
                played.chains,
                played.visits,
                played.sent,
                evaluation,
                self.algorithm,
                played.memories,
                self.memories.get,
            )
            for name, measure in self.measures.items():
                if number % measure.every == 0 or number == config.rounds:
                    record.setdefault("measures", {})[name] = self._measured(name, measure, moment)
                    record["seconds"].setdefault("measures", {})[name] = clock.lap()
        if not shown:
            self._save(number, record, clock)
        elif self.folder is not None:
            with files.writing(self.folder.path):
                self.folder.append(record)
        self.history.append(record)
        for sink in self.sinks:
            sink.record(record)

    def _measured(self, name: str, measure: Measure, moment: Moment) -> Any:
        """What a measure says of a round, which goes on as if nobody had looked."""
        held = {
            "before": moment.before,
            "after": moment.after,
            "sent": tuple(moment.sent),
            "uploads": tuple(v.up for v in moment.visits),
            "memories": tuple(v.memory for v in moment.visits),
            "remembered": tuple(moment.memories),
        }
        given = contracts.untouched(held, f"measure {name}", "the round")
        with given, streams.seeded(self.config.seed, "measure", name, moment.round_number):
            return _plain(name, measure(moment))

    def _played(self, number: int) -> rounds.Dialogue[rounds.Round]:
        """The round as its clients play it."""
        config = self.config
        seed = None if self.algorithm.secret else config.seed
        sampled = rounds.drawn(
            self.algorithm,
            self.server,
            population=len(self.federation),
            count=config.sampled,
            seed=seed,
            global_seed=config.global_seed,
            round_number=number,
        )
        return (
            yield from rounds.walk(
                self.algorithm,
                self.model,
                self.server,
                self.memories,
                self.federation.auxiliary,
                population=len(self.federation),
                sampled=sampled,
                chain_count=self._chain_count,
                round_number=number,
                seed=seed,
            )
        )

    def _due(self, number: int) -> bool:
        """Whether the model of this round is evaluated."""
        return number % self.config.evaluate_every == 0 or number == self.config.rounds

    def _evaluate_last(self, folder: RunFolder) -> None:
        """Evaluate the last round of a run that was stopped before that, and ends there or had yet to.

        Measures look at what the round's clients did, which is gone.
        """
        clock, record = Clock(), {k: v for k, v in self.history[-1].items() if k != "untested"}
        record |= self._evaluated(self.evaluation(self.server.weights, record["round"]), record)
        record["seconds"] = record["seconds"] | {"evaluate": clock.lap()}
        folder.amend(record)
        if isinstance(self.history, History):
            self.history.amend(record)

    def open_memories(self, template: Any, folder: Path | None) -> Memories:
        """Where clients' memories are, given any of them; a host may keep them elsewhere."""
        return Memories(template, folder)

    def evaluation(self, weights: Weights, number: int) -> Evaluation:
        """The model of this round on the test set; a host may have it elsewhere."""
        with streams.seeded(self.config.seed, "evaluate", number):  # of a network that draws
            return evaluate(self.model, weights, self.federation.test)

    @property
    def evaluated_elsewhere(self) -> bool:
        """Whether others see a round's model to evaluate it."""
        return False

    def check_failures(self, failures: Sequence[Failure], visits: int) -> None:
        """Raise UserError if a round with these failures cannot count."""
        if failures and self.config.on_failure == "stop":
            raise Diverged(f"{sentence(failures[0])} {self.kept}")
        if len(failures) == visits:
            raise Diverged(
                f"every client of the round failed, first {sentence(failures[0])} {self.kept}{self._way_back}"
            )

    @property
    def kept(self) -> str:
        """What there is of a run that ends in this round, in a sentence."""
        if self.folder is None:
            return "A run without a folder keeps no model."
        if self._saved == len(self.history):
            kept = f"The model of round {self._saved} is kept."
            return kept if self._saved else "There was no round before it."
        last = f"The last saved model is that of round {self._saved}" if self._saved else "No model was saved"
        return f"{last}: checkpoint_every is {self.config.checkpoint_every}."

    @property
    def _way_back(self) -> str:
        if self.folder is None or self._saved != len(self.history) or self._saved < 2:
            return ""
        return (
            " If that one is too far gone to train on, delete the newest round-*.json of "
            f"{self.folder.path / 'checkpoints'}: --resume then goes on from the one before."
        )

    def _evaluated(self, evaluation: Evaluation, record: Mapping[str, Any]) -> dict[str, Any]:
        """What a round's record has of its evaluation, and what the algorithm reports with it.

        Of a round that all who should evaluate it are missing for it has no accuracy.
        """
        tested = evaluation.confusion.any() or not evaluation.missing
        found = self._found(evaluation) if tested else {}
        missing: dict[str, Any] = {"untested": list(evaluation.missing)} if evaluation.missing else {}
        if evaluation.sent is not None:
            found |= dict(zip(("bytes_evaluation_down", "bytes_evaluation_up"), evaluation.sent, strict=True))
        if tested and record["round"] % self.config.evaluate_every:
            missing["off_grid"] = True  # evaluated because the run was to end there: not looked back on
        taken = {*record, *found, "accuracy", "split", "sites", "untested", "off_grid", "measures"}
        with contracts.untouched(self.server, "report", "the server's state"):
            told = self.algorithm.report(self.server)
        return found | missing | contracts.numbers(told, taken)

    def _found(self, evaluation: Evaluation) -> dict[str, Any]:
        """What a record has of the predictions."""
        classes = class_accuracy(evaluation.confusion)
        self._tell_untested(evaluation)
        forgotten, consistent = self._recall.step(classes, evaluation.confusion.sum(1) > 0)
        found: dict[str, Any] = {
            "accuracy": accuracy(evaluation.confusion),
            "loss": evaluation.loss,
            "class_accuracy": [float(a) for a in classes],
            "forgetting": forgotten,
            "consistency": consistent,
        }
        if self.config.validation:
            found["split"] = self.config.split
        if evaluation.own is not None:
            found["own_accuracy"] = accuracy(evaluation.own)
        if evaluation.by_client:
            found["sites"] = by_client(evaluation.by_client, evaluation.own_by_client)
        return found

    def _tell_untested(self, evaluation: Evaluation) -> None:
        """Warn once of classes that the test split has no example of."""
        names = self.federation.dataset.class_names
        absent = [names[c] for c in np.flatnonzero(evaluation.confusion.sum(1) == 0)]
        if absent and not self._told:
            some = ", ".join(map(shown, absent[:3]))
            others = f" and {len(absent) - 3} others" if len(absent) > 3 else ""
            warnings.warn(
                f"nothing is tested of {some}{others}: a class without test examples counts as 0 in class "
                "accuracies, and not at all in forgetting.",
                RuntimeWarning,
            )
            self._told = True

    def _save(self, number: int, record: dict[str, Any], clock: "Clock", *, pending: bool = False) -> None:
        """Save the round; ``pending``: its record is to have an evaluation yet."""
        if self.folder is None:
            return
        last = number == self.config.rounds or self._stop is not None
        due = last or self._stays(number) or number % self.config.checkpoint_every == 0
        with files.writing(self.folder.path):
            if due:
                saved = self.memories.save()
                record["seconds"]["memories"] = clock.lap()
            (self.folder.hold if pending else self.folder.append)(record)
            if due:
                self._checkpoint(self.folder, number, saved)

    def _save_stopped(self, number: int) -> None:
        """Save the round that was just played, unless it was: the signal may have come after its record."""
        if self.folder is not None and self._saved < number:
            with files.writing(self.folder.path):
                self._checkpoint(self.folder, number, self.memories.save())

    def _checkpoint(self, folder: RunFolder, number: int, saved: dict[str, str]) -> None:
        checkpoint = Checkpoint(number, trees.arrays(self.server), saved, self._stays(number))
        self.memories.prune(folder.save(checkpoint))
        self._saved = number

    def _stays(self, number: int) -> bool:
        """Whether the model of this round is kept for good."""
        return bool(self.config.keep_every) and number % self.config.keep_every == 0


def check(config: Config, out: Path | None, dataset: Dataset) -> None:
    """Raise UserError if it is known that the run cannot be begun, or gone on with in its folder.

    Nothing is written, and nothing kept of what is built.
    """
    folder, given = RunFolder(out) if out is not None else None, None
    if folder is not None and not folder.recorded:
        folder = None  # it is begun anew
    if folder is not None and folder.started:
        _check_same(folder, config)
        starts = provenance.starts(folder.path / "made.json")
        _check_data(folder, starts, provenance.facts(dataset))
        _check_rounds(folder, len(folder.metrics()), config.rounds)
        given = federate(config, dataset, ALGORITHMS.make(config.algorithm), folder)
        if file_changed(config, given):
            raise UserError(
                f"{config.partition['path']} has changed since {folder.path} was begun: put it back, or give "
                "another --out."
            )
    needed = _needed(config, folder)
    made = Experiment(replace(config, initial=needed), dataset=dataset, federation=given)
    made.close()
    if folder is not None and folder.started:
        if needed is not None:
            _check_initial(starts, needed, made._begun_with)
        _check_code(folder, starts, own_digest.code(configs.what(config)))


def check_folder(folder: RunFolder, config: Config, *, resume: bool) -> None:
    """Raise UserError if it holds a run that has played and is not to be resumed, or is not the config's."""
    if folder.recorded and not folder.started:
        raise UserError(
            f"{folder.path} holds rounds, but no config.json that says of what: put it back, or give "
            "another --out."
        )
    if folder.recorded and not resume:
        raise UserError(
            f"{folder.path} already holds a run: continue it with --resume, or give another --out."
        )
    if folder.started and resume:
        _check_same(folder, config)


def _check_same(folder: RunFolder, config: Config) -> None:
    """Raise UserError unless the run in the folder is the config's."""
    starts = provenance.starts(folder.path / "made.json")
    now = configs.as_dict(config)
    # These may be other ones now, and the old ones not to be had any more.
    free = ("sinks", "measures", "backend")
    saved = {key: value for key, value in folder.config().items() if key not in free}
    begun = _relocated(saved, now, starts[-1] if starts else {})
    try:
        before = configs.as_dict(configs.begun(begun))
    except UserError as error:
        raise UserError(f"{folder.path} cannot be continued: {error}") from error
    needed = ALGORITHMS.make(config.algorithm).auxiliary_per_class
    for said in (before, now):
        if said["auxiliary_per_class"] is None:
            said["auxiliary_per_class"] = needed
    for key, old, new in configs.differing(before, now):
        if key.partition(".")[0] not in configs.MAY_CHANGE:
            raise UserError(
                f"{folder.path} was begun with {key} = {old!r}, not {new!r}: "
                "resume it as it was, or give another --out."
            )


def _relocated(old: Any, new: Any, last: Mapping[str, Any], key: str = "") -> Any:
    """The old config with the new places of what has moved, as far as the last start noted what it held."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        head = f"{key}." if key else ""
        return {k: _relocated(v, new.get(k), last, f"{head}{k}") for k, v in old.items()}
    if isinstance(old, str) and isinstance(new, str):
        if key == "dataset.path":
            return new if "digest" in last.get("data", {}) else old
        if key == "initial":
            return new if "initial" in last else old
        same = old.partition(":")[2] == new.partition(":")[2]  # the name in the file, and options
        if same and named(old) == named(new) in last.get("code", {}):
            return new
    return old


def _needed(config: Config, folder: RunFolder | None) -> str | None:
    """Where the model is that the run begins with, if it needs that: not to go on from a checkpoint.

    A place that is named anew is looked into all the same: it must hold what the run was begun with.
    """
    place = config.initial
    if place is not None and folder is not None and any(folder.kept_rounds()):
        begun = str(folder.config().get("initial"))
        if os.path.abspath(files.expanded(begun)) == os.path.abspath(files.expanded(place)):
            return None
    return place


def _check_initial(starts: Sequence[Mapping[str, Any]], place: str, found: str | None) -> None:
    """Raise UserError if the run was begun with another model than is there now."""
    before = starts[-1].get("initial", found) if starts else found
    if before != found:
        raise UserError(
            f"{place} holds another model than when the run was begun: put that back, or give another --out."
        )


def _check_data(folder: RunFolder, starts: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> None:
    """Raise UserError if the run in the folder was begun on other data."""
    before = starts[-1].get("data", {}) if starts else {}
    given = before.get("name", data["name"]) != data["name"]
    same = "the same, with dataset=... where they were given from Python" if given else "the same"
    remedy = f"resume it on {same}, or give another --out."
    provenance.check_data(folder.path, starts, data, remedy)


def _check_code(folder: RunFolder, starts: Sequence[Mapping[str, Any]], code: Mapping[str, str]) -> None:
    """Raise UserError if the owner's code that the run in the folder was begun with has changed since."""
    remedy = ", delete the folder to begin the run anew, or give another --out"
    provenance.check_code(folder.path, starts, code, remedy)


def _played_again(folder: RunFolder, starts: Sequence[Mapping[str, Any]]) -> int:
    """How many rounds of the run in the folder have been played again so far; from now on it is noted.

    Earlier versions noted it in made.json, without which a run can go on.
    """
    path = folder.path / AGAIN
    if folder.started and files.found(path):
        held = files.read_json(path)
        if not isinstance(held, dict) or type(held.get("rounds")) is not int or held["rounds"] < 0:
            raise UserError(f"{path} is damaged, without which epsilon is not known: put it back as it was.")
        return int(held["rounds"])
    if folder.recorded and not starts:
        raise UserError(
            f"{folder.path} has neither {AGAIN} nor made.json, which say how often rounds were played again, "
            "and epsilon would come out too small: put one of them back, or give another --out."
        )
    again = sum(_count(start.get("played again", 0)) for start in starts)
    files.write_json(path, {"rounds": again})
    return again


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _check_rounds(folder: RunFolder, played: int, wanted: int) -> None:
    """Raise UserError if the run in the folder has gone further than it is to go."""
    if played > wanted:
        raise UserError(
            f"{folder.path} holds {played} rounds: it cannot be continued to rounds = {wanted}; "
            f"give at least {played}, or another --out."
        )


def _fits(server: Any, arrays: Mapping[str, torch.Tensor]) -> bool:
    """Whether this is a state of the algorithm and the model; of the weights the shapes are known too."""
    expected = trees.arrays(server)
    return expected.keys() == arrays.keys() and all(
        (t.shape, t.dtype) == (arrays[n].shape, arrays[n].dtype)
        for n, t in expected.items()
        if n.startswith("weights/")
    )


@contextmanager
def signals(experiments: Sequence[Experiment]) -> Iterator[None]:
    """The first SIGINT or SIGTERM lets the round finish; a second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(signum: int, _frame: Any) -> None:
        for experiment in experiments:
            experiment.ask_to_stop(signum)
        with suppress(OSError, RuntimeError, ValueError, AttributeError):  # closed, in a print, or None
            sys.stderr.write("stopping after this round; asked again, at once\n")
            sys.stderr.flush()

    old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


class Clock:
    """Seconds between events."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return round(seconds, 6)


def _check_kept(tree: Any, what: str) -> None:
    """Refuse what a checkpoint would silently leave out, so that a run resumed is another one."""
    for path, value in trees.others(tree):
        found = f"has {path} =" if path else "is"
        raise UserError(
            f"{what} {found} {shown(value)}, which no checkpoint would hold: {contracts.remedy(value)}."
        )


def _plain(name: str, found: Any) -> Any:
    """What a measure found, or UserError if no record can hold it."""
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the measure {name} returns what no record can hold ({error}): return numbers, texts, and lists "
            "and dicts of them, of tensors and arrays their .tolist()."
        ) from error
    return contracts.finite(found)
