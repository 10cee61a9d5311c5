"""Several runs at once: their rounds in step, the visits of all of them as one stack.

A round of one federation is often too small a piece of work for a GPU. Runs that differ only in
seed, partition and the like (a comparison's repetitions) are trained as one stack; those that
differ in the optimiser's numbers, too, share a backend and are a stack each; those that differ in
algorithm, network or data set take turns. Every run is what it would have been alone: the same
experiments, the same loop over rounds, the same run folders.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedrecall import trees
from fedrecall.backends import OPTIONS
from fedrecall.backends.backend import Job, Work
from fedrecall.backends.vectorised import Vectorised
from fedrecall.config import Config
from fedrecall.errors import Interrupted, UserError, of_one_run
from fedrecall.experiment import Experiment, Result, signals
from fedrecall.ingredients import device_of

Ended = Callable[[int, Result | Exception], None]
"""Whoever is told how a run ended, the one at this place, as soon as it has."""


def run_together(experiments: Sequence[Experiment]) -> list[Result]:
    """Play all rounds of all experiments, on the device that their configs name.

    The first one that fails stops all of them; like after a signal, each can be resumed from its
    last checkpoint.
    """
    results: dict[int, Result] = {}

    def ended(i: int, end: Result | Exception) -> None:
        if isinstance(end, Exception):
            raise end
        results[i] = end

    side_by_side(experiments, ended)
    return [results[i] for i in range(len(experiments))]


def play(experiments: Sequence[Experiment], ended: Ended) -> None:
    """Play runs of one of the `stacks` to their ends; if one fails for what is its own, the others go on.

    Raise Interrupted if a signal came, though it was in their last round.
    """
    if len(experiments) > 1:
        side_by_side(experiments, ended)
    else:
        end: Result | Exception
        try:
            end = experiments[0].run()
        except Exception as error:
            if not (experiments[0].broken and of_one_run(error)):
                raise
            end = error
        ended(0, end)
    for experiment in experiments:
        experiment.heed_stop()


def side_by_side(experiments: Sequence[Experiment], ended: Ended) -> None:
    """Play all rounds of all experiments; what ``ended`` raises stops all of them."""
    backends: dict[int, Vectorised] = {}
    groups = group([e.config for e in experiments], [had_once(e) for e in experiments])
    works = [e.work for e in experiments]
    left = dict(enumerate(experiments))
    stopped: Interrupted | None = None

    def over(i: int, end: Result | Exception) -> None:
        left.pop(i).close()
        ended(i, end)

    try:
        for experiment in experiments:
            experiment.begin()
        loops = {i: e.loop() for i, e in enumerate(experiments)}
        answers: dict[int, Any] = dict.fromkeys(loops)  # a dialogue's first answer is None
        with signals(experiments):
            while answers:
                asked: dict[int, Sequence[Job]] = {}
                for i, answer in answers.items():
                    try:
                        failed = isinstance(answer, Exception)
                        asked[i] = loops[i].throw(answer) if failed else loops[i].send(answer)
                    except StopIteration as done:
                        over(i, done.value)
                    except Exception as error:
                        if not of_one_run(error):
                            raise
                        over(i, error)
                    except Interrupted as interrupted:  # the others finish their rounds, too
                        stopped = interrupted
                answers = {i: [] for i in asked}
                started = []  # all of them before the first is waited for: a GPU can do both at once
                for number, members in enumerate(groups):
                    tasks = [(i, job) for i in members for job in asked.get(i, ())]
                    if tasks and number not in backends:
                        backends[number] = open_vectorised(experiments[members[0]].config, works[members[0]])
                    if tasks:
                        try:
                            made = backends[number].map_all([(works[i], job) for i, job in tasks])
                        except Exception as error:
                            answers |= dict.fromkeys((i for i, _ in tasks), error)
                        else:
                            started.append((tasks, made))
                for tasks, made in started:
                    try:
                        for (i, _), visit in zip(tasks, made, strict=True):
                            answers[i].append(visit)
                    except Exception as error:  # of the step that they share
                        answers |= dict.fromkeys((i for i, _ in tasks), error)
    finally:
        for backend in backends.values():
            backend.close()
        for experiment in left.values():
            experiment.close()
    if stopped is not None:
        raise stopped


def open_vectorised(config: Config, work: Work) -> Vectorised:
    """The backend with the options that the config gives it."""
    _, _, options = config.backend.partition(":")
    return Vectorised(work, OPTIONS.make(f"vectorised:{options}"))


def had_once(experiment: Experiment) -> Any:
    """What a stack has once, though a config does not say all of it.

    A data set of the same name may have been given, with other statistics; and a network may hold
    what its seed drew when it was built and no weights bring along.
    """
    data = experiment.federation.dataset
    digest = hashlib.blake2b(digest_size=16)
    for name, t in trees.leaves(experiment.work.model.unsaved()):
        digest.update(f"{name} {t.dtype} {list(t.shape)} ".encode())
        digest.update(t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return data.shape, data.classes, data.mean.tolist(), data.std.tolist(), digest.hexdigest()


def group(configs: Sequence[Config], given: Sequence[Any] | None = None) -> list[list[int]]:
    """Which runs can share a backend: what they compute in a step must be the same, like what is given.

    Of these, each round's clients with the same numbers of the optimiser are one stack.
    """
    groups: dict[str, list[int]] = {}
    for i, c in enumerate(configs):
        if c.backend.partition(":")[0] not in ("auto", "vectorised"):
            raise UserError(f"runs together are trained by the vectorised backend, not by {c.backend!r}.")
        where = (c.backend, c.device, c.precision)
        inputs = (c.dataset, c.augmentation, c.normalisation, c.training.batch_size)
        step = (c.algorithm, c.model, *inputs, *where, given[i] if given is not None else None)
        groups.setdefault(repr(step), []).append(i)
    return list(groups.values())


def stackable(config: Config) -> bool:
    """Whether the run's clients are trained as a stack, which those of others can join."""
    backend = config.backend.partition(":")[0]
    return backend == "vectorised" or (backend == "auto" and device_of(config).type != "cpu")


def stacks(configs: Sequence[Config]) -> list[list[int]]:
    """The runs as they are best played: side by side where they can share a backend, else one by one.

    Others would take turns on the device and, side by side, all hold its memory: that gains nothing.
    """
    able = [i for i, c in enumerate(configs) if stackable(c)]
    shared = [[able[j] for j in members] for members in group([configs[i] for i in able])]
    return sorted(shared + [[i] for i in range(len(configs)) if i not in able])
