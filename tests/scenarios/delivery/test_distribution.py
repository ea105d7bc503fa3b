"""How the messages of a channel are distributed among consumers with different RDY."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol.commands import mpub, rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, V2Client, fin_each
from tests.support.waiting import wait_for

WINDOWS = (10, 100, 1_000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NsqdServer]:
    """A running nsqd."""
    with spawn_nsqd(tmp_path) as server:
        yield server


@pytest.fixture
def consumers(server: NsqdServer) -> Iterator[tuple[V2Client, ...]]:
    """Consumers of one channel with RDY 10, 100 and 1,000."""
    with V2Client(server) as small, V2Client(server) as middle, V2Client(server) as large:
        lines = small, middle, large
        for line, window in zip(lines, WINDOWS, strict=True):
            assert line.ask(sub("t", "c")) == OK
            line.send(rdy(window))
        yield lines


def is_settled(server: NsqdServer) -> bool:
    """Whether all delivered messages are finished."""
    return not server.channel("t", "c")["in_flight_count"]


def publish(server: NsqdServer, count: int) -> None:
    """Publish `count` messages with one MPUB, when the previous ones are finished."""
    wait_for(lambda: is_settled(server))
    with V2Client(server) as producer:
        assert producer.ask(mpub("t", [b"x"] * count)) == OK


def test_consumers_below_rdy_get_equal_numbers(
    server: NsqdServer, consumers: tuple[V2Client, ...]
) -> None:
    """RDY is a limit, not a weight: while no consumer reaches it, all get equal numbers."""
    counts = [0, 0, 0]
    for _ in range(20):
        publish(server, 30)
        for at, line in enumerate(consumers):
            messages = line.messages(10)
            counts[at] += len(messages)
            line.send(fin_each(messages))

    assert counts == [200, 200, 200]


def test_a_backlog_is_shared_in_proportion_to_rdy(
    server: NsqdServer, consumers: tuple[V2Client, ...]
) -> None:
    """With a backlog, consumers of equal speed get messages in proportion to their RDY."""
    publish(server, 4_440)
    counts = [0, 0, 0]
    for _ in range(4):
        # All have as many messages as their RDY allows before one of them finishes any, and so gets
        # more.
        rounds = [line.messages(window) for line, window in zip(consumers, WINDOWS, strict=True)]
        for at, messages in enumerate(rounds):
            counts[at] += len(messages)
            consumers[at].send(fin_each(messages))

    assert counts == [40, 400, 4_000]
