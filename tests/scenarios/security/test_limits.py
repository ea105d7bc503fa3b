"""S-3: the number of topics, channels, connections and bytes can be limited; nsqd stays usable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.protocol.commands import mpub, pub, rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import MAGIC, OK, V2Client, fin_each
from tests.support.waiting import wait_for

TOPICS, CHANNELS, CONNECTIONS, TOPIC_BYTES = 20, 10, 30, 2 << 20
TRIES = 100
FLAGS = (
    f"--max-topics={TOPICS}",
    f"--max-channels={CHANNELS}",
    f"--max-connections={CONNECTIONS}",
    f"--max-topic-bytes={TOPIC_BYTES}",
)


def make_topics(server: NsqdServer) -> int:
    """Publish to new topics with PUB and MPUB; return the number of refusals."""
    refused = 0
    with V2Client(server) as line:
        for number in range(TRIES):
            refused += line.ask(pub(f"t{number}", b"x")) != OK
            refused += line.ask(mpub(f"t{number}", [b"x", b"y"])) != OK
    return refused


def make_channels(server: NsqdServer) -> int:
    """Create new channels by SUB and over HTTP; return the number of refusals."""
    refused = 0
    for number in range(TRIES):
        if number % 2:
            path = f"/channel/create?topic=t0&channel=c{number}"
            refused += server.request("POST", path)[0] != 200
            continue
        with V2Client(server) as line:
            refused += line.ask(sub("t0", f"c{number}")) != OK
    return refused


def connect(server: NsqdServer, kept: contextlib.ExitStack) -> list[V2Client]:
    """Connect repeatedly; return the accepted connections."""
    there = []
    for _ in range(TRIES):
        client = kept.enter_context(V2Client(server, b"", seconds=30))
        with contextlib.suppress(ConnectionError):
            client.send(MAGIC + pub("t1", b"x"))
            if client.receive_some():
                there.append(client)
    return there


def fill(server: NsqdServer, topic: str) -> tuple[int, int]:
    """Publish far beyond the limit; return the numbers of accepted and refused messages."""
    taken = refused = 0
    with V2Client(server) as line:
        for _ in range(TRIES):
            if line.ask(pub(topic, b"x" * (TOPIC_BYTES // 20))) == OK:
                taken += 1
            else:
                refused += 1
    return taken, refused


@pytest.mark.security("S-3")
def test_topics_and_channels_are_limited(tmp_path: Path, shows: Callable[[str], None]) -> None:
    """Beyond the limits, creation is refused; existing topics still work, also after a restart."""
    with spawn_nsqd(tmp_path, *FLAGS) as server:
        topics, channels = make_topics(server), make_channels(server)
        with contextlib.ExitStack() as kept:
            there = connect(server, kept)
            wait_for(lambda: server.request("GET", "/ping") == (200, b"OK"))
            assert 0 < len(there) <= CONNECTIONS
        stats = server.get_json("/stats?format=json")
        assert TOPICS == len(stats["topics"])
        assert CHANNELS == max(len(topic["channels"]) for topic in stats["topics"])
        assert 2 * (TRIES - TOPICS) == topics
        assert TRIES - CHANNELS == channels
        server.restart()
        with V2Client(server) as line:
            assert line.ask(pub("t0", b"after")) == OK
    refused = topics + channels + TRIES - len(there)
    shows(f"asked {4 * TRIES:,}, refused {refused:,} > 0, server alive")


@pytest.mark.security("S-3")
def test_the_bytes_of_a_topic_are_limited(tmp_path: Path, shows: Callable[[str], None]) -> None:
    """A topic without readers accepts messages up to its limit; reading them frees space."""
    with spawn_nsqd(tmp_path, *FLAGS) as server:
        taken, refused = fill(server, "full")
        size = sum(path.stat().st_size for path in (tmp_path / "nsqd").rglob("*.log"))
        assert size < TOPIC_BYTES * 1.5
        assert refused > TRIES // 2
        # Another topic is not affected.
        assert fill(server, "other")[0] == taken
        with V2Client(server) as line:
            assert line.ask(sub("full", "c")) == OK
            line.send(rdy(100))
            line.send(fin_each(line.messages(taken)))
            with V2Client(server) as publisher:
                wait_for(lambda: publisher.ask(pub("full", b"x" * (TOPIC_BYTES // 20))) == OK)
    shows(f"taken {taken} of {TRIES} publishes, refused {refused} > 0; room again once read")
