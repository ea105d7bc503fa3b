"""The clients of a channel at one nsqd, as `/stats` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparq.client.reasons import one_line


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """One connection; counts are since it was made, `connected_at` is in seconds since 1970.

    Its texts are what a client says of itself, without control characters.
    """

    client_id: str
    hostname: str
    remote_address: str
    user_agent: str
    ready: int
    in_flight: int
    finished: int
    requeued: int
    connected_at: int


def clients_in(stats: Mapping[str, Any], topic: str, channel: str) -> list[ClientFacts]:
    """A channel's clients in an nsqd's answer, by host name and address.

    Raises:
        ValueError: the answer has another form.
    """
    try:
        return sorted(_clients(stats, topic, channel), key=_order)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"clients that cannot be read: {error!r}") from None


def _order(client: ClientFacts) -> tuple[str, str]:
    return client.hostname, client.remote_address


def _clients(stats: Mapping[str, Any], topic: str, channel: str) -> Iterator[ClientFacts]:
    for each in stats["topics"] or ():
        if each["topic_name"] != topic:
            continue
        for found in each["channels"] or ():
            if found["channel_name"] == channel:
                yield from map(_client, found.get("clients") or ())


def _client(facts: Mapping[str, Any]) -> ClientFacts:
    def text(name: str) -> str:
        return one_line(str(facts.get(name, "")))

    def number(name: str) -> int:
        value = facts.get(name, 0)
        if not isinstance(value, int):
            raise TypeError(f"{name} is no number")
        return value

    return ClientFacts(
        text("client_id"),
        text("hostname"),
        text("remote_address"),
        text("user_agent"),
        number("ready_count"),
        number("in_flight_count"),
        number("finish_count"),
        number("requeue_count"),
        number("connect_ts"),
    )
