"""Dead letters: messages that consumers gave up on, in their own topic, and which came back.

1. A dead letter has the body of the original message; a letter from a client that sends telemetry
   keeps its envelope. Its origin follows from its topic's name: `orders.dead` belongs to `orders`.
2. The audit log shows which letters were sent back, and when: it has those that nsqadmin copied or
   redrove, of which the last `LETTERS_MAX` or slightly more are read. A letter has come back if a
   letter with the same body was sent back before it arrived.
3. The body of a letter that was sent back is fetched once and kept as a hash of 16 bytes. At most
   `SENT_MAX` letters are compared in this way.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, structs

from sparq.cluster.fleet import Fleet
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.http import HttpError
from sparq.nsqadmin.messages import (
    EVERYTHING,
    DisplayLimits,
    MessagePage,
    log_page,
    whole_body,
)
from sparq.protocol.messages import ns_of

NAMED: Final = re.compile(
    r"(?P<from>.+?)[._-](?:dead|dlq|dead[._-]?letters?|failed)(?:#ephemeral)?", re.IGNORECASE
)
SENDING: Final = ("copy_message", "redrive_message")
LETTERS_MAX: Final = 500_000
SENT_MAX: Final = 500
ENTRIES_MAX: Final = 500
ASKED_AT_ONCE: Final = 8
HASH_BYTES: Final = 16


def origin(topic: str) -> str:
    """The topic that a dead-letter topic belongs to, by its name; "" if it has another form."""
    found = NAMED.fullmatch(topic)
    return found["from"] if found else ""


class FailureHistory(Struct, frozen=True, forbid_unknown_fields=True):
    """The history of a letter.

    Attributes:
        sent_at: when it was sent back, from the audit log; "" if it was not.
        came_back: number of letters with the same body that were sent back before it arrived.
        last_sent_at: when the last of these was sent back; "" if there is none.
    """

    sent_at: str
    came_back: int
    last_sent_at: str


class DeadLetterPage(MessagePage):
    """A page of dead letters, the oldest first.

    Attributes:
        origin: the topic that they come from, by the name; "" if unknown.
        marks: the history of each letter, by `node/id`.
    """

    origin: str
    marks: dict[str, FailureHistory]


class DeadLetterList:
    """Lists the dead letters of a cluster; the audit log shows which were sent back."""

    def __init__(self, fleet: Fleet, audit: AuditLog) -> None:
        self._fleet = fleet
        self._audit = audit
        self._hashes: dict[tuple[str, str], bytes] = {}
        self._room = asyncio.Semaphore(ASKED_AT_ONCE)
        self._reading = asyncio.Lock()

    async def page(
        self, topic: str, *, place: str = "", after: str = "", show: DisplayLimits = EVERYTHING
    ) -> DeadLetterPage:
        """Fetch a page of a dead-letter topic.

        Raises:
            HttpError: the topic does not exist, or no node could answer.
        """
        page = await log_page(self._fleet, topic, place=place, after=after, show=show)
        sent = await self.sent(topic)
        latest = [*sent][:SENT_MAX]
        # Times when letters were sent back, by the hash of their body.
        before: dict[bytes, list[str]] = {}
        for key, body in zip(latest, await self._hashes_of(topic, latest), strict=True):
            if body:
                before.setdefault(body, []).append(sent[key])
        keys = [f"{message['node']}/{message['id']}" for message in page.messages]
        bodies = await self._hashes_of(topic, keys) if before else [b""] * len(keys)
        marks = {}
        for key, message, body in zip(keys, page.messages, bodies, strict=True):
            times = [at for at in before.get(body, ()) if ns_of(at) < ns_of(message["time"])]
            marks[key] = FailureHistory(sent.get(key, ""), len(times), max(times, default=""))
        return DeadLetterPage(**structs.asdict(page), origin=origin(topic), marks=marks)

    async def sent(self, topic: str) -> dict[str, str]:
        """Times when letters of a topic were last sent back, by `node/id`, the latest first."""
        sent: dict[str, str] = {}
        before: str | None = ""
        # One request at a time: to read all of a full audit log takes a core for a second or two.
        async with self._reading:
            while before is not None and len(sent) < LETTERS_MAX:
                page = await self._audit.page(before, ENTRIES_MAX, {"topic": topic})
                for key, at in sent_in(page.entries).items():
                    sent.setdefault(key, at)
                before = page.next
        return sent

    async def _hashes_of(self, topic: str, keys: Sequence[str]) -> list[bytes]:
        return await asyncio.gather(*(self._hash(topic, key) for key in keys))

    async def _hash(self, topic: str, key: str) -> bytes:
        """Hash of a letter's body; b"" if it cannot be fetched, which the next call retries."""
        known = self._hashes.get((topic, key))
        if known is not None:
            return known
        node, _, message_id = key.rpartition("/")
        try:
            async with self._room:
                body = await whole_body(self._fleet, topic, message_id, node)
        except HttpError:
            return b""
        made = hashlib.blake2b(body, digest_size=HASH_BYTES).digest()
        self._hashes[topic, key] = made
        if len(self._hashes) > 8 * SENT_MAX:
            del self._hashes[next(iter(self._hashes))]
        return made


def sent_in(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Read from audit entries when messages were last sent back, by `node/id`, the latest first."""
    sent: dict[str, str] = {}
    for entry in entries:
        if entry.get("action") not in SENDING or entry.get("outcome") not in ("done", "partly"):
            continue
        arguments = entry.get("arguments")
        ids = arguments.get("ids") if isinstance(arguments, Mapping) else None
        for node, some in ids.items() if isinstance(ids, Mapping) else ():
            for one in some if isinstance(some, list) else ():
                sent.setdefault(f"{node}/{one}", str(entry.get("time", "")))
    return sent
