"""The options of the source, checked; `data_source.NsqDataSource` says what each means.

1. What is wrong is an error that names the option, before anything is connected.
2. What only a stream or only a batch read has is refused in the other where it would change what is
   read (where to end), and passed over where it would not (how much one batch takes).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparq.protocol.names import is_ephemeral
from sparq.spark.offsets import COMMITTED, EARLIEST, LATEST, Positions, parse_positions
from sparq.spark.options import Cluster, Given, OptionError
from sparq.spark.topics import Topics

RECORDS_PER_PARTITION: Final = 1_000_000
"""What a task that fails repeats at most."""

NAME_CHARACTERS_MAX: Final = 200
"""The longest name of a query."""

TRIGGER_DELAY_MS: Final = 15 * 60_000
"""Spark's Kafka source has the same."""

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


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a stream or batch read."""

    cluster: Cluster
    topics: Topics
    channel: str
    query_name: str
    starting: Positions
    starting_timestamp_ms: int
    ending: Positions
    ending_timestamp_ms: int
    limits: Limits
    partitions_min: int
    records_per_partition_max: int
    fail_on_data_loss: bool
    pushes_predicates: bool

    @classmethod
    def of(cls, options: Mapping[str, str], *, stream: bool) -> "SourceOptions":
        """Reads the options. Raises OptionError: one is missing or wrong."""
        found = cls.checked(options, stream=stream)
        if not stream:
            if COMMITTED in (found.starting.elsewhere, *found.starting.named.values()):
                raise OptionError(
                    "option startingOffsets: committed is for streams, a batch read has no channel"
                )
            return found
        if not found.channel:
            raise OptionError("the option channel is needed: it holds what is not yet read")
        for name, is_given in (
            ("endingOffsets", found.ending != Positions(LATEST)),
            ("endingTimestamp", found.ending_timestamp_ms >= 0),
        ):
            if is_given:
                raise OptionError(f"option {name}: a stream has no end, only a batch read has")
        if found.pushes_predicates:
            raise OptionError(
                "option pushDownPredicate: Spark pushes predicates down in batch reads only; "
                "leave it out of a stream"
            )
        return found

    @classmethod
    def checked(cls, options: Mapping[str, str], *, stream: bool = False) -> "SourceOptions":
        """Reads the options as far as they mean the same in a stream and in a batch read.

        Raises:
            OptionError: one is missing or wrong.
        """
        given = Given(options)
        topics, channel = _topics(given), given.name("channel")
        words = (EARLIEST, LATEST, COMMITTED)
        begins = _Places(words, EARLIEST, COMMITTED if stream else EARLIEST)
        found = cls(
            cluster=Cluster.of(given),
            topics=topics,
            channel=channel,
            query_name=given.read("queryName", "", _shown),
            starting=_positions(given, "startingOffsets", topics, begins),
            starting_timestamp_ms=given.whole("startingTimestamp", -1, 0),
            ending=_positions(given, "endingOffsets", topics, _Places((LATEST,), LATEST, LATEST)),
            ending_timestamp_ms=given.whole("endingTimestamp", -1, 0),
            limits=_limits(given),
            partitions_min=given.whole("minPartitions", 0, 1),
            records_per_partition_max=given.whole(
                "maxRecordsPerPartition", RECORDS_PER_PARTITION, 1
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            pushes_predicates=given.flag("pushDownPredicate", False),
        )
        if topics.pattern and not found.cluster.lookupd_http_addresses:
            raise OptionError(
                "option topicsPattern: the option lookupd_http_addresses is needed with it, since "
                "nsqlookupd lists the topics"
            )
        start, end = found.starting_timestamp_ms, found.ending_timestamp_ms
        if 0 <= end < start:
            raise OptionError(f"option endingTimestamp: {end} is before startingTimestamp, {start}")
        return found


def _topics(given: Given) -> Topics:
    """The topics, by one of three options."""
    one, names = given.name("topic"), given.names("topics", "topic")
    pattern = given.read("topicsPattern", "", _pattern)
    options = {"topic": one, "topics": names, "topicsPattern": pattern}
    used = [option for option, value in options.items() if value]
    if not used:
        raise OptionError("the option topic is needed, or topics, or topicsPattern")
    if len(used) > 1:
        raise OptionError(f"the options {' and '.join(used)} exclude each other: give one")
    for name in (one, *names):
        if is_ephemeral(name):
            raise OptionError(f"option {used[0]}: {name} is ephemeral and has no log to read")
    return Topics.of_one(one) if one else Topics(names, pattern, several=True)


def _shown(text: str) -> str:
    """A text for people. Raises ValueError: it is too long, or not one line."""
    if len(text) > NAME_CHARACTERS_MAX or not text.isprintable():
        raise ValueError(f"expected at most {NAME_CHARACTERS_MAX} printable characters")
    return text


def _pattern(text: str) -> str:
    """A regular expression. Raises ValueError: it is none."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a regular expression of Python: {error}") from None
    return text


class _Places(NamedTuple):
    """What an option may say of places.

    Attributes:
        words: the words that it may be.
        elsewhere: the word for logs that its JSON does not name.
        default: the word when it is not given.
    """

    words: tuple[str, ...]
    elsewhere: str
    default: str


def _positions(given: Given, option: str, topics: Topics, places: _Places) -> Positions:
    """Where to begin or to end."""
    found = given.read(
        option,
        Positions(places.default),
        lambda text: parse_positions(text, places.words, places.elsewhere),
    )
    if topics.several and (vague := found.of_no_topic()):
        name = min(vague)
        raise OptionError(
            f"option {option}: an index is a place in one topic's log; say for which topic, as in "
            f'{{"clicks": {{"{name}": 12345}}}}'
        )
    return found


def _limits(given: Given) -> Limits:
    """How much one micro-batch takes."""
    least = given.whole("minOffsetsPerTrigger", 0, 1)
    most = given.whole("maxOffsetsPerTrigger", NO_LIMIT, 1)
    delay_ms = given.duration_ms("maxTriggerDelay", -1)
    if least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}"
        )
    if delay_ms >= 0 and not least:
        raise OptionError(
            "option maxTriggerDelay: it limits the wait for minOffsetsPerTrigger, which is missing"
        )
    wait_ms = (TRIGGER_DELAY_MS if delay_ms < 0 else delay_ms) if least else 0
    return Limits(most, least, wait_ms / 1000, given.size("maxBytesPerTrigger"))
