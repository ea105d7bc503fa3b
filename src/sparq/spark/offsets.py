"""Places in logs: what Spark keeps in its checkpoint, and the arithmetic on it.

The offset of a query is ``{"<address>/<log>": {"index": 17, "ordinal": 12}}``: everything before
this place of that log has been read. `<log>` is the log's id, which no other log ever has; it alone
says what the index means. `<address>` is where the log was first found: the log is looked for there
first, and readers of the checkpoint see it as the nsqd's name. A source of several topics has keys
``"<address>/<topic>:<log>"``. The entry ``"cut"`` says how the batch that ends at this offset is
cut into partitions (`Cut`).

1. A key never leaves the map, and its index never falls.
2. A log joins the map in a step of its own, with the index at which it will be read first: so both
   ends of every range that is ever read stand in the checkpoint, and a range that is read again
   after a failure is the same range.
3. Counts are differences of ordinals (messages since the log's beginning), never of indexes: gaps
   between indexes are normal. So the ordinal, too, stands in the checkpoint: messages are lost
   exactly when a log begins at a higher ordinal than the offset has.
4. Checkpoints of earlier versions have an index alone, ``{"<address>/<log>": 17}``. They are read,
   and get their ordinals as soon as the nsqd is asked.
5. How a batch is cut depends on its two offsets and on options only: never on the machine's cores,
   nor on which nsqds answer right now. A batch that is run again has the same partitions. The
   numbers that decide it stand in the offset at which the batch ends, so that options or a version
   that changed before a restart do not change a batch that was planned before.
6. Spark does not tell a source written in Python how many cores its executors have. The option
   `minPartitions` says it; without the option the number of messages decides alone.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CUT: Final = "cut"
"""The cut's name in an offset; keys of logs have a slash."""

MESSAGES_PER_PARTITION: Final = 50_000
"""With fewer messages for each, more tasks cost more time than they save."""

PARTITIONS_MAX: Final = 64
"""The most partitions without options: each costs a question to nsqd and some 15 ms of a task."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
GONE: Final = "gone"
COMMITTED: Final = "committed"
_WORDS: Final = {-2: EARLIEST, -1: LATEST}
"""Kafka's numbers for two places, so that its users find what they know."""


class Key(NamedTuple):
    """The parts of an offset's key; the topic is empty in an offset of one topic."""

    address: str
    log: str
    topic: str = ""

    def __str__(self) -> str:
        topic = f"{self.topic}:" if self.topic else ""
        return f"{self.address}/{topic}{self.log}"


def parse_key(text: str) -> Key:
    """The parts of a key; a bare address has an empty log."""
    address, slash, rest = text.rpartition("/")
    topic, _, log = rest.rpartition(":")
    return Key(address, log, topic) if slash else Key(text, "")


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A place in one log.

    Attributes:
        index: everything before this index has been read.
        ordinal: messages in the log before `index`; None in an offset of an earlier version.
        gone: the log's loss was reported, and the query went on without it.
    """

    index: int
    ordinal: int | None
    gone: bool = False

    def as_json(self) -> object:
        """The position in the form that Spark keeps."""
        if self.ordinal is None and not self.gone:
            return self.index
        gone = {GONE: True} if self.gone else {}
        return {"index": self.index, "ordinal": self.ordinal, **gone}


class Cut(NamedTuple):
    """What decides into which partitions a batch is cut.

    Attributes:
        parts: how many partitions there should be in all, about; each log's range is one at least.
        records_max: how many messages a partition has at most.
    """

    parts: int
    records_max: int

    @classmethod
    def parse(cls, given: object) -> "Cut":
        """Reads the cut of an offset. Raises ValueError, KeyError: it is not one."""
        if not isinstance(given, Mapping):
            raise ValueError(given)
        cut = cls(int(str(given["parts"])), int(str(given["records_max"])))
        if min(cut) < 1:
            raise ValueError(given)
        return cut

    @classmethod
    def of(cls, messages: int, parts: int, records_max: int) -> "Cut":
        """The cut of a batch of so many messages.

        Args:
            messages: how many the batch has.
            parts: the option minPartitions; 0: by the number of messages.
            records_max: the option maxRecordsPerPartition.
        """
        by_count = min(max(messages // MESSAGES_PER_PARTITION, 1), PARTITIONS_MAX)
        return cls(parts or by_count, records_max)

    def counts(self, messages: Mapping[str, int]) -> dict[str, list[int]]:
        """Into how many messages each log's range is cut, for tasks of about equal size.

        Args:
            messages: the messages in each range, by key.
        """
        total = sum(messages.values())
        cut: dict[str, list[int]] = {}
        for key, count in messages.items():
            wanted = round(count * self.parts / total) if total else 0
            number = max(1, min(count, max(wanted, -(-count // self.records_max))))
            cut[key] = [count * (at + 1) // number - count * at // number for at in range(number)]
        return cut


class Offset(NamedTuple):
    """An offset as it stands in a checkpoint.

    Attributes:
        positions: by key, how far each log has been read.
        cut: how the batch that ends here is cut; None where no batch ends.
    """

    positions: dict[str, LogPosition]
    cut: Cut | None = None

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> "Offset":
        """Reads an offset that Spark hands over.

        Raises:
            ValueError: it is not one of this source's.
        """
        try:
            positions = {
                key: parse_position(value) for key, value in given.items() if parse_key(key).log
            }
            cut = Cut.parse(given[CUT]) if CUT in given else None
        except (TypeError, KeyError, ValueError):
            positions, cut = {}, None
        if len(positions) + (cut is not None) != len(given):
            raise ValueError(f"not an offset of the source nsq: {json.dumps(given)}")
        return cls(positions, cut)

    def as_json(self) -> dict[str, object]:
        """The offset in the form that Spark keeps."""
        found = {key: position.as_json() for key, position in self.positions.items()}
        return found if self.cut is None else found | {CUT: self.cut._asdict()}


def parse_position(value: object) -> LogPosition:
    """An index, or an index with its ordinal; numbers may be texts.

    Raises:
        ValueError, KeyError: it is neither.
    """
    if isinstance(value, Mapping):
        ordinal = None if value["ordinal"] is None else int(str(value["ordinal"]))
        return LogPosition(int(str(value["index"])), ordinal, gone=value.get(GONE) is True)
    return LogPosition(int(str(value)), None)


@dataclass(frozen=True, slots=True)
class Positions:
    """Where reading begins or ends, before the logs are known.

    Attributes:
        elsewhere: a word for every log that is not named.
        named: a place or a word for an nsqd's address, a topic, a topic at an address (see
            `names_of`), or an offset's key.
    """

    elsewhere: str
    named: Mapping[str, LogPosition | str] = field(default_factory=dict)

    def of(self, key: Key) -> LogPosition | str:
        """The position for one log, whose topic the key names."""
        for name in names_of(key):
            if name in self.named:
                return self.named[name]
        return self.elsewhere

    def unknown(self, keys: Iterable[Key]) -> set[str]:
        """Those of the names that are no log's among these."""
        return set(self.named).difference(*map(names_of, keys))

    def of_no_topic(self) -> set[str]:
        """Addresses that an index is given for: of one topic it says which message, else not."""
        return {
            name
            for name, position in self.named.items()
            if isinstance(position, LogPosition) and not _OF_ONE_LOG.search(name)
        }


_OF_ONE_LOG: Final = re.compile(r" at |/[^/]*[0-9a-f]{32}$")


def names_of(key: Key) -> tuple[str, ...]:
    """What a log may be called in an option, the most exact first; its topic is known."""
    address, log, topic = key
    return str(key), str(Key(address, log)), f"{topic} at {address}", address, topic


def parse_positions(text: str, words: tuple[str, ...], elsewhere: str) -> Positions:
    """A word, or JSON like ``{"127.0.0.1:4150": 12345}``; what it does not name is `elsewhere`.

    By topics it is like ``{"clicks": {"127.0.0.1:4150": 12345}, "views": "latest"}``.

    Raises:
        ValueError: it is neither; the text says what is expected.
    """
    word = text.strip().lower()
    if word in words:
        return Positions(word)
    try:
        named = dict(_named(json.loads(text).items(), words))
    except (ValueError, KeyError, AttributeError):
        expected = ", ".join(words)
        raise ValueError(
            f'expected {expected} or JSON like {{"127.0.0.1:4150": 12345}}, not {text!r}'
        ) from None
    return Positions(elsewhere, named)


def _named(
    given: Iterable[tuple[str, Any]], words: tuple[str, ...]
) -> Iterator[tuple[str, LogPosition | str]]:
    """Each name with its position; those of a topic one by one."""
    for name, value in given:
        is_topic = not {":", "/"} & set(name)
        if not isinstance(value, Mapping) or not is_topic:
            position = _position(value, words)
            if is_topic and isinstance(position, LogPosition):
                raise ValueError(value)  # an index is a place at one nsqd
            yield name, position
        elif name != CUT or "parts" not in value:  # else copied from a progress, with its cut
            for address, position in value.items():
                yield f"{name} at {address}", _position(position, words)


def _position(value: object, words: tuple[str, ...]) -> LogPosition | str:
    if isinstance(value, Mapping):
        return parse_position(value)  # copied from a query's progress or checkpoint
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    if value in words:
        return str(value)
    index = int(value)
    if index < 0:
        word = _WORDS.get(index, "")
        if word not in words:
            raise ValueError(value)
        return word
    return LogPosition(index, None)
