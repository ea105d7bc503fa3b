"""The protocol V1: bytes in, bytes out, in any pieces; over sockets also ends and log lines."""

import asyncio
import contextlib
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.nsqlookupd import tcp
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.registry import Registry
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import (
    DRAINING_TOPICS_MAX,
    LINE_BYTES_MAX,
    CommandHandlers,
    LookupConnection,
    instant,
    reply,
)
from sparq.protocol.instant import Instant
from tests.nsqlookupd.mistakes import HELLO, MISTAKES, PEER, identify
from tests.support.waiting import until

FACTS = {"tcp_port": 4160, "http_port": 4161, "version": "1.3.0"}


def talk() -> CommandHandlers:
    clock = iter(range(1, 1 << 30))
    registry = Registry(1 << 60, 1 << 60)
    now = lambda: Instant(0, next(clock))  # noqa: E731 - a clock that advances with each call
    return CommandHandlers(registry, FACTS, "1.2.3.4:5", "1.2.3.4:5", now)


def known(conversation: CommandHandlers) -> list[str]:
    registry = conversation._registry
    entries = registry.registrations()
    return [f"{category}:{key}:{subkey}={len(found)}" for category, key, subkey, found in entries]


def split_answers(answers: bytes) -> list[bytes]:
    found = []
    while answers:
        (size,) = struct.unpack_from(">i", answers)
        assert 0 <= size <= len(answers) - 4
        found.append(answers[4 : 4 + size])
        answers = answers[4 + size :]
    return found


def answers_to(*commands: bytes) -> list[bytes]:
    return split_answers(talk().feed(b"  V1" + b"".join(commands)))


FACTS_JSON = json.dumps(FACTS, separators=(",", ":")).encode()


def test_a_ping_sets_last_update() -> None:
    """PING sets the producer's last_update; REGISTER does not."""
    conversation = talk()
    conversation.feed(b"  V1" + HELLO)
    producer = conversation.producer
    assert producer is not None
    before = producer.last_update
    conversation.feed(b"REGISTER t\n")
    assert producer.last_update == before
    conversation.feed(b"PING\n")
    assert producer.last_update > before


def test_identify_may_have_optional_and_null_fields() -> None:
    """IDENTIFY may have optional fields; unknown and null ones are ignored; keys have any case."""
    conversation = talk()
    extra = {"hostname": "h", "topology_zone": "z", "topology_region": None, "new": [1]}
    body = {key.upper(): value for key, value in PEER.items()} | extra
    conversation.feed(b"  V1" + identify(body))

    producer = conversation.producer
    assert producer is not None
    assert (producer.hostname, producer.topology_zone, producer.topology_region) == ("h", "z", "")
    assert (producer.http_port, producer.remote_address) == (4151, "1.2.3.4:5")


@pytest.mark.parametrize(("commands", "error"), MISTAKES)
def test_an_error_is_answered_and_ends_the_parsing(commands: bytes, error: bytes) -> None:
    """An error has NSQ's text and ends the connection; later commands are not executed."""
    conversation = talk()
    answers = split_answers(conversation.feed(b"  V1" + commands + b"PING\n"))

    assert answers[-1] == error
    assert conversation.ended
    assert conversation.feed(b"PING\n") == b""
    assert known(conversation)[0] == "client::=0"


def test_a_wrong_magic_is_answered() -> None:
    """Another protocol's magic bytes are answered with E_BAD_PROTOCOL."""
    conversation = talk()
    assert conversation.feed(b"  V2") == reply(b"E_BAD_PROTOCOL")
    assert (conversation.ended, conversation.greeted) == (True, False)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_ends_the_parsing(end: bytes) -> None:
    """A line of LINE_BYTES_MAX (16 KiB) ends the connection without an answer."""
    conversation = talk()
    assert conversation.feed(b"  V1" + b"x" * (LINE_BYTES_MAX - 1)) == b""
    assert not conversation.ended
    assert conversation.feed(b"x" + end) == b""
    assert conversation.ended


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"  V", b""),
        (b"  V1REGISTER t", b""),
        (b"  V1IDENTIFY\n\x00", reply(b"E_BAD_BODY IDENTIFY failed to read body size")),
        (b"  V1" + HELLO[:-1], reply(b"E_BAD_BODY IDENTIFY failed to read body")),
        (b"  V1" + HELLO, b""),
    ],
)
def test_an_end_of_input_within_a_body_is_an_error(sent: bytes, answer: bytes) -> None:
    """An end of input within a body is an error; elsewhere, it ends without an answer."""
    conversation = talk()
    conversation.feed(sent)
    assert conversation.feed_eof() == answer
    assert conversation.feed_eof() == b""
    assert conversation.ended


COMMANDS = st.sampled_from(
    [
        b"PING\n",
        HELLO,
        b"REGISTER t c\n",
        b"REGISTER x\n",
        b"REGISTER a*\n",
        b"UNREGISTER t\n",
        b"BAD\n",
        b"IDENTIFY\n\xff\xff\xff\xff",
        identify({}),
        b"\n",
        b"x" * 100,
    ]
)


@given(st.lists(COMMANDS, max_size=8), st.data())
def test_answers_do_not_depend_on_how_the_input_is_split(
    commands: list[bytes], data: st.DataObject
) -> None:
    """Answers and registry do not depend on how the input is split."""
    sent = b"  V1" + b"".join(commands)
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=10).map(sorted))
    whole, cut = talk(), talk()
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]

    assert b"".join(cut.feed(piece) for piece in pieces) == whole.feed(sent)
    assert known(cut) == known(whole)
    assert cut.ended == whole.ended


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_answered_or_end_the_connection(sent: bytes, greeted: bool) -> None:
    """Random bytes are answered with OK, facts, E_ errors or nothing."""
    for answer in split_answers(talk().feed((b"  V1" if greeted else b"") + sent)):
        assert answer in (b"OK", FACTS_JSON) or answer.startswith(b"E_")


def test_an_nsqd_reports_that_it_drains() -> None:
    """An nsqd reports draining in IDENTIFY, or with DRAIN and UNDRAIN, for all topics or one.

    If IDENTIFY has the field `draining`, the answer has `knows_drain`.
    """
    facts = json.loads(split_answers(talk().feed(b"  V1" + HELLO))[0])
    assert "knows_drain" not in facts
    conversation = talk()
    answers = split_answers(conversation.feed(b"  V1" + identify(PEER | {"draining": True})))
    assert json.loads(answers[0]) == {**facts, "knows_drain": True}
    producer = conversation.producer
    assert producer is not None
    assert (True, True) == (producer.draining, producer.drains("t"))
    assert (
        split_answers(conversation.feed(b"UNDRAIN\nDRAIN t\nDRAIN u\nUNDRAIN t\n")) == [b"OK"] * 4
    )
    assert (False, {"u"}) == (producer.draining, producer.draining_topics)
    assert (False, True) == (producer.drains("t"), producer.drains("u"))
    assert split_answers(conversation.feed(b"DRAIN\n")) == [b"OK"]
    assert producer.draining is True


@pytest.mark.parametrize(
    ("commands", "error"),
    [
        (b"DRAIN\n", b"E_INVALID client must IDENTIFY"),
        (b"DRAIN t\n", b"E_INVALID client must IDENTIFY"),
        (HELLO + b"UNDRAIN a:b\n", b"E_BAD_TOPIC UNDRAIN topic name 'a:b' is not valid"),
        (
            HELLO + b"".join(b"DRAIN t%d\n" % n for n in range(DRAINING_TOPICS_MAX + 1)),
            b"E_INVALID DRAIN too many topics",
        ),
        (identify(PEER | {"draining": 1}), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    ],
)
def test_a_wrong_drain_ends_the_connection(commands: bytes, error: bytes) -> None:
    """A wrong DRAIN ends the connection, as does one above DRAINING_TOPICS_MAX topics."""
    conversation = talk()
    assert split_answers(conversation.feed(b"  V1" + commands))[-1] == error
    assert conversation.ended


SECONDS = 30.0


@pytest.fixture
async def daemon() -> AsyncIterator[Nsqlookupd]:
    """A running nsqlookupd."""
    running = Nsqlookupd(
        NsqlookupdOptions(
            tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", broadcast_address="lookup.here"
        )
    )
    await running.start()
    yield running
    await running.stop()


def answer(data: bytes) -> bytes:
    """Encode an answer: size and data, without a frame type."""
    return struct.pack(">i", len(data)) + data


def identify_answer(daemon: Nsqlookupd) -> bytes:
    """The answer to IDENTIFY."""
    facts = {
        "broadcast_address": "lookup.here",
        "hostname": socket.gethostname(),
        "http_port": daemon.http_port,
        "tcp_port": daemon.tcp_port,
        "version": "1.3.0",
    }
    return answer(json.dumps(facts, separators=(",", ":")).encode())


@pytest.mark.behaviour("nsqlookupd.TestIOLoopReturnsClientErrWhenSendFails")
async def test_the_error_of_a_peer_that_resets_is_logged(
    daemon: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    """If a peer resets before its error is sent, the log has the error, not the failed send."""
    with socket.create_connection(("127.0.0.1", daemon.tcp_port)) as rude:
        # Closes with a reset: sending to it fails.
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(b"  V1" + HELLO + b"NONSENSE\n")
    facts = "E_INVALID invalid command NONSENSE"
    await until(lambda: facts in caplog.text and not daemon.connections)

    assert {r.levelno for r in caplog.records if "NONSENSE" in r.getMessage()} == {logging.ERROR}
    assert daemon.registry.nodes(instant()) == []


async def test_an_error_is_read_before_the_end(daemon: Nsqlookupd) -> None:
    """A peer that is still sending receives the error before the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    writer.write(b"  V1BAD\n" + b"x" * 1_000_000)

    async with asyncio.timeout(10):
        assert await reader.read() == b"\x00\x00\x00\x1dE_INVALID invalid command BAD"
    writer.close()


async def test_a_silent_connection_is_closed(
    daemon: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without magic bytes a connection ends after MAGIC_SECONDS; after them it may be idle."""
    monkeypatch.setattr(tcp, "MAGIC_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    greeted_reader, greeted = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    greeted.write(b"  V1PING\n")
    assert await greeted_reader.readexactly(6) == b"\x00\x00\x00\x02OK"

    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            assert await reader.read() == b""
    greeted.write(b"PING\n")
    assert await greeted_reader.readexactly(6) == b"\x00\x00\x00\x02OK"
    writer.close()
    greeted.close()


async def test_a_peer_that_does_not_read_is_not_read(daemon: Nsqlookupd) -> None:
    """While a peer does not read, its commands are not read; later all are answered."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(("127.0.0.1", daemon.tcp_port))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=1 << 10)
    count = 1_000_000
    writer.write(b"  V1" + b"PING\n" * count)
    writer.write_eof()
    try:
        async with asyncio.timeout(20):
            paused = await stopped_reading(daemon)
            assert paused._transport.get_write_buffer_size() < 2 << 20
            received = 0
            while data := await reader.read(1 << 16):
                received += len(data)
            assert received == count * 6
    finally:
        writer.transport.abort()


async def stopped_reading(daemon: Nsqlookupd) -> LookupConnection:
    """Wait until the daemon has stopped reading a connection; return that connection."""

    def stopped() -> list[LookupConnection]:
        return [
            connection
            for connection in daemon.connections
            if not connection._transport.is_reading()
        ]

    await until(stopped)
    return stopped()[0]


async def all_answers(daemon: Nsqlookupd, sent: bytes) -> bytes:
    """Send bytes; return all answers until nsqlookupd ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    writer.write(sent)
    async with asyncio.timeout(SECONDS):
        found = await reader.read()
    writer.close()
    return found


@pytest.mark.behaviour("nsqlookupd.TestIOLoopReturnsClientErrWhenSendSucceeds")
@pytest.mark.parametrize(("commands", "error"), MISTAKES)
async def test_a_wrong_command_is_answered_and_ends_the_connection(
    daemon: Nsqlookupd, caplog: pytest.LogCaptureFixture, commands: bytes, error: bytes
) -> None:
    """An error is answered exactly, logged, and ends the connection; PING after it is not run."""
    before = b"".join(identify_answer(daemon) for _ in range(commands.startswith(HELLO)))

    found = await all_answers(daemon, b"  V1" + commands + b"PING\n")

    assert found == before + answer(error)
    assert error.decode("utf-8", "replace") in caplog.text
    assert daemon.registry.nodes(instant()) == []
