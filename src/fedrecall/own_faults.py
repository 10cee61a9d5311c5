"""Errors in somebody's own code: where it makes them, and the part of a traceback that shows it."""

import os
import re
import traceback
from collections.abc import Sequence
from types import FrameType

from fedrecall import own_code
from fedrecall.errors import UserError, printable, sentence

ELSEWHERE = "In a worker process:\n"
"""How the note begins that brings another process's traceback along."""
WHOLE = "fedrecall --debug COMMAND shows the whole traceback."

HINTS = (
    (r"Student\.__call__\(\) missing", "The network is called with its parameters: model(params, batch.x)."),
    (
        r"'Student' object has no attribute 'logits'",
        "model(params, batch.x) is its logits, model.output(params, batch.x) has its features, too.",
    ),
    (
        r"'dict' object has no attribute 'params'",
        "What has params and buffers are weights, such as anchor.weights; `params` is a dict of tensors.",
    ),
    (
        r"'NoneType' object has no attribute '(batches|x|y)'",
        "If that is `auxiliary`: the server holds examples where auxiliary_per_class says how many.",
    ),
    (
        r"cannot assign to field",
        "An algorithm's fields are settings, which stay: keep what changes in the server's state, which "
        "`aggregate` returns, or in a client's memory, which `finish` returns.",
    ),
)
"""What is meant by errors that many make who come from plain PyTorch."""


def note(error: BaseException) -> None:
    """Note on an error that is no UserError where in somebody's own code it is, if in any."""
    frames = list(traceback.walk_tb(error.__traceback__))
    first = _first([frame.f_code.co_filename for frame, _ in frames])
    if isinstance(error, UserError) or first is None or where(error):
        return
    frame, line = frames[first]
    hint = next((f" {said}" for pattern, said in HINTS if re.search(pattern, str(error))), "")
    error.add_note(f"{_BEGIN}{_called(frame)}, line {line}.{hint}")


def reason(error: Exception) -> str:
    """What is wrong in one line, and where."""
    if isinstance(error, UserError):
        return str(error)
    said = (str(error).strip().splitlines() or [""])[0]
    said = printable(f"{type(error).__name__}: {said}" if said else type(error).__name__)
    return f"{sentence(said)} {place}" if (place := where(error)) else said


def told(error: BaseException) -> str:
    """The traceback from the first line of somebody's own code on; all of it where there is none."""
    note(error)
    made = traceback.TracebackException.from_exception(error)
    elsewhere = any(text.startswith(ELSEWHERE) for text in _notes(error))
    _cut(made, where(error) is not None and elsewhere)
    return "".join(made.format())


def _cut(made: traceback.TracebackException, elsewhere: bool = False) -> None:
    """Leave out of a traceback, and of those it follows from, what comes before the first of own lines.

    ``elsewhere``: these are in the note.
    """
    first = _first([frame.filename for frame in made.stack])
    if first is not None:
        made.stack = traceback.StackSummary.from_list(list(made.stack)[first:])
    elif elsewhere:
        made.stack = None  # type: ignore[assignment]  # as Python itself has it of an error that was not raised
    for before in (made.__cause__, made.__context__):
        if before is not None:
            _cut(before)


_BEGIN = "In `"


def where(error: BaseException) -> str | None:
    """Where it is, as `note` or another process's has noted."""
    lines = [text.splitlines()[-1] for text in _notes(error) if text]
    return next((line for line in reversed(lines) if line.startswith(_BEGIN)), None)


def _notes(error: BaseException) -> list[str]:
    return [text for text in getattr(error, "__notes__", ()) if isinstance(text, str)]


def _first(files: Sequence[str]) -> int | None:
    """Which of these, that call each other, is the first of somebody's own that fedrecall has called."""
    ours = next((i for i, file in enumerate(files) if file.startswith(_HERE)), 0)
    return next((i for i, file in enumerate(files) if i >= ours and _own(file)), None)


def _own(file: str) -> bool:
    """Whether the code in this file is neither fedrecall's nor an installed package's."""
    if file.startswith("<"):
        return file.startswith(("<stdin", "<ipython-input", "<python-input"))
    return not (file.startswith(_HERE) or own_code.installed(file))


_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def _called(frame: FrameType) -> str:
    """A function and where it is defined: ``loss` of mine.py:Mine``."""
    *within, name = frame.f_code.co_qualname.rpartition("<locals>.")[2].split(".")
    of = f":{within[-1]}" if within else ""
    return f"{name}` of {os.path.basename(frame.f_code.co_filename)}{of}"
