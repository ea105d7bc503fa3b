"""The command line of `nsq_to_http`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.nsq_to_http`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import DURATION, FLOAT, INT, STRING
from sparq.protocol.durations import SECOND
from sparq.tools.command_line import SourceOptions, launch, parse, wait_for_nsqd
from sparq.tools.hostpool import MODES

PROGRAM: Final = "nsq_to_http"
CONTENT_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
    """Everything that nsq_to_http can be told."""

    topic: str = option("", "topic to consume", kind=STRING)
    channel: str = option(PROGRAM, "channel to consume it by", kind=STRING)
    max_in_flight: int = option(200, "messages that may be unanswered at a time", kind=INT)
    n: int = option(100, "requests that may be under way at a time", kind=INT)
    post: tuple[str, ...] = option((), "URL to POST messages to", kind=STRING)
    get: tuple[str, ...] = option(
        (), "URL to GET, with one %s in its path or query: the message, encoded", kind=STRING
    )
    wait_for_nsqd_ns: int = wait_for_nsqd()
    mode: str = option("hostpool", f"who gets a message: {', '.join(MODES)}", kind=STRING)
    sample: float = option(
        1.0, "share of the messages to send; the others are finished", kind=FLOAT
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND,
        "time for making a connection",
        kind=DURATION,
        name="http-client-connect-timeout",
    )
    http_client_request_timeout_ns: int = option(
        20 * SECOND,
        "time for a request and its answer",
        kind=DURATION,
        name="http-client-request-timeout",
    )
    status_every: int = option(
        250, "log response times at every so many messages; 0: never", kind=INT
    )
    content_type: str = option(CONTENT_TYPE, "Content-Type of a POST", kind=STRING)
    header: tuple[str, ...] = option((), "header of each request, as 'Name: value'", kind=STRING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.nsq_to_http", parse(Options, PROGRAM, arguments))
