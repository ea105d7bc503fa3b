"""Reports made without a pipeline run: a day of clicks, findings, and hostile texts."""

import math
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from sparq.pipeline.metrics import STATUS_CLASSES
from sparq.pipeline.monitor.progress import QuerySample
from sparq.pipeline.report_page.page import page_of
from sparq.pipeline.sessions.output import FINDINGS
from sparq.pipeline.sessions.rules import REASONS

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)
BEGIN_MINUTE = int(BEGIN.timestamp()) // 60
QUERIES = ("archive", "metrics", "spam_analysis")

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<svg onload=alert(2)>",
    '"><script>alert(3)</script>',
    "' onmouseover='alert(4)",
    "</style><style>*{display:none}</style>",
    "<a href=https://example.com/>free</a><b>bold</b>",
    "&lt;b&gt; &amp;amp; &#60;script&#62;alert(5)&#60;/script&#62;",
    "]]><!-- --!><![CDATA[",
    "right\u202eto left\u2066\x00\x07\ud800",
    "{{7*7}} ${7*7} $\\frac{1}{2}$ %(x)s {0}",
)


def minutes(at, clicks):
    """Rows of the metrics: minutes since 1970, with generated visitors and statuses."""
    at, clicks = np.asarray(at, np.int64), np.asarray(clicks, np.int64)
    columns = {
        "minute": pa.array(at * 60_000_000, pa.timestamp("us", "UTC")),
        "clicks": clicks,
        "visitors": (clicks + 2) // 3,
        "bytes": clicks * 5_000,
        **{f"status_{name}": np.zeros(len(at), np.int64) for name in STATUS_CLASSES},
        "status_2xx": clicks - clicks // 5,
        "status_3xx": clicks // 10,
        "status_4xx": clicks // 5 - clicks // 10,
    }
    return pa.table(columns)


def day(count=1_440):
    """The minutes of a day with a quiet night and a burst in the afternoon."""
    at = np.arange(count)
    curve = 120 - 100 * np.cos(at / count * 2 * math.pi) + 15 * np.sin(at / 7) + at % 11
    curve[count * 5 // 8 : count * 5 // 8 + count // 60] += 180
    return minutes(BEGIN_MINUTE + at, curve)


def findings(count=30, texts=("Mozilla/5.0",)):
    """Findings of each reason; `texts` in turn wherever a click's text may appear."""
    rows = [
        {
            "session": f"{number:016x}",
            "visitor": number,
            "address": f"203.0.113.{number % 250}",
            "user_agent": texts[number % len(texts)],
            "reason": [*REASONS][number % len(REASONS)],
            "revision": 1,
            "withdrawn": False,
            "amount": 10 + number * 37 % 200,
            "first_time": BEGIN,
            "last_time": BEGIN,
            "evidence": texts[(number + 3) % len(texts)],
            "message_ids": ["0" * 16],
        }
        for number in range(count)
    ]
    # An Arrow string cannot hold a lone surrogate; text read from JSON may.
    for row in rows:
        for name in ("user_agent", "evidence"):
            row[name] = row[name].replace("\ud800", "")
    return pa.Table.from_pylist(rows, FINDINGS)


def report(table=None, found=None, *, pages=("/", "/pricing", "/docs/start"), **more):
    """The report of a successful run with these minutes and findings."""
    table = day() if table is None else table
    clicks = sum(table["clicks"].to_pylist())
    reasons = [] if found is None else found["reason"].to_pylist()
    by_reason = {reason: reasons.count(reason) for reason in REASONS}
    score = {"found": 30, "planted": 31, "precision": 0.9667, "recall": 0.9355}
    return {
        "published": clicks + 1,
        "archived": clicks,
        "distinct": clicks,
        "rejected": 1,
        "sessions": clicks // 7,
        "session_clicks": clicks,
        "evicted_visits": 0,
        "evicted_clicks": 0,
        "resent": 0,
        "metrics_clicks": clicks,
        "findings": by_reason,
        "exactly_once": True,
        "seconds": 31.4,
        "source": "generated clicks, seed 1",
        "logged": clicks + 1,
        "failures": [],
        "restarts": [],
        "minutes": len(table),
        "bytes": clicks * 5_000,
        "visitors": clicks // 9,
        "statuses": {},
        "top_pages": [
            {"page": page, "clicks": clicks // (4 + rank)} for rank, page in enumerate(pages)
        ],
        "rejected_by_reason": {"not a log line": 1},
        "stage_seconds": {"starting": 9.1, "publishing": 8.8, "draining": 10.2, "total": 31.4},
        "clicks_per_second": round(clicks / 31.4),
        "scores": {name: score for name in (*REASONS, "all")},
        **more,
    }


def samples(count=40, began_s=1_795_000_000.0):
    """The progress of three queries that catch up with a backlog."""
    return [
        QuerySample(
            began_s + number + at / 5,
            query,
            1_500.0 * (3 - at) * (1 + math.sin(number / 5) / 3),
            round(80_000 * (1 - number / count) ** 2 / (3 - at)),
            round(12 * (1 - number / count) + at, 3),
        )
        for number in range(count)
        for at, query in enumerate(QUERIES)
    ]


def page(table=None, found=None, progress=(), **more):
    """The page of a run with these minutes and findings."""
    table = day() if table is None else table
    found = findings() if found is None else found
    return page_of(report(table, found, **more), table, found, progress)
