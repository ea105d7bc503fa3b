"""The topics that a source reads: one, several by name, or those whose names match a pattern.

1. Offsets of a source of one topic (option `topic`) do not contain its name. With `topics` and
   `topicsPattern` each log's key contains its topic, even while there is only one topic.
2. A topic given by name is created where it is missing, as an NSQ consumer does. A topic found by a
   pattern is not: looking for a deleted topic must not create it again.
3. Ephemeral topics have no log. Naming one is an error; a pattern skips them.
"""

import re
from dataclasses import dataclass

from sparq.protocol.names import is_ephemeral
from sparq.spark.offsets import Key


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics of one source.

    Attributes:
        names: the topics given by name; empty with a pattern.
        pattern: a regular expression that must match a whole name; empty with names.
        several: whether offsets contain topic names.
    """

    names: tuple[str, ...]
    pattern: str = ""
    several: bool = False

    @classmethod
    def of_one(cls, name: str) -> "TopicSelection":
        """The topic given by the option `topic`."""
        return cls((name,))

    def has(self, name: str) -> bool:
        """Whether the source reads a topic of this name."""
        if not self.pattern:
            return name in self.names
        return not is_ephemeral(name) and re.fullmatch(self.pattern, name) is not None

    def reads(self, key: Key) -> bool:
        """Whether an offset's log is still read; False if the options no longer name its topic."""
        return not key.topic or self.has(key.topic)

    def key(self, address: str, topic: str, log: str) -> Key:
        """The key of a log in offsets."""
        return Key(address, log, topic if self.several else "")

    def of_key(self, key: Key) -> tuple[str, ...]:
        """The topics that a log may belong to."""
        return (key.topic,) if key.topic else self.names

    def __str__(self) -> str:
        """Describe the topics without an article: ``topic clicks``."""
        if self.pattern:
            return f"topic that matches {self.pattern}"
        return f"topic {self.names[0]}" if len(self.names) == 1 else f"topics {self.listed}"

    @property
    def listed(self) -> str:
        """The names, or the pattern."""
        return self.pattern or ", ".join(self.names)
