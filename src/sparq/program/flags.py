"""Go-style command-line flags, and the TOML file that sets the options they do not set.

A program's options are one frozen dataclass. Each field declares its flag (`protocol.option`), so
flag, configuration key, type, bounds, default and help text are in one place (docs/daemons.md).
A field may itself be a dataclass of options, which is passed unchanged to the code that uses it.

1. A flag on the command line overrides the file; the file overrides the default.
2. Exit status: 0 after `--help` and `--version` (1 if their text cannot be written), 1 for a
   mistake, with one sentence on stderr (mistakes.py).
3. NSQ starts in spite of some mistakes: an unknown key in the file, a stray word, a value out of
   bounds. If a program has the option `go_compatible` and it is set, it starts too, and logs the
   sentence as a warning.
4. `parse_again` is for a running daemon: a mistake in the file raises an exception.
5. Bounds apply only to values that the user gave: a default that exceeds a bound set by another
   option is not a mistake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from sparq.program import command_line, config_file, mistakes
from sparq.program.config_file import FileError
from sparq.program.flag_types import BOOL, STRING, Flag, kind_of
from sparq.program.stdout import write_stdout
from sparq.protocol.option import option

T = TypeVar("T")

__all__ = [
    "FileError",
    "Flag",
    "differing",
    "flags_of",
    "option",
    "parse",
    "parse_again",
    "replaced",
]


VERSION = Flag("version", "version", "", BOOL, False, "print the version and exit", False)
CONFIG = Flag("config", "config", "", STRING, False, "path of a TOML file with options", "")
HELP = Flag("help", "help", "", BOOL, False, "print this help and exit", False)


def flags_of(options_class: type) -> list[Flag]:
    """Return the flags of an options dataclass in alphabetical order."""
    return sorted(_flags(options_class, "", ""), key=lambda flag: flag.name)


def _flags(source: Any, path: str, prefix: str) -> Iterator[Flag]:
    """Yield the flags of a dataclass with its defaults, or of an instance with its values."""
    for field in dataclasses.fields(source):
        default = _default(field) if isinstance(source, type) else getattr(source, field.name)
        metadata = field.metadata
        if dataclasses.is_dataclass(default):
            yield from _flags(default, f"{path}{field.name}.", metadata.get("prefix", ""))
        elif "text" in metadata:
            kind = metadata["kind"] or kind_of(field)
            bare = field.name.removesuffix("_ns").removesuffix("_ms")
            name = metadata["name"] or prefix + bare.replace("_", "-")
            most = metadata["most"]
            yield Flag(
                name,
                path + field.name,
                metadata["key"] or name.replace("-", "_"),
                kind,
                isinstance(default, tuple),
                metadata["text"],
                kind.given(default),
                kind.given(metadata["least"]),
                path + most if isinstance(most, str) else kind.given(most),
                metadata.get("live", ""),
            )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def replaced(options: T, values: Mapping[str, Any]) -> T:
    """Return a copy with other values in some fields ("tls.cert"), in the fields' own units."""
    changes: dict[str, Any] = {}
    for field, value in values.items():
        name, _, inner = field.partition(".")
        if inner:
            changes[name] = replaced(changes.get(name, getattr(options, name)), {inner: value})
        else:
            changes[name] = value
    return dataclasses.replace(options, **changes)  # type: ignore[type-var]  # it is a dataclass


def parse(
    options_class: type[T],
    program: str,
    version: str | Callable[[], str],
    arguments: Sequence[str],
    *,
    takes_file: bool = True,
) -> T:
    """Parse a program's options from its command line and the file that the command line names.

    Args:
        options_class: a dataclass whose fields were declared with `option`.
        program: the name to use in sentences about mistakes.
        version: the text that `--version` prints, or a function that returns it.
        arguments: the command line without the program name.
        takes_file: whether there is a `--config` flag: the daemons have one, NSQ's tools do not.
    Raises:
        SystemExit: with status 0 or 1 according to rule 2; the text has already been written.
    """
    flags = flags_of(options_class)
    always = [CONFIG, HELP, VERSION] if takes_file else [HELP, VERSION]
    try:
        words, given = _read(program, arguments, [*flags, *always])
        if given.get("help"):
            page = import_module("sparq.program.help_page").page(program, [*flags, *always])
            raise SystemExit(0 if write_stdout(page) else 1)
        if given.get("version"):
            text = version if isinstance(version, str) else version()
            raise SystemExit(0 if write_stdout(f"{text}\n") else 1)
        options, tolerated = _combine(options_class, flags, given)
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
    """Parse the options again from a command line that was valid before and the file as it is now.

    Raises:
        FileError: the file cannot be used; the text is one sentence.
    """
    flags = flags_of(options_class)
    # A command line with --version=false is valid, too.
    _, given = _read(program, arguments, [*flags, CONFIG, HELP, VERSION])
    options, tolerated = _combine(options_class, flags, given)
    if tolerated and not _is_go_compatible(options):
        raise FileError(tolerated[0])
    return options


def differing(old: T, new: T) -> list[Flag]:
    """Return the flags whose values differ between two instances of one options class."""
    return [flag for flag in flags_of(type(old)) if flag.value(old) != flag.value(new)]


def _read(
    program: str, arguments: Sequence[str], flags: Sequence[Flag]
) -> tuple[command_line.SplitCommandLine, dict[str, Any]]:
    words = command_line.split(program, arguments, {flag.name: flag for flag in flags})
    return words, command_line.values(words.texts)


def _combine(
    options_class: type[T], flags: Sequence[Flag], given: dict[str, Any]
) -> tuple[T, list[str]]:
    """Combine command line and file (rule 1); also return the mistakes that NSQ tolerates."""
    path = given.get("config", "")
    document = config_file.read(path) if path else {}
    values = config_file.values(document, flags)
    # Only after the file's values, which have to be valid even where a flag overrides them.
    values.update((f.field, given[f.field]) for f in flags if f.field in given)
    # `values` stay in the units that the user wrote: the sentences of `_beyond` quote them.
    held = {f.field: f.kind.held(values[f.field]) for f in flags if f.field in values}
    tolerated = config_file.unknown(path, document, flags)
    tolerated += _beyond(values, flags, given, path)
    return replaced(options_class(), held), tolerated


def _beyond(
    values: Mapping[str, Any], flags: Sequence[Flag], on_command_line: Collection[str], path: str
) -> list[str]:
    """Return a sentence for each value that has the right type but is not allowed.

    Args:
        values: the values that the user gave, by field.
        flags: all flags.
        on_command_line: fields set on the command line; the others come from the file at `path`.
        path: the configuration file, if there is one.
    """
    by_field = {flag.field: flag for flag in flags}
    sentences = []
    for flag in flags:
        reason = _reason(flag, values, by_field) if flag.field in values else None
        if not reason:
            continue
        text, why = reason
        if flag.field in on_command_line:
            sentences.append(f"--{flag.name}={text} {why}")
        else:
            sentences.append(f"config file {path}: {flag.key} = {text} {why}")
    return sentences


def _reason(
    flag: Flag, values: Mapping[str, Any], by_field: Mapping[str, Flag]
) -> tuple[str, str] | None:
    """Return the offending value as text and the reason; None if the value is allowed."""
    value, show = values[flag.field], flag.kind.show
    for one in value if flag.repeated else [value]:
        try:
            flag.kind.check(one)
        except ValueError as error:
            return mistakes.shown(str(one)), str(error)
    if flag.repeated:
        return None
    if flag.least is not None and value < flag.least:
        return show(value), f"is too small: use {show(flag.least)} or more"
    if isinstance(flag.most, str):
        other = by_field[flag.most]
        most = values.get(flag.most, other.default)
        if value > most:
            name = other.name
            return show(value), f"is above --{name} ({show(most)}): lower it, or raise --{name}"
    elif flag.most is not None and value > flag.most:
        return show(value), f"is too large: use {show(flag.most)} or less"
    return None


def _is_go_compatible(options: object) -> bool:
    return bool(getattr(options, "go_compatible", False))
