"""One reading of both clocks, taken by the component that owns them and passed as an argument.

1. The two clocks have different uses. The wall clock dates messages and stored due times; the
   monotonic clock measures timeouts, since the wall clock may be set back.
2. Log indexes begin at a reading of the wall clock in units of 64 ns since 2025, so that a log that
   was lost and recreated does not assign the same index twice. 54 bits last until 2061.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from sparq.options.units import UNITS, parse_duration
from sparq.protocol.layout import INDEX_LIMIT

INDEX_EPOCH_NS: Final = 1_735_689_600_000_000_000
"""2025-01-01T00:00:00Z in nanoseconds since 1970."""

# A log may take one index per unit, 15 million a second, before it runs ahead of the clock.
INDEX_UNIT_NS: Final = 64

CLOCK_END_NS: Final = INDEX_EPOCH_NS + INDEX_UNIT_NS * INDEX_LIMIT
"""2061-07-15 in nanoseconds since 1970: at later wall times there are no indexes."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Instant(NamedTuple):
    """One reading of both clocks, in nanoseconds."""

    wall_ns: int
    mono_ns: int


def clock_index(wall_ns: int) -> int:
    """The first index of a log created at this wall time (0 before 2025, and after the end)."""
    if wall_ns >= CLOCK_END_NS:
        return 0
    return max(0, wall_ns - INDEX_EPOCH_NS) // INDEX_UNIT_NS


def wall_ns_of(text: str, now_ns: int) -> int:
    """Parse a time: ISO 8601, in UTC if it has no zone, or such as `-2h`, that long before now.

    Raises:
        ValueError, OverflowError: it is neither.
    """
    if text.startswith("-"):
        return now_ns + parse_duration(text, UNITS)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # In whole numbers: `timestamp()` is a float, whose 53 bits are too few for nanoseconds.
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def rfc3339(wall_ns: int) -> str:
    """Format a wall time (ns since 1970) as RFC 3339, in UTC, with nanoseconds."""
    seconds, nanoseconds = divmod(wall_ns, 1_000_000_000)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
