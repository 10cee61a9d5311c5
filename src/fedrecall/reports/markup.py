"""HTML that is escaped unless it was made here."""

from html import escape
from typing import Any


class Html(str):
    """Text that is markup already; any other string is escaped when it becomes part of an element."""


# A browser closes these itself; a page of numbers is half the size without their end tags.
_OPEN = {"td", "th", "tr", "thead", "tbody", "li", "dt", "dd"}
_VOID = {"img", "input", "meta"}
_SHAPES = {"path", "line", "rect"}  # SVG's elements must be closed: an open one would hold the next


def text(*parts: Any) -> Html:
    """The parts one after the other; None is nothing."""
    return Html("".join(p if isinstance(p, Html) else escape(str(p)) for p in parts if p is not None))


def tag(name: str, /, *parts: Any, **attributes: Any) -> Html:
    """An element. ``class_`` is class, ``data_x`` data-x; True is a bare attribute, None and False none."""
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    if name in _SHAPES:
        return Html(f"<{name}{''.join(written)}/>")
    head = f"<{name}{''.join(written)}>"
    if name in _VOID or name in _OPEN:
        return Html(head + text(*parts))
    return Html(f"{head}{text(*parts)}</{name}>")
