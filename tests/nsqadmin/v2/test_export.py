"""Exports of lists and messages as files."""

from __future__ import annotations

import csv
import io
import json

import pytest

from sparq.nsqadmin.v2.routes import csv_lines, harmless, incomplete, json_lines
from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.nsqds import fill
from tests.nsqadmin.v2.conftest import Api, snapshot_where


async def csv_of(api: Api, **query: object) -> list[dict[str, str]]:
    """Request a CSV export; return its rows."""
    status, exported, answer = await api.send("GET", "/export", **query)
    assert (200, "text/csv") == (status, answer.content_type), exported
    assert "attachment" in answer.headers["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(exported.decode(), newline="")))


@pytest.mark.parametrize("what", ["channels", "topics", "nodes", "clients"])
async def test_lists_are_exported(api: Api, what: str) -> None:
    """An export has all rows of a list, with the same columns in CSV and JSON lines."""
    await fill(api)
    await snapshot_where(api, "/overview", lambda exported: exported["totals"]["waiting"] == 6)

    rows = await csv_of(api, what=what, sort="")
    _, exported, _ = await api.send("GET", "/export", what=what, format="jsonl")

    lines = [json.loads(line) for line in exported.splitlines()]
    assert {"channels": 1, "topics": 1, "nodes": 2, "clients": 0}[what] == len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert list(row) == list(line)
    if what == "channels":
        assert ("t", "c", "6") == (rows[0]["topic"], rows[0]["channel"], rows[0]["depth"])
        assert [] == await csv_of(api, what=what, filter="nothing")
        assert [] == await csv_of(api, what=what, state="ok")


async def test_messages_are_exported(api: Api) -> None:
    """Messages of a channel, the log and a search are exported; formulas get a quote (')."""
    bodies = await fill(api, 450)
    await api.one.post("/pub?topic=t", b'=cmd|" /C calc"!A0')

    rows = await csv_of(api, what="messages", topic="t", channel="c")
    assert [*bodies, '\'=cmd|" /C calc"!A0'] == [row["body"] for row in rows]
    log = await csv_of(api, what="log", topic="t", from_="last:3")
    assert 6 == len(log)
    found = await csv_of(api, what="search", topic="t", json="n < 3")
    assert bodies[:3] == [row["body"] for row in found]
    few = await csv_of(api, what="log", topic="t", max=250)
    assert (251, "incomplete") == (len(few), few[-1]["node"])
    assert "there are more than 250 messages" in few[-1]["id"]


@pytest.mark.parametrize("what", ["messages", "log", "search"])
async def test_only_exports_with_more_messages_say_so(api: Api, what: str) -> None:
    """A last line says that there are more messages if the last page has more, and only then."""
    bodies = await fill(api, 250)

    asked = {"what": what, "topic": "t", "channel": "c"}
    few = await csv_of(api, **asked, max=249)
    every = await csv_of(api, **asked, max=250)

    assert (250, "incomplete") == (len(few), few[-1]["node"])
    assert "there are more than 249 messages" in few[-1]["id"]
    assert bodies == sorted((row["body"] for row in every), key=bodies.index)


async def test_missing_nodes_are_named_in_the_last_line(api: Api) -> None:
    """The last line has nodes without an answer and the reason; the rest is exported."""
    await fill(api)
    async with FakeNode() as go:
        go.missing = {"/channel/messages"}
        go.answer = {"version": "1.3.0", "health": "OK", "topics": [{"topic_name": "t"}]}
        api.admin.services.fleet.nsqds = (*api.admin.services.fleet.nsqds, go.http)
        api.admin.services.fleet.upstream.set_configured(api.admin.services.fleet.nsqds)
        asked = {"what": "messages", "topic": "t", "channel": "c", "format": "jsonl"}
        _, exported, _ = await api.send("GET", "/export", **asked)

    *messages, last = [json.loads(line) for line in exported.splitlines()]
    assert 6 == len(messages)
    why = "NSQ's Go nsqd does not show messages"
    assert {"incomplete": {go.http: why}} == last


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx", "\rx", "\n=x"])
def test_formulas_are_harmless(text: str) -> None:
    """A leading ' makes a spreadsheet show a formula instead of computing it."""
    assert f"'{text}" == harmless(text)


def test_other_cells_are_unchanged() -> None:
    """Numbers may be negative; lists become text, objects JSON."""
    assert [-1, 1.5, "a=b", None, "a, b"] == [
        harmless(value) for value in (-1, 1.5, "a=b", None, ["a", "b"])
    ]
    assert "'=a" == harmless(["=a"])
    assert '{"a": 1}' == harmless({"a": 1})
    assert b'a\r\n"x\ny"\r\n' == csv_lines(["a"], [{"a": "x\ny", "b": 1}], head=True)
    assert b'{"a":"\xc3\xa9"}\n' == json_lines([], [{"a": "é"}])
    assert b"incomplete,a:1: gone\r\n" == incomplete("csv", {"a:1": "gone"})
