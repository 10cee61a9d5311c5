"""What a user can cause and mend, in a sentence that says how, and what ends a run in good order."""

import difflib
import errno
import reprlib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what and what would do."""


class Missing(UserError):
    """A file or folder that the user named is not there."""


class Gone(UserError):
    """A file that was to be read is not there: another process may have just taken it away."""


class OfMachine(UserError):
    """What the machine or another process does not give: other runs would not have it either."""


class NotNow(OfMachine):
    """What failed may go well another time, without a change of what was asked for."""


class Busy(NotNow):
    """Another process has what is asked for."""


class NothingYet(UserError):
    """A run has no finished round to look at."""


class Malformed(ValueError):
    """A message or a file that is not what was declared; the text names what is wrong, not what it holds."""


class Refused(Malformed):
    """Somebody has not done what was asked, and says why."""


class Diverged(UserError):
    """Training cannot go on: what it computes is no longer a number."""


class Interrupted(KeyboardInterrupt):
    """The run stopped on a signal; one with a folder has saved the round and can be resumed."""

    def __init__(self, signum: int, round_number: int, saved: bool = True):
        super().__init__(f"stopped after round {round_number}")
        self.signum = signum
        self.round_number = round_number
        self.saved = saved


def alike(word: str, known: Iterable[str]) -> str | None:
    """The nearest known name, however either is capitalised, if one is near."""
    names = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    return names[close[0]] if close else None


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, else all of them."""
    known = sorted(known)
    if not known:
        return "there are none."
    close = alike(word, known)
    return f"did you mean {close!r}?" if close is not None else "known: " + ", ".join(known) + "."


def sentence(said: object) -> str:
    """What was said with a full stop at its end, which others' sentences may have already."""
    text = str(said)
    return text if text.endswith(".") else f"{text}."


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxtuple = 4, 10, 10, 10
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 120


def shown(value: Any) -> str:
    """A value in an error message: short, whatever somebody wrote into a file."""
    try:
        text = _SHORT.repr(value)
    except ValueError:  # whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 300 else text[:300] + "..."


def printable(text: str) -> str:
    """The text without what would command a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def lacks_memory(error: BaseException) -> bool:
    """Whether this is how the system, Python or PyTorch says that there is no memory left."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # PyTorch's CPU allocator has no class of its own: "DefaultCPUAllocator: can't allocate memory: ...".
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, ValueError))
        and (str(error) in _ONEDNN or any(words in str(error) for words in _NO_MEMORY))
    )


def of_one_run(error: Exception) -> bool:
    """Whether what ended a run is in its algorithm or its numbers, so that others may go through."""
    if isinstance(error, UserError):
        return not isinstance(error, OfMachine)
    of_disk = isinstance(error, OSError) and error.errno in _OF_MACHINE
    return not (of_disk or lacks_memory(error))


_OF_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EPIPE),
)
_NO_MEMORY = (
    *("can't allocate memory", "not enough memory", "out of memory", "could not create a memory"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
    *("Storage size calculation overflowed", "array is too big"),  # more than there are addresses
)
# All that oneDNN says of it; the same words go on where it has no such primitive.
_ONEDNN = ("could not create a primitive", "could not execute a primitive")
