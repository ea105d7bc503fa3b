"""nsqd that never notices that a client does not read. The control of slow.py.

Without it a consumer gets as much as its RDY count allows, and what it does not take lies in nsqd's
memory.
"""

import sys

from sparq.nsqd.main import main
from sparq.nsqd.tcp import TcpConnection


def go_on(_connection: TcpConnection) -> None:
    """However much waits to be sent."""


if __name__ == "__main__":
    setattr(TcpConnection, "pause_writing", go_on)  # noqa: B010 - a replacement, as types forbid it
    sys.exit(main())
