"""The command lines of the tools: their flags with defaults and help texts.

The module named after a tool describes what the tool does and how it ends. It is loaded only when
the command line is valid, so that help, version and mistakes appear at once. `sparq admin` has
verbs, whose flags are in `admin.verbs`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from sparq.program.kinds import LEVEL, STRING
from sparq.program.mistakes import suggestion
from sparq.protocol.durations import MINUTE, SECOND
from sparq.protocol.option import option
from sparq.tools.command_line import (
    CLIENT_OPTION,
    HttpOptions,
    SourceOptions,
    launch,
    parse,
    wait_for_nsqd,
)
from sparq.tools.view import column_name

MODES: Final = ("round-robin", "hostpool", "epsilon-greedy")
"""How nsq_to_http and nsq_to_nsq choose among hosts; see `hostpool`."""

CONTENT_TYPE: Final = "application/octet-stream"
TEMPORARY: Final = "/tmp"  # noqa: S108 - NSQ's default; symbolic links in it are not followed
COLUMN: Final = STRING._replace(name="column", parse=column_name)
PARTS: Final = ("publish", "consume", "latency")
CHECK_FAILED: Final = 2
"""The exit status of nsq_check if it could not check; 1 means that it found damage."""


def _parts(texts: Iterable[str]) -> tuple[str, ...]:
    found = [part for text in texts for part in text.split(",")]
    unknown = sorted(set(found) - set(PARTS))
    if unknown:
        near = suggestion(unknown[0], PARTS)
        raise ValueError(f'"{unknown[0]}" is none of {", ".join(PARTS)}{near}')
    return tuple(found)


PART: Final = STRING._replace(name="part,...", gather=_parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqStatOptions(HttpOptions):
    """Options of nsq_stat."""

    topic: str = option("", "topic of the channel")
    channel: str = option("", "channel to look at")
    interval_ns: int = option(2 * SECOND, "time between two rows")
    count: int | None = option(None, "end behind so many rows; without it never")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions(HttpOptions):
    """Options of `sparq top`."""

    topic: str = option("", "show this topic only")
    channel: str = option("", "show channels of this name only")
    interval_ns: int = option(2 * SECOND, "time between two looks")
    count: int = option(0, "end after so many looks with rates; 0: never")
    once: bool = option(False, "print one table, and end")
    json: bool = option(False, "print each look as a line of JSON")
    sort: str = option("topic", "column to sort by: its heading, in any case", kind=COLUMN)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of `sparq bench`."""

    nsqd_tcp_address: str = option("127.0.0.1:4150", "nsqd to measure: host:port or a unix socket")
    nsqd_http_address: str = option(
        "127.0.0.1:4151",
        "the same nsqd for HTTP, where topics are made and deleted: host:port or URL",
    )
    part: tuple[str, ...] = option((), "measure only publish, consume or latency", kind=PART)
    duration_ns: int = option(3 * SECOND, "time that each measurement takes at most")
    size: int = option(200, "bytes of a message")
    tasks: int = option(100, "publishes that await their OK at the same time")
    batch: int = option(100, "messages of a batch, published or consumed")
    backlog: int = option(200_000, "messages that wait when consuming begins")
    max_in_flight: int = option(2500, "messages that a consumer may have unanswered")
    rate: int = option(1000, "messages a second for the latency")
    client_opt: tuple[str, ...] = option(
        (), "an option of the client, or its name alone for true", kind=CLIENT_OPTION
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqTailOptions(SourceOptions):
    """Options of nsq_tail."""

    topics: tuple[str, ...] = option((), "topic to print", name="topic")
    channel: str = option("", "channel to consume; without it one with a random name, ephemeral")
    max_in_flight: int = option(200, "messages that may be on their way here, at most --n")
    n: int = option(0, "end after so many messages of all topics together; 0: never")
    wait_for_nsqd_ns: int = wait_for_nsqd()
    print_topic: bool = option(False, "begin each line with its topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToNsqOptions:
    """Options of to_nsq."""

    topic: str = option("", "topic to publish to")
    delimiter: str = option("\n", "byte that ends a record")
    rate: int = option(0, "records a second at most; 0: no limit")
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (), "nsqd to publish to, each of them: host:port or a unix socket", name="nsqd-tcp-address"
    )
    wait_for_nsqd_ns: int = wait_for_nsqd()
    producer_opt: tuple[str, ...] = option(
        (), "an option of the client, or its name alone for true", kind=CLIENT_OPTION
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToFileOptions(SourceOptions):
    """Options of nsq_to_file."""

    # What to record
    topics: tuple[str, ...] = option((), "a topic to record", name="topic")
    topic_pattern: str = option("", "record the topics that this pattern (Go's syntax) matches")
    topic_refresh_ns: int = option(MINUTE, "time between two looks for topics")
    channel: str = option("nsq_to_file", "the channel")
    max_in_flight: int = option(200, "messages that may be held and not finished")

    # Where to write it
    output_dir: str = option(TEMPORARY, "folder of the files")
    work_dir: str = option(
        "",
        "folder of files that are being written; finished, they are moved to --output-dir (default"
        " the same folder)",
    )
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "path of a file below its folder; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are"
        " replaced. <REV> counts on where a file is there already",
    )
    datetime_format: str = option("%Y-%m-%d_%H", "<DATETIME>, by strftime")
    host_identifier: str = option(
        "", "<HOST>; <SHORT_HOST> and <HOSTNAME> are replaced (default <SHORT_HOST>)"
    )
    gzip: bool = option(False, "write gzip")
    gzip_level: int = option(6, "from 1, the fastest, to 9, the smallest")

    # When to rotate and sync
    rotate_size: int = option(
        0, "begin the next file when one is larger than so many bytes; 0: never for that"
    )
    rotate_interval_ns: int = option(0, "begin the next file after so long; 0s: never for that")
    sync_interval_ns: int = option(30 * SECOND, "sync and finish messages at least so often")
    skip_empty_files: bool = option(False, "open no file before there is something to be written")

    # How to ask nsqlookupds for topics
    http_client_connect_timeout_ns: int = option(2 * SECOND, "time to connect to an nsqlookupd")
    http_client_request_timeout_ns: int = option(
        5 * SECOND, "time for one question to an nsqlookupd"
    )

    # Logging
    log_level: int = option(logging.INFO, "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsq_to_file] ", "text before each log line")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToHttpOptions(SourceOptions):
    """Options of nsq_to_http."""

    topic: str = option("", "topic to consume")
    channel: str = option("nsq_to_http", "channel to consume it by")
    max_in_flight: int = option(200, "messages that may be unanswered at a time")
    n: int = option(100, "requests that may be under way at a time")
    post: tuple[str, ...] = option((), "URL to POST messages to")
    get: tuple[str, ...] = option(
        (), "URL to GET, with one %s in its path or query: the message, encoded"
    )
    wait_for_nsqd_ns: int = wait_for_nsqd()
    mode: str = option("hostpool", f"who gets a message: {', '.join(MODES)}")
    sample: float = option(1.0, "share of the messages to send; the others are finished")
    http_client_connect_timeout_ns: int = option(2 * SECOND, "time for making a connection")
    http_client_request_timeout_ns: int = option(20 * SECOND, "time for a request and its answer")
    status_every: int = option(250, "log response times at every so many messages; 0: never")
    content_type: str = option(CONTENT_TYPE, "Content-Type of a POST")
    header: tuple[str, ...] = option((), "header of each request, as 'Name: value'")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToNsqOptions(SourceOptions):
    """Options of nsq_to_nsq."""

    topic: tuple[str, ...] = option((), "topic to copy")
    channel: str = option("nsq_to_nsq", "channel to consume them by")
    wait_for_nsqd_ns: int = wait_for_nsqd()
    destination_topic: str = option("", "topic to publish to; without it, that of the source")
    destination_nsqd_tcp_addresses: tuple[str, ...] = option(
        (), "nsqd to publish to: host:port or a unix socket", name="destination-nsqd-tcp-address"
    )
    max_in_flight: int = option(200, "messages of a topic that may be unanswered at a time")
    mode: str = option("hostpool", f"who gets a message: {', '.join(MODES)}")
    status_every: int = option(250, "log response times at every so many messages; 0: never")
    whitelist_json_field: tuple[str, ...] = option(
        (), "field of JSON messages that passes; without the flag all do"
    )
    require_json_field: str = option("", "field that a JSON message must have in order to pass")
    require_json_value: str = option("", "value that this field must have")
    producer_opt: tuple[str, ...] = option(
        (), "an option of the publishing client, or its name alone for true", kind=CLIENT_OPTION
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of nsq_check."""

    data_path: str
    json: bool


Main = Callable[..., int]
"""Takes the command line without the program's name (None: that of the process), runs the program,
and returns the exit status."""


def _main(program: str, options_class: type) -> Main:
    def main(arguments: Sequence[str] | None = None) -> int:
        module = f"sparq.tools.{program.rpartition(' ')[2]}"
        return launch(module, parse(options_class, program, arguments))

    return main


nsq_stat = _main("nsq_stat", NsqStatOptions)
nsq_tail = _main("nsq_tail", NsqTailOptions)
nsq_to_file = _main("nsq_to_file", NsqToFileOptions)
nsq_to_http = _main("nsq_to_http", NsqToHttpOptions)
nsq_to_nsq = _main("nsq_to_nsq", NsqToNsqOptions)
to_nsq = _main("to_nsq", ToNsqOptions)
top = _main("sparq top", TopOptions)
bench = _main("sparq bench", BenchOptions)


def nsq_check(arguments: Sequence[str] | None = None) -> int:
    """Run nsq_check, the only tool that takes a word that is not a flag; return the exit status."""
    # This import loads argparse, which the other tools do not need.
    words = import_module("sparq.tools.parser")
    parser = words.Parser("nsq_check", description="check an nsqd's data path, offline")
    parser.mistake_status = CHECK_FAILED
    parser.add_argument("--version", action=words.VersionAction)
    parser.add_argument("data_path", help="nsqd's --data-path")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return launch("sparq.tools.nsq_check", CheckOptions(**vars(parser.parse_args(arguments))))


def admin(arguments: Sequence[str] | None = None) -> int:
    """Run `sparq admin`; return the exit status."""
    return int(import_module("sparq.tools.admin.verbs").main(arguments))
