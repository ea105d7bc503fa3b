"""The query `spam_analysis`: who of the visitors is a robot or a fraud, and by what evidence.

Spark says of each click who made it and what it asked for; the books of the suspects (`findings`)
hold the open visits and apply the rules (`visits`).

    data/spam_analysis/batch=12/findings.parquet   FINDING_SCHEMA: the newest revision counts
    topic clicks.spam                              the same as JSON, at least once

1. What a batch writes lies in a folder of its id, so a repeated batch replaces it: exactly once.
2. The state is saved last: what stands in it has been written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from sparq.pipeline import clicks as click
from sparq.pipeline.findings import CLICK_SCHEMA, FINDING_SCHEMA, FindingBooks
from sparq.pipeline.folders import Folders, read_batches, write_batch
from sparq.pipeline.robots import declared_name
from sparq.pipeline.state import StateStore
from sparq.pipeline.visits import OTHER, PAGE, RESOURCE, ROBOTS_TXT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUERY = "spam_analysis"
SPAM_TOPIC = "clicks.spam"
TEXT_CHARACTERS_MAX = 400  # of a user agent or a page: a finding must fit into a message

Publish = Callable[[str, list[bytes]], None]

# What a page loads by itself, by the ending of its name.
# fmt: off
RESOURCE_ENDINGS = (
    "css", "js", "mjs", "map", "json", "png", "jpg", "jpeg", "gif", "svg", "ico", "webp", "avif",
    "bmp", "woff", "woff2", "ttf", "otf", "eot", "mp4", "webm", "mp3", "ogg", "wasm",
)
# Neither page nor part of one: feeds and downloads.
OTHER_ENDINGS = (
    "rss", "rdf", "atom", "xml", "txt", "pdf", "zip", "gz", "tgz", "bz2", "xz", "rpm", "deb", "jar",
    "exe", "dmg", "iso",
)
# fmt: on
_FEED = r"/(?:feed|rss|atom)/?$"


def kind() -> Column:
    """What a click asked for, as the numbers of `visits`."""
    page = F.col("page")
    ending = F.lower(F.regexp_extract(page, r"\.([0-9A-Za-z]{2,5})$", 1))
    return (
        F.when(page == "/robots.txt", ROBOTS_TXT)
        .when(page.isNull() | ending.isin(*OTHER_ENDINGS) | page.rlike(_FEED), OTHER)
        .when(ending.isin(*RESOURCE_ENDINGS), RESOURCE)
        .otherwise(PAGE)
        .cast("tinyint")
    )


def prepared(messages: DataFrame) -> DataFrame:
    """Each readable click as CLICK_SCHEMA has it but for `robot`, with what the watermark needs.

    For the stream, not for its batches: these expressions are planned once, not once a batch.
    """
    agent = F.substring(F.coalesce("user_agent", F.lit("-")), 1, TEXT_CHARACTERS_MAX)
    name = F.concat_ws("\n", "address", F.coalesce("user_agent", F.lit("-")))
    return click.readable(click.parse(messages)).select(
        F.substring(F.sha2(name, 256), 1, 32).alias("visitor"),
        "address",
        agent.alias("user_agent"),
        F.unix_seconds("time").alias("second"),
        kind().alias("kind"),
        F.substring(F.coalesce("page", F.lit("-")), 1, TEXT_CHARACTERS_MAX).alias("page"),
        "id",
        "nsqd",
        F.least(F.unix_seconds("time"), F.unix_seconds("timestamp")).alias("newest"),
    )


def with_robots(rows: pa.Table) -> pa.Table:
    """The rows of `prepared` as CLICK_SCHEMA: with the name by which each robot declares itself.

    Here, not in Spark: thirty words in each of some hundred user agents, not in each of the rows.
    """
    agents = rows["user_agent"].combine_chunks().dictionary_encode()
    names = pa.array([declared_name(one) for one in agents.dictionary.to_pylist()], pa.string())
    robots = names.take(agents.indices)
    return rows.append_column("robot", robots).select(CLICK_SCHEMA.names).cast(CLICK_SCHEMA)


class SpamSink:
    """What foreachBatch calls: one batch of clicks into the books, new findings out."""

    def __init__(self, folders: Folders, publish: Publish) -> None:
        self._folders = folders
        self._publish = publish
        # Judged visits leave the state, so each batch keeps the whole of it.
        self._store = StateStore(folders.state_of(QUERY), snapshot_every=1)
        self._books = FindingBooks()
        self._next_batch = -1

    def __call__(self, clicks: DataFrame, batch_id: int) -> None:
        """Take in one prepared micro-batch, or the same one once more."""
        books = self._books_before(batch_id)
        self._next_batch = -1  # until this batch is through, what is in memory is half done
        rows = clicks.toArrow()
        newest = rows.group_by("nsqd", use_threads=False).aggregate([("newest", "max")])
        times = zip(newest["nsqd"].to_pylist(), newest["newest_max"].to_pylist(), strict=True)
        self._write(batch_id, books.apply(batch_id, with_robots(rows), dict(times)))
        self._store.save(batch_id, books.tables(), books.books())
        self._next_batch = batch_id + 1

    def close(self, next_batch: int) -> None:
        """Judge the open visits, and write what is not yet written, as the next batch."""
        self._write(next_batch, self._books_before(next_batch).close())
        self._next_batch = -1

    def figures(self) -> dict[str, int]:
        """What has been counted so far."""
        return {"clicks": self._books.clicks, **self._books.counts()}

    def _books_before(self, batch_id: int) -> FindingBooks:
        if self._next_batch != batch_id:
            self._books = FindingBooks(*self._store.load(batch_id))
            self._next_batch = batch_id
        return self._books

    def _write(self, batch_id: int, findings: pa.Table) -> None:
        write_batch(self._folders.spam_analysis, batch_id, "findings", findings)
        if len(findings):
            self._publish(SPAM_TOPIC, [_as_json(row) for row in findings.to_pylist()])


def read(folders: Folders) -> pa.Table:
    """All revisions of all findings, columns of FINDING_SCHEMA."""
    return read_batches(folders.spam_analysis, FINDING_SCHEMA)


def _as_json(row: dict[str, Any]) -> bytes:
    times = {name: row[name].strftime("%Y-%m-%dT%H:%M:%SZ") for name in ("first_time", "last_time")}
    return json.dumps({**row, **times, "evidence": json.loads(row["evidence"])}).encode()
