"""Dead letters: where messages go that were delivered too often, and what is told of them there.

1. The dead-letter topic has the topic's name with `.dead` at its end, cut if it must be. What is in
   such a topic is delivered as often as it takes: there is no dead-letter topic of another one.
2. A letter is an envelope: the history of a message, and its body. So they are kept, and go,
   together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sparq.protocol import envelope
from sparq.protocol.instant import rfc3339
from sparq.protocol.names import EPHEMERAL_SUFFIX, NAME_SIZE_MAX, is_ephemeral

DEAD: Final = ".dead"

MARK: Final = "dead_letter"
"""The field that makes an envelope a dead letter's; its value is the version of the fields."""
TEXT_SIZE_MAX: Final = 300
"""Characters of a consumer's name, and of a reason."""


def is_dead_letter_topic(name: str) -> bool:
    """Whether a topic has dead letters, by its name."""
    return name.removesuffix(EPHEMERAL_SUFFIX).endswith(DEAD)


def dead_letter_topic(name: str) -> str:
    """The name of a topic's dead-letter topic."""
    suffix = DEAD + (EPHEMERAL_SUFFIX if is_ephemeral(name) else "")
    return name.removesuffix(EPHEMERAL_SUFFIX)[: NAME_SIZE_MAX - len(suffix)] + suffix


class History(NamedTuple):
    """What became of a message before it was a dead letter.

    Attributes:
        topic, channel, id, attempts: where it was, which it was, how often it was delivered.
        published_ns: when it was published, ns since 1970.
        returned_ns: when it came back for the last time; 0: not known.
        consumer, reason: who had it last, and how that ended; "": not known.
        redriven: how often a letter of it was sent back before.
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
        """The letter."""
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
    """A letter's history, as texts, and its body; ({}, all of it) where this is none."""
    fields, body = envelope.unseal(letter)
    return (fields, body) if MARK in fields else ({}, letter)
