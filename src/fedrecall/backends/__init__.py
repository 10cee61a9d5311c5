"""Backends by name."""

from fedrecall.backends.backend import Backend, Work
from fedrecall.errors import UserError, nearest

BACKENDS = ("auto", "serial")


def open_backend(name: str, work: Work) -> Backend:
    """The backend of this name, ready for visits."""
    if name in ("auto", "serial"):
        from fedrecall.backends.serial import Serial

        return Serial(work)
    raise UserError(f"unknown backend {name!r}; {nearest(name, BACKENDS)}")
