"""A session: the order of its replies and messages, its window, and options set once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparq.broker.options import BrokerOptions
from sparq.broker.session import TlsFacts, V2Session
from sparq.options.limits import IdentifyLimits
from sparq.options.units import MILLISECOND
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.identify import Granted, negotiate
from sparq.testing import ManualClock
from tests.broker.harness import BrokerHarness


def new_session(**options: Any) -> V2Session:
    """A new session with these broker options."""
    return V2Session(1, "10.0.0.1:5555", ManualClock().now(), BrokerOptions(**options))


def granted(**asked: Any) -> Granted:
    """The features that IDENTIFY grants for this request."""
    body = json.dumps({"feature_negotiation": True, **asked}).encode()
    return negotiate(body, IdentifyLimits(), {"tls": True})


def test_replies_keep_the_order_of_commands(harness: BrokerHarness) -> None:
    """An error known immediately waits for the OK of an earlier publish."""
    consumer = harness.consumer("t", "c")
    consumer.answers()
    consumer.say(commands.pub("t", b"x") + commands.fin(b"0" * 16), turn=False)
    harness.end_turn()
    assert harness.broker.take_output(consumer.session) == []

    harness.turn()

    assert consumer.answers() == [
        b"OK",
        b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight",
    ]


def test_no_message_overtakes_the_ok_of_its_sub(harness: BrokerHarness) -> None:
    """A client gets the OK of its SUB before the first message."""
    harness.publish("t", b"x")
    client = harness.connect()
    client.say(commands.sub("t", "c") + commands.rdy(1), turn=False)
    harness.end_turn()
    assert harness.broker.take_output(client.session) == []

    harness.turn()

    assert [kind for kind, _ in client.take_frames()] == [0, 2]


def test_the_window_is_rdy_minus_messages_in_flight() -> None:
    """The window is RDY minus the messages in flight.

    It is 0 while the output is full, writing is paused or the session is closing.
    """
    session = new_session(output_bytes_max=100)
    session.ready_count = 5
    session.send(b"x" * 60, 60, 2)
    assert (3, 40) == (session.window(), session.room_bytes())

    session.send(b"x" * 40, 40, 1)
    assert (0, True) == (session.window(), session.is_blocked())
    assert [b"x" * 60, b"x" * 40] == session.take_output()
    assert (2, False) == (session.window(), session.is_blocked())
    session.paused_writing = True
    assert 0 == session.window()
    session.paused_writing, session.closing = False, True
    assert 0 == session.window()


def test_delivery_options_are_set_once() -> None:
    """A second IDENTIFY changes the client id, but not the delivery options."""
    session = new_session()
    session.identify(granted(client_id="a", msg_timeout=2_000, sample_rate=5))
    session.identify(granted(client_id="b", msg_timeout=3_000, sample_rate=6))

    assert "b" == session.client_id
    assert (2_000 * MILLISECOND, 5) == (session.msg_timeout_ns, session.sample_rate)


def test_a_layer_that_is_active_is_not_granted_again() -> None:
    """A second TLS layer, and any layer under an active compression, are refused.

    Deflate inside TLS is granted.
    """
    session = new_session()
    session.tls = TlsFacts("", "")
    with pytest.raises(RemoteError, match="already upgraded"):
        session.identify(granted(tls_v1=True))
    session.identify(granted(deflate=True))
    assert session.upgrade is not None

    session.deflate = True
    for layer in ("tls_v1", "snappy", "deflate"):
        with pytest.raises(RemoteError, match="already upgraded"):
            session.identify(granted(**{layer: True}))
