"""Numbers topics and channels, so that their figures can be stored as columns.

1. A name keeps its number while the figures of any node have it, and for `KEEP_SECONDS` after it
   was last seen, because charts of the last hour are stored by number.
2. After that the number may be reused for another name, so that short-lived names do not need ever
   more memory. `keys` and `topic_of` are then replaced by changed copies, because snapshots that
   are still shown refer to the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparq.protocol.names import is_valid_name

Key: TypeAlias = tuple[str, str]
"""Topic and channel; for the topic itself the channel is ""."""

Numbers: TypeAlias = NDArray[np.int32]

KEEP_SECONDS: Final = 3700.0
"""Slightly longer than the history."""

NAMES_MAX: Final = 200_000
"""Maximum number of topics and channels; 1,000 topics with 10 channels each are 11,000."""

NONE: Final = -1
NOTHING: Final[dict[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Numbering:
    """A snapshot of the names; its entries below `size` never change.

    Attributes:
        keys: the name of each number, from 0 on; may be longer than `size`.
        topic_of: for each number, the number of its topic.
        size: how many numbers there are.
    """

    keys: list[Key]
    topic_of: Numbers
    size: int


class NameNumbers:
    """The numbers of all names.

    Attributes:
        keys: the name of each number.
        topic_of: for each number, the number of its topic; shape (at least len(self),).
        left_out: names that got no number since the last `forget`, because the maximum is reached.
    """

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self.keys: list[Key] = []
        self.topic_of: Numbers = np.zeros(0, np.int32)
        self.left_out = 0
        self._max = names_max
        self._numbers: dict[str, dict[str, int]] = {}
        self._seen_at = np.zeros(0)
        self._free: list[int] = []

    def __len__(self) -> int:
        """How many numbers are or were in use."""
        return len(self.keys)

    def numbering(self) -> Numbering:
        """Take a snapshot of the names."""
        return Numbering(self.keys, self.topic_of, len(self.keys))

    def number(self, topic: str, channel: str = "") -> int:
        """The number of a name; `NONE` if it is unknown."""
        return self._numbers.get(topic, NOTHING).get(channel, NONE)

    def of_topic(self, topic: str) -> Mapping[str, int]:
        """The numbers of a topic's channels by name; its own number has the key ""."""
        return self._numbers.get(topic, NOTHING)

    def number_or_new(self, topic: str, channel: str = "") -> int:
        """The number of a name; an unknown name gets a new number.

        Returns `NONE` if NSQ does not allow the name, or the maximum of names is reached. The topic
        of a channel must have a number already.
        """
        number = self.number(topic, channel)
        return self._new(topic, channel) if number == NONE else number

    def _new(self, topic: str, channel: str) -> int:
        if not is_valid_name(channel or topic):
            return NONE
        if self._free:
            number = self._free.pop()
            # Only a reused number needs a copy: a snapshot does not look at entries beyond its
            # size.
            self.keys, self.topic_of = [*self.keys], self.topic_of.copy()
        elif len(self.keys) < self._max:
            number = len(self.keys)
            self.keys.append(("", ""))
            self._grow(number + 1)
        else:
            self.left_out += 1
            return NONE
        self.keys[number] = (topic, channel)
        self._numbers.setdefault(topic, {})[channel] = number
        self.topic_of[number] = self._numbers[topic][""]
        return number

    def _grow(self, size: int) -> None:
        if size > len(self._seen_at):
            room = max(1024, size - 1)
            self._seen_at = np.append(self._seen_at, np.zeros(room))
            self.topic_of = np.append(self.topic_of, np.zeros(room, np.int32))

    def seen(self, numbers: Numbers, now: float) -> None:
        """Record that these names exist at `now`, in seconds of the monotonic clock."""
        self._seen_at[numbers] = now

    def forget(self, now: float) -> None:
        """Free the numbers of names that have not been seen for `KEEP_SECONDS`."""
        self.left_out = 0
        is_old = now - self._seen_at[: len(self.keys)] > KEEP_SECONDS
        # Free numbers keep their old time: without this they would be freed again.
        is_old &= self.topic_of[: len(self.keys)] != NONE
        if not is_old.any():
            return
        self.keys, self.topic_of = [*self.keys], self.topic_of.copy()
        for number in np.flatnonzero(is_old).tolist():
            topic, channel = self.keys[number]
            del self._numbers[topic][channel]
            if not self._numbers[topic]:
                del self._numbers[topic]
            self._free.append(number)
            self.keys[number], self.topic_of[number] = ("", ""), NONE
