"""`sparq admin drain` waits, reports what remains, checks that the process ends, and undoes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for
from tests.tools.admin.conftest import Cluster, Ran, Run, call


class Leaving:
    """An nsqd to be drained, and the flag that names its cluster."""

    def __init__(self, nsqd: NsqdServer, capfd: pytest.CaptureFixture[str], flag: str) -> None:
        self.nsqd = nsqd
        self._capfd = capfd
        self._flag = flag

    def drain(self, *words: str) -> Ran:
        return call(self._capfd, "drain", self.nsqd.http, self._flag, *words)


@pytest.fixture
def leaving(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Leaving]:
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
        yield Leaving(nsqd, capfd, f"--lookupd-http-address={lookupd.http}")


def test_what_holds_it_up_is_said(leaving: Leaving) -> None:
    """A drain that is not complete within --timeout continues, and the status is 1."""
    found = leaving.drain("--timeout=1s")

    assert 1 == found.status
    assert "sparq admin drain: held up: t/c: no consumers, 3 messages\n" == found.err
    sentence, *rows = found.out.splitlines()
    assert f"{leaving.nsqd.http} is still draining, 3 messages left" in sentence
    assert ["t", "c", "3", "no", "consumers"] == rows[-1].split()
    assert leaving.nsqd.get_json("/drain")["draining"] is True
    document = leaving.drain("--timeout=600ms", "--json").document
    assert ("waiting", 3) == (document["result"], document["depth"])
    assert {"topic": "t", "channel": "c", "messages": 3, "held_up": "no consumers"} == (
        document["left"][0]
    )


def test_it_waits_until_nothing_is_left(leaving: Leaving) -> None:
    """The drained nsqd refuses publishes until `--undo`."""
    emptied = threading.Timer(1, leaving.nsqd.post, ["/channel/empty?topic=t&channel=c"])
    emptied.start()
    found = leaving.drain()
    emptied.join()

    assert (0, f"{leaving.nsqd.http} is draining and has nothing left; messages refused: 0\n") == (
        found.status,
        found.out,
    )
    assert leaving.nsqd.get_json("/drain")["draining"] is True
    found = leaving.drain("--undo")
    assert (0, f"{leaving.nsqd.http} accepts publishes again\n") == (found.status, found.out)
    assert leaving.nsqd.get_json("/drain")["draining"] is False


def test_the_process_ends(leaving: Leaving) -> None:
    """With `--exit` the drained nsqd exits with status 0."""
    leaving.nsqd.post("/channel/empty?topic=t&channel=c")
    found = leaving.drain("--exit")

    assert (0, "") == (found.status, found.err)
    assert "had nothing left, and its process has exited" in found.out
    process = leaving.nsqd.process
    assert process is not None
    assert 0 == process.wait(10)
    leaving.nsqd.process = None


def test_one_that_dies_is_no_success(leaving: Leaving) -> None:
    """`drain --exit` exits with status 1, because the nsqd was not seen empty."""
    killed = threading.Timer(1, leaving.nsqd.kill9)
    killed.start()
    found = leaving.drain("--exit")
    killed.join()

    assert 1 == found.status
    assert "does not answer: see its log; last seen: 3 messages left" in found.out
    assert leaving.nsqd.http in found.err


def test_one_that_is_undone_meanwhile(leaving: Leaving) -> None:
    """The verb ends with status 1."""
    undone = threading.Timer(1, leaving.nsqd.request, ["DELETE", "/drain"])
    undone.start()
    found = leaving.drain()
    undone.join()

    assert 1 == found.status
    assert "accepts publishes again" in found.out


def test_mistakes(leaving: Leaving, admin: Run, old_nsqd: str) -> None:
    """An unknown node, flags that exclude each other, and Go's nsqd are errors."""
    assert 1 == leaving.drain("--undo", "--exit").status
    found = admin("drain", "nobody:1", f"--nsqd-http-address={leaving.nsqd.http}")
    assert 1 == found.status
    assert "is not an nsqd of this cluster: nothing was done; known: 127.0.0.1:" in found.err
    found = admin("drain", old_nsqd, f"--nsqd-http-address={old_nsqd}")
    assert 1 == found.status
    assert "it does not support this: Go's nsqd" in found.err
    assert leaving.nsqd.get_json("/drain")["draining"] is False


def test_one_that_is_dead_already(cluster: Cluster, admin: Run) -> None:
    """With a dead nsqd `drain` and `move` exit with status 1 and change nothing."""
    found = admin("drain", cluster.dead)
    assert (1, "") == (found.status, found.out)
    assert f"{cluster.dead}: " in found.err
    cluster.fresh("moves", "c", messages=2)
    source = cluster.nsqds[0]
    found = admin("move", "topic", "moves", f"--from={source.http}", f"--to={cluster.dead}")
    assert 1 == found.status
    assert f"{cluster.dead}: " in found.err
    assert not source.get_json("/drain")["draining_topics"]  # the target is checked first
    assert 2 == source.channel("moves", "c")["depth"]
