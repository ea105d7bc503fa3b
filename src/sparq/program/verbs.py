"""The command line of a program with verbs: `sparq admin VERB ...`, `sparq token VERB ...`.

Words and flags may be mixed. After `--` all arguments are words, because a topic's name may begin
with a dash.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from sparq.options.declare import Flag, flags_of
from sparq.options.mistakes import Mistake, one_of, shown, suggestion
from sparq.program import flags
from sparq.program.flags import HELP, VERSION
from sparq.program.stdout import version_line, write_stdout

PAGE_WIDTH: Final = 78


class Verb(NamedTuple):
    """A verb.

    Attributes:
        words: the words after it, as its usage shows them: those in brackets may be left out, and
            `...` stands for any number of them.
        text: what it does, in a few words.
        options: its flags.
        about: sentences for its help page.
        examples: command lines for its help page, without the program's name.
        work: the function that does it, `module.name`, if the program loads it only then.
    """

    words: str
    text: str
    options: type[Any]
    about: str = ""
    examples: tuple[str, ...] = ()
    work: str = ""

    def takes(self, count: int) -> bool:
        """Whether it may have this number of words."""
        least = len(self.words.partition("[")[0].split())
        most = sys.maxsize if "..." in self.words else len(self.words.split())
        return least <= count <= most


class ParsedCommand(NamedTuple):
    """A parsed command line; `given` has the texts of its flags."""

    verb: str
    words: tuple[str, ...]
    options: Any
    given: Sequence[tuple[Flag, str]] = ()


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
    if name.lstrip("-") in ("help", "h"):
        usages = {each: f"{each} {verb.words}".rstrip() for each, verb in verbs.items()}
        width = max(map(len, usages.values()))
        lines = "".join(f"  {usages[one].ljust(width)}  {verbs[one].text}\n" for one in verbs)
        page = flags.help_page(f"{program} VERB", [*flags_of(common), HELP, VERSION])
        about = f"verbs ({program} VERB --help has its flags and examples):\n{lines}\n{foot}"
        raise SystemExit(0 if write_stdout(f"{page}\n{about}") else 1)
    if name.lstrip("-") == "version":
        raise SystemExit(0 if write_stdout(f"{version_line(program)}\n") else 1)
    if name not in verbs:
        near = suggestion(name, verbs) or f": use {one_of(verbs)}"
        sentence = f"there is no verb {shown(name)}{near}"
        raise flags.exit_after_mistake(program, sentence, is_daemon=False)
    whole, verb = f"{program} {name}", verbs[name]
    known = flags_of(verb.options)

    def page_of(about_flags: str) -> str:
        usage = f"usage: {f'{whole} {verb.words}'.rstrip()} [flags]"
        text = verb.about or f"{verb.text[0].upper()}{verb.text[1:]}."
        examples = "".join(f"  {program} {each}\n" for each in verb.examples)
        filled = import_module("textwrap").fill(text, PAGE_WIDTH)
        rest = about_flags.partition("\n\n")[2]
        return f"{usage}\n\n{filled}\n\nexamples:\n{examples}\n{rest}"

    try:
        given = flags.read_command_line(
            *(whole, arguments[1:], known, page_of), takes_file=False, takes_words=True
        )
        options, _ = flags.combined(verb.options, known, given)
        if not verb.takes(len(given.words)):
            words = " ".join(map(shown, given.words[:5])) or "nothing"
            raise Mistake(f"takes {verb.words or 'no words'}, not {words}")
    except Mistake as error:
        raise flags.exit_after_mistake(whole, str(error), is_daemon=False) from None
    return ParsedCommand(name, given.words, options, given.texts)
