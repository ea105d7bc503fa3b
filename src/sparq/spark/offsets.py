"""Places in logs: what Spark keeps in its checkpoint, and the arithmetic on it.

The offset of a query is ``{"<address>/<log>": index}``: everything before `index` of that log has
been read. `<log>` is the log's id, which no other log ever has; it alone says what the index means.
`<address>` is where the log was first found: there it is looked for first, for readers of the
checkpoint it is the nsqd's name.

1. A key never leaves the map, and its index never falls.
2. A log joins the map in a step of its own, with the index at which it will be read first: so both
   ends of every range that is ever read stand in the checkpoint, and a range that is read again
   after a failure is the same range.
3. Counts are differences of ordinals (messages since the log's beginning), never of indexes: gaps
   between indexes are normal.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Offset = dict[str, int]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
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


def checked(offset: Mapping[str, object]) -> Offset:
    """An offset as it comes from a checkpoint.

    Raises:
        ValueError: it is not one of this source's.
    """
    try:
        known = {key: int(str(index)) for key, index in offset.items() if parse_key(key).log}
    except ValueError:
        known = {}
    if len(known) != len(offset):
        raise ValueError(f"not an offset of the source nsq: {json.dumps(offset)}")
    return known


@dataclass(frozen=True, slots=True)
class Positions:
    """Where reading begins or ends, before the logs are known.

    Attributes:
        elsewhere: a word for every log that is not named.
        named: for an nsqd's address, or an offset's key: an index or a word.
    """

    elsewhere: str
    named: Mapping[str, int | str] = field(default_factory=dict)

    def of(self, address: str, log: str) -> int | str:
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
        named = {name: _position(value, words) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        expected = ", ".join(words)
        raise ValueError(
            f'expected {expected} or JSON like {{"127.0.0.1:4150": 12345}}, not {text!r}'
        ) from None
    return Positions(elsewhere, named)


def _position(value: object, words: tuple[str, ...]) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    if value in words:
        return value
    index = int(value)
    if index < 0:
        word = _WORDS.get(index, "")
        if word not in words:
            raise ValueError(value)
        return word
    return index


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


def part_counts(counts: Mapping[str, int], parts: int, messages_max: int) -> dict[str, list[int]]:
    """Into how many messages each log's range is cut, for tasks of about equal size.

    Args:
        counts: the messages in each range.
        parts: how many parts there should be in all, about; each range is one at least.
        messages_max: how many messages a part has at most.
    """
    total = sum(counts.values())
    cut: dict[str, list[int]] = {}
    for key, count in counts.items():
        wanted = round(count * parts / total) if total else 0
        number = max(1, min(count, max(wanted, -(-count // messages_max))))
        cut[key] = [count * (at + 1) // number - count * at // number for at in range(number)]
    return cut
