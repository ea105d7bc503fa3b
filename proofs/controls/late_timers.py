"""nsqd that looks at its timers a quarter of a second after they are due: a control of clock.py.

Nothing comes early by this, and nothing is lost: only the measure of lateness can tell.
"""

import sys
from typing import Any

from sparq.broker.turn import Timers
from sparq.nsqd import main

LATE_NS = 250_000_000
POP_DUE = Timers.pop_due


def pop_late(timers: Timers[Any], mono_ns: int) -> list[Any]:
    """Only what was due a quarter of a second ago is seen to."""
    return POP_DUE(timers, mono_ns - LATE_NS)


if __name__ == "__main__":
    Timers.pop_due = pop_late  # type: ignore[method-assign]  # the guard that is switched off
    sys.exit(main.main())
