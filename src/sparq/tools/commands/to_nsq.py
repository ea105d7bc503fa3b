"""The command line of `to_nsq`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.to_nsq`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import INT, STRING
from sparq.tools.command_line import CLIENT_OPTION, launch, parse, wait_for_nsqd

PROGRAM: Final = "to_nsq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that to_nsq can be told."""

    topic: str = option("", "topic to publish to", kind=STRING)
    delimiter: str = option("\n", "byte that ends a record", kind=STRING)
    rate: int = option(0, "records a second at most; 0: no limit", kind=INT)
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "nsqd to publish to, each of them: host:port or a unix socket",
        kind=STRING,
        name="nsqd-tcp-address",
    )
    wait_for_nsqd_ns: int = wait_for_nsqd()
    producer_opt: tuple[str, ...] = option(
        (), "an option of the client, or its name alone for true", kind=CLIENT_OPTION
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.to_nsq", parse(Options, PROGRAM, arguments))
