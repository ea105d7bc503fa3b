"""The command line of a program with verbs: `sparq admin VERB ...`, `sparq token VERB ...`.

Words and flags may be mixed. After `--` all arguments are words, because a topic's name may begin
with a dash.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from sparq.program import command_line, flags, mistakes
from sparq.program.flags import HELP, VERSION, Flag
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
        near = mistakes.suggestion(name, verbs) or f": use {mistakes.one_of(verbs)}"
        sentence = f"there is no verb {mistakes.shown(name)}{near}"
        raise mistakes.end(program, sentence, is_daemon=False)
    return _of_verb(program, name, verbs[name], arguments[1:])


def _of_verb(program: str, name: str, verb: Verb, arguments: Sequence[str]) -> ParsedCommand:
    whole = f"{program} {name}"
    known = [*flags.flags_of(verb.options), HELP, VERSION]
    try:
        words, given = separated(whole, arguments, known)
    except mistakes.Mistake as error:
        raise mistakes.end(whole, str(error), is_daemon=False) from None
    if "--help=true" in given:
        raise SystemExit(0 if write_stdout(_page(program, name, verb, known)) else 1)
    options = flags.parse(verb.options, whole, lambda: version_line(whole), given, takes_file=False)
    if not verb.least <= len(words) <= verb.most:
        given_words = " ".join(map(mistakes.shown, words[:5])) or "nothing"
        sentence = f"takes {verb.words or 'no words'}, not {given_words}"
        raise mistakes.end(whole, sentence, is_daemon=False)
    return ParsedCommand(name, tuple(words), options)


def separated(
    program: str, arguments: Sequence[str], known: Sequence[Flag]
) -> tuple[list[str], list[str]]:
    """Split a command line that mixes words and flags into words and flags with their values.

    Raises:
        Mistake: a flag is unknown, or has no value.
    """
    by_name = {flag.name: flag for flag in known}
    words: list[str] = []
    given: list[str] = []
    rest = list(arguments)
    while rest:
        if rest[0] == "--":
            return words + rest[1:], given
        if _is_word(rest[0]):
            words.append(rest.pop(0))
            continue
        flag = by_name.get(rest[0].lstrip("-"))
        size = 1 if flag is None or flag.kind.bare else 2
        found = command_line.split(program, rest[:size], by_name)
        given += [f"--{each.name}={text}" for each, text in found.texts]
        rest = rest[size:]
    return words, given


def _is_word(text: str) -> bool:
    """Whether a text is not a flag; places such as -1h are none, nor is - for standard input."""
    return not text.startswith("-") or text == "-" or text[1:2].isdigit()


def _page(program: str, name: str, verb: Verb, known: Sequence[Flag]) -> str:
    """Return a verb's help page."""
    usage, _, rest = _flags_page(f"{program} {name} {verb.words}".rstrip(), known).partition("\n\n")
    examples = "".join(f"  {program} {each}\n" for each in verb.examples)
    text = verb.about or f"{verb.text[0].upper()}{verb.text[1:]}."
    filled = import_module("textwrap").fill(text, PAGE_WIDTH)
    return f"{usage}\n\n{filled}\n\nexamples:\n{examples}\n{rest}"


def _overview(program: str, verbs: Mapping[str, Verb], common: type[Any]) -> str:
    usages = {name: f"{name} {verb.words}".rstrip() for name, verb in verbs.items()}
    width = max(map(len, usages.values()))
    lines = "".join(f"  {usages[name].ljust(width)}  {verb.text}\n" for name, verb in verbs.items())
    page = _flags_page(f"{program} VERB", [*flags.flags_of(common), HELP, VERSION])
    return f"{page}\nverbs ({program} VERB --help has its flags and examples):\n{lines}\n"


def _flags_page(usage: str, known: Sequence[Flag]) -> str:
    return str(import_module("sparq.program.help_page").page(usage, known))
