"""The command line of `nsq_stat`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.nsq_stat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import DURATION, INT, STRING
from sparq.protocol.durations import SECOND
from sparq.tools.command_line import HttpOptions, launch, parse

PROGRAM: Final = "nsq_stat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(HttpOptions):
    """Everything that nsq_stat can be told."""

    topic: str = option("", "topic of the channel", kind=STRING)
    channel: str = option("", "channel to look at", kind=STRING)
    interval_ns: int = option(2 * SECOND, "time between two rows", kind=DURATION, name="interval")
    count: int | None = option(None, "end behind so many rows; without it never", kind=INT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.nsq_stat", parse(Options, PROGRAM, arguments))
