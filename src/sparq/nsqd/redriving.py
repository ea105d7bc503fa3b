"""`POST /message/redrive`: send dead letters back to where they came from (docs/http.md).

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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sparq.broker.dead_letters import DeadLetterBatch, Only
from sparq.broker.message_actions import GONE, IDS_MAX
from sparq.daemon.http import Call, HttpError, Route
from sparq.inspection import snapshot as snapshots
from sparq.nsqd import parameters
from sparq.nsqd.inspection import body_read_bytes
from sparq.nsqd.message_actions import OTHER_NODE, answer
from sparq.nsqd.message_json import id_of
from sparq.protocol.dead_letters import unseal
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparq.broker.channel import Channel
    from sparq.broker.topic import Topic
    from sparq.nsqd.inspection import Inspection
    from sparq.nsqd.server import Nsqd

COUNT: Final = 100
"""Default number of waiting letters to send back."""

NO_LETTER: Final = "not a dead letter (no history): use /message/copy"
NO_TOPIC: Final = "topic {} does not exist"
PAUSED: Final = "topic {} is paused: a letter cannot be sent to one channel only"
NO_CHANNEL: Final = "channel {} of topic {} does not exist: create it, or use to_all"
BY_RANGES: Final = "channel {} of topic {} is read by ranges and would also get it: use to_all"

Place = tuple[str, str]
"""A topic and a channel."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter that can be sent back.

    Attributes:
        times: how often it was sent back before.
    """

    index: int
    place: Place
    times: int
    body: bytes


class Redriving:
    """The `/message/redrive` handler of one nsqd."""

    def __init__(self, nsqd: Nsqd, inspection: Inspection) -> None:
        self._nsqd = nsqd
        self._broker = nsqd.broker
        self._inspection = inspection

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [Route("POST", "/message/redrive", self.redrive)]

    async def redrive(self, call: Call) -> dict[str, Any]:
        """Send dead letters back."""
        name, to_all = parameters.name_of(call, "topic"), call.flag("to_all", False)
        parameters.name_of(call, "channel")
        topic = self._inspection.topic_of(name)
        channel = self._inspection.channel_of(topic, call)
        assert channel is not None
        refused: dict[str, str] = {}
        if "count" in call.query:
            count = parameters.number_of(call, "count", COUNT, IDS_MAX)
            (after,) = parameters.token_of(call, 1) or (-1,)
            indexes = next_waiting(channel, after, count)
            ids = [id_of(index, self._broker.node_id) for index in indexes]
        else:
            ids = await parameters.ids_of(call)
            indexes = self._indexes(ids, refused)
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        why = await self._send_back(topic, channel, indexes, to_all=to_all)
        refused |= {id_of(index, self._broker.node_id): text for index, text in why.items()}
        last = str(indexes[-1]) if len(indexes) else None
        return {**answer(ids, refused), "next": last, "waiting": channel.depth()}

    def _indexes(self, ids: list[str], refused: dict[str, str]) -> list[int]:
        found = []
        for text in ids:
            index = parameters.index_of(text, self._broker.node_id)
            if index is None:
                refused[text] = OTHER_NODE
            else:
                found.append(index)
        return sorted(found)

    async def _send_back(
        self, topic: Topic, channel: Channel, indexes: Sequence[int], *, to_all: bool
    ) -> dict[int, str]:
        """Send letters back; return the refused ones with the reason, by index."""
        wanted = np.array(indexes, np.int64)
        try:
            refused = self._broker.claim(topic.name, channel.name, wanted, self._nsqd.runner.now())
        except RemoteError as error:
            raise HttpError(error.http_status, f"{error.code}: {error.text}") from error
        self._nsqd.turns.schedule()
        left = [index for index in indexes if index not in refused]
        claimed = np.array(left, np.int64)
        size = body_read_bytes(topic, self._nsqd.limits.max_body_size)
        try:
            while left:
                found, covered = await self._inspection.read(topic, left, size)
                batch, left = left[:covered], left[covered:]
                bodies = {index: found[index].body for index in batch if index in found}
                refused |= dict.fromkeys((index for index in batch if index not in found), GONE)
                letters = self._sorted(bodies, refused, to_all=to_all)
                for place, group in letters.items():
                    why = await self._publish(channel, place, group, to_all=to_all)
                    if why is not None:
                        refused |= {letter.index: why for letter in group}
        finally:
            # Letters that were sent back are no longer in flight; all others wait again. Claims of
            # other requests stay in place.
            self._broker.unclaim(channel, claimed)
            self._nsqd.turns.schedule()
        return refused

    def _sorted(
        self, bodies: Mapping[int, bytes], refused: dict[int, str], *, to_all: bool
    ) -> dict[Place, list[DeadLetter]]:
        """Group the letters by target; those that cannot be sent back are added to `refused`."""
        letters: dict[Place, list[DeadLetter]] = {}
        for index, sealed in bodies.items():
            fields, body = unseal(sealed)
            if not fields:
                refused[index] = NO_LETTER
                continue
            place = fields.get("topic", ""), fields.get("channel", "")
            why = self._why_not(place, to_all=to_all)
            if why is not None:
                refused[index] = why
                continue
            times = fields.get("redriven", "")
            count = int(times) if times.isascii() and times.isdigit() else 0
            letters.setdefault(place, []).append(DeadLetter(index, place, count, body))
        return letters

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

    async def _publish(
        self, channel: Channel, place: Place, group: list[DeadLetter], *, to_all: bool
    ) -> str | None:
        """Publish letters to the topic that they came from; return the reason if refused."""
        # With `to_all` the name is "", which no channel has: the letters go to all channels.
        only = Only("" if to_all else place[1], [letter.times + 1 for letter in group])
        indexes = np.array([letter.index for letter in group], np.int64)
        letters = DeadLetterBatch(channel, indexes, [letter.body for letter in group], only)
        try:
            await self._nsqd.send_back(letters, place[0])
        except RemoteError as error:
            return error.text.removeprefix("PUB failed ") or error.code
        return None


def next_waiting(channel: Channel, after: int, count: int) -> list[int]:
    """Return the next `count` waiting messages of a channel after an index, ascending."""
    fresh = snapshots.fresh_after(channel, after, count)
    again = (index for index in sorted(channel.requeued.all()[0].tolist()) if index > after)
    return sorted({*fresh, *again})[:count]
