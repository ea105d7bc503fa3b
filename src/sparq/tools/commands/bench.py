"""The command line of `sparq bench`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.bench`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import DURATION, INT, STRING
from sparq.program.mistakes import suggestion
from sparq.protocol.durations import SECOND
from sparq.tools.command_line import CLIENT_OPTION, launch, parse

PROGRAM: Final = "sparq bench"
PARTS: Final = ("publish", "consume", "latency")


def _parts(texts: Iterable[str]) -> tuple[str, ...]:
    found = [part for text in texts for part in text.split(",")]
    unknown = sorted(set(found) - set(PARTS))
    if unknown:
        near = suggestion(unknown[0], PARTS)
        raise ValueError(f'"{unknown[0]}" is none of {", ".join(PARTS)}{near}')
    return tuple(found)


PART: Final = STRING._replace(name="part,...", gather=_parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that `sparq bench` can be told."""

    nsqd_tcp_address: str = option(
        "127.0.0.1:4150", "nsqd to measure: host:port or a unix socket", kind=STRING
    )
    nsqd_http_address: str = option(
        "127.0.0.1:4151",
        "the same nsqd for HTTP, where topics are made and deleted: host:port or URL",
        kind=STRING,
    )
    part: tuple[str, ...] = option((), "measure only publish, consume or latency", kind=PART)
    duration_ns: int = option(
        3 * SECOND, "time that each measurement takes at most", kind=DURATION, name="duration"
    )
    size: int = option(200, "bytes of a message", kind=INT)
    tasks: int = option(100, "publishes that await their OK at the same time", kind=INT)
    batch: int = option(100, "messages of a batch, published or consumed", kind=INT)
    backlog: int = option(200_000, "messages that wait when consuming begins", kind=INT)
    max_in_flight: int = option(2500, "messages that a consumer may have unanswered", kind=INT)
    rate: int = option(1000, "messages a second for the latency", kind=INT)
    client_opt: tuple[str, ...] = option(
        (), "an option of the client, or its name alone for true", kind=CLIENT_OPTION
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.bench", parse(Options, PROGRAM, arguments))
