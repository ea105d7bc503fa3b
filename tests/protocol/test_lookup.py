"""Requests to nsqlookupds, and answers that are old, broken or hostile."""

import json
from typing import Any

import pytest

from sparq.protocol.lookup import (
    BRACKETS_MAX,
    LISTED_MAX,
    NotLookupdError,
    answer,
    document,
    names,
    producers,
    question,
    shown,
    topics_of,
)


def producer(nsqd: str, **more: Any) -> dict[str, Any]:
    """A producer's entry in an answer."""
    host, _, port = nsqd.rpartition(":")
    return {"broadcast_address": host.strip("[]"), "tcp_port": int(port), **more}


@pytest.mark.parametrize(
    ("lookupd", "route", "topic", "expected"),
    [
        ("host:4161", "lookup", "t", "http://host:4161/lookup?topic=t"),
        ("[::1]:4161", "nodes", "", "http://[::1]:4161/nodes"),
        ("http://host", "lookup", "t#ephemeral", "http://host/lookup?topic=t%23ephemeral"),
        ("https://host/way/lookup?key=1", "lookup", "t", "https://host/way/lookup?key=1&topic=t"),
        ("http://host/?key=1", "lookup", "t", "http://host/lookup?key=1&topic=t"),
        ("http://host:4161/", "topics", "", "http://host:4161/topics"),
        ("https://host/nsq/lookup?key=1", "topics", "", "https://host/nsq/topics?key=1"),
        ("https://host/nsq/lookup", "nodes", "", "https://host/nsq/nodes"),
        ("host:1", "channels", "a&b=c/../d", "http://host:1/channels?topic=a%26b%3Dc%2F..%2Fd"),
    ],
)
def test_the_url_of_a_lookup(lookupd: str, route: str, topic: str, expected: str) -> None:
    """`host:port` gets the usual path.

    A URL keeps its query and the prefix of its path; the last part is replaced by the route.
    """
    assert question(lookupd, route, **({"topic": topic} if topic else {})) == expected


def test_secrets_in_a_lookup_url_are_not_shown() -> None:
    """`shown` omits the user, the password and the query."""
    url = question("http://me:secret@host/?key=secret", "lookup", topic="t")

    assert shown(url) == "http://host/lookup"


@pytest.mark.parametrize(
    "lookupd", ["host", "ftp://host:1", "http://", "https://", "host:99999", "/run/lookupd.sock"]
)
def test_an_invalid_address_is_refused_before_any_request(lookupd: str) -> None:
    """An invalid address is refused before any request."""
    with pytest.raises(ValueError, match=r"not (an|the) address of"):
        question(lookupd, "lookup", topic="t")


def test_both_forms_of_the_answer_are_read() -> None:
    """The wrapped form of nsqlookupd before 1.0 gives the same result.

    Invalid producers are returned separately.
    """
    entries = [
        producer("a:1", topics=["t", "u", "no name", 7], tombstones=[False, True]),
        producer("[::1]:2"),
        {"broadcast_address": "", "tcp_port": 1},
        {"broadcast_address": "a/b", "tcp_port": 1},
        {"broadcast_address": "c", "tcp_port": 700_000},
        {"broadcast_address": "d" * 254, "tcp_port": 1},
        {"broadcast_address": "e\nnsqd f:1: forged", "tcp_port": 1},
        {"broadcast_address": "g h", "tcp_port": 1},
        {"broadcast_address": "i", "tcp_port": True},
        {"tcp_port": 1},
        None,
    ]
    bare = {"producers": entries}

    for form in (bare, {"status_code": 200, "data": bare}):
        found, unusable = producers(answer(200, json.dumps(form).encode()))
        listed = [(one.address, one.topics, one.draining) for one in found]
        assert [("a:1", [("t", False), ("u", True)], False), ("[::1]:2", [], False)] == listed
        assert entries[2:] == unusable


def test_a_topic_that_is_not_known_yet_has_no_nsqds() -> None:
    """404 TOPIC_NOT_FOUND is an empty answer.

    Any other 404 is an error: the server is probably not an nsqlookupd.
    """
    unknown = answer(404, b'{"message":"TOPIC_NOT_FOUND"}')

    assert ([], []) == producers(unknown)
    assert ([], 0) == names(unknown, "channels")
    with pytest.raises(ValueError, match="is this an nsqlookupd's HTTP address"):
        answer(404, b'{"message":"NOT_FOUND"}')


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, b"", "status 500"),
        (302, b"{}", "status 302"),
        (200, b"<html>", "not JSON, so the server is not an nsqlookupd: Expecting value"),
        (200, b"\xff\xfe\xfd", "not JSON, so the server is not an nsqlookupd"),
        (200, b"[" * 100_000, "nested too deep"),
        (200, b"[[]," * BRACKETS_MAX, "too many lists"),
        (200, b'["a"]', "has no list of producers"),
        (200, b'{"producers":{}}', "has no list of producers"),
        (200, b"{}", "has no list of producers"),
        (200, b'{"producers":[%s0]}' % (b"0," * LISTED_MAX), f"more than {LISTED_MAX} producers"),
    ],
)
def test_an_invalid_answer_is_refused_with_a_readable_reason(
    status: int, body: bytes, reason: str
) -> None:
    """An invalid answer raises ValueError with a readable reason."""
    with pytest.raises(ValueError, match=reason):
        producers(answer(status, body))


def test_a_server_that_is_not_an_nsqlookupd_is_recognised() -> None:
    """A server that is not an nsqlookupd raises NotLookupdError.

    An nsqlookupd that fails does not: its failure may be temporary.
    """
    with pytest.raises(NotLookupdError):
        answer(200, b"<html>")
    with pytest.raises(NotLookupdError):
        producers(document(b"[]"))
    with pytest.raises(ValueError, match="503") as found:
        answer(503, b"")
    assert not isinstance(found.value, NotLookupdError)


def test_the_longest_host_name_is_accepted() -> None:
    """A host name has at most 253 characters."""
    longest = ".".join(["x" * 49] * 5) + ".com"
    assert 253 == len(longest)
    entries = [producer(f"{longest}:1"), producer(f"x{longest}:1")]

    found, unusable = producers(document(json.dumps({"producers": entries}).encode()))

    assert [f"{longest}:1"] == [one.address for one in found]
    assert 1 == len(unusable)


def test_invalid_names_are_omitted_and_counted() -> None:
    """Invalid names are omitted and counted.

    null is an empty list: Go writes it so.
    """
    entries = ["a", "..", "a/b", "", "x" * 65, None, 7, ["b"], "e\n#ephemeral", "b#ephemeral"]

    assert (["a", "..", "b#ephemeral"], 7) == names({"topics": entries}, "topics")
    assert ([], 0) == names({"channels": None}, "channels")
    assert [] == topics_of({"topics": 1, "tombstones": "x"})
