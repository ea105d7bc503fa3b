"""nsqd with another guard switched off: what is finished is written late. A control of kill.py.

A FIN that was followed by an answered command must outlive a kill: nsqd writes what was finished
before any reply of that turn leaves. Here the ledger holds such records back for a moment, so that
a kill finds them unwritten, and messages come again that must not.
"""

import sys
import time

from sparq.log.ledger import Ledger
from sparq.log.records import Indexes
from sparq.nsqd.main import main

LATE_SECONDS = 0.5

finished, flush = Ledger.finished, Ledger.flush
held_since: dict[Ledger, float] = {}


def note(ledger: Ledger, channel: str, starts: Indexes, ends: Indexes) -> None:
    """As ever; but what is flushed waits from now on."""
    held_since.setdefault(ledger, time.monotonic())
    finished(ledger, channel, starts, ends)


def flush_late(ledger: Ledger) -> None:
    """Write nothing while the oldest finish that was noted is young."""
    since = held_since.get(ledger)
    if since is None or time.monotonic() - since > LATE_SECONDS:
        held_since.pop(ledger, None)
        flush(ledger)


if __name__ == "__main__":
    setattr(Ledger, "finished", note)  # noqa: B010 - a replacement, which types do not allow
    setattr(Ledger, "flush", flush_late)  # noqa: B010 - a replacement as well
    sys.exit(main())
