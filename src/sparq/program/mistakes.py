"""Mistakes in what a program is told at its start: one sentence each, and exit status 1.

1. A sentence names the flag, the file's key or the word as the user wrote it, and says what to
   write instead; where a known word is close, it names that word.
2. Only `--help` prints the help page: a page of flags would hide the sentence.
3. A daemon writes the sentence as a FATAL log line, where its operator looks; a tool writes it
   after its name.
4. Secrets are not repeated: a flag that holds one is named without its value.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from importlib import import_module

from sparq.program.logging import line

CLOSENESS_MIN = 0.6
"""How alike two words must be, from 0 to 1, to suggest one for the other (difflib's default)."""


class Mistake(Exception):
    """The program was told something that it cannot follow; the text is one sentence."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that this one was most likely meant to be; empty if none is close."""
    words = sorted(known)
    # Loaded for a mistake only: a start without one does not wait for it.
    close = import_module("difflib").get_close_matches(word, words, 1, CLOSENESS_MIN)
    if close:
        return str(close[0])
    starting = [other for other in words if len(word) > 1 and other.startswith(word)]
    return starting[0] if starting else ""


def suggestion(word: str, known: Iterable[str], form: str = "{}") -> str:
    """`: did you mean X?`, with the nearest known word put into `form`; empty if none is close."""
    found = nearest(word, known)
    return f": did you mean {form.format(found)}?" if found else ""


def quoted(text: str) -> str:
    """A text in double quotes on one line, whatever it contains."""
    return str(import_module("json").dumps(text, ensure_ascii=False))


def shown(text: str) -> str:
    """A value as it stands in a sentence: in quotes where it would be misread without them."""
    is_plain = bool(text) and text.isascii() and text.isprintable() and '"' not in text
    return text if is_plain and " " not in text else quoted(text)


def one_of(choices: Iterable[str]) -> str:
    """`a, b or c`; the empty text is left out, since it means "none"."""
    words = [choice for choice in choices if choice]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def end(program: str, sentence: str, *, is_daemon: bool) -> SystemExit:
    """Write the sentence to stderr; what is returned, when raised, ends with status 1."""
    if is_daemon:
        sys.stderr.write(f"{line(f'[{program}] ', logging.CRITICAL, sentence)}\n")
    else:
        sys.stderr.write(f"{program}: {sentence}\n")
    return SystemExit(1)


def warn(program: str, sentence: str) -> None:
    """Write the sentence to stderr as a log line, for a daemon that starts all the same."""
    sys.stderr.write(f"{line(f'[{program}] ', logging.WARNING, sentence)}\n")
