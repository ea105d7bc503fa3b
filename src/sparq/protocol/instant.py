"""A moment, read once by whoever owns the clocks and handed down as an argument.

1. Two clocks tell two different things. The wall clock dates messages and what is due on disk;
   the monotonic clock measures timeouts, since the wall clock may be set back.
2. Log indexes begin at a reading of the wall clock in units of 64 ns since 2025, so that a log that
   was lost and begun again does not give the same index twice. 54 bits of it last until 2061.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

INDEX_EPOCH_NS: Final = 1_735_689_600_000_000_000
"""2025-01-01T00:00:00Z in nanoseconds since 1970."""

INDEX_UNIT_NS: Final = 64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Instant(NamedTuple):
    """One reading of both clocks, in nanoseconds."""

    wall_ns: int
    mono_ns: int


def clock_index(wall_ns: int) -> int:
    """The index that a log begun at this wall time starts with (0 before 2025)."""
    return max(0, wall_ns - INDEX_EPOCH_NS) // INDEX_UNIT_NS


def rfc3339(wall_ns: int) -> str:
    """A wall time as RFC 3339 has it, in UTC, with nanoseconds."""
    seconds, nanoseconds = divmod(wall_ns, 1_000_000_000)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
