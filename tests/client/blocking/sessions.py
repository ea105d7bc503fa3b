"""Helpers of the tests of sessions: topics with messages, Ctrl-C, and the threads of sessions."""

from __future__ import annotations

import os
import signal
import threading

from sparq.client import Session
from tests.support.servers import NsqdServer


def fill(session: Session, topic: str, count: int) -> list[bytes]:
    """Publish `count` messages with different bodies; return the bodies."""
    bodies = [b"%d" % number for number in range(count)]
    with session.producer() as producer:
        producer.multi_publish(topic, bodies)
    return bodies


def is_empty(nsqd: NsqdServer, topic: str) -> bool:
    """Whether the topic's channel "c" exists and has no messages left."""
    found = nsqd.channel(topic, "c")
    return bool(found) and found["depth"] + found["in_flight_count"] + found["deferred_count"] == 0


def interrupt_soon(seconds: float = 0.1) -> None:
    """Send SIGINT to this process after `seconds`, while the test waits."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def running() -> list[threading.Thread]:
    """Return the running threads of sessions."""
    return [each for each in threading.enumerate() if each.name == "sparq session"]
