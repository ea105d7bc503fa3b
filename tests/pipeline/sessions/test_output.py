"""Rows of the tables `sessions` and `findings`."""

import json

import polars as pl

from sparq.pipeline.sessions.output import FINDINGS, SESSIONS, table_rows
from tests.pipeline.sessions.visitors import BEGIN_S, RULES, Click, judged_once


def test_rows_have_the_columns_of_the_tables():
    """Rows fit the tables' schemas; the figures are those of the rules, as JSON."""
    found = judged_once([Click(at // 2, f"/{at % 2}") for at in range(20)])
    found = found.filter(pl.col("reason") == "burst").with_columns(ended=pl.lit("gap"))
    issued = found.with_columns(revision=pl.lit(5, pl.Int64), withdrawn=pl.lit(False))
    (session,) = table_rows(found, SESSIONS, RULES).to_arrow().cast(SESSIONS).to_pylist()
    (finding,) = table_rows(issued, FINDINGS, RULES).to_arrow().cast(FINDINGS).to_pylist()

    assert session["session"] == finding["session"] == "0" * 16
    assert session["message_ids"] == [f"{number:016x}" for number in range(5)]
    assert (session["clicks"], session["entry"], session["exit"]) == (20, "/0", "/1")
    assert session["first_time"].timestamp() == BEGIN_S
    assert json.loads(session["figures"]) == json.loads(finding["evidence"])
    assert json.loads(session["figures"])["repeats_of"] == "/0"
