"""The targets of `make hostile`: code that gets bytes from peers or from files of others.

1. Each target catches its documented errors. It also checks what callers rely on: no result is
   larger than allowed, and no more bytes are buffered than allowed.
2. Servers have no sockets: a broker, nsqlookupd, and both HTTP sites. A server serves some hundreds
   or thousands of executions, so that the state left by one client meets the next. Then a new one
   replaces it, so that memory stays comparable. Responses are checked, too: errors only from the
   table of errors, statuses only as in docs/http.md, and no traceback in the log.
3. `/debug` (it profiles for seconds) and `PUT /config` (it connects to addresses in the request)
   are left out; they have tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tests.broker.harness import BrokerHarness
from xxhash import xxh3_64_intdigest

from proofs.fuzzing import HEAD_SIZE, Target, serve
from sparq.broker import permissions
from sparq.broker.options import BrokerOptions
from sparq.broker.permissions import AnswerError
from sparq.client.errors import WrongPeerError
from sparq.daemon.http import FastPath, HttpError, Route, Site, parse_query, unquote_path
from sparq.migration import queues
from sparq.migration.queues import GoDataError
from sparq.migration.records import GoRecords
from sparq.nsqd.auth import port_in
from sparq.nsqd.http import FastPublishPath, NsqdEndpoints, lines_of
from sparq.nsqd.lookup_peers import LookupPeers, channels_of
from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.parameters import target_of
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.nsqd.serving import broker_options
from sparq.nsqlookupd.http import NsqlookupdEndpoints
from sparq.nsqlookupd.registry import Registry
from sparq.nsqlookupd.tcp import IDENTIFY_BYTES_MAX, LINE_BYTES_MAX, CommandHandlers
from sparq.options.limits import IdentifyLimits
from sparq.protocol import batch, commands, lookup
from sparq.protocol.batch import BatchError
from sparq.protocol.compression import Compression, Deflate, LayerError, Snappy
from sparq.protocol.errors import ERRORS, RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.identify import negotiate
from sparq.protocol.parser import CommandParser, LineTooLong
from sparq.protocol.receiver import FrameError, Receiver, decode_message
from sparq.protocol.runs import parse_body
from sparq.testing import START_WALL_NS, ManualClock, MemoryDisk
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
    commands.ends("t", "time", 1 << 60),
    commands.ends("t", "after", 1, 2),
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
    return granted.upgrades, granted.reply is None, granted.sample_rate > 0


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
    except LayerError as error:
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
    return Snappy().seal([data])


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


# Files

BODIES: Final = tuple(b"body number %d" % number * (1 + number % 3) for number in range(12))
_PAYLOAD_CHECKSUM_AT: Final = 24


def one_batch() -> bytes:
    """A stored batch of a log."""
    bodies = BodySlices.of(BODIES)
    frames, ends = batch.encode_frames_scalar([bodies], 0, 7, START_WALL_NS)
    place = {"publish_time_ns": START_WALL_NS, "log_id_short": 7, "epoch": 1, "file_offset": 4_608}
    return b"".join(batch.encode(frames, ends, 0, 3, salt=99, dues=[(1, 10**18)], **place))


def disk_with(path: str, data: bytes, disk: MemoryDisk | None = None) -> MemoryDisk:
    """A disk with this file; a new disk if none is given."""
    disk = MemoryDisk() if disk is None else disk
    folder = ""
    for part in path.split("/")[1:-1]:
        folder += f"/{part}"
        if not disk.exists(folder):
            disk.make_directory(folder)
    file = disk.create(path)
    file.append([data], 0)
    file.close()
    return disk


def walk(data: bytes) -> object:
    """Read a range as Spark's executors do: whole batches, or `BatchError`."""
    body = bytearray(data[HEAD_SIZE:])
    if data[:1] >= b"\x60":
        _seal(body)
    count = 0
    try:
        for found in batch.walk(body):
            count += found.count
    except BatchError as error:
        return count, str(error)[:12]
    return count


def _seal(body: bytearray) -> None:
    """Correct the payload checksum of the first batch, as a malicious peer can."""
    header = batch.parse_header(body, 0)
    if header is not None and len(body) >= _PAYLOAD_CHECKSUM_AT + 8:
        payload = body[header.header_size : header.total_size]
        struct.pack_into("<Q", body, _PAYLOAD_CHECKSUM_AT, xxh3_64_intdigest(payload))


def _record(body: bytes, number: int) -> bytes:
    message = struct.pack(">qH", 1_763_000_000_000_000_000 + number, 1) + b"%016x" % number + body
    return struct.pack(">i", len(message)) + message


GO_RECORDS: Final = b"".join(_record(body, at) for at, body in enumerate(BODIES))
GO_PLACES: Final = b"%d\n0,0\n0,%d\n" % (len(BODIES), len(GO_RECORDS))
GO_TOPICS: Final = json.dumps(
    {
        "version": "1.3.0",
        "topics": [
            {"name": "t", "paused": False, "channels": [{"name": "c", "paused": True}]},
            {"name": "u", "paused": True, "channels": []},
        ],
    }
).encode()
_GO_FILES: Final = ("t.diskqueue.000000.dat", "t.diskqueue.meta.dat", "nsqd.dat")


def import_go(data: bytes) -> object:
    """A data path of Go's nsqd with one hostile file: records, bad bytes, or `GoDataError`."""
    parts = [GO_RECORDS, GO_PLACES, GO_TOPICS]
    parts[_go_kind(data[HEAD_SIZE:], data[0] if data else 0)] = data[HEAD_SIZE:]
    disk = MemoryDisk()
    for name, content in zip(_GO_FILES, parts, strict=True):
        disk_with(f"/go/{name}", content, disk)
    try:
        found = queues.survey(disk, "/go")
    except GoDataError as error:
        return str(error)[:20]
    counts: list[int] = []
    for queue in found.queues():
        pieces = queues.read_queue(disk, "/go", queue)
        counts += [len(piece) if isinstance(piece, GoRecords) else -1 for piece in pieces]
    return tuple(counts[:6]), len(found.topics)


def _go_kind(data: bytes, variant: int) -> int:
    """Place in `_GO_FILES` of the file that the data most likely came from, or any place."""
    if variant >= 240:
        return variant % 3
    return 2 if data[:1] == b"{" else 1 if len(data) < 60 else 0


LIFE: Final = 400
"""Executions per broker or registry."""

SITE_LIFE: Final = 5_000
"""Executions per HTTP site. Its threads make a new one expensive."""

DISK_BYTES: Final = 32 << 20
"""Disk size of a broker. Its reserve is an eighth of that, and takes memory on a memory disk."""

OPTIONS: Final = NsqdOptions(
    broker=BrokerOptions(limits=IdentifyLimits(max_msg_size=4_096, max_body_size=20_000)), node_id=5
)
ID_PLACE: Final = b"@" * 16
"""Placeholder in an input for the id of a message in flight."""

LOOP_STEPS_MAX: Final = 2_000
"""Steps of the event loop in which a request must be answered."""

STATUSES: Final = {100, 200, 301, 307, 400, 403, 404, 405, 413, 500, 503}
_HEAD: Final = struct.Struct(">ii")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class Served:
    """A server that is replaced by a new one after `life` executions."""

    def __init__(self, make: Callable[[], Any], life: int = LIFE) -> None:
        self._make, self._life = make, life
        self._left = 0
        self._server: Any = None

    def get(self) -> Any:
        """The current server, or a new one if its executions are used up."""
        if not self._left:
            if isinstance(self._server, Web):
                self._server.close()
            self._server = None
            gc.collect()
            self._server, self._left = self._make(), self._life
        self._left -= 1
        return self._server


# A broker and its clients


class ServedBroker(BrokerHarness):
    """A broker on a memory disk with one consumer that always has messages in flight."""

    def __init__(self) -> None:
        super().__init__(MemoryDisk(capacity_bytes=DISK_BYTES), base=broker_options(OPTIONS))
        self.last_id = b"0" * 16
        self.say(0, [b"".join(LINES[3:5])])

    def say(self, variant: int, chunks: Sequence[bytes]) -> object:
        """Run one client from connect to disconnect."""
        broker, clock = self.broker, self.clock
        clock.advance(variant * 1_000_000)
        session = broker.connect("10.0.0.1:5555", clock.now())
        parser = CommandParser(broker.limits)
        said: list[object] = []
        try:
            for chunk in chunks:
                parser.feed(chunk)
                while not session.closing and session.upgrade is None:
                    command = parser.next()
                    if command is None:
                        break
                    broker.execute(session, command, clock.now())
                    parser.state = session.state
                    parser.heartbeats = session.heartbeat_interval_ms > 0
                self.turn()
                said += self._listen(b"".join(broker.take_output(session)))
        except RemoteError as error:
            broker.fail(session, error)
        except LineTooLong:
            said.append("line too long")
        said += self._listen(b"".join(broker.take_output(session)))
        broker.disconnect(session, clock.now())
        broker.tick(clock.now())
        self.turn()
        assert broker.health() == "OK", broker.health()
        assert not broker.notes, broker.notes
        return tuple(said[:8])

    def _listen(self, output: bytes) -> list[object]:
        """Decode the output for the client: every frame is whole, every error code is known."""
        said: list[object] = []
        at = 0
        while at < len(output):
            size, kind = _HEAD.unpack_from(output, at)
            frame = output[at + 8 : at + 4 + size]
            at += 4 + size
            assert at <= len(output), "a frame is cut off"
            if kind == 1:
                code = frame.split(b" ")[0].decode()
                assert code in ERRORS, frame
                said.append(frame[:24])
            elif kind == 2:
                self.last_id = frame[10:26]
            said.append(kind)
        return said


_brokers = Served(ServedBroker)


def converse(data: bytes) -> object:
    """Execute commands: the broker responds and keeps working."""
    served_broker: ServedBroker = _brokers.get()
    variant, chunks = serve(data.replace(ID_PLACE, served_broker.last_id))
    return served_broker.say(variant, chunks)


# nsqlookupd


class Lookup:
    """A registry, and connections of peers to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = Registry(300 * 10**9, 45 * 10**9)
        self._count = 0

    def say(self, chunks: Sequence[bytes]) -> object:
        """Run one peer from connect to disconnect."""
        self._count += 1
        peer = f"10.0.0.1:{self._count}"
        me = {"tcp_port": 4160, "http_port": 4161, "version": "1"}
        talk = CommandHandlers(self.registry, me, peer, peer, self.clock.now)
        answers = b""
        for chunk in chunks:
            if not talk.ended:
                answers += talk.feed(chunk)
            assert len(talk._buffer) <= LINE_BYTES_MAX + IDENTIFY_BYTES_MAX, "too much is held"
        answers += talk.feed_eof()
        talk.close()
        return len(answers) > 100, re.findall(rb"E_[A-Z_]+.{0,12}", answers).__str__()[:40]


_lookups = Served(Lookup)


def register(data: bytes) -> object:
    """Input of an nsqd to nsqlookupd: it responds, and raises no exception at all."""
    _, chunks = serve(data)
    lookup: Lookup = _lookups.get()
    return lookup.say(chunks)


# HTTP


class ErrorLog(logging.Handler):
    """Collects log records with an exception, which no peer must be able to cause."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that carries an exception."""
        if record.exc_info is not None and record.exc_info[1] is not None:
            self.lines.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


_error_log: Final = ErrorLog()


class FakeTransport(asyncio.Transport):
    """A transport without a socket that keeps all written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5555)})
        self.written = bytearray()
        self.closed = False
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio: replaces the protocol of the connection."""
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        self.written += data

    def close(self) -> None:
        """See asyncio."""
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        """See asyncio."""
        return self.closed

    def pause_reading(self) -> None:
        """See asyncio."""

    def resume_reading(self) -> None:
        """See asyncio."""

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return 0


class FakeListener:
    """Takes the place of a listening socket, for one connection at a time."""

    factory: Callable[[], asyncio.Protocol]

    async def serve(self, factory: Callable[[], asyncio.Protocol], _tls: object = None) -> None:
        """Same as `Listener.serve`."""
        self.factory = factory


class Web:
    """An HTTP site on an event loop that runs only while a request is served."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        routes: Sequence[Route],
        close: Callable[[], None] = lambda: None,
        fast_path: Callable[[Callable[[], asyncio.Protocol]], FastPath] | None = None,
    ) -> None:
        self._loop = loop
        self.close = close
        self._listener = FakeListener()
        loop.set_exception_handler(self._complain)
        kept = [r for r in routes if not r.path.startswith("/debug") and r.method != "PUT"]
        listener: Any = self._listener
        site = Site(kept)
        way = None if fast_path is None else fast_path(site.protocol)
        loop.run_until_complete(site.start(listener, fast_path=way))

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        _error_log.lines.append(f"{context.get('message')}: {context.get('exception')!r}")

    def ask(self, chunks: Sequence[bytes]) -> object:
        """Run one connection from open to close; returns its statuses."""
        _error_log.lines.clear()
        wire = FakeTransport()
        self._loop.run_until_complete(self._serve(wire, chunks))
        assert not _error_log.lines, _error_log.lines[0]
        statuses = tuple(int(status) for status in _STATUS.findall(wire.written))
        assert STATUSES.issuperset(statuses), statuses
        return statuses[:4], len(wire.written) > 1000

    async def _serve(self, wire: FakeTransport, chunks: Sequence[bytes]) -> None:
        wire.protocol = self._listener.factory()
        wire.protocol.connection_made(wire)
        for chunk in chunks:
            if not wire.closed:
                wire.protocol.data_received(chunk)
        quiet = size = 0
        for _ in range(LOOP_STEPS_MAX):
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(wire.written) == size else 0
            size = len(wire.written)
            if wire.closed or quiet > 25:
                break
        wire.protocol.connection_lost(None)
        await asyncio.sleep(0)


_loop: asyncio.AbstractEventLoop | None = None


def _the_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all sites of this process; collects log records from the first call on."""
    global _loop  # noqa: PLW0603 - a process has one
    if _loop is None:
        _loop = asyncio.new_event_loop()
        root = logging.getLogger()
        root.addHandler(_error_log)
        logging.getLogger("sparq").setLevel(logging.WARNING)
    return _loop


def _nsqd_site() -> Web:
    loop = _the_loop()
    served_broker = ServedBroker()
    nsqd = Nsqd(OPTIONS, served_broker.broker, loop)
    nsqd.tcp_port, nsqd.http_port = 4150, 4151
    way = partial(FastPublishPath, nsqd)
    return Web(loop, _endpoints(nsqd).routes(), nsqd.runner.stop, way)


def _endpoints(nsqd: Nsqd) -> NsqdEndpoints:
    return NsqdEndpoints(nsqd, Reloader(nsqd, LookupPeers(nsqd), lambda: OPTIONS))


def _lookup_site() -> Web:
    lookup = Lookup()
    lookup.say([b"  V1" + INTRODUCTION + b"REGISTER t c\n"])
    return Web(_the_loop(), NsqlookupdEndpoints(lookup.registry, lookup.clock.now).routes())


_sites: Final = {
    "nsqd": Served(_nsqd_site, SITE_LIFE),
    "nsqlookupd": Served(_lookup_site, SITE_LIFE),
}


def request(name: str, data: bytes) -> object:
    """One connection to a site: only known statuses, no traceback."""
    _, chunks = serve(data)
    web: Web = _sites[name].get()
    return web.ask(chunks)


PEER: Final = (
    b'{"broadcast_address":"a","tcp_port":4150,"http_port":4151,"version":"1","hostname":"h"}'
)
INTRODUCTION: Final = b"IDENTIFY\n" + struct.pack(">i", len(PEER)) + PEER
PEERS: Final = (
    b"  V1PING\n",
    b"  V1" + INTRODUCTION + b"REGISTER t c\nREGISTER u\nPING\nUNREGISTER t c\nUNREGISTER u\n",
    b"  V1" + INTRODUCTION + b"REGISTER t c#ephemeral\n" * 3,
    commands.MAGIC_V2,
)


def _http(method: str, target: str, body: bytes = b"", more: str = "") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def _requests(routes: Sequence[Route]) -> list[bytes]:
    query = "?topic=t&channel=c&to=earliest&format=json&binary=true&defer=5&node=a:4151"
    found = [_http(r.method, r.path + query, b"body\nbody") for r in routes]
    chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    found += [
        b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\n" + chunked.encode(),
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 5\r\n" + chunked.encode(),
        _http("POST", "/pub?topic=t", b"x", "Expect: 100-continue\r\n"),
        _http("POST", "/pub?topic=t&defer=7", b"one"),
        _http("POST", "/mpub?topic=t", b"a\nb\n\nc") * 2,
        _http("POST", "/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\3abc"),
        _http("POST", "/pub?topic=t", b"x") * 6,
        _http("GET", "http://else/ping", b"", "X: a\r\n b\r\n"),
        _http("OPTIONS", "/ping/") + _http("GET", "/Ping"),
        _http("GET", "/config/log_level") + _http("GET", "/channels?topic=t"),
        b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n",
    ]
    return found


def targets() -> list[Target]:
    """Every target."""
    keys = [b'"%s":' % name.encode() for name in json.loads(IDENTIFY)]
    identities = [IDENTIFY, b"null", b'{"a":' * 50, DEEP, *_odd(json.loads(IDENTIFY))]
    grants = [ANSWER, b'{"https_port":1}', DEEP, *_odd(json.loads(ANSWER))]
    streams = [Deflate().seal([b"".join(LINES)]), _snappy(b"".join(LINES)), *_bombs()]
    bodies = [commands.mpub("t", [b"one", b"two" * 9])[11:], b"one\ntwo\n\nthree", b"a=t&b=%41+b;"]
    places = [b"earliest", b"12", b"time:2026-01-02T03:04:05.123+01:00", b"time:123"]
    joined = [b"".join(LINES[:6]), b"".join(LINES[6:12]), b"".join(LINES)]
    long_line = b"PUB " + b"t" * (LIMITS.max_line_size + 10)
    own = (commands.fin(ID_PLACE), commands.req(ID_PLACE, 0), commands.touch(ID_PLACE))
    consumed = commands.sub("t", "c") + commands.rdy(5)
    lives = [consumed + answer for answer in own] + [commands.identify(IDENTIFY) + consumed]
    words = (b"REGISTER ", b"UNREGISTER ", b"PING\n", INTRODUCTION)
    heads = (b"\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 99999999\r\n", b"%00")
    nsqd = _requests(_endpoints(Nsqd(OPTIONS, ServedBroker().broker, _the_loop())).routes())
    lookup = _requests(NsqlookupdEndpoints(Registry(1, 1), ManualClock().now).routes())
    stored = one_batch()
    return [
        Target("parser", 310, (*LINES, *joined, long_line), parse, WORDS),
        Target("receiver", 180, _frames(), receive),
        Target("IDENTIFY", 120, identities, identify, keys),
        Target("AUTH", 50, grants, authorize, PATTERN_WORDS),
        Target("compression", 60, streams, inflate),
        Target("MPUB and queries", 147, (*bodies, *places), over_http),
        Target("answers", 20, _documents(), answers, keys),
        Target("broker", 12, (*LINES, *lives, b"".join(LINES[6:])), converse, WORDS),
        Target("nsqlookupd", 50, PEERS, register, words),
        Target("HTTP of nsqd", 4, nsqd, partial(request, "nsqd"), heads),
        Target("HTTP of nsqlookupd", 4, lookup, partial(request, "nsqlookupd"), heads),
        Target("batches", 20, (stored, stored[:400]), walk, (batch.MAGIC,)),
        Target("Go's queues", 6, (GO_RECORDS, GO_PLACES, GO_TOPICS), import_go),
    ]
