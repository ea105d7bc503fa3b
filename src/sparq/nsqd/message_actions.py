"""Actions on single messages over HTTP (docs/http.md, "Acting on single messages").

Each change is answered when it is on disk, like any change of a topic or channel. Copies are
published as by `/mpub`, some MiB at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sparq.broker.message_actions import GONE
from sparq.daemon.http import Call, HttpError, Route
from sparq.nsqd import parameters
from sparq.nsqd.inspection import body_read_bytes
from sparq.protocol.dead_letters import unseal
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.names import is_dead_letter_topic

if TYPE_CHECKING:
    from sparq.nsqd.inspection import Inspection
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.instant import Instant

Change = Callable[[str, Callable[["Instant"], dict[int, str]]], Awaitable[dict[int, str]]]
"""Applies a change to a topic and returns its result once it is on disk."""

OTHER_NODE = "it belongs to another node"


class MessageActions:
    """The message handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd, inspection: Inspection, change: Change) -> None:
        self._nsqd = nsqd
        self._inspection = inspection
        self._change = change

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("POST", "/message/requeue", partial(self.act, "requeue")),
            Route("POST", "/message/finish", partial(self.act, "finish")),
            Route("POST", "/message/cancel", partial(self.act, "cancel")),
            Route("POST", "/message/copy", self.copy),
        ]

    async def act(self, action: str, call: Call) -> dict[str, Any]:
        """Requeue, finish or cancel messages of a channel."""
        topic = parameters.name_of(call, "topic")
        is_for_all = action == "cancel" and "channel" not in call.query
        channel = None if is_for_all else parameters.name_of(call, "channel")
        ids = await parameters.ids_of(call)
        refused: dict[str, str] = {}
        wanted = self._indexes(ids, refused)
        indexes = np.unique(np.array(list(wanted.values()), np.int64))
        why = await self._change(
            topic,
            lambda now: self._nsqd.broker.act_on_messages(action, topic, channel, indexes, now),
        )
        refused |= {text: why[index] for text, index in wanted.items() if index in why}
        return answer(ids, refused)

    async def copy(self, call: Call) -> dict[str, Any]:
        """Publish copies of messages to a topic."""
        name, to = parameters.name_of(call, "topic"), parameters.name_of(call, "to")
        ids = await parameters.ids_of(call)
        topic = self._inspection.topic_of(name)
        self._inspection.channel_of(topic, call)
        refused: dict[str, str] = {}
        wanted = self._indexes(ids, refused)
        texts = {index: text for text, index in wanted.items()}
        end = topic.stream.log.written_end
        left = [index for index in wanted.values() if index < end]
        refused |= {text: GONE for text, index in wanted.items() if index >= end}
        size = body_read_bytes(topic, self._nsqd.limits.max_body_size)
        # A dead letter is copied without its history, unless it goes to a dead-letter topic.
        opens = topic.stream.has_letters and not is_dead_letter_topic(to)
        while left:
            found, covered = await self._inspection.read(topic, left, size)
            batch = [index for index in left[:covered] if index in found]
            refused |= {texts[index]: GONE for index in left[:covered] if index not in found}
            left = left[covered:]
            bodies = [found[index].body for index in batch]
            why = await self._publish(to, [unseal(b)[1] for b in bodies] if opens else bodies)
            if why is not None:
                refused |= {texts[index]: why for index in (*batch, *left)}
                break
        return answer(ids, refused)

    async def _publish(self, topic: str, bodies: list[bytes]) -> str | None:
        """Publish all the bodies or none; return the reason if they were refused."""
        if not bodies:
            return None
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            await self._nsqd.publish(topic, BodySlices.of(bodies))
        except RemoteError as error:
            return error.text.removeprefix("PUB failed ") or error.code
        return None

    def _indexes(self, ids: list[str], refused: dict[str, str]) -> dict[str, int]:
        """Return the index of each id of this node; ids of other nodes are refused."""
        node_id = self._nsqd.broker.node_id
        found: dict[str, int] = {}
        for text in ids:
            index = parameters.index_of(text, node_id)
            if index is None:
                refused[text] = OTHER_NODE
            else:
                found[text] = index
        return found


def answer(ids: list[str], refused: dict[str, str]) -> dict[str, Any]:
    """Return the JSON answer: the ids done, and those refused with their reasons."""
    return {
        "done": [text for text in ids if text not in refused],
        "refused": [{"id": text, "why": refused[text]} for text in ids if text in refused],
    }
