"""Places in logs: what Spark keeps in its checkpoint, and the arithmetic on it.

The offset of a query is ``{"<address>/<log>": {"index": 17, "ordinal": 12}}``: everything before
this place of that log has been read. `<log>` is the log's id, which no other log ever has; it alone
says what the index means. `<address>` is where the log was first found: the log is looked for there
first, and readers of the checkpoint see it as the nsqd's name. The entry ``"cut"`` says how the
batch that ends at this offset is cut into partitions (`cut.Cut`).

1. A key never leaves the map, and its index never falls.
2. A log joins the map in a step of its own, with the index at which it will be read first: so both
   ends of every range that is ever read stand in the checkpoint, and a range that is read again
   after a failure is the same range.
3. Counts are differences of ordinals (messages since the log's beginning), never of indexes: gaps
   between indexes are normal. So the ordinal, too, stands in the checkpoint: messages are lost
   exactly when a log begins at a higher ordinal than the offset has.
4. Checkpoints of earlier versions have an index alone, ``{"<address>/<log>": 17}``. They are read,
   and get their ordinals as soon as the nsqd is asked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparq.spark.cut import CUT, Cut

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
GONE: Final = "gone"
COMMITTED: Final = "committed"
_WORDS: Final = {-2: EARLIEST, -1: LATEST}
"""Kafka's numbers for two places, so that its users find what they know."""


class Key(NamedTuple):
    """The two parts of an offset's key."""

    address: str
    log: str

    def __str__(self) -> str:
        return f"{self.address}/{self.log}"


def parse_key(text: str) -> Key:
    """The parts of a key; a bare address has an empty log."""
    address, slash, log = text.rpartition("/")
    return Key(address, log) if slash else Key(text, "")


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
        named: for an nsqd's address, or an offset's key: a place or a word.
    """

    elsewhere: str
    named: Mapping[str, LogPosition | str] = field(default_factory=dict)

    def of(self, address: str, log: str) -> LogPosition | str:
        """The position for one log."""
        for name in (str(Key(address, log)), address):
            if name in self.named:
                return self.named[name]
        return self.elsewhere

    def unknown(self, keys: Mapping[str, object] | set[str]) -> set[str]:
        """Those of the names that are no log's among these offset keys."""
        known = set(keys) | {parse_key(key).address for key in keys}
        return set(self.named) - known


def parse_positions(text: str, words: tuple[str, ...], elsewhere: str) -> Positions:
    """A word, or JSON like ``{"127.0.0.1:4150": 12345}``; what it does not name is `elsewhere`.

    Raises:
        ValueError: it is neither; the text says what is expected.
    """
    word = text.strip().lower()
    if word in words:
        return Positions(word)
    try:
        given = dict(json.loads(text).items())
        named = {name: _position(given[name], words) for name in given if name != CUT}
    except (ValueError, KeyError, AttributeError):
        expected = ", ".join(words)
        raise ValueError(
            f'expected {expected} or JSON like {{"127.0.0.1:4150": 12345}}, not {text!r}'
        ) from None
    return Positions(elsewhere, named)


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


def share(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """How many messages each log may give when there may be `limit` in all.

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
