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
       7  seek       i64 index
       8  cursor     i64 index
       9  mark       i64 index: P
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
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

VECTOR_MIN: Final = 16
"""With fewer ranges, plain Python is faster than arrays."""

Indexes = Sequence[int] | NDArray[np.int64]


_RECORD: Final = struct.Struct("<BBHI")
_INDEX: Final = struct.Struct("<q")
_RANGE: Final = struct.Struct("<qq")
HEADS_KEPT: Final = 4_096
"""Number of record heads that are cached, not built each time."""
_REQUEUED: Final = struct.Struct("<qqI")
_REQUEUED_SIZE: Final = _REQUEUED.size
_REDRIVEN_SIZE: Final = 12
# The columns of a record with one message are one row of these fields.
_REQUEUED_FIELDS: Final = np.dtype([("index", "<i8"), ("due", "<i8"), ("attempts", "<u4")])
RUN_MIN: Final = 16
"""With this many records of one shape or more, arrays are faster than single records."""


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


@dataclass(slots=True)
class ChannelState:
    """The state of a channel.

    Attributes:
        start: all messages below are done, except those in `requeued`.
        cursor: how far the channel had delivered at its last record: unfinished messages below have
            been sent to a consumer, those above have not.
        finished: [first, end) ranges above `start`, ascending, disjoint, not touching.
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
    finished: list[tuple[int, int]] = field(default_factory=list)
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


def encode(kind: RecordKind, channel: str = "", data: bytes = b"", *, flag: bool = False) -> bytes:
    """Encode one record."""
    name = channel.encode()
    return _RECORD.pack(kind, len(name), flag, len(name) + len(data)) + name + data


@lru_cache(HEADS_KEPT)
def _head(kind: RecordKind, channel: str, size: int) -> bytes:
    """Encode the head of a record of a kind that is written in every turn."""
    name = channel.encode()
    return _RECORD.pack(kind, len(name), False, len(name) + size) + name


def encode_index(kind: RecordKind, channel: str, index: int) -> bytes:
    """Encode a record with one index."""
    return _head(kind, channel, _INDEX.size) + _INDEX.pack(index)


def encode_ranges(kind: RecordKind, channel: str, firsts: Indexes, ends: Indexes) -> bytes:
    """Encode a record of ranges."""
    if len(firsts) == 1:
        return _head(kind, channel, _RANGE.size) + _RANGE.pack(firsts[0], ends[0])
    return encode(kind, channel, _longs(firsts) + _longs(ends))


def encode_requeued(channel: str, indexes: Indexes, dues: Indexes, attempts: Indexes) -> bytes:
    """Encode a record of requeued messages."""
    counts = np.asarray(attempts, "<u4").tobytes()
    return encode(RecordKind.REQUEUED, channel, _longs(indexes) + _longs(dues) + counts)


def encode_detached(channel: str, indexes: Indexes) -> bytes:
    """Encode deferred publishes that a channel no longer waits for; no name: no channel does."""
    return encode(RecordKind.DETACHED, channel, _longs(indexes))


def encode_redriven(channel: str, indexes: Indexes, times: Sequence[int]) -> bytes:
    """Encode a record of dead letters that were sent back."""
    return encode(
        RecordKind.REDRIVEN, channel, _longs(indexes) + np.asarray(times, "<u4").tobytes()
    )


def _longs(numbers: Indexes) -> bytes:
    if isinstance(numbers, np.ndarray):
        return numbers.astype("<i8", copy=False).tobytes()
    return struct.pack(f"<{len(numbers)}q", *numbers)


def encode_state(state: TopicState) -> Iterator[bytes]:
    """Yield the records that lead from nothing to this state."""
    if state.mark is not None:
        yield encode_index(RecordKind.MARK, "", state.mark)
    if state.paused:
        yield encode(RecordKind.PAUSED, flag=True)
    if state.cancelled:
        yield encode_detached("", sorted(state.cancelled))
    for name, channel in state.channels.items():
        yield encode_index(RecordKind.CREATED, name, channel.start)
        yield encode_index(RecordKind.CURSOR, name, channel.cursor)
        if channel.finished:
            firsts, ends = zip(*channel.finished, strict=True)
            yield encode_ranges(RecordKind.FINISHED, name, firsts, ends)
        if channel.requeued:
            dues, attempts = zip(*channel.requeued.values(), strict=True)
            yield encode_requeued(name, list(channel.requeued), dues, attempts)
        if channel.paused:
            yield encode(RecordKind.PAUSED, name, flag=True)
        if channel.detached:
            yield encode_detached(name, sorted(channel.detached))
        if channel.kept is not None:
            yield encode_index(RecordKind.KEPT, name, channel.kept)
        if channel.redriven:
            yield encode_redriven(name, list(channel.redriven), list(channel.redriven.values()))


# Reading


class Replay:
    """Applies records and builds the state that they add up to.

    Finished ranges are collected first and merged at the end, since there may be millions.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._state = TopicState()
        self._ranges: dict[str, list[NDArray[np.int64]]] = {}
        self._orders: dict[str, list[int]] = {}
        """Sorted requeued indexes of each channel; discarded when an index is added."""

    def apply(self, payload: memoryview) -> None:
        """Apply the records of one block, in order."""
        at = 0
        while at + _RECORD.size <= len(payload):
            kind, name_size, flag, size = _RECORD.unpack_from(payload, at)
            # A client that sends single REQs leaves one such record for each. A start took 8 s or
            # more to apply a million of them singly.
            is_one = size == name_size + _REQUEUED_SIZE and at + _RECORD.size + size <= len(payload)
            if kind == RecordKind.REQUEUED and name_size and is_one:
                at += self._requeue_each(payload, at, name_size)
                continue
            at += _RECORD.size
            name = str(payload[at : at + name_size], "utf-8")
            data = payload[at + name_size : at + size]
            at += size
            if name:
                self._apply_channel(kind, name, data, bool(flag))
            else:
                self._apply_topic(kind, data, bool(flag))

    def _apply_topic(self, kind: int, data: memoryview, flag: bool) -> None:
        if kind == RecordKind.MARK:
            self._state.mark = self._index(data)
        elif kind == RecordKind.PAUSED:
            self._state.paused = flag
        elif kind == RecordKind.DETACHED:
            self._state.cancelled.update(self._indexes(data))
        else:
            self.unknown += 1

    def _apply_channel(self, kind: int, name: str, data: memoryview, flag: bool) -> None:
        if kind in (RecordKind.CREATED, RecordKind.SEEK):
            self._begin(name, self._index(data), keep_paused=kind == RecordKind.SEEK)
        elif kind == RecordKind.DELETED:
            self._state.channels.pop(name, None)
            self._ranges.pop(name, None)
        elif kind == RecordKind.PAUSED:
            self._channel(name).paused = flag
        elif kind in (RecordKind.FINISHED, RecordKind.VOIDED):
            self._finish(name, np.frombuffer(data, "<i8").reshape(2, -1))
        elif kind == RecordKind.REQUEUED:
            self._requeue(name, data)
        elif kind == RecordKind.CURSOR:
            self._channel(name).cursor = self._index(data)
        elif kind == RecordKind.DETACHED:
            self._channel(name).detached.update(self._indexes(data))
        elif kind == RecordKind.KEPT:
            index = self._index(data)
            self._channel(name).kept = index if index >= 0 else None
        elif kind == RecordKind.REDRIVEN:
            count = len(data) // _REDRIVEN_SIZE
            times = np.frombuffer(data, "<u4", count, 8 * count).tolist()
            indexes = self._indexes(data[: 8 * count])
            self._channel(name).redriven.update(zip(indexes, times, strict=True))
        else:
            self.unknown += 1

    def _index(self, data: memoryview) -> int:
        index: int = _INDEX.unpack(data)[0]
        # These indexes are ends and starts: the message at the index itself may not exist yet.
        self._note(index - 1)
        return index

    def _indexes(self, data: memoryview) -> list[int]:
        indexes: list[int] = np.frombuffer(data, "<i8").tolist()
        self._note(max(indexes, default=-1))
        return indexes

    def _note(self, index: int) -> None:
        self._state.highest_index = max(self._state.highest_index, index)

    def _channel(self, name: str) -> ChannelState:
        # Damage has taken the record that created it: messages come twice rather than not at all.
        if name not in self._state.channels:
            self._begin(name, 0, keep_paused=False)
        return self._state.channels[name]

    def _begin(self, name: str, start: int, *, keep_paused: bool) -> None:
        old = self._state.channels.get(name)
        paused = keep_paused and old is not None and old.paused
        self._state.channels[name] = ChannelState(start, start, paused=paused)
        self._ranges[name] = []
        self._orders.pop(name, None)

    def _finish(self, name: str, ranges: NDArray[np.int64]) -> None:
        channel = self._channel(name)
        if not ranges.size:
            return
        self._ranges[name].append(ranges)
        self._note(int(ranges[1].max()) - 1)
        if channel.requeued:
            for first, end in ranges.T.tolist():
                self._forget(name, channel.requeued, first, end)
        if channel.redriven:
            for first, end in ranges.T.tolist():
                drop_range(channel.redriven, first, end)

    def _forget(
        self, name: str, requeued: dict[int, tuple[int, int]], first: int, end: int
    ) -> None:
        """Remove the indexes of [first, end) from the channel's requeued ones."""
        # A range may have millions of messages, or the channel hundreds of thousands of requeued
        # ones: the smaller set is searched.
        if end - first <= len(requeued):
            for index in range(first, end):
                requeued.pop(index, None)
            return
        # Removed indexes stay in the order: it is sorted again only after one was added.
        order = self._orders.get(name)
        if order is None:
            order = self._orders[name] = sorted(requeued)
        for at in range(bisect_left(order, first), bisect_left(order, end)):
            requeued.pop(order[at], None)

    def _requeue_each(self, payload: memoryview, at: int, name_size: int) -> int:
        """Apply consecutive records of one channel, each with one requeued message.

        A REQ is such a record. The first of them is at `at`; returns the size of all of them in
        bytes.
        """
        head = _RECORD.size + name_size
        size = head + _REQUEUED_SIZE
        name = str(payload[at + _RECORD.size : at + head], "utf-8")
        count_max = (len(payload) - at) // size
        channel = self._channel(name)
        self._orders.pop(name, None)
        if count_max < RUN_MIN:
            index, due, attempts = _REQUEUED.unpack_from(payload, at + head)
            channel.requeued[index] = due, attempts
            self._note(index)
            return size
        # The bytes as a table with a row for each record: the run ends at the first other head.
        # Records have no alignment, so their fields can be viewed only in a copy of the rows.
        table = np.frombuffer(payload, np.uint8, count_max * size, at).reshape(count_max, size)
        differs = (table[:, :head] != table[0, :head]).any(axis=1)
        count = int(differs.argmax()) if differs.any() else count_max
        rows = np.ascontiguousarray(table[:count, head:]).view(_REQUEUED_FIELDS).ravel()
        pairs = zip(rows["due"].tolist(), rows["attempts"].tolist(), strict=True)
        channel.requeued.update(zip(rows["index"].tolist(), pairs, strict=True))
        self._note(int(rows["index"].max()))
        return count * size

    def _requeue(self, name: str, data: memoryview) -> None:
        channel = self._channel(name)
        count = len(data) // _REQUEUED_SIZE
        if not count:
            return
        indexes, dues = np.frombuffer(data, "<i8", 2 * count).reshape(2, count)
        attempts = np.frombuffer(data, "<u4", count, 16 * count)
        pairs = zip(dues.tolist(), attempts.tolist(), strict=True)
        channel.requeued.update(zip(indexes.tolist(), pairs, strict=True))
        self._orders.pop(name, None)
        self._note(int(indexes.max()))

    def state(self) -> TopicState:
        """Return the state after all records so far."""
        for name, channel in self._state.channels.items():
            kept = [np.array(channel.finished, np.int64).reshape(-1, 2).T, *self._ranges[name]]
            firsts, ends = np.concatenate(kept, axis=1)
            channel.finished = merge_ranges(firsts, ends)
            self._ranges[name] = []
            _move_start(channel)
        return self._state


def drop_range(noted: dict[int, Any], first: int, end: int) -> None:
    """Remove the indexes of [first, end) from a mapping by index."""
    if end - first <= len(noted):
        for index in range(first, end):
            noted.pop(index, None)
    else:
        for index in [index for index in noted if first <= index < end]:
            del noted[index]


def _move_start(channel: ChannelState) -> None:
    """Move `start` past the finished ranges that touch it."""
    done = 0
    for first, end in channel.finished:
        if first > channel.start:
            break
        channel.start = max(channel.start, end)
        done += 1
    del channel.finished[:done]
    channel.cursor = max(channel.cursor, channel.start)


# Sets of indexes as ranges [first, end)


def merge_ranges(firsts: Indexes, ends: Indexes) -> list[tuple[int, int]]:
    """Return the same set of indexes as ascending ranges that neither overlap nor touch.

    Args:
        firsts, ends: ranges in any order; empty ones are ignored.
    """
    if len(firsts) < VECTOR_MIN:
        return merge_ranges_scalar(firsts, ends)
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


def merge_ranges_scalar(firsts: Indexes, ends: Indexes) -> list[tuple[int, int]]:
    """Do what `merge_ranges` does, range by range."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(zip(firsts, ends, strict=True)):
        if end <= first:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], int(end)))
        else:
            merged.append((int(first), int(end)))
    return merged
