"""The proofs' check of exactly once finds every kind of row that is missing or there twice."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from proofs.exactly_once import RULES, archived, problems

AT = datetime(2026, 3, 2, 10, tzinfo=UTC)
CLICK = {"id": "a", "time": AT.replace(second=5), "page": "/" + "x" * 2_000, "address": "1.2.3.4"}
TABLES = {
    "clicks": [{**CLICK, "user_agent": None}],
    "rejected": [{"id": "b"}],
    "minutes": [{"minute": AT, "clicks": 1}],
    "pages": [{"minute": AT, "page": CLICK["page"][:1000], "clicks": 1}],
    "sessions": [{"session": "a", "address": "1.2.3.4", "user_agent": "-", "clicks": 1}],
    "findings": [
        {"session": "a", "reason": "burst", "revision": number, "withdrawn": False}
        for number in (1, 2)
    ],
}
SCHEMAS = {
    "clicks": pa.schema(
        [(name, pa.string()) for name in ("id", "page", "address", "user_agent")]
        + [("time", pa.timestamp("us", "UTC"))]
    )
}


def write(folder, name, rows):
    write_deltalake(folder / name, pa.Table.from_pylist(rows, SCHEMAS.get(name)), mode="append")


@pytest.fixture
def data(tmp_path):
    """A data folder in which all rules hold."""
    for name, rows in TABLES.items():
        write(tmp_path, name, rows)
    return tmp_path


def test_nothing_is_wrong_with_whole_tables(data):
    """Long pages are cut in `pages`, a visitor may have no user agent, findings have revisions."""
    assert [] == problems(data)
    assert (2, 2) == archived(data)


@pytest.mark.parametrize(
    ("name", "row", "found"),
    [
        ("clicks", TABLES["clicks"][0], [0, 3, 4, 5]),
        ("rejected", {"id": "a"}, [0]),
        ("minutes", TABLES["minutes"][0], [3]),
        ("pages", TABLES["pages"][0], [4]),
        ("sessions", TABLES["sessions"][0], [1, 5]),
        ("sessions", {**TABLES["sessions"][0], "session": "c", "address": "9"}, [5, 6]),
        ("findings", TABLES["findings"][0], [2]),
        ("findings", {**TABLES["findings"][0], "session": "c"}, [7]),
    ],
)
def test_a_row_too_many_is_found(data, name, row, found):
    """A row that is there twice, or that has no click, breaks the rules that are named."""
    write(data, name, [row])

    assert [f"1 {[*RULES][at]}" for at in found] == problems(data)
