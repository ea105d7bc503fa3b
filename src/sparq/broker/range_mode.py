"""Range reading: the log itself, read by index ranges, with a channel as the reader's bookmark.

1. A channel is streamed to subscribers or held by a range reader, never both (decision 30). The
   newest attach wins by its epoch; a hold ends when the connection that made it does.
2. In range mode a channel knows only its cursor: everything before it is finished. Segments go that
   lie before the commit before the last. What a stream left unfinished behind the cursor is read
   again.
3. A range reader sees synced data up to P (decision 10), deferred publishes at their place in the
   log, and how many messages damage cost.
4. Refusals leave the connection open; indexes are strings in JSON, for browsers keep 53 bits.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from sparq.broker.agenda import Agenda
from sparq.log.log import Log, RangeRead
from sparq.protocol import frames
from sparq.protocol.commands import CommitRange, Ends, Read
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.session import Session, Slot
    from sparq.broker.topic import Topic
    from sparq.log.disk import DiskError

READ_BYTES_MAX: Final = 16 << 20
"""One answer to READ holds at most this, whatever is asked for (one batch may be larger)."""

_FRAME: Final = struct.Struct(">ii")
_RANGE: Final = struct.Struct(">qq")


class Hold(NamedTuple):
    """Who has a channel, and since which attach."""

    session: Session
    epoch: int


def readable_end(topic: Topic) -> int:
    """What range readers see: synced, and before P."""
    return min(topic.stream.end, max(topic.stream.log.synced_end, topic.stream.log.first_index))


def _log(topic: Topic, command: str) -> Log:
    if topic.ephemeral:
        code = "E_ATTACH_FAILED" if command == "ATTACH" else "E_RANGE_FAILED"
        raise RemoteError(code, f"{command} failed topic {topic.name} has no log")
    return topic.stream.log


# ATTACH and COMMIT


def attach(
    topic: Topic, channel: Channel, session: Session, epoch: int, *, created: bool = False
) -> bytes:
    """Take hold of a channel, which this attach may have created; returns the answer.

    Raises:
        RemoteError: the channel has subscribers, or nothing to read by ranges.
    """
    _log(topic, "ATTACH")
    if channel.sessions:
        held_by = f"{topic.name}:{channel.name} has {len(channel.sessions)} consumers"
        raise RemoteError("E_ATTACH_FAILED", f"ATTACH failed channel {held_by}")
    if channel.hold is not None:
        channel.hold.session.holds.discard(channel)
    channel.hold = Hold(session, epoch)
    channel.range_epoch = epoch
    session.holds.add(channel)
    unfinished = channel.unfinished()
    if len(unfinished):
        channel.seek(min(int(unfinished[0]), channel.cursor))
    answer = {"epoch": epoch, **_described(topic, channel), "created": created}
    return json.dumps(answer).encode()


def _described(topic: Topic, channel: Channel) -> dict[str, object]:
    log = topic.stream.log
    end = readable_end(topic)
    return {
        "log": log.log_id.hex(),
        "node": log.node_id,
        "first": str(log.first_index),
        "committed": str(channel.cursor),
        "end": str(end),
        "first_ordinal": log.first_ordinal,
        "committed_ordinal": channel.cursor_ordinal,
        "end_ordinal": log.ordinal_at(end),
    }


def release(session: Session) -> None:
    """A connection ends, and its holds with it."""
    for channel in session.holds:
        if channel.hold is not None and channel.hold.session is session:
            channel.hold = None
            channel.wake()
    session.holds.clear()


def commit(topic: Topic, channel: Channel, command: CommitRange) -> None:
    """Move a held channel's cursor.

    Raises:
        RemoteError: a newer attach, or a subscriber, has the channel; or the index is nowhere.
    """
    epoch, index = command.epoch, command.index
    if channel.range_epoch > epoch:
        _refuse_commit(f"epoch {epoch} was superseded by {channel.range_epoch}")
    if channel.range_epoch < epoch:
        _refuse_commit(f"epoch {epoch} is not attached")
    if channel.sessions:
        _refuse_commit(f"channel {topic.name}:{channel.name} has {len(channel.sessions)} consumers")
    first, end = topic.stream.log.first_index, readable_end(topic)
    if index < first and index != channel.cursor:
        _refuse_commit(f"index {index} is before {first}")
    if index > end:
        _refuse_commit(f"index {index} is beyond {end}")
    if index != channel.cursor:
        channel.commit(index)


def _refuse_commit(reason: str) -> NoReturn:
    raise RemoteError("E_COMMIT_FAILED", f"COMMIT failed {reason}")


# ENDS and READ: the answer may have to wait for the disk


class RangeReader:
    """Answers one session's questions about logs, each into its slot.

    Of its READs one is under way at a time, and the next begins only when the answer of the one
    before was taken: a client that asks for much and reads nothing costs one answer's memory.
    """

    def __init__(self, agenda: Agenda, session: Session) -> None:
        self._agenda = agenda
        self._session = session
        self._waiting: deque[tuple[Topic, Read, Slot]] = deque()
        self._reading = False
        session.on_taken = self._next_read

    def ends(self, topic: Topic, command: Ends) -> None:
        """ENDS: where the log begins and ends, and where a time, a count or a size leads."""
        _log(topic, "ENDS")
        self._ends(topic, command, self._session.slot())

    def _ends(self, topic: Topic, command: Ends, slot: Slot) -> None:
        log = topic.stream.log
        at: int | None = None
        if command.kind == "time":
            at = log.index_at_time(command.value)
            if at is None:
                self._load_time(topic, command, slot)
                return
        elif command.kind == "after":
            at = log.index_at_ordinal(log.ordinal_at(command.value) + command.count)
        self._answer(slot, frames.response(json.dumps(_ends(topic, command, at)).encode()))

    def _load_time(self, topic: Topic, command: Ends, slot: Slot) -> None:
        log = topic.stream.log
        read = log.load_time(command.value)

        def loaded(_now: Instant) -> None:
            log.store(read)
            if read.error is None:
                self._ends(topic, command, slot)
            else:
                self._fail(slot, "ENDS", read.error)

        topic.stream.errands.submit(read, loaded)

    def read(self, topic: Topic, command: Read) -> None:
        """READ: the stored batches of a range.

        Raises:
            RemoteError: another log, or a range that it does not (or no longer) hold.
        """
        _check_range(topic, command)
        self._waiting.append((topic, command, self._session.slot()))
        self._next_read()

    def _next_read(self) -> None:
        session = self._session
        if self._reading or not self._waiting or session.paused_writing or session.has_answers():
            return
        topic, command, slot = self._waiting.popleft()
        try:
            _check_range(topic, command)
        except RemoteError as error:  # its segment has gone while it waited
            self._answer(slot, frames.error(error.frame_text()))
            return
        self._reading = True
        size_max = min(command.max_bytes, READ_BYTES_MAX)
        end = max(command.first, command.end)
        work = topic.stream.log.range_read(command.first, end, size_max)
        topic.stream.errands.submit(work, lambda _now: self._have_read(work, slot))

    def _have_read(self, work: RangeRead, slot: Slot) -> None:
        self._reading = False
        if work.error is not None:
            self._fail(slot, "READ", work.error)
            return
        head = _RANGE.pack(work.next_index, work.lost)
        size = len(head) + sum(map(len, work.batches))
        slot.more = work.batches
        self._answer(slot, _FRAME.pack(4 + size, frames.FRAME_RANGE) + head)

    def _answer(self, slot: Slot, data: bytes) -> None:
        slot.data = data
        self._agenda.dirty[self._session] = None

    def _fail(self, slot: Slot, command: str, error: DiskError) -> None:
        refused = RemoteError("E_RANGE_FAILED", f"{command} failed {error.reason}")
        self._answer(slot, frames.error(refused.frame_text()))


def _ends(topic: Topic, command: Ends, at: int | None) -> dict[str, object]:
    log, end, size = topic.stream.log, readable_end(topic), 0
    if command.kind == "within":
        first = max(command.value, log.first_index)
        at, size = log.index_within(first, end, command.count)
    described: dict[str, object] = {
        "log": log.log_id.hex(),
        "node": log.node_id,
        "first": str(log.first_index),
        "end": str(end),
        "first_ordinal": log.first_ordinal,
        "end_ordinal": log.ordinal_at(end),
    }
    if at is not None:
        at = min(at, end)
        described |= {"at": str(at), "at_ordinal": log.ordinal_at(at)}
    if command.kind in ("after", "within"):
        described["from_ordinal"] = log.ordinal_at(command.value)
    if command.kind == "within":
        described["size"] = size
    return described


def _check_range(topic: Topic, command: Read) -> None:
    log = _log(topic, "READ")
    first, end = log.first_index, readable_end(topic)
    if command.log != log.log_id.hex():
        _refuse_read(f"log {log.log_id.hex()} is not {command.log}")
    if command.first < first:
        _refuse_read(f"index {command.first} is before {first}")
    if command.end > end:
        _refuse_read(f"index {command.end} is beyond {end}")


def _refuse_read(reason: str) -> NoReturn:
    raise RemoteError("E_RANGE_FAILED", f"READ failed {reason}")
