"""The command line of `sparq pipeline`: its flags, its file, its help.

    sparq pipeline --data URI --lookupd-http-address HOST:PORT [--config FILE.toml] ...

A flag overrides the file, whose keys are the names of the flags; pairs such as `--spark` override
single keys of the table of that name. Help and wrong flags load neither Spark nor an event loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from sparq.options.mistakes import Mistake
from sparq.pipeline.settings import Settings, SettingsError, flags
from sparq.program.flags import (
    built,
    pairs_of,
    read_command_line,
    read_file,
    status_of,
    unknown_keys,
)

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

    def work() -> int:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        return int(import_module(APPLICATION).run(settings))

    return status_of(PROGRAM, work)


def parse(arguments: Sequence[str]) -> Settings:
    """The settings of a command line and its file. Raises Mistake; SystemExit: after `--help`."""
    words = ["--publish=false" if word == "--no-publish" else word for word in arguments]
    given = read_command_line(PROGRAM, words, flags(), INTRODUCTION.__add__)
    settings = built(Settings, flags(), values_of(given.path), given)
    if not settings.lookupd_http_addresses and not settings.files:
        raise SettingsError(f"--lookupd-http-address is missing: see {PROGRAM} --help")
    return settings


def values_of(path: str) -> dict[str, Any]:
    """The values of a TOML file, by field; none without a path. Raises SettingsError."""
    try:
        document = read_file(path) if path else {}
    except Mistake as error:
        raise SettingsError(f"--config: {error}") from None
    values: dict[str, Any] = {}
    sections = ["metrics", *(flag.key for flag in flags() if flag.kind.is_pairs)]
    try:
        if "metrics" in document:
            metrics = document.pop("metrics")
            if not isinstance(metrics, dict):
                raise ValueError("metrics is no setting: write a table [metrics.NAME]")
            own_metrics = import_module("sparq.pipeline.own_metrics")
            values["own_metrics"] = own_metrics.from_toml(metrics)
        if unknown := unknown_keys(path, document, flags(), sections):
            raise SettingsError(unknown[0])
        for flag in flags():
            value = document.get(flag.key)
            if isinstance(value, dict) and flag.kind.is_pairs:
                value = list(pairs_of(value, flag.key))
                if flag.field == "spark":
                    value = [(f"spark.{key.removeprefix('spark.')}", each) for key, each in value]
            elif isinstance(value, str) and value and flag.kind.name == "file":
                value = os.path.join(os.path.dirname(path), os.path.expanduser(value))
            if value is not None:
                values[flag.field] = value
    except ValueError as error:
        raise SettingsError(f"config file {path}: {error}") from None
    return values
