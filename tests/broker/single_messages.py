"""Helpers for tests of actions on single messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparq.broker.channel import Channel
from sparq.broker.topic import Topic
from sparq.inspection import snapshot
from tests.broker.house import Client, House

Indexes = list[int]


def topic_of(house: House) -> Topic:
    return house.broker.topics["t"]


def channel_of(house: House, name: str = "c") -> Channel:
    return topic_of(house).channels[name]


def act(house: House, action: str, *indexes: int, channel: str | None = "c") -> dict[int, str]:
    """Perform the action and run the turn; returns the refused indexes with their reasons."""
    chosen = np.unique(np.array(indexes, np.int64))
    refused = house.broker.act_on_messages(action, "t", channel, chosen, house.clock.now())
    house.turn()
    assert house.broker.unsettled("t") is None
    return refused


def stored(house: House) -> Indexes:
    """The indexes of all messages in the log."""
    return topic_of(house).stream.log.looking.stored_from(0, 1 << 54, 10_000)


def states(house: House, name: str = "c") -> list[str]:
    """The state of each message in the log, in the channel."""
    indexes = stored(house)
    found = snapshot.take(channel_of(house, name), house.clock.now()).standings(indexes)
    return [found[index].state.name for index in indexes]


def checkpoint(house: House) -> None:
    """Replace the ledger by a checkpoint of its state."""
    house.checkpoint("t")


def house_with(*bodies: bytes, rdy: int = 0, **options: Any) -> tuple[House, Client]:
    house = House(**options)
    client = house.consumer("t", "c", rdy=rdy)
    if bodies:
        house.publish("t", *bodies)
    return house, client
