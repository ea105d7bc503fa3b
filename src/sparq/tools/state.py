"""What `sparq top` says of a channel in a word or two, the worst of what is true.

| words | true when |
|---|---|
| `stuck` | consumers are connected, messages wait, and none was finished for `STUCK_SECONDS` |
| `no consumers` | nobody is connected to read the channel |
| `no channel` | the topic has no channel: its messages wait for the first one |
| `behind` | messages are finished, but what waits is older than `BEHIND_SECONDS`, or takes longer |
| `paused` | somebody paused it |
| `ok` | none of these |

`nsqd gone` stands there alone when no nsqd that has the channel answers any more, and after the
word when some of them do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sparq.tools.overview import Row

STUCK_SECONDS: Final = 10.0
"""A handler that takes five seconds a message is slow, and not stuck."""

READER_STUCK_SECONDS: Final = 120.0
"""A Spark query finishes nothing between two of its batches, which may be a minute apart."""

BEHIND_SECONDS: Final = 60.0
GONE: Final = "nsqd gone"


class State(NamedTuple):
    """How bad it is, from 0, and the words for it."""

    severity: int
    words: str


OK: Final = State(0, "ok")
PAUSED: Final = State(2, "paused")
BEHIND: Final = State(4, "behind")
NO_CHANNEL: Final = State(6, "no channel")
NO_CONSUMERS: Final = State(8, "no consumers")
STUCK: Final = State(10, "stuck")
ALL_GONE: Final = State(12, GONE)


def state_of(row: Row) -> State:
    """What is to be said of a row."""
    if not row.nsqds:
        return ALL_GONE
    state = _of_what_answers(row)
    return State(state.severity + 1, _with_gone(state)) if row.gone else state


def _with_gone(state: State) -> str:
    return GONE if state is OK else f"{state.words}, {GONE}"


def _of_what_answers(row: Row) -> State:
    if row.is_paused:
        return PAUSED
    if not row.channel:
        return OK if row.has_channels else NO_CHANNEL
    if not row.clients and not row.readers:
        return NO_CONSUMERS
    if row.waiting and row.idle_seconds is not None and row.idle_seconds >= _patience(row):
        return STUCK
    if max(row.oldest_seconds or 0.0, row.lag_seconds or 0.0) >= BEHIND_SECONDS and row.out_rate:
        return BEHIND
    return OK


def _patience(row: Row) -> float:
    return READER_STUCK_SECONDS if row.readers else row.patience_seconds
