"""nsqd that looks at its timers a quarter of a second after they are due: a control of clock.py.

Nothing comes early by this, and nothing is lost: only the measure of lateness can tell.
"""

import sys

from sparq.broker.agenda import Agenda
from sparq.nsqd import main
from sparq.protocol.instant import Instant

LATE_NS = 250_000_000
RUN_TIMERS = Agenda.run_timers


def run_late(agenda: Agenda, now: Instant) -> None:
    """Only what was due a quarter of a second ago is seen to."""
    RUN_TIMERS(agenda, Instant(now.wall_ns, now.mono_ns - LATE_NS))


if __name__ == "__main__":
    Agenda.run_timers = run_late  # type: ignore[method-assign]  # the guard that is switched off
    sys.exit(main.main())
