"""The reference of the pipeline's bench: plain Spark on the same clicks, from Parquet files.

Three batch jobs as an experienced Spark engineer would write them for these logs only: one regular
expression parses a line in one pass, `from_json` parses JSON. There are no further checks, no
reasons for unreadable lines, and no state that one run passes to the next. So the jobs do the
minimum of the three queries' work, without streaming.

1. archive: parse, and write Parquet by date and hour.
2. metrics: parse, and count by minute, with the exact number of visitors.
3. visitors: parse, and collect each visitor's clicks in order of time.

Unreadable clicks have no time; they are a separate partition, minute and visitor. They are not
filtered out by time, since Spark would then evaluate the regular expression twice: in the filter,
which it moves below the projection, and in the projection.
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


def _groups(line: Column) -> Column:
    return F.regexp_replace(line, LINE, CUT.join(f"${number}" for number in range(1, GROUPS + 1)))


def parsed(messages: DataFrame) -> DataFrame:
    """The messages as clicks; an unreadable one has no time."""
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
    """Write the clicks as Parquet, by date and hour."""
    day, hour = F.date_format("time", "yyyy-MM-dd"), F.date_format("time", "HH")
    clicks = parsed(messages).withColumns({"date": day, "hour": hour})
    clicks.write.partitionBy("date", "hour").mode("overwrite").parquet(folder)


def metrics(messages: DataFrame, folder: str) -> None:
    """Write clicks, visitors and bytes per minute."""
    minutes = parsed(messages).groupBy(F.date_trunc("minute", "time").alias("minute"))
    counted = minutes.agg(
        F.count("*").alias("clicks"),
        F.count_distinct("address", "user_agent").alias("visitors"),
        F.sum("bytes").alias("bytes"),
    )
    counted.write.mode("overwrite").parquet(folder)


def visitors(messages: DataFrame, folder: str) -> None:
    """Write each visitor's clicks in order of time."""
    clicks = parsed(messages).groupBy("address", "user_agent")
    held = clicks.agg(F.sort_array(F.collect_list(F.struct("time", "path", "id"))).alias("clicks"))
    held.write.mode("overwrite").parquet(folder)


JOBS: tuple[Callable[[DataFrame, str], None], ...] = (archive, metrics, visitors)


def seconds(spark: Any, clicks: Path, folder: Path) -> dict[str, float]:
    """Run the three jobs one after the other; return the seconds of each."""
    took = {}
    for job in JOBS:
        begun = time.perf_counter()
        job(spark.read.parquet(str(clicks)), str(folder / job.__name__))
        took[job.__name__] = time.perf_counter() - begun
    return took
