"""nsqd that never notices that a client does not read. The control of slow.py.

A consumer then gets as many messages as its RDY count allows, and those that it does not read stay
in nsqd's memory.
"""

import sys

from sparq.nsqd.main import main
from sparq.nsqd.tcp import TcpConnection


def go_on(_connection: TcpConnection) -> None:
    """Never pause, however much waits to be sent."""


if __name__ == "__main__":
    setattr(TcpConnection, "pause_writing", go_on)  # noqa: B010 - a replacement, as types forbid it
    sys.exit(main())
