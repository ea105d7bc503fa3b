"""The query `archive`: every click that can be read, as Parquet by date and hour (UTC event time).

    data/archive/date=2026-03-02/hour=10/part-*.parquet    columns of ARCHIVE_COLUMNS

1. Spark's file sink and its checkpoint make it exactly once: what `_spark_metadata` names counts,
   files of a killed write do not. Read the folder through Spark, or through `read`.
2. Messages that cannot be read are not clicks; the query `metrics` keeps them in `data/rejected`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from sparq.pipeline import clicks as click

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparq.pipeline.folders import Folders

QUERY = "archive"

# Message id and place, the click, and the body as it came.
ARCHIVE_COLUMNS = (
    *("id", "nsqd", "index", "timestamp"),
    *(name for name in click.CLICK_COLUMNS if name != "reason"),
    "body",
)
READ_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("address", pa.string()),
        ("user_agent", pa.string()),
        ("page", pa.string()),
        ("status", pa.int32()),
        ("bytes", pa.int64()),
        ("body", pa.binary()),
    ]
)
METADATA = "_spark_metadata"


def archived(messages: DataFrame) -> DataFrame:
    """The readable clicks of some messages, as they are archived."""
    clicks = click.readable(click.parse(messages)).select(*ARCHIVE_COLUMNS)
    day = F.date_format("time", "yyyy-MM-dd")
    return clicks.withColumns({"date": day, "hour": F.date_format("time", "HH")})


def committed_files(directory: Path) -> list[Path]:
    """The files that the file sink has committed.

    Its log has a file a batch, each a version line and then a JSON object a line; from time to time
    one `<batch>.compact` stands for itself and all before it.
    """
    log = directory / METADATA
    names = [path.name for path in log.glob("[0-9]*")] if log.is_dir() else []
    compact = max((int(n.split(".")[0]) for n in names if n.endswith(".compact")), default=-1)
    batches = sorted(int(n) for n in names if n.isdigit() and int(n) > compact)
    parts = [f"{compact}.compact"] if compact >= 0 else []
    found: dict[Path, None] = {}
    for name in (*parts, *map(str, batches)):
        for entry in _entries(log / name):
            path = Path(unquote(urlsplit(entry["path"]).path))
            if entry["action"] == "delete":
                found.pop(path, None)
            else:
                found[path] = None
    return list(found)


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:] if line]


def read(folders: Folders) -> pa.Table:
    """The archived clicks, columns of READ_SCHEMA."""
    tables = [READ_SCHEMA.empty_table()]
    for path in committed_files(folders.archive):
        found = pq.read_table(path, columns=READ_SCHEMA.names, partitioning=None)
        tables.append(found.cast(READ_SCHEMA))
    return pa.concat_tables(tables)
