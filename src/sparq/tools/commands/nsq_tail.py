"""The command line of `nsq_tail`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.nsq_tail`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import BOOL, INT, STRING
from sparq.tools.command_line import SourceOptions, launch, parse, wait_for_nsqd

PROGRAM: Final = "nsq_tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
    """Everything that nsq_tail can be told."""

    topics: tuple[str, ...] = option((), "topic to print", kind=STRING, name="topic")
    channel: str = option(
        "", "channel to consume; without it one with a random name, ephemeral", kind=STRING
    )
    max_in_flight: int = option(
        200, "messages that may be on their way here, at most --n", kind=INT
    )
    n: int = option(0, "end after so many messages of all topics together; 0: never", kind=INT)
    wait_for_nsqd_ns: int = wait_for_nsqd()
    print_topic: bool = option(False, "begin each line with its topic", kind=BOOL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.nsq_tail", parse(Options, PROGRAM, arguments))
