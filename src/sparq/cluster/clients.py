"""The clients of channels, as an nsqd lists them in `/stats`.

Texts that clients report about themselves are kept unchanged: code that displays them must cut them
to one line. Topics and channels with names that NSQ does not allow are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from sparq.protocol.names import is_valid_name

Count = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of 64 bits, as all of NSQ's are: nobody can compute with a larger one."""


# gc=False: these structs cannot form cycles, so the garbage collector need not track them.
class Client(msgspec.Struct, gc=False):
    """One client connection; counts are since it was opened at `connect_ts`, seconds since 1970.

    Its texts are reported by the client: they may contain control characters.
    """

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    ready_count: Count = 0
    in_flight_count: Count = 0
    message_count: Count = 0
    finish_count: Count = 0
    requeue_count: Count = 0
    connect_ts: Count = 0
    sample_rate: Count = 0
    tls: bool = False
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    topology_zone: str = ""
    topology_region: str = ""


class _ClientsOfChannel(msgspec.Struct, gc=False):
    channel_name: str
    clients: list[Client] | None = None


class _ClientsOfTopic(msgspec.Struct, gc=False):
    topic_name: str
    channels: list[_ClientsOfChannel] | None = None


class _ClientsDocument(msgspec.Struct, gc=False):
    topics: list[_ClientsOfTopic] | None = None


_document = msgspec.json.Decoder(_ClientsDocument)


def read_clients(answer: bytes) -> list[tuple[str, str, Client]]:
    """Parse an answer of `/stats` to a (topic, channel, client) for each client.

    Raises:
        ValueError: it is not such an answer.
    """
    try:
        topics = _document.decode(answer).topics
    except RecursionError:
        raise ValueError("answer is nested too deeply") from None
    return [
        (topic.topic_name, channel.channel_name, client)
        for topic in topics or ()
        for channel in topic.channels or ()
        if is_valid_name(topic.topic_name) and is_valid_name(channel.channel_name)
        for client in channel.clients or ()
    ]


def clients_of(stats: Mapping[str, Any]) -> Iterator[tuple[str, str, Client]]:
    """The same for a parsed document (`Fleet.stats`); malformed clients are skipped."""
    for topic in stats["topics"]:
        for channel in topic["channels"]:
            listed = channel.get("clients")
            for given in listed if isinstance(listed, list) else ():
                try:
                    client = msgspec.convert(given, Client)
                except msgspec.ValidationError:
                    continue
                yield topic["topic_name"], channel["channel_name"], client


def clients_in(stats: Mapping[str, Any], topic: str, channel: str) -> list[Client]:
    """A channel's clients in a parsed document, sorted by host name and address.

    Raises:
        ValueError: the document has another form.
    """
    try:
        topics = msgspec.convert(stats, _ClientsDocument).topics or ()
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid list of clients: {error}") from None
    channels = (ch for t in topics if t.topic_name == topic for ch in t.channels or ())
    found = (c for ch in channels if ch.channel_name == channel for c in ch.clients or ())
    return sorted(found, key=lambda client: (client.hostname, client.remote_address))
