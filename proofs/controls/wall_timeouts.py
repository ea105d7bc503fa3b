"""nsqd whose timeouts run on the wall clock. The control of clock.py.

A jump of a day forward ends everybody's time at once, and brings deferred messages a day early.
"""

import sys
import time

from sparq.nsqd import disk_threads
from sparq.nsqd.main import main
from sparq.protocol.instant import Instant


def one_clock() -> Instant:
    """The wall clock, twice."""
    now = time.time_ns()
    return Instant(now, now)


if __name__ == "__main__":
    # Before `main` loads what takes the clock from there.
    disk_threads.instant = one_clock
    sys.exit(main())
