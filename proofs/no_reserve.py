"""nsqd with its guard switched off: no space is kept back. A control of full.py.

On a full disk what is finished can then not be written down, and a kill brings it back.
"""

import sys

from sparq.log.reserve import Reserve
from sparq.nsqd.main import main


def nothing_to_let_go(_reserve: Reserve) -> bool:
    """There is no spare file to be cut."""
    return False


def nothing_to_fill(_reserve: Reserve) -> None:
    """Nor is there one to be filled up again."""


if __name__ == "__main__":
    setattr(Reserve, "release", nothing_to_let_go)  # noqa: B010 - a replacement
    setattr(Reserve, "refill", nothing_to_fill)  # noqa: B010 - a replacement as well
    sys.exit(main())
