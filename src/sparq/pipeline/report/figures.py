"""What the tables say about a period: totals, figures over time, and the most frequent values.

A page view is a click whose `kind` is page, or that has no path, with a status below 400, and not
of a declared robot. What needs a column that the pipeline's settings have switched off is left out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl
import pyarrow as pa

from sparq.pipeline.archive import CLICKS, REJECTED
from sparq.pipeline.enrich import kind
from sparq.pipeline.metrics import MINUTES, PAGES, STATUS_CLASSES
from sparq.pipeline.spam_analysis import FINDINGS, SESSIONS
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import DAY, Table, day_of, files_of, schema_of

TABLES: Final = (CLICKS, REJECTED, MINUTES, PAGES, SESSIONS, FINDINGS)
STATUSES: Final = tuple(f"status_{name}" for name in STATUS_CLASSES)
SUMS: Final = pl.col("clicks", "bytes", *STATUSES).sum()
EARLIEST, LATEST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
STEPS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(1)}
POINTS_MAX: Final = 2_000  # of a chart over time: 33 hours by minute, 83 days by hour
TOP: Final = 50
EXAMPLES: Final = 5

TOP_LISTS: Final = (
    # section, title, unit, rows, column
    ("Pages", "Pages", "views", "views", "page"),
    ("Pages", "Entry pages", "sessions", "visits", "entry"),
    ("Pages", "Exit pages", "sessions", "visits", "exit"),
    ("Pages", "Not found", "clicks", "missing", "page"),
    ("Sources", "Sources", "views", "arrivals", "referrer_class"),
    ("Sources", "Referring sites", "views", "arrivals", "site"),
    ("Sources", "Search engines", "views", "arrivals", "search_engine"),
    ("Sources", "Campaigns", "views", "views", "utm_campaign"),
    ("Visitors", "Devices", "views", "views", "device"),
    ("Visitors", "Browsers", "views", "views", "browser"),
    ("Visitors", "Systems", "views", "views", "os"),
    ("Visitors", "Countries", "views", "views", "country"),
    ("Visitors", "Networks", "views", "views", "network"),
    ("Robots and rejected messages", "Robots", "clicks", "clicks", "robot"),
    ("Robots and rejected messages", "Rejected by reason", "messages", "rejected", "reason"),
)


def scan(
    data: TablePlace, table: Table, since: datetime = EARLIEST, until: datetime = LATEST
) -> pl.LazyFrame:
    """The rows of a table from `since` to before `until`; none if its query never started."""
    place, schema, paths = data.of(table.name), table.schema, []
    if place.exists():
        delta = place.table()
        schema = pa.schema([one for one in schema_of(delta) if one.name != DAY.name])
        days = since.date().isoformat(), until.date().isoformat()
        files = [one for one in files_of(delta) if days[0] <= day_of(one.path) <= days[1]]
        paths = [f"{place.address}/{one.path}" for one in files]
    empty = pl.DataFrame(pl.from_arrow(schema.empty_table()))
    if not paths:
        return empty.lazy()
    # Not `scan_delta`: polars 2 does not find files below a folder with a space or a percent sign.
    rows = pl.scan_parquet(
        paths,
        schema=empty.schema,
        missing_columns="insert",
        hive_partitioning=False,
        glob=False,
        storage_options=place.options or None,
    )
    return rows.filter(pl.col(table.time).is_between(since, until, closed="left"))


def figures_of(
    data: TablePlace, since: datetime | None = None, until: datetime | None = None
) -> dict[str, Any]:
    """All figures from `since` to before `until`, by name; None: no limit."""
    start, end = since or EARLIEST, until or LATEST
    rows = {table.name: scan(data, table, start, end) for table in TABLES}
    rows |= _rows_of_clicks(rows["clicks"])
    rows["visits"] = rows["sessions"].filter(pl.col("robot").is_null())
    hashes = rows["minutes"].select("minute", pl.col("visitor_hashes").alias("visitor"))
    rows["hashes"] = hashes.explode("visitor").drop_nulls()
    by_minute = rows["minutes"].group_by("minute").agg(SUMS).sort("minute").collect()
    findings = newest_findings(rows["findings"])
    top_lists = [
        {"section": section, "title": title, "unit": unit, **_most(column, rows[of])}
        for section, title, unit, of, column in TOP_LISTS
        if _has(rows[of], column)
    ]
    return {
        "minutes": len(by_minute),
        **by_minute.select(SUMS).row(0, named=True),
        **_totals(rows),
        "over_time": _over_time(by_minute, rows, since, until) if len(by_minute) else None,
        "top_lists": [one for one in top_lists if one["rows"]],
        "findings": dict(findings["reason"].value_counts(sort=True).iter_rows()),
        "examples": findings.group_by("reason", maintain_order=True).head(EXAMPLES).to_dicts(),
    }


def _totals(rows: dict[str, pl.LazyFrame]) -> dict[str, Any]:
    evicted = pl.col("clicks").filter(pl.col("ended") == "room")
    seconds = (pl.col("last_time") - pl.col("first_time")).dt.total_seconds()
    sessions = {"sessions": pl.len(), "evicted_visits": evicted.len()}
    totals = (
        rows["hashes"].select(visitors=pl.col("visitor").n_unique()),
        rows["views"].select(views=pl.len()),
        rows["sessions"].select(**sessions, evicted_clicks=evicted.sum()),
        rows["visits"].select(
            visits=pl.len(),
            visit_pages=pl.col("pages").mean(),
            visit_seconds=seconds.median(),
            bounces=(pl.col("pages") <= 1).mean(),
        ),
    )
    found = pl.collect_all(totals, engine="streaming")
    return pl.concat(found, how="horizontal").row(0, named=True)


def newest_findings(findings: pl.LazyFrame) -> pl.DataFrame:
    """The newest revision of each finding that holds, those with most evidence first."""
    newest = findings.sort("revision").unique(["session", "reason"], keep="last")
    held = newest.filter(~pl.col("withdrawn"))
    return held.sort("amount", "address", "user_agent", descending=[True, False, False]).collect()


def _has(rows: pl.LazyFrame, column: str) -> bool:
    return column in rows.collect_schema()


def _rows_of_clicks(clicks: pl.LazyFrame) -> dict[str, pl.LazyFrame]:
    """The clicks, page views, views that came from other sites, and requests of missing pages."""
    if not _has(clicks, "kind"):
        pages = clicks.select(pl.col("page").drop_nulls().unique()).collect(engine="streaming")
        kinds = pl.Series("kind", [kind(page)[0] for page in pages["page"]], pl.String)
        clicks = clicks.join(pages.with_columns(kinds).lazy(), on="page", how="left")
    visitor = pl.struct("address", "user_agent").hash()
    clicks = clicks.with_columns(
        visitor=pl.when(pl.col("address").is_not_null()).then(visitor),
        site=pl.col("referer").str.extract(r"^https?://(?:www\.)?([^/?#]+)"),
    )
    is_page = pl.col("kind").fill_null("page") == "page"
    views = clicks.filter(is_page, pl.col("status").fill_null(0) < 400)
    if _has(clicks, "robot"):
        views = views.filter(pl.col("robot").is_null())
    arrivals = views
    if _has(clicks, "referrer_class"):
        arrivals = views.filter(pl.col("referrer_class") != "internal")
    missing = clicks.filter(pl.col("status") == 404)
    return {"clicks": clicks, "views": views, "arrivals": arrivals, "missing": missing}


def _most(column: str, rows: pl.LazyFrame) -> dict[str, Any]:
    """The values of a column with most rows, each with that number and that of visitors or None."""
    rows = rows.filter(pl.col(column).is_not_null())
    visitors = pl.col("visitor").n_unique() if _has(rows, "visitor") else pl.lit(None)
    values = rows.group_by(column).agg(count=pl.len(), visitors=visitors)
    top = values.sort("count", column, descending=[True, False]).head(TOP)
    found, total = pl.collect_all([top, rows.select(pl.len())], engine="streaming")
    return {"rows": found.rows(), "total": total.item()}


def _over_time(
    by_minute: pl.DataFrame,
    rows: dict[str, pl.LazyFrame],
    since: datetime | None,
    until: datetime | None,
) -> dict[str, Any]:
    """Figures by minute, hour or day."""
    first = since or by_minute["minute"][0]
    last = until or by_minute["minute"][-1] + STEPS["minute"]
    step = next((one for one in STEPS if (last - first) / STEPS[one] <= POINTS_MAX), "day")

    def by(rows: pl.LazyFrame, time: str, figure: pl.Expr) -> pl.LazyFrame:
        return rows.group_by(pl.col(time).dt.truncate(STEPS[step]).alias("time")).agg(figure)

    start = pl.Series([first]).dt.truncate(STEPS[step])[0]
    times = pl.datetime_range(start, last, STEPS[step], closed="left", eager=True)
    found = pl.DataFrame({"time": times}).lazy()
    for more in (
        by(by_minute.lazy(), "minute", SUMS),
        by(rows["views"], "time", pl.len().alias("views")),
        by(rows["hashes"], "minute", pl.col("visitor").n_unique().alias("visitors")),
        by(rows["sessions"], "first_time", pl.len().alias("sessions")),
    ):
        found = found.join(more, on="time", how="left", maintain_order="left")
    rows_shown = found.fill_null(0).collect(engine="streaming")
    return {"step": step, "first": first, "last": last, "rows": rows_shown}
