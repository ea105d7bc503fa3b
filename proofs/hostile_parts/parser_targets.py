"""Targets that turn bytes from the network into values.

Each target catches its documented errors. It also checks what callers rely on: no result is larger
than allowed, and no more bytes are buffered than allowed.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from proofs.hostile_parts.mutate import HEAD_SIZE, serve
from proofs.hostile_parts.worker import Target
from sparq.broker import permissions
from sparq.broker.permissions import AnswerError
from sparq.client.errors import WrongPeerError
from sparq.daemon.http import HttpError, parse_query, unquote_path
from sparq.nsqd.auth import port_in
from sparq.nsqd.http import lines_of
from sparq.nsqd.lookup_peers import channels_of
from sparq.nsqd.seeking import target_of
from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands, lookup
from sparq.protocol.compression import Compression, CompressionError, Deflate, Snappy
from sparq.protocol.errors import ERRORS, RemoteError
from sparq.protocol.identify import negotiate
from sparq.protocol.mpub import parse_body
from sparq.protocol.parser import CommandParser, LineTooLong
from sparq.protocol.receiver import FrameError, Receiver, decode_message
from sparq.testing import START_WALL_NS
from sparq.wire import client as handshake

LIMITS: Final = IdentifyLimits(max_msg_size=4_096, max_body_size=20_000)
HELD_MAX: Final = LIMITS.max_line_size + LIMITS.max_body_size + 64
STATES: Final = (commands.STATE_INIT, commands.STATE_SUBSCRIBED, commands.STATE_CLOSING)
IDS: Final = (b"0123456789abcdef", b"0000000000000000", b"ffffffffffffffff")
READS_MAX: Final = 12
"""Maximum number of decompressed pieces that are read: then decompression must stop, too."""

IDENTIFY: Final = json.dumps(
    {
        "client_id": "c",
        "hostname": "h",
        "feature_negotiation": True,
        "heartbeat_interval": 30_000,
        "output_buffer_size": 16_384,
        "output_buffer_timeout": 250,
        "tls_v1": False,
        "snappy": False,
        "deflate": True,
        "deflate_level": 6,
        "sample_rate": 10,
        "msg_timeout": 60_000,
        "user_agent": "x/1",
        "topology_zone": "z",
    }
).encode()
DEEP: Final = b"[" * 60_000

LINES: Final = (
    commands.identify(IDENTIFY),
    commands.auth(b"secret"),
    commands.sub("t", "c"),
    commands.pub("t", b"hello"),
    commands.pub("t", b"x" * 200) * 20,
    commands.mpub("t", [b"one", b"two two", b"three"]),
    commands.mpub("t", [b"x" * 10] * 40),
    commands.dpub("t", 1000, b"later"),
    commands.rdy(10),
    b"".join(commands.fin(one) for one in IDS),
    commands.fin(IDS[0]) * 40,
    commands.req(IDS[0], 100),
    commands.touch(IDS[1]),
    commands.cls(),
    commands.nop(),
    commands.attach("t", "c"),
    commands.ends("t"),
    commands.ends_at_time("t", 1 << 60),
    commands.ends_after("t", 1, 2),
    commands.read("t", "00" * 16, 0, 10, 1000),
    commands.commit("t", "c", 1, 2),
)
WORDS: Final = tuple(name + end for name in commands.COMMANDS for end in (b" ", b"\n"))


def parse(data: bytes) -> object:
    """The parser in any state: only `RemoteError` from the table, or `LineTooLong`.

    After a `RemoteError` it returns no more commands.
    """
    variant, chunks = serve(data)
    parser = CommandParser(LIMITS)
    parser.state = STATES[variant % 3]
    parser.heartbeats = bool(variant & 4)
    parser.needs_tls = variant >= 240
    kinds = []
    try:
        for chunk in chunks:
            parser.feed(chunk)
            while (command := parser.next()) is not None:
                kinds.append(type(command))
                _check_command(command)
                if type(command) is commands.Subscribe:
                    parser.state = commands.STATE_SUBSCRIBED
            assert len(parser._tail) <= HELD_MAX, "more is held than a command may have"
        parser.eof()
    except RemoteError as error:
        assert error.code in ERRORS, error.code
        assert parser.next() is None, "a parser speaks behind its first error"
        return (*kinds[:6], error.code, error.text[:12])
    except LineTooLong:
        return "line too long"
    return tuple(kinds[:6])


def _check_command(command: Any) -> None:
    if isinstance(command, commands.PublishRun | commands.MultiPublish | commands.DeferredPublish):
        bodies = command.bodies
        assert len(bodies) > 0
        assert 0 < bodies.size_bytes <= len(bodies) * LIMITS.max_msg_size
        assert bodies.starts[-1] + bodies.sizes[-1] <= len(bodies.buffer)
    elif isinstance(command, commands.Identify):
        assert len(command.body) <= LIMITS.max_body_size


def identify(data: bytes) -> object:
    """IDENTIFY's JSON: E_BAD_BODY and E_IDENTIFY_FAILED are the only errors."""
    server = {"tls": bool(data[:1] > b"\x80"), "sparq_version": "x"}
    try:
        granted = negotiate(data[HEAD_SIZE:], LIMITS, server)
    except RemoteError as error:
        assert error.code in ("E_BAD_BODY", "E_IDENTIFY_FAILED"), error.code
        error.frame_text()
        return error.text[:30]
    assert 0 <= granted.heartbeat_interval_ms <= LIMITS.max_heartbeat_interval_ms
    assert 1 <= granted.output_buffer_size <= LIMITS.max_output_buffer_size
    granted.reply_data()
    granted.client_id.encode()
    return granted.upgrades, granted.feature_negotiation, granted.sample_rate > 0


def authorize(data: bytes) -> object:
    """The response of an authd, and checks of the permissions in it."""
    body = data[HEAD_SIZE:]
    try:
        found = permissions.read(body)
    except AnswerError as error:
        with contextlib.suppress(AnswerError):
            port_in(body)
        return str(error)[:24]
    found.reply_data()
    return found.count, found.allows("topic"), found.allows("topic", "ch")


def receive(data: bytes) -> object:
    """The client's receiver: frames of an nsqd, and the messages in them."""
    _, chunks = serve(data)
    frames = Receiver(8_192)
    kinds: list[int] = []
    try:
        for chunk in chunks:
            frames.feed(chunk)
            for kind, frame in frames.frames():
                kinds.append(kind if kind in (0, 1, 2) else 9)
                assert len(frame) <= 8_192
                if kind == 2:
                    decode_message(frame)
    except FrameError as error:
        return (*kinds[:4], str(error)[:12])
    return tuple(kinds[:6])


def inflate(data: bytes) -> object:
    """Both compressions: when the reader stops, decompression stops."""
    variant, chunks = serve(data)
    layer: Compression = Deflate() if variant & 1 else Snappy()
    pieces = 0
    try:
        for chunk in chunks:
            layer.feed(chunk)
            while pieces < READS_MAX and layer.read():
                pieces += 1
    except CompressionError as error:
        return pieces, str(error)[:20]
    return pieces, layer.ended


def over_http(data: bytes) -> object:
    """Input of HTTP handlers: binary and plain MPUB, queries, paths, targets of `seek`."""
    variant, body = data[0] if data else 0, data[HEAD_SIZE:]
    try:
        match variant & 3:
            case 0:
                bodies = parse_body(body, LIMITS.max_msg_size, LIMITS.max_body_size)
                assert len(bodies) > 0
                return min(len(bodies), 20), "binary"
            case 1:
                bodies = lines_of(body)
                assert bodies.size_bytes <= len(body)
                return min(len(bodies), 20), "lines"
            case 2:
                text = body.decode("utf-8", "surrogateescape")
                unquote_path(text)
                return min(len(parse_query(text)), 9), "query"
        return type(target_of(body.decode("utf-8", "replace"), START_WALL_NS))
    except RemoteError as error:
        assert error.code in ERRORS
        return error.text[:20]
    except HttpError as error:
        return error.code


def _snappy(data: bytes) -> bytes:
    return Snappy().compress([data])


def _bombs() -> list[bytes]:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflater.compress(bytes(16 << 20)) + deflater.flush()
    chunk = _snappy(bytes(65_536))
    liar = b"\xff\x06\x00\x00sNaPpY\x00\x10\x00\x00" + bytes(4) + b"\xff\xff\xff\xff\x0fwhat for"
    return [bomb, chunk * 8, liar]


ANSWER: Final = json.dumps(
    {
        "ttl": 60,
        "identity": "me",
        "identity_url": "http://here",
        "authorizations": [
            {"topic": "^t.*$", "channels": [".*", "[a-z]{1,3}"], "permissions": ["subscribe"]},
            {"topic": "(a|b)*c+?", "channels": [""], "permissions": ["publish", "subscribe"]},
        ],
    }
).encode()
PATTERN_WORDS: Final = (
    *(b"(", b")", b"(?:", b"(?i)", b"(?P<n>", b"[^", b"[[:alpha:]]", b"\\\\pL", b"\\\\d"),
    *(b"{2,999}", b"*?", b"++", b"|", b"\\\\x{10ffff}", b"\\\\Q", b"\\\\b", b"((((((", b"{1000}"),
)
_ODD_NUMBERS: Final = (-1, 0, 1, 2**31, 2**63, -(2**63), 1e300)
ODD: Final[tuple[object, ...]] = (None, True, *_ODD_NUMBERS, "", "x" * 5_000, [], {}, [[]])
"""Values that replace the value of a JSON key."""


def _odd(document: dict[str, Any]) -> list[bytes]:
    """Copies of the document: with each odd value at each key, without a key, or in capitals."""
    found = [json.dumps({**document, key: value}) for key in document for value in ODD]
    for key, value in document.items():
        found.append(json.dumps({k: v for k, v in document.items() if k != key}))
        found.append(json.dumps({**document, key.upper(): value}))
    return [text.encode() for text in found]


def answers(data: bytes) -> object:
    """Responses of an nsqlookupd to nsqd and to clients, and of an nsqd to IDENTIFY."""
    body = data[HEAD_SIZE:]
    try:
        match (data[0] if data else 0) % 3:
            case 0:
                return len(channels_of(200, body)), "channels"
            case 1:
                return len(lookup.producers(lookup.answer(200, body)).found), "producers"
        return len(handshake._facts(body)), "facts"
    except (ValueError, WrongPeerError) as error:
        return str(error)[:12]


def _frames() -> list[bytes]:
    message = struct.pack(">qH", 1 << 60, 1) + IDS[0] + b"body"
    parts = [(0, b"OK"), (0, b"_heartbeat_"), (1, b"E_INVALID x"), (2, message), (3, b"range")]
    plain = [struct.pack(">ii", 4 + len(data), kind) + data for kind, data in parts]
    return [*plain, b"".join(plain), struct.pack(">i", 2) + b"OK", b"HTTP/1.1 400 Bad Request\r\n"]


def _documents() -> list[bytes]:
    node = {"broadcast_address": "a", "tcp_port": 4150, "http_port": 4151, "hostname": "h"}
    answer = {"channels": ["c", "d#ephemeral"], "producers": [node]}
    found = [*_odd(answer), json.dumps({"status_code": 200, "data": answer}).encode(), b"OK"]
    return found + [json.dumps({"producers": [json.loads(odd)]}).encode() for odd in _odd(node)]


def targets() -> Sequence[Target]:
    """All targets of this module."""
    keys = [b'"%s":' % name.encode() for name in json.loads(IDENTIFY)]
    identities = [IDENTIFY, b"null", b'{"a":' * 50, DEEP, *_odd(json.loads(IDENTIFY))]
    grants = [ANSWER, b'{"https_port":1}', DEEP, *_odd(json.loads(ANSWER))]
    streams = [Deflate().compress([b"".join(LINES)]), _snappy(b"".join(LINES)), *_bombs()]
    bodies = [commands.mpub("t", [b"one", b"two" * 9])[11:], b"one\ntwo\n\nthree", b"a=t&b=%41+b;"]
    places = [b"earliest", b"12", b"time:2026-01-02T03:04:05.123+01:00", b"time:123"]
    joined = [b"".join(LINES[:6]), b"".join(LINES[6:12]), b"".join(LINES)]
    long_line = b"PUB " + b"t" * (LIMITS.max_line_size + 10)
    return (
        Target("parser", 310, (*LINES, *joined, long_line), parse, WORDS),
        Target("receiver", 180, _frames(), receive),
        Target("IDENTIFY", 120, identities, identify, keys),
        Target("AUTH", 50, grants, authorize, PATTERN_WORDS),
        Target("compression", 60, streams, inflate),
        Target("MPUB and queries", 147, (*bodies, *places), over_http),
        Target("answers", 20, _documents(), answers, keys),
    )
