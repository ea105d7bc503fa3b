"""How much of the backlog one micro-batch takes: a function of counts, limits and time alone.

1. A batch is held back while fewer than `messages_min` messages are there; not when `delay_seconds`
   have passed since the last batch, nor when the limit in bytes is reached: it would not grow.
   The first batch after a start is not held back, as with Spark's Kafka source.
2. A batch takes at most `messages_max` messages, shared out over the logs by their backlogs.
3. It takes at most `bytes_max` bytes of stored batches, shared out likewise; but every log that
   has messages may give one stretch of its sparse index, else a large one would never be read.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

NO_LIMIT: Final = 1 << 53
"""More than any log will hold; and every reader of JSON keeps this number exactly."""


class Limits(NamedTuple):
    """What a micro-batch may be.

    Attributes:
        messages_max: the most messages.
        messages_min: with fewer messages a batch waits.
        delay_seconds: how long it waits, counted from the batch before.
        bytes_max: the most bytes, as they are stored; 0: any number.
    """

    messages_max: int = NO_LIMIT
    messages_min: int = 0
    delay_seconds: float = 0.0
    bytes_max: int = 0


class Backlog(NamedTuple):
    """What may be read of one log.

    Attributes:
        messages: how many messages are there.
        allowed: how many of them the limit in bytes lets through.
    """

    messages: int
    allowed: int


def admit(backlogs: Mapping[str, Backlog], limits: Limits, waited_seconds: float) -> dict[str, int]:
    """How many messages of each log a batch takes; nothing while it is held back.

    Args:
        backlogs: by log.
        limits: the batch's.
        waited_seconds: since the last batch; infinite before the first.
    """
    messages = sum(backlog.messages for backlog in backlogs.values())
    allowed = {key: backlog.allowed for key, backlog in backlogs.items()}
    is_full = sum(allowed.values()) < messages
    if messages < limits.messages_min and waited_seconds < limits.delay_seconds and not is_full:
        return {}
    return share(limits.messages_max, allowed)


def share(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """How many messages each log may give when `limit` are allowed in all.

    In proportion to the backlogs, but one at least for each log that has any (as long as the limit
    allows), lest a busy nsqd starve a quiet one.
    """
    backlogs = {key: count for key, count in backlogs.items() if count > 0}
    if sum(backlogs.values()) <= limit:
        return backlogs
    if limit <= len(backlogs):
        longest = sorted(backlogs, key=lambda key: (-backlogs[key], key))[:limit]
        return dict.fromkeys(longest, 1)
    spare = limit - len(backlogs)
    rest = {key: count - 1 for key, count in backlogs.items()}
    total = sum(rest.values())
    shares = {key: 1 + spare * count // total for key, count in rest.items()}
    remainders = sorted(rest, key=lambda key: (-(spare * rest[key] % total), key))
    for key in remainders[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


def share_bytes(limit: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """How many bytes each log may give when `limit` are allowed in all.

    In proportion to what they have, rounded down: the sum never exceeds the limit. A log whose
    share is less than its first stretch gives that stretch all the same (see 3).
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    return {key: limit * size // total for key, size in sizes.items()}
