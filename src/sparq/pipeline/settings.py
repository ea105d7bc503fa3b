"""What the clicks pipeline is told: names, pace, memory and Spark's options, checked.

    settings = Settings(data="hdfs:///clicks", lookupd_http_addresses=("lookup-1:4161",))

Flags and a TOML file make the same object (`sparq.pipeline.command`). Nothing here loads Spark.

1. A `Settings` that exists is right in itself: each value is within its bounds and in one spelling
   (an absolute path, `512m`, `2 seconds`), and the values go together.
2. A mistake is a SettingsError: one sentence, which names the flag and says what to write.
3. Whether nsqlookupd, the master and the file system are there is asked later (`session`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sparq.pipeline import setting_kinds as kinds
from sparq.program.flags import Flag, flags_of, option
from sparq.program.mistakes import Mistake, shown

QUERIES: Final = ("archive", "metrics", "spam_analysis")
FORMATS: Final = ("parquet", "delta")
TOPIC: Final = "clicks"
RESULTS: Final = ("metrics", "rejected", "spam")
METRICS_ADDRESS: Final = "127.0.0.1:4180"
OFFSETS: Final = 40_000
ARCHIVE_OFFSETS: Final = 200_000

_PAIRS: Final = (kinds.SPARK, kinds.SOURCE)


class SettingsError(Mistake):
    """A setting is missing or wrong; the text is one sentence that names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the pipeline can be told. Times are texts such as `2 seconds` or a number
    of seconds, sizes texts such as `512m` or `4g` (1m is 1,048,576 bytes).

    Attributes:
        data: the folder of all output and checkpoints: a URI of any Hadoop file system, or a path,
            which becomes an absolute one.
        lookupd_http_addresses: nsqlookupds that know the nsqds, `host:port` or a URL.
        topic: where the clicks are published.
        archive_channel: channel of the query `archive`.
        metrics_channel: channel of the query `metrics`.
        spam_analysis_channel: channel of the query `spam_analysis`.
        queries: which of the three run.
        publish: whether minutes, rejected messages and findings are published too.
        metrics_topic: topic of the minutes; default: `<topic>.metrics`.
        rejected_topic: topic of messages that are no clicks; default: `<topic>.rejected`.
        spam_topic: topic of the findings; default: `<topic>.spam`.
        trigger: time from one batch's start to the next, if there is something to read; 0: as soon
            as the batch before has ended.
        max_offsets_per_trigger: messages in a batch of `metrics` or `spam_analysis` at most.
        archive_min_offsets: with fewer messages a batch of `archive` waits; 0: it does not.
        archive_max_offsets: messages in a batch of `archive` at most.
        archive_max_delay: how long such a batch waits at most.
        archive_format: "parquet" or "delta".
        archive_file_size: small files of an hour that have this size together are merged into one;
            "0": files are never merged.
        master: where Spark runs; empty: where spark-submit says, else `local[*]`.
        driver_memory: heap of the driver's JVM; empty: a quarter of the machine's memory, at least
            1g and at most 8g. On a local master the executors are in this heap.
        executor_memory: heap of each executor; empty: Spark's default. For clusters.
        shuffle_partitions: partitions of the state; 0: as many as cores. A query keeps the number
            of its first start.
        spark: further options of Spark, pairs of key and value; of a key the last pair counts.
        source: further options of the source `nsq`, such as those of TLS and AUTH, likewise. Not
            shown by `repr`, since one may be a secret.
        metrics_address: `host:port` that serves figures for Prometheus; empty: none.
        run_dir: a local folder for a supervisor: the application says there how it is, and ends
            when a file `finish` appears in it; empty: none.

    Raises:
        SettingsError: a value is missing or wrong, or two do not go together.
    """

    data: str = option(
        "", "folder of output and checkpoints: a path, or a URI such as s3a://...", kind=kinds.DATA
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "nsqlookupd that knows the nsqds: host:port or URL",
        kind=kinds.LOOKUPD,
        name="lookupd-http-address",
    )
    topic: str = option(TOPIC, "topic of the clicks", kind=kinds.TOPIC)
    archive_channel: str = option("archive", "channel of the archive", kind=kinds.CHANNEL)
    metrics_channel: str = option("metrics", "channel of the metrics", kind=kinds.CHANNEL)
    spam_analysis_channel: str = option(
        "spam_analysis", "channel of the spam analysis", kind=kinds.CHANNEL
    )
    queries: tuple[str, ...] = option(
        QUERIES, "queries to run, with commas between them", kind=kinds.some_of(*QUERIES)
    )
    publish: bool = option(
        True, "publish the results to topics, too; --no-publish: only files", kind=kinds.TRUTH
    )
    metrics_topic: str = option(
        "", "topic of the minutes (default <topic>.metrics)", kind=kinds.RESULT_TOPIC
    )
    rejected_topic: str = option(
        "", "topic of what is no click (default <topic>.rejected)", kind=kinds.RESULT_TOPIC
    )
    spam_topic: str = option(
        "", "topic of the findings (default <topic>.spam)", kind=kinds.RESULT_TOPIC
    )
    trigger: str = option(
        "1 second",
        "time between the starts of two batches: seconds, or Spark's words; 0: none",
        kind=kinds.INTERVAL,
    )
    max_offsets_per_trigger: int = option(
        OFFSETS,
        "messages in a batch of metrics or spam_analysis at most",
        kind=kinds.WHOLE,
        least=1,
    )
    archive_min_offsets: int = option(
        ARCHIVE_OFFSETS,
        "messages that a batch of the archive waits for; 0: it does not wait",
        kind=kinds.WHOLE,
        least=0,
        most="archive_max_offsets",
    )
    archive_max_offsets: int = option(
        ARCHIVE_OFFSETS, "messages in a batch of the archive at most", kind=kinds.WHOLE, least=1
    )
    archive_max_delay: str = option(
        "60 seconds", "time that a batch of the archive waits at most", kind=kinds.INTERVAL
    )
    archive_format: str = option(
        "parquet", "format of the archive; delta needs sparq[delta]", kind=kinds.choice(*FORMATS)
    )
    archive_file_size: str = option(
        "128m", "size up to which small files are merged; 0: never", kind=kinds.FILE_SIZE
    )
    master: str = option(
        "",
        "Spark's master: local[4], spark://host:7077, yarn, k8s://... (default local[*], or what"
        " spark-submit says)",
        kind=kinds.MASTER,
    )
    driver_memory: str = option(
        "",
        "heap of the driver (default a quarter of the machine's memory, from 1g to 8g)",
        kind=kinds.HEAP,
    )
    executor_memory: str = option(
        "", "heap of each executor of a cluster (default Spark's, 1g)", kind=kinds.HEAP
    )
    shuffle_partitions: int = option(
        0,
        "partitions of the state, which a query keeps from its first start; 0: one a core",
        kind=kinds.WHOLE,
        least=0,
        most=10_000,
    )
    spark: tuple[tuple[str, str], ...] = option(
        (), "an option of Spark, as in spark.executor.cores=2", kind=kinds.SPARK
    )
    source: tuple[tuple[str, str], ...] = dataclasses.field(
        default=(),
        repr=False,
        metadata=dict(
            text="an option of the source nsq, as in tls_root_ca_file=ca.pem; secrets belong into"
            " the file of --config",
            kind=kinds.SOURCE,
            name="",
            key="",
            least=None,
            most=None,
        ),
    )
    metrics_address: str = option(
        METRICS_ADDRESS, 'host:port of figures for Prometheus; "": none', kind=kinds.LISTENING
    )
    run_dir: str = option(
        "", "local folder for a supervisor: app.json, samples.json, finish", kind=kinds.FOLDER
    )

    def __post_init__(self) -> None:
        """Check the values and bring each to its one spelling."""
        if not self.data:
            raise SettingsError("--data is missing: name the folder of output and checkpoints")
        for flag in flags():
            self._settle(flag, getattr(self, flag.field))
        for flag in flags():
            if flag.kind is kinds.RESULT_TOPIC and not getattr(self, flag.field):
                self._settle(flag, f"{self.topic}.{flag.field.removesuffix('_topic')}")
        self._check_together()

    def _settle(self, flag: Flag, value: Any) -> None:
        object.__setattr__(self, flag.field, settled(flag, value, f"--{flag.name}"))

    def _check_together(self) -> None:
        if not self.queries:
            raise SettingsError(f"--queries is empty: name one or more of {', '.join(QUERIES)}")
        owners: dict[str, str] = {}
        for query, channel in self.channels.items():
            other = owners.setdefault(channel, query)
            if other != query:
                raise SettingsError(
                    f"{_flag_of_channel(query)}={channel} is the channel of {other} as well: each"
                    " query needs one of its own"
                )
        for result, topic in self.result_topics.items():
            if topic == self.topic:
                raise SettingsError(
                    f"--{result}-topic={topic} is the topic of the clicks: results would come back"
                    " as clicks"
                )
        if self.archive_min_offsets > self.archive_max_offsets:
            raise SettingsError(
                f"--archive-min-offsets={self.archive_min_offsets} is above --archive-max-offsets"
                f" ({self.archive_max_offsets}): lower it, or raise --archive-max-offsets"
            )

    @property
    def channels(self) -> dict[str, str]:
        """The channel of each query that runs."""
        return {query: getattr(self, f"{query}_channel") for query in self.queries}

    @property
    def result_topics(self) -> dict[str, str]:
        """The topic of each kind of result that is published: metrics, rejected, spam."""
        if not self.publish:
            return {}
        return {result: getattr(self, f"{result}_topic") for result in RESULTS}

    @property
    def is_local(self) -> bool:
        """Whether `data` is on a local disk."""
        scheme, colon, _ = self.data.partition(":")
        return not colon or "/" in scheme or scheme.lower() == "file"

    @property
    def archive_max_delay_ms(self) -> int:
        """`archive_max_delay` in milliseconds."""
        return kinds.milliseconds(self.archive_max_delay)

    @property
    def archive_file_bytes(self) -> int:
        """`archive_file_size` in bytes; 0: files are never merged."""
        return kinds.size_bytes(self.archive_file_size)


def _flag_of_channel(query: str) -> str:
    return f"--{query.replace('_', '-')}-channel"


@cache
def flags() -> tuple[Flag, ...]:
    """The flags of the settings, in alphabetical order."""
    return tuple(flag._replace(key=flag.name) for flag in flags_of(Settings))


def settled(flag: Flag, value: Any, origin: str) -> Any:
    """A setting's value in its one spelling.

    Args:
        flag: which setting.
        value: what was given for it, in Python's or TOML's types.
        origin: what the sentence about a mistake begins with, such as `--topic`.

    Raises:
        SettingsError: it is wrong.
    """
    try:
        if flag.repeated:
            return flag.kind.gather(flag.kind.coerce(one) for one in _listed(value))
        found = flag.kind.coerce(value)
        _check_bounds(flag, found)
    except ValueError as error:
        # One of the pairs may be a secret: the reason names what is wrong by itself.
        text = ":" if flag.kind in _PAIRS else f"={shown(_text_of(value))}"
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
