"""`sparq admin move topic` moves each channel's messages, and can be repeated after any kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.dead_letters import DeadLetterHistory
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.stubborn_client import StubbornClient
from tests.support.waiting import wait_for
from tests.tools.admin.conftest import Ran, call

MESSAGES = int(os.environ.get("MOVE_MESSAGES", "20000"))
"""`make move` sets a million."""

QUICK = ("--wait=0s", "--consumer-opt=msg_timeout,1s")


class Pair:
    """Two nsqds with an nsqlookupd; the topic `t` moves from the first to the second."""

    def __init__(self, nsqds: tuple[NsqdServer, NsqdServer], lookupd: Server) -> None:
        self.source, self.target = nsqds
        self.lookupd = lookupd

    @property
    def words(self) -> list[str]:
        """The arguments of `sparq admin`."""
        where = [f"--from={self.source.http}", f"--to={self.target.http}"]
        cluster = f"--lookupd-http-address={self.lookupd.http}"
        return ["move", "topic", "t", *where, cluster, *QUICK]

    def move(self, capfd: pytest.CaptureFixture[str], *words: str) -> Ran:
        return call(capfd, *self.words, *words)

    def create_topic(self, *channels: str, messages: int = 0) -> None:
        """Create the topic on the source."""
        self.source.post("/topic/create?topic=t")
        for name in channels:
            self.source.post(f"/channel/create?topic=t&channel={name}")
        self.publish(0, messages)

    def publish(self, first: int, end: int) -> None:
        """Publish numbered messages to the source."""
        for at in range(first, end, 5_000):
            lines = b"\n".join(b"%d" % number for number in range(at, min(end, at + 5_000)))
            self.source.post("/mpub?topic=t", lines)

    def finish_all(self, channel: str) -> None:
        self.source.post(f"/channel/empty?topic=t&channel={channel}")

    def arrived(self, channel: str) -> Counter[int]:
        """Return the messages that wait in a channel of the target."""
        found: Counter[int] = Counter()
        path = f"/channel/messages?topic=t&channel={channel}&state=waiting&limit=1000"
        after = ""
        while True:
            answer = self.target.get_json(path + after)
            found.update(int(one["body"]) for one in answer["messages"])
            after = f"&after={answer['next']}"
            if not answer["next"] or not answer["messages"]:
                return found

    def has_left(self) -> bool:
        """Whether the source no longer has the topic."""
        return not self.source.get_json("/stats?format=json&topic=t")["topics"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Both nsqds run and are listed."""
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, "--node-id=1", lookupds=(lookupd,), name="source") as source,
        spawn_nsqd(tmp_path, "--node-id=2", lookupds=(lookupd,), name="target") as target,
    ):
        wait_for(lambda: len(lookupd.get_json("/nodes")["producers"]) == 2)
        yield Pair((source, target), lookupd)


def moved_messages(ran: Ran) -> tuple[int, int]:
    """Return how many messages were moved, and how many at most twice."""
    words = ran.out.replace(",", "").split()
    return int(words[words.index("messages") - 1]), int(words[words.index("most") + 1])


def test_each_channel_keeps_its_messages_and_pause(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    """A channel does not get messages that it has finished; a paused one stays paused."""
    pair.create_topic("all", "half", "none", "still", "gone#ephemeral", messages=MESSAGES // 2)
    for name in ("half", "none"):
        pair.finish_all(name)
    pair.publish(MESSAGES // 2, MESSAGES)
    pair.finish_all("none")
    pair.source.post("/channel/pause?topic=t&channel=still")
    ran = pair.move(capfd)

    assert (0, "") == (ran.status, ran.err)
    assert (MESSAGES * 5 // 2, 0) == moved_messages(ran)
    assert Counter(range(MESSAGES)) == pair.arrived("all") == pair.arrived("still")
    assert Counter(range(MESSAGES // 2, MESSAGES)) == pair.arrived("half")
    assert not pair.arrived("none")
    stats = pair.target.get_json("/stats?format=json&topic=t")["topics"][0]
    paused = {one["channel_name"]: one["paused"] for one in stats["channels"]}
    assert {"all": False, "half": False, "none": False, "still": True} == paused
    assert pair.has_left()
    assert 503 == pair.source.request("POST", "/pub?topic=t", b"x")[0]
    pair.source.post("/pub?topic=other", b"x")
    ports = [one["http_port"] for one in pair.lookupd.get_json("/lookup?topic=t")["producers"]]
    assert [pair.target.http_port] == ports
    again = pair.move(capfd)
    assert (0, (0, 0)) == (again.status, moved_messages(again))


def test_dead_letters_keep_their_histories(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """The target shows the history that the source had."""
    history = DeadLetterHistory(
        "orders", "billing", "0" * 16, 3, 10**18, 0, "me", "requeued", redriven=2
    )
    pair.source.post("/topic/create?topic=t.dead")
    pair.source.post("/channel/create?topic=t.dead&channel=c")
    for body in (history.seal(b"bad"), b"by hand"):
        pair.source.post("/pub?topic=t.dead", body)
    words = [word if word != "t" else "t.dead" for word in pair.words]
    assert 0 == call(capfd, *words).status
    path = "/channel/messages?topic=t.dead&channel=c"
    found = pair.target.get_json(path)["messages"]
    assert [("bad", "2"), ("by hand", None)] == [
        (one["body"], one.get("letter", {}).get("redriven")) for one in found
    ]


def test_the_target_does_not_learn_the_channel_of_the_move(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    """Messages without a channel wait for the target's first one.

    A slow nsqlookupd answers the target's request for channels after the move has begun.
    """
    pair.create_topic(messages=50)
    wait_for(lambda: "t" in pair.lookupd.get_json("/topics")["topics"])
    os.kill(pair.lookupd.pid, signal.SIGSTOP)
    timer = threading.Timer(2.0, os.kill, (pair.lookupd.pid, signal.SIGCONT))
    timer.start()
    try:
        words = [word for word in pair.words if not word.startswith("--lookupd")]
        nsqds = [f"--nsqd-http-address={nsqd.http}" for nsqd in (pair.source, pair.target)]
        document = call(capfd, *words, *nsqds, "--json").document
    finally:
        timer.join()
    assert {"result": "done", "carried": 50, "maybe_twice": 0}.items() <= document.items()
    assert not pair.target.get_json("/stats?format=json&topic=t")["topics"][0]["channels"]
    pair.target.post("/channel/create?topic=t&channel=c")
    assert Counter(range(50)) == pair.arrived("c")


def test_a_topic_that_is_back_at_the_source_is_a_failure(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    """A client that subscribes again at the source at once is named, and the status is 1."""
    pair.create_topic("c", messages=5)
    with StubbornClient(pair.source.tcp_port, "t", "c"):
        ran = pair.move(capfd)
        assert 1 == ran.status
        assert f"topic t at {pair.source.http}: it is back: attached to it: 127.0.0.1:" in ran.err
        assert "(client id stubborn, user agent raw/1, channel c)" in ran.err
    assert Counter(range(5)) == pair.arrived("c")
    assert 0 == pair.move(capfd).status
    assert pair.has_left()


@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_move_whose_source_or_target_dies_can_be_repeated(
    pair: Pair, capfd: pytest.CaptureFixture[str], victim: str
) -> None:
    """The verb ends with an error; the next run completes the move, and no message is lost."""
    pair.create_topic("a", "b", messages=MESSAGES)
    nsqd: NsqdServer = getattr(pair, victim)
    pair.target.post("/topic/create?topic=t")

    def kill() -> None:
        wait_for(lambda: pair.target.channel("t", "a").get("depth", 0) > 1_000, every=0.02)
        nsqd.kill9()

    killing = threading.Thread(target=kill)
    killing.start()
    ran = pair.move(capfd)
    killing.join()
    assert 1 == ran.status
    assert "not moved: run this again to continue" in ran.err
    nsqd.start()
    wait_for(lambda: len(pair.lookupd.get_json("/nodes")["producers"]) == 2)
    move_again_and_check(pair, capfd, moved_messages(ran)[1])


def move_again_and_check(pair: Pair, capfd: pytest.CaptureFixture[str], twice_before: int) -> None:
    """Move again: all messages have arrived, and no more duplicates than reported."""
    ran = pair.move(capfd)
    assert (0, "") == (ran.status, ran.err)
    assert pair.has_left()
    twice = 0
    for name in ("a", "b"):
        arrived = pair.arrived(name)
        assert set(range(MESSAGES)) == set(arrived)
        twice += arrived.total() - MESSAGES
    assert twice <= moved_messages(ran)[1] + twice_before


def test_a_killed_move_can_be_repeated(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """After kill -9, messages in flight are moved again, and counted as possible duplicates."""
    pair.create_topic("a", "b", messages=MESSAGES)
    program = [sys.executable, "-c", "import sys; from sparq.cli import main; sys.exit(main())"]
    with subprocess.Popen([*program, "admin", *pair.words]) as process:
        wait_for(lambda: pair.target.channel("t", "a").get("depth", 0) > 1_000, every=0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert pair.source.channel("t", "a")
    move_again_and_check(pair, capfd, 0)


def test_an_impossible_move_is_refused(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    """The error says what to do; no message is lost."""
    pair.create_topic("c", messages=3)
    ran = call(capfd, *pair.words[:1], "channel", "t", *pair.words[3:])
    assert (1, True) == (ran.status, "takes topic NAME" in ran.err)
    ran = call(capfd, "move", "topic", "t", pair.words[3], pair.words[5])
    assert (1, True) == (ran.status, "--from and --to must name two different nsqds" in ran.err)
    ran = call(capfd, "move", "topic", "t", "--from=nobody:1", *pair.words[4:])
    assert (1, True) == (ran.status, "is not an nsqd of this cluster" in ran.err)
    ran = call(capfd, "move", "topic", "u", *pair.words[3:])
    assert (1, True) == (ran.status, "has no topic u: nothing was done" in ran.err)
    assert "not moved" not in ran.err + ran.out
    pair.source.post("/topic/pause?topic=t")
    pair.source.post("/pub?topic=t", b"4")
    ran = pair.move(capfd)
    assert (1, True) == (ran.status, "is paused at" in ran.err)
    found: dict[str, Any] = json.loads(pair.source.request("GET", "/drain")[1])
    assert not found["draining_topics"]
    pair.source.post("/topic/unpause?topic=t")
    assert 0 == pair.move(capfd).status
    assert 4 == pair.target.channel("t", "c")["depth"]
