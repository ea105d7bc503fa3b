"""How the last delivery of a channel's messages ended, of those that may become dead letters.

1. It is known in memory only: a restart forgets it.
2. Nothing is noted without `max_attempts`. What a consumer has sent back is; what it did not answer
   for is where the message may not be delivered again, or where the connection was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.in_flight import Expired
from sparq.broker.session import Session
from sparq.log.records import drop_range
from sparq.protocol.dead_letters import TEXT_SIZE_MAX

Indexes = NDArray[np.int64]

LOST_MAX: Final = 3
"""So many lost connections in a row are a message's fault."""
FATES_MAX: Final = 20_000
"""Of so many messages of a channel is remembered how their last delivery ended."""
GONE_MAX: Final = 1_000
"""So many consumers that have gone are known by what they called themselves."""

REQUEUED: Final = "requeued"
TIMED_OUT: Final = "timed out"
CONNECTION_LOST: Final = "connection lost"
UNKNOWN: Final = "not known: nsqd was restarted since"
"""Reasons of a letter."""


class Fate(NamedTuple):
    """How a message's last delivery ended.

    Attributes:
        consumer: who had it, "" where nobody knows.
        wall_ns: when it came back, ns since 1970.
        lost: how many deliveries in a row, this one included, ended with the connection.
    """

    reason: str
    consumer: str
    wall_ns: int
    lost: int = 0


def told(session: Session) -> str:
    """A consumer, as a letter tells of it."""
    name = f"{session.client_id}@{session.hostname} ({session.remote_address})"
    return name[:TEXT_SIZE_MAX]


class Fates:
    """What is remembered of a channel's messages that may become dead letters.

    Attributes:
        by_index: how the last delivery of each ended.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, Fate] = {}
        self._gone: dict[int, str] = {}

    def get(self, index: int) -> Fate | None:
        """How a message's last delivery ended; None: nobody knows."""
        return self.by_index.get(index)

    def requeued(self, index: int, session: Session, wall_ns: int) -> None:
        """A consumer has sent a message back."""
        self._note(index, Fate(REQUEUED, told(session), wall_ns))

    def left(self, session: Session) -> None:
        """A consumer has gone; what it had in flight comes back later."""
        gone = self._gone
        gone[session.owner] = told(session)
        if len(gone) > GONE_MAX:
            del gone[next(iter(gone))]

    def expired(
        self, expired: Expired, sessions: Mapping[int, Session], most: int, wall_ns: int
    ) -> None:
        """Messages were not answered for: in time, or by consumers that have gone.

        Of those that may be delivered again, and whose consumers are there, nothing is noted.
        """
        owners = expired.owners
        is_here = np.isin(owners, np.fromiter(sessions, np.uint32, len(sessions)))
        counts = is_here & (expired.attempts < most)
        if self.by_index:
            for index in expired.indexes[counts].tolist():
                self.by_index.pop(index, None)
        names = {owner: told(sessions[owner]) for owner in np.unique(owners[is_here]).tolist()}
        for index, owner in zip(
            expired.indexes[~counts].tolist(), owners[~counts].tolist(), strict=True
        ):
            if owner in names:
                self._note(index, Fate(TIMED_OUT, names[owner], wall_ns))
            else:
                before = self.by_index.get(index)
                lost = 1 + (before.lost if before is not None else 0)
                self._note(index, Fate(CONNECTION_LOST, self._gone.get(owner, ""), wall_ns, lost))

    def _note(self, index: int, fate: Fate) -> None:
        fates = self.by_index
        fates.pop(index, None)
        fates[index] = fate
        if len(fates) > FATES_MAX:
            del fates[next(iter(fates))]

    def forget(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """These ranges are finished."""
        if self.by_index:
            for first, end in zip(starts, ends, strict=True):
                drop_range(self.by_index, first, end)

    def clear(self) -> None:
        """Forget everything."""
        self.by_index.clear()

    def is_killer(self, indexes: Indexes) -> NDArray[np.bool_]:
        """Which of the messages take their consumers with them."""
        fates = self.by_index
        return np.array(
            [index in fates and fates[index].lost >= LOST_MAX for index in indexes.tolist()],
            np.bool_,
        )
