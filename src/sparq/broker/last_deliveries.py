"""How the last deliveries of messages ended, for messages that may become dead letters.

1. This is kept in memory only: a restart forgets it.
2. Nothing is noted without `max_attempts`. A requeue by the consumer is always noted. A delivery
   without an answer is noted only if the message may not be delivered again, or if the connection
   was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.in_flight import Rows
from sparq.broker.session import V2Session
from sparq.log.records import drop_range
from sparq.protocol.dead_letters import TEXT_SIZE_MAX

Indexes = NDArray[np.int64]

LOST_MAX: Final = 3
"""After this many lost connections in a row, the message is considered the cause."""
LAST_DELIVERIES_MAX: Final = 20_000
"""Maximum number of messages per channel whose last delivery is remembered."""
GONE_MAX: Final = 1_000
"""Maximum number of disconnected consumers whose names are remembered."""

REQUEUED: Final = "requeued"
TIMED_OUT: Final = "timed out"
CONNECTION_LOST: Final = "connection lost"
UNKNOWN: Final = "unknown: nsqd has been restarted since"
"""Reasons in a letter."""


class LastDelivery(NamedTuple):
    """How a message's last delivery ended.

    Attributes:
        consumer: the consumer that had it; "": unknown.
        wall_ns: when it came back, ns since 1970.
        lost: how many deliveries in a row, including this one, ended with a lost connection.
    """

    reason: str
    consumer: str
    wall_ns: int
    lost: int = 0


def consumer_text(session: V2Session) -> str:
    """Describe a consumer for a letter."""
    name = f"{session.client_id}@{session.hostname} ({session.remote_address})"
    return name[:TEXT_SIZE_MAX]


class LastDeliveries:
    """The last deliveries of a channel's messages that may become dead letters.

    Attributes:
        by_index: how the last delivery of each message ended.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, LastDelivery] = {}
        self._gone: dict[int, str] = {}

    def get(self, index: int) -> LastDelivery | None:
        """How a message's last delivery ended; None: unknown."""
        return self.by_index.get(index)

    def requeued(self, index: int, session: V2Session, wall_ns: int) -> None:
        """A consumer has requeued a message."""
        self._note(index, LastDelivery(REQUEUED, consumer_text(session), wall_ns))

    def left(self, session: V2Session) -> None:
        """A consumer has disconnected; its messages in flight come back later."""
        gone = self._gone
        gone[session.owner] = consumer_text(session)
        if len(gone) > GONE_MAX:
            del gone[next(iter(gone))]

    def expired(
        self, expired: Rows, sessions: Mapping[int, V2Session], most: int, wall_ns: int
    ) -> None:
        """Messages came back unanswered: they timed out, or their consumer has disconnected.

        Nothing is noted for messages that may be delivered again and whose consumer is connected.
        """
        owners = expired.owners
        is_here = np.isin(owners, np.fromiter(sessions, np.uint32, len(sessions)))
        counts = is_here & (expired.attempts < most)
        # Their consumers are still connected: that ends a series of lost connections.
        if self.by_index:
            for index in expired.indexes[counts].tolist():
                self.by_index.pop(index, None)
        names = {
            owner: consumer_text(sessions[owner]) for owner in np.unique(owners[is_here]).tolist()
        }
        for index, owner in zip(
            expired.indexes[~counts].tolist(), owners[~counts].tolist(), strict=True
        ):
            if owner in names:
                self._note(index, LastDelivery(TIMED_OUT, names[owner], wall_ns))
            else:
                before = self.by_index.get(index)
                lost = 1 + (before.lost if before is not None else 0)
                self._note(
                    index, LastDelivery(CONNECTION_LOST, self._gone.get(owner, ""), wall_ns, lost)
                )

    def _note(self, index: int, last: LastDelivery) -> None:
        found = self.by_index
        # Removed first, so that the message moves to the end: the oldest note is dropped first.
        found.pop(index, None)
        found[index] = last
        if len(found) > LAST_DELIVERIES_MAX:
            del found[next(iter(found))]

    def forget(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Forget messages that are finished: the ranges [start, end)."""
        if self.by_index:
            for first, end in zip(starts, ends, strict=True):
                drop_range(self.by_index, first, end)

    def is_poison(self, indexes: Indexes) -> NDArray[np.bool_]:
        """Return, for each message, whether it is assumed to crash its consumers."""
        found = self.by_index
        return np.array(
            [index in found and found[index].lost >= LOST_MAX for index in indexes.tolist()],
            np.bool_,
        )
