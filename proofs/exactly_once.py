"""The check of exactly once for all six tables of the pipeline: SQL, read without sparq.

Each query of RULES counts what is wrong; all must give 0 after the end of a run. While a run goes
on, or after it was killed, the tables may be behind each other: then only `ONCE` must hold.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
from deltalake import DeltaTable

TABLES = ("clicks", "rejected", "minutes", "pages", "sessions", "findings")

ONCE = {
    "message ids more than once in clicks and rejected": """
        SELECT count(*) - count(DISTINCT id)
        FROM (SELECT id FROM clicks UNION ALL SELECT id FROM rejected)""",
    "sessions more than once": "SELECT count(*) - count(DISTINCT session) FROM sessions",
    "revisions of findings more than once": """
        SELECT count(*) FROM (
            SELECT session FROM findings GROUP BY session, reason, revision HAVING count(*) > 1
        )""",
}
RULES = ONCE | {
    "minutes with another number of clicks than archived": """
        SELECT count(*) FROM (
            SELECT date_trunc('minute', time) AS minute, count(*) AS archived
            FROM clicks GROUP BY ALL
        ) FULL JOIN (
            SELECT minute, sum(clicks) AS counted FROM minutes GROUP BY ALL
        ) USING (minute) WHERE archived IS DISTINCT FROM counted""",
    "pages of a minute with another number of clicks than archived": """
        SELECT count(*) FROM (
            SELECT date_trunc('minute', time) AS minute, page[:1000] AS page, count(*) AS archived
            FROM clicks WHERE page IS NOT NULL GROUP BY ALL
        ) FULL JOIN (
            SELECT minute, page, sum(clicks) AS counted FROM pages GROUP BY ALL
        ) USING (minute, page) WHERE archived IS DISTINCT FROM counted""",
    "visitors with another number of clicks in sessions than archived": """
        SELECT count(*) FROM (
            SELECT address, coalesce(user_agent, '-')[:400] AS agent, count(*) AS archived
            FROM clicks WHERE address IS NOT NULL GROUP BY ALL
        ) FULL JOIN (
            SELECT address, user_agent AS agent, sum(clicks) AS counted FROM sessions GROUP BY ALL
        ) USING (address, agent) WHERE archived IS DISTINCT FROM counted""",
    "sessions that do not begin with an archived click": """
        SELECT count(*) FROM sessions ANTI JOIN clicks ON session = id""",
    "findings that hold about a session that is not there": """
        SELECT count(*) FROM (
            SELECT * FROM findings
            QUALIFY row_number() OVER (PARTITION BY session, reason ORDER BY revision DESC) = 1
        ) ANTI JOIN sessions USING (session) WHERE NOT withdrawn""",
}


def opened(data: Path) -> duckdb.DuckDBPyConnection:
    """The tables of a data folder for SQL; those that are not there yet are left out."""
    found = duckdb.connect()
    for name in TABLES:
        if DeltaTable.is_deltatable(str(data / name)):
            found.register(name, DeltaTable(data / name).to_pyarrow_dataset())
    return found


def problems(data: Path, rules: dict[str, str] = RULES) -> list[str]:
    """What does not hold: a sentence for each rule."""
    with opened(data) as tables:
        counts = {what: tables.sql(query).fetchall()[0][0] for what, query in rules.items()}
    return [f"{count:,} {what}" for what, count in counts.items() if count]


def archived(data: Path) -> tuple[int, int]:
    """Rows and distinct message ids of `clicks` and `rejected` together."""
    ids = "SELECT id FROM clicks UNION ALL SELECT id FROM rejected"
    with opened(data) as tables:
        (found,) = tables.sql(f"SELECT count(*), count(DISTINCT id) FROM ({ids})").fetchall()
    return found
