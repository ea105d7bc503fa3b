"""The reference of the pipeline's bench: plain Spark on the same clicks, from Parquet files.

Three batch jobs as an engineer who knows Spark would write them for these logs alone: a line is
taken apart by one pass of one regular expression, JSON by `from_json`. Nothing is checked beyond
that, no line gets a reason why it cannot be read, and nothing goes on from one run to the next. So
it is the least that the three queries must do, without a stream.

1. archive: parse, and write Parquet by date and hour.
2. metrics: parse, and count by minute, with the exact number of visitors.
3. visitors: parse, and collect each visitor's clicks in order of time.

Clicks that cannot be read have no time, and are a partition, a minute and a visitor of their own. A
filter on the time would cost the regular expression twice: Spark evaluates it in the filter, which
it moves below the projection, and again in the projection.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

CUT = "\u0001"
LINE = (
    r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) ([^"]+)" (\d{3}|-) (\d+|-)'
    r'(?: "([^"]*)" "([^"]*)")?.*$'
)
GROUPS = 9
JSON = (
    "time STRING, remote_addr STRING, request STRING, status INT, body_bytes_sent BIGINT,"
    " http_referer STRING, http_user_agent STRING"
)
CLF_TIME = "dd/MMM/yyyy:HH:mm:ss Z"


def one_pass(messages: DataFrame) -> DataFrame:
    """One `regexp_replace` over the lines, and nothing else: the cost of reading the text once."""
    return messages.select(_groups(F.col("body").cast("string")).alias("groups"))


def _groups(line: Column) -> Column:
    return F.regexp_replace(line, LINE, CUT.join(f"${number}" for number in range(1, GROUPS + 1)))


def parsed(messages: DataFrame) -> DataFrame:
    """The messages as clicks; one that cannot be read has no time."""
    line = F.col("body").cast("string")
    is_json = line.startswith("{")
    held = messages.select(
        "*",
        F.when(is_json, F.from_json(line, JSON)).alias("json"),
        F.when(~is_json, F.split(_groups(line), CUT)).alias("line"),
    )
    group = [F.get("line", F.lit(number)) for number in range(GROUPS)]
    request = F.split(F.col("json.request"), " ")
    return held.select(
        "id",
        "nsqd",
        "index",
        "timestamp",
        "body",
        F.coalesce(
            F.try_to_timestamp(group[1], F.lit(CLF_TIME)),
            F.try_to_timestamp(F.col("json.time")),
        ).alias("time"),
        F.coalesce(group[0], "json.remote_addr").alias("address"),
        F.coalesce(group[2], F.get(request, F.lit(0))).alias("method"),
        F.coalesce(group[3], F.get(request, F.lit(1))).alias("path"),
        F.coalesce(group[4], F.get(request, F.lit(2))).alias("protocol"),
        F.coalesce(group[5].try_cast("int"), "json.status").alias("status"),
        F.coalesce(group[6].try_cast("bigint"), "json.body_bytes_sent", F.lit(0)).alias("bytes"),
        F.coalesce(group[7], "json.http_referer").alias("referer"),
        F.coalesce(group[8], "json.http_user_agent").alias("user_agent"),
    )


def archive(messages: DataFrame, folder: str) -> None:
    """The first job."""
    day, hour = F.date_format("time", "yyyy-MM-dd"), F.date_format("time", "HH")
    clicks = parsed(messages).withColumns({"date": day, "hour": hour})
    clicks.write.partitionBy("date", "hour").mode("overwrite").parquet(folder)


def metrics(messages: DataFrame, folder: str) -> None:
    """The second job."""
    minutes = parsed(messages).groupBy(F.date_trunc("minute", "time").alias("minute"))
    counted = minutes.agg(
        F.count("*").alias("clicks"),
        F.count_distinct("address", "user_agent").alias("visitors"),
        F.sum("bytes").alias("bytes"),
    )
    counted.write.mode("overwrite").parquet(folder)


def visitors(messages: DataFrame, folder: str) -> None:
    """The third job."""
    clicks = parsed(messages).groupBy("address", "user_agent")
    held = clicks.agg(F.sort_array(F.collect_list(F.struct("time", "path", "id"))).alias("clicks"))
    held.write.mode("overwrite").parquet(folder)


JOBS: tuple[Callable[[DataFrame, str], None], ...] = (archive, metrics, visitors)


def seconds(spark: Any, clicks: Path, folder: Path) -> dict[str, float]:
    """Run the three jobs one after the other; how long each took."""
    took = {}
    for job in JOBS:
        begun = time.perf_counter()
        job(spark.read.parquet(str(clicks)), str(folder / job.__name__))
        took[job.__name__] = time.perf_counter() - begun
    return took
