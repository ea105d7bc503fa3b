"""`sparq admin drain` waits, reports what remains, checks that the process ends, and undoes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for
from tests.tools.admin.conftest import Cluster, Ran, Run, call


class DrainTarget:
    """An nsqd to be drained, and the flag that names its cluster."""

    def __init__(self, nsqd: NsqdServer, capfd: pytest.CaptureFixture[str], flag: str) -> None:
        self.nsqd = nsqd
        self._capfd = capfd
        self._flag = flag

    def drain(self, *words: str) -> Ran:
        return self.run("drain", self.nsqd.http, *words)

    def run(self, *words: str) -> Ran:
        return call(self._capfd, *words, self._flag)


@pytest.fixture
def target(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[DrainTarget]:
    """An nsqd with three messages in a channel without consumers."""
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd,
    ):
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        nsqd.post("/mpub?topic=t", b"1\n2\n3")
        wait_for(lambda: lookupd.get_json("/nodes")["producers"])
        # A new topic asks nsqlookupds for its channels before messages reach them.
        wait_for(lambda: nsqd.channel("t", "c")["depth"] == 3)
        yield DrainTarget(nsqd, capfd, f"--lookupd-http-address={lookupd.http}")


def test_a_drain_that_times_out_reports_the_rest(target: DrainTarget) -> None:
    """A drain that is not complete within --timeout continues, and the status is 1."""
    found = target.drain("--timeout=1s")

    assert 1 == found.status
    assert "sparq admin drain: held up: t/c: no consumers, 3 messages\n" == found.err
    sentence, *rows = found.out.splitlines()
    assert f"{target.nsqd.http} is still draining, 3 messages left" in sentence
    assert [
        ["TOPIC", "CHANNEL", "MESSAGES", "HELD", "UP"],
        ["t", "c", "3", "no", "consumers"],
    ] == [row.split() for row in rows[-2:]]
    assert target.nsqd.get_json("/drain")["draining"] is True
    assert " draining " in target.run("list", "--nodes").out
    document = target.drain("--timeout=600ms", "--json").document
    assert ("waiting", 3) == (document["result"], document["depth"])
    expected = {"topic": "t", "channel": "c", "messages": 3, "held_up": "no consumers"}
    assert expected.items() <= document["left"][0].items()


def test_drain_waits_until_no_message_is_left(target: DrainTarget) -> None:
    """The drained nsqd refuses publishes until `--undo`."""
    emptied = threading.Timer(1, target.nsqd.post, ["/channel/empty?topic=t&channel=c"])
    emptied.start()
    found = target.drain()
    emptied.join()

    assert (0, f"{target.nsqd.http} is draining and has nothing left; messages refused: 0\n") == (
        found.status,
        found.out,
    )
    assert target.nsqd.get_json("/drain")["draining"] is True
    found = target.drain("--undo")
    assert (0, f"{target.nsqd.http} accepts publishes again\n") == (found.status, found.out)
    assert target.nsqd.get_json("/drain")["draining"] is False


def test_exit_ends_the_drained_nsqd(target: DrainTarget) -> None:
    """With `--exit` the drained nsqd exits with status 0."""
    target.nsqd.post("/channel/empty?topic=t&channel=c")
    found = target.drain("--exit")

    assert (0, "") == (found.status, found.err)
    assert "had nothing left, and its process has exited" in found.out
    process = target.nsqd.process
    assert process is not None
    assert 0 == process.wait(10)
    target.nsqd.process = None


def test_an_nsqd_that_dies_while_draining_is_an_error(target: DrainTarget) -> None:
    """`drain --exit` exits with status 1, because the nsqd was not seen empty."""
    killed = threading.Timer(1, target.nsqd.kill9)
    killed.start()
    found = target.drain("--exit")
    killed.join()

    assert 1 == found.status
    assert "does not answer: see its log; last seen: 3 messages left" in found.out
    assert target.nsqd.http in found.err


def test_a_drain_that_is_undone_meanwhile_is_an_error(target: DrainTarget) -> None:
    """The verb ends with status 1."""
    undone = threading.Timer(1, target.nsqd.request, ["DELETE", "/drain"])
    undone.start()
    found = target.drain()
    undone.join()

    assert 1 == found.status
    assert "accepts publishes again" in found.out


def test_usage_errors(target: DrainTarget, admin: Run, old_nsqd: str) -> None:
    """An unknown node, flags that exclude each other, and Go's nsqd are errors."""
    assert 1 == target.drain("--undo", "--exit").status
    found = admin("drain", "nobody:1", f"--nsqd-http-address={target.nsqd.http}")
    assert 1 == found.status
    assert "is not an nsqd of this cluster: nothing was done; known: 127.0.0.1:" in found.err
    found = admin("drain", old_nsqd, f"--nsqd-http-address={old_nsqd}")
    assert 1 == found.status
    assert "it does not support this: Go's nsqd" in found.err
    assert target.nsqd.get_json("/drain")["draining"] is False


def test_a_dead_nsqd_is_an_error(cluster: Cluster, admin: Run) -> None:
    """With a dead nsqd `drain` and `move` exit with status 1 and change nothing."""
    found = admin("drain", cluster.dead)
    assert (1, "") == (found.status, found.out)
    assert f"{cluster.dead}: " in found.err
    cluster.recreate("moves", "c", messages=2)
    source = cluster.nsqds[0]
    found = admin("move", "topic", "moves", f"--from={source.http}", f"--to={cluster.dead}")
    assert 1 == found.status
    assert f"{cluster.dead}: " in found.err
    assert not source.get_json("/drain")["draining_topics"]  # the target is checked first
    assert 2 == source.channel("moves", "c")["depth"]
