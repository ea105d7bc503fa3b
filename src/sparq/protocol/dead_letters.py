"""Dead letters: the topic for messages that were delivered too often, and their stored history.

1. The dead-letter topic is named after the topic with `.dead` appended; the topic's name is cut if
   necessary. Messages of a dead-letter topic are delivered without a limit on attempts: it has no
   dead-letter topic of its own. nsqd gives it the channel `redrive` if it has none when a letter
   arrives: letters can be sent back only from a channel.
2. A dead letter is an envelope with the message's history and its body, so both are stored and
   deleted together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sparq.protocol import envelope
from sparq.protocol.instant import rfc3339
from sparq.protocol.names import DEAD, EPHEMERAL_SUFFIX, NAME_SIZE_MAX, is_ephemeral

REDRIVE_CHANNEL: Final = "redrive"

MARK: Final = "dead_letter"
"""The field that marks an envelope as a dead letter; its value is the version of the fields."""
TEXT_SIZE_MAX: Final = 300
"""Maximum characters of a consumer's name and of a reason; longer texts are cut.

JSON needs at most 12 bytes for a character, so the history always fits into an envelope, which
would otherwise be left out (``envelope``, rule 3).
"""


def dead_letter_topic(name: str) -> str:
    """The name of a topic's dead-letter topic."""
    suffix = DEAD + (EPHEMERAL_SUFFIX if is_ephemeral(name) else "")
    return name.removesuffix(EPHEMERAL_SUFFIX)[: NAME_SIZE_MAX - len(suffix)] + suffix


class DeadLetterHistory(NamedTuple):
    """The history of a message before it became a dead letter.

    Attributes:
        topic, channel, id, attempts: the message's topic, channel, id and number of deliveries.
        published_ns: when it was published, ns since 1970.
        returned_ns: when its last delivery ended unfinished, ns since 1970; 0: unknown.
        consumer, reason: the last consumer, and why that delivery failed; "": unknown.
        redriven: how often the message was redriven as a dead letter before.
    """

    topic: str
    channel: str
    id: str
    attempts: int
    published_ns: int
    returned_ns: int
    consumer: str
    reason: str
    redriven: int = 0

    def seal(self, body: bytes) -> bytes:
        """The dead letter: an envelope with this history and the body."""
        fields = {
            MARK: "1",
            "topic": self.topic,
            "channel": self.channel,
            "id": self.id,
            "attempts": str(self.attempts),
            "published": rfc3339(self.published_ns),
            "last_returned": rfc3339(self.returned_ns) if self.returned_ns else "",
            "consumer": self.consumer[:TEXT_SIZE_MAX],
            "reason": self.reason[:TEXT_SIZE_MAX],
            "redriven": str(self.redriven),
        }
        return envelope.seal(fields, body)


def unseal(letter: bytes) -> tuple[Mapping[str, str], bytes]:
    """A dead letter's history, as texts, and its body; ({}, `letter`) if it is not one."""
    fields, body = envelope.unseal(letter)
    return (fields, body) if MARK in fields else ({}, letter)
