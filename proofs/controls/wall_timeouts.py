"""nsqd whose timeouts use the wall clock. The control of clock.py.

If the clock jumps a day forward, every timeout ends at once, and deferred messages come a day
early.
"""

import sys
import time

from sparq.nsqd import disk_threads
from sparq.nsqd.main import main
from sparq.protocol.instant import Instant


def one_clock() -> Instant:
    """Read the wall clock for both clocks."""
    now = time.time_ns()
    return Instant(now, now)


if __name__ == "__main__":
    # Before `main` loads what takes the clock from there.
    disk_threads.instant = one_clock
    sys.exit(main())
