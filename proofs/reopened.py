"""Reopens a data path in this process: what a start on it reports, and what it delivers.

The broker is nsqd's own, without the process around it and its sockets. A proof can thus examine
thousands of damaged or torn data paths, on a real disk or in memory. The clock moves only when the
proof moves it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from tests.broker.harness import BrokerHarness, Client, Message

from sparq.log.disk import Disk
from sparq.protocol.commands import rdy, req, sub
from sparq.testing import ManualClock

READY = 2500


class Reopened(BrokerHarness):
    """A broker on a data path.

    Attributes:
        report: what an operator reads at the start.
        errors: errors sent to its consumers.
    """

    TURNS_MAX = 100_000

    def __init__(
        self, disk: Disk, data_path: str, *, clock: ManualClock | None = None, **options: Any
    ) -> None:
        """Start on the contents of the path; raises whatever a start raises."""
        self.errors: list[str] = []
        clock = clock or ManualClock(time.time_ns())
        super().__init__(disk, data_path=data_path, clock=clock, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop cleanly, and close the files."""
        super().close()
        for topic in self.broker.topics.values():
            topic.close()

    def create(self, topic: str, channel: str) -> None:
        """Create a channel that gets every message from now on."""
        self.broker.create_topic(topic, self.clock.now())
        self.broker.create_channel(topic, channel, self.clock.now())
        self.turn()

    def drain(self, topic: str, channel: str) -> list[Message]:
        """Return every message that the channel delivers, each of them finished."""
        consumer, found = Consumer(self, topic, channel), list[Message]()
        while part := consumer.take(READY):
            found += part
            consumer.finish(part)
        consumer.close()
        return found

    def said(self) -> str:
        """Return everything that an operator could have read so far."""
        return "\n".join([*self.report, *self.broker.notes])


class Consumer(Client):
    """A client with one subscription."""

    def __init__(self, home: Reopened, topic: str, channel: str) -> None:
        super().__init__(home)
        self.errors = home.errors
        home.clients.append(self)
        self.say(sub(topic, channel))
        assert self.answers() == [b"OK"]

    def take(self, count: int) -> list[Message]:
        """Return the messages delivered at this RDY, which remain in flight; record errors."""
        self.say(rdy(count))
        self.errors += [answer.decode(errors="replace") for answer in self.answers()]
        if self.stream.plain:
            size = int.from_bytes(self.stream.plain[:4], "big", signed=True)
            self.errors.append(f"a frame of {size} bytes")
            self.stream.plain.clear()
        return self.messages()

    def requeue(self, found: list[Message], delay_ms: int) -> None:
        """Send a REQ for each message, in one chunk."""
        self.say(b"".join([req(one.id, delay_ms) for one in found]))


@contextmanager
def replaced(holder: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of sparq inside the block: guards are switched off in this way."""
    usual = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, usual)
