"""User options: parsing by name and type, the cluster's options, and the sink's options.

The options of the source are in `source_options`.

1. Names are NSQ's where NSQ has the option (as in its configuration files), otherwise those of
   Spark's Kafka source. Case does not matter, as everywhere in Spark.
2. A wrong option raises an error that names it, before any connection is made.
3. An option that is neither ours nor one that Spark passes to every source (`path`) raises an
   error that suggests our nearest option. Options of the other direction are ignored, so that a
   source and a sink can share their options.
4. The secret appears in no error, log line, plan or progress. It is sent, though: readers and
   writers are pickled with their options for the executors, which need it.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from sparq.client.arguments import RULE, parse_addresses, split_texts
from sparq.client.layer_options import PLAIN, LayerOptions
from sparq.protocol.address import lookupd_url
from sparq.protocol.names import is_valid_name, quote

NSQD_TIMEOUT_MS: Final = 60_000
"""Default timeout; a restart of nsqd, including the recovery of its logs, takes seconds."""

BEGIN_TIMEOUT_MS: Final = 5_000
"""How long a query without a checkpoint waits at its start, unless `nsqdTimeoutMs` is given: a
mistyped address should be reported soon, and a query that has read nothing can be started again."""

MAX_MSG_SIZE: Final = 1_048_576
MAX_BODY_SIZE: Final = 5_242_880
"""nsqd's defaults for its two limits, in bytes."""

Value = TypeVar("Value")


class OptionError(ValueError):
    """An option is missing or wrong; the text names it."""


SHARED_OPTIONS: Final = (
    "topic",
    "nsqd_tcp_addresses",
    "lookupd_http_addresses",
    "nsqdTimeoutMs",
    *(option.name for option in fields(LayerOptions)),
)
SOURCE_OPTIONS: Final = (
    "topics",
    "topicsPattern",
    "channel",
    "queryName",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "pushDownPredicate",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
)
SINK_OPTIONS: Final = ("max_msg_size", "max_body_size")

SPARK_OPTIONS: Final = frozenset(
    (
        *("path", "paths", "checkpointlocation", "outputmode", "provider", "owner"),
        *("location", "comment", "external", "is_managed_location", "collation"),
    )
)
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

UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_BYTES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
"""Units as Spark writes times and sizes: ``15m``, ``64m``."""

NEAR: Final = 0.6
"""Similarity above which an unknown name counts as a misspelling (difflib's ratio)."""


def check_names(options: Mapping[str, str]) -> None:
    """Check that all options exist.

    Raises:
        OptionError: one does not; the text suggests the nearest one.
    """
    known = {name.lower(): name for name in SHARED_OPTIONS + SOURCE_OPTIONS + SINK_OPTIONS}
    for given in options:
        name = given.lower()
        if name in known or name in SPARK_OPTIONS or ("." in name and name not in KAFKA_OPTIONS):
            continue
        near = difflib.get_close_matches(name, known, 1, NEAR)
        if name in KAFKA_OPTIONS:
            hint = f"use {KAFKA_OPTIONS[name]} instead ({given} belongs to Spark's Kafka source)"
        elif near:
            hint = f"did you mean {known[near[0]]}?"
        else:
            hint = f"valid options are {', '.join(known.values())}"
        raise OptionError(f"unknown option {given}: {hint}")


class UserOptions:
    """The options as the user gave them, read by type."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def read(self, name: str, default: Value, parse: Callable[[str], Value]) -> Value:
        """The option's parsed value, or the default if it is not given."""
        text = self._values.get(name.lower())
        if text is None or not text.strip():
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            raise OptionError(f"option {name}: {error}") from None

    def integer(self, name: str, default: int, low: int) -> int:
        """An integer of at least `low`."""

        def parse(text: str) -> int:
            if not text.isascii() or not text.isdigit() or int(text) < low:
                raise ValueError(f"expected a whole number of at least {low}, not {text!r}")
            return int(text)

        return self.read(name, default, parse)

    def duration_ms(self, name: str, default: int) -> int:
        """A time like ``15m``, in ms; a number without a unit is in ms."""

        def parse(text: str) -> int:
            found = re.fullmatch(r"([0-9]+) ?(ms|s|m|min|h|d)?", text.lower())
            if found is None:
                raise ValueError(f"expected a time like 500ms, 30s, 15m or 2h, not {text!r}")
            return int(found[1]) * UNITS_MS[found[2] or "ms"]

        return self.read(name, default, parse)

    def size(self, name: str) -> int:
        """A size like ``64m``, in bytes, at least 1; 0 if it is not given."""

        def parse(text: str) -> int:
            found = re.fullmatch(r"([0-9]+) ?([kmgt]?)i?b?", text.lower())
            if found is None or not int(found[1]):
                raise ValueError(f"expected a size like 67108864, 512k, 64m or 1g, not {text!r}")
            return int(found[1]) * UNITS_BYTES[found[2]]

        return self.read(name, 0, parse)

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""

        def parse(text: str) -> bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"expected true or false, not {text!r}")
            return text.lower() == "true"

        return self.read(name, default, parse)

    def name(self, option: str) -> str:
        """A topic's or a channel's name; empty if it is not given."""
        return self.read(option, "", lambda text: _legal(text, option))

    def names(self, option: str, kind: str) -> tuple[str, ...]:
        """Comma-separated names without duplicates; empty if the option is not given."""

        def parse(text: str) -> tuple[str, ...]:
            found = tuple(dict.fromkeys(_legal(name, kind) for name in split_texts(text)))
            if not found:
                raise ValueError(f"expected comma-separated names, not {text!r}")
            return found

        return self.read(option, (), parse)


def _legal(text: str, kind: str) -> str:
    """Return the text if NSQ allows it as a name. Raises ValueError: it does not."""
    if not is_valid_name(text):
        raise ValueError(f"invalid {kind} name {quote(text)}: {RULE}")
    return text


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Addresses of the nsqds, or of the nsqlookupds that list them, and how to connect.

    Attributes:
        nsqd_tcp_addresses: as ``host:port``; empty if nsqlookupds are given.
        lookupd_http_addresses: as ``host:port`` or URL; empty if nsqds are given.
        timeout_ms: how long an nsqd may be unreachable before the query or task fails.
        layers: TLS, compression and AUTH of each connection.
        begin_timeout_ms: the same at the start of a query without a checkpoint; 0: `timeout_ms`.
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
        none: list[str] = []
        nsqds = given.read("nsqd_tcp_addresses", none, parse_addresses)
        lookupds = given.read("lookupd_http_addresses", none, _lookupds)
        if bool(nsqds) == bool(lookupds):
            raise OptionError(
                "set one of the options nsqd_tcp_addresses and lookupd_http_addresses"
                + (", not both" if nsqds else "")
            )
        timeout_ms = given.integer("nsqdTimeoutMs", NSQD_TIMEOUT_MS, 1)
        # The same option with another default: a time that the user gives holds for the start, too.
        begin_ms = given.integer("nsqdTimeoutMs", BEGIN_TIMEOUT_MS, 1)
        return cls(tuple(nsqds), tuple(lookupds), timeout_ms, _layers(given), begin_ms)


def _lookupds(text: str) -> list[str]:
    """The nsqlookupds' addresses without duplicates."""
    found = list(dict.fromkeys(split_texts(text)))
    for each in found:
        lookupd_url(each)
    return found


def _layers(given: UserOptions) -> LayerOptions:
    """Parse TLS, compression and AUTH, with the names and defaults of `LayerOptions`."""
    values: dict[str, Any] = {}
    for option in fields(LayerOptions):
        name, default = option.name, option.default
        if isinstance(default, bool):
            values[name] = given.flag(name, default)
        elif isinstance(default, int):
            values[name] = given.integer(name, default, 1)
        else:
            values[name] = given.read(name, default, str)
    try:
        return LayerOptions(**values)
    except ValueError as error:
        raise OptionError(f"option {error}") from None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a stream or batch write; `NsqDataSource` documents them."""

    cluster: ClusterOptions
    topic: str
    max_msg_size: int
    max_body_size: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Parse the options. Raises OptionError: one is missing or wrong."""
        given = UserOptions(options)
        return cls(
            cluster=ClusterOptions.of(given),
            topic=given.name("topic"),
            max_msg_size=given.integer("max_msg_size", MAX_MSG_SIZE, 1),
            # 9: the number of messages, a size (4 bytes each) and a body of one byte.
            max_body_size=given.integer("max_body_size", MAX_BODY_SIZE, 9),
        )
