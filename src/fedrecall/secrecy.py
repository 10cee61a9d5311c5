"""Commands and addresses without the passwords and tokens in them, for whatever is kept or shown."""

import re
import shlex
from collections.abc import Sequence

HIDDEN = "***"
_NAMES = "(?:token|password|passwd|passphrase|secret|credential|key)"
_OPTION = re.compile(f"--?[^=]*{_NAMES}[^=]*", re.IGNORECASE)
_USER = re.compile(r"(//(?:[^\s/:@]*:|(?=[^\s/:@]{16,}@)))[^\s/]*@")
_QUERY = re.compile(rf"([?&][^\s=&]*{_NAMES}[^\s=&]*=)[^\s&]*", re.IGNORECASE)


def in_text(text: str) -> str:
    """The text without what addresses in it give as a user's password, or ask with as a secret.

    A user of 16 characters or more without a password may be a token, and goes too.
    """
    return _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def in_words(words: Sequence[str]) -> list[str]:
    """A command's words without the values of options that name a secret, as Flower gives its token."""
    shown, hide = [], False
    for word in words:
        option, equals, _ = word.partition("=")
        secret = _OPTION.fullmatch(option) is not None
        shown.append(HIDDEN if hide else f"{option}={HIDDEN}" if secret and equals else in_text(word))
        hide = secret and not equals and not hide
    return shown


def in_command(line: str) -> str:
    """The same of a line, which stays as it is written where it has no secrets."""
    try:
        words = shlex.split(line)
    except ValueError:  # no command
        return in_text(line)
    shown = in_words(words)
    return line if shown == words else shlex.join(shown)
