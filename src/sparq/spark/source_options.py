"""The options of the source, checked; `data_source.NsqDataSource` documents them.

1. A wrong option raises an error that names it, before any connection is made.
2. An option for streams only, or for batch reads only, is refused in the other if it would change
   which messages are read (where to end). It is ignored if it would not (how much one batch takes).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparq.protocol.names import is_ephemeral
from sparq.spark.offsets import COMMITTED, EARLIEST, LATEST, Positions, parse_positions
from sparq.spark.options import ClusterOptions, OptionError, UserOptions
from sparq.spark.topics import TopicSelection

RECORDS_PER_PARTITION: Final = 1_000_000
"""Default maximum of messages per partition: what a failed task repeats at most."""

NAME_CHARACTERS_MAX: Final = 200
"""Maximum length of a query's name."""

TRIGGER_DELAY_MS: Final = 15 * 60_000
"""Default of maxTriggerDelay, the same as in Spark's Kafka source."""

NO_LIMIT: Final = 1 << 53
"""More messages than any log will hold; every JSON parser keeps this number exactly."""


class ReadLimits(NamedTuple):
    """Limits of a micro-batch.

    Attributes:
        messages_max: maximum number of messages.
        messages_min: with fewer messages a batch waits.
        delay_seconds: how long it waits at most, counted from the previous batch.
        bytes_max: maximum stored bytes; 0: no limit.
    """

    messages_max: int = NO_LIMIT
    messages_min: int = 0
    delay_seconds: float = 0.0
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a stream or batch read."""

    cluster: ClusterOptions
    topics: TopicSelection
    channel: str
    query_name: str
    starting: Positions
    starting_timestamp_ms: int
    ending: Positions
    ending_timestamp_ms: int
    limits: ReadLimits
    partitions_min: int
    records_per_partition_max: int
    fail_on_data_loss: bool
    pushes_predicates: bool

    @classmethod
    def of(cls, options: Mapping[str, str], *, stream: bool) -> "SourceOptions":
        """Parse the options. Raises OptionError: one is missing or wrong."""
        found = cls.checked(options, stream=stream)
        if not stream:
            # Here and not in `checked`, which `load()` calls without knowing whether a stream or a
            # batch is read.
            if COMMITTED in (found.starting.elsewhere, *found.starting.named.values()):
                raise OptionError(
                    "option startingOffsets: committed is for streams only: "
                    "a batch read has no channel"
                )
            return found
        if not found.channel:
            raise OptionError(
                "set the option channel: a stream's channel holds the messages not read yet"
            )
        for name, is_given in (
            ("endingOffsets", found.ending != Positions(LATEST)),
            ("endingTimestamp", found.ending_timestamp_ms >= 0),
        ):
            if is_given:
                raise OptionError(f"option {name}: a stream has no end; use a batch read instead")
        if found.pushes_predicates:
            raise OptionError(
                "option pushDownPredicate: Spark pushes predicates down in batch reads only; "
                "leave it out of a stream"
            )
        return found

    @classmethod
    def checked(cls, options: Mapping[str, str], *, stream: bool = False) -> "SourceOptions":
        """Parse the options, with only the checks that apply to streams and batch reads alike.

        Raises:
            OptionError: one is missing or wrong.
        """
        given = UserOptions(options)
        topics, channel = _topics(given), given.name("channel")
        words = (EARLIEST, LATEST, COMMITTED)
        begins = _Places(words, EARLIEST, COMMITTED if stream else EARLIEST)
        found = cls(
            cluster=ClusterOptions.of(given),
            topics=topics,
            channel=channel,
            query_name=given.read("queryName", "", _shown),
            starting=_positions(given, "startingOffsets", topics, begins),
            starting_timestamp_ms=given.integer("startingTimestamp", -1, 0),
            ending=_positions(given, "endingOffsets", topics, _Places((LATEST,), LATEST, LATEST)),
            ending_timestamp_ms=given.integer("endingTimestamp", -1, 0),
            limits=_limits(given),
            partitions_min=given.integer("minPartitions", 0, 1),
            records_per_partition_max=given.integer(
                "maxRecordsPerPartition", RECORDS_PER_PARTITION, 1
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            pushes_predicates=given.flag("pushDownPredicate", False),
        )
        if topics.pattern and not found.cluster.lookupd_http_addresses:
            raise OptionError(
                "option topicsPattern: also set lookupd_http_addresses, since nsqlookupd lists "
                "the topics"
            )
        start, end = found.starting_timestamp_ms, found.ending_timestamp_ms
        if 0 <= end < start:
            raise OptionError(f"option endingTimestamp: {end} is before startingTimestamp, {start}")
        return found


def _topics(given: UserOptions) -> TopicSelection:
    """The topics, from one of three options."""
    one, names = given.name("topic"), given.names("topics", "topic")
    pattern = given.read("topicsPattern", "", _pattern)
    options = {"topic": one, "topics": names, "topicsPattern": pattern}
    used = [option for option, value in options.items() if value]
    if not used:
        raise OptionError("set one of the options topic, topics and topicsPattern")
    if len(used) > 1:
        raise OptionError(f"the options {' and '.join(used)} exclude each other: set only one")
    for name in (one, *names):
        if is_ephemeral(name):
            raise OptionError(f"option {used[0]}: {name} is ephemeral and has no log to read")
    return TopicSelection.of_one(one) if one else TopicSelection(names, pattern, several=True)


def _shown(text: str) -> str:
    """A text to display. Raises ValueError: it is too long or not printable."""
    if len(text) > NAME_CHARACTERS_MAX or not text.isprintable():
        raise ValueError(f"expected at most {NAME_CHARACTERS_MAX} printable characters")
    return text


def _pattern(text: str) -> str:
    """Check a regular expression. Raises ValueError: it is invalid."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a valid Python regular expression: {error}") from None
    return text


class _Places(NamedTuple):
    """The words that an option for positions accepts.

    Attributes:
        words: the accepted words.
        elsewhere: the word for logs that the option's JSON does not name.
        default: the word if the option is not given.
    """

    words: tuple[str, ...]
    elsewhere: str
    default: str


def _positions(
    given: UserOptions, option: str, topics: TopicSelection, places: _Places
) -> Positions:
    """Parse an option that says where to begin or to end."""
    found = given.read(
        option,
        Positions(places.default),
        lambda text: parse_positions(text, places.words, places.elsewhere),
    )
    if topics.several and (vague := found.of_no_topic()):
        name = min(vague)
        raise OptionError(
            f"option {option}: an index is a position in one topic's log: name the topic, as in "
            f'{{"clicks": {{"{name}": 12345}}}}'
        )
    return found


def _limits(given: UserOptions) -> ReadLimits:
    """The limits of one micro-batch."""
    least = given.integer("minOffsetsPerTrigger", 0, 1)
    most = given.integer("maxOffsetsPerTrigger", NO_LIMIT, 1)
    delay_ms = given.duration_ms("maxTriggerDelay", -1)
    if least > most:
        raise OptionError(
            f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}"
        )
    if delay_ms >= 0 and not least:
        raise OptionError(
            "option maxTriggerDelay: also set minOffsetsPerTrigger, since it limits that wait"
        )
    wait_ms = (TRIGGER_DELAY_MS if delay_ms < 0 else delay_ms) if least else 0
    return ReadLimits(most, least, wait_ms / 1000, given.size("maxBytesPerTrigger"))
