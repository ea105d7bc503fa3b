"""Redelivery of messages that are spread over a log that is not in memory."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.log.log import Log
from sparq.log.task import TaskKind
from sparq.protocol import commands
from sparq.protocol.instant import Instant
from tests.broker.harness import BrokerHarness

EXTENTS = 200
BODY_SIZE = 66_000
"""Larger than an extent, so that each message has its own extent."""


class Counts:
    """Counts the lookups of blocks in the log, and the read tasks that the broker hands out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, harness: BrokerHarness) -> None:
        self.lookups = self.tasks = 0
        block, end_turn = Log.block, harness.broker.end_turn

        def counted_block(log: Log, index: int) -> Any:
            self.lookups += 1
            return block(log, index)

        def counted_tasks(now: Instant) -> Any:
            tasks = end_turn(now)
            self.tasks += sum(topic_task.task.kind is TaskKind.READ for topic_task in tasks)
            return tasks

        monkeypatch.setattr(Log, "block", counted_block)
        monkeypatch.setattr(harness.broker, "end_turn", counted_tasks)


@pytest.fixture
def broker_with_scattered_messages() -> BrokerHarness:
    """A restarted broker whose channel has 200 messages, each in its own extent, to redeliver."""
    harness = BrokerHarness(cache_bytes=64 << 20)
    consumer = harness.consumer("t", "c", rdy=EXTENTS)
    for number in range(EXTENTS):
        harness.publish("t", b"%05d" % number + bytes(BODY_SIZE))
    assert len(consumer.messages()) == EXTENTS
    harness.crash()
    return harness


def test_scattered_messages_are_read_together(
    broker_with_scattered_messages: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task reads the blocks of many messages, and each message takes at most five lookups."""
    counts = Counts(monkeypatch, broker_with_scattered_messages)
    consumer = broker_with_scattered_messages.consumer("t", "c", rdy=EXTENTS)
    messages = []
    while more := consumer.messages():
        messages += more
        consumer.finish(more)

    assert [(int(m.body[:5]), m.attempts) for m in messages] == [(n, 2) for n in range(EXTENTS)]
    assert counts.tasks <= EXTENTS // 10
    assert counts.lookups <= 5 * EXTENTS


def test_a_turn_looks_up_at_most_128_waiting_messages(
    broker_with_scattered_messages: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While reads are pending, a turn looks up at most 128 of the messages that wait for them."""
    consumer = broker_with_scattered_messages.consumer("t", "c")
    consumer.say(commands.rdy(EXTENTS), turn=False)
    broker, now = broker_with_scattered_messages.broker, broker_with_scattered_messages.clock.now()
    assert broker.end_turn(now)
    counts = Counts(monkeypatch, broker_with_scattered_messages)
    for _ in range(10):
        topic = broker.topics["t"]
        topic.wake(topic.channels["c"])
        assert TaskKind.READ not in [topic_task.task.kind for topic_task in broker.end_turn(now)]

    assert 0 < counts.lookups <= 10 * 2 * 64
