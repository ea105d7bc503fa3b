"""`sparq admin` changes topics and channels on three nsqds, one of them dead; seek."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparq.protocol.commands import identify, pub
from tests.support.stubborn_client import StubbornClient
from tests.support.v2_client import V2Client
from tests.support.waiting import wait_for
from tests.tools.admin.conftest import Cluster, OldNsqd, Run, serving


def test_an_nsqd_without_the_channel_is_no_error(cluster: Cluster, admin: Run) -> None:
    """A channel that only one nsqd has is changed there; that is not an error."""
    cluster.recreate("orders", "all", messages=1, dead=False)
    # A new topic asks nsqlookupd for its channels, and would get this one as well; messages reach
    # its channels only after the answer.
    wait_for(lambda: [1, 1] == cluster.depths("orders", "all"))
    cluster.nsqds[0].post("/channel/create?topic=orders&channel=here")

    ran = admin("pause", "orders", "here")

    assert 0 == ran.status
    assert f"{cluster.nsqds[1].http}" in ran.out
    assert "nothing to do: it has no such topic or channel" in ran.out
    assert cluster.nsqds[0].channel("orders", "here")["paused"]
    ran = admin("pause", "orders", "nowhere")
    assert (1, "no nsqd has the channel nowhere of topic orders" in ran.err) == (ran.status, True)


def test_tombstone_needs_an_nsqd_with_the_topic(cluster: Cluster, admin: Run) -> None:
    """Another address is refused, with the known ones; a dry run changes nothing."""
    cluster.recreate("graves", "c", messages=1)
    node = cluster.nsqds[0]

    assert 0 == admin("tombstone", "graves", node.http, "--dry-run").status
    assert node.channel("graves", "c")
    unknown = admin("tombstone", "graves", "127.0.0.1:1", "--yes")
    assert 1 == unknown.status
    assert "is not an nsqd with topic graves: nothing was done; known:" in unknown.err


def test_losing_messages_requires_confirmation(cluster: Cluster, admin: Run) -> None:
    """Without a terminal `--yes` is required; otherwise nothing is done."""
    cluster.recreate("orders", "c", messages=2, dead=False)

    for verb in ("empty", "delete"):
        ran = admin(verb, "orders", "c")
        assert 1 == ran.status
        assert "use --yes to run it or --dry-run to preview it" in ran.err
    assert (
        "this deletes channel c of topic orders with 4 messages: not confirmed, nothing was done"
        in ran.err
    )
    assert [2, 2] == cluster.depths("orders", "c")


@pytest.mark.parametrize("name", ["$(reboot)", "a b", "\x1b[2J", "", "x" * 65, "<script>"])
def test_an_invalid_name_is_refused(admin: Run, name: str) -> None:
    """The name is refused before any request, and printed without control characters."""
    for words in ((name,), ("clicks", name)):
        if words[-1] == "" and len(words) == 2:
            continue
        ran = admin("pause", *words)
        assert 1 == ran.status
        assert re.search(r"is not a valid (topic|channel) name", ran.err)
        assert "\x1b" not in ran.err


@pytest.mark.parametrize("words", [("delete", "grave"), ("delete", "grave", "c"), ("tombstone",)])
def test_a_topic_that_comes_back_is_a_failure(
    cluster: Cluster, admin: Run, words: tuple[str, ...]
) -> None:
    """A client that subscribes again at once creates it again: it is named, and the status is 1."""
    cluster.recreate("grave", "c", dead=False)
    node, other = cluster.nsqds
    if words == ("tombstone",):
        words = ("tombstone", "grave", node.http)
    with StubbornClient(node.tcp_port, "grave", "c", user_agent="raw/1\x1b[2J"):
        ran = admin(*words, "--yes")
        document = admin(*words, "--yes", "--json").document

    assert 1 == ran.status
    assert " in part: " in ran.out.splitlines()[0]
    (row,) = [line for line in ran.out.splitlines() if "it is back" in line]
    assert re.match(rf"{node.http}: it is back: attached to it: 127\.0\.0\.1:\d+ ", row)
    assert re.search(rf"{node.http} +stays away +NO\n", ran.out)
    assert "(client id stubborn, user agent raw/1 [2J, channel c)" in row
    assert f"nsqd {node.http}: stop these clients" in ran.out
    assert "partly" == document["result"]
    assert [node.http] == [*document["errors"]]
    assert not other.channel("grave", "c") or words[0] == "tombstone"
    assert 0 == admin("delete", "grave", "--yes").status


def test_a_publisher_that_brings_a_topic_back_is_named(cluster: Cluster, admin: Run) -> None:
    """A topic that a publish has created again names the V2 client; over HTTP nobody is known."""
    cluster.recreate("grave", dead=False)
    node = cluster.nsqds[0]
    with V2Client(node) as client:
        client.ask(identify(b'{"client_id": "printer", "user_agent": "raw/2"}'))
        client.ask(pub("grave", b"x"))
        timer = threading.Timer(0.7, client.ask, [pub("grave", b"x")])
        timer.start()
        ran = admin("delete", "grave", "--yes")
        timer.join()
    assert 1 == ran.status
    assert "(client id printer, user agent raw/2, publishes)" in ran.out
    timer = threading.Timer(0.7, node.post, ["/pub?topic=grave", b"x"])
    timer.start()
    ran = admin("delete", "grave", "--yes")
    timer.join()
    assert 1 == ran.status
    assert "no client is attached to it: one that has left, or one over HTTP, created it" in ran.out
    assert 0 == admin("delete", "grave", "--yes").status


class FaultySeek(OldNsqd):
    """An nsqd whose answers to a seek have a figure that no nsqd can have."""

    skipped: Any = 0
    seeks: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).seeks.append(self.path)
        self.answer({"again": 0, "waiting": 0, "skipped": self.skipped})


@pytest.fixture(params=[-1, 10**30, "3", None, float("nan"), float("inf"), 1.5, True])
def faulty(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """The address of a FaultySeek, and the requests that it gets."""
    seeks: list[str] = []
    handler = type("Faulty", (FaultySeek,), {"skipped": request.param, "seeks": seeks})
    with serving(handler) as address:
        yield address, seeks


def waiting(cluster: Cluster) -> list[int]:
    return cluster.depths("clicks", "archive")


def test_seek_reports_each_nsqds_position(cluster: Cluster, admin: Run) -> None:
    """`seek` shows each nsqd's new position and returning messages; the dead nsqd is named."""
    cluster.recreate("clicks", "archive")
    # Messages stay in the log while any channel needs them.
    cluster.post("/channel/create?topic=clicks&channel=keeper")
    cluster.post("/mpub?topic=clicks", b"1\n2\n3")
    cluster.nsqds[0].post("/channel/empty?topic=clicks&channel=archive")

    dry = admin("seek", "clicks", "archive", "earliest", "--dry-run")
    assert [0, 3] == waiting(cluster)
    assert (1, "dry run: would move channel archive of topic clicks to earliest") == (
        *(dry.status, dry.out.splitlines()[0]),
    )
    ran = admin("seek", "clicks", "archive", "earliest")
    assert [3, 3] == waiting(cluster)
    assert (1, "moved in part: channel archive of topic clicks to earliest") == (
        *(ran.status, ran.out.splitlines()[0]),
    )
    rows = {row[0]: row[-3:] for row in ran.rows if row}
    assert ["3", "0", "3"] == rows[cluster.nsqds[0].http]
    assert ["0", "0", "3"] == rows[cluster.nsqds[1].http]
    assert f"{cluster.dead}: connection refused" in ran.out
    assert f"sparq admin seek clicks archive earliest --nsqd-http-address={cluster.dead}" in ran.out


def test_a_node_with_impossible_figures_is_named_and_not_moved(
    cluster: Cluster, admin: Run, faulty: tuple[str, list[str]]
) -> None:
    """Counted as 0, its skipped messages would need no confirmation; the others are moved."""
    cluster.recreate("clicks", "archive", messages=1, dead=False)
    address, seeks = faulty
    good = cluster.nsqds[0]
    flags = [f"--nsqd-http-address={at}" for at in (good.http, address)]

    ran = admin("seek", "clicks", "archive", "earliest", *flags)

    assert 1 == ran.status
    assert f"{address}: unreadable answer: " in ran.out
    assert [good.http] == [row[0] for row in ran.rows if row and row[0] == good.http]
    assert 1 == len(seeks)
    assert "dry_run=true" in seeks[0]
