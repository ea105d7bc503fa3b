"""Mistakes in a command line or a configuration file: one sentence each, and exit status 1.

1. A sentence names the flag, the file's key or the word as the user wrote it, and says what to
   write instead; if a known word is close, it suggests that word.
2. Only `--help` prints the help page: a page of flags would hide the sentence.
3. A daemon writes the sentence as a FATAL log line, where its operator looks; a tool writes it
   after its own name.
4. Secrets are not repeated: a flag that holds one is named without its value.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from importlib import import_module

from sparq.program.logging import line

CLOSENESS_MIN = 0.6
"""How similar two words must be, from 0 to 1, to suggest one for the other (difflib's default)."""


class Mistake(Exception):
    """The command line asks for something the program cannot do; the text is one sentence."""


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
    return str(import_module("json").dumps(text, ensure_ascii=False))


def shown(text: str) -> str:
    """Return a value for use in a sentence: in quotes if it would be misread without them."""
    is_plain = bool(text) and text.isascii() and text.isprintable() and '"' not in text
    return text if is_plain and " " not in text else quoted(text)


def one_of(choices: Iterable[str]) -> str:
    """Return `a, b or c`; the empty text is left out because it means "none"."""
    words = [choice for choice in choices if choice]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def end(program: str, sentence: str, *, is_daemon: bool) -> SystemExit:
    """Write the sentence to stderr; return the exception that ends the program with status 1."""
    if is_daemon:
        sys.stderr.write(f"{line(f'[{program}] ', logging.CRITICAL, sentence)}\n")
    else:
        sys.stderr.write(f"{program}: {sentence}\n")
    return SystemExit(1)


def warn(program: str, sentence: str) -> None:
    """Write the sentence to stderr as a log line; the daemon starts in spite of the mistake."""
    sys.stderr.write(f"{line(f'[{program}] ', logging.WARNING, sentence)}\n")
