"""Commands and their answers, byte for byte as specified by NSQ's protocol."""

from __future__ import annotations

import json

from sparq.protocol import commands
from tests.broker.harness import BrokerHarness


def test_errors_of_fin_req_touch(harness: BrokerHarness) -> None:
    """FIN, REQ and TOUCH of a message not in flight, or another client's, get an error.

    The connection stays open.
    """
    harness.publish("t", b"x")
    owner = harness.consumer("t", "c", rdy=1)
    other = harness.consumer("t", "c", rdy=1)
    (message,) = owner.messages()
    other.take_frames()
    unknown = b"0123456789abcdef"

    other.say(commands.fin(message.id) + commands.req(message.id, 0) + commands.touch(message.id))
    other.say(commands.fin(unknown) + commands.req(unknown, 0) + commands.touch(unknown))
    other.say(commands.fin(b"ABCDEFABCDEFABCD"))

    mine = message.id
    assert other.answers() == [
        b"E_FIN_FAILED FIN %b failed client does not own message" % mine,
        b"E_REQ_FAILED REQ %b failed client does not own message" % mine,
        b"E_TOUCH_FAILED TOUCH %b failed client does not own message" % mine,
        b"E_FIN_FAILED FIN %b failed ID not in flight" % unknown,
        b"E_REQ_FAILED REQ %b failed ID not in flight" % unknown,
        b"E_TOUCH_FAILED TOUCH %b failed ID not in flight" % unknown,
        b"E_FIN_FAILED FIN ABCDEFABCDEFABCD failed ID not in flight",
    ]
    assert not other.session.closing
    assert harness.channel("t", "c").in_flight_count == 1


def test_an_id_of_another_node_is_not_in_flight(harness: BrokerHarness) -> None:
    """An id with another node's number is not in flight, even if its index is."""
    harness.publish("t", b"x")
    consumer = harness.consumer("t", "c", rdy=1)
    (message,) = consumer.messages()
    foreign = b"%016x" % (int(message.id, 16) ^ (1 << 54))

    consumer.answers()
    consumer.say(commands.fin(foreign))

    assert consumer.answers() == [b"E_FIN_FAILED FIN %b failed ID not in flight" % foreign]


def test_a_fatal_error_follows_earlier_oks(harness: BrokerHarness) -> None:
    """A fatal error is sent after the OKs of earlier commands, and then the connection closes."""
    client = harness.connect()
    client.say(commands.pub("t", b"x") + b"NONSENSE\n" + commands.pub("t", b"y"))

    assert client.answers() == [b"OK", b"E_INVALID invalid command NONSENSE"]
    assert client.session.closing
    assert client.session.is_drained()
    assert harness.topic("t").message_count == 1


def test_sub_needs_heartbeats(harness: BrokerHarness) -> None:
    """SUB by a client without heartbeats gets E_INVALID."""
    client = harness.consumer("t", "c", heartbeat_interval=-1)

    assert client.answers() == [b"OK", b"E_INVALID cannot SUB with heartbeats disabled"]
    assert client.session.closing


def test_cls_stops_deliveries_but_allows_fins(harness: BrokerHarness) -> None:
    """After CLS nothing more is delivered; messages in flight can be finished."""
    consumer = harness.consumer("t", "c", rdy=1)
    harness.publish("t", b"1", b"2")
    messages = consumer.messages()
    consumer.answers()

    consumer.say(commands.cls())
    consumer.say(commands.rdy(5))
    consumer.finish(messages)

    assert consumer.take_frames() == [(0, b"CLOSE_WAIT")]
    assert harness.channel("t", "c").depth == 1


def test_identify_reply_and_stats(harness: BrokerHarness) -> None:
    """IDENTIFY's answer announces range reading and the maximum RDY.

    The client's id, host name and user agent appear in the stats.
    """
    consumer = harness.consumer(
        "t", "c", client_id="me", hostname="host", user_agent="ua/1", feature_negotiation=True
    )
    granted = json.loads(consumer.answers()[0])
    channel = harness.channel("t", "c")

    assert (granted["sparq_range"], granted["max_rdy_count"]) == (2, 2500)
    assert channel.clients is not None
    client = channel.clients[0]
    assert (client.client_id, client.hostname, client.user_agent) == ("me", "host", "ua/1")
    assert (client.state, client.remote_address) == (3, "10.0.0.1:5555")


def test_nothing_is_executed_after_a_fatal_error(harness: BrokerHarness) -> None:
    """A session that is closing after a fatal error executes no further command."""
    client = harness.connect()
    client.say(b"NONSENSE\n")
    harness.broker.execute(client.session, commands.Nop(), harness.clock.now())
    harness.broker.execute(client.session, commands.Subscribe("t", "c"), harness.clock.now())

    assert harness.broker.topics == {}
