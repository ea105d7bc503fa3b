"""Which topics a source reads: one, several by name, or those whose names match a pattern.

1. Offsets of a source of one topic (option `topic`) do not name it: checkpoints of earlier versions
   have no topics, and stay as they are. With `topics` and `topicsPattern` each log's key names its
   topic, also while there is only one.
2. A topic that is named is created where it is missing, as a consumer of NSQ does. One that was
   found by a pattern is not: a topic that was deleted must not come back by being looked for.
3. Ephemeral topics have no log. To name one is a mistake; a pattern passes them over.
"""

import re
from dataclasses import dataclass

from sparq.protocol.names import is_ephemeral
from sparq.spark.offsets import Key


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one source.

    Attributes:
        names: those that are named; none with a pattern.
        pattern: a regular expression that the whole of a name matches; empty with names.
        several: whether offsets name topics.
    """

    names: tuple[str, ...]
    pattern: str = ""
    several: bool = False

    @classmethod
    def of_one(cls, name: str) -> "Topics":
        """The topic of the option `topic`."""
        return cls((name,))

    def has(self, name: str) -> bool:
        """Whether a topic is one of these."""
        if not self.pattern:
            return name in self.names
        return not is_ephemeral(name) and re.fullmatch(self.pattern, name) is not None

    def reads(self, key: Key) -> bool:
        """Whether a log of an offset is still to be read: its topic may have left the options."""
        return not key.topic or self.has(key.topic)

    def key(self, address: str, topic: str, log: str) -> Key:
        """The key of a log in offsets."""
        return Key(address, log, topic if self.several else "")

    def of_key(self, key: Key) -> tuple[str, ...]:
        """The topics that a log may be of."""
        return (key.topic,) if key.topic else self.names

    def __str__(self) -> str:
        """What they are, after "no" or "a": ``topic clicks``."""
        if self.pattern:
            return f"topic that matches {self.pattern}"
        return f"topic {self.names[0]}" if len(self.names) == 1 else f"topics {self.listed}"

    @property
    def listed(self) -> str:
        """The names, or the pattern."""
        return self.pattern or ", ".join(self.names)
