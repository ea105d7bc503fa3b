"""Actions on single messages over HTTP (docs/http.md, "Acting on single messages").

Each change is answered when it is on disk, like any change of a topic or channel. Copies are
published as by `/mpub`, some MiB at a time.

`POST /message/redrive` sends dead letters back to where they came from:

1. A request takes letters from a channel of a dead-letter topic: those named, or the next ones that
   wait. They are claimed, so no consumer gets them, until they are stored in the target topic and
   finished in this channel. If that fails they wait again. If nsqd dies in between, a letter may
   exist twice, but none is lost.
2. Each letter goes to the topic in its history, and only to the channel named there: the other
   channels have already had the message. With `to_all` every channel gets it, as with a publish.
3. A message without a history (a client published it to the dead-letter topic) is refused. So is a
   letter whose topic or channel does not exist: no consumer would get it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sparq.broker.dead_letters import DeadLetterBatch, Only
from sparq.broker.message_actions import GONE, IDS_MAX
from sparq.daemon.http import Call, HttpError, Route
from sparq.inspection import snapshot as snapshots
from sparq.nsqd import parameters
from sparq.nsqd.inspection import body_read_bytes, id_of
from sparq.nsqd.turns import instant
from sparq.protocol.dead_letters import unseal
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.names import is_dead_letter_topic

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.topic import Topic
    from sparq.nsqd.inspection import Inspection
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.instant import Instant

Change = Callable[[str, Callable[["Instant"], dict[int, str]]], Awaitable[dict[int, str]]]
"""Applies a change to a topic and returns its result once it is on disk."""

COUNT: Final = 100
"""Default number of waiting letters to send back."""

OTHER_NODE: Final = "it belongs to another node"
NO_LETTER: Final = "not a dead letter (no history): use /message/copy"
NO_TOPIC: Final = "topic {} does not exist"
PAUSED: Final = "topic {} is paused: a letter cannot be sent to one channel only"
NO_CHANNEL: Final = "channel {} of topic {} does not exist: create it, or use to_all"
BY_RANGES: Final = "channel {} of topic {} is read by ranges and would also get it: use to_all"

Place = tuple[str, str]
"""A topic and a channel."""


class MessageActions:
    """The message handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd, inspection: Inspection, change: Change) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker
        self._inspection = inspection
        self._change = change

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("POST", "/message/requeue", partial(self.act, "requeue")),
            Route("POST", "/message/finish", partial(self.act, "finish")),
            Route("POST", "/message/cancel", partial(self.act, "cancel")),
            Route("POST", "/message/copy", self.copy),
            Route("POST", "/message/redrive", self.redrive),
        ]

    async def act(self, action: str, call: Call) -> dict[str, Any]:
        """Requeue, finish or cancel messages of a channel."""
        topic = parameters.name_of(call, "topic")
        is_for_all = action == "cancel" and "channel" not in call.query
        channel = None if is_for_all else parameters.name_of(call, "channel")
        ids = await parameters.ids_of(call)
        found = self._indexes(ids)
        indexes = np.array(sorted(found), np.int64)
        refused = await self._change(
            topic, lambda now: self._broker.act_on_messages(action, topic, channel, indexes, now)
        )
        return answer(ids, found, refused)

    async def copy(self, call: Call) -> dict[str, Any]:
        """Publish copies of messages to a topic."""
        name, to = parameters.name_of(call, "topic"), parameters.name_of(call, "to")
        ids = await parameters.ids_of(call)
        topic = self._inspection.topic_of(name)
        self._inspection.channel_of(topic, call)
        found, end = self._indexes(ids), topic.stream.log.written_end
        refused = {index: GONE for index in found if index >= end}
        left = [index for index in found if index < end]
        # A dead letter is copied without its history, unless it goes to a dead-letter topic.
        opens = topic.stream.has_letters and not is_dead_letter_topic(to)
        async for bodies in self._bodies(topic, left, refused):
            copies = [unseal(body)[1] if opens else body for body in bodies.values()]
            if self._nsqd.exiting:
                raise HttpError(503, "EXITING")
            why = await _why_refused(self._nsqd.publish(to, BodySlices.of(copies)))
            if why is not None:
                refused |= dict.fromkeys((*bodies, *left), why)
                break
        return answer(ids, found, refused)

    def _indexes(self, ids: list[str]) -> dict[int, str]:
        """Return the ids of this node, by the index of each."""
        found = ((parameters.index_of(text, self._broker.node_id), text) for text in ids)
        return {index: text for index, text in found if index is not None}

    async def _bodies(
        self, topic: Topic, left: list[int], refused: dict[int, str]
    ) -> AsyncIterator[dict[int, bytes]]:
        """Take the messages from `left` and yield their bodies by index, some MiB at a time.

        Those that are gone are added to `refused`.
        """
        size = body_read_bytes(topic, self._nsqd.limits.max_body_size)
        while left:
            found, covered = await self._inspection.read(topic, left, size)
            batch = left[:covered]
            del left[:covered]
            refused |= {index: GONE for index in batch if index not in found}
            if found:
                yield {index: found[index].body for index in batch if index in found}

    # Dead letters

    async def redrive(self, call: Call) -> dict[str, Any]:
        """Send dead letters back."""
        name, to_all = parameters.name_of(call, "topic"), call.flag("to_all", False)
        parameters.name_of(call, "channel")
        topic = self._inspection.topic_of(name)
        channel = self._inspection.channel_of(topic, call)
        assert channel is not None
        if "count" in call.query:
            count = parameters.number_of(call, "count", COUNT, IDS_MAX)
            (after,) = parameters.token_of(call, 1) or (-1,)
            fresh = snapshots.fresh_after(channel, after, count)
            again = (index for index in channel.requeued.all()[0].tolist() if index > after)
            indexes = sorted({*fresh, *again})[:count]
            found = {index: id_of(index, self._broker.node_id) for index in indexes}
            ids = list(found.values())
        else:
            ids = await parameters.ids_of(call)
            found = self._indexes(ids)
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        refused = await self._send_back(topic, channel, sorted(found), to_all=to_all)
        last = str(max(found)) if found else None
        return {**answer(ids, found, refused), "next": last, "waiting": channel.depth()}

    async def _send_back(
        self, topic: Topic, channel: Channel, indexes: Sequence[int], *, to_all: bool
    ) -> dict[int, str]:
        """Send letters back; return the refused ones with the reason, by index."""
        wanted = np.array(indexes, np.int64)
        try:
            refused = self._broker.claim(topic.name, channel.name, wanted, instant())
        except RemoteError as error:
            raise HttpError(error.http_status, f"{error.code}: {error.text}") from error
        self._nsqd.turns.schedule()
        left = [index for index in indexes if index not in refused]
        claimed = np.array(left, np.int64)
        try:
            async for bodies in self._bodies(topic, left, refused):
                batches = self._by_place(channel, bodies, refused, to_all=to_all)
                for (target, _), letters in batches.items():
                    begin = partial(self._broker.send_back, letters, target, instant())
                    why = await _why_refused(self._nsqd.ask(begin))
                    if why is not None:
                        refused |= dict.fromkeys(letters.indexes.tolist(), why)
        finally:
            # Letters that were sent back are no longer in flight; all others wait again. Claims of
            # other requests stay in place.
            self._broker.unclaim(channel, claimed)
            self._nsqd.turns.schedule()
        return refused

    def _by_place(
        self,
        channel: Channel,
        sealed: Mapping[int, bytes],
        refused: dict[int, str],
        *,
        to_all: bool,
    ) -> dict[Place, DeadLetterBatch]:
        """Group the letters by target; those that cannot be sent back are added to `refused`."""
        by_place: dict[Place, list[tuple[int, bytes, int]]] = {}
        for index, letter in sealed.items():
            fields, body = unseal(letter)
            place = fields.get("topic", ""), fields.get("channel", "")
            why = self._why_not(place, to_all=to_all) if fields else NO_LETTER
            if why is not None:
                refused[index] = why
                continue
            redriven = fields.get("redriven", "")
            times = int(redriven) if redriven.isascii() and redriven.isdigit() else 0
            by_place.setdefault(place, []).append((index, body, times + 1))
        batches = {}
        for place, letters in by_place.items():
            indexes, bodies, times_each = zip(*letters, strict=True)
            # With `to_all` the name is "", which no channel has: the letters go to all channels.
            only = Only("" if to_all else place[1], list(times_each))
            batches[place] = DeadLetterBatch(
                channel, np.array(indexes, np.int64), list(bodies), only
            )
        return batches

    def _why_not(self, place: Place, *, to_all: bool) -> str | None:
        name, channel = place
        topic = self._broker.topics.get(name)
        if topic is None:
            return NO_TOPIC.format(name)
        if to_all:
            return None
        if channel not in topic.channels:
            return NO_CHANNEL.format(channel, name)
        if not topic.flows:
            return PAUSED.format(name)
        others = (one for one in topic.channels.values() if one.name != channel)
        ranged = next((one.name for one in others if one.range_epoch), None)
        return None if ranged is None else BY_RANGES.format(ranged, name)


async def _why_refused(publish: Coroutine[Any, Any, None]) -> str | None:
    """Wait for a publish; return the reason if it is refused."""
    try:
        await publish
    except RemoteError as error:
        return error.text.removeprefix("PUB failed ") or error.code
    return None


def answer(ids: list[str], found: Mapping[int, str], refused: Mapping[int, str]) -> dict[str, Any]:
    """Return the JSON answer: the ids done, and those refused with their reasons.

    Args:
        ids: the ids of the request.
        found: those of this node, by index.
        refused: by index, why messages were refused.
    """
    reasons = dict.fromkeys(ids, OTHER_NODE)
    reasons |= {text: refused.get(index, "") for index, text in found.items()}
    return {
        "done": [text for text in ids if not reasons[text]],
        "refused": [{"id": text, "why": reasons[text]} for text in ids if reasons[text]],
    }
