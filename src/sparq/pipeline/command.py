"""The command line of `sparq pipeline`: its flags, its file, its help.

    sparq pipeline --data URI --lookupd-http-address HOST:PORT [--config FILE.toml] ...

1. A flag overrides the file, and the file overrides the default. `--spark` and `--source` override
   single keys of the tables `[spark]` and `[source]`.
2. The keys of the file are the names of the flags. `spark.executor.cores = 2` at the top of the
   file sets this Spark option.
3. `--help`, `--version` and errors load neither Spark nor an event loop. An error is one sentence
   and ends the program with status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from importlib import import_module
from typing import Any, Final

from sparq.pipeline import setting_kinds as kinds
from sparq.pipeline.settings import Settings, SettingsError, flags, settled
from sparq.program import command_line, config_file, mistakes
from sparq.program.flags import CONFIG, HELP, VERSION, Flag
from sparq.program.stdout import version_line, write_stdout

PROGRAM: Final = "sparq pipeline"
APPLICATION: Final = "sparq.pipeline.app"
"""Its `run(settings)` does the work and returns the exit status."""

INTERRUPTED: Final = 130
INTRODUCTION: Final = """\
Runs the clicks pipeline on existing nsqds: reads clicks from a topic, and writes an archive,
metrics per minute and spam findings to one folder, each exactly once. Ctrl-C or SIGTERM ends
it; the next start continues from its checkpoints. --data and --lookupd-http-address are required.

  sparq pipeline --data data --lookupd-http-address 127.0.0.1:4161
  sparq pipeline --config clicks.toml --master spark://host:7077 --spark spark.executor.cores=2

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: the command line without the program's name; None: that of this process.
    Returns:
        The exit status: 1 for an error, INTERRUPTED for Ctrl-C, else that of the application.
    Raises:
        SystemExit: after `--help` and `--version`.
    """
    try:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        return int(import_module(APPLICATION).run(settings))
    except mistakes.Mistake as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sparq":
            raise
        sys.stderr.write(f"{PROGRAM}: {error.name} is missing: pip install 'sparq-mq[spark]'\n")
    except ImportError as error:
        if error.name is not None:
            raise
        sys.stderr.write(f"{PROGRAM}: {error}\n")  # an extra that this run needs
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return INTERRUPTED
    return 1


def parse(arguments: Sequence[str]) -> Settings:
    """The settings from a command line and from the file that it names.

    Raises:
        SettingsError: a setting is missing or wrong.
        Mistake: a word is not a flag, or a flag has no value.
        SystemExit: after `--help` and `--version`.
    """
    known = {flag.name: flag for flag in (*flags(), CONFIG, HELP, VERSION)}
    words = command_line.split(PROGRAM, _positive(arguments), known)
    named = [flag for flag, _ in words.texts]
    if HELP in named:
        raise SystemExit(0 if write_stdout(page()) else 1)
    if VERSION in named:
        raise SystemExit(0 if write_stdout(f"{version_line(PROGRAM)}\n") else 1)
    if words.strays:
        raise SettingsError(command_line.stray_mistake(words, known))
    given = _from_flags(words)
    path = given.pop(CONFIG.name, "")
    values = _from_file(path) if path else {}
    for field, value in given.items():
        both = field in _PAIR_FIELDS and field in values
        values[field] = (*values[field], *value) if both else value
    for field, flag in (("data", "data"), ("lookupd_http_addresses", "lookupd-http-address")):
        if not values.get(field):
            raise SettingsError(f"--{flag} is missing: see {PROGRAM} --help")
    return Settings(**values)


def page() -> str:
    """The page that `--help` prints."""
    options: str = import_module("sparq.program.help_page").page(
        PROGRAM, [*flags(), CONFIG, HELP, VERSION]
    )
    return INTRODUCTION + options


METRICS: Final = "metrics"
_PAIR_FIELDS: Final = ("spark", "source", "click", "columns")


def _positive(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `--no-publish` replaced by `--publish=false`."""
    names = [flag.name for flag in flags() if flag.kind is kinds.TRUTH]
    meant = {f"{dashes}no-{name}": f"--{name}=false" for name in names for dashes in ("-", "--")}
    return [meant.get(word, word) for word in arguments]


def _from_flags(words: command_line.SplitCommandLine) -> dict[str, Any]:
    """The values of a command line, by field; the last value of a flag counts."""
    given: dict[str, Any] = {}
    for flag, text in words.texts:
        if flag is CONFIG:
            given[flag.name] = text
            continue
        try:
            value = flag.kind.parse(text)
        except ValueError as error:
            raise SettingsError(f"--{flag.name}={mistakes.shown(text)} {error}") from None
        if flag.repeated:
            value = (*given.get(flag.field, ()), *([value] if flag.kind in kinds.PAIRS else value))
        given[flag.field] = value
    return given


def _from_file(path: str) -> dict[str, Any]:
    """The values of a TOML file, by field.

    Raises:
        SettingsError: the file cannot be read, or has an unknown key or a wrong value.
    """
    try:
        document = config_file.read(path)
    except config_file.FileError as error:
        raise SettingsError(f"--config: {error}") from None
    known = {flag.name: flag for flag in flags()}
    values = {}
    for key, value in document.items():
        flag = known.get(key)
        if key == METRICS:
            values["own_metrics"] = _metrics(value, f"config file {path}")
            continue
        if flag is None:
            raise SettingsError(f"config file {path}: {_unknown(key, value, known)}")
        origin = f"config file {path}: {key}"
        given = _pairs(flag, value, origin) if isinstance(value, dict) else value
        values[flag.field] = settled(flag, given, origin)
    return values


def _metrics(value: Any, origin: str) -> Any:
    """The user's metrics, from the tables `[metrics.NAME]`."""
    if not isinstance(value, dict):
        raise SettingsError(f"{origin}: {METRICS} is no setting: write a table [{METRICS}.NAME]")
    try:
        return import_module("sparq.pipeline.own_metrics").from_toml(value)
    except ValueError as error:
        raise SettingsError(f"{origin}: {error}") from None


def _unknown(key: str, value: Any, known: Mapping[str, Flag]) -> str:
    found = mistakes.nearest(key.replace("_", "-").lower(), known)
    if isinstance(value, dict) and not found:
        return f"there is no table [{key}]: write settings without a table; see {PROGRAM} --help"
    close = f": did you mean {found}?" if found else f": see {PROGRAM} --help"
    return f"there is no setting {mistakes.shown(key)}{close}"


def _pairs(flag: Flag, table: dict[str, Any], origin: str) -> dict[str, str]:
    """The keys and values of a table. TOML turns dotted keys into nested tables."""
    if flag.kind not in kinds.PAIRS:
        raise SettingsError(f"{origin} is a table: write {key_form(flag)}")
    found: dict[str, str] = {}
    for name, value in _flat(table):
        is_bare = flag.kind is kinds.SPARK and not name.startswith("spark.")
        key = f"spark.{name}" if is_bare else name
        if isinstance(value, list | date | time):
            raise SettingsError(f"{origin}: {name} has the wrong type: write a string or a number")
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def key_form(flag: Flag) -> str:
    """How a setting is written in the file."""
    return f'{flag.name} = ["..."]' if flag.repeated else f"{flag.name} = ..."


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
