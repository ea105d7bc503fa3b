"""The command lines of the tools: their flags with defaults and help texts, and their errors.

The module named after a tool describes what the tool does and how it ends. It is loaded only when
the command line is valid, so that help, version and mistakes appear at once: nothing here may need
an event loop, a socket or arrays. `sparq admin` has verbs, whose flags are in `admin.verbs`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from sparq.options.declare import flags_of, option
from sparq.options.kinds import STRING, Kind, choice, texts
from sparq.options.mistakes import Mistake
from sparq.options.units import MINUTE, SECOND
from sparq.program import flags
from sparq.program.logging import LEVEL
from sparq.protocol.address import lookupd_url, parse_address
from sparq.protocol.names import is_valid_name

TOOLS: Final = (
    *("nsq_check", "nsq_stat", "nsq_tail"),
    *("nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq"),
)
"""NSQ's tools, which are programs of their own."""

MODES: Final = ("round-robin", "hostpool", "epsilon-greedy")
"""How nsq_to_http and nsq_to_nsq choose among hosts; see `relay.HostPool`."""

MODE_HELP: Final = f"how to choose the host for a message: {', '.join(MODES)}"

CONTENT_TYPE: Final = "application/octet-stream"
TEMPORARY: Final = "/tmp"  # noqa: S108 - NSQ's default; symbolic links in it are not followed
CHECK_FAILED: Final = 2
"""The exit status of nsq_check if it could not check; 1 means that it found damage."""

LOOKUPD_VARIABLE: Final = "SPARQ_LOOKUPD_HTTP_ADDRESS"
NSQD_VARIABLE: Final = "SPARQ_NSQD_HTTP_ADDRESS"
"""Addresses of the cluster for the tools that ask it over HTTP, if no flag gives any."""


class UsageError(Mistake):
    """The command line asks for something that is not possible; the text names the flag."""


class ToolError(Exception):
    """The tool cannot go on; the text says why, and which part of the work is done."""


NAMES: Final = texts("name", is_valid_name, "is not a valid name")
NAME: Final = texts("name", lambda text: not text or is_valid_name(text), "is not a valid name")
"""The name of a topic or channel, which may be empty."""


def _addresses(parse: Callable[[str], object], form: str) -> Kind:
    """Return the kind of addresses that ``parse`` accepts; empty ones are left out."""

    def is_right(text: str) -> bool:
        with suppress(ValueError):
            parse(text)
            return True
        return not text

    kind = texts("address", is_right, f"is not an address: write {form}")
    return kind._replace(gather=lambda found: tuple(filter(None, found)))


NSQD: Final = _addresses(
    lambda text: text.startswith("/") or parse_address(text),
    "host:port or the path of a unix socket",
)
HTTP: Final = _addresses(lookupd_url, "host:port or a URL")


def _together(texts: Iterable[str]) -> tuple[str, ...]:
    given = tuple(texts)
    # This import loads ssl; a tool that is given no such option does not pay for it.
    import_module("sparq.client.config").Config.from_text(texts_of(given))
    return given


CLIENT_HELP: Final = (
    "client option: key,value, or key alone for true, such as tls_v1, tls_root_ca_file,FILE and"
    " auth_secret,TOKEN or auth_secret,@FILE (docs/tls_and_auth.md)"
)
CLIENT_OPTION = STRING._replace(name="key,value", gather=_together)
"""Options of the client, checked against `Config` while the command line is parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Where a tool consumes from; the options of each consuming tool extend this class."""

    nsqd_tcp_addresses: tuple[str, ...] = option(
        (), "nsqd to consume from: host:port or a unix socket", name="nsqd-tcp-address", kind=NSQD
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "nsqlookupd to find nsqds with: host:port or URL",
        name="lookupd-http-address",
        kind=HTTP,
    )
    consumer_opt: tuple[str, ...] = option((), CLIENT_HELP, kind=CLIENT_OPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHttpOptions:
    """Which cluster a tool asks over HTTP, with which token, and how long it waits."""

    token: str = option("", "HTTP token of the daemons, or @FILE to read it from a file")
    http_client_tls_root_ca_file: str = option(
        "", "trusted CA certificates (PEM) for HTTPS, in place of the system's"
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        f"nsqd to query: host:port or URL; if no address is given, those in {NSQD_VARIABLE}",
        name="nsqd-http-address",
        kind=HTTP,
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "nsqlookupd to find nsqds with: host:port or URL; if no address is given, those in"
        f" {LOOKUPD_VARIABLE}",
        name="lookupd-http-address",
        kind=HTTP,
    )
    http_client_connect_timeout_ns: int = option(2 * SECOND, "timeout for connecting", least=1)
    http_client_request_timeout_ns: int = option(5 * SECOND, "timeout for a response", least=1)


BYTE: Final = texts("byte", lambda text: len(os.fsencode(text)) == 1, "must be a single byte")


def wait_for_nsqd() -> Any:
    """Declare the flag of a tool that exits, as Go's do, if an nsqd it was given is down."""
    return option(
        0,
        "how long an nsqd named with `--nsqd-tcp-address` may be unreachable at the start before"
        " the tool exits with status 1; later, lost connections are retried without limit",
        least=0,
    )


def _column(text: str) -> str:
    return str(import_module("sparq.tools.top").column_name(text))


COLUMN: Final = STRING._replace(name="column", parse=_column)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqStatOptions(ClusterHttpOptions):
    """Options of nsq_stat."""

    topic: str = option("", "topic of the channel", kind=NAME)
    channel: str = option("", "channel to show", kind=NAME)
    interval_ns: int = option(2 * SECOND, "time between rows", least=1)
    count: int | None = option(None, "exit after N rows (default: never)", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions(ClusterHttpOptions):
    """Options of `sparq top`."""

    http_client_request_timeout_ns: int = option(
        0, "timeout for a response (0s: 5s, and 800ms with `--once`)", least=0
    )
    topic: str = option("", "show this topic only", kind=NAME)
    channel: str = option("", "show channels of this name only", kind=NAME)
    interval_ns: int = option(2 * SECOND, "time between refreshes", least=1)
    count: int = option(0, "exit after N refreshes with rates (0: never)", least=0)
    once: bool = option(False, "print one table and exit")
    json: bool = option(False, "print each refresh as a line of JSON")
    sort: str = option("topic", "column to sort by: its heading, case-insensitive", kind=COLUMN)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqTailOptions(ConsumeOptions):
    """Options of nsq_tail."""

    topics: tuple[str, ...] = option((), "topic to print", name="topic", kind=NAMES)
    channel: str = option(
        "", "channel to consume (default: an ephemeral one, random name)", kind=NAME
    )
    max_in_flight: int = option(200, "maximum number of messages in flight, capped at --n", least=1)
    n: int = option(0, "exit after N messages over all topics (0: never)", least=0)
    wait_for_nsqd_ns: int = wait_for_nsqd()
    print_topic: bool = option(False, "start each line with its topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToNsqOptions:
    """Options of to_nsq."""

    topic: str = option("", "topic to publish to", kind=NAME)
    delimiter: str = option("\n", "byte that ends a record", kind=BYTE)
    rate: int = option(0, "maximum records per second (0: no limit)", least=0)
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "nsqd to publish to: host:port or a unix socket; every nsqd gets every record",
        name="nsqd-tcp-address",
        kind=NSQD,
    )
    wait_for_nsqd_ns: int = wait_for_nsqd()
    producer_opt: tuple[str, ...] = option((), CLIENT_HELP, kind=CLIENT_OPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToFileOptions(ConsumeOptions):
    """Options of nsq_to_file."""

    # What to record
    topics: tuple[str, ...] = option((), "topic to record", name="topic", kind=NAMES)
    topic_pattern: str = option("", "record topics that match this regular expression (of Python)")
    topic_refresh_ns: int = option(MINUTE, "time between searches for new topics", least=1)
    channel: str = option("nsq_to_file", "channel to consume", kind=NAME)
    max_in_flight: int = option(200, "maximum number of messages in flight per topic", least=1)

    # Where to write it
    output_dir: str = option(TEMPORARY, "folder for the files")
    work_dir: str = option(
        "",
        "folder for files that are being written; finished files are moved to --output-dir"
        " (default: the same folder)",
    )
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "path of a file within its folder; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> are"
        " replaced. <REV> increments if the file exists",
    )
    datetime_format: str = option("%Y-%m-%d_%H", "value of <DATETIME>, in strftime format")
    host_identifier: str = option(
        "",
        "value of <HOST>; <SHORT_HOST> and <HOSTNAME> are replaced (default: <SHORT_HOST>)",
    )
    gzip: bool = option(False, "compress files with gzip")
    gzip_level: int = option(6, "gzip level, 1 (fastest) to 9 (smallest)", least=1, most=9)

    # When to rotate and sync
    rotate_size: int = option(
        0, "start the next file when one is larger than N bytes (0: no size limit)", least=0
    )
    rotate_interval_ns: int = option(
        0, "start the next file after this time (0s: no limit)", least=0
    )
    sync_interval_ns: int = option(
        30 * SECOND, "sync and finish messages at least this often", least=1
    )
    skip_empty_files: bool = option(False, "open a file only when there is a message to write")

    # How to ask nsqlookupds for topics
    http_client_connect_timeout_ns: int = option(
        2 * SECOND, "timeout for connecting to an nsqlookupd", least=1
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND, "timeout for a request to an nsqlookupd", least=1
    )

    # Logging
    log_level: int = option(logging.INFO, "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsq_to_file] ", "text before each log line")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions(ConsumeOptions):
    """What nsq_to_http and nsq_to_nsq have in common."""

    max_in_flight: int = option(200, "maximum number of messages in flight per topic", least=1)
    wait_for_nsqd_ns: int = wait_for_nsqd()
    mode: str = option("hostpool", MODE_HELP, kind=choice(*MODES))
    status_every: int = option(250, "log response times every N messages (0: never)", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToHttpOptions(ForwardOptions):
    """Options of nsq_to_http."""

    topic: str = option("", "topic to consume", kind=NAME)
    channel: str = option("nsq_to_http", "channel to consume", kind=NAME)
    n: int = option(100, "maximum number of concurrent requests", least=1)
    post: tuple[str, ...] = option((), "URL to POST messages to")
    get: tuple[str, ...] = option(
        (), "URL to GET; one %s in its path or query stands for the encoded message"
    )
    sample: float = option(
        1.0, "fraction of messages to send, 0 to 1; the rest are finished", least=0, most=1
    )
    http_client_connect_timeout_ns: int = option(2 * SECOND, "timeout for connecting", least=1)
    http_client_request_timeout_ns: int = option(
        20 * SECOND, "timeout for a request with its response", least=1
    )
    content_type: str = option(CONTENT_TYPE, "Content-Type of a POST")
    header: tuple[str, ...] = option((), "header of each request, as 'Name: value'")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToNsqOptions(ForwardOptions):
    """Options of nsq_to_nsq."""

    topic: tuple[str, ...] = option((), "topic to copy", kind=NAMES)
    channel: str = option("nsq_to_nsq", "channel to consume", kind=NAME)
    destination_topic: str = option(
        "", "topic to publish to (default: the source topic)", kind=NAME
    )
    destination_nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "nsqd to publish to: host:port or a unix socket",
        name="destination-nsqd-tcp-address",
        kind=NSQD,
    )
    whitelist_json_field: tuple[str, ...] = option(
        (), "field of JSON messages to keep (default: all fields)"
    )
    require_json_field: str = option("", "copy only JSON messages that have this field")
    require_json_value: str = option(
        "", "copy only messages whose --require-json-field has this value"
    )
    producer_opt: tuple[str, ...] = option(
        (),
        CLIENT_HELP.replace("client option", "option of the publishing client"),
        kind=CLIENT_OPTION,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of nsq_check."""

    json: bool = option(False, "print one JSON document")


def texts_of(given: Iterable[str]) -> dict[str, str]:
    """Return the client's options from `key,value` texts; a `key` alone means true.

    Raises:
        ValueError: the file with the secret (`auth_secret,@FILE`) cannot be read.
    """
    texts = {}
    for text in given:
        key, comma, value = text.partition(",")
        if key.replace("-", "_") == "auth_secret":
            value = read_secret("auth_secret", value)
        texts[key] = value if comma else "true"
    return texts


def read_secret(name: str, text: str) -> str:
    """Return the content of the file `@FILE`, or the text itself if it names no file.

    Raises:
        ValueError: the file cannot be read, or is empty; the text begins with `name`.
    """
    if not text.startswith("@"):
        return text
    path = text[1:]
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"{name}: {path} cannot be read - {reason}") from None
    if not found:
        raise ValueError(f"{name}: {path} is empty")
    return found


def launch(program: str, work: str, options: Any) -> int:
    """Load the module that does a tool's work, and run its coroutine function `serve`.

    It gets the options and an event, which is set by the first of the module's `SIGNALS`.

    Returns:
        The exit status.
    """
    module, common = import_module(work), import_module("sparq.tools.common")
    signals = getattr(module, "SIGNALS", common.STOPPING)
    return int(common.run(program, partial(module.serve, options), signals))


Main = Callable[..., int]
"""Takes the command line without the program's name (None: that of the process), runs the program,
and returns the exit status."""


def _main(program: str, options_class: type) -> Main:
    def main(arguments: Sequence[str] | None = None) -> int:
        module = f"sparq.tools.{program.rpartition(' ')[2]}"
        options: Any = flags.parse(options_class, program, arguments, takes_file=False)
        return launch(program, module, options)

    return main


nsq_stat = _main("nsq_stat", NsqStatOptions)
nsq_tail = _main("nsq_tail", NsqTailOptions)
nsq_to_file = _main("nsq_to_file", NsqToFileOptions)
nsq_to_http = _main("nsq_to_http", NsqToHttpOptions)
nsq_to_nsq = _main("nsq_to_nsq", NsqToNsqOptions)
to_nsq = _main("to_nsq", ToNsqOptions)
top = _main("sparq top", TopOptions)


def nsq_check(arguments: Sequence[str] | None = None) -> int:
    """Run nsq_check, the only tool that takes a word that is not a flag; return the exit status."""
    known = flags_of(CheckOptions)

    def page(about_flags: str) -> str:
        usage = about_flags.replace("[flags]", "DATA_PATH [flags]", 1)
        return f"Checks the data path of an nsqd that does not run.\n\n{usage}"

    try:
        given = flags.read_command_line(
            *("nsq_check", arguments, known, page), takes_file=False, takes_words=True
        )
        options, _ = flags.combined(CheckOptions, known, given)
        if len(given.words) != 1:
            raise Mistake("takes one word, nsqd's --data-path")
    except Mistake as error:
        sys.stderr.write(f"nsq_check: {error}\n")
        return CHECK_FAILED
    return int(import_module("sparq.tools.nsq_check").start(given.words[0], options))


def admin(arguments: Sequence[str] | None = None) -> int:
    """Run `sparq admin`; return the exit status."""
    return int(import_module("sparq.tools.admin.verbs").main(arguments))
