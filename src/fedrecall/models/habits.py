"""What passes of a user's network do that not every network's do, and that a run has to allow for."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

_NOTED = "_habits"


class Habits(NamedTuple):
    """Found once, when the network is made (`trial.attempt`), so that a step need not look."""

    views: bool = False
    """Whether it can only compute with images and weights that lie in memory as PyTorch's own do."""
    writes: bool = False
    """Whether it changes in place the images that it is given."""
    changes: frozenset[str] = frozenset()
    """The buffers that it changes, such as running statistics, by name."""


def note(module: nn.Module, habits: Habits) -> None:
    """Keep with the network what was found of it."""
    setattr(module, _NOTED, habits)


def of(module: nn.Module) -> Habits:
    """The habits of a network, and of those that it is made of; none where nothing was noted."""
    noted = [(name, m.__dict__[_NOTED]) for name, m in module.named_modules() if _NOTED in m.__dict__]
    changes = {f"{name}.{b}" if name else b for name, habits in noted for b in habits.changes}
    return Habits(any(h.views for _, h in noted), any(h.writes for _, h in noted), frozenset(changes))
