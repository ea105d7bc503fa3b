"""Clicks of visitors for tests, and one bucket of the query without Spark.

`Bucket` runs the real processor in Spark's test harness, with messages that the real reader has
read and the real packer has packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
from pyspark.sql.streaming.tws_tester import TwsTester

from sparq.pipeline.enrich import parse_arrow
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sessions.judge import findings_of, judged, sessions_of
from sparq.pipeline.sessions.pack import from_blob, packed
from sparq.pipeline.sessions.rules import Rules, read_rules
from sparq.pipeline.sessions.state import LowMark, Meta, OpenSessions, SessionsProcessor
from tests.pipeline.query_input import message_table

RULES = read_rules(None, CLICK_SCHEMA)
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
BEGIN_S = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp())
PUBLISHED_S = BEGIN_S + 86_400
"""Time of the first batch."""


@dataclass(frozen=True)
class Click:
    """A click; `second` counts from BEGIN_S."""

    second: int
    page: str = "/"
    address: str = "203.0.113.7"
    agent: str = BROWSER
    referer: str = "-"

    def line(self) -> bytes:
        """The click in the combined format."""
        at = datetime.fromtimestamp(BEGIN_S + self.second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        return (
            f'{self.address} - - [{at}] "GET {self.page} HTTP/1.1" 200 512'
            f' "{self.referer}" "{self.agent}"'
        ).encode()


def messages(
    lines: list[bytes],
    first: int = 0,
    published_s: int = BEGIN_S,
    nsqd: str = "a",
) -> pa.Table:
    """Lines as messages of one nsqd, as the packer gets them."""
    return message_table(lines, first, (nsqd,), datetime.fromtimestamp(published_s, UTC))


def packed_rows(table: pa.Table, rules: Rules = RULES, buckets: int = 1) -> pd.DataFrame:
    """Messages as packed rows."""
    read = pa.concat_tables([parse_arrow(one, rules.needed) for one in table.to_batches()])
    return packed(read, rules, buckets).to_pandas()


def judged_once(clicks: list[Click], rules: Rules = RULES, site: Any = (100, 90)) -> pl.DataFrame:
    """The findings about clicks: columns of visits, `reason`, `amount`. All visits are over."""
    return judged_lines([one.line() for one in clicks], rules, site)


def judged_lines(lines: list[bytes], rules: Rules = RULES, site: Any = (0, 0)) -> pl.DataFrame:
    """The findings about lines of a log that is judged as a whole."""
    (row,) = packed_rows(messages(lines), rules).to_dict("records")
    frame = from_blob(row["clicks"]).with_columns(late=pl.lit(False), arrived=pl.lit(0, pl.Int64))
    sessions = judged(sessions_of(frame, rules.visit.gap), from_blob(row["visitors"]), rules, site)
    sessions = sessions.with_columns(over=pl.lit(True))
    return findings_of(sessions, rules).join(sessions, on="session", how="left")


def reasons(clicks: list[Click], rules: Rules = RULES, site: Any = (100, 90)) -> list[str]:
    """The reasons of the findings about clicks, in the order of the rules."""
    return judged_once(clicks, rules, site)["reason"].to_list()


class Bucket:
    """One bucket of the query, batch by batch.

    Attributes:
        sessions, findings: what it has put out.
        batch_ms: the time of the next batch, a second after the one before.
    """

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.tester = TwsTester(SessionsProcessor(rules))
        self.sessions: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        self.counts: list[dict[str, int]] = []
        self.batch_ms = PUBLISHED_S * 1000
        self.messages = 0

    def batch(self, clicks: list[Click], nsqd: str = "a", **given: Any) -> None:
        """Process a batch of clicks, published when it begins."""
        self.lines([one.line() for one in clicks], nsqd, **given)

    def lines(self, lines: list[bytes], nsqd: str = "a", published_s: int | None = None) -> None:
        """Process a batch of lines."""
        published_s = self.batch_ms // 1000 if published_s is None else published_s
        table = messages(lines, self.messages, published_s, nsqd)
        rows = packed_rows(table, self.rules).assign(batch_ms=self.batch_ms)
        self.messages += len(lines)
        self.batch_ms += 1000
        self.take(self.tester.testInPandas(0, rows))

    def sweep(self) -> None:
        """Process batches of messages that are no clicks, until the bucket has swept."""
        while True:
            self.lines([b"no click"])
            if self.meta().batches % 16 == 0:
                return

    def restart(self, rules: Rules) -> None:
        """Go on with other rules and the same state."""
        clicks, held = self.tester.peekListState("clicks", 0), self.tester.peekValueState("held", 0)
        self.rules, self.tester = rules, TwsTester(SessionsProcessor(rules))
        self.tester.updateListState("clicks", 0, clicks)
        self.tester.updateValueState("held", 0, held)

    def close(self) -> None:
        """End the run."""
        if elements := self.tester.peekListState("clicks", 0):
            told = self.tester.peekValueState("held", 0)[1]
            row = OpenSessions(elements, told, self.meta(), self.rules).close()
            assert row is not None
            self.take(row)

    def take(self, answer: pd.DataFrame) -> None:
        """Note output rows."""
        for row in answer.to_dict("records"):
            for name in ("sessions", "findings"):
                if row[name]:
                    getattr(self, name).extend(from_blob(row[name]).to_dicts())
            self.counts.append(row)

    def meta(self) -> Meta:
        """The bucket's figures."""
        held = self.tester.peekValueState("held", 0)
        return msgspec.json.decode(held[0], type=Meta) if held else Meta(LowMark())
