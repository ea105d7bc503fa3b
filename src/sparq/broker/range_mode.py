"""Range reading: clients read the log by index ranges; a channel stores the reader's position.

1. A channel is either streamed to subscribers or held by a range reader, never both.
   The newest attach wins by its epoch. A hold ends with the connection that made it.
2. In range mode a channel has only its cursor: everything before it is finished. Segments before
   the last commit but one are deleted. Messages before the cursor that streaming left unfinished
   are read again.
3. A range reader sees synced data up to P, deferred publishes at their place in the
   log, and the number of messages lost by damage.
4. Refusals leave the connection open. Indexes are strings in JSON, since browsers handle integers
   exactly only up to 53 bits.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import partial
from typing import Final, NoReturn

from sparq.broker.channel import Channel
from sparq.broker.session import Slot, V2Session
from sparq.broker.topic import Topic
from sparq.broker.turn import Turn
from sparq.log.disk import DiskError
from sparq.log.log import Log
from sparq.log.reading import RangeRead
from sparq.protocol import layout
from sparq.protocol.commands import CommitRange, Read, ReadEnds
from sparq.protocol.errors import RemoteError
from sparq.protocol.go_json import to_bytes
from sparq.protocol.instant import Instant

READ_BYTES_MAX: Final = 16 << 20
"""Upper limit of one READ answer, whatever is requested; a single batch may be larger."""

_FRAME: Final = struct.Struct(">ii")
_RANGE: Final = struct.Struct(">qq")


def readable_end(topic: Topic) -> int:
    """The end of the messages that range readers see: synced, and before P."""
    # `max`: the first index of an empty log is `written_end`, which `Log.pass_over` raises without
    # `synced_end`. The end would then be before the first index.
    return min(topic.stream.end, max(topic.stream.log.synced_end, topic.stream.log.first_index))


def _log(topic: Topic, command: str) -> Log:
    if topic.ephemeral:
        code = "E_ATTACH_FAILED" if command == "ATTACH" else "E_RANGE_FAILED"
        raise RemoteError(code, f"{command} failed topic {topic.name} has no log")
    return topic.stream.log


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


def commit(topic: Topic, channel: Channel, command: CommitRange) -> None:
    """Move a held channel's cursor.

    Raises:
        RemoteError: a newer attach or a subscriber has the channel, or the index is outside the
            readable log.
    """
    epoch, index = command.epoch, command.index
    if channel.range_epoch > epoch:
        _refuse_commit(f"epoch {epoch} was superseded by {channel.range_epoch}")
    if channel.range_epoch < epoch:
        _refuse_commit(f"epoch {epoch} is not attached")
    if channel.sessions:
        _refuse_commit(f"channel {topic.name}:{channel.name} has {len(channel.sessions)} consumers")
    first, end = topic.stream.log.first_index, readable_end(topic)
    # A COMMIT that is sent again must succeed, even if the log has lost that place meanwhile.
    if index < first and index != channel.cursor:
        _refuse_commit(f"index {index} is before the first index, {first}")
    if index > end:
        _refuse_commit(f"index {index} is beyond the end, {end}")
    if index != channel.cursor:
        channel.commit(index)


def _refuse_commit(reason: str) -> NoReturn:
    raise RemoteError("E_COMMIT_FAILED", f"COMMIT failed {reason}")


class Ranges:
    """The holds and range reads of all sessions.

    Each session has at most one READ running, and the next begins only when the previous answer was
    taken. So a client that requests much and reads nothing costs the memory of one answer.
    """

    def __init__(self, turn: Turn[Topic]) -> None:
        self._turn = turn
        self._holds: dict[V2Session, list[tuple[Topic, Channel]]] = {}
        self.reads: dict[V2Session, deque[tuple[Topic, Read, Slot]]] = {}
        """The READs of each session that have not begun."""
        self._reading: set[V2Session] = set()

    def attach(
        self, topic: Topic, channel: Channel, session: V2Session, epoch: int, *, created: bool
    ) -> bytes:
        """Hold a channel, which this attach may have created; returns the answer.

        Raises:
            RemoteError: the channel has subscribers, or its topic is ephemeral and has no log.
        """
        _log(topic, "ATTACH")
        if channel.sessions:
            held_by = f"{topic.name}:{channel.name} has {len(channel.sessions)} consumers"
            raise RemoteError("E_ATTACH_FAILED", f"ATTACH failed channel {held_by}")
        channel.range_reader, channel.range_epoch = session, epoch
        held = self._holds.get(session, [])
        # Without holds that newer readers took over: a connection may attach any number of times.
        mine = [one for one in held if one[1] is not channel and one[1].range_reader is session]
        self._holds[session] = [*mine, (topic, channel)]
        unfinished = channel.unfinished()
        # Range mode has only the cursor (rule 2), so it goes back to the first unfinished message.
        if len(unfinished):
            channel.seek(min(int(unfinished[0]), channel.cursor))
        answer = {"epoch": epoch, **_described(topic, channel), "created": created}
        return to_bytes(answer)

    def release(self, session: V2Session) -> None:
        """Drop the holds and waiting READs of a connection that ends."""
        self.reads.pop(session, None)
        self._reading.discard(session)
        for topic, channel in self._holds.pop(session, []):
            # A newer ATTACH may have taken the hold over.
            if channel.range_reader is session:
                channel.range_reader = None
                topic.wake(channel)

    # ENDS and READ: the answer may need a disk read

    def ends(self, session: V2Session, topic: Topic, command: ReadEnds) -> None:
        """ENDS: first and end index, and the index for a time, a message count or a size."""
        _log(topic, "ENDS")
        self.answer_ends(session, session.slot(), topic, command)

    def answer_ends(self, session: V2Session, slot: Slot, topic: Topic, command: ReadEnds) -> None:
        """Answer an ENDS; if it names a time, that may need a disk read first."""
        log = topic.stream.log
        at: int | None = None
        if command.kind == "time":
            at = log.index_at_time(command.value)
            if at is None:
                read = log.load_time(command.value)

                def finish(_now: Instant) -> None:
                    log.store(read)
                    if read.error is not None:
                        self.fail(session, slot, "ENDS", read.error)
                    else:  # or read again if the data was evicted meanwhile
                        self.answer_ends(session, slot, topic, command)

                topic.submit(read, finish)
                return
        elif command.kind == "after":
            at = log.index_at_ordinal(log.ordinal_at(command.value) + command.count)
        data = to_bytes(_ends(topic, command, at))
        self._answer(session, slot, layout.response(data))

    def read(self, session: V2Session, topic: Topic, command: Read) -> None:
        """READ: the stored batches of a range.

        Raises:
            RemoteError: the log id differs, or the log does not (or no longer) hold the range.
        """
        _check_range(topic, command)
        self.reads.setdefault(session, deque()).append((topic, command, session.slot()))
        self.read_next(session)

    def read_next(self, session: V2Session) -> None:
        """Begin the session's next READ if its previous answer was taken and it reads output."""
        waiting = self.reads.get(session)
        if not waiting or session in self._reading:
            return
        if session.paused_writing or session.has_answers():
            return
        topic, command, slot = waiting.popleft()
        try:
            _check_range(topic, command)
        except RemoteError as error:  # the segment was deleted while the READ waited
            self._answer(session, slot, layout.error(error.frame_text()))
            return
        self._reading.add(session)
        size_max = min(command.max_bytes, READ_BYTES_MAX)
        end = max(command.first, command.end)
        task = topic.stream.log.range_read(command.first, end, size_max)
        topic.submit(task, partial(self._have_read, session, slot, task))

    def _have_read(self, session: V2Session, slot: Slot, task: RangeRead, _now: Instant) -> None:
        """Send the answer for a range that was read, or the error."""
        self._reading.discard(session)
        if task.error is not None:
            self.fail(session, slot, "READ", task.error)
            return
        head = _RANGE.pack(task.next_index, task.lost)
        size = len(head) + sum(map(len, task.batches))
        # Not joined to the head: an answer may be 16 MiB long.
        slot.more = task.batches
        self._answer(session, slot, _FRAME.pack(4 + size, layout.FRAME_RANGE) + head)

    def _answer(self, session: V2Session, slot: Slot, data: bytes) -> None:
        slot.data = data
        self._turn.sessions[session] = None

    def fail(self, session: V2Session, slot: Slot, command: str, error: DiskError) -> None:
        """Answer with the disk error that prevents the result."""
        refused = RemoteError("E_RANGE_FAILED", f"{command} failed {error.reason}")
        self._answer(session, slot, layout.error(refused.frame_text()))


def _ends(topic: Topic, command: ReadEnds, at: int | None) -> dict[str, object]:
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
        _refuse_read(f"index {command.first} is before the first index, {first}")
    if command.end > end:
        _refuse_read(f"index {command.end} is beyond the end, {end}")


def _refuse_read(reason: str) -> NoReturn:
    raise RemoteError("E_RANGE_FAILED", f"READ failed {reason}")
