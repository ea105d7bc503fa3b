"""Parse a Go-style command line into values: the grammar of Go's `flag` package.

1. `-name value`, `--name value` and `--name=value` are the same; a boolean takes its value only
   after `=`. Flags end at `--` or at the first word that is not a flag.
2. What Go's programs refuse raises `Mistake` here. Go's programs ignore the words after the last
   flag, and every flag after those words; here they are returned, and the caller decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparq.program.flag_types import BOOL, Flag
from sparq.program.mistakes import Mistake, quoted, shown, suggestion

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_BOOLEANS = ("true", "false", "t", "f", "1", "0")


class SplitCommandLine(NamedTuple):
    """A split command line: `texts` holds the flags with their values in the order given."""

    texts: list[tuple[Flag, str]]
    strays: list[str]


def split(program: str, arguments: Sequence[str], flags: Mapping[str, Flag]) -> SplitCommandLine:
    """Split a command line into flags with their texts and the words after them.

    Raises:
        Mistake: a flag is unknown, malformed or lacks its value.
    """
    texts: list[tuple[Flag, str]] = []
    # Not argparse: it also reads flags after the first word that is not one, where Go stops.
    rest = list(reversed(arguments))
    while rest and len(rest[-1]) > 1 and rest[-1].startswith("-"):
        word = rest.pop()
        if word == "--":
            break
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise Mistake(f"{shown(word)} is not a flag: write --name=value")
        flag = flags.get("help" if name == "h" else name)
        if flag is None:
            raise Mistake(_unknown(program, name, flags))
        if not equals and flag.kind.bare:
            value = flag.kind.bare
        elif not equals:
            if not rest:
                raise Mistake(f"--{name} has no value: write --{name}={flag.kind.name.upper()}")
            value = rest.pop()
        texts.append((flag, value))
    return SplitCommandLine(texts, rest[::-1])


def values(texts: Sequence[tuple[Flag, str]]) -> dict[str, Any]:
    """Parse the flags' texts into values by field; if a flag is repeated, the last one wins.

    A flag declared as repeated collects all of its values.

    Raises:
        Mistake: a text is not of its flag's type.
    """
    given: dict[str, Any] = {}
    for flag, text in texts:
        try:
            value = flag.kind.parse(text)
        except ValueError as error:
            raise Mistake(f"--{flag.name}={shown(text)}: {error}") from None
        if flag.repeated:
            given.setdefault(flag.field, []).append((flag, value))
        else:
            given[flag.field] = value
    for field, pairs in given.items():
        if isinstance(pairs, list):
            given[field] = _gathered(pairs[0][0], [value for _, value in pairs])
    return given


def stray_mistake(words: SplitCommandLine, flags: Mapping[str, Flag]) -> str:
    """Return the sentence about the first word that is not a flag."""
    word = words.strays[0]
    last = words.texts[-1][0] if words.texts else None
    if last is not None and last.kind is BOOL and word.lower() in _BOOLEANS:
        return f"{quoted(word)} after --{last.name} is not its value: write --{last.name}={word}"
    name = word.partition("=")[0].replace("_", "-")
    if name in flags:
        return f"{quoted(word)} is not a flag: write --{word.replace('_', '-', name.count('-'))}"
    return f"{quoted(word)} is not a flag: remove it, or write it as a flag's value, --name=value"


def _unknown(program: str, name: str, flags: Mapping[str, Flag]) -> str:
    if not _NAME.fullmatch(name):
        name = name[:80]
    close = suggestion(name.replace("_", "-"), flags, "--{}")
    return f"there is no flag {shown('--' + name)}{close or f': see {program} --help'}"


def _gathered(flag: Flag, found: Sequence[Any]) -> tuple[Any, ...]:
    """Combine the values of a flag that was given several times, if they go together."""
    try:
        return flag.kind.gather(found)
    except ValueError as error:
        # The values are left out: one may be a secret, and the reason names what is wrong.
        raise Mistake(f"--{flag.name}: {error}") from None
