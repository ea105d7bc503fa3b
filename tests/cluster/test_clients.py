"""cluster.clients: the clients of channels, from an nsqd's `/stats`."""

import json
from typing import Any

import pytest

from sparq.cluster.clients import Client, clients_in, clients_of, read_clients


def stats(**clients: Any) -> dict[str, Any]:
    """A `/stats` document with the topic `t` and these clients by channel."""
    channels = [{"channel_name": name, "clients": given} for name, given in clients.items()]
    return {"topics": [{"topic_name": "t", "channels": channels}]}


def test_clients_are_read_with_topic_and_channel() -> None:
    """Clients are read with topic and channel in nsqd's order; unknown fields are ignored."""
    document = stats(one=[{"client_id": "a", "more": [1]}, {"ready_count": 5}], two=None)
    expected = [("t", "one", Client(client_id="a")), ("t", "one", Client(ready_count=5))]

    assert expected == read_clients(json.dumps(document).encode())
    assert expected == list(clients_of(document))


def test_names_that_nsq_does_not_allow_are_skipped() -> None:
    """Clients of topics or channels with names that NSQ does not allow are skipped."""
    document = stats(**{"a/b": [{}], "good": [{}]})
    document["topics"].append({**document["topics"][0], "topic_name": "<script>"})

    found = read_clients(json.dumps(document).encode())
    assert [("t", "good")] == [(topic, channel) for topic, channel, _ in found]


@pytest.mark.parametrize("answer", [b"text", b"[]", b'{"topics": 3}', b'{"x":' + b"[" * 100_000])
def test_an_answer_that_is_no_stats_document_raises(answer: bytes) -> None:
    """An answer that is no `/stats` document raises `ValueError`."""
    with pytest.raises(ValueError, match=r"\w"):
        read_clients(answer)


def test_only_the_malformed_client_is_skipped() -> None:
    """``clients_of`` skips a malformed client; ``clients_in`` raises for a malformed list."""
    document = stats(c=["text", {"ready_count": "many"}, {"client_id": "good"}], d="text")

    assert [("t", "c", Client(client_id="good"))] == list(clients_of(document))
    with pytest.raises(ValueError, match="invalid list of clients"):
        clients_in(document, "t", "c")


def test_the_clients_of_a_channel_are_sorted() -> None:
    """``clients_in`` sorts by host name, then address, and omits other channels' clients."""
    listed = [("b", "1"), ("a", "2"), ("a", "1")]
    clients = [{"hostname": host, "remote_address": at} for host, at in listed]
    found = clients_in(stats(c=clients, d=[{"hostname": "0"}]), "t", "c")

    assert sorted(listed) == [(client.hostname, client.remote_address) for client in found]
