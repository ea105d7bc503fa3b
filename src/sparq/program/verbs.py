"""The command line of a program with verbs: `sparq admin VERB ...`, `sparq token VERB ...`.

Words and flags may be mixed. After `--` all arguments are words, because a topic's name may begin
with a dash.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from sparq.options.declare import flags_of
from sparq.options.mistakes import Mistake, one_of, shown, suggestion
from sparq.program import flags
from sparq.program.flags import HELP, VERSION
from sparq.program.stdout import version_line, write_stdout

MANY: Final = sys.maxsize
PAGE_WIDTH: Final = 78


class Verb(NamedTuple):
    """A verb.

    Attributes:
        words: the words after it, as its usage shows them.
        text: what it does, in a few words.
        options: its flags.
        least, most: the allowed number of words.
        about: sentences for its help page.
        examples: command lines for its help page, without the program's name.
    """

    words: str
    text: str
    options: type[Any]
    least: int
    most: int = 2
    about: str = ""
    examples: tuple[str, ...] = ()


class ParsedCommand(NamedTuple):
    """A parsed command line."""

    verb: str
    words: tuple[str, ...]
    options: Any


def read(
    program: str,
    verbs: Mapping[str, Verb],
    arguments: Sequence[str],
    common: type[Any],
    foot: str,
) -> ParsedCommand:
    """Parse a command line.

    Args:
        program: the program's name, such as `sparq admin`.
        verbs: its verbs by name.
        arguments: the command line after that name.
        common: the flags of every verb, for the program's help page.
        foot: the last lines of that page.

    Raises:
        SystemExit: 0 after `--help` and `--version`, 1 for a mistake.
    """
    name = arguments[0] if arguments else "--help"
    if name.lstrip("-") in ("help", "h", "version"):
        is_version = name.lstrip("-") == "version"
        page = f"{version_line(program)}\n" if is_version else _overview(program, verbs, common)
        raise SystemExit(0 if write_stdout(page + ("" if is_version else foot)) else 1)
    if name not in verbs:
        near = suggestion(name, verbs) or f": use {one_of(verbs)}"
        sentence = f"there is no verb {shown(name)}{near}"
        raise flags.end(program, sentence, is_daemon=False)
    whole, verb = f"{program} {name}", verbs[name]
    known = flags_of(verb.options)
    own_page = partial(_page, program, name, verb)
    try:
        given = flags.read(
            *(whole, arguments[1:], known, own_page), takes_file=False, takes_words=True
        )
        options, _ = flags.combined(verb.options, known, given)
        if not verb.least <= len(given.words) <= verb.most:
            words = " ".join(map(shown, given.words[:5])) or "nothing"
            raise Mistake(f"takes {verb.words or 'no words'}, not {words}")
    except Mistake as error:
        raise flags.end(whole, str(error), is_daemon=False) from None
    return ParsedCommand(name, given.words, options)


def _page(program: str, name: str, verb: Verb, about_flags: str) -> str:
    """Return a verb's help page."""
    rest = about_flags.partition("\n\n")[2]
    usage = f"usage: {f'{program} {name} {verb.words}'.rstrip()} [flags]"
    examples = "".join(f"  {program} {each}\n" for each in verb.examples)
    text = verb.about or f"{verb.text[0].upper()}{verb.text[1:]}."
    filled = import_module("textwrap").fill(text, PAGE_WIDTH)
    return f"{usage}\n\n{filled}\n\nexamples:\n{examples}\n{rest}"


def _overview(program: str, verbs: Mapping[str, Verb], common: type[Any]) -> str:
    usages = {name: f"{name} {verb.words}".rstrip() for name, verb in verbs.items()}
    width = max(map(len, usages.values()))
    lines = "".join(f"  {usages[name].ljust(width)}  {verb.text}\n" for name, verb in verbs.items())
    page = flags.help_page(f"{program} VERB", [*flags_of(common), HELP, VERSION])
    return f"{page}\nverbs ({program} VERB --help has its flags and examples):\n{lines}\n"
