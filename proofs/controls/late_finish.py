"""nsqd that writes finished messages late. A control of kill.py.

A FIN that was followed by an answered command must survive a kill: nsqd writes the records of FINs
before it sends any reply of that turn. Here the ledger holds such records back for a moment, so a
kill loses them, and messages are delivered again that must not be.
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
    """Record FINs as usual; from now on, flushes are held back."""
    held_since.setdefault(ledger, time.monotonic())
    finished(ledger, channel, starts, ends)


def flush_late(ledger: Ledger) -> None:
    """Write nothing while the oldest record of a FIN is young."""
    since = held_since.get(ledger)
    if since is None or time.monotonic() - since > LATE_SECONDS:
        held_since.pop(ledger, None)
        flush(ledger)


if __name__ == "__main__":
    setattr(Ledger, "finished", note)  # noqa: B010 - a replacement, which types do not allow
    setattr(Ledger, "flush", flush_late)  # noqa: B010 - a replacement as well
    sys.exit(main())
