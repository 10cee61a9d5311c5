"""The one exception a user can cause and mend: its text is a sentence that says how."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what and what would do."""


class Diverged(UserError):
    """Training cannot go on: what it computes is no longer a number."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, else all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known) + "."
