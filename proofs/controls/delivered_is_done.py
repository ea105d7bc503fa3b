"""nsqd that counts what it has sent as received. The control of net.py.

When a connection ends, the messages in flight on it count as finished: delivery at most once, as in
a broker without acknowledgements.
"""

import sys

from sparq.broker.channel import Channel
from sparq.broker.session import V2Session
from sparq.nsqd.main import main
from sparq.protocol.instant import Instant


def forget(channel: Channel, session: V2Session, _now: Instant, *, requeue: bool) -> None:
    """Finish a session's messages in flight when its connection ends."""
    if channel.sessions.pop(session.owner, None) is None:
        return
    channel.ready_sessions.pop(session, None)
    had = channel.in_flight.release_owner(session.owner)
    if len(had.indexes):
        channel.ledger.finished(channel.name, had.indexes, had.indexes + 1)


if __name__ == "__main__":
    setattr(Channel, "unsubscribe", forget)  # noqa: B010 - a replacement, as types forbid it
    sys.exit(main())
