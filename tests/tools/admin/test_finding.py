"""`sparq admin` finds and shows messages on three nsqds, one of them dead; it changes none."""

from __future__ import annotations

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
