"""nsqd that handles its timers a quarter of a second late. A control of clock.py.

No message comes early and none is lost: only the measurement of lateness can find it.
"""

import sys
from typing import Any

from sparq.broker.turn import Timers
from sparq.nsqd import main

LATE_NS = 250_000_000
POP_DUE = Timers.pop_due


def pop_late(timers: Timers[Any], mono_ns: int) -> list[Any]:
    """Handle only what was due a quarter of a second ago."""
    return POP_DUE(timers, mono_ns - LATE_NS)


if __name__ == "__main__":
    setattr(Timers, "pop_due", pop_late)  # noqa: B010 - the guard that is switched off
    sys.exit(main.main())
