"""Positions in logs: offsets in Spark's checkpoint and in options, and the split of a batch.

The offset of a query is ``{"<address>/<log>": {"index": 17, "ordinal": 12}}``: all messages of that
log before this index have been read. `<log>` is the log's unique id; only the id determines what
the index means. `<address>` is where the log was first found: the log is looked for there first,
and it names the nsqd for readers of the checkpoint. A source of several topics has keys
``"<address>/<topic>:<log>"``. The entry ``"cut"`` says how the batch that ends at this offset is
split into partitions (`PartitionRule`).

1. A key never leaves the map, and its index never decreases.
2. A log joins the map in a step of its own, with the index from which it will be read; the end of
   the first batch also holds its beginning. So the checkpoint holds both ends of every range that
   is ever read, and a range that is read again after a failure is the same range.
3. Counts are differences of ordinals (messages since the log's beginning), never of indexes: gaps
   between indexes are normal. That is why the checkpoint holds the ordinal too: messages are lost
   exactly when a log begins at a higher ordinal than the offset has.
4. How a batch is split depends only on its two offsets: never on the machine's cores (which Spark
   does not tell a Python source), nor on which nsqds answer at the moment. The numbers that decide
   it are stored in the offset at which the batch ends, so a batch that was planned before a restart
   stays the same even if options or the version have changed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sparq.protocol.names import is_ephemeral

CUT: Final = "cut"
"""The cut's key in an offset; it cannot clash with keys of logs, which contain a slash."""

MESSAGES_PER_PARTITION: Final = 50_000
"""With fewer messages per partition, additional tasks cost more time than they save."""

PARTITIONS_MAX: Final = 64
"""Maximum partitions by default: each costs a request to nsqd and some 15 ms for its task."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BEGIN: Final = "begin"
GONE: Final = "gone"
SEEN: Final = "seen"
COMMITTED: Final = "committed"


class Key(NamedTuple):
    """The parts of an offset's key; the topic is empty in an offset of one topic."""

    address: str
    log: str
    topic: str = ""

    def __str__(self) -> str:
        topic = f"{self.topic}:" if self.topic else ""
        return f"{self.address}/{topic}{self.log}"


def parse_key(text: str) -> Key:
    """Parse a key. Raises ValueError: it is not one, such as a bare address."""
    address, slash, rest = text.rpartition("/")
    topic, _, log = rest.rpartition(":")
    if not slash or not log:
        raise ValueError(text)
    return Key(address, log, topic)


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics of one source: one, several by name, or those whose names match a pattern.

    A topic given by name is created where it is missing, as an NSQ consumer does. A topic found by
    a pattern is not: looking for a deleted topic must not create it again.

    Attributes:
        names: the topics given by name; empty with a pattern.
        pattern: a regular expression that must match a whole name; empty with names.
        several: whether keys contain topic names, also while there is only one topic.
    """

    names: tuple[str, ...]
    pattern: str = ""
    several: bool = False

    def has(self, name: str) -> bool:
        """Whether the source reads a topic of this name; a pattern skips ephemeral topics."""
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
        return f"topic{'s' * (len(self.names) > 1)} {', '.join(self.names)}"


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A position in one log.

    Attributes:
        index: all messages before this index have been read.
        ordinal: number of messages in the log before `index`.
        gone: the log's loss was reported, and the query continued without it.
        seen: number of messages in the log when the batch that ends here was planned: if the log
            is lost, at least `seen - ordinal` unread messages are lost with it.
    """

    index: int
    ordinal: int
    gone: bool = False
    seen: int = field(default=0, compare=False)

    def as_json(self) -> dict[str, object]:
        """The position in its JSON form for Spark's checkpoint."""
        seen = {SEEN: self.seen} if self.seen > self.ordinal else {}
        gone = {GONE: True} if self.gone else {}
        return {"index": self.index, "ordinal": self.ordinal, **seen, **gone}


class PartitionRule(NamedTuple):
    """How a batch is split: into about `parts` partitions of at most `records_max` messages."""

    parts: int
    records_max: int

    @classmethod
    def of(cls, messages: int, parts: int, records_max: int) -> "PartitionRule":
        """The cut of a batch of so many messages, by minPartitions and maxRecordsPerPartition."""
        by_count = min(max(messages // MESSAGES_PER_PARTITION, 1), PARTITIONS_MAX)
        return cls(parts or by_count, records_max)

    def counts(self, messages: Mapping[Key, int]) -> dict[Key, list[int]]:
        """Messages of each partition of each log's range, for tasks of about equal size."""
        total = sum(messages.values())
        cut: dict[Key, list[int]] = {}
        for key, count in messages.items():
            wanted = round(count * self.parts / total) if total else 0
            number = max(1, min(count, max(wanted, -(-count // self.records_max))))
            # Differences of rounded ends: sizes differ by at most one, and their sum is exact.
            cut[key] = [count * (at + 1) // number - count * at // number for at in range(number)]
        return cut


class Offset(NamedTuple):
    """An offset as stored in a checkpoint.

    Attributes:
        positions: how far each log has been read.
        cut: how the batch that ends here is split; None if no batch ends here.
        begins: where the query's first batch begins, which no earlier offset tells: Spark asks for
            `initialOffset` again if that batch runs again, and ``latest`` has moved on by then.
    """

    positions: dict[Key, LogPosition]
    cut: PartitionRule | None = None
    begins: Mapping[Key, LogPosition] = MappingProxyType({})

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Offset":
        """Parse an offset that Spark passes in. Raises ValueError: it is none of this source."""
        # An empty offset is valid: a pattern may match no topic yet.
        try:
            plan = dict(given.get(CUT, {}))
            begins = _parse_positions(plan.pop(BEGIN, {}))
            positions = _parse_positions({key: given[key] for key in given if key != CUT})
            cut = PartitionRule(**plan) if plan else None
            if cut and min(cut) < 1:
                raise ValueError(plan)
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ValueError(f"not an offset of the source nsq: {json.dumps(given)}") from None
        return cls(positions, cut, begins)

    def as_json(self) -> dict[str, object]:
        """The offset in its JSON form for Spark's checkpoint."""
        found: dict[str, object] = _as_json(self.positions)
        if self.cut is None:
            return found
        begins = {BEGIN: _as_json(self.begins)} if self.begins else {}
        return found | {CUT: self.cut._asdict() | begins}


def _parse_positions(given: Mapping[str, Any]) -> dict[Key, LogPosition]:
    return {parse_key(key): parse_position(value) for key, value in given.items()}


def _as_json(positions: Mapping[Key, LogPosition]) -> dict[str, Any]:
    return {str(key): position.as_json() for key, position in positions.items()}


def parse_position(value: Any) -> LogPosition:
    """Parse an index with its ordinal. Raises TypeError, ValueError, KeyError: it is none."""
    numbers = int(value["index"]), int(value["ordinal"])
    return LogPosition(*numbers, gone=value.get(GONE) is True, seen=int(value.get(SEEN, 0)))


Named = LogPosition | int | str
"""A position in a log, its index alone, or a word."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where reading begins or ends, as an option gives it, before the logs are known.

    Attributes:
        elsewhere: the word for every log that is not named.
        named: a position, an index or a word for an nsqd's address, a topic, a topic at an address
            (see `names_of`), or an offset's key.
    """

    elsewhere: str
    named: Mapping[str, Named] = field(default_factory=dict)

    def of(self, key: Key) -> Named:
        """The position for one log; the key must include its topic."""
        for name in names_of(key):
            if name in self.named:
                return self.named[name]
        return self.elsewhere

    def unknown(self, keys: Iterable[Key]) -> set[str]:
        """The names in the option that match none of these logs."""
        return set(self.named).difference(*map(names_of, keys))

    def of_no_topic(self) -> list[str]:
        """Names with an index that do not name a topic: ambiguous if the source has several."""
        indexes = [name for name, value in self.named.items() if not isinstance(value, str)]
        return [name for name in indexes if not _OF_ONE_LOG.search(name)]


# A topic at an address (`_named` makes this form), or an offset's key, which ends with a log's id.
_OF_ONE_LOG: Final = re.compile(r" at |/[^/]*[0-9a-f]{32}$")


def names_of(key: Key) -> tuple[str, ...]:
    """The names that an option may use for a log, most specific first; the key has its topic."""
    address, log, topic = key
    return str(key), str(Key(address, log)), f"{topic} at {address}", address, topic


def parse_positions(text: str, words: tuple[str, ...], elsewhere: str) -> Positions:
    """Parse the option `startingOffsets` or `endingOffsets`; logs not named get `elsewhere`.

    Raises:
        ValueError: the text is neither a word nor such JSON; the error says what is expected.
    """
    word = text.strip().lower()
    if word in words:
        return Positions(word)
    try:
        return Positions(elsewhere, dict(_named(json.loads(text).items(), words)))
    except (ValueError, KeyError, AttributeError):
        raise ValueError(
            f'expected {", ".join(words)} or JSON like {{"127.0.0.1:4150": 12345}}, not {text!r}'
        ) from None


def _named(given: Iterable[tuple[str, Any]], words: tuple[str, ...]) -> Iterator[tuple[str, Named]]:
    """Each name with its position; a topic's entries become ``<topic> at <address>``."""
    for name, value in given:
        is_topic = not {":", "/"} & set(name)
        if not isinstance(value, Mapping) or not is_topic:
            position = _position(value, words)
            if is_topic and not isinstance(position, str):
                raise ValueError(value)  # an index is a place at one nsqd
            yield name, position
        elif name != CUT or "parts" not in value:  # skip the cut of an offset copied from progress
            for address, position in value.items():
                yield f"{name} at {address}", _position(position, words)


def _position(value: object, words: tuple[str, ...]) -> Named:
    if isinstance(value, Mapping):
        return parse_position(value)  # copied from a query's progress or checkpoint
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    if value in words:
        return str(value)
    if (index := int(value)) < 0:
        raise ValueError(value)
    return index
