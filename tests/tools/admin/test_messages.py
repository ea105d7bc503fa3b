"""`sparq admin` finds, exports and changes single messages on three nsqds, one of them dead."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqd import message_actions
from sparq.tools.admin import messages
from sparq.tools.admin.messages import merged
from tests.tools.admin.conftest import Cluster, Run, assert_dead_nsqd_is_reported


def test_peek_changes_nothing(cluster: Cluster, admin: Run) -> None:
    """All nsqds' messages are sorted by time; their attempts and the depth do not change."""
    cluster.recreate("clicks", "archive", messages=4)

    ran = admin("peek", "clicks", "archive", "--limit=6")

    assert_dead_nsqd_is_reported(ran, cluster, "peek")
    ids = cluster.ids("clicks")
    assert [*ids[0], *ids[1]][:6] == [row[0] for row in ran.rows[1:7]]
    assert '{"n": 0}' in ran.out
    assert "the first 6 messages; --limit shows more" == ran.out.splitlines()[-1]
    assert "--limit shows more" not in admin("peek", "clicks", "archive", "--limit=8").out
    ran = admin("peek", "clicks", "--limit=3")
    assert "the newest 3 messages; --limit shows more" == ran.out.splitlines()[-1]
    assert "--limit shows more" not in admin("peek", "clicks", "--limit=8").out
    messages = admin("peek", "clicks", "archive", "--json").document["messages"]
    assert [0] * 8 == [message["attempts"] for message in messages]
    assert [*[cluster.nsqds[0].http] * 4, *[cluster.nsqds[1].http] * 4] == [
        message["node"] for message in messages
    ]
    assert [4, 4] == cluster.depths("clicks", "archive")
    newest = admin("peek", "clicks", "--limit=2", "--json").document["messages"]
    assert ids[1][-2:] == [message["id"] for message in newest]
    first = admin("peek", "clicks", "--limit=1", "--from=earliest", "--json").document["messages"]
    assert ids[0][:1] == [message["id"] for message in first]


def test_deferred_messages_are_sorted_by_due_time(cluster: Cluster, admin: Run) -> None:
    """`--state=deferred` sorts by due time."""
    cluster.recreate("orders", "c", dead=False)
    cluster.nsqds[0].post("/pub?topic=orders&defer=900500", b"later")
    cluster.nsqds[1].post("/pub?topic=orders&defer=600000", b"sooner")

    ran = admin("peek", "orders", "c", "--state=deferred")

    assert 0 == ran.status
    assert ["sooner", "later"] == [row[-1] for row in ran.rows[1:]]
    assert "deferred, due in 15m00s" in ran.out


def test_messages_are_found(cluster: Cluster, admin: Run) -> None:
    """Messages are found by text, JSON value, time or id; `--ids` prints ids for other verbs."""
    cluster.recreate("clicks", "archive", messages=5)

    for words in (['--text={"n": 3}'], ["--where=n = 3"], ["--where", "n=3", "--state=waiting"]):
        ran = admin("find", "clicks", "archive", *words)
        assert_dead_nsqd_is_reported(ran, cluster, "find")
        assert [ids[3] for ids in cluster.ids("clicks")] == [row[0] for row in ran.rows[1:]]
    (one, *_) = cluster.ids("clicks")[1]
    ran = admin("find", "clicks", f"--id={one}", "--json")
    assert [(one, '{"n": 0}', cluster.nsqds[1].http)] == [
        (message["id"], message["body"], message["node"]) for message in ran.document["messages"]
    ]
    ids = admin("find", "clicks", "--where=n >= 4", "--ids")
    assert [ids[4] for ids in cluster.ids("clicks")] == ids.out.split()
    assert 3 == len(admin("find", "clicks", "--ids", "--limit=3").out.split())
    assert "" == admin("find", "clicks", "--ids", "--from=latest").out
    nobody = admin("find", "clicks", "--id=0123456789abcdef")
    assert "has message 0123456789abcdef of topic clicks" in nobody.err


def test_control_characters_in_bodies_are_escaped(cluster: Cluster, admin: Run) -> None:
    """Control characters are blanks in a table and escapes in JSON."""
    cluster.recreate("orders", "c", dead=False)
    cluster.nsqds[0].post("/pub?topic=orders", b"\x1b]0;owned\x07\x1b[2J\xe2\x80\xae")

    ran = admin("peek", "orders", "c")
    assert "\x1b" not in ran.out
    assert "]0;owned" in ran.out
    assert "\u202e" not in ran.out
    assert "\x1b" not in admin("peek", "orders", "c", "--json").out


def test_a_topic_is_exported(cluster: Cluster, admin: Run, tmp_path: Path) -> None:
    """JSON lines have unchanged bodies, CSV has no formulas; no file is overwritten."""
    cluster.recreate("clicks", "archive")
    bodies = [b"=1+1", b"\xff\x00", 'grüße\n"x",'.encode(), b"@SUM(A1)"]
    for number, body in enumerate(bodies):
        cluster.nsqds[number % 2].post("/pub?topic=clicks", body)
    lines, table = tmp_path / "lines", tmp_path / "table"

    ran = admin("export", "clicks", f"--output={lines}")
    admin("export", "clicks", "archive", f"--output={table}", "--format=csv")

    assert_dead_nsqd_is_reported(ran, cluster, "export")
    assert f"4 messages of topic clicks to {lines}" in ran.err
    assert "is incomplete" in ran.err
    messages = [json.loads(line) for line in lines.read_text().splitlines()]
    assert ["=1+1", "/wA=", 'grüße\n"x",', "@SUM(A1)"] == [each["body"] for each in messages]
    assert ["text", "base64", "text", "text"] == [each["encoding"] for each in messages]
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert ["'=1+1", "/wA=", 'grüße\n"x",', "'@SUM(A1)"] == [row["body"] for row in rows]
    assert {("clicks", "archive", "waiting")} == {
        (row["topic"], row["channel"], row["state"]) for row in rows
    }
    again = admin("export", "clicks", f"--output={lines}")
    assert (1, 4) == (again.status, len(lines.read_text().splitlines()))
    assert "File exists: nothing was done" in again.err
    assert 0o600 == os.stat(lines).st_mode & 0o777


def test_an_incomplete_export_is_an_error(cluster: Cluster, admin: Run) -> None:
    """An incomplete export ends with status 1."""
    cluster.recreate("orders", messages=1, dead=False)

    assert 0 == admin("export", "orders").status
    ran = admin("export", "orders", "--body-bytes=3")
    assert 1 == ran.status
    assert "2 bodies were cut after 3 bytes" in ran.err
    assert 2 == ran.out.count('"cut": true')


async def test_messages_are_merged_by_time() -> None:
    """Any number of sorted sources is merged; invalid messages are left out."""

    async def source(*stamps: int) -> Any:
        for stamp in stamps:
            yield {"id": str(stamp), "timestamp": str(stamp), "node": "n"}

    found = [one["id"] async for one in merged([source(1, 5, 9), source(), source(2, 3, 10)])]
    assert ["1", "2", "3", "5", "9", "10"] == found


@contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    """Make descriptor 0 a pipe with this data."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading)


def test_ids_from_find_are_read_from_standard_input(cluster: Cluster, admin: Run) -> None:
    """`copy -` and `finish -` read the output of `find --ids`; if all succeed the status is 0."""
    cluster.recreate("orders", "c", messages=5, dead=False)
    cluster.recreate("copies", dead=False)
    ids = admin("find", "orders", "--where=n >= 3", "--ids").out

    with standard_input(ids.encode()):
        copied = admin("copy", "orders", "-", "--to=copies")
    assert (0, "copied: 4 of 4 messages of topic orders") == (
        *(copied.status, copied.out.splitlines()[0]),
    )
    assert [2, 2] == [len(some) for some in cluster.ids("copies")]
    with standard_input(ids.encode()):
        ran = admin("finish", "orders", "c", "-", "--yes", "--json")
    assert (0, "done", {*ids.split()}) == (
        *(ran.status, ran.document["result"], {*ran.document["done"]}),
    )
    assert [3, 3] == cluster.depths("orders", "c")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["requeue", "orders", "c", "12"], '"12" is not a message id'),
        (["requeue", "orders", "c", "0" * 15 + "\x1b"], "is not a message id"),
        (["finish", "orders", "c", "-"], "no ids on standard input"),
        (["copy", "orders", "0" * 16], '--to takes the topic to copy to, not ""'),
        (["copy", "orders", "0" * 16, "--to=a b"], "--to takes the topic to copy to"),
        (["finish", "orders", "c", "0" * 16], "this drops 1 messages of channel c of topic orders"),
        (["requeue", "orders", "c"], "takes TOPIC CHANNEL ID...|-"),
    ],
)
def test_a_usage_error_is_one_sentence(
    cluster: Cluster, admin: Run, words: list[str], why: str
) -> None:
    """The error says what is wrong, and nothing is done."""
    cluster.recreate("orders", "c", dead=False)

    with standard_input(b""):
        ran = admin(*words)

    assert 1 == ran.status
    assert why in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("turned", [False, True])
def test_the_reason_comes_from_the_nsqd_that_has_the_message(turned: bool) -> None:
    """Other nsqds only report a foreign id, before or after that answer."""
    assert message_actions.OTHER_NODE == messages.OTHER_NODE
    ids = "0" * 16, "1" * 16
    answers = [
        {"done": [], "refused": [{"id": each, "why": messages.OTHER_NODE} for each in ids]},
        {"done": [], "refused": [{"id": ids[0], "why": "in flight"}]},
    ]
    refused: dict[str, str] = {}
    for answer in answers[::-1] if turned else answers:
        messages.add_selection("a:1", answer, {}, refused)

    assert {ids[0]: "in flight", ids[1]: messages.OTHER_NODE} == refused
