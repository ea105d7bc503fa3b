"""nsqd that takes what it has sent for what was received. The control of net.py.

What a consumer had in flight when its connection ended counts as finished: at most once, as a
broker does that has no acknowledgements.
"""

import sys

from sparq.broker.channel import Channel
from sparq.broker.session import V2Session
from sparq.nsqd.main import main
from sparq.protocol.instant import Instant


def forget(channel: Channel, session: V2Session, _now: Instant, *, requeue: bool) -> None:
    """Forget a session, and all that it had."""
    if channel.sessions.pop(session.owner, None) is None:
        return
    channel.ready.pop(session, None)
    had = channel.in_flight.release_owner(session.owner)
    if len(had.indexes):
        channel.ledger.finished(channel.name, had.indexes, had.indexes + 1)


if __name__ == "__main__":
    setattr(Channel, "unsubscribe", forget)  # noqa: B010 - a replacement, as types forbid it
    sys.exit(main())
