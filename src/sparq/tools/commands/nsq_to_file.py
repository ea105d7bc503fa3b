"""The command line of `nsq_to_file`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.nsq_to_file`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import BOOL, DURATION, INT, LEVEL, STRING
from sparq.protocol.durations import MINUTE, SECOND
from sparq.tools.command_line import SourceOptions, launch, parse

PROGRAM: Final = "nsq_to_file"
TEMPORARY: Final = "/tmp"  # noqa: S108 - NSQ's default; what others plant there is not followed


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
    """Everything that nsq_to_file can be told."""

    # What is recorded
    topics: tuple[str, ...] = option((), "a topic to record", kind=STRING, name="topic")
    topic_pattern: str = option(
        "", "record the topics that this pattern (Go's syntax) matches", kind=STRING
    )
    topic_refresh_ns: int = option(
        MINUTE, "time between two looks for topics", kind=DURATION, name="topic-refresh"
    )
    channel: str = option(PROGRAM, "the channel", kind=STRING)
    max_in_flight: int = option(200, "messages that may be held and not finished", kind=INT)

    # Where it is written
    output_dir: str = option(TEMPORARY, "folder of the files", kind=STRING)
    work_dir: str = option(
        "",
        "folder of files that are being written; finished, they are moved to --output-dir (default"
        " the same folder)",
        kind=STRING,
    )
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "path of a file below its folder; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are"
        " replaced. <REV> counts on where a file is there already",
        kind=STRING,
    )
    datetime_format: str = option("%Y-%m-%d_%H", "<DATETIME>, by strftime", kind=STRING)
    host_identifier: str = option(
        "",
        "<HOST>; <SHORT_HOST> and <HOSTNAME> are replaced (default <SHORT_HOST>)",
        kind=STRING,
    )
    gzip: bool = option(False, "write gzip", kind=BOOL)
    gzip_level: int = option(6, "from 1, the fastest, to 9, the smallest", kind=INT)

    # When
    rotate_size: int = option(
        0, "begin the next file when one is larger than so many bytes; 0: never for that", kind=INT
    )
    rotate_interval_ns: int = option(
        0,
        "begin the next file after so long; 0s: never for that",
        kind=DURATION,
        name="rotate-interval",
    )
    sync_interval_ns: int = option(
        30 * SECOND,
        "sync and finish messages at least so often",
        kind=DURATION,
        name="sync-interval",
    )
    skip_empty_files: bool = option(
        False, "open no file before there is something to be written", kind=BOOL
    )

    # How it asks nsqlookupds for topics
    http_client_connect_timeout_ns: int = option(
        2 * SECOND,
        "time to connect to an nsqlookupd",
        kind=DURATION,
        name="http-client-connect-timeout",
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND,
        "time for one question to an nsqlookupd",
        kind=DURATION,
        name="http-client-request-timeout",
    )

    # What it says
    log_level: int = option(logging.INFO, "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option(f"[{PROGRAM}] ", "text before each log line", kind=STRING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.nsq_to_file", parse(Options, PROGRAM, arguments))
