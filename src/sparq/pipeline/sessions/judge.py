"""Clicks of visitors -> their sessions, the findings about them, and the rows of both tables.

Everything follows from the set of clicks, so the order in which two nsqds deliver them does not
matter. A session's id is that of the message of its first click: no click is in two sessions. If an
earlier click comes, the session gets another id, and findings under the old one are withdrawn.

`findings` has a row for each revision of a finding: the newest counts, unless it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from sparq.pipeline.sessions.rules import Rules, Window

IDS_KEPT = 5  # message ids of a session's first clicks in its row
SITE_VISITS_MIN = 10  # visits of people before anything is said about the site
PAGE, ASSET = pl.col("kind") == "page", pl.col("kind") == "asset"

_WHO = [
    ("session", pa.string()),  # id of the message of its first click
    ("visitor", pa.int64()),  # hash of the columns that tell visitors apart
    ("address", pa.string()),
    ("user_agent", pa.string()),
]
_WHEN = [
    *((name, pa.timestamp("us", "UTC")) for name in ("first_time", "last_time")),
    *((name, pa.int64()) for name in ("clicks", "pages", "assets")),
]
SESSIONS = pa.schema(
    [
        *_WHO,
        ("robot", pa.string()),  # the name that it gives itself
        *_WHEN,
        ("entry", pa.string()),  # its first and last page
        ("exit", pa.string()),
        ("late", pa.bool_()),  # its clicks came after their time
        ("ended", pa.string()),  # gap, clicks_max, room (it made room for others) or run
        ("figures", pa.string()),  # JSON: the columns of the rules
        ("message_ids", pa.list_(pa.string())),  # of its first clicks
    ]
)
FINDINGS = pa.schema(
    [
        *_WHO,
        ("reason", pa.string()),  # the name of the rule
        ("revision", pa.int64()),
        ("amount", pa.int64()),  # of evidence
        ("withdrawn", pa.bool_()),
        *_WHEN,
        ("late", pa.bool_()),
        ("evidence", pa.string()),  # JSON: the columns of the rules
        ("message_ids", pa.list_(pa.string())),
    ]
)


def sessions_of(clicks: pl.DataFrame, gap_s: int) -> pl.DataFrame:
    """Order clicks and number their sessions, in the column `session`: 0, 1, 2 ...

    Clicks have the columns of `rules.CLICK`, those that the rules use, `late`, and `arrived`: the
    time of the batch in which they came, in ms.
    """
    clicks = clicks.sort("visitor", "late", "second", "id")
    begins = (
        (pl.col("visitor") != pl.col("visitor").shift())
        | (pl.col("late") != pl.col("late").shift())
        | (pl.col("second") - pl.col("second").shift() > gap_s)
    )
    return clicks.with_columns(session=begins.fill_null(True).cast(pl.Int64).cum_sum() - 1)


def judged(
    clicks: pl.DataFrame, visitors: pl.DataFrame, rules: Rules, site: tuple[int, int]
) -> pl.DataFrame:
    """One row for each session: its columns (`rules.VISIT` and those of the rules).

    Also `session`, `visitor`, `id` (of the session), `ids`, and `arrived` of its newest click.
    `clicks` are whole sessions of `sessions_of`, `site` is `site_figures` of earlier ones.
    """
    held = (
        _with_gaps(clicks)
        .group_by("session", maintain_order=True)
        .agg(
            pl.col("visitor", "late", "id").first(),
            first_second=pl.col("second").first(),
            last_second=pl.col("second").last(),
            arrived=pl.col("arrived").max(),
            clicks=pl.len().cast(pl.Int64),
            pages=PAGE.sum().cast(pl.Int64),
            assets=ASSET.sum().cast(pl.Int64),
            entry=pl.col("page").filter(PAGE).first(),
            exit=pl.col("page").filter(PAGE).last(),
            ids=pl.col("id").head(IDS_KEPT),
            **{f"_{name}": made for name, made in rules.columns.items()},
        )
        .rename({f"_{name}": name for name in rules.columns})
        .with_columns(seconds=pl.col("last_second") - pl.col("first_second"))
    )
    for name, where, window in rules.windows:
        found = most_within(clicks.filter(where), window, name)
        held = held.join(found, on="session", how="left", maintain_order="left")
        held = held.with_columns(pl.col(name).fill_null(0))
    held = held.join(visitors, on="visitor", how="left", maintain_order="left")
    count, loading = site_figures(held, site)
    share = loading / count if count >= SITE_VISITS_MIN else None
    return held.with_columns(site_assets=pl.lit(share, pl.Float64))


def site_figures(sessions: pl.DataFrame, earlier: tuple[int, int]) -> tuple[int, int]:
    """Visits of pages by visitors that are no robots, and those that loaded parts of pages."""
    people = sessions.filter(pl.col("robot").is_null() & (pl.col("pages") > 0))
    return earlier[0] + len(people), earlier[1] + int((people["assets"] > 0).sum())


def findings_of(sessions: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """The findings: columns `session`, `reason` and `amount`.

    `sessions` are as `judged` returns them, with `over`: whether the session is over.
    """
    rows = [
        sessions.filter(when & (pl.lit(not ended) | pl.col("over"))).select(
            "session", reason=pl.lit(name), amount=amount.cast(pl.Int64)
        )
        for name, when, amount, ended in rules.rules
    ]
    empty = pl.DataFrame(schema={"session": pl.Int64, "reason": pl.String, "amount": pl.Int64})
    return pl.concat([empty, *rows])


def _with_gaps(clicks: pl.DataFrame) -> pl.DataFrame:
    """Add the columns `gap` and `same_gap`; see rules.toml."""

    def seconds_since(*group: str) -> pl.Expr:
        is_same = pl.all_horizontal(pl.col(name) == pl.col(name).shift() for name in group)
        return pl.when(is_same).then(pl.col("second").diff())

    clicks = clicks.with_row_index("at")
    pages = clicks.filter(PAGE).select("at", "session", "page", "second")
    # Sorting is four times as fast as `over("session", "page")`.
    pages = (
        pages.with_columns(gap=seconds_since("session"))
        .sort("session", "page", "second", maintain_order=True)
        .select("at", "gap", same_gap=seconds_since("session", "page"))
    )
    return clicks.join(pages, on="at", how="left", maintain_order="left").drop("at")


def most_within(clicks: pl.DataFrame, window: Window, name: str) -> pl.DataFrame:
    """For each session the largest number of these clicks within the window, as column `name`.

    With `window.same`, also the value of the clicks, as `<name>_of`: the first of equal ones.
    """
    value = {f"{name}_of": pl.col(window.same).cast(pl.String)} if window.same else {}
    groups = ["session", *value]
    counts = (
        clicks.select("session", "second", **value)
        .sort(*groups, "second")
        .rolling("second", period=f"{window.seconds}i", closed="both", group_by=groups)
        .agg(pl.len().cast(pl.Int64).alias(name))
    )
    ordered = counts.sort(*groups).sort(name, descending=True, maintain_order=True)
    return ordered.group_by("session", maintain_order=True).agg(pl.col(name, *value).first())


def table_rows(rows: pl.DataFrame, schema: pa.Schema, rules: Rules) -> pl.DataFrame:
    """Rows of SESSIONS or FINDINGS, from rows of `judge.judged` with the columns that these add."""
    names = [*rules.columns]
    for name, _, window in rules.windows:
        names += [name, f"{name}_of"] if window.same else [name]
    figures = pl.struct(*names, "site_assets").struct.json_encode()
    ids = [None if some is None else _hex(some) for some in rows["ids"]]
    return rows.with_columns(
        session=pl.Series(_hex(rows["id"]), dtype=pl.String),
        first_time=pl.from_epoch("first_second", "s").cast(pl.Datetime("us", "UTC")),
        last_time=pl.from_epoch("last_second", "s").cast(pl.Datetime("us", "UTC")),
        message_ids=pl.Series(ids, dtype=pl.List(pl.String)),
        figures=figures,
        evidence=figures,
    ).select(schema.names)


def _hex(ids: Iterable[int]) -> list[str]:
    return [f"{one:016x}" for one in ids]
