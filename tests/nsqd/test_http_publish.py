"""Publishes over HTTP: requests for the fast path and for aiohttp; `/mpub?channel=`, messages for
one channel of a topic.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.commands import sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.servers import NsqdServer, spawn_nsqd

OK = b"HTTP/1.1 200 OK"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    with spawn_nsqd(tmp_path_factory.mktemp("fast-path"), "--max-msg-size=300000") as server:
        yield server


class RawHttpClient:
    """An HTTP client that sends raw bytes and reads whole answers."""

    def __init__(self, server: NsqdServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.http_port), timeout=30)
        self.stream = self.socket.makefile("rb")

    def answer(self) -> tuple[bytes, dict[str, str], bytes]:
        """Read an answer: status line, headers and body."""
        status = self.stream.readline().rstrip()
        headers: dict[str, str] = {}
        while line := self.stream.readline().rstrip().decode():
            name, _, value = line.partition(": ")
            headers[name] = value
        return status, headers, self.stream.read(int(headers.get("Content-Length", "0")))

    def ask(self, *pieces: bytes) -> tuple[bytes, dict[str, str], bytes]:
        """Send a request in pieces, and read its answer."""
        for piece in pieces:
            self.socket.sendall(piece)
        return self.answer()


@contextlib.contextmanager
def raw_client(server: NsqdServer) -> Iterator[RawHttpClient]:
    client = RawHttpClient(server)
    with client.socket, client.stream:
        yield client


def post(target: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def depth(server: NsqdServer, topic: str) -> int:
    (found,) = server.get_json(f"/stats?format=json&topic={topic}")["topics"]
    return int(found["depth"])


def test_the_fast_path_and_aiohttp_answer_alike(server: NsqdServer) -> None:
    """Except for the date, the fast path and aiohttp give the same answer to a publish."""
    with raw_client(server) as client:
        short = client.ask(post("/pub?topic=alike", b"short"))
        # The fast path does not know this header: aiohttp handles the connection from here on.
        long = client.ask(post("/pub?topic=alike", b"long", "X-Trace: 7"))

    assert short[1].pop("Date") and long[1].pop("Date")
    assert short == long
    assert short[0] == OK
    assert depth(server, "alike") == 2


def test_pipelined_requests_are_answered_in_order(server: NsqdServer) -> None:
    """Two publishes, /stats and a publish, sent in one write, are handled in this order."""
    with raw_client(server) as client:
        client.socket.sendall(
            post("/pub?topic=order", b"one")
            + post("/mpub?topic=order", b"two\nthree\n\nfour")
            + b"GET /stats?format=json&topic=order HTTP/1.1\r\nHost: here\r\n\r\n"
            + post("/pub?topic=order", b"five")
        )
        assert [client.answer()[0] for _ in range(2)] == [OK, OK]
        (topic,) = json.loads(client.answer()[2])["topics"]
        assert topic["depth"] == 4
        assert client.answer()[0] == OK
    assert depth(server, "order") == 5


@pytest.mark.parametrize("target", ["/pub?topic=cut", "/mpub?topic=cut"])
def test_a_request_in_two_parts_is_published_once(server: NsqdServer, target: str) -> None:
    """A request that arrives in two parts is published once, wherever it is cut."""
    request = post(target, b"a\nb")
    server.post("/topic/create?topic=cut")
    before = depth(server, "cut")
    with raw_client(server) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(1, len(request)):
            assert client.ask(request[:at], request[at:])[0] == OK
    messages = len(request) - 1
    assert depth(server, "cut") - before == messages * (2 if target.startswith("/m") else 1)


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (post("/pub?topic=t", b""), b"400", "MSG_EMPTY"),
        (post("/pub?topic=b%20d", b"x"), b"400", "INVALID_TOPIC"),
        (post("/pub", b"x"), b"400", "MISSING_ARG_TOPIC"),
        (post("/pub?topic=t&defer=x", b"x"), b"400", "INVALID_DEFER"),
        (post("/pub?topic=t&defer=99999999999", b"x"), b"400", "INVALID_DEFER"),
        (post("/pub?topic=%zz", b"x"), b"400", "INVALID_REQUEST"),
        (post("/pub?topic=t", b"x" * 300_001), b"413", "MSG_TOO_BIG"),
        (post("/PUB?topic=t", b"x"), b"307", ""),
        (post("/none?topic=t", b"x"), b"404", "NOT_FOUND"),
        (b"PUT /pub?topic=t HTTP/1.1\r\nHost: h\r\n\r\n", b"405", "METHOD_NOT_ALLOWED"),
        (post("/mpub?topic=t&binary=true", b"\0\0\0\x01\0\0\0\0"), b"413", "BAD_MESSAGE"),
    ],
)
def test_errors_are_the_same_after_the_fast_path(
    server: NsqdServer, request_: bytes, status: bytes, text: str
) -> None:
    """Errors are the usual ones on a connection that has used the fast path before."""
    with raw_client(server) as client:
        assert client.ask(post("/pub?topic=before", b"fine"))[0] == OK
        found = client.ask(request_)

    assert found[0].split(b" ")[1] == status
    assert text.encode() in found[2]


@pytest.mark.parametrize(
    "request_",
    [
        post("/pub?topic=odd", b"x", "Connection: keep-alive"),
        post("/pub?topic=odd", b"x", "X-Trace: 7"),
        post("/pub?topic=odd", b"x", "Content-Type: application/octet-stream"),
        b"POST /pub?topic=odd HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\n\r\n",
        post("/pub?topic=odd", b"x" * 280_000),
        post("/mpub?topic=odd&binary=true", b"\0\0\0\x01\0\0\0\x01x"),
        post("/pub?topic=o%64d", b"x"),
    ],
)
def test_other_forms_of_a_publish_are_accepted(server: NsqdServer, request_: bytes) -> None:
    """Other headers, encodings and forms of a publish store exactly one message, too."""
    server.post("/topic/create?topic=odd")
    before = depth(server, "odd")
    with raw_client(server) as client:
        assert client.ask(request_)[0] == OK
    assert depth(server, "odd") == before + 1


def test_a_deferred_publish_waits(server: NsqdServer) -> None:
    """A publish with `defer` counts as deferred in the channel."""
    server.post("/topic/create?topic=later")
    server.post("/channel/create?topic=later&channel=c")
    with raw_client(server) as client:
        assert client.ask(post("/pub?topic=later&defer=600000", b"x"))[0] == OK
    assert server.channel("later", "c")["deferred_count"] == 1


def test_two_content_lengths_are_refused(server: NsqdServer) -> None:
    """A request with two Content-Length headers publishes nothing; the connection ends with 400."""
    server.post("/topic/create?topic=smuggled")
    with raw_client(server) as client:
        status, _, body = client.ask(
            post("/pub?topic=smuggled", b"x" * 30, "Content-Length: 3")
            + post("/pub?topic=smuggled", b"y")
        )
        assert b"400" == status.split(b" ")[1]
        assert body.startswith(b"Duplicate Content-Length")
        assert b"" == client.stream.read()
    assert 0 == depth(server, "smuggled")


def test_reading_pauses_for_a_client_that_reads_nothing(tmp_path: Path) -> None:
    """nsqd stops reading from a client that reads nothing; later every request is answered."""
    request = post("/pub?topic=deaf", b"x" * 2000)
    with spawn_nsqd(tmp_path, "--sync-every=1000000") as server, raw_client(server) as client:
        client.socket.settimeout(1.0)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 200 << 20:
                sent += client.socket.send(request * 500)
        assert sent < 200 << 20
        whole, rest = divmod(sent, len(request))
        client.socket.settimeout(30.0)
        assert all(client.answer()[0] == OK for _ in range(whole))
        if rest:
            client.socket.shutdown(socket.SHUT_WR)
            assert client.stream.read() == b""
        assert depth(server, "deaf") == whole


def test_a_stop_ends_idle_connections(tmp_path: Path) -> None:
    """SIGTERM does not wait for idle HTTP clients: nsqd closes them and exits with 0."""
    with spawn_nsqd(tmp_path) as server, raw_client(server) as client:
        assert client.ask(post("/pub?topic=t", b"x"))[0] == OK
        assert server.terminate() == 0
        assert client.stream.read() == b""


def test_blank_lines_between_requests_are_ignored(server: NsqdServer) -> None:
    """Blank lines between two pipelined requests are ignored."""
    request_ = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
        connection.sendall(request_ + b"\r\n\r\n" + request_)
        found = b""
        while found.count(b"HTTP/1.1 200") < 2:
            piece = connection.recv(1 << 16)
            assert piece, found
            found += piece


# Messages for one channel of a topic: the others never see them.

PATH = "/mpub?topic=t&channel=a"


async def create_channels(nsqd: Daemon, *channels: str) -> None:
    await nsqd.post("/topic/create?topic=t")
    for name in channels:
        await nsqd.post(f"/channel/create?topic=t&channel={name}")


async def depths(nsqd: Daemon) -> dict[str, int]:
    return {one["channel_name"]: one["depth"] for one in (await nsqd.topic("t"))["channels"]}


async def test_messages_for_one_channel_reach_only_that_channel(nsqd: Daemon) -> None:
    """That channel gets them in publishing order; other and later channels never do."""
    await create_channels(nsqd, "a", "b", "c")
    reader = await Consumer.identified(nsqd, sub("t", "b"))
    await nsqd.post("/mpub?topic=t", b"1\n2")
    assert b"OK" == await nsqd.post(PATH, b"x\ny")
    await nsqd.post("/pub?topic=t", b"3")
    assert b"OK" == await nsqd.post(PATH, b"z")
    await nsqd.post("/channel/create?topic=t&channel=late")
    assert {"a": 6, "b": 3, "c": 3, "late": 0} == await depths(nsqd)

    assert [b"1", b"2", b"3"] == await reader.messages(3)
    for name, bodies in (("a", [b"1", b"2", b"x", b"y", b"3", b"z"]), ("c", [b"1", b"2", b"3"])):
        consumer = await Consumer.identified(nsqd, sub("t", name))
        assert bodies == await consumer.messages(len(bodies))
        await consumer.close()
    # A consumer at the end of the log skips messages for another channel.
    await nsqd.post(PATH, b"w")
    await nsqd.post("/pub?topic=t", b"4")
    assert [b"4"] == await reader.messages(1)
    assert 0 == (await depths(nsqd))["b"]
    await reader.close()


def test_messages_for_one_channel_survive_kill_9(tmp_path: Path) -> None:
    """After kill -9, acknowledged messages for one channel are still only in that channel."""
    with spawn_nsqd(tmp_path) as nsqd:
        for name in ("a", "b"):
            nsqd.post("/topic/create?topic=t")
            nsqd.post(f"/channel/create?topic=t&channel={name}")
        for number in range(20):
            nsqd.post(PATH, b"x\ny")
            nsqd.post("/pub?topic=t", b"%d" % number)
        nsqd.restart()
        assert [60, 20] == [nsqd.channel("t", name)["depth"] for name in ("a", "b")]


async def test_invalid_publishes_to_one_channel_are_refused(tmp_path: Path) -> None:
    """An unknown topic or channel, a paused topic, a range reader and a drain are refused."""
    nsqd = await start(tmp_path)

    async def refusal(path: str = PATH, body: bytes = b"x") -> Any:
        status, answer = await nsqd.ask("POST", path, body)
        return status, json.loads(answer)["message"]

    assert (404, "TOPIC_NOT_FOUND") == await refusal()
    await create_channels(nsqd, "b")
    assert (404, "CHANNEL_NOT_FOUND") == await refusal()
    await create_channels(nsqd, "a")
    assert (400, "INVALID_ARG_CHANNEL") == await refusal("/mpub?topic=t&channel=a+b")
    await nsqd.post("/topic/pause?topic=t")
    assert (400, "INVALID_REQUEST: topic t is paused") == await refusal()
    await nsqd.post("/topic/unpause?topic=t")
    nsqd.nsqd.broker.topics["t"].channels["b"].range_epoch = 1
    assert (400, "INVALID_REQUEST: channel b is read by ranges") == await refusal()
    nsqd.nsqd.broker.topics["t"].channels["b"].range_epoch = 0
    assert b"OK" == await nsqd.post(PATH, b"\n")
    await nsqd.post("/topic/drain?topic=t")
    assert (503, "TOPIC_DRAINING") == await refusal()
    await stop(nsqd)
