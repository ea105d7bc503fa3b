"""The requirements for a connection, tested against real nsqds."""

import logging
from typing import Any

import pytest

from sparq.client import Config, Consumer
from sparq.client.connection import open_connection
from sparq.client.errors import WrongPeerError
from tests.scenarios.client_library.tap import Tap, tapped
from tests.support.servers import free_port
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of connection losses that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def consumer_of(tap: Tap, topic: str, **options: Any) -> Consumer:
    """A consumer that reads the topic's channel "c" through a tap."""
    given = {"max_in_flight": 10, "max_reconnect_delay": 0.1, **options}
    return Consumer(topic, "c", nsqd_tcp_addresses=tap.address, **given)


async def test_nsqd_applies_the_identify_options(shared_daemons: SharedDaemons) -> None:
    """nsqd applies the options that IDENTIFY sends; the client keeps nsqd's response."""
    topic, nsqd = shared_daemons.make("identified"), shared_daemons.nsqds[1]
    options = {
        "client_id": "me",
        "hostname": "my.host",
        "user_agent": "mine/1",
        "msg_timeout": 7.0,
        "sample_rate": 50,
        "output_buffer_size": 12_345,
        "output_buffer_timeout": 0.123,
    }
    async with tapped(nsqd) as [tap], consumer_of(tap, topic, **options) as consumer:
        await until(lambda: tap.ready)
        await until(lambda: nsqd.channel(topic, "c")["clients"])
        [client] = nsqd.channel(topic, "c")["clients"]
        expected = {
            "client_id": "me",
            "hostname": "my.host",
            "user_agent": "mine/1",
            "sample_rate": 50,
        }
        assert expected == {name: client[name] for name in expected}
        [subscription] = consumer._flow.subscriptions
        facts = subscription.connection.facts
        assert (facts["max_rdy_count"], facts["msg_timeout"]) == (500, 7000)
        assert (facts["output_buffer_size"], facts["output_buffer_timeout"]) == (12_345, 123)
        assert tap.script[:3] == [b"IDENTIFY", b"SUB identified c", b"RDY 10"]


async def test_heartbeats_are_answered_and_silence_reconnects(
    shared_daemons: SharedDaemons,
) -> None:
    """Each heartbeat is answered with NOP.

    After `read_timeout` without data the client reconnects.
    """
    topic, nsqd = shared_daemons.make("heartbeats"), shared_daemons.nsqds[0]
    options = {"heartbeat_interval": 1.0, "read_timeout": 3.0}
    async with tapped(nsqd) as [tap], consumer_of(tap, topic, **options) as consumer:
        await until(lambda: tap.lines(b"NOP"))
        assert tap.lines(b"SUB") == [b"SUB heartbeats c"]
        tap.muted = True
        await until(lambda: tap.address in consumer.errors)
        tap.muted = False
        await until(lambda: len(tap.lines(b"SUB")) == 2)


async def test_a_wrong_port_is_explained(shared_daemons: SharedDaemons) -> None:
    """Connecting to nsqd's HTTP port raises WrongPeerError.

    A port without a listener is refused.
    """
    with pytest.raises(WrongPeerError, match="HTTP"):
        await open_connection(shared_daemons.nsqds[0].http, Config())
    with pytest.raises(ConnectionRefusedError):
        await open_connection(f"127.0.0.1:{free_port()}", Config())


async def test_a_frame_that_is_too_large_ends_the_connection(
    shared_daemons: SharedDaemons, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame above `max_msg_size` closes the connection; the consumer reconnects."""
    caplog.set_level(logging.WARNING, "sparq.client")
    topic, nsqd = shared_daemons.make("large"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of(tap, topic, max_msg_size=1000) as consumer:
        await until(lambda: tap.ready)
        nsqd.post(f"/pub?topic={topic}", b"b" * 2000)
        await until(lambda: len(tap.lines(b"SUB")) == 2)
        assert consumer.counters.received == 0
    assert "is outside the allowed range 4 to 1000 (the option max_msg_size is 1000)" in caplog.text


async def test_a_negative_frame_size_ends_the_connection(shared_daemons: SharedDaemons) -> None:
    """A negative frame size closes the connection; the next connection works."""
    topic, nsqd = shared_daemons.make("nonsense"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of(tap, topic) as consumer:
        await until(lambda: tap.ready)
        tap.send(b"\xff\xff\xff\xff\x00\x00\x00\x00")
        await until(lambda: len(tap.lines(b"RDY")) == 2)
        nsqd.post(f"/pub?topic={topic}", b"x")
        (await anext(consumer)).finish()
