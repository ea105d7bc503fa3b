"""Command-line flags as Go programs take them, and the TOML file behind them.

A program's options are one frozen dataclass; each field carries its flag (`option(...)`), so flag,
configuration key, type, default and help text stand in one place. Rules (reference: flags.md):

1. `-name value`, `--name value` and `--name=value` are the same; a boolean takes its value only
   behind `=`. Flags end at the first argument that is none, or at `--`; what follows is ignored,
   unless a program asks for it (`behind_flags`).
2. A flag on the command line wins over the file, the file over the default.
3. Exit status: 0 after `--help` and `--version` (1 if their text cannot be written), 2 for a bad
   command line (with usage on stderr), 1 for a bad file (a FATAL log line says why). Only in a
   file may a duration be a bare number: milliseconds.
4. Keys of the file that no flag has are ignored, so that one file can serve several versions.
5. `parse_again` is for a daemon that runs: a bad file is an exception then, not the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from sparq.program.kinds import BOOL, LEVEL, STRING, TLS_REQUIRED, TLS_VERSION, Kind
from sparq.program.logging import line
from sparq.program.saying import said

T = TypeVar("T")


class FileError(Exception):
    """A configuration file cannot be used; the text is NSQ's."""


class Flag(NamedTuple):
    """One flag: its name, the field it fills, its key in the file."""

    name: str
    field: str
    key: str
    kind: Kind
    repeated: bool
    help: str
    default: Any


VERSION = Flag("version", "version", "", BOOL, False, "print the version and exit", False)
CONFIG = Flag("config", "config", "", STRING, False, "path of a TOML file with options", "")
_PARSED = (LEVEL, TLS_REQUIRED, TLS_VERSION)
"""What a file may hold for these NSQ checks by itself, with words of its own."""

HELP = Flag("help", "help", "", BOOL, False, "print this help and exit", False)


def option(
    default: Any,
    text: str,
    *,
    kind: Kind,
    name: str = "",
    key: str = "",
) -> Any:
    """Declare a dataclass field as an option.

    Args:
        default: the value without flag and file; a function is called for it; a tuple makes the
            flag repeatable.
        text: what `--help` says.
        kind: how it is read.
        name: the flag, if it is not the field's name with dashes.
        key: the key in the file, if it is not the flag's name with underscores.
    """
    metadata = {"text": text, "kind": kind, "name": name, "key": key}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(options_class: type) -> list[Flag]:
    """The flags of an options dataclass, in alphabetical order."""
    found = []
    for field in dataclasses.fields(options_class):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        name = field.metadata["name"] or field.name.replace("_", "-")
        key = field.metadata["key"] or name.replace("-", "_")
        kind, text = field.metadata["kind"], field.metadata["text"]
        found.append(Flag(name, field.name, key, kind, isinstance(default, tuple), text, default))
    return sorted(found)


def parse(
    options_class: type[T],
    program: str,
    version: str,
    arguments: Sequence[str],
    *,
    takes_file: bool = True,
) -> T:
    """Make a program's options from its command line and the file that it names.

    Args:
        options_class: a dataclass whose fields were declared with `option`.
        program: the name in usage texts.
        version: what `--version` prints.
        arguments: the command line without the program.
        takes_file: whether there is a `--config`: the daemons have one, NSQ's tools have none.
    Raises:
        SystemExit: with status 0, 1 or 2 as rule 3 has it; the text is written already.
    """
    flags = flags_of(options_class)
    always = [CONFIG, HELP, VERSION] if takes_file else [HELP, VERSION]
    parser = _Parser(program, [*flags, *always])
    given = parser.values(arguments)
    if given.get("help"):
        raise SystemExit(0 if said(parser.format_help()) else 1)
    if given.get("version"):
        raise SystemExit(0 if said(f"{version}\n") else 1)
    try:
        return _together(options_class, flags, given)
    except FileError as error:
        sys.stderr.write(f"{line(f'[{program}] ', logging.CRITICAL, str(error))}\n")
        raise SystemExit(1) from None


def parse_again(options_class: type[T], program: str, arguments: Sequence[str]) -> T:
    """Make the options anew from a command line that was fine before, and its file as it is now.

    Raises:
        FileError: the file is missing, is no TOML, or has a value of a wrong type.
    """
    flags = flags_of(options_class)
    return _together(options_class, flags, _Parser(program, [*flags, CONFIG]).values(arguments))


def _together(options_class: type[T], flags: Sequence[Flag], given: dict[str, Any]) -> T:
    """The options, from what the command line gave and the file that it names (rule 2)."""
    values = from_file(given["config"], flags) if given.get("config") else {}
    values.update((f.field, given[f.field]) for f in flags if f.field in given)
    return options_class(**values)


def differing(old: T, new: T) -> list[Flag]:
    """The flags in which two sets of options of one class differ."""
    return [f for f in flags_of(type(old)) if getattr(old, f.field) != getattr(new, f.field)]


class _Parser(argparse.ArgumentParser):
    """argparse for the help page and the conversions; the grammar is Go's (`canonical`)."""

    def __init__(self, program: str, flags: Sequence[Flag]) -> None:
        super().__init__(
            prog=program,
            usage=f"{program} [flags]",
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
            argument_default=argparse.SUPPRESS,
        )
        self._flags = {flag.name: flag for flag in flags}
        for flag in sorted(flags):
            self.add_argument(
                f"--{flag.name}",
                dest=flag.field,
                type=_reader(flag),
                action="append" if flag.repeated else "store",
                metavar="" if flag.kind is BOOL else flag.kind.name,
                help=_help(flag),
            )

    def values(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The flags that were given, by field."""
        try:
            given = vars(self.parse_args(canonical(arguments, self._flags)))
        except argparse.ArgumentError as error:
            self.error(error.message)
        except ValueError as error:
            self.error(str(error))
        for flag in self._flags.values():
            if flag.repeated and flag.field in given:
                given[flag.field] = self._gathered(flag, given[flag.field])
        return given

    def _gathered(self, flag: Flag, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values of a flag that was given several times, which may not go together."""
        try:
            return flag.kind.gather(values)
        except ValueError as error:
            # Without the values: the reason names what is wrong, and one of them may be a secret.
            self.error(f"invalid value for flag -{flag.name}: {error}")

    def error(self, message: str) -> NoReturn:
        """The reason, then the usage, as Go's flag package prints them."""
        sys.stderr.write(f"{message}\n{self.format_help()}")
        raise SystemExit(2)


def _reader(flag: Flag) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return flag.kind.parse(text)
        except ValueError as error:
            what = "boolean value" if flag.kind is BOOL else "value"
            quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
            reason = f"invalid {what} {quoted} for flag -{flag.name}: {error}"
            raise argparse.ArgumentTypeError(reason) from None

    return read


def _help(flag: Flag) -> str:
    if flag.repeated:
        shown = ", ".join(flag.kind.show(value) for value in flag.default)
        text = f"{flag.help} (may be given several times)"
    else:
        shown = "" if flag.default is None else flag.kind.show(flag.default)
        text = flag.help
    return (f"{text} (default {shown})" if shown else text).replace("%", "%%")


def canonical(arguments: Sequence[str], flags: dict[str, Flag]) -> list[str]:
    """Rewrite a Go command line as `--name=value` words, one a flag.

    Raises:
        ValueError: an unknown flag, a bad one, or one without its value.
    """
    return _split(arguments, flags)[0]


def behind_flags(options_class: type, arguments: Sequence[str]) -> list[str]:
    """What stands behind the flags of a command line that was parsed (rule 1)."""
    flags = [*flags_of(options_class), CONFIG, HELP, VERSION]
    return _split(arguments, {flag.name: flag for flag in flags})[1]


def _split(arguments: Sequence[str], flags: dict[str, Flag]) -> tuple[list[str], list[str]]:
    """The flags in one spelling, and what stands behind them."""
    words = []
    rest = list(reversed(arguments))
    while rest and len(rest[-1]) > 1 and rest[-1].startswith("-"):
        word = rest.pop()
        if word == "--":
            break
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise ValueError(f"bad flag syntax: {word}")
        flag = flags.get("help" if name == "h" else name)
        if flag is None:
            raise ValueError(f"flag provided but not defined: -{name}")
        if not equals and flag.kind.bare:
            value = flag.kind.bare
        elif not equals:
            if not rest:
                raise ValueError(f"flag needs an argument: -{name}")
            value = rest.pop()
        words.append(f"--{flag.name}={value}")
    return words, rest[::-1]


def from_file(path: str, flags: Iterable[Flag]) -> dict[str, Any]:
    """Read the options that a TOML file sets.

    Raises:
        FileError: the file is missing, is no TOML, or has a value of a wrong type.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"open {path}: {(error.strerror or str(error)).lower()}"
        raise FileError(f"failed to load config file {path} - {reason}") from error
    except ValueError as error:
        raise FileError(f"failed to load config file {path} - {error}") from error
    values = {}
    for flag in flags:
        if flag.key in document:
            values[flag.field] = _coerce(flag, document[flag.key])
    return values


def _coerce(flag: Flag, value: Any) -> Any:
    try:
        if not flag.repeated:
            return flag.kind.coerce(value)
        if isinstance(value, str):
            value = value.split(",") if value else []
        if not isinstance(value, list):
            raise ValueError(f"invalid list value type {type(value).__name__}")
        return flag.kind.gather(flag.kind.coerce(item) for item in value)
    except ValueError as error:
        if flag.kind in _PARSED:
            raise FileError(f"failed parsing {flag.key} {value} - {error}") from error
        raise FileError(
            f"ERROR: Resolve failed to coerce value {value} for option {flag.key} - {error}"
        ) from error
