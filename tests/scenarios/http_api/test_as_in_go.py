"""nsqd and nsqlookupd answer unusual requests as Go's do, in sparq's fast path and in aiohttp."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.servers import Server, spawn_nsqd, spawn_nsqlookupd

LONG = "x" * 60_000


class Servers(NamedTuple):
    nsqd: Server
    lookupd: Server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("go-http")
    flags = ("--e2e-processing-latency-percentile=0.5",)
    with spawn_nsqd(folder, *flags) as nsqd, spawn_nsqlookupd(folder) as lookupd:
        yield Servers(nsqd, lookupd)


def ask(
    server: Server, method: str, target: str, body: bytes = b"", *headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send one request as raw bytes on a new connection, so that its target stays unchanged."""
    lines = [f"{method} {target} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers]
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        stream = connection.makefile("rb")
        status = int(stream.readline().split()[1])
        found: dict[str, str] = {}
        while line := stream.readline().rstrip().decode():
            name, _, value = line.partition(": ")
            found[name.lower()] = value
        return status, found, stream.read(int(found.get("content-length", "0")))


WAYS = {"short": (), "aiohttp": ("X-Trace: 7",)}
"""Headers that make nsqd handle a publish in its fast path, or in aiohttp."""

PATHS = [
    ("nsqd", "POST", "//pub?topic=t&defer=1", 307, "/pub?topic=t&defer=1"),
    ("nsqd", "POST", "/a/../pub?topic=t", 307, "/pub?topic=t"),
    ("nsqd", "POST", "/./mpub?topic=%74", 307, "/mpub?topic=%74"),
    ("nsqd", "POST", "/pub/?topic=t", 307, "/pub?topic=t"),
    ("nsqd", "POST", "/Pub?topic=t", 307, "/pub?topic=t"),
    ("nsqd", "POST", "//topic//create?topic=t", 307, "/topic/create?topic=t"),
    ("nsqd", "PUT", "/config//log_level", 307, "/config/log_level"),
    ("nsqd", "GET", "/Config/log_level/", 301, "/config/log_level"),
    ("nsqd", "GET", "//stats?format=json", 301, "/stats?format=json"),
    ("nsqd", "GET", "/x/../ping", 301, "/ping"),
    ("nsqd", "GET", "/../ping", 301, "/ping"),
    ("lookupd", "GET", "//lookup?topic=t", 301, "/lookup?topic=t"),
    ("lookupd", "GET", "/NODES/", 301, "/nodes"),
    ("lookupd", "POST", "/topic/./create?topic=t", 307, "/topic/create?topic=t"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", PATHS, ids=lambda case: f"{case[1]} {case[2]}")
def test_a_path_is_cleaned_by_a_redirect(
    servers: Servers, way: str, case: tuple[str, str, str, int, str]
) -> None:
    """A path with `//`, dots, capitals or a trailing slash is redirected: 301 for GET, else 307.

    The query is kept.
    """
    name, method, target, status, location = case
    found = ask(getattr(servers, name), method, target, b"body", *WAYS[way])

    assert (found[0], found[1]["location"]) == (status, location)
    assert ("content-type" in found[1]) == (method == "GET")


@pytest.mark.parametrize("way", WAYS)
def test_a_cleaned_path_without_a_route_is_not_found(servers: Servers, way: str) -> None:
    """An unclean path that no route matches after cleaning gets 404; a wrong method gets 405."""
    assert ask(servers.nsqd, "POST", "//nope", b"x", *WAYS[way])[0] == 404
    assert ask(servers.nsqd, "POST", "//ping", b"x", *WAYS[way])[0] == 404
    assert ask(servers.nsqd, "DELETE", "/pub", b"", *WAYS[way])[0] == 405
    assert ask(servers.lookupd, "POST", "/nodes", b"x", *WAYS[way])[0] == 405


@pytest.mark.parametrize("way", WAYS)
def test_request_lines_and_headers_of_60_kib_are_read(servers: Servers, way: str) -> None:
    """Request lines and headers of 60 kB are accepted; Go's limit is 1 MiB, sparq's is 64 KiB."""
    query = f"topic=long&ignored={LONG}"
    assert ask(servers.nsqd, "POST", f"/pub?{query}", b"x", *WAYS[way])[::2] == (200, b"OK")
    assert ask(servers.nsqd, "GET", f"/stats?{query}", b"", *WAYS[way])[0] == 200
    assert ask(servers.lookupd, "GET", f"/topics?{query}", b"", *WAYS[way])[0] == 200
    long = ask(servers.nsqd, "POST", "/pub?topic=long", b"x", f"X-Long: {LONG}", *WAYS[way])
    assert long[::2] == (200, b"OK")


@pytest.mark.parametrize(
    ("name", "method", "target"),
    [
        ("nsqd", "POST", "/topic/create?topic=made"),
        ("nsqd", "POST", "/channel/create?topic=made&channel=c"),
        ("nsqd", "POST", "/topic/pause?topic=made"),
        ("nsqd", "GET", "/config/data_path_of_none"),
        ("nsqd", "GET", "/config/topology_zone"),
        ("lookupd", "POST", "/topic/create?topic=made"),
        ("lookupd", "POST", "/topic/tombstone?topic=made&node=n:1"),
    ],
)
def test_an_empty_answer_has_no_content_type(
    servers: Servers, name: str, method: str, target: str
) -> None:
    """A response has a Content-Type exactly if it has a body, as in Go."""
    ask(servers.nsqd, "POST", "/topic/create?topic=made")
    _, headers, body = ask(getattr(servers, name), method, target)

    assert ("content-type" in headers) == bool(body)


def test_options_that_go_does_not_have_are_invalid(servers: Servers) -> None:
    """/config answers INVALID_OPTION for flags that Go's nsqd does not keep as options."""
    for name in ("verbose", "worker_id", "config", "version", "nothing"):
        status, _, body = ask(servers.nsqd, "GET", f"/config/{name}")
        assert (status, body) == (400, b'{"message":"INVALID_OPTION"}')


def test_values_that_are_null_in_go_are_null(servers: Servers) -> None:
    """`producers` is null before any client publishes; `percentiles` is null without channels."""
    ask(servers.nsqd, "POST", "/topic/create?topic=bare")
    for query in ("", "&include_clients=false", "&topic=bare", "&topic=none"):
        stats = servers.nsqd.get_json(f"/stats?format=json{query}")
        assert stats["producers"] is None
    (topic,) = servers.nsqd.get_json("/stats?format=json&topic=bare")["topics"]
    assert topic["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    ask(servers.nsqd, "POST", "/channel/create?topic=bare&channel=c")
    (topic,) = servers.nsqd.get_json("/stats?format=json&topic=bare")["topics"]
    assert topic["e2e_processing_latency"]["percentiles"] == [{"quantile": 0.5, "value": 0}]
