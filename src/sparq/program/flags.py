"""Read a program's options from its Go-style command line and from the TOML file that it names.

A program's options are one frozen dataclass (`sparq.options.declare`), so flag, configuration key,
type, bounds, default and help text are in one place (docs/daemons.md).

The command line has the grammar of Go's `flag` package: `-name value`, `--name value` and
`--name=value` are the same; a boolean takes its value only after `=`. Flags end at `--` or at the
first word that is not a flag. In the file each option is a key at the top level; a bare number is a
duration in milliseconds, and a list may be one text with commas. Messages about an unusable file or
a value of the wrong type use NSQ's wording.

1. A flag on the command line overrides the file; the file overrides the default.
2. Exit status: 0 after `--help` and `--version` (1 if their text cannot be written), 1 for a
   mistake, with one sentence on stderr.
3. NSQ starts in spite of some mistakes: an unknown key in the file, a stray word, a value out of
   bounds. If a program has the option `go_compatible` and it is set, it starts too, and logs the
   sentence as a warning.
4. `parse_again` is for a running daemon: a mistake in the file raises an exception.
5. Bounds apply only to values that the user gave: a default that exceeds a bound set by another
   option is not a mistake.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sparq.options.declare import Flag, flags_of, replaced
from sparq.options.kinds import BOOL, STRING
from sparq.options.mistakes import Mistake, nearest, quoted, shown, suggestion
from sparq.program.logging import line
from sparq.program.stdout import version_line, write_stdout

T = TypeVar("T")

VERSION = Flag("version", "version", "", BOOL, False, "print the version and exit", False)
CONFIG = Flag("config", "config", "", STRING, False, "path of a TOML file with options", "")
HELP = Flag("help", "help", "", BOOL, False, "print this help and exit", False)

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_BOOLEANS = ("true", "false", "t", "f", "1", "0")


# The end after a mistake: only `--help` prints the help page, which would hide the sentence. A
# daemon writes it as a FATAL log line, where its operator looks; a tool writes it after its name.


def exit_after_mistake(program: str, sentence: str, *, is_daemon: bool) -> SystemExit:
    """Write the sentence to stderr; return the exception that ends the program with status 1."""
    if is_daemon:
        sys.stderr.write(f"{line(f'[{program}] ', logging.CRITICAL, sentence)}\n")
    else:
        sys.stderr.write(f"{program}: {sentence}\n")
    return SystemExit(1)


def status_of(program: str, work: Callable[[], int]) -> int:
    """Run a command; return its exit status, or 1 after a mistake, 130 after Ctrl-C."""
    try:
        return work()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130
    except Mistake as error:
        sentence = str(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sparq":
            raise
        sentence = f"{error.name} is missing: pip install 'sparq-mq[spark]'"
    sys.stderr.write(f"{program}: {sentence}\n")
    return 1


def warn(program: str, sentence: str) -> None:
    """Write the sentence to stderr as a log line; the daemon starts in spite of the mistake."""
    sys.stderr.write(f"{line(f'[{program}] ', logging.WARNING, sentence)}\n")


# The command line


class Given(NamedTuple):
    """A command line.

    Attributes:
        texts: its flags with their texts, in order.
        words: the other words, if it may have some.
        stray: the sentence about the first other word, if it may have none.
    """

    texts: list[tuple[Flag, str]]
    words: tuple[str, ...] = ()
    stray: str = ""

    @property
    def path(self) -> str:
        """The file that it names."""
        return next((text for flag, text in reversed(self.texts) if flag is CONFIG), "")


def read_command_line(
    program: str,
    arguments: Sequence[str] | None,
    flags: Iterable[Flag],
    page: Callable[[str], str] = str,
    *,
    takes_file: bool = True,
    takes_words: bool = False,
) -> Given:
    """Read a command line.

    Args:
        program: the name to use in sentences about mistakes.
        arguments: the command line without the program name; None: that of the process.
        flags: the program's own flags.
        page: makes what `--help` prints of the page about the flags.
        takes_file: whether there is a `--config` flag.
        takes_words: see `split_command_line`.

    Raises:
        Mistake: a flag is unknown, malformed or lacks its value.
        SystemExit: after `--help` and `--version`, whose text has been written.
    """
    always = (CONFIG, HELP, VERSION) if takes_file else (HELP, VERSION)
    known = {flag.name: flag for flag in (*flags, *always)}
    given = sys.argv[1:] if arguments is None else arguments
    texts, words = split_command_line(program, given, known, takes_words=takes_words)
    asked = _values([each for each in texts if each[0] in (HELP, VERSION)])
    if asked.get("help"):
        raise SystemExit(0 if write_stdout(page(help_page(program, known.values()))) else 1)
    if asked.get("version"):
        raise SystemExit(0 if write_stdout(f"{version_line(program)}\n") else 1)
    if takes_words or not words:
        return Given(texts, tuple(words))
    last = texts[-1][0] if texts else None
    return Given(texts, stray=_stray(words[0], last, known))


def split_command_line(
    program: str, arguments: Sequence[str], flags: Mapping[str, Flag], *, takes_words: bool = False
) -> tuple[list[tuple[Flag, str]], list[str]]:
    """Split a command line into flags with their texts, in order, and other words.

    If a program takes words, flags may come after them, and `-1h` is a word. Otherwise the flags
    end at the first word, as Go's do.

    Raises:
        Mistake: a flag is unknown, malformed or lacks its value.
    """
    texts: list[tuple[Flag, str]] = []
    words: list[str] = []
    rest = list(reversed(arguments))
    while rest:
        word = rest.pop()
        if word == "--":
            break
        if not word.startswith("-") or word == "-" or (takes_words and word[1].isdigit()):
            words.append(word)
            if takes_words:
                continue
            break
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise Mistake(f"{shown(word)} is not a flag: write --name=value")
        flag = flags.get("help" if name == "h" else name)
        if flag is None:
            name = name if _NAME.fullmatch(name) else name[:80]
            close = suggestion(name.replace("_", "-"), flags, "--{}")
            raise Mistake(
                f"there is no flag {shown('--' + name)}{close or f': see {program} --help'}"
            )
        if not equals and flag.kind.bare:
            value = flag.kind.bare
        elif not equals:
            if not rest:
                raise Mistake(f"--{name} has no value: write --{name}={flag.kind.name.upper()}")
            value = rest.pop()
        texts.append((flag, value))
    return texts, words + rest[::-1]


def _values(texts: Iterable[tuple[Flag, str]]) -> dict[str, Any]:
    """Parse the flags' texts into values by field; if a flag is repeated, the last one wins.

    A flag declared as repeated collects all of its values.

    Raises:
        Mistake: a text is not of its flag's type.
    """
    found: dict[Flag, list[Any]] = {}
    for flag, text in texts:
        try:
            found.setdefault(flag, []).append(flag.kind.parse(text))
        except ValueError as error:
            raise Mistake(f"--{flag.name}={shown(text)}: {error}") from None
    values = {}
    for flag, given in found.items():
        try:
            values[flag.field] = flag.kind.gather(given) if flag.repeated else given[-1]
        except ValueError as error:
            # The values are left out: one may be a secret, and the reason names what is wrong.
            raise Mistake(f"--{flag.name}: {error}") from None
    return values


def _stray(word: str, last: Flag | None, flags: Mapping[str, Flag]) -> str:
    """Return the sentence about the first word that is not a flag; `last` is the flag before it."""
    if last is not None and last.kind is BOOL and word.lower() in _BOOLEANS:
        return f"{quoted(word)} after --{last.name} is not its value: write --{last.name}={word}"
    name = word.partition("=")[0].replace("_", "-")
    if name in flags:
        return f"{quoted(word)} is not a flag: write --{word.replace('_', '-', name.count('-'))}"
    return f"{quoted(word)} is not a flag: remove it, or write it as a flag's value, --name=value"


def help_page(program: str, flags: Iterable[Flag]) -> str:
    """Format every flag with its type, help text and default, in alphabetical order."""
    # Imported here: only this page needs it.
    usage = f"{program} [flags]"
    parser = import_module("argparse").ArgumentParser(usage=usage, add_help=False)
    for flag in sorted(flags):
        text = f"{flag.help} (may be given several times)" if flag.repeated else flag.help
        if default := flag.shown(flag.default):
            text = f"{text} (default {default})"
        name = "" if flag.kind is BOOL else flag.kind.name
        parser.add_argument(f"--{flag.name}", metavar=name, help=text.replace("%", "%%"))
    return str(parser.format_help())


# The file


def read_file(path: str) -> dict[str, Any]:
    """Load a TOML file. Raises Mistake: it is missing, unreadable or not valid TOML."""
    try:
        # Imported here: a start without a file does not pay for it.
        document: dict[str, Any] = import_module("tomllib").loads(
            Path(path).read_text(encoding="utf-8")
        )
    except OSError as error:
        reason = f"open {path}: {(error.strerror or str(error)).lower()}"
        raise Mistake(f"failed to load config file {path} - {reason}") from error
    except ValueError as error:
        raise Mistake(f"failed to load config file {path} - {error}") from error
    return document


def unknown_keys(
    path: str, document: Mapping[str, Any], flags: Sequence[Flag], sections: Sequence[str] = ()
) -> list[str]:
    """Return a sentence for each key and section that matches no flag; `sections` may be meant.

    NSQ ignores unknown keys and sections.
    """
    meant = {flag.name.replace("-", "_"): flag.key for flag in flags}
    meant.update({flag.key: flag.key for flag in flags})
    sentences = []
    for key, value in document.items():
        if key in meant.values():
            continue
        if isinstance(value, dict) and (found := nearest(key, sections)):
            reason = f"there is no section [{key}]: did you mean [{found}]?"
        elif isinstance(value, dict):
            reason = f"there is no section [{key}]: write its options at the top, without sections"
        else:
            found = nearest(key.replace("-", "_").lower(), meant)
            close = f": did you mean {meant[found]}?" if found else ": remove it"
            reason = f"there is no option {shown(key)}{close}"
        sentences.append(f"config file {path}: {reason}")
    return sentences


def pairs_of(table: Mapping[str, Any], section: str, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield a section's keys and values as texts; TOML makes tables of keys with points in them.

    Raises:
        ValueError: a value is a list or a time.
    """
    for key, value in table.items():
        if isinstance(value, dict):
            yield from pairs_of(value, section, f"{before}{key}.")
        elif isinstance(value, str | int | float):
            yield f"{before}{key}", str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise ValueError(f"{section}: {before}{key} must be a string or a number")


def _coerced(flag: Flag, value: Any) -> Any:
    try:
        if not flag.repeated:
            return flag.kind.coerce(value)
        if isinstance(value, str):
            value = value.split(",") if value else []
        if not isinstance(value, list):
            raise ValueError(f"invalid list value type {type(value).__name__}")
        return flag.kind.gather(map(flag.kind.coerce, value))
    except ValueError as error:
        if flag.kind.is_parsed_by_nsq:
            raise Mistake(f"failed parsing {flag.key} {value} - {error}") from error
        raise Mistake(
            f"ERROR: Resolve failed to coerce value {value} for option {flag.key} - {error}"
        ) from error


# Both together


def parse(
    options_class: type[T],
    program: str,
    arguments: Sequence[str] | None = None,
    about: str = "",
    *,
    takes_file: bool = True,
) -> T:
    """Parse a program's options from its command line and the file that the command line names.

    Args:
        options_class: a dataclass whose fields were declared with `option`.
        program: the name to use in sentences about mistakes.
        arguments: the command line without the program name; None: that of the process.
        about: the beginning of the help page.
        takes_file: whether there is a `--config` flag: the daemons have one, NSQ's tools do not.
    Raises:
        SystemExit: with status 0 or 1 according to rule 2; the text has already been written.
    """
    flags = flags_of(options_class)
    try:
        given = read_command_line(program, arguments, flags, about.__add__, takes_file=takes_file)
        options, tolerated = combined(options_class, flags, given)
    except Mistake as error:
        raise exit_after_mistake(program, str(error), is_daemon=takes_file) from None
    for sentence in tolerated:
        warn(program, f"{sentence} (ignored because of --go-compatible)")
    return options


def parse_again(options_class: type[T], program: str, arguments: Sequence[str]) -> T:
    """Parse the options again from a command line that was valid before and the file as it is now.

    Raises:
        Mistake: the file cannot be used; the text is one sentence.
    """
    flags = flags_of(options_class)
    return combined(options_class, flags, read_command_line(program, arguments, flags))[0]


def combined(options_class: type[T], flags: Sequence[Flag], given: Given) -> tuple[T, list[str]]:
    """Combine command line and file (rule 1); also return the mistakes to be ignored (rule 3).

    Raises:
        Mistake: there is one.
    """
    path = given.path
    by_field = {flag.field: flag for flag in flags}
    on_command_line = _values(each for each in given.texts if each[0].field in by_field)
    document = read_file(path) if path else {}
    # The file's values have to be valid even where a flag overrides them.
    values = {f.field: _coerced(f, document[f.key]) for f in flags if f.key in document}
    values |= on_command_line
    wrong = [given.stray] if given.stray else []
    wrong += unknown_keys(path, document, flags)
    for flag in flags:
        if flag.field not in values:
            continue
        text, reason = _reason(flag, values, by_field)
        if reason and flag.field in on_command_line:
            wrong.append(f"--{flag.name}={text} {reason}")
        elif reason:
            wrong.append(f"config file {path}: {flag.key} = {text} {reason}")
    options = replaced(options_class(), values)
    if wrong and not getattr(options, "go_compatible", False):
        raise Mistake(wrong[0])
    return options, wrong


def _reason(flag: Flag, values: Mapping[str, Any], by_field: Mapping[str, Flag]) -> tuple[str, str]:
    """Return a value that has the right type but is not allowed, as text, and why; else "", ""."""
    value, show = values[flag.field], flag.kind.show
    for one in value if flag.repeated else [value]:
        try:
            flag.check(one)
        except ValueError as error:
            return shown(one) if isinstance(one, str) else show(one), str(error)
    if isinstance(flag.most, str):
        other = by_field[flag.most]
        most = values.get(flag.most, other.default)
        if value > most:
            name = other.name
            return show(value), f"is above --{name} ({show(most)}): lower it, or raise --{name}"
    return "", ""


def built(
    options_class: type[T], flags: Sequence[Flag], values: Mapping[str, Any], given: Given
) -> T:
    """Make options that check themselves (`Flag.settled`) from a file's values and a command line.

    Args:
        options_class: their class.
        flags: their flags.
        values: the file's values, by field.
        given: the command line; it replaces the file's values, but pairs only key by key.

    Raises:
        Mistake: the sentence names the flag, or the file and its key.
    """
    if given.stray:
        raise Mistake(given.stray)
    texts = {flag: [text for each, text in given.texts if each is flag] for flag in flags}
    found = dict(values)
    for flag, each in texts.items():
        before = values.get(flag.field, ()) if flag.kind.is_pairs else ()
        if each:
            found[flag.field] = [*before, *each] if flag.repeated else each[-1]
    try:
        return options_class(**found)
    except Mistake as error:
        text = str(error).removeprefix("--")
        name = re.split("[^a-z-]", text)[0]
        if any(flag.name == name and flag.field in values and not texts[flag] for flag in flags):
            raise Mistake(f"config file {given.path}: {text}") from None
        raise
