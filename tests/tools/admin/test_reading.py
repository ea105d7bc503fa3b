"""`sparq admin` looks into a cluster of three nsqds, one of them dead, and takes nothing."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sparq.cli import main
from sparq.tools.admin.exporting import merged
from sparq.tools.admin.reading import messages_in
from tests.tools.admin.conftest import Cluster, Ran, Run


def tells_of_the_dead(ran: Ran, cluster: Cluster, verb: str) -> None:
    """Status 1, who does not answer, and what to do next."""
    assert 1 == ran.status
    assert f"sparq admin {verb}: {cluster.dead}: connection refused\n" in ran.err
    assert "next steps:" in ran.err
    assert f"nsqd {cluster.dead}: start the nsqd" in ran.err
    assert f"sparq admin {verb} clicks" in ran.err


def test_topics_channels_and_nsqds_are_listed(cluster: Cluster, admin: Run) -> None:
    """Sums over those that answer; the dead one is named each time."""
    cluster.fresh("clicks", "archive", messages=3)

    topics = admin("list")
    assert 1 == topics.status
    assert ["TOPIC", "CHANNELS", "DEPTH", "MESSAGES", "PAUSED", "NSQDS"] == topics.rows[0]
    assert ["clicks", "1", "6", "6", "no", "2"] in topics.rows
    channels = admin("list", "clicks")
    assert ["archive", "6", "0", "0", "0", "0", "6", "0"] == channels.rows[1][:8]
    assert ["no", "2"] == channels.rows[1][9:]
    tells_of_the_dead(channels, cluster, "list")
    parts = admin("list", "clicks", "archive")
    assert [[address, "3"] for address in cluster.alive] == [row[:2] for row in parts.rows[1:]]
    nodes = admin("list", "--nodes", "--json")
    rows = {row["address"]: row for row in nodes.document["rows"]}
    assert {*cluster.alive, cluster.dead} == rows.keys()
    assert (None, "connection refused") == (
        rows[cluster.dead]["topics"],
        rows[cluster.dead]["error"],
    )
    assert 6 <= sum(rows[address]["messages"] for address in cluster.alive)


def test_list_for_programs(cluster: Cluster, admin: Run) -> None:
    """`--json`: rows by name, and errors; a message's age is a number."""
    cluster.fresh("orders", "c", messages=1, dead=False)

    document = admin("list", "orders", "--json").document

    (row,) = document["rows"]
    assert {} == document["errors"]
    assert ("c", 2, 2, False, 2) == (
        *(row["channel"], row["depth"], row["messages"], row["paused"]),
        row["nsqds"],
    )
    assert 0 <= row["oldest_seconds"] < 60
    missing = admin("list", "ordres")
    assert 1 == missing.status
    assert "no nsqlookupd knows the topic ordres: did you mean orders?" in missing.err
    flags = [f"--nsqd-http-address={nsqd.http}" for nsqd in cluster.nsqds]
    assert "there is no topic ordres: did you mean" in admin("list", "ordres", *flags).err
    nobody = admin("list", "orders", "--lookupd-http-address=127.0.0.1:1")
    assert "no nsqlookupd answered (127.0.0.1:1: connection refused)" in nobody.err


def test_peek_takes_nothing(cluster: Cluster, admin: Run) -> None:
    """Messages of all nsqds in the order of their times; attempts and depth stay."""
    cluster.fresh("clicks", "archive", messages=4)

    ran = admin("peek", "clicks", "archive", "--limit=6")

    tells_of_the_dead(ran, cluster, "peek")
    ids = cluster.ids("clicks")
    assert [*ids[0], *ids[1]][:6] == [row[0] for row in ran.rows[1:]]
    assert '{"n": 0}' in ran.out
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


def test_deferred_messages_by_when_they_are_due(cluster: Cluster, admin: Run) -> None:
    """`--state=deferred`."""
    cluster.fresh("orders", "c", dead=False)
    cluster.nsqds[0].post("/pub?topic=orders&defer=900500", b"later")
    cluster.nsqds[1].post("/pub?topic=orders&defer=600000", b"sooner")

    ran = admin("peek", "orders", "c", "--state=deferred")

    assert 0 == ran.status
    assert ["sooner", "later"] == [row[-1] for row in ran.rows[1:]]
    assert "deferred, due in 15m00s" in ran.out


def test_messages_are_found(cluster: Cluster, admin: Run) -> None:
    """By text, a value of their JSON, a time; by id; ids alone for the next command."""
    cluster.fresh("clicks", "archive", messages=5)

    for words in (['--text={"n": 3}'], ["--where=n = 3"], ["--where", "n=3", "--state=waiting"]):
        ran = admin("find", "clicks", "archive", *words)
        tells_of_the_dead(ran, cluster, "find")
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


def test_a_topic_is_exported(cluster: Cluster, admin: Run, tmp_path: Path) -> None:
    """JSON lines with each body as it is, CSV without formulas; no file is written over."""
    cluster.fresh("clicks", "archive")
    bodies = [b"=1+1", b"\xff\x00", 'grüße\n"x",'.encode(), b"@SUM(A1)"]
    for number, body in enumerate(bodies):
        cluster.nsqds[number % 2].post("/pub?topic=clicks", body)
    lines, table = tmp_path / "lines", tmp_path / "table"

    ran = admin("export", "clicks", f"--output={lines}")
    admin("export", "clicks", "archive", f"--output={table}", "--format=csv")

    tells_of_the_dead(ran, cluster, "export")
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


def test_bodies_that_are_cut_are_told(cluster: Cluster, admin: Run) -> None:
    """An export that is not whole ends with 1."""
    cluster.fresh("orders", messages=1, dead=False)

    assert 0 == admin("export", "orders").status
    ran = admin("export", "orders", "--body-bytes=3")
    assert 1 == ran.status
    assert "2 bodies were cut after 3 bytes" in ran.err
    assert 2 == ran.out.count('"cut": true')


def test_hostile_bodies_are_shown_and_not_obeyed(cluster: Cluster, admin: Run) -> None:
    """Control characters become blanks in a table, and escapes in JSON."""
    cluster.fresh("orders", "c", dead=False)
    cluster.nsqds[0].post("/pub?topic=orders", b"\x1b]0;owned\x07\x1b[2J\xe2\x80\xae")

    ran = admin("peek", "orders", "c")
    assert "\x1b" not in ran.out
    assert "]0;owned" in ran.out
    assert "\u202e" not in ran.out
    assert "\x1b" not in admin("peek", "orders", "c", "--json").out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["peek", "orders", "--state=waiting"], "--state needs a channel"),
        (["peek", "orders", "c", "--from=earliest"], "--from needs a topic"),
        (["find", "orders", "--attempts=>3"], "--attempts and --state need a channel"),
        (["list", "orders", "--nodes"], "--nodes takes no topic"),
        (["peek", "orders", "--limit=0"], "--limit"),
        (["find", "orders", "--stat=waiting"], "did you mean --state?"),
        (["find", "orders", "--state=wating"], "is unknown: did you mean waiting?"),
        (["peek"], "takes TOPIC [CHANNEL], not nothing"),
        (["peek", "a", "b", "c"], "takes TOPIC [CHANNEL], not a b c"),
        (["list", "--lookupd-http-address=a"], "not an address"),
        (["list", "--nsqd-http-address="], "--lookupd-http-address or --nsqd-http-address"),
        (["list", "--nsqd-http-address=a:1", "--lookupd-http-address=a:1"], "not both"),
        (["list", "--http-client-request-timeout=0s"], "should be positive"),
        (["list", "--token=a b"], "--token must have at most 512 characters"),
        (["list", "--token=@/nowhere"], "--token: /nowhere cannot be read"),
        (["lsit"], "there is no verb lsit: did you mean list?"),
    ],
)
def test_a_mistake_is_one_sentence(admin: Run, words: list[str], why: str) -> None:
    """With what to write instead."""
    ran = admin(*words)

    assert 1 == ran.status
    assert why in ran.err
    assert 1 == ran.err.count("\n")


async def test_messages_are_merged_by_time() -> None:
    """Of any number of sources, each in its order; what is no message is left out."""

    async def source(*stamps: int) -> Any:
        for stamp in stamps:
            yield {"id": str(stamp), "timestamp": str(stamp), "node": "n"}

    found = [one["id"] async for one in merged([source(1, 5, 9), source(), source(2, 3, 10)])]
    assert ["1", "2", "3", "5", "9", "10"] == found
    answer = {"messages": [1, {}, {"id": 5}, {"id": "a"}]}
    assert [{"node": "n:1", "id": "a"}] == messages_in(answer, "n:1")
    assert [] == messages_in(["?"], "n:1")


def test_too_few_nsqds(cluster: Cluster, admin: Run) -> None:
    """`--expect-nodes`: one that nsqlookupd has forgotten is missed all the same."""
    cluster.fresh("orders", dead=False)

    assert 0 == admin("list", "orders", "--expect-nodes=3").status
    ran = admin("list", "orders", "--expect-nodes=4")
    assert 1 == ran.status
    assert "found 3 of 4 expected nsqds" in ran.err


def test_given_nsqds_are_asked(
    cluster: Cluster, admin: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--nsqd-http-address`, and the environment in place of a flag."""
    cluster.fresh("clicks", "archive", messages=1)
    flags = [f"--nsqd-http-address={address}" for address in (*cluster.alive, cluster.dead)]

    ran = admin("list", "clicks", *flags)
    assert (1, ["archive", "2"]) == (ran.status, ran.rows[1][:2])
    assert f"{cluster.dead}: connection refused" in ran.err
    monkeypatch.setenv("SPARQ_NSQD_HTTP_ADDRESS", ",".join(cluster.alive))
    assert 0 == main(["admin", "list", "clicks"])
    monkeypatch.setenv("SPARQ_LOOKUPD_HTTP_ADDRESS", cluster.lookupd.http)
    assert 1 == main(["admin", "list", "clicks"])
    monkeypatch.delenv("SPARQ_NSQD_HTTP_ADDRESS")
    monkeypatch.delenv("SPARQ_LOOKUPD_HTTP_ADDRESS")
    assert 1 == main(["admin", "list", "clicks"])


def test_the_command_that_goes_on_has_all_flags(cluster: Cluster, admin: Run) -> None:
    """What was asked for, at the dead nsqd alone; texts quoted for a shell, the token left out."""
    cluster.fresh("clicks", "archive")

    ran = admin("find", "clicks", "archive", "--where=n >= $(id)", "--limit=7", "--token=secret")

    again = "find clicks archive --limit=7 --token=@FILE '--where=n >= $(id)'"
    assert f"sparq admin {again} --nsqd-http-address={cluster.dead}\n" in ran.err
    assert "secret" not in ran.err


def test_an_nsqd_that_cannot(cluster: Cluster, admin: Run, old_nsqd: str) -> None:
    """Go's, or an older one: named with what to do, and no command that would fail again."""
    flags = [f"--nsqd-http-address={address}" for address in (cluster.nsqds[0].http, old_nsqd)]
    cluster.fresh("clicks", "archive", messages=1)

    for words in (["peek"], ["find"], ["export"], ["seek"]):
        place = ["earliest", "--dry-run"] if words == ["seek"] else []
        ran = admin(*words, "clicks", "archive", *place, *flags)
        told = ran.out + ran.err
        assert 1 == ran.status
        assert f"{old_nsqd}: it does not support this: Go's nsqd, or an older version" in told
        assert f"nsqd {old_nsqd}: use sparq's nsqd there, or do without its data\n" in told
        assert f"http-address={old_nsqd}" not in told
    ran = admin("seek", "clicks", "archive", "earliest", *flags)
    assert (1, "moved in part:") == (ran.status, ran.out[:14])
    assert f"{old_nsqd}: it does not support this" in ran.out
    ran = admin("requeue", "clicks", "archive", "0" * 16, *flags)
    assert f"{old_nsqd}: it does not support this" in ran.out
    ran = admin("pause", "clicks", "archive", *flags)
    assert (0, 2) == (ran.status, ran.out.count("done"))
