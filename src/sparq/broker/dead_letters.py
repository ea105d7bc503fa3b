"""The topics of messages that came back too often.

1. With `max_attempts` a message that was delivered so often is not delivered once more: it is
   published to the dead-letter topic, with the body that it has, and then finished. Until that is
   kept it is in flight with nobody (`channel.BURIAL`); where it is refused it is tried again.
2. The dead-letter topic has the topic's name with `.dead` at its end, cut if it must be. What is in
   such a topic is delivered as often as it takes: there is no dead-letter topic of another one.
3. If nsqd dies in between, a letter may be there twice, and none is lost.
"""

from __future__ import annotations

from typing import Final

from sparq.protocol.names import EPHEMERAL_SUFFIX, NAME_SIZE_MAX, is_ephemeral

DEAD: Final = ".dead"


def is_dead_letter_topic(name: str) -> bool:
    """Whether a topic has dead letters, by its name."""
    return name.removesuffix(EPHEMERAL_SUFFIX).endswith(DEAD)


def dead_letter_topic(name: str) -> str:
    """The name of a topic's dead-letter topic."""
    suffix = DEAD + (EPHEMERAL_SUFFIX if is_ephemeral(name) else "")
    return name.removesuffix(EPHEMERAL_SUFFIX)[: NAME_SIZE_MAX - len(suffix)] + suffix
