"""The settings of the clicks pipeline: names, pace, memory and options of Spark, all checked.

    settings = Settings(data="hdfs:///clicks", lookupd_http_addresses=("lookup-1:4161",))

Flags and a TOML file make the same object (`sparq.pipeline.command`). Nothing here loads Spark.

1. A `Settings` object is always valid: each value is within its bounds and has one spelling (an
   absolute path, `512m`, `2 seconds`), and the values agree with each other.
2. A mistake is a SettingsError: one sentence that names the flag and says what to write.
3. Nothing is contacted here. `session` finds out whether the master and the file system exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sparq.pipeline import setting_kinds as kinds
from sparq.pipeline.reading.formats import GROUPS
from sparq.program.flags import Flag, flags_of, option
from sparq.program.mistakes import Mistake, shown

if TYPE_CHECKING:
    from sparq.pipeline.own_metrics import OwnMetric

QUERIES: Final = ("archive", "metrics", "spam_analysis")
TOPIC: Final = "clicks"
RESULTS: Final = ("metrics", "rejected", "spam")
METRICS_ADDRESS: Final = "127.0.0.1:4180"
OFFSETS: Final = 1_000_000
"""Maximum number of messages in a batch. Nearly all of a batch's cost in Spark is the same for
40,000 and for 400,000; two cores took 14,500 clicks a second through the three queries with 40,000,
31,800 with 200,000 and 45,800 with 400,000 (docs/performance.md)."""
FIRST_OFFSETS: Final = 20_000
"""The same for the first batch after a start: its results come within seconds."""
BATCH_BYTES: Final = "256m"
"""Maximum stored bytes in a batch: a Python worker needs about five times its partition's bytes."""


if TYPE_CHECKING:
    from sparq.pipeline.reading.schema import Reading


class SettingsError(Mistake):
    """A setting is missing or wrong; the text is one sentence that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the pipeline.

    Times are texts: `2 seconds`, `500 milliseconds`, or a plain number of seconds. Sizes are texts
    with a unit: `512m`, `4g` (1m is 1,048,576 bytes).

    Attributes:
        data: the folder for all output and checkpoints: a URI of any Hadoop file system, or a
            local path, which becomes absolute.
        lookupd_http_addresses: nsqlookupds that know the nsqds, `host:port` or a URL.
        topic: the topic of the clicks.
        archive_channel: channel of the query `archive`.
        metrics_channel: channel of the query `metrics`.
        spam_analysis_channel: channel of the query `spam_analysis`.
        format: "auto", or one of `reading.formats.NAMES`.
        log_format: a format string in place of `format`; empty: none.
        fields: the fields of a W3C log, separated by spaces; empty: those that IIS writes by
            default.
        click: pairs of a field of a click and its path in JSON.
        columns: pairs of a further column's name, and its path and type.
        trusted_proxies: networks of proxies whose X-Forwarded-For counts; empty: the connection's
            address counts.
        enrich: groups of columns that are added to clicks, of `reading.formats.GROUPS`.
        site_hosts: hosts of the site, without `www.`: a referrer with one of them is internal.
        country_file: an MMDB file with countries, at the same path on all executors; empty: none.
        network_file: one with autonomous systems, in the same way.
        anonymize: addresses are stored without their last bits, clicks without their original.
        queries: the queries to run, one or more of QUERIES.
        publish: whether minutes, rejected messages and findings are also published to topics.
        metrics_topic: topic of the minutes; default: `<topic>.metrics`.
        rejected_topic: topic of messages that are not clicks; default: `<topic>.rejected`.
        spam_topic: topic of the findings; default: `<topic>.spam`.
        rules: a local TOML file that changes the rules of the query `spam_analysis`
            (`sparq.pipeline.sessions`); empty: the rules that ship.
        trigger: time between the starts of two batches of a query; 0: a batch starts as soon as the
            one before has ended.
        once: whether the application ends once it has processed the messages that have come until
            its start.
        max_offsets_per_trigger: maximum number of messages in a batch of a query. The first one
            after a start has at most FIRST_OFFSETS; while a query is behind, its batches grow.
        keep_days: days before today (UTC) whose rows the tables keep; 0: all.
        own_metrics: the user's metrics, the tables `[metrics.NAME]` of the file.
        master: Spark's master; empty: the one given to spark-submit or in spark-defaults.conf, else
            `local[*]`.
        driver_memory: heap of the driver's JVM; empty: a quarter of the machine's memory, at least
            1g and at most 8g. With a local master the executors share this heap.
        executor_memory: heap of each executor of a cluster; empty: Spark's default, 1g.
        shuffle_partitions: number of partitions of the state; 0: the number of cores. A query keeps
            the number of its first start.
        spark: other options of Spark, pairs of key and value; the last pair of a key counts.
        source: other options of the source `nsq`, such as those for TLS and AUTH, in the same form.
            One may be a secret, so `repr` leaves them out.
        metrics_address: `host:port` that serves the metrics to Prometheus; empty: none.
        run_dir: a local folder shared with a supervisor: the application writes its state there,
            and ends when the file `finish` appears in it; empty: none.

    Raises:
        SettingsError: a value is missing or wrong, or two values contradict each other.
    """

    data: str = option(
        "", "folder for output and checkpoints: a path, or a URI such as s3a://...", kind=kinds.DATA
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "nsqlookupd to find nsqds with: host:port or URL",
        kind=kinds.LOOKUPD,
        name="lookupd-http-address",
    )
    topic: str = option(TOPIC, "topic to read clicks from", kind=kinds.TOPIC)
    archive_channel: str = option("archive", "channel of the archive query", kind=kinds.CHANNEL)
    metrics_channel: str = option("metrics", "channel of the metrics query", kind=kinds.CHANNEL)
    spam_analysis_channel: str = option(
        "spam_analysis", "channel of the spam_analysis query", kind=kinds.CHANNEL
    )
    format: str = option(
        "auto", "format of the messages; auto: found for each message", kind=kinds.FORMAT
    )
    log_format: str = option(
        "",
        "format string of nginx, GoAccess or Apache that describes the lines, in place of --format",
        kind=kinds.LOG_FORMAT,
    )
    fields: str = option(
        "", "fields of a W3C log: its #Fields line (default those of IIS)", kind=kinds.FIELDS
    )
    click: tuple[tuple[str, str], ...] = option(
        (), "where a field of a click is in JSON, such as path=page.url", kind=kinds.CLICK
    )
    columns: tuple[tuple[str, str], ...] = option(
        (),
        'further column, such as order_id="order.id: bigint"',
        kind=kinds.COLUMNS,
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "networks of proxies whose X-Forwarded-For counts, or private",
        kind=kinds.PROXIES,
    )
    enrich: tuple[str, ...] = option(
        GROUPS,
        "groups of columns to add to clicks, separated by commas; empty: none",
        kind=kinds.ENRICH,
    )
    site_hosts: tuple[str, ...] = option(
        (), "hosts of the site: referrers from them are internal", kind=kinds.HOSTS
    )
    country_file: str = option(
        "", "MMDB file with countries; adds the column country", kind=kinds.MMDB
    )
    network_file: str = option(
        "", "MMDB file with autonomous systems; adds the column network", kind=kinds.MMDB
    )
    anonymize: bool = option(
        False, "store addresses without their last bits, and no original clicks", kind=kinds.TRUTH
    )
    queries: tuple[str, ...] = option(
        QUERIES, "queries to run, separated by commas", kind=kinds.some_of(*QUERIES)
    )
    publish: bool = option(
        True, "also publish the results to topics; --no-publish: write files only", kind=kinds.TRUTH
    )
    metrics_topic: str = option(
        "", "topic for metrics per minute (default <topic>.metrics)", kind=kinds.RESULT_TOPIC
    )
    rejected_topic: str = option(
        "",
        "topic for messages that are not clicks (default <topic>.rejected)",
        kind=kinds.RESULT_TOPIC,
    )
    spam_topic: str = option(
        "", "topic for spam findings (default <topic>.spam)", kind=kinds.RESULT_TOPIC
    )
    rules: str = option(
        "", "TOML file with changes to the rules of the spam_analysis query", kind=kinds.FILE
    )
    trigger: str = option(
        "1 second",
        "time between the starts of two batches, such as 2 (seconds) or 500 milliseconds",
        kind=kinds.INTERVAL,
    )
    once: bool = option(
        False,
        "process the messages that are there, then end; the next run continues from there",
        kind=kinds.TRUTH,
    )
    max_offsets_per_trigger: int = option(
        OFFSETS,
        "maximum number of messages in a batch; batches are small at first, and grow while a query"
        " is behind",
        kind=kinds.WHOLE,
        least=1,
    )
    keep_days: int = option(
        0,
        "days of rows to keep in the tables, by the time of each row (UTC); 0: all",
        kind=kinds.WHOLE,
        least=0,
    )
    own_metrics: tuple[OwnMetric, ...] = ()
    master: str = option(
        "",
        "Spark's master: local[4], spark://host:7077, yarn, k8s://... (default: that of"
        " spark-submit or spark-defaults.conf, else local[*])",
        kind=kinds.MASTER,
    )
    driver_memory: str = option(
        "",
        "heap of the driver (default a quarter of the machine's memory, at least 1g, at most 8g)",
        kind=kinds.HEAP,
    )
    executor_memory: str = option(
        "", "heap of each executor on a cluster (default 1g)", kind=kinds.HEAP
    )
    shuffle_partitions: int = option(
        0,
        "number of partitions of the state, fixed at the first start; 0: the number of cores",
        kind=kinds.WHOLE,
        least=0,
        most=10_000,
    )
    spark: tuple[tuple[str, str], ...] = option(
        (), "Spark option, such as spark.executor.cores=2", kind=kinds.SPARK
    )
    source: tuple[tuple[str, str], ...] = option(
        (),
        "option of the data source nsq, such as tls_root_ca_file=ca.pem; put secrets into the"
        " --config file",
        kind=kinds.SOURCE,
        secret=True,
    )
    metrics_address: str = option(
        METRICS_ADDRESS,
        'host:port to serve Prometheus metrics on; "": none',
        kind=kinds.LISTENING,
    )
    run_dir: str = option(
        "",
        "local folder in which the application writes its state (app.json, samples.json); create"
        " the file `finish` there to end it",
        kind=kinds.FOLDER,
    )

    def __post_init__(self) -> None:
        """Check the values and give each its one spelling."""
        if not self.data:
            raise SettingsError("--data is missing: name the folder for output and checkpoints")
        for flag in flags():
            self._settle(flag, getattr(self, flag.field))
        for flag in flags():
            if flag.kind is kinds.RESULT_TOPIC and not getattr(self, flag.field):
                self._settle(flag, f"{self.topic}.{flag.field.removesuffix('_topic')}")
        self._check_combinations()

    def _settle(self, flag: Flag, value: Any) -> None:
        object.__setattr__(self, flag.field, settled(flag, value, f"--{flag.name}"))

    def _check_combinations(self) -> None:
        if not self.queries:
            raise SettingsError(f"--queries is empty: name one or more of {', '.join(QUERIES)}")
        owners: dict[str, str] = {}
        for query, channel in self.channels.items():
            other = owners.setdefault(channel, query)
            if other != query:
                flag = f"--{query.replace('_', '-')}-channel"
                raise SettingsError(
                    f"{flag}={channel} is also the channel of {other}: give each"
                    " query its own channel"
                )
        for result, topic in self.result_topics.items():
            if topic == self.topic:
                raise SettingsError(
                    f"--{result}-topic={topic} is the topic of the clicks: use another topic for"
                    " results"
                )

    @property
    def reading(self) -> Reading:
        """How messages are read."""
        from sparq.pipeline.reading.schema import Reading  # noqa: PLC0415 - it loads Arrow

        return Reading(
            format=self.format,
            fields=self.fields,
            log_format=self.log_format,
            click=self.click,
            columns=self.columns,
            trusted_proxies=self.trusted_proxies,
            enrich=self.enrich,
            site_hosts=self.site_hosts,
            country_file=self.country_file,
            network_file=self.network_file,
            anonymize=self.anonymize,
        )

    @property
    def channels(self) -> dict[str, str]:
        """The channel of each query that runs."""
        return {query: getattr(self, f"{query}_channel") for query in self.queries}

    @property
    def result_topics(self) -> dict[str, str]:
        """The topic of each published kind of result: metrics, rejected, spam."""
        if not self.publish:
            return {}
        return {result: getattr(self, f"{result}_topic") for result in RESULTS}

    @property
    def is_local(self) -> bool:
        """Whether `data` is on a local disk."""
        scheme, colon, _ = self.data.partition(":")
        return not colon or "/" in scheme or scheme.lower() == "file"


@cache
def flags() -> tuple[Flag, ...]:
    """The flags of the settings, in alphabetical order."""
    return tuple(flag._replace(key=flag.name) for flag in flags_of(Settings))


def settled(flag: Flag, value: Any, origin: str) -> Any:
    """Check the value of a setting, and give it its one spelling.

    Args:
        flag: the setting.
        value: its value, of a type of Python or TOML.
        origin: beginning of the error message, such as `--topic`.

    Raises:
        SettingsError: the value is wrong.
    """
    try:
        if flag.repeated:
            return flag.kind.gather(flag.kind.coerce(one) for one in _listed(value))
        found = flag.kind.coerce(value)
        _check_bounds(flag, found)
    except ValueError as error:
        # A pair may be a secret: the value is left out, and the reason names the key.
        text = ":" if flag.kind in kinds.PAIRS else f"={shown(_text_of(value))}"
        raise SettingsError(f"{origin}{text} {error}") from None
    return found


def _listed(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(value)
    return [value]


def _text_of(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_bounds(flag: Flag, value: Any) -> None:
    if flag.least is not None and value < flag.least:
        raise ValueError(f"is too small: use {flag.least} or more")
    if isinstance(flag.most, int) and value > flag.most:
        raise ValueError(f"is too large: use {flag.most} or less")
