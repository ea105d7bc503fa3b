"""The command line of `nsq_to_nsq`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.nsq_to_nsq`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import INT, STRING
from sparq.tools.command_line import CLIENT_OPTION, SourceOptions, launch, parse, wait_for_nsqd
from sparq.tools.hostpool import MODES

PROGRAM: Final = "nsq_to_nsq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
    """Everything that nsq_to_nsq can be told."""

    topic: tuple[str, ...] = option((), "topic to copy", kind=STRING)
    channel: str = option(PROGRAM, "channel to consume them by", kind=STRING)
    wait_for_nsqd_ns: int = wait_for_nsqd()
    destination_topic: str = option(
        "", "topic to publish to; without it, that of the source", kind=STRING
    )
    destination_nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "nsqd to publish to: host:port or a unix socket",
        kind=STRING,
        name="destination-nsqd-tcp-address",
    )
    max_in_flight: int = option(
        200, "messages of a topic that may be unanswered at a time", kind=INT
    )
    mode: str = option("hostpool", f"who gets a message: {', '.join(MODES)}", kind=STRING)
    status_every: int = option(
        250, "log response times at every so many messages; 0: never", kind=INT
    )
    whitelist_json_field: tuple[str, ...] = option(
        (), "field of JSON messages that passes; without the flag all do", kind=STRING
    )
    require_json_field: str = option(
        "", "field that a JSON message must have in order to pass", kind=STRING
    )
    require_json_value: str = option("", "value that this field must have", kind=STRING)
    producer_opt: tuple[str, ...] = option(
        (), "an option of the publishing client, or its name alone for true", kind=CLIENT_OPTION
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.nsq_to_nsq", parse(Options, PROGRAM, arguments))
