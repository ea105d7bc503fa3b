"""Clicks of visitors -> their sessions, and the findings about them. Pure: polars frames.

`sessions_of` numbers the sessions of clicks; `judged` makes a row of each and applies the rules.
Everything follows from the set of clicks, so the order in which two nsqds deliver them does not
matter.

A session's id is that of the message of its first click: no click is in two sessions. If an earlier
click comes, the session gets another id, and findings under the old one are withdrawn (`state`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from sparq.pipeline.sessions.rules import Compiled, Window

IDS_KEPT = 5
"""Message ids in a session's row and in a finding: those of its first clicks."""
SITE_VISITS_MIN = 10
"""Visits of pages by visitors that are no robots, before anything is said about the site."""
Ints = npt.NDArray[np.int64]


def sessions_of(clicks: pl.DataFrame, gap_s: int) -> pl.DataFrame:
    """Order clicks and number their sessions, in the column `session`: 0, 1, 2 ...

    Args:
        clicks: columns of `rules.CLICK`, those that the rules use, `late`, and `arrived`: the time
            of the batch in which the click came, in ms.
        gap_s: seconds without a click of the visitor that end a session. Late clicks make sessions
            of their own.
    """
    clicks = clicks.sort("visitor", "late", "second", "id")
    begins = (
        (pl.col("visitor") != pl.col("visitor").shift())
        | (pl.col("late") != pl.col("late").shift())
        | (pl.col("second") - pl.col("second").shift() > gap_s)
    )
    return clicks.with_columns(session=begins.fill_null(True).cast(pl.Int64).cum_sum() - 1)


def judged(
    clicks: pl.DataFrame, visitors: pl.DataFrame, use: Compiled, site: tuple[int, int]
) -> pl.DataFrame:
    """One row for each session: its columns (`rules.VISIT` and those of the rules).

    Args:
        clicks: as `sessions_of` returns them, whole sessions.
        visitors: `pack.VISITOR`, at least those of the clicks.
        use: the rules.
        site: how many earlier visits of pages there were by visitors that are no robots, and how
            many of these loaded parts of pages.

    Returns:
        Also `session`, `visitor`, `id` (of the session), `ids`, and `arrived` of its newest click.
    """
    clicks = _with_gaps(clicks, use)
    page, asset = pl.col("kind") == "page", pl.col("kind") == "asset"
    held = (
        clicks.group_by("session", maintain_order=True)
        .agg(
            pl.col("visitor", "late", "id").first(),
            first_second=pl.col("second").first(),
            last_second=pl.col("second").last(),
            arrived=pl.col("arrived").max(),
            clicks=pl.len().cast(pl.Int64),
            pages=page.sum().cast(pl.Int64),
            assets=asset.sum().cast(pl.Int64),
            entry=pl.col("page").filter(page).first(),
            exit=pl.col("page").filter(page).last(),
            ids=pl.col("id").head(IDS_KEPT),
            **{f"_{name}": made for name, made in use.columns.items()},
        )
        .rename({f"_{name}": name for name in use.columns})
        .with_columns(seconds=pl.col("last_second") - pl.col("first_second"))
    )
    for name, where, window in use.windows:
        found = most_within(clicks.filter(where), window, name)
        held = held.join(found, on="session", how="left", maintain_order="left")
        held = held.with_columns(pl.col(name).fill_null(0))
    held = held.join(visitors, on="visitor", how="left", maintain_order="left")
    count, loading = sum_of(site, site_figures(held))
    share = loading / count if count >= SITE_VISITS_MIN else None
    return held.with_columns(site_assets=pl.lit(share, pl.Float64))


def sum_of(one: tuple[int, int], more: tuple[int, int]) -> tuple[int, int]:
    """The sum of two pairs."""
    return one[0] + more[0], one[1] + more[1]


def site_figures(sessions: pl.DataFrame) -> tuple[int, int]:
    """Visits of pages by visitors that are no robots, and those that loaded parts of pages."""
    people = sessions.filter(pl.col("robot").is_null() & (pl.col("pages") > 0))
    return len(people), int((people["assets"] > 0).sum())


def findings_of(sessions: pl.DataFrame, use: Compiled) -> pl.DataFrame:
    """The findings: columns `session`, `reason` and `amount`.

    Args:
        sessions: as `judged` returns them, with `over`: whether the session is over.
        use: the rules.
    """
    rows = [
        sessions.filter(when & (pl.lit(not ended) | pl.col("over"))).select(
            "session", reason=pl.lit(name), amount=amount.cast(pl.Int64)
        )
        for name, when, amount, ended in use.rules
    ]
    empty = pl.DataFrame(schema={"session": pl.Int64, "reason": pl.String, "amount": pl.Int64})
    return pl.concat([empty, *rows])


def _with_gaps(clicks: pl.DataFrame, use: Compiled) -> pl.DataFrame:
    """Add the columns `gap` and `same_gap`, if a rule uses them; see rules.toml."""
    if not {"gap", "same_gap"} & use.used:
        return clicks
    pages = np.flatnonzero((clicks["kind"] == "page").to_numpy())
    session, second = (clicks[name].to_numpy()[pages] for name in ("session", "second"))
    columns = {"gap": _differences(session, second)}
    if "same_gap" in use.used:
        groups = _groups(session, clicks["page"].gather(pages))
        order = np.lexsort((second, groups))
        same = np.full(len(pages), np.nan)
        same[order] = _differences(groups[order], second[order])
        columns["same_gap"] = same
    whole = {}
    for name, found in columns.items():
        column = np.full(len(clicks), np.nan)
        column[pages] = found
        whole[name] = pl.Series(column, nan_to_null=True).cast(pl.Int64)
    return clicks.with_columns(**whole)


def _differences(groups: Ints, second: Ints) -> npt.NDArray[np.float64]:
    """The seconds since the row before of the same group; not a number for the first of each."""
    found = np.full(len(second), np.nan)
    same = groups[1:] == groups[:-1]
    found[1:][same] = np.diff(second)[same]
    return found


def _groups(session: Ints, values: pl.Series) -> Ints:
    """A number for each pair of session and value; equal for equal pairs."""
    codes = values.cast(pl.String).fill_null("").rank("dense").to_numpy().astype(np.int64)
    return session * (int(codes.max(initial=0)) + 1) + codes


def most_within(clicks: pl.DataFrame, window: Window, name: str) -> pl.DataFrame:
    """For each session the largest number of these clicks within the window, as column `name`.

    With `window.same`, also the value of the clicks, as `<name>_of`: the first of equal ones.
    """
    session, second = (clicks[column].to_numpy() for column in ("session", "second"))
    groups = _groups(session, clicks[window.same]) if window.same else session
    order = np.lexsort((second, groups))
    span = int(np.ptp(second)) + window.seconds + 1 if len(second) else 1
    place = np.unique(groups[order], return_inverse=True)[1] * span
    place = place + second[order] - (second.min() if len(second) else 0)
    counts = np.searchsorted(place, place + window.seconds, side="right") - np.arange(len(place))
    rows: dict[str, Any] = {"session": session[order], name: counts}
    if window.same:
        rows[f"{name}_of"] = clicks[window.same].gather(order).cast(pl.String)
    best = pl.DataFrame(rows, schema_overrides={"session": pl.Int64, name: pl.Int64})
    others = [column for column in best.columns if column != "session"]
    return (
        best.sort(name, descending=True, maintain_order=True)
        .group_by("session", maintain_order=True)
        .agg(pl.col(others).first())
    )
