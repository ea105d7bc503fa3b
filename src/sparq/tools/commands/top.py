"""The command line of `sparq top`: its flags, each with its default and what it does.

What the program does with them, and how it ends, stands in `sparq.tools.top`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparq.program.flags import option
from sparq.program.kinds import BOOL, DURATION, INT, STRING
from sparq.protocol.durations import SECOND
from sparq.tools.command_line import HttpOptions, launch, parse
from sparq.tools.view import column_name

PROGRAM: Final = "sparq top"
COLUMN: Final = STRING._replace(name="column", parse=column_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(HttpOptions):
    """Everything that `sparq top` can be told."""

    topic: str = option("", "show this topic only", kind=STRING)
    channel: str = option("", "show channels of this name only", kind=STRING)
    interval_ns: int = option(2 * SECOND, "time between two looks", kind=DURATION, name="interval")
    count: int = option(0, "end after so many looks with rates; 0: never", kind=INT)
    once: bool = option(False, "print one table, and end", kind=BOOL)
    json: bool = option(False, "print each look as a line of JSON", kind=BOOL)
    sort: str = option("topic", "column to sort by: its heading, in any case", kind=COLUMN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    return launch("sparq.tools.top", parse(Options, PROGRAM, arguments))
