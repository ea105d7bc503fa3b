"""HTML from Python, escaped by type: text that is not `Html` is escaped wherever it is put.

1. `Html` is made here alone: by `element`, and by `trusted` of text that this package has written.
2. Text of clicks is shown by `visible`: a character that has no shape of its own, or that turns the
   direction of its surroundings, is shown as its number.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import Final

VOID: Final = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})
"""Elements without an end."""


class Html(str):
    """Markup; any other text is escaped where it is put into an element."""

    __slots__ = ()


Part = str | int | None | Iterable["Part"]
"""What may stand in an element: text, markup, numbers, nothing, or many of these."""


def trusted(markup: str) -> Html:
    """Markup that this package has written itself."""
    return Html(markup)


def element(tag: str, *parts: Part, **attributes: str | int | bool | None) -> Html:
    """One element.

    Args:
        parts: what it holds.
        attributes: `class_` is class, `aria_label` is aria-label; True is an attribute without
            a value, None and False are none.
    """
    opened = f"<{tag}{''.join(map(_attribute, attributes.items()))}>"
    if tag in VOID:
        return Html(opened)
    return Html(f"{opened}{joined(parts)}</{tag}>")


def _attribute(pair: tuple[str, str | int | bool | None]) -> str:
    name, value = pair[0].rstrip("_").replace("_", "-"), pair[1]
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def joined(part: Part) -> Html:
    """Parts one after the other."""
    if part is None:
        return Html("")
    if isinstance(part, Html):
        return part
    if isinstance(part, str | int):
        return Html(escape(str(part)))
    return Html("".join(map(joined, part)))


def visible(text: str, characters_max: int = 200) -> Html:
    """Text of a click, isolated from the direction of what surrounds it, its end cut off."""
    cut = text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."
    return element("bdi", "".join(map(_shown, cut)))


def _shown(character: str) -> str:
    """A character, or its number where it would not be seen: controls, marks of direction, halves
    of pairs (a lone surrogate cannot even be written as UTF-8)."""
    if unicodedata.category(character)[0] != "C":
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
