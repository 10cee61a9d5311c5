"""Backends by name: adding one is a file beside this one and a line here."""

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedrecall.backends.backend import Backend, Job, NotStarted, Work
from fedrecall.errors import UserError, nearest
from fedrecall.processors import cores
from fedrecall.specs import Registry
from fedrecall.training import Visit

BACKENDS = {
    "serial": "fedrecall.backends.serial:Serial",
    "processes": "fedrecall.backends.processes:Processes",
    "vectorised": "fedrecall.backends.vectorised:Vectorised",
    "ray": "fedrecall.backends.ray_cluster:RayCluster",
}
"""What each name opens: a class that is made with the `Work`, and with its options if it has any."""

OPTIONS = Registry(
    "backend",
    {
        "vectorised": "fedrecall.backends.vectorised:Options",
        "ray": "fedrecall.backends.ray_cluster:Options",
    },
)
"""What may follow a backend's name: ``vectorised:chunk=8,graph=true``, ``ray:local``."""

WORTH_PROCESSES = 2e9
"""Trained examples x parameters in a round from which on `auto` starts processes: half a second of work."""
WORTH_OF_A_STEP = 1e7
"""Examples x parameters in the time that a step takes however small it is: 2.5 ms."""


def open_backend(spec: str, work: Work) -> Backend:
    """The backend that a spec names, ready for visits; ``auto`` is the fastest one for this work."""
    name, options = parse(spec)
    if name == "auto":
        name = choose(work)
        if name == "processes":
            try:
                return WhereTheyStart(work)
            except UserError as error:  # what a script or a prompt defines cannot be sent to other processes
                warnings.warn(f"trained in this process alone: {error}", RuntimeWarning, stacklevel=2)
                name = "serial"
    return _load(name)(work) if options is None else _load(name)(work, options)


def parse(spec: str) -> tuple[str, Any]:
    """A backend's name and its options, None where none are given; UserError where there are no such."""
    name, _, options = spec.partition(":")
    if name not in ("auto", *BACKENDS):
        raise UserError(f"unknown backend {name!r}; {nearest(name, ('auto', *BACKENDS))}")
    if options and name not in OPTIONS.entries:
        raise UserError(f"the {name} backend has no options, such as {options!r}.")
    return name, OPTIONS.make(spec) if options else None


class WhereTheyStart:
    """Worker processes, and the serial backend from there on if they cannot be started."""

    def __init__(self, work: Work):
        self._work = work
        self._backend = _load("processes")(work)

    def map(self, jobs: Sequence[Job]) -> Iterator[Visit]:
        """The visits in the order of their jobs."""
        made = 0
        try:
            for visit in self._backend.map(jobs):
                yield visit
                made += 1
        except NotStarted:
            warnings.warn(
                "worker processes could not be started; their messages are above. The serial backend trains "
                "in their place.",
                RuntimeWarning,
            )
            self.close()
            self._backend = _load("serial")(self._work)
            yield from self._backend.map(jobs[made:])

    def close(self) -> None:
        """End the workers."""
        self._backend.close()


def choose(work: Work) -> str:
    """What ``auto`` stands for: a function of the work and the machine, never of a measured time."""
    if work.model.device.type != "cpu":
        return "vectorised"
    workers = work.workers or cores()
    if workers < 2 or work.chains < 2:
        return "serial"
    examples = sum(map(len, work.federation.parts)) // max(len(work.federation), 1)
    parameters = sum(p.numel() for p in work.model.initial().params.values())
    visit = work.recipe.local_epochs * examples * parameters + work.recipe.steps(examples) * WORTH_OF_A_STEP
    return "processes" if work.chains * visit >= WORTH_PROCESSES else "serial"


def _load(name: str) -> Callable[..., Backend]:
    module, _, attribute = BACKENDS[name].partition(":")
    found: Callable[..., Backend] = getattr(importlib.import_module(module), attribute)
    return found
