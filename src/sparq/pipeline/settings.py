"""The settings of the clicks pipeline, each declared once: default, help text, kind and bounds.

    settings = Settings(data="hdfs:///clicks", lookupd_http_addresses=("lookup-1:4161",))

Flags and a TOML file make the same object (`sparq.pipeline.command`). Nothing is contacted, and
Spark is not loaded: `session` checks its options. A mistake is one sentence that names the flag,
without the value of a pair such as `auth_secret=...`.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sparq.options.declare import Flag, flags_of, option
from sparq.options.kinds import PEER, STRING, Kind, choice, pairs, texts
from sparq.options.mistakes import Mistake, one_of, shown, suggestion
from sparq.options.units import MILLISECOND, parse_words
from sparq.pipeline.reading import formats
from sparq.pipeline.reading.values import networks
from sparq.protocol.address import lookupd_url
from sparq.protocol.instant import wall_ns_of
from sparq.protocol.names import NAME_SIZE_MAX, is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from sparq.pipeline.own_metrics import OwnMetric
    from sparq.pipeline.reading.schema import Reading

QUERIES: Final = ("archive", "metrics", "spam_analysis")
TOPIC: Final = "clicks"
RESULTS: Final = ("metrics", "rejected", "spam")
METRICS_ADDRESS: Final = "127.0.0.1:4180"
OFFSETS: Final = 1_000_000
"""Messages in a batch: nearly all of its cost is the same for 40,000 and for 400,000."""
FIRST_OFFSETS: Final = 20_000
"""The same for the first batch after a start: its results come within seconds."""
BATCH_BYTES: Final = "256m"
"""Maximum stored bytes in a batch: a Python worker needs about five times its partition's bytes."""

_SET_BY_PIPELINE: Final = {
    *("topic", "topics", "topicspattern", "channel", "lookupd_http_addresses"),
    *("nsqd_tcp_addresses", "maxoffsetspertrigger"),
}
"""Options of the source, in lower case, that have flags of their own."""

_COLUMN: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}")


class SettingsError(Mistake):
    """A setting is missing or wrong; the text is one sentence that names it."""


def _check_field(name: str, path: str) -> None:
    known = formats.FIELDS_OF_CLICK
    if name not in known:
        close = suggestion(name, known) or f": use {one_of(known)}"
        raise ValueError(f"{shown(name)} is no field of a click{close}")
    if not path:
        raise ValueError(f"{name} has no path: write keys with points between them")


def _check_column(name: str, text: str) -> None:
    schema = import_module("sparq.pipeline.reading.schema")  # it loads Arrow
    if not _COLUMN.fullmatch(name):
        raise ValueError(
            f"{shown(name)} is no name of a column: use a-z, 0-9 and _, a letter first"
        )
    taken = {*schema.CLICK_SCHEMA.names, *formats.FIELDS_OF_CLICK, *schema.OF_MESSAGES}
    if name in taken.union(*schema.ENRICHMENTS.values()):
        raise ValueError(f"{name} is a field of every click: choose another name, or use [click]")
    path, kind = schema.path_and_type(text)
    if not path or kind not in schema.TYPES:
        types = ", ".join(schema.TYPES)
        raise ValueError(
            f'{name} = {shown(text)} is not "path: type" with one of the types {types};'
            " a path with a colon needs its type, too"
        )


def _place(text: str) -> str:
    """A URI of a Hadoop file system; a text without a scheme becomes an absolute path."""
    scheme, colon, rest = text.partition(":")
    if text and (not colon or "/" in scheme):
        text = os.path.abspath(os.path.expanduser(text))
    elif colon and not rest.startswith("/"):
        raise ValueError(f"write {scheme}://host/path, or ./{text} for a local folder")
    return text.rstrip("/")


def _data(text: str) -> str:
    if odd := re.search(r"[*?\[\]{}\\\x00-\x1f]", text):
        raise ValueError(f"readers would take {shown(odd[0])} for a pattern: rename the folder")
    return _place(text)


def _local_path(text: str) -> str:
    if "://" in text:
        raise ValueError("write a path of this machine, not a URI")
    return os.path.abspath(os.path.expanduser(text)) if text else ""


def _interval(given: Any) -> str:
    """A time for Spark's triggers, from a number of seconds, Spark's words or NSQ's units."""
    with suppress(ValueError):
        return f"{parse_words(str(given), 's') // MILLISECOND} milliseconds"
    raise ValueError("write 5 (seconds), 500 milliseconds or 1 minute")


def utc_text(text: str) -> str:
    """A time as ISO 8601 in UTC; one such as `-2h` is that long ago."""
    with suppress(ValueError, OverflowError):
        seconds = wall_ns_of(text, time.time_ns()) // 1000 / 1_000_000
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    if text:
        raise ValueError("write 2026-11-21T10:00:00Z, or -2h")
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+", text):
        raise ValueError("write a host such as www.example.com, without a scheme")
    return text.lower().removeprefix("www.")


def _mmdb(text: str) -> str:
    path = _local_path(text)
    try:
        if path:
            import_module("maxminddb").open_database(path).close()
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"this is no MMDB file, such as GeoLite2-Country.mmdb ({error})") from None
    return path


DATA: Final = STRING._replace(name="URI", parse=_data)
URI: Final = STRING._replace(name="URI", parse=_place)
FILE: Final = STRING._replace(name="file", parse=_local_path)
MMDB: Final = STRING._replace(name="file", parse=_mmdb)
TIME: Final = STRING._replace(name="time", parse=utc_text)
HOSTS: Final = STRING._replace(name="host,...", parse=_host)
LOOKUPD: Final = STRING._replace(name="host:port", parse=lambda text: lookupd_url(text) and text)
INTERVAL: Final = Kind("interval", _interval, types=(object, bool), read=_interval)
FORMAT: Final = choice(formats.AUTO, *formats.NAMES, name="name")
LOG_FORMAT: Final = STRING._replace(check=lambda text: text and formats.nginx_form(text))
W3C_FIELDS: Final = STRING._replace(check=lambda text: text and formats.w3c(text))
CLICK: Final = pairs("FIELD=PATH", _check_field)
COLUMNS: Final = pairs("NAME=PATH:TYPE", _check_column)
PAIRS: Final = pairs("KEY=VALUE")
NETWORKS: Final = STRING._replace(name="network,...", check=lambda text: networks([text]))
ENRICH: Final = choice(*formats.GROUPS, name="name,...")
CHOSEN: Final = choice(*QUERIES, name="name,...")
_NAME: Final = f"is not a valid name: use 1-{NAME_SIZE_MAX} characters from [.a-zA-Z0-9_-]"
LASTING: Final = texts(
    "name",
    lambda text: is_valid_name(text) and not is_ephemeral(text),
    f"{_NAME}, without #ephemeral",
)
RESULT_TOPIC: Final = texts("name", lambda text: not text or is_valid_name(text), _NAME)
HEAP: Final = texts(
    "size",
    re.compile(r"([1-9]\d*[kmgtKMGT]b?)?").fullmatch,
    "is not a size: write a whole number with a unit, such as 512m",
)
MASTER: Final = texts(
    "master",
    re.compile(r"|local(\[.+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+").fullmatch,
    "is not a master: use local[*], spark://host:7077, yarn or k8s://https://host:443",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the pipeline, each in one spelling: an absolute path, `500 milliseconds`.

    Several values are a tuple, or one text with commas. Pairs of a key and a value are tuples,
    texts `key=value` or a mapping; the last pair of a key counts. Raises Mistake.
    """

    data: str = option("", "folder or URI (s3a://...) for output and checkpoints", kind=DATA)
    lookupd_http_addresses: tuple[str, ...] = option(
        (), "nsqlookupd: host:port or URL", kind=LOOKUPD, name="lookupd-http-address"
    )
    files: str = option(
        "", "log files in place of the topic: path, folder or pattern", kind=URI, name="from"
    )
    since: str = option(
        "", "time at which new checkpoints begin in the topic: ISO or -2h (default: all)", kind=TIME
    )
    topic: str = option(TOPIC, "topic to read clicks from", kind=LASTING)
    archive_channel: str = option("archive", "channel of this query", kind=LASTING)
    metrics_channel: str = option("metrics", "channel of this query", kind=LASTING)
    spam_analysis_channel: str = option("spam_analysis", "channel of this query", kind=LASTING)
    format: str = option(formats.AUTO, "format of messages; auto: found for each", kind=FORMAT)
    log_format: str = option("", "format string of nginx, GoAccess or Apache", kind=LOG_FORMAT)
    fields: str = option("", "#Fields line of a W3C log (default that of IIS)", kind=W3C_FIELDS)
    click: tuple[tuple[str, str], ...] = option((), "paths in JSON, as path=page.url", kind=CLICK)
    columns: tuple[tuple[str, str], ...] = option(
        (), 'column, such as order_id="order.id: bigint"', kind=COLUMNS
    )
    trusted_proxies: tuple[str, ...] = option(
        (), "networks of proxies whose X-Forwarded-For counts, or private", kind=NETWORKS
    )
    enrich: tuple[str, ...] = option(formats.GROUPS, "groups of columns; empty: none", kind=ENRICH)
    site_hosts: tuple[str, ...] = option((), "hosts of the site itself", kind=HOSTS)
    country_file: str = option("", "MMDB file with countries, for the column country", kind=MMDB)
    network_file: str = option("", "MMDB file with networks, for the column network", kind=MMDB)
    anonymize: bool = option(False, "shorten all addresses, and store no original clicks")
    queries: tuple[str, ...] = option(QUERIES, "queries to run", kind=CHOSEN)
    publish: bool = option(True, "publish results to topics; --no-publish: write files only")
    metrics_topic: str = option("", "topic (default <topic>.metrics)", kind=RESULT_TOPIC)
    rejected_topic: str = option("", "topic (default <topic>.rejected)", kind=RESULT_TOPIC)
    spam_topic: str = option("", "topic of findings (default <topic>.spam)", kind=RESULT_TOPIC)
    rules: str = option("", "TOML file with changes to the rules of spam_analysis", kind=FILE)
    trigger: str = option("1 second", "time between two batches, such as 2 or 500ms", kind=INTERVAL)
    once: bool = option(False, "process the messages that are there, then end")
    max_offsets_per_trigger: int = option(OFFSETS, "maximum number of messages in a batch", least=1)
    keep_days: int = option(0, "days of rows to keep, by their time (UTC); 0: all", least=0)
    own_metrics: tuple[OwnMetric, ...] = ()  # the tables [metrics.NAME] of the file
    master: str = option("", "Spark's master (default that of Spark, else local[*])", kind=MASTER)
    driver_memory: str = option("", "heap of the driver (default 1g to 8g, by machine)", kind=HEAP)
    executor_memory: str = option("", "heap of each executor on a cluster (default 1g)", kind=HEAP)
    shuffle_partitions: int = option(
        0, "partitions of the state, fixed at the first start; 0: cores", least=0, most=10_000
    )
    spark: tuple[tuple[str, str], ...] = option((), "option of Spark: spark.x=y", kind=PAIRS)
    source: tuple[tuple[str, str], ...] = option(
        (), "option of the source nsq; keep secrets in --config", kind=PAIRS, secret=True
    )
    metrics_address: str = option(METRICS_ADDRESS, 'host:port of metrics; "": none', kind=PEER)
    run_dir: str = option(
        "", "local folder for the application's state; create `finish` in it to end it", kind=FILE
    )

    def __post_init__(self) -> None:
        """Check the values and give each its one spelling."""
        for flag in flags():
            object.__setattr__(self, flag.field, flag.settled(getattr(self, flag.field)))
        if not self.data:
            raise SettingsError("--data is missing: name the folder for output and checkpoints")
        if not self.queries:
            raise SettingsError(f"--queries is empty: name one or more of {', '.join(QUERIES)}")
        if self.files and self.since:
            raise SettingsError("--since is for the topic: with --from, choose files by a pattern")
        if len(set(self.channels.values())) < len(self.channels):
            names = (f"--{query.replace('_', '-')}-channel" for query in self.channels)
            raise SettingsError(f"{', '.join(names)}: give each query a channel of its own")
        for result, topic in self.result_topics.items():
            if not is_valid_name(topic):
                raise SettingsError(f"--{result}-topic={topic} {_NAME}")
            if topic == self.topic:
                raise SettingsError(f"--{result}-topic={topic} is the topic of the clicks")
        self._check_source()

    def _check_source(self) -> None:
        """Check the options of the source by its own checks."""
        if not self.source:
            return
        options = import_module("sparq.spark.options")
        place = {"topic": "t", "channel": "c", "lookupd_http_addresses": METRICS_ADDRESS}
        try:
            for key, _ in self.source:
                if key.lower() in _SET_BY_PIPELINE:
                    raise ValueError(f"{key} has a flag of its own: see --help")
            options.check_names(dict(self.source))
            options.SourceOptions.of({**dict(self.source), **place}, stream=True)
        except ValueError as error:
            raise SettingsError(f"--source: {error}") from None

    @property
    def reading(self) -> Reading:
        """How messages are read."""
        from sparq.pipeline.reading.schema import Reading  # noqa: PLC0415 - it loads Arrow

        return Reading(**{one.name: getattr(self, one.name) for one in fields(Reading)})

    @property
    def channels(self) -> dict[str, str]:
        """The channel of each query that runs."""
        return {query: getattr(self, f"{query}_channel") for query in self.queries}

    @property
    def result_topics(self) -> dict[str, str]:
        """The topic of each published kind of result: metrics, rejected, spam."""
        if not self.publish or (self.files and not self.lookupd_http_addresses):
            return {}
        return {one: getattr(self, f"{one}_topic") or f"{self.topic}.{one}" for one in RESULTS}

    @property
    def cluster_options(self) -> dict[str, str]:
        """Options of source and sink: the nsqlookupds' addresses, and how to connect to nsqds."""
        addresses = ",".join(self.lookupd_http_addresses)
        return {"lookupd_http_addresses": addresses, **dict(self.source)}


@cache
def flags() -> tuple[Flag, ...]:
    """The flags of the settings, in alphabetical order; their names are the keys of the file."""
    return tuple(flag._replace(key=flag.name) for flag in flags_of(Settings))
