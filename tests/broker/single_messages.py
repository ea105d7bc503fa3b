"""Helpers for tests of actions on single messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparq.broker.channel import Channel
from sparq.broker.topic import Topic
from sparq.inspection import snapshot
from tests.broker.harness import BrokerHarness, Client

Indexes = list[int]


def topic_of(harness: BrokerHarness) -> Topic:
    return harness.broker.topics["t"]


def channel_of(harness: BrokerHarness, name: str = "c") -> Channel:
    return topic_of(harness).channels[name]


def act(
    harness: BrokerHarness, action: str, *indexes: int, channel: str | None = "c"
) -> dict[int, str]:
    """Perform the action and run the turn; returns the refused indexes with their reasons."""
    chosen = np.unique(np.array(indexes, np.int64))
    refused = harness.broker.act_on_messages(action, "t", channel, chosen, harness.clock.now())
    harness.turn()
    assert harness.broker.not_durable_reason("t") is None
    return refused


def stored(harness: BrokerHarness) -> Indexes:
    """The indexes of all messages in the log."""
    return topic_of(harness).stream.log.inspection.stored_from(0, 1 << 54, 10_000)


def states(harness: BrokerHarness, name: str = "c") -> list[str]:
    """The state of each message in the log, in the channel."""
    indexes = stored(harness)
    taken = snapshot.take(channel_of(harness, name), harness.clock.now())
    found = taken.places(np.array(indexes, np.int64)).state.tolist()
    return [snapshot.MessageState(state).name for state in found]


def checkpoint(harness: BrokerHarness) -> None:
    """Replace the ledger by a checkpoint of its state."""
    harness.checkpoint("t")


def subscribed_harness(
    *bodies: bytes, rdy: int = 0, **options: Any
) -> tuple[BrokerHarness, Client]:
    harness = BrokerHarness(**options)
    client = harness.consumer("t", "c", rdy=rdy)
    if bodies:
        harness.publish("t", *bodies)
    return harness, client
