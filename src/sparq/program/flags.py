"""Command-line flags as Go programs take them, and the TOML file that sets what they do not.

A program's options are one frozen dataclass; each field carries its flag (`option(...)`), so flag,
configuration key, type, bounds, default and help text stand in one place (reference: flags.md).

1. A flag on the command line wins over the file, the file over the default.
2. Exit status: 0 after `--help` and `--version` (1 if their text cannot be written), 1 for a
   mistake, with one sentence on stderr (mistakes.py).
3. Where NSQ starts in spite of a mistake (an unknown key of the file, a stray word, a value out of
   bounds), a program that has the option `go_compatible` starts as well when it is given, and
   the sentence is a warning.
4. `parse_again` is for a daemon that runs: a mistake in the file is an exception then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from sparq.program import bounds, command_line, config_file, mistakes
from sparq.program.config_file import FileError
from sparq.program.kinds import BOOL, STRING, Kind
from sparq.program.saying import said

T = TypeVar("T")

__all__ = [
    "FileError",
    "Flag",
    "differing",
    "flags_of",
    "option",
    "parse",
    "parse_again",
]


class Flag(NamedTuple):
    """One flag: its name, the field it fills, its key in the file, its bounds."""

    name: str
    field: str
    key: str
    kind: Kind
    repeated: bool
    help: str
    default: Any
    least: int | float | None = None
    most: int | float | str | None = None


VERSION = Flag("version", "version", "", BOOL, False, "print the version and exit", False)
CONFIG = Flag("config", "config", "", STRING, False, "path of a TOML file with options", "")
HELP = Flag("help", "help", "", BOOL, False, "print this help and exit", False)


def option(
    default: Any,
    text: str,
    *,
    kind: Kind,
    name: str = "",
    key: str = "",
    least: int | float | None = None,
    most: int | float | str | None = None,
) -> Any:
    """Declare a dataclass field as an option.

    Args:
        default: the value without flag and file; a function is called for it; a tuple makes the
            flag repeatable.
        text: what `--help` says.
        kind: how it is read.
        name: the flag, if it is not the field's name with dashes.
        key: the key in the file, if it is not the flag's name with underscores.
        least: the smallest value that may be given.
        most: the largest one, or the name of the field that holds it.
    """
    metadata = {"text": text, "kind": kind, "name": name, "key": key, "least": least, "most": most}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(options_class: type) -> list[Flag]:
    """The flags of an options dataclass, in alphabetical order."""
    found = []
    for field in dataclasses.fields(options_class):
        default, told = field.default, field.metadata
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        name = told["name"] or field.name.replace("_", "-")
        key = told["key"] or name.replace("-", "_")
        found.append(
            Flag(
                name,
                field.name,
                key,
                told["kind"],
                isinstance(default, tuple),
                told["text"],
                default,
                told["least"],
                told["most"],
            )
        )
    return sorted(found, key=lambda flag: flag.name)


def parse(
    options_class: type[T],
    program: str,
    version: str | Callable[[], str],
    arguments: Sequence[str],
    *,
    takes_file: bool = True,
) -> T:
    """Make a program's options from its command line and the file that it names.

    Args:
        options_class: a dataclass whose fields were declared with `option`.
        program: the name in sentences about mistakes.
        version: what `--version` prints, or what makes that text.
        arguments: the command line without the program.
        takes_file: whether there is a `--config`: the daemons have one, NSQ's tools have none.
    Raises:
        SystemExit: with status 0 or 1 as rule 2 has it; the text is written already.
    """
    flags = flags_of(options_class)
    always = [CONFIG, HELP, VERSION] if takes_file else [HELP, VERSION]
    try:
        words, given = _read(program, arguments, [*flags, *always])
        if given.get("help"):
            page = import_module("sparq.program.help_page").page(program, [*flags, *always])
            raise SystemExit(0 if said(page) else 1)
        if given.get("version"):
            text = version if isinstance(version, str) else version()
            raise SystemExit(0 if said(f"{text}\n") else 1)
        options, tolerated = _together(options_class, flags, given)
    except (mistakes.Mistake, FileError) as error:
        raise mistakes.end(program, str(error), is_daemon=takes_file) from None
    if words.strays:
        known = {flag.name: flag for flag in [*flags, *always]}
        tolerated.insert(0, command_line.stray_mistake(words, known))
    if tolerated and not _is_go_compatible(options):
        raise mistakes.end(program, tolerated[0], is_daemon=takes_file)
    for sentence in tolerated:
        mistakes.warn(program, f"{sentence} (ignored because of --go-compatible)")
    return options


def parse_again(options_class: type[T], program: str, arguments: Sequence[str]) -> T:
    """Make the options anew from a command line that was fine before, and its file as it is now.

    Raises:
        FileError: the file cannot be used; the text is one sentence.
    """
    flags = flags_of(options_class)
    _, given = _read(program, arguments, [*flags, CONFIG])
    options, tolerated = _together(options_class, flags, given)
    if tolerated and not _is_go_compatible(options):
        raise FileError(tolerated[0])
    return options


def differing(old: T, new: T) -> list[Flag]:
    """The flags in which two sets of options of one class differ."""
    return [f for f in flags_of(type(old)) if getattr(old, f.field) != getattr(new, f.field)]


def _read(
    program: str, arguments: Sequence[str], flags: Sequence[Flag]
) -> tuple[command_line.Words, dict[str, Any]]:
    words = command_line.split(program, arguments, {flag.name: flag for flag in flags})
    return words, command_line.values(words.texts)


def _together(
    options_class: type[T], flags: Sequence[Flag], given: dict[str, Any]
) -> tuple[T, list[str]]:
    """The options from the command line and its file (rule 1), and what NSQ would pass over."""
    path = given.get("config", "")
    document = config_file.read(path) if path else {}
    values = config_file.values(document, flags)
    values.update((f.field, given[f.field]) for f in flags if f.field in given)
    options = options_class(**values)
    tolerated = config_file.unknown(path, document, flags)
    set_by_user = [flag for flag in flags if flag.field in values]
    tolerated += bounds.beyond(options, set_by_user, flags, given, path)
    return options, tolerated


def _is_go_compatible(options: object) -> bool:
    return bool(getattr(options, "go_compatible", False))
