"""The options of source and sink: each is declared once, in `OPTIONS`.

The names that exist, their parsers and defaults, and the documentation in the docstring of
`NsqDataSource` follow from that text.

1. Names are NSQ's where NSQ has the option (as in its configuration files), otherwise those of
   Spark's Kafka source. Case does not matter, as everywhere in Spark.
2. A wrong option raises an error that names it, before any connection is made.
3. An option that is neither ours nor one that Spark passes to every source (`path`) raises an
   error that suggests our nearest option. Options of the other direction are ignored, so that a
   source and a sink can share their options.
4. An option for streams only, or for batch reads only, is refused in the other if it would change
   which messages are read (where to end). It is ignored if it would not (how much one batch takes).
5. The secret appears in no error, log line, plan or progress.
"""

import re
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from sparq.client.arguments import RULE, parse_addresses, split_texts
from sparq.options.mistakes import nearest
from sparq.options.units import MILLISECOND, parse_size, parse_words
from sparq.protocol.address import lookupd_url
from sparq.protocol.names import is_ephemeral, is_valid_name, quote
from sparq.spark.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Positions,
    TopicSelection,
    parse_positions,
)
from sparq.wire.layer_options import PLAIN, LayerOptions

BEGIN_TIMEOUT_MS: Final = 5_000
"""How long a query without a checkpoint waits at its start, unless `nsqdTimeoutMs` is given: a
mistyped address should be reported soon, and a query that has read nothing can be started again."""

NAME_CHARACTERS_MAX: Final = 200
"""Maximum length of a query's name."""

NO_LIMIT: Final = 1 << 53
"""More messages than any log will hold; every JSON parser keeps this number exactly."""


class OptionError(ValueError):
    """An option is missing or wrong; the text names it."""


# Kinds of options: a parser raises ValueError if the text is not of its kind.


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < low:
            raise ValueError(f"expected a whole number of at least {low}, not {text!r}")
        return int(text)

    return parse


def _milliseconds(text: str) -> int:
    with suppress(ValueError):
        return parse_words(text, "ms") // MILLISECOND
    raise ValueError(f"expected a time like 500ms, 30s, 15m or 2h, not {text!r}")


def _bytes(text: str) -> int:
    with suppress(ValueError):
        return parse_size(text)
    raise ValueError(f"expected a size like 67108864, 512k, 64m or 1g, not {text!r}")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, not {text!r}")
    return text.lower() == "true"


def _name(kind: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not is_valid_name(text):
            raise ValueError(f"invalid {kind} name {quote(text)}: {RULE}")
        return text

    return parse


def _topics(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(map(_name("topic"), split_texts(text))))
    if not found:
        raise ValueError(f"expected comma-separated names, not {text!r}")
    return found


def _lookupds(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(split_texts(text)))
    for each in found:
        lookupd_url(each)
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a valid Python regular expression: {error}") from None
    return text


def _label(text: str) -> str:
    if len(text) > NAME_CHARACTERS_MAX or not text.isprintable():
        raise ValueError(f"expected at most {NAME_CHARACTERS_MAX} printable characters")
    return text


KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "bool": _truth,
    **{f"int from {low}": _whole(low) for low in (0, 1, 9)},
    "time": _milliseconds,
    "size": _bytes,
    "label": _label,
    "addresses": lambda text: tuple(parse_addresses(text)),
    "addresses or URLs": _lookupds,
    "topic": _name("topic"),
    "topics": _topics,
    "pattern": _pattern,
    "channel": _name("channel"),
    "beginning": lambda text: parse_positions(text, (EARLIEST, LATEST, COMMITTED), EARLIEST),
    "end": lambda text: parse_positions(text, (LATEST,), LATEST),
}

# The table


class Option(NamedTuple):
    """One option: its name, kind, and default as a user would write it (empty: none)."""

    name: str
    kind: str
    default: str


def _layer_options() -> str:
    """TLS, compression and AUTH: names, defaults and texts are those of `LayerOptions`."""
    kinds = {bool: "bool", int: "int from 1", str: "str"}
    parts = []
    for each in fields(LayerOptions):
        default = f", default {str(each.default).lower()}" if each.default != "" else ""
        text = each.metadata["text"]
        about = textwrap.indent(textwrap.fill(text[0].upper() + text[1:], 92), "    ")
        parts.append(f"{each.name} : {kinds[type(each.default)]}{default}\n{about}\n")
    return "".join(parts)


OPTIONS: Final = f"""\
Reading and writing:

nsqd_tcp_addresses : addresses
    Comma-separated ``host:port`` of the nsqds. Give either this or:
lookupd_http_addresses : addresses or URLs
    Comma-separated ``host:port`` (HTTP port) or URLs of nsqlookupds. A running query picks up
    new nsqds.
nsqdTimeoutMs : int from 1, default 60000
    How long an nsqd that the query needs may be unreachable before the query fails: a restart
    of nsqd, with the recovery of its logs, takes seconds. With failOnDataLoss=false an
    availableNow query continues without it instead. If this option is not set, a query without
    a checkpoint waits only 5 s, so that a mistyped address is reported soon.
{_layer_options()}
Reading:

topic : topic
    The topic to read. Give one of topic, topics and topicsPattern.
topics : topics
    Comma-separated topics; the column `topic` tells which one a row is from.
topicsPattern : pattern
    A regular expression (Python's) for whole names of topics that nsqlookupd lists, except
    ephemeral ones. Topics that appear while the query runs are added to it.
channel : channel
    The channel whose cursor follows the query's commits, in each topic: its depth is the
    query's lag, and messages after the cursor stay in the log. Required for streams; a batch
    read uses none. The channel cannot have consumers at the same time.
queryName : label
    Name that nsqd and nsqadmin show for the reader of the channel. Spark does not pass a source
    the name that the writer's ``queryName()`` gives to a query.
startingOffsets : beginning
    Where a query without a checkpoint begins: ``earliest``, ``latest``, ``committed`` (the
    channel's cursor) or JSON with an index or one of these words per nsqd,
    ``{{"127.0.0.1:4150": 12345}}``, or with several topics
    ``{{"clicks": {{"127.0.0.1:4150": 12345}}, "views": "latest"}}``. Logs that the JSON does not
    name begin at the earliest message. Default: ``committed`` for a stream, ``earliest`` for a
    batch. If the channel's consumers finished messages out of order, its cursor is at the first
    unfinished one: messages finished after it are read again. An nsqd that joins later begins
    at the earliest message, or with ``committed`` and ``latest`` at its channel's cursor; a
    topic that joins later and does not have the channel begins at its first message.
startingTimestamp : int from 0
    Instead: at the first message published at or after this time, in ms since 1970.
endingOffsets : end, default latest
    Where a batch read ends: ``latest`` or JSON as above.
endingTimestamp : int from 0
    Instead: before the first message published at or after this time, in ms since 1970.
pushDownPredicate : bool, default false
    Whether a batch read skips messages that predicates on the column `timestamp` exclude. Needs
    ``spark.sql.python.filterPushdown.enabled=true``, and ``load`` for each query: Spark 4.3
    keeps pushed predicates for later queries of the same DataFrame. See docs/spark.md.
maxOffsetsPerTrigger : int from 1
    Maximum number of messages in one micro-batch, over all nsqds and topics. Default: no limit.
firstOffsetsPerTrigger : int from 1
    Maximum number of messages in the first micro-batch after a start, so that its results come
    early. While a batch leaves messages unread, the next one may have four times as many, up to
    maxOffsetsPerTrigger. Default: maxOffsetsPerTrigger.
maxBytesPerTrigger : size
    Maximum stored bytes in one micro-batch, like ``64m``: the bodies, 38 bytes for each
    message, and batch headers. Counted in extents of the log: 64 to 128 KiB, or one larger
    MPUB. Each log with unread messages gives at least one extent. Default: no limit.
minOffsetsPerTrigger : int from 1
    A micro-batch waits until this many messages are available, or maxTriggerDelay has passed,
    or maxBytesPerTrigger is reached. The first batch after a start does not wait, and neither
    does availableNow.
maxTriggerDelay : time, default 15m
    How long a micro-batch waits for minOffsetsPerTrigger, counted from the previous batch.
minPartitions : int from 1
    Approximate number of partitions in a batch. Set it to the number of the executors' cores
    (``spark.sparkContext.defaultParallelism``), which Spark does not pass to a source. Default:
    one for each 50,000 messages, at most 64. The value is stored in the offset: a batch that
    runs again has the same partitions.
maxRecordsPerPartition : int from 1, default 1000000
    A longer range is split: this is what a failed task repeats at most.
failOnDataLoss : bool, default true
    Whether the query fails when messages that it has not read are lost: deleted, damaged, or
    gone with a deleted topic. If false, it logs how many and continues.
lostNsqds : addresses
    Comma-separated ``host:port`` of nsqds that will never come back, as the column `nsqd` shows
    them. The query does not connect to them and gives up their unread messages, whatever
    failOnDataLoss says: it logs how many are lost, as far as it knows, and reads the others.

Writing:

topic : topic
    The topic to write to; takes precedence over a column `topic`.
max_msg_size : int from 1, default 1048576
    nsqd's limit for one message body, in bytes; a larger one is an error.
max_body_size : int from 9, default 5242880
    nsqd's limit for one MPUB body, in bytes.
max_req_timeout : time, default 1h
    nsqd's limit for a delay (column `defer_ms`); a longer one is an error.
"""
"""All options, as `NsqDataSource` documents them: name, kind, default and meaning of each."""


_ENTRY: Final = re.compile(r"^(\w+) : ([\w ]+)(?:, default (\S+))?$", re.MULTILINE)

DECLARED: Final = {entry[0].lower(): Option(*entry) for entry in _ENTRY.findall(OPTIONS)}
"""The options in `OPTIONS` by their names in lower case."""

SPARK_OPTIONS: Final = {
    *("path", "paths", "checkpointlocation", "outputmode", "provider", "owner", "location"),
    *("comment", "external", "is_managed_location", "collation"),
}
"""Options that Spark adds by itself, in lower case; names with a dot (`option.topic`) also are."""

KAFKA_OPTIONS: Final = {
    "subscribe": "topic or topics",
    "subscribepattern": "topicsPattern",
    "assign": "topic or topics",
    "kafka.bootstrap.servers": "nsqd_tcp_addresses or lookupd_http_addresses",
    "kafka.group.id": "channel",
    "groupidprefix": "channel",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
}
"""Options of Spark's Kafka source, in lower case, and the names of their counterparts here."""


def check_names(options: Mapping[str, str]) -> None:
    """Check that all options exist.

    Raises:
        OptionError: one does not; the text suggests the nearest one.
    """
    for given in options:
        name = given.lower()
        if name in DECLARED or name in SPARK_OPTIONS or ("." in name and name not in KAFKA_OPTIONS):
            continue
        near = nearest(name, DECLARED)
        if name in KAFKA_OPTIONS:
            hint = f"use {KAFKA_OPTIONS[name]} instead ({given} belongs to Spark's Kafka source)"
        elif near:
            hint = f"did you mean {DECLARED[near].name}?"
        else:
            hint = f"valid options are {', '.join(option.name for option in DECLARED.values())}"
        raise OptionError(f"unknown option {given}: {hint}")


class UserOptions:
    """The options as the user gave them, parsed when they are asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text.strip() for name, text in options.items()}

    def has(self, name: str) -> bool:
        """Whether the user gave the option, and not as an empty text."""
        return bool(self._texts.get(name.lower()))

    def __getitem__(self, name: str) -> Any:
        """The option's parsed value, or its default; None if it has neither.

        Raises:
            OptionError: the value is wrong.
        """
        option = DECLARED[name.lower()]
        text = self._texts.get(name.lower()) or option.default
        try:
            return KINDS[option.kind](text) if text else None
        except ValueError as error:
            raise OptionError(f"option {name}: {error}") from None


# The options of a query


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Addresses of the nsqds, or of the nsqlookupds that list them, and how to connect.

    `timeout_ms` is how long an nsqd may be unreachable before the query or task fails;
    `begin_timeout_ms` the same at the start of a query without a checkpoint, 0: `timeout_ms`.
    """

    nsqd_tcp_addresses: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    timeout_ms: int
    layers: LayerOptions = PLAIN
    begin_timeout_ms: int = 0

    @classmethod
    def of(cls, given: UserOptions) -> "ClusterOptions":
        """Parse the options.

        Raises:
            OptionError: no addresses or both kinds are given, or one is wrong.
        """
        nsqds = given["nsqd_tcp_addresses"] or ()
        lookupds = given["lookupd_http_addresses"] or ()
        if bool(nsqds) == bool(lookupds):
            raise OptionError(
                "set one of the options nsqd_tcp_addresses and lookupd_http_addresses"
                + (", not both" if nsqds else "")
            )
        names = [each.name for each in fields(LayerOptions) if given.has(each.name)]
        try:
            layers = LayerOptions(**{name: given[name] for name in names})
        except ValueError as error:
            raise OptionError(f"option {error}") from None
        timeout_ms = given["nsqdTimeoutMs"]
        begin_ms = timeout_ms if given.has("nsqdTimeoutMs") else BEGIN_TIMEOUT_MS
        return cls(nsqds, lookupds, timeout_ms, layers, begin_ms)


class ReadLimits(NamedTuple):
    """Limits of a micro-batch, as the options ...PerTrigger say; `bytes_max` 0: no limit."""

    messages_max: int = NO_LIMIT
    messages_min: int = 0
    delay_seconds: float = 0.0
    bytes_max: int = 0
    messages_first: int = NO_LIMIT

    @classmethod
    def of(cls, given: UserOptions) -> "ReadLimits":
        """Parse the options. Raises OptionError: one is wrong, or two exclude each other."""
        least = given["minOffsetsPerTrigger"] or 0
        most = given["maxOffsetsPerTrigger"] or NO_LIMIT
        first = given["firstOffsetsPerTrigger"] or most
        delay_ms = given["maxTriggerDelay"]
        for name, number in (("min", least), ("first", first)):
            if number > most:
                raise OptionError(
                    f"option {name}OffsetsPerTrigger: {number} is more than maxOffsetsPerTrigger,"
                    f" {most}"
                )
        if given.has("maxTriggerDelay") and not least:
            raise OptionError(
                "option maxTriggerDelay: also set minOffsetsPerTrigger, since it limits that wait"
            )
        wait_seconds = delay_ms / 1000 if least else 0.0
        return cls(most, least, wait_seconds, given["maxBytesPerTrigger"] or 0, first)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a stream or batch read; timestamps are -1 if they are not given."""

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
    lost_nsqds: tuple[str, ...]
    pushes_predicates: bool

    @classmethod
    def of(cls, options: Mapping[str, str], *, stream: bool | None) -> "SourceOptions":
        """Parse the options of a stream or a batch read; None: `load()` does not know which.

        Raises:
            OptionError: one is missing or wrong.
        """
        given = UserOptions(options)
        begin, end = given["startingTimestamp"], given["endingTimestamp"]
        found = cls(
            cluster=ClusterOptions.of(given),
            topics=_selection(given),
            channel=given["channel"] or "",
            query_name=given["queryName"] or "",
            starting=given["startingOffsets"] or Positions(COMMITTED if stream else EARLIEST),
            starting_timestamp_ms=-1 if begin is None else begin,
            ending=given["endingOffsets"],
            ending_timestamp_ms=-1 if end is None else end,
            limits=ReadLimits.of(given),
            partitions_min=given["minPartitions"] or 0,
            records_per_partition_max=given["maxRecordsPerPartition"],
            fail_on_data_loss=given["failOnDataLoss"],
            lost_nsqds=given["lostNsqds"] or (),
            pushes_predicates=given["pushDownPredicate"],
        )
        if found.topics.pattern and not found.cluster.lookupd_http_addresses:
            raise OptionError(
                "option topicsPattern: also set lookupd_http_addresses, since nsqlookupd lists "
                "the topics"
            )
        for name, positions in (
            ("startingOffsets", found.starting),
            ("endingOffsets", found.ending),
        ):
            if found.topics.several and (vague := positions.of_no_topic()):
                raise OptionError(
                    f"option {name}: an index is a position in one topic's log: name the topic, "
                    f'as in {{"clicks": {{"{min(vague)}": 12345}}}}'
                )
        if begin is not None and end is not None and end < begin:
            raise OptionError(f"option endingTimestamp: {end} is before startingTimestamp, {begin}")
        if stream:
            found._check_stream()
        elif stream is False and COMMITTED in (
            found.starting.elsewhere,
            *found.starting.named.values(),
        ):
            raise OptionError(
                "option startingOffsets: committed is for streams only: a batch read has no channel"
            )
        return found

    def _check_stream(self) -> None:
        if not self.channel:
            raise OptionError(
                "set the option channel: a stream's channel holds the messages not read yet"
            )
        for name, is_given in (
            ("endingOffsets", self.ending != Positions(LATEST)),
            ("endingTimestamp", self.ending_timestamp_ms >= 0),
        ):
            if is_given:
                raise OptionError(f"option {name}: a stream has no end; use a batch read instead")
        if self.pushes_predicates:
            raise OptionError(
                "option pushDownPredicate: Spark pushes predicates down in batch reads only; "
                "leave it out of a stream"
            )


def _selection(given: UserOptions) -> TopicSelection:
    """The topics, from one of three options."""
    used = [name for name in ("topic", "topics", "topicsPattern") if given.has(name)]
    if not used:
        raise OptionError("set one of the options topic, topics and topicsPattern")
    if len(used) > 1:
        raise OptionError(f"the options {' and '.join(used)} exclude each other: set only one")
    value = given[used[0]]
    if used == ["topicsPattern"]:
        return TopicSelection((), value, several=True)
    names = (value,) if used == ["topic"] else value
    for name in names:
        if is_ephemeral(name):
            raise OptionError(f"option {used[0]}: {name} is ephemeral and has no log to read")
    return TopicSelection(names, several=used == ["topics"])


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a stream or batch write; the topic is empty if a column has it."""

    cluster: ClusterOptions
    topic: str
    max_msg_size: int
    max_body_size: int
    max_defer_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Parse the options. Raises OptionError: one is missing or wrong."""
        given = UserOptions(options)
        return cls(
            cluster=ClusterOptions.of(given),
            topic=given["topic"] or "",
            max_msg_size=given["max_msg_size"],
            max_body_size=given["max_body_size"],
            max_defer_ms=given["max_req_timeout"],
        )
