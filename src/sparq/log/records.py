"""The ledger's records, and the state that they add up to.

Record, little-endian::

    offset  size  field
         0     1  kind
         1     1  size of the channel's name; 0: the record is about the topic
         2     2  flag: 1 for "paused", else 0
         4     4  size of everything after these 8 bytes
         8     -  name | data

    kind  name       data
       1  created    i64 start
       2  deleted    -
       3  paused     -
       4  finished   n x i64 first | n x i64 end: the indexes of [first, end) are done
       5  requeued   n x i64 index | n x i64 due, ns since 1970 | n x u32 attempts
       6  voided     as finished, for messages that no consumer will get
       7  seek       i64 index: no message is finished, none requeued
       8  cursor     i64 index: the messages below have been delivered at least once
       9  mark       i64 index: P, the end of the messages that the topic's channels may see
      10  detached   n x i64 index: this channel no longer waits for these deferred publishes (DPUB)
                     in the topic's due list; without a name: they are cancelled for all channels
      11  kept       i64 index: the log keeps messages that a range reader has read from here on;
                     -1: it keeps none
      12  redriven   n x i64 index | n x u32: how often these messages' dead letters were sent back

1. A record changes one channel, or the topic; it is applied without regard to later ones.
2. A record of a channel that was never created creates it, with all messages unfinished: damage to
   a ledger means that messages come twice, not that they are lost.
3. A kind that this version does not know is skipped and reported.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Indexes = Sequence[int] | NDArray[np.int64]
Range = tuple[int, int]
"""(first, end): the indexes of [first, end)"""


class RecordKind(IntEnum):
    """The kind of a record."""

    CREATED = 1
    DELETED = 2
    PAUSED = 3
    FINISHED = 4
    REQUEUED = 5
    VOIDED = 6
    SEEK = 7
    CURSOR = 8
    MARK = 9
    DETACHED = 10
    KEPT = 11
    REDRIVEN = 12


_ROWS: Final = {
    RecordKind.CREATED: "q",
    RecordKind.DELETED: "",
    RecordKind.PAUSED: "",
    RecordKind.FINISHED: "qq",
    RecordKind.REQUEUED: "qqI",
    RecordKind.VOIDED: "qq",
    RecordKind.SEEK: "q",
    RecordKind.CURSOR: "q",
    RecordKind.MARK: "q",
    RecordKind.DETACHED: "q",
    RecordKind.KEPT: "q",
    RecordKind.REDRIVEN: "qI",
}
"""The columns of each kind's data, as `struct` and numpy name their types."""

_HEAD: Final = struct.Struct("<BBHI")
_ROW_STRUCTS: Final = {kind: struct.Struct(f"<{row}") for kind, row in _ROWS.items()}
_OF_TOPIC: Final = frozenset((RecordKind.MARK, RecordKind.PAUSED, RecordKind.DETACHED))
_OF_CHANNEL: Final = frozenset(RecordKind) - {RecordKind.MARK}
_OF_MESSAGES: Final = (RecordKind.REQUEUED, RecordKind.DETACHED, RecordKind.REDRIVEN)
"""Kinds whose indexes are those of messages; those of the others are starts and ends."""
HEADS_KEPT: Final = 4_096
"""Number of record heads that are cached, not built each time."""


@dataclass(slots=True)
class ChannelState:
    """The state of a channel.

    Attributes:
        start: all messages below are done, except those in `requeued`.
        cursor: how far the channel had delivered at its last record: unfinished messages below have
            been sent to a consumer, those above have not.
        finished: ranges above `start`, ascending, disjoint, not touching.
        requeued: index -> (due time in ns since 1970, attempts) of unfinished messages.
        paused: whether it is paused.
        detached: deferred publishes that were taken out of this channel's due list before their
            time; whether they are finished is recorded as for any other message.
        kept: the index from which on the log keeps messages that a range reader has read; None: it
            keeps none.
        redriven: index -> how often it was sent back, of messages that are dead letters.
    """

    start: int
    cursor: int
    finished: list[Range] = field(default_factory=list)
    requeued: dict[int, tuple[int, int]] = field(default_factory=dict)
    paused: bool = False
    detached: set[int] = field(default_factory=set)
    kept: int | None = None
    redriven: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class TopicState:
    """The state of a topic.

    Attributes:
        mark: P, the end of the messages that its channels may see; None: never recorded.
        paused: whether it is paused.
        channels: by name.
        highest_index: the highest index in any record; -1: none.
        cancelled: deferred publishes that no channel will get.
    """

    mark: int | None = None
    paused: bool = False
    channels: dict[str, ChannelState] = field(default_factory=dict)
    highest_index: int = -1
    cancelled: set[int] = field(default_factory=set)


# Writing


@lru_cache(HEADS_KEPT)
def _head(kind: RecordKind, channel: str, flag: bool, data_size: int) -> bytes:
    name = channel.encode()
    return _HEAD.pack(kind, len(name), flag, len(name) + data_size) + name


def encode(kind: RecordKind, channel: str = "", *columns: Indexes, flag: bool = False) -> bytes:
    """Encode one record; no channel: it is about the topic."""
    row = _ROW_STRUCTS[kind]
    if columns and len(columns[0]) == 1:
        # Every turn writes such records: without arrays.
        data = row.pack(*[column[0] for column in columns])
    else:
        parts = [np.asarray(c, f"<{t}") for c, t in zip(columns, _ROWS[kind], strict=True)]
        data = b"".join([part.tobytes() for part in parts])
    return _head(kind, channel, flag, len(data)) + data


def encode_state(state: TopicState) -> Iterator[bytes]:
    """Yield the records that lead from nothing to this state."""
    if state.mark is not None:
        yield encode(RecordKind.MARK, "", [state.mark])
    if state.paused:
        yield encode(RecordKind.PAUSED, flag=True)
    if state.cancelled:
        yield encode(RecordKind.DETACHED, "", sorted(state.cancelled))
    for name, channel in state.channels.items():
        yield encode(RecordKind.CREATED, name, [channel.start])
        yield encode(RecordKind.CURSOR, name, [channel.cursor])
        if channel.finished:
            yield encode(RecordKind.FINISHED, name, *zip(*channel.finished, strict=True))
        if channel.requeued:
            dues = zip(*channel.requeued.values(), strict=True)
            yield encode(RecordKind.REQUEUED, name, list(channel.requeued), *dues)
        if channel.paused:
            yield encode(RecordKind.PAUSED, name, flag=True)
        if channel.detached:
            yield encode(RecordKind.DETACHED, name, sorted(channel.detached))
        if channel.kept is not None:
            yield encode(RecordKind.KEPT, name, [channel.kept])
        if channel.redriven:
            times = list(channel.redriven.values())
            yield encode(RecordKind.REDRIVEN, name, list(channel.redriven), times)


# Reading


class Replay:
    """Applies records and builds the state that they add up to.

    Finished ranges are collected first and merged at the end, since there may be millions.

    Attributes:
        unknown: the number of records of a kind that this version does not know.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._state = TopicState()

    def apply(self, payload: memoryview) -> None:
        """Apply the records of one block, in order."""
        state, at = self._state, 0
        while at + _HEAD.size <= len(payload):
            number, name_size, flag, size = _HEAD.unpack_from(payload, at)
            at += _HEAD.size
            name = str(payload[at : at + name_size], "utf-8")
            data = payload[at + name_size : at + size]
            at += size
            if number not in (_OF_CHANNEL if name else _OF_TOPIC):
                self.unknown += 1
                continue
            kind = RecordKind(number)
            rows = _decode_rows(kind, data)
            if kind in _OF_MESSAGES:
                indexes = [row[0] for row in rows]
            else:
                # The message at an end or a start may not exist yet.
                indexes = [row[-1] - 1 for row in rows]
            state.highest_index = max([state.highest_index, *indexes])
            if name:
                self._apply_to_channel(kind, name, rows, flag=bool(flag))
            elif kind is RecordKind.MARK:
                state.mark = rows[0][0]
            elif kind is RecordKind.PAUSED:
                state.paused = bool(flag)
            else:
                state.cancelled.update([index for (index,) in rows])

    def _apply_to_channel(
        self, kind: RecordKind, name: str, rows: list[Any], *, flag: bool
    ) -> None:
        channels = self._state.channels
        if kind is RecordKind.DELETED:
            channels.pop(name, None)
            return
        channel = channels.get(name)
        is_begun = kind in (RecordKind.CREATED, RecordKind.SEEK)
        if channel is None or is_begun:
            # Otherwise damage has taken the record that created it.
            start = rows[0][0] if is_begun else 0
            paused = kind is RecordKind.SEEK and channel is not None and channel.paused
            channel = channels[name] = ChannelState(start, start, paused=paused)
        match kind:
            case RecordKind.PAUSED:
                channel.paused = flag
            case RecordKind.FINISHED | RecordKind.VOIDED:
                channel.finished += rows
                for first, end in rows:
                    drop_range(channel.requeued, first, end)
                    drop_range(channel.redriven, first, end)
            case RecordKind.REQUEUED:
                channel.requeued.update({index: (due, tries) for index, due, tries in rows})
            case RecordKind.CURSOR:
                channel.cursor = rows[0][0]
            case RecordKind.DETACHED:
                channel.detached.update([index for (index,) in rows])
            case RecordKind.KEPT:
                channel.kept = rows[0][0] if rows[0][0] >= 0 else None
            case RecordKind.REDRIVEN:
                channel.redriven.update(rows)

    def state(self) -> TopicState:
        """Return the state after all records so far."""
        for channel in self._state.channels.values():
            if channel.finished:
                channel.finished = merge_ranges(*np.array(channel.finished, np.int64).T)
            done = 0
            for first, end in channel.finished:
                if first > channel.start:
                    break
                channel.start = max(channel.start, end)
                done += 1
            del channel.finished[:done]
            channel.cursor = max(channel.cursor, channel.start)
        return self._state


def _decode_rows(kind: RecordKind, data: memoryview) -> list[tuple[int, ...]]:
    row = _ROW_STRUCTS[kind]
    count = len(data) // row.size if row.size else 0
    if count == 1:
        return [row.unpack_from(data)]
    columns, at = [], 0
    for type_name in _ROWS[kind]:
        column = np.frombuffer(data, f"<{type_name}", count, at)
        columns.append(column.tolist())
        at += column.nbytes
    return list(zip(*columns, strict=True))


# Sets of indexes


def drop_range(noted: dict[int, Any], first: int, end: int) -> None:
    """Remove the indexes of [first, end) from a mapping by index."""
    # Either may have millions: the smaller one is searched.
    if end - first <= len(noted):
        for index in range(first, end):
            noted.pop(index, None)
    else:
        for index in [index for index in noted if first <= index < end]:
            del noted[index]


def merge_ranges(firsts: Indexes, ends: Indexes) -> list[Range]:
    """Return the same set of indexes as ascending ranges that neither overlap nor touch.

    Args:
        firsts, ends: ranges in any order; empty ones are ignored.
    """
    starts, stops = np.asarray(firsts, np.int64), np.asarray(ends, np.int64)
    full = stops > starts
    starts, stops = starts[full], stops[full]
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    begins = np.flatnonzero(np.concatenate(([True], starts[1:] > stops[:-1])))
    lasts = np.append(begins[1:] - 1, len(starts) - 1)
    return list(zip(starts[begins].tolist(), stops[lasts].tolist(), strict=True))
