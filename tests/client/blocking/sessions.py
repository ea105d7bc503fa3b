"""Helpers of the tests of sessions: topics with messages, Ctrl-C, and the threads of sessions."""

from __future__ import annotations

import os
import signal
import threading

from sparq.client import Session
from tests.support.servers import NsqdServer


def fill(session: Session, topic: str, count: int) -> list[bytes]:
    """Publish so many different messages."""
    bodies = [b"%d" % number for number in range(count)]
    with session.producer() as producer:
        producer.multi_publish(topic, bodies)
    return bodies


def is_empty(nsqd: NsqdServer, topic: str) -> bool:
    """Whether nothing is left in the topic's channel "c"."""
    found = nsqd.channel(topic, "c")
    return bool(found) and found["depth"] + found["in_flight_count"] + found["deferred_count"] == 0


def interrupt_soon(seconds: float = 0.1) -> None:
    """Ctrl-C, while the program waits."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def running() -> list[threading.Thread]:
    """The threads of sessions."""
    return [each for each in threading.enumerate() if each.name == "sparq session"]
