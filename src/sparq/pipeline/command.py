"""The command line of `sparq pipeline`: its flags, its file, its help.

    sparq pipeline --data URI --lookupd-http-address HOST:PORT [--config FILE.toml] ...

A flag overrides the file, whose keys are the names of the flags; pairs such as `--spark` override
single keys of the table of that name. Help and wrong flags load neither Spark nor an event loop.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from importlib import import_module
from typing import Any, Final

from sparq.pipeline.settings import Settings, SettingsError, flags, is_pairs
from sparq.program import command_line, config_file, mistakes
from sparq.program.flags import CONFIG, HELP, VERSION, Flag
from sparq.program.stdout import version_line, write_stdout

PROGRAM: Final = "sparq pipeline"
APPLICATION: Final = "sparq.pipeline.app"
INTRODUCTION: Final = """\
Runs the clicks pipeline on existing nsqds: reads clicks from a topic, and writes an archive,
metrics per minute and spam findings to one folder, each exactly once. Ctrl-C or SIGTERM ends
it; the next start continues from its checkpoints. --data and --lookupd-http-address are required.

  sparq pipeline --data data --lookupd-http-address 127.0.0.1:4161
  sparq pipeline --config clicks.toml --master spark://host:7077 --spark spark.executor.cores=2

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status: that of the application, or 1 for an error."""
    try:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        return int(import_module(APPLICATION).run(settings))
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130
    except mistakes.Mistake as error:
        sentence = str(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sparq":
            raise
        sentence = f"{error.name} is missing: pip install 'sparq-mq[spark]'"
    sys.stderr.write(f"{PROGRAM}: {sentence}\n")
    return 1


def parse(arguments: Sequence[str]) -> Settings:
    """The settings of a command line and its file. Raises Mistake; SystemExit: after `--help`."""
    known = {flag.name: flag for flag in (*flags(), CONFIG, HELP, VERSION)}
    positive = ["--publish=false" if word == "--no-publish" else word for word in arguments]
    words = command_line.split(PROGRAM, positive, known)
    given: dict[Flag, list[Any]] = {}
    for flag, text in words.texts:
        given.setdefault(flag, []).append(text)
    if HELP in given:
        page = import_module("sparq.program.help_page").page(PROGRAM, list(known.values()))
        raise SystemExit(0 if write_stdout(INTRODUCTION + page) else 1)
    if VERSION in given:
        raise SystemExit(0 if write_stdout(f"{version_line(PROGRAM)}\n") else 1)
    if words.strays:
        raise SettingsError(command_line.stray_mistake(words, known))
    path = given.pop(CONFIG, [""])[-1]
    values = values_of(path)
    from_file = {flag.name for flag in flags() if flag.field in values and flag not in given}
    for flag, texts in given.items():
        before = values.get(flag.field, ()) if is_pairs(flag) else ()
        values[flag.field] = [*before, *texts] if flag.repeated else texts[-1]
    try:
        settings = Settings(**values)
    except SettingsError as error:
        text = str(error).removeprefix("--")
        if re.split("[^a-z-]", text)[0] not in from_file:
            raise
        raise SettingsError(f"config file {path}: {text}") from None
    if not settings.lookupd_http_addresses and not settings.files:
        raise SettingsError(f"--lookupd-http-address is missing: see {PROGRAM} --help")
    return settings


def values_of(path: str) -> dict[str, Any]:
    """The values of a TOML file, by field; none without a path. Raises SettingsError."""
    origin = f"config file {path}"
    try:
        document = config_file.read(path) if path else {}
        metrics = document.pop("metrics", {})
        if not isinstance(metrics, Mapping):
            raise ValueError("metrics is no setting: write a table [metrics.NAME]")
        own_metrics = import_module("sparq.pipeline.own_metrics").from_toml(metrics)
    except config_file.FileError as error:
        raise SettingsError(f"--config: {error}") from None
    except ValueError as error:
        raise SettingsError(f"{origin}: {error}") from None
    sections = ["metrics", *(flag.key for flag in flags() if is_pairs(flag))]
    if unknown := config_file.unknown(path, document, flags(), sections):
        raise SettingsError(unknown[0])
    values: dict[str, Any] = {"own_metrics": own_metrics}
    for flag in flags():
        value = document.get(flag.key)
        if isinstance(value, Mapping) and is_pairs(flag):
            value = list(_flat(value, f"{origin}: {flag.key}"))
            if flag.field == "spark":
                value = [(f"spark.{key.removeprefix('spark.')}", each) for key, each in value]
        elif isinstance(value, str) and value and flag.kind.name == "file":
            value = os.path.join(os.path.dirname(path), os.path.expanduser(value))
        if value is not None:
            values[flag.field] = value
    return values


def _flat(table: Mapping[str, Any], origin: str, before: str = "") -> Iterator[tuple[str, str]]:
    """Keys and values of a table; TOML makes tables of keys with points in them."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, origin, f"{before}{key}.")
        elif isinstance(value, list | date | time):
            raise SettingsError(f"{origin}: {before}{key} must be a string or a number")
        else:
            yield f"{before}{key}", str(value).lower() if isinstance(value, bool) else str(value)
