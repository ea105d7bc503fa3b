"""The query `archive`: every click, and every message that is not one, in one pass over a batch.

data/clicks      the columns of CLICKS: message id and place, the click, and the unchanged body
data/rejected    id, nsqd, index, timestamp, reason, body
topic clicks.rejected    the rejected messages as JSON, at least once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparq.pipeline import clicks as click
from sparq.pipeline.maintenance import Maintenance
from sparq.pipeline.reading.schema import Reading, click_schema
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import Table, Tables, arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparq.pipeline.publish import ResultTopics
    from sparq.pipeline.run.folders import Folders

QUERY = "archive"
# Limit for a rejected message on its topic: in JSON a byte can become six, and nsqd takes 1 MiB.
ORIGINAL_BYTES_MAX = 160_000

_MESSAGE = (
    pa.field("id", pa.string()),
    pa.field("nsqd", pa.string()),
    pa.field("index", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
)
_BODY = pa.field("body", pa.binary())
REJECTED = Table(
    "rejected", pa.schema([*_MESSAGE, pa.field("reason", pa.string()), _BODY]), "timestamp"
)


def clicks_table(reading: Reading = click.USUAL) -> Table:
    """The table of clicks that are read in this way: with the user's columns."""
    fields = [field for field in click_schema(reading) if field.name != "reason"]
    return Table("clicks", pa.schema([*_MESSAGE, *fields, _BODY]), "time")


CLICKS = clicks_table()


def split(
    batches: Iterable[pa.RecordBatch], reading: Reading = click.USUAL
) -> Iterator[Mapping[str, pa.Table]]:
    """Messages as rows of the two tables; each message is in one of them."""
    names = clicks_table(reading).schema.names
    for batch in batches:
        parsed = click.parse_arrow(batch, reading=reading)
        is_click = pc.is_null(parsed["reason"])
        yield {
            CLICKS.name: parsed.filter(is_click).select(names),
            REJECTED.name: parsed.filter(pc.invert(is_click)).select(REJECTED.schema.names),
        }


class ArchiveSink:
    """A function for foreachBatch: writes a batch of messages into both tables.

    Args:
        spark: the session.
        data: the data folder.
        topics: the topics for results; None: rejected messages are not published.
        keep_days: days of rows to keep; 0: all.
        counted: takes the number of rejected messages of each batch.
        reading: how messages are read.
    """

    def __init__(
        self,
        spark: SparkSession,
        data: str,
        topics: ResultTopics | None = None,
        *,
        keep_days: int = 0,
        counted: Callable[[int], None] = lambda _: None,
        reading: Reading = click.USUAL,
    ) -> None:
        self._tables = Tables(spark, data, [REJECTED, clicks_table(reading)])
        self._split = partial(split, reading=reading)
        self._maintenance = Maintenance(self._tables, keep_days)
        self._topics = topics
        self._counted = counted

    def __call__(self, messages: DataFrame, batch_id: int) -> None:
        """Process one micro-batch, also if it is repeated."""
        spark = messages.sparkSession
        written = self._tables.write(messages, batch_id, self._split)
        rejected = written.get(REJECTED.name)
        self._counted(rejected.rows if rejected else 0)
        if self._topics is not None and rejected:
            rows = self._tables.frame(spark, REJECTED.name, rejected.files)
            bodies = rows.select(_as_json().alias("body"))
            self._topics.publish(self._topics.rejected, bodies)
        self._maintenance.between_batches(spark)


def read_clicks(folders: Folders) -> pa.Table:
    """The clicks on a local disk, with the columns that audit and report need."""
    columns = ("id", "address", "user_agent", "page", "status", "bytes", "body")
    return arrow(TablePlace(str(folders.clicks.absolute())), CLICKS, columns)


def read_rejected(folders: Folders) -> pa.Table:
    """The rejected messages on a local disk, with the columns that audit and report need."""
    return arrow(TablePlace(str(folders.rejected.absolute())), REJECTED, ("id", "reason", "body"))


def _as_json() -> Column:
    """Reason and original message; in base64 if it is not UTF-8, cut if it is too long."""
    body = F.expr(f"substring(body, 1, {ORIGINAL_BYTES_MAX})")
    text = body.cast("string")
    is_text = F.expr(f"is_valid_utf8(cast(substring(body, 1, {ORIGINAL_BYTES_MAX}) AS STRING))")
    cut = F.length("body") > ORIGINAL_BYTES_MAX
    return F.to_json(
        F.struct(
            "reason",
            F.when(is_text, text).alias("original"),
            F.when(~is_text, F.base64(body)).alias("original_base64"),
            F.when(cut, F.length("body")).alias("original_bytes"),
            *("id", "nsqd", F.col("index").cast("string").alias("index"), "timestamp"),
        )
    ).cast("binary")
