"""nsqd with its guard switched off: no checkpoint makes room for ledgers. A control of full.py.

The reserve is then all there is: single FINs use it up, and a kill brings back what came later.
"""

import sys
from typing import Any

from sparq.broker import health
from sparq.nsqd.main import main


def no_room(*_arguments: Any) -> bool:
    """A ledger that finds no space is not written."""
    return False


if __name__ == "__main__":
    setattr(health, "make_room", no_room)  # noqa: B010 - a replacement
    sys.exit(main())
