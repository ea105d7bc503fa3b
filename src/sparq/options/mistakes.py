"""What a sentence about a mistake is made of: values as the user wrote them, and suggestions.

A sentence names the flag, the file's key or the word, and says what to write instead; if a known
word is close, it suggests that word. Secrets are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

CLOSENESS_MIN = 0.6
"""How similar two words must be, from 0 to 1, to suggest one for the other (difflib's default)."""


class Mistake(Exception):
    """The user asks for something that is not possible; the text is one sentence."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that this word was most likely meant to be; empty if none is close."""
    words = sorted(known)
    # Loaded only after a mistake, so that a start without one does not pay for it.
    close = import_module("difflib").get_close_matches(word, words, 1, CLOSENESS_MIN)
    if close:
        return str(close[0])
    starting = [other for other in words if len(word) > 1 and other.startswith(word)]
    return starting[0] if starting else ""


def suggestion(word: str, known: Iterable[str], form: str = "{}") -> str:
    """Return `: did you mean X?`, the nearest word put into `form`; empty if none is close."""
    found = nearest(word, known)
    return f": did you mean {form.format(found)}?" if found else ""


def quoted(text: str) -> str:
    """Return a text in double quotes on one line, whatever it contains."""
    in_json = str(import_module("json").dumps(text, ensure_ascii=False))
    # A word of the command line may hold bytes that are not UTF-8; no stream can write them.
    return in_json.encode("utf-8", "backslashreplace").decode()


def shown(text: str) -> str:
    """Return a value for use in a sentence: in quotes if it would be misread without them."""
    is_plain = bool(text) and text.isascii() and text.isprintable() and '"' not in text
    return text if is_plain and " " not in text else quoted(text)


def one_of(choices: Iterable[str]) -> str:
    """Return `a, b or c`; the empty text is left out because it means "none"."""
    words = [choice for choice in choices if choice]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
