"""How much clients may have nsqd make: topics, channels of a topic, bytes of a topic.

1. Each limit is an option, 0 where there is none (security table, S-3); NSQ has none of them.
2. What is there already stays, also when a limit is set below it; only more is refused.
3. A publish that is refused for a limit keeps its connection, as one for which the disk is full.
4. Bytes count while some channel needs them, in whole files: what all have finished is about to go,
   or stays by an option of its own, or until a range reader's next commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparq.protocol.frames import FRAME_OVERHEAD

if TYPE_CHECKING:
    from sparq.broker.topic import Topic

FILES_OF_FULL_TOPIC = 4
"""A topic of limited size has about so many files at least, so that room comes back bit by bit."""


FILE_BYTES_MIN = 64 << 10
"""A file has some KiB of its own; smaller ones would hold little else."""


class LimitReached(Exception):
    """There may be no more of something; the text says what."""


def check(count: int, most: int, what: str) -> None:
    """Refuse one more of what there are `count` already; raises LimitReached."""
    if 0 < most <= count:
        raise LimitReached(f"the limit of {most} {what} is reached")


def check_room(topic: Topic, count: int, size_bytes: int) -> None:
    """Refuse a publish of so many messages and bytes of bodies that the topic has no room for.

    Raises:
        LimitReached: it has none.
    """
    most = topic.options.max_topic_bytes
    if most <= 0 or topic.ephemeral:
        return
    log = topic.stream.log
    wanted = topic.publishing.pending_bytes + size_bytes + count * FRAME_OVERHEAD
    if log.size_bytes + wanted <= most:
        return
    free = sum(segment.size_bytes for segment in topic.trimming.unneeded(log.segments()))
    if log.size_bytes - free + wanted > most:
        raise LimitReached(f"the limit of {most} bytes of topic {topic.name} is reached")


def file_bytes(max_bytes_per_file: int, max_topic_bytes: int) -> int:
    """The size at which a log begins a new file."""
    if max_topic_bytes <= 0:
        return max_bytes_per_file
    part = max(FILE_BYTES_MIN, max_topic_bytes // FILES_OF_FULL_TOPIC)
    return min(max_bytes_per_file, part)
