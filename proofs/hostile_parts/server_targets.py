"""Targets that are whole servers without sockets: a broker, nsqlookupd, and both HTTP sites.

1. A server serves some hundreds or thousands of executions, so that the state left by one client
   meets the next. Then a new server replaces it, so that memory stays comparable.
2. Responses are checked too: errors only from the table of errors, statuses only as in
   docs/http.md, and no traceback in the log.
3. `/debug` (it profiles for seconds) and `PUT /config` (it connects to addresses in the request)
   are left out; they have tests.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from proofs.hostile_parts.mutate import serve
from proofs.hostile_parts.parser_targets import IDENTIFY, LINES, WORDS
from proofs.hostile_parts.worker import Target
from proofs.reopened import run_turns
from sparq.broker.broker import Broker
from sparq.broker.options import BrokerOptions
from sparq.daemon.http import FastPath, Route, Site
from sparq.nsqd.http import NsqdEndpoints
from sparq.nsqd.http_publish import FastPublishPath
from sparq.nsqd.lookup_peers import LookupPeers
from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.nsqd.serving import broker_options
from sparq.nsqlookupd.http import NsqlookupdEndpoints
from sparq.nsqlookupd.registry import Registry
from sparq.nsqlookupd.tcp import IDENTIFY_BYTES_MAX, LINE_BYTES_MAX, CommandHandlers
from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands
from sparq.protocol.errors import ERRORS, RemoteError
from sparq.protocol.parser import CommandParser, LineTooLong
from sparq.testing import ManualClock, MemoryDisk

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
            if self._server is not None:
                self._server.close()
            self._server = None
            gc.collect()
            self._server, self._left = self._make(), self._life
        self._left -= 1
        return self._server


# A broker and its clients


class ServedBroker:
    """A broker on a memory disk with one consumer that always has messages in flight."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        disk = MemoryDisk(capacity_bytes=DISK_BYTES)
        self.broker = Broker(broker_options(OPTIONS), disk, "/d", self.clock.now(), seed=1)
        self.broker.load(self.clock.now())
        self.last_id = b"0" * 16
        self.say(0, [b"".join(LINES[3:5])])

    def close(self) -> None:
        """Nothing to close."""

    def turn(self) -> None:
        """Run turns until no work is left."""
        run_turns(self.broker, self.clock)

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

    def close(self) -> None:
        """Nothing to close."""

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


def targets() -> Sequence[Target]:
    """All targets of this module."""
    own = (commands.fin(ID_PLACE), commands.req(ID_PLACE, 0), commands.touch(ID_PLACE))
    consumed = commands.sub("t", "c") + commands.rdy(5)
    lives = [consumed + answer for answer in own] + [commands.identify(IDENTIFY) + consumed]
    words = (b"REGISTER ", b"UNREGISTER ", b"PING\n", INTRODUCTION)
    heads = (b"\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 99999999\r\n", b"%00")
    nsqd = _requests(_endpoints(Nsqd(OPTIONS, ServedBroker().broker, _the_loop())).routes())
    lookup = _requests(NsqlookupdEndpoints(Registry(1, 1), ManualClock().now).routes())
    return (
        Target("broker", 12, (*LINES, *lives, b"".join(LINES[6:])), converse, WORDS),
        Target("nsqlookupd", 50, PEERS, register, words),
        Target("HTTP of nsqd", 4, nsqd, partial(request, "nsqd"), heads),
        Target("HTTP of nsqlookupd", 4, lookup, partial(request, "nsqlookupd"), heads),
    )
