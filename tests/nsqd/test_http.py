"""nsqd's HTTP endpoints, over real sockets, with a real broker and a real disk."""

import asyncio
import errno
import json
import struct
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.log.disk import DiskError, RealDisk, RealFile
from sparq.nsqd import http
from sparq.nsqd.http import lines_of
from sparq.protocol.commands import identify, sub
from sparq.protocol.errors import RemoteError
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.v2_client import Closed
from tests.support.waiting import until

SECOND = 1_000_000_000
HANG_SECONDS = 10.0


# Info and health


@pytest.mark.behaviour("http.TestInfo")
async def test_info_has_version_address_and_limits(nsqd: Daemon) -> None:
    """/info has version, address, ports, limits in ns and bytes, and topology."""
    status, answer = await nsqd.ask("GET", "/info")
    info = json.loads(answer)

    assert status == 200
    assert info.pop("hostname")
    assert abs(info.pop("start_time") - time.time()) < 60
    assert info == {
        "version": "1.3.0",
        "broadcast_address": "here",
        "http_port": nsqd.nsqd.http_port,
        "tcp_port": nsqd.nsqd.tcp_port,
        "max_heartbeat_interval": 60 * SECOND,
        "max_output_buffer_size": 65_536,
        "max_output_buffer_timeout": 30 * SECOND,
        "max_deflate_level": 6,
        "topology_zone": "z",
        "topology_region": "",
    }


async def test_ping_reports_the_health(nsqd: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """/ping answers OK, or 500 with the broker's error as plain text; /live stays OK."""
    assert await nsqd.ask("GET", "/ping") == (200, b"OK")

    monkeypatch.setattr(nsqd.nsqd.broker, "health", lambda: "NOK - no space left on device")
    status, headers, body = await nsqd.raw("GET /ping HTTP/1.1", b"\r\n")
    assert (status, body) == (500, b"NOK - no space left on device")
    assert await nsqd.ask("GET", "/live") == (200, b"OK")
    assert "x-nsq-content-type" not in headers


# Publishing


@pytest.mark.behaviour("TestHTTPpub")
async def test_a_message_is_published(nsqd: Daemon) -> None:
    """A published message counts in the depth when it is answered, and is delivered unchanged."""
    status, headers, body = await nsqd.raw(
        "POST /pub?topic=t HTTP/1.1", b"Content-Length: 5\r\n\r\nhello"
    )
    assert (status, body) == (200, b"OK")
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert (await nsqd.topic("t"))["depth"] == 1

    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert await consumer.messages(1) == [b"hello"]
    await consumer.close()


@pytest.mark.behaviour("TestHTTPpubEmpty", "more.empty-parameters")
@pytest.mark.parametrize(
    ("target", "body", "status", "message"),
    [
        ("/pub", b"x" * 101, 413, "MSG_TOO_BIG"),
        ("/pub?topic=%", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=%", b"x", 400, "INVALID_REQUEST"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a*&defer=x", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1_0", b"x", 400, "INVALID_DEFER"),
        ("/mpub", b"x" * 1001, 413, "BODY_TOO_BIG"),
        ("/mpub", b"", 400, "MISSING_ARG_TOPIC"),
        ("/mpub?topic=%", b"", 400, "INVALID_REQUEST"),
        ("/mpub?topic=a*", b"", 400, "INVALID_TOPIC"),
        ("/mpub?topic=t&defer=x", b"a", 400, "INVALID_DEFER"),
        ("/mpub?topic=t", b"a\n" + b"x" * 101 + b"\nb", 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t&binary=true", b"\x00\x00", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", b"\x00\x00\x00\x00", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", b"\x00\x00\x00\x01\x00", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", b"\x00\x00\x00\x01" + bytes(4), 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", struct.pack(">ii", 1, 101) + bytes(101), 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", struct.pack(">ii", 1, 9) + b"short", 413, "BAD_MESSAGE"),
    ],
)
async def test_a_bad_publish_is_refused(
    nsqd: Daemon, target: str, body: bytes, status: int, message: str
) -> None:
    """Error codes and the order of checks are NSQ's; a refused request stores nothing."""
    assert await nsqd.ask("POST", target, body) == (status, b'{"message":"%s"}' % message.encode())
    assert [t["depth"] for t in (await nsqd.stats())["topics"]] in ([], [0])


@pytest.mark.behaviour("more.body-limits-chunked")
async def test_limits_hold_for_chunked_bodies(nsqd: Daemon) -> None:
    """For chunked bodies the received size counts; a body exactly at the limit is accepted."""
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"

    fits = await nsqd.raw("POST /pub?topic=t HTTP/1.1", chunked + chunk + b"0\r\n\r\n")
    large = await nsqd.raw("POST /pub?topic=t HTTP/1.1", chunked + chunk + b"1\r\nx\r\n0\r\n\r\n")
    huge = await nsqd.raw("POST /mpub?topic=t HTTP/1.1", chunked + chunk * 11 + b"0\r\n\r\n")
    assert (fits[0], fits[2]) == (200, b"OK")
    assert (large[0], large[2]) == (413, b'{"message":"MSG_TOO_BIG"}')
    assert (huge[0], huge[2]) == (413, b'{"message":"BODY_TOO_BIG"}')


@pytest.mark.parametrize("body", [b"", b"\n\n"])
async def test_a_body_without_messages_creates_the_topic(nsqd: Daemon, body: bytes) -> None:
    """A body without messages gets OK and creates the topic, as with NSQ."""
    assert await nsqd.post("/mpub?topic=t", body) == b"OK"
    assert (await nsqd.topic("t"))["message_count"] == 0


@pytest.mark.behaviour("TestHTTPmpubBinary", "TestHTTPmpubForNonNormalizedBinaryParam")
@pytest.mark.parametrize("binary", ["true", "1", "yes", ""])
async def test_binary_bodies_are_published(nsqd: Daemon, binary: str) -> None:
    """A binary body has a count, then size and bytes of each; a non-boolean means binary."""
    bodies = [b"a\nb", b"c" * 50]
    body = struct.pack(">i", 2) + b"".join(struct.pack(">i", len(b)) + b for b in bodies)
    assert await nsqd.post(f"/mpub?topic=t&binary={binary}", body) == b"OK"

    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert await consumer.messages(2) == bodies
    await consumer.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RemoteError("E_PUB_FAILED", "PUB failed no space left on device"), "PUB_FAILED: no space"),
        (RemoteError("E_PUB_FAILED", "PUB failed exiting"), "EXITING"),
    ],
)
async def test_a_publish_refused_by_the_broker_gets_503(
    nsqd: Daemon, monkeypatch: pytest.MonkeyPatch, error: RemoteError, message: str
) -> None:
    """A publish that the broker refuses gets 503 with the reason; during a stop EXITING."""

    async def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(nsqd.nsqd, "publish", refuse)
    for target in ("/pub?topic=t", "/mpub?topic=t"):
        status, answer = await nsqd.ask("POST", target, b"x")
        assert status == 503
        assert json.loads(answer)["message"].startswith(message)


async def test_changes_during_a_stop_are_refused(nsqd: Daemon) -> None:
    """While nsqd stops, publishes and changes get 503 EXITING."""
    nsqd.nsqd.exiting = True
    for target in ("/pub?topic=t", "/mpub?topic=t", "/topic/create?topic=t"):
        assert await nsqd.ask("POST", target, b"x") == (503, b'{"message":"EXITING"}')
    nsqd.nsqd.exiting = False


# Topics and channels


@pytest.mark.behaviour("TestHTTPV1TopicChannel", "http.TestDeleteTopic")
async def test_topics_and_channels_are_created_and_deleted(nsqd: Daemon) -> None:
    """Creation is idempotent, answers are empty, and deleted topics and channels are gone."""
    for _ in range(2):
        assert await nsqd.post("/topic/create?topic=t") == b""
        assert await nsqd.post("/channel/create?topic=t&channel=c") == b""
    assert (await nsqd.channel("t", "c"))["depth"] == 0
    assert await nsqd.post("/channel/delete?topic=t&channel=c") == b""
    assert (await nsqd.topic("t"))["channels"] == []
    assert await nsqd.post("/topic/delete?topic=t") == b""
    assert (await nsqd.stats())["topics"] == []


@pytest.mark.behaviour("TestHTTPV1TopicChannel", "http.TestEmptyTopic", "http.TestEmptyChannel")
async def test_pause_and_empty(nsqd: Daemon) -> None:
    """Emptying a paused topic keeps its channels' messages; emptying a channel drops them."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    await nsqd.post("/pub?topic=t", b"1")
    await nsqd.post("/topic/pause?topic=t")
    await nsqd.post("/pub?topic=t", b"2")

    topic = await nsqd.topic("t")
    assert (topic["paused"], topic["depth"], topic["channels"][0]["depth"]) == (True, 1, 1)
    await nsqd.post("/topic/empty?topic=t")
    await nsqd.post("/topic/unpause?topic=t")
    topic = await nsqd.topic("t")
    assert (topic["paused"], topic["depth"], topic["channels"][0]["depth"]) == (False, 0, 1)
    await nsqd.post("/channel/empty?topic=t&channel=c")
    assert (await nsqd.channel("t", "c"))["depth"] == 0

    await nsqd.post("/channel/pause?topic=t&channel=c")
    assert (await nsqd.channel("t", "c"))["paused"] is True
    await nsqd.post("/channel/unpause?topic=t&channel=c")
    assert (await nsqd.channel("t", "c"))["paused"] is False


ON_CHANNELS = ("create", "delete", "empty", "pause", "unpause", "seek")


@pytest.mark.behaviour(
    "TestHTTPV1TopicChannel", "http.TestDeleteTopic", "http.TestEmptyTopic", "http.TestEmptyChannel"
)
@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("/topic/create?topic=a*", 400, "INVALID_TOPIC"),
        ("/topic/create?topic=%", 400, "INVALID_REQUEST"),
        ("/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("/topic/delete?topic=a*", 404, "TOPIC_NOT_FOUND"),
        ("/topic/empty", 400, "MISSING_ARG_TOPIC"),
        ("/topic/empty?topic=a*", 400, "INVALID_TOPIC"),
        ("/topic/empty?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("/topic/pause", 400, "MISSING_ARG_TOPIC"),
        ("/topic/pause?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("/topic/unpause?topic=none", 404, "TOPIC_NOT_FOUND"),
        *((f"/channel/{do}", 400, "MISSING_ARG_TOPIC") for do in ON_CHANNELS),
        *((f"/channel/{do}?topic=a*", 400, "INVALID_ARG_TOPIC") for do in ON_CHANNELS),
        *((f"/channel/{do}?topic=t", 400, "MISSING_ARG_CHANNEL") for do in ON_CHANNELS),
        *((f"/channel/{do}?topic=t&channel=", 400, "INVALID_ARG_CHANNEL") for do in ON_CHANNELS),
        *(
            (f"/channel/{do}?topic=none&channel=c&to=latest", 404, "TOPIC_NOT_FOUND")
            for do in ON_CHANNELS
        ),
        *(
            (f"/channel/{do}?topic=t&channel=none&to=latest", 404, "CHANNEL_NOT_FOUND")
            for do in ON_CHANNELS
            if do != "create"
        ),
    ],
)
async def test_invalid_changes_get_nsqs_codes(
    nsqd: Daemon, target: str, status: int, message: str
) -> None:
    """Missing, malformed and unknown names get the same error codes as in NSQ."""
    await nsqd.post("/topic/create?topic=t")
    assert await nsqd.ask("POST", target) == (status, b'{"message":"%s"}' % message.encode())


async def test_a_clients_connection_is_closed(nsqd: Daemon) -> None:
    """The client is disconnected; its message in flight is redelivered after its timeout."""
    await nsqd.post("/topic/create?topic=t")
    consumer = await Consumer.connect(nsqd.tcp)
    hello = identify(b'{"msg_timeout":1000,"feature_negotiation":false}')
    assert [(await consumer.ask(each))[1] for each in (hello, sub("t", "c"))] == [b"OK", b"OK"]
    await nsqd.post("/pub?topic=t", b"x")
    assert await consumer.messages(1, finish=False) == [b"x"]
    (client,) = (await nsqd.channel("t", "c"))["clients"]

    assert await nsqd.post(f"/client/close?client={client['remote_address']}") == b""
    with pytest.raises(Closed):
        await consumer.frame()
    await consumer.close()
    channel = await nsqd.channel("t", "c")
    assert (channel["clients"], channel["in_flight_count"], channel["depth"]) == ([], 1, 0)
    again = await Consumer.identified(nsqd, sub("t", "c"))
    assert await again.messages(1) == [b"x"]
    await again.close()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/client/close", (400, "MISSING_ARG_CLIENT")),
        ("/client/close?client=", (404, "CLIENT_NOT_FOUND")),
        ("/client/close?client=127.0.0.1:1", (404, "CLIENT_NOT_FOUND")),
    ],
)
async def test_an_unknown_client_is_not_closed(
    nsqd: Daemon, target: str, expected: tuple[int, str]
) -> None:
    """Without an address, or with one that no client has, nothing is closed."""
    status, answer = await nsqd.ask("POST", target)
    assert (status, json.loads(answer)["message"]) == expected


@given(st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"\n\n"])).map(b"".join))
def test_the_vectorised_split_matches_the_plain_one(body: bytes) -> None:
    """The vectorised split returns the same lines as the plain one, without empty ones."""
    assert list(map(bytes, lines_of(body))) == [line for line in body.split(b"\n") if line]


REASON = "input/output error"


async def test_a_change_is_answered_in_time_though_another_topic_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another topic's sync hangs, a change gets 503 after its time, and is done later."""
    nsqd = await start(tmp_path)
    await nsqd.post("/topic/create?topic=t")
    monkeypatch.setattr(http, "DONE_SECONDS", 0.1)
    goes_on = threading.Event()
    sync = RealFile.sync

    def slow(file: RealFile) -> None:
        goes_on.wait(HANG_SECONDS)
        sync(file)

    monkeypatch.setattr(RealFile, "sync", slow)
    # A large commit runs in the thread, not in the loop.
    publish = asyncio.create_task(nsqd.ask("POST", "/pub?topic=other", bytes(64 << 10)))
    await until(lambda: "other" in nsqd.nsqd.broker.topics)
    try:
        async with asyncio.timeout(HANG_SECONDS / 2):
            status, answer = await nsqd.ask("POST", "/topic/pause?topic=t")
    finally:
        goes_on.set()
    assert (503, "NOT_DONE: ") == (status, json.loads(answer)["message"][:10])
    assert (200, b"OK") == await publish
    assert (await nsqd.topic("t"))["paused"]
    await stop(nsqd)


async def test_a_deletion_that_fails_on_disk_gets_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that fails on disk gets 503 with the reason; nsqd retries until it is done."""
    nsqd = await start(tmp_path)
    await nsqd.post("/pub?topic=t", b"x")
    # Time for the first attempt to fail, also on a busy machine.
    monkeypatch.setattr(http, "DONE_SECONDS", 1.0)
    rename = RealDisk.rename

    def refuse(_disk: RealDisk, old: str, _new: str) -> None:
        raise DiskError("rename", old, errno.EIO)

    monkeypatch.setattr(RealDisk, "rename", refuse)
    status, answer = await nsqd.ask("POST", "/topic/delete?topic=t")
    assert status == 503
    assert json.loads(answer)["message"].startswith("NOT_DONE: ")
    assert REASON in json.loads(answer)["message"]

    monkeypatch.setattr(RealDisk, "rename", rename)
    await until(lambda: nsqd.nsqd.broker.not_durable_reason("t") is None)
    await nsqd.post("/topic/create?topic=t")
    assert (await nsqd.topic("t"))["log_messages"] == 0
    await stop(nsqd)
    again = await start(tmp_path)
    assert (await again.topic("t"))["log_messages"] == 0
    await stop(again)


@pytest.mark.behaviour("TestHTTPmpub", "TestHTTPmpubEmpty")
async def test_lines_are_published(nsqd: Daemon) -> None:
    """Each line is one message; empty lines are skipped, a carriage return is part of it."""
    assert await nsqd.post("/mpub?topic=t", b"\na\n\nb\r\n" + b"x" * 100 + b"\n\n") == b"OK"

    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert await consumer.messages(3) == [b"a", b"b\r", b"x" * 100]
    await consumer.close()


@pytest.mark.behaviour("TestHTTPpubDefer")
@pytest.mark.parametrize("target", ["/pub?topic=t&defer=100", "/mpub?topic=t&defer=100"])
async def test_a_deferred_publish_waits(nsqd: Daemon, target: str) -> None:
    """A message with `defer` counts as deferred and is not delivered before it is due."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    began = time.monotonic()
    await nsqd.post(target, b"later")
    assert (await nsqd.channel("t", "c"))["deferred_count"] == 1

    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert await consumer.messages(1) == [b"later"]
    assert time.monotonic() - began >= 0.1
    await consumer.close()


@pytest.mark.behaviour("TestHTTPerrors")
@pytest.mark.parametrize(
    ("method", "target", "status", "answer"),
    [
        ("POST", "/stats", 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
        ("GET", "/not_found", 404, b'{"message":"NOT_FOUND"}'),
        ("GET", "/", 404, b'{"message":"NOT_FOUND"}'),
        ("DELETE", "/topic/delete?topic=t", 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ],
)
async def test_unknown_routes_get_nsqs_answer(
    nsqd: Daemon, method: str, target: str, status: int, answer: bytes
) -> None:
    """A wrong method gets 405, an unknown path 404, with NSQ's exact JSON."""
    found, headers, body = await nsqd.raw(f"{method} {target} HTTP/1.1", b"\r\n")

    assert (found, body) == (status, answer)
    assert headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert headers["content-type"] == "application/json; charset=utf-8"
