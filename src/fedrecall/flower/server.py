"""The ServerApp: an experiment whose visits are made, and whose memories are kept, by the nodes."""

import logging
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrecall import config as configs
from fedrecall import files, initial, payloads, rounds, trees
from fedrecall.algorithms import ALGORITHMS
from fedrecall.algorithms.fedavg import keeps_own
from fedrecall.config import Config
from fedrecall.data.datasets import Dataset, Split, load
from fedrecall.data.federation import Federation, set_apart
from fedrecall.data.store import pixels
from fedrecall.errors import Malformed, UserError, sentence, shown
from fedrecall.experiment import Experiment, Result, check_folder
from fedrecall.flower import hosting as hostings
from fedrecall.flower import sums, wire
from fedrecall.flower.hosting import Hosting
from fedrecall.flower.node import ELSEWHERE, own_statistics
from fedrecall.flower.nodes import Facts, Nodes, Receipt
from fedrecall.flower.wire import Data
from fedrecall.ingredients import auxiliary_per_class, federation_of, normalised
from fedrecall.measures.accuracy import Evaluation
from fedrecall.memories import Memories
from fedrecall.models.model import Weights
from fedrecall.records import AGREED, RunFolder
from fedrecall.training import Failure

log = logging.getLogger("flwr")
app = ServerApp()
NODES = "nodes"
"""What it calls the ids of the nodes that have been a client, which Flower keeps for a registered key."""
OWN = "clients keep layers of their own: use their models at their nodes, with fedrecall predict --memory"
OWN_UNTESTED = f"{OWN}; nobody evaluates these, as nodes would if the server had no dataset"
"""What is said where the model that travels is nobody's."""
SETTINGS = {"--resume": "resume=true", "--out": "out"}
"""What options of the command line, which sentences name, are called here."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the run that `flwr run` asked for.

    Flower logs what ends it and marks the run as failed; of what a user can mend it logs the sentence alone.
    """
    log.addFilter(_as_sentence)
    warnings.showwarning = _warn
    try:
        config, hosting = hostings.read(context.run_config)
        serve(grid, config, hosting)
    except UserError as error:
        sentence = str(error)
        for option, setting in SETTINGS.items():
            sentence = sentence.replace(option, setting)
        raise UserError(sentence) from error


def _as_sentence(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, UserError):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


def _warn(message: Warning | str, *_where: Any, **_more: Any) -> None:
    log.warning("%s", message)


def serve(grid: Grid, config: Config, hosting: Hosting) -> Result:
    """Wait for the nodes, then play the rounds that are left."""
    if hosting.out is None:
        log.warning("without out nothing is kept, not even the trained model: give out=FOLDER.")
    if config.sampled == 1 < config.clients:
        log.warning("one client of %d is sampled a round, so no models are averaged.", config.clients)
    folder = None if hosting.out is None else RunFolder(files.expanded(hosting.out))
    if folder is None:
        return _serve(grid, config, hosting, None)
    folder.acquire()  # before anything is read of it: while nodes are waited for it stays as it is
    try:
        check_folder(folder, config, resume=hosting.resume)
        return _serve(grid, config, hosting, folder)
    finally:
        folder.release()


def _serve(grid: Grid, config: Config, hosting: Hosting, folder: RunFolder | None) -> Result:
    noted = {} if folder is None else _noted(folder, hosting)
    before, over = None, False
    if folder is not None and hosting.resume:
        newest = next(folder.checkpoints(), None)
        before = None if newest is None else _agreed_before(folder, noted)
        over = newest is not None and _is_over(folder, newest.round_number, config)
    if before is None and config.initial is not None:
        initial.check(config.initial)
    nodes = Nodes(grid, config, hosting, before)
    if folder is not None and _keeps_name(noted, config, goes_on=before is not None):
        nodes.been = _been_before(folder, noted)
    own = _own_data(config)
    facts = before if before is not None and over else nodes.gather()
    if before is None and nodes.untested and (own is None or not len(own.test)):
        raise UserError(
            "no node has test examples, and the server has none: let a node hold some out, or give the "
            "server a data set of its own with dataset=..., whose test split is used."
        )
    if own is not None:
        fresh = _with(facts, own, config)
        if before is None:
            facts = nodes.facts = fresh
        elif fresh != facts:
            raise UserError(
                f"{config.dataset['name']} has other channel statistics than when the run was begun: bring "
                "the server's data back, or begin the run anew."
            )
    run = Run(config, nodes, describe(config, facts, own), hosting, folder)
    return run.play()


def _is_over(folder: RunFolder, saved: int, config: Config) -> bool:
    """Whether all rounds are played and the last one is evaluated, so that no node has to be there."""
    *_, last = folder.metrics() or [{}]
    return saved >= config.rounds and last.get("round") == saved and "accuracy" in last


class Agreed(NamedTuple):
    """The facts as the run folder has them."""

    shape: list[int]
    classes: list[str]
    mean: list[float]
    std: list[float]
    columns: list[str]
    floats: bool


def marks(facts: Facts, nodes: Nodes) -> dict[str, Any]:
    """What tells a federation from another, for whoever compares runs."""
    data = facts.data
    of_data = nodes.config.normalisation == "data"
    rounded = [f"{v:.4g}" for v in (*data.mean, *data.std)]  # images may be decoded a little differently
    return {
        "secure": nodes.hosting.secure,
        "shape": list(facts.shape),
        "class_names": data.classes,
        "columns": None if facts.columns is None else list(facts.columns),
        "floats": facts.floats,
        "statistics": wire.digest(rounded)[:16] if of_data else None,
        "examples": nodes.examples,
    }


class Run(Experiment):
    """One run over the nodes."""

    def __init__(
        self,
        config: Config,
        nodes: Nodes,
        federation: Federation,
        hosting: Hosting,
        folder: RunFolder | None,
    ):
        self.nodes, self.hosting = nodes, hosting
        sinks = [Lines(config.rounds)]
        super().__init__(config, folder, resume=hosting.resume, federation=federation, sinks=sinks)
        try:
            dataset = federation.dataset
            nodes.up = payloads.declared(self.algorithm, self.model, dataset.shape, dataset.classes).up
            nodes.run, nodes.start = self._name()
            if self.folder is not None:
                nodes.met = self._note_nodes
                nodes.checkpoints = self.folder.kept_rounds
                nodes.folder = self.folder.path
        except BaseException:
            self.close()
            raise

    def _name(self) -> tuple[str, int]:
        """What nodes keep this run's memories under, and a number that grows with every start of it.

        It is the time, in seconds, so that it grows though the folder may be restored from a copy.

        The name is the same when the run is resumed, or begun anew as it was: a client that has told the
        server what it tells once does not draw anew. Another run gets another name, though it has the
        folder of one that recorded nothing. Beside it is written what the federation agreed on.
        """
        name, start = secrets.token_hex(16), int(time.time())
        facts = self.nodes.facts
        if self.folder is None or facts is None:  # no folder, or no node that is asked anything
            return name, start
        path = self.folder.path / AGREED
        held = _read(path) if path.exists() else {}
        if _keeps_name(held, self.config, goes_on=bool(self.history)):
            name, start = str(held["run"]), max(start, int(held.get("start", 0)) + 1)
        else:
            sums.clear(self.folder.path)
        with files.writing(self.folder.path):
            begun = {"run": name, "start": start, "what": _what(self.config)}
            been = {NODES: self.nodes.been}
            files.write_json(path, {**begun, **marks(facts, self.nodes), **facts.data._asdict(), **been})
        return name, start

    def _note_nodes(self) -> None:
        """Add which nodes have been which client, for the run to know them when it goes on."""
        assert self.folder is not None
        path = self.folder.path / AGREED
        with files.writing(self.folder.path):
            files.write_json(path, {**_read(path), NODES: self.nodes.been})

    def play(self) -> Result:
        """Play the rounds that are left.

        Signals are left to Flower, which ends the process: a SuperLink that stops cannot wait for
        the round, and the run goes on from its checkpoint.
        """
        if keeps_own(self.algorithm):
            log.warning(OWN if self.evaluated_elsewhere else OWN_UNTESTED)
        try:
            self.begin()
            return rounds.drive(self.loop(), self.nodes.map)
        finally:
            self.close()

    def open_memories(self, template: Any, folder: Path | None) -> Memories:
        """Of what clients remember the server has receipts."""
        return Memories(Receipt(torch.tensor(0)) if trees.arrays(template) else template, folder)

    def evaluation(self, weights: Weights, number: int) -> Evaluation:
        """On the server's own test split if it has one, else on all the nodes'."""
        if not self.evaluated_elsewhere:
            return super().evaluation(weights, number)
        return self.nodes.evaluate(weights, number, self.memories.get)

    @property
    def evaluated_elsewhere(self) -> bool:
        """Whether nodes evaluate."""
        return not len(self.federation.test)

    def check_failures(self, failures: Sequence[Failure], visits: int) -> None:
        """A round needs ``min_clients`` uploads."""
        super().check_failures(failures, visits)
        arrived, number = visits - len(failures), len(self.history) + 1
        if arrived < self.hosting.min_clients:
            raise UserError(
                f"round {number} has {arrived} of {visits} uploads, and "
                f"min_clients is {self.hosting.min_clients}: {sentence(failures[0])} {self.kept}"
            )
        if arrived == 1 < visits:
            log.warning("round %d has one upload of %d, so no models are averaged.", number, visits)


class Lines:
    """Progress as lines of Flower's log."""

    def __init__(self, rounds: int):
        self.rounds = rounds

    def begin(self, config: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
        """Say what is played."""
        name, first = config["algorithm"]["name"], len(history) + 1
        if first > self.rounds:
            log.info("%s: all %d rounds are played", name, self.rounds)
            return
        log.info("%s, rounds %d to %d, augmentation %s", name, first, self.rounds, config["augmentation"])

    def record(self, record: Mapping[str, Any]) -> None:
        """Say how the round went and who failed."""
        clients = [client for chain in record["chains"] for client in chain]
        tested = ""
        if "accuracy" in record:
            tested = f", accuracy {record['accuracy']:.2%}, forgetting {record['forgetting']:.3f}"
        if "own_accuracy" in record:
            tested += f", both of what travels; accuracy of clients' own models {record['own_accuracy']:.2%}"
        if "sites" in record:
            tested += f", least at {record['sites']['worst']}: {record['sites']['worst_accuracy']:.2%}"
        log.info(
            "round %d of %d: %d of %d clients, %.1f s, loss %.4f%s",
            record["round"],
            self.rounds,
            len(clients) - len(record["failures"]),
            len(clients),
            record["seconds"]["train"],
            record["train_loss"],
            tested,
        )
        for failure in record["failures"]:
            log.warning("left out: %s", failure)

    def end(self) -> None:
        """Nothing to say."""


def _read(path: Path) -> dict[str, Any]:
    held = files.read_json(path)
    if not isinstance(held, dict):
        raise UserError(f"{path} is damaged: bring the file back, or begin the run anew.")
    return held


def _what(config: Config) -> str:
    return wire.digest(configs.what(config))


def _keeps_name(held: Mapping[str, Any], config: Config, goes_on: bool) -> bool:
    """Whether the run is the one that this is noted of: it goes on, or is begun anew as it was."""
    return bool(held) and (goes_on or held.get("what") == _what(config))


def _noted(folder: RunFolder, hosting: Hosting) -> dict[str, Any]:
    """What is noted of the federation of a run, or UserError if it is to go on and cannot like this."""
    path = folder.path / AGREED
    if not path.exists():
        if not folder.recorded:
            return {}
        raise UserError(
            f"{path} is gone, which says under what name the nodes remember this run, what they agreed on "
            "and how their uploads were hidden: bring the file back, or begin the run anew with another out."
        )
    held = _read(path)
    before = held.get("secure", hosting.secure)  # earlier versions do not say
    if hosting.resume and before != hosting.secure:
        raise UserError(
            f"{path.parent} was begun with secure = {before!r}, not {hosting.secure!r}: resume it as it was, "
            "or give another out."
        )
    return held


def _agreed_before(folder: RunFolder, held: dict[str, Any]) -> Facts | None:
    """What the nodes agreed on when the run began, if that was noted."""
    path = folder.path / AGREED
    held = {name: held[name] for name in Agreed._fields if held.get(name) is not None}
    noted = "columns" in held  # by earlier versions it was not
    if not held:
        log.warning("%s does not say what the nodes agreed on: they agree anew, on who is here now.", path)
        return None
    try:
        said = wire.values({"columns": [], "floats": False, **held}, Agreed, f"{path}")
    except Malformed as error:
        raise UserError(f"{error}: bring the file back, or begin the run anew.") from error
    agreed = Data(said.classes, said.mean, said.std)
    return Facts(tuple(said.shape), agreed, tuple(said.columns) if noted else None, said.floats)


def _been_before(folder: RunFolder, held: dict[str, Any]) -> dict[int, list[int]]:
    """Which nodes have been which client, if that was noted."""
    try:
        return {int(client): [int(node) for node in been] for client, been in held.get(NODES, {}).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder.path / AGREED} is damaged: bring the file back, or begin the run anew."
        ) from error


def _own_data(config: Config) -> Dataset | None:
    """The server's data set, if it has one, or UserError if it lacks what the run needs of it."""
    own = None if config.dataset["name"] == ELSEWHERE else load(config.dataset)
    per_class = auxiliary_per_class(config, ALGORITHMS.make(config.algorithm))
    if per_class and (own is None or not len(own.train)):
        raise UserError(
            f"{config.algorithm['name']} needs {per_class} examples of each class at the server: give it "
            "a data set of its own with dataset=..., such as folder:/path/to/data."
        )
    if own is None:
        return None
    if own.standardised and config.normalisation != "data":
        raise UserError(
            f"the columns of the server's {own.name} are standardised by its own rows, which normalisation = "
            f"{config.normalisation!r} is to avoid: read its files with standardise=false."
        )
    return normalised(config, own)


def _with(facts: Facts, own: Dataset, config: Config) -> Facts:
    """The facts with the server's statistics, if its data are of the nodes' kind."""
    alike = own.shape == facts.shape and pixels(own.shape, own.floats) == facts.pixels
    if not alike or list(own.class_names) != facts.data.classes:
        raise UserError(
            f"the server's {config.dataset['name']} has examples of {list(own.shape)} in {own.classes} "
            f"classes, the nodes have {list(facts.shape)} in {len(facts.data.classes)}; or the classes are "
            "named differently, or one has pixels where the other has other numbers."
        )
    if own.features and facts.columns is not None and own.features != facts.columns:
        raise UserError(
            f"the server's {config.dataset['name']} has the columns {shown(list(own.features))}, the nodes "
            f"have {shown(list(facts.columns))}."
        )
    pooled = config.normalisation == "data"
    mean, std = own_statistics(own) if pooled else (own.mean.tolist(), own.std.tolist())
    return facts._replace(data=facts.data._replace(mean=mean, std=[s if s > 0 else 1.0 for s in std]))


def describe(config: Config, facts: Facts, own: Dataset | None) -> Federation:
    """The federation as far as the server knows it: how many clients, and its own examples."""
    if own is None:
        kind = torch.uint8 if facts.pixels else torch.float32
        nothing = Split(torch.empty(0, *facts.shape, dtype=kind), torch.empty(0, dtype=torch.int64))
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (facts.data.mean, facts.data.std))
        names, columns = tuple(facts.data.classes), facts.columns or ()
        own = Dataset("elsewhere", names, nothing, nothing, mean, std, features=columns)
    per_class = auxiliary_per_class(config, ALGORITHMS.make(config.algorithm))
    auxiliary = None
    if per_class:
        _, auxiliary = set_apart(own.train.y.cpu().numpy(), own.classes, per_class, config.dealing_seed)
    nobody = np.empty(0, dtype=np.int64)
    return federation_of(config, own, [nobody] * config.clients, auxiliary)
