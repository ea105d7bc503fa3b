"""One connection to an nsqd: dial, identify, then commands out and answers in.

1. What is written in one turn of the loop leaves as one write, or as a few when it is much. A
   request behind one that was alone in its turn, and is answered, does not wait for the turn's end.
2. nsqd answers in order, so the answers to requests are matched first in, first out. A request
   whose awaiting task was cancelled keeps its place: its answer finds nobody and disturbs no one.
3. Behind a fatal error nsqd executes nothing: requests behind it were certainly not executed.
   Refusals of FIN, REQ and TOUCH answer no request, they are counted. Any other answer that was
   not asked for ends the connection: the next might be taken for another request's.
4. ``ended`` returns once the connection is gone; by then every request is answered. A connection
   that is silent for ``read_timeout`` (heartbeats should have come) or leaves a request
   unanswered for ``publish_timeout`` is given up, and one whose nsqd takes nothing of what is sent
   for ``write_timeout``.
5. How it begins, and through which layers everything goes, is `wire.client`'s. What arrives
   compressed is inflated a bounded piece a turn of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, cast

from sparq.client.address import parse_local, parse_nsqd
from sparq.client.config import Config
from sparq.client.errors import ConnectionLostError, SparqClientError, WrongPeerError
from sparq.client.log_fields import FieldLogger
from sparq.client.requests import OK, Awaited, Request, Requests
from sparq.client.watchdog import WriteWatch
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.layout import FRAME_ERROR, FRAME_MESSAGE
from sparq.protocol.receiver import FrameError, MessageRun, decode_message
from sparq.wire.client import HEARTBEAT, ClientConnection, Stage
from sparq.wire.errors import LayerError, remote_error

log = FieldLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
"""For the answer to IDENTIFY, as in nsqjs, and for the upgrades."""

AUTH_SECONDS: Final = 30.0
"""For AUTH on top: nsqd asks one authd after another, each for some seconds."""

FRAME_BYTES_MAX: Final = 64 << 20

TURN_BYTES: Final = 1 << 20
"""What is made plain in one turn of the loop; the socket is read no further meanwhile."""

REST_READS_MAX: Final = 16
"""Of ``TURN_BYTES`` each: more than a socket holds."""

COMMANDS_MAX: Final = 256
"""So many leave before the turn of the loop is over: nsqd works while we do."""

REQUESTS_MAX: Final = 50
"""So many do that are awaited: of 100, nsqd works on one half while the other is made."""

UNREQUESTED: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
STORAGE_REFUSALS: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
"""Fatal from Go's nsqd, not from sparq's: whether the connection ends shows when it does."""


class _Done:
    """An awaitable that has nothing to wait for; one object serves all."""

    def __await__(self) -> Generator[Any, None, None]:
        return _NOTHING


_NOTHING: Final = cast(Generator[Any, None, None], iter(()))
"""An iterator that has ended stays so, and costs less than a new generator each time."""

DONE: Final = _Done()


class Connection(asyncio.Protocol):
    """An identified connection. Make one with ``open_connection``.

    Attributes:
        address: the nsqd's ``host:port`` or path.
        requests: what was requested and is not answered.
        refused_responses: FIN, REQ and TOUCH that nsqd refused.
        live: whether commands can be sent.
        on_messages: called with each run of messages.
        on_room: called after requests were answered.
    """

    _transport: asyncio.Transport  # from ``connection_made`` on

    def __init__(self, address: str, config: Config) -> None:
        self.address = address
        self.requests = Requests()
        self.refused_responses = 0
        self.live = True
        self.on_messages: Callable[[MessageRun], None] = lambda run: None
        self.on_room: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[ConnectionLostError] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._config = config
        self._wire = ClientConnection(
            str(parse_nsqd(address)),
            config,
            config.identify(),
            config.max_msg_size or FRAME_BYTES_MAX,
        )
        self._out: list[bytes] = []
        self._lone = False
        self._resumed: asyncio.Future[None] | None = None
        self._heard_at = self._loop.time()
        self._fatal: Exception | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._written = 0
        self._write_watch = WriteWatch(config.write_timeout, self._taken, self._stalled)

    @property
    def facts(self) -> dict[str, Any]:
        """What nsqd answered to IDENTIFY; ``{}`` from one that does not negotiate."""
        return self._wire.facts

    @property
    def authorization(self) -> dict[str, Any]:
        """What it answered to AUTH; ``{}`` from one that asks for none."""
        return self._wire.authorization

    @property
    def waiting_since(self) -> float | None:
        """Since when an answer is due and nothing at all has come; None when none is due."""
        asked_at = self.requests.oldest
        return None if asked_at is None else max(asked_at, self._heard_at)

    # Sending

    def send(self, command: bytes) -> None:
        """Send a command that has no answer, with whatever else this turn of the loop sends."""
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(command)
        if len(out) >= COMMANDS_MAX:
            self._flush()

    def request(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a command that has an answer; the future is the answer.

        It raises ``RemoteError`` for an error frame and ``ConnectionLostError`` when the
        connection ends first.

        Raises:
            ConnectionLostError: it has ended already; nothing was sent.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self.ask(command, Awaited(len(command), self._loop.time(), answer))
        return answer

    def ask(self, command: bytes, request: Request) -> None:
        """Send a command that has an answer, which ``request`` is told.

        Raises:
            ConnectionLostError: as for ``request``.
        """
        if not self.live:
            raise ConnectionLostError(self._reason(None), executed=False)
        out = self._out
        requests = self.requests
        alone = self._lone and not out and not requests.waiting
        requests.waiting.append(request)
        requests.size += request.size
        if not out and not alone:
            self._loop.call_soon(self._flush)
        out.append(command)
        if alone or len(out) >= REQUESTS_MAX:
            self._flush()

    def drained(self) -> Awaitable[None]:
        """Done at once, or when the peer has read so much that sending makes sense again."""
        return DONE if self._resumed is None else asyncio.shield(self._resumed)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out:
            return
        self._lone = len(out) == 1
        data = out[0] if self._lone else b"".join(out)
        self._write(data if self._wire.is_plain else self._wire.layers.seal((data,)))

    def _write(self, data: bytes) -> None:
        if data and not self._lost.done():
            self._written += len(data)
            self._transport.write(data)

    def _taken(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def _stalled(self) -> None:
        self.fail(TimeoutError(f"nsqd reads nothing for {self._config.write_timeout:g} s"))

    # Ending

    async def ended(self) -> ConnectionLostError:
        """Wait for the end of the connection: the reason."""
        # Shielded: a waiting task that is cancelled must not cancel the future for the others.
        return await asyncio.shield(self._lost)

    async def close(self, seconds: float = 1.0) -> None:
        """End the connection once what was sent is written, or after so many seconds anyway."""
        self._flush()
        self._write(self._wire.layers.close())
        self._transport.close()
        await asyncio.wait([self._lost], timeout=seconds)
        self._transport.abort()

    def fail(self, error: Exception) -> None:
        """End the connection now, for this reason."""
        self.live = False
        if self._fatal is None:
            self._fatal = error
        self._transport.abort()

    def _reason(self, error: Exception | None) -> str:
        why = self._fatal or error
        return f"connection to {self.address} lost: {why or 'closed by the peer'}"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there; IDENTIFY follows by ``open_connection``."""
        # uvloop's transports are not registered as asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._check_alive()
        self._write(self._wire.output())

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer every request that is left: behind a fatal error, as not executed."""
        self.live = False
        if self._watch is not None:
            self._watch.cancel()
        if exc is not None and self._fatal is None and len(self.requests):
            self._read_rest()
        not_executed = isinstance(self._fatal, RemoteError)
        reason = self._reason(exc)
        self._lost.set_result(ConnectionLostError(reason))
        if not self._opened.done():
            known = isinstance(self._fatal, (SparqClientError, RemoteError))
            during = f" ({self._wire.stage})"
            self._opened.set_exception(
                self._fatal if known and self._fatal else ConnectionLostError(reason + during)
            )
            self._opened.exception()  # whoever dials may be cancelled, and never ask
        self.requests.lose(reason, executed=False if not_executed else None)
        if self._resumed is not None:
            self.resume_writing()
        self.on_room()

    def _read_rest(self) -> None:
        """Read what nsqd said before it reset the connection, where a write was first to notice.

        Go's nsqd resets it behind a fatal error when more was sent meanwhile. Unread, that error
        and every OK before it would be lost, and all that was asked be in doubt.
        """
        number = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            for _ in range(REST_READS_MAX):
                if not (data := os.read(number, TURN_BYTES)):
                    return
                self.data_received(data)

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write."""
        self._resumed = self._loop.create_future()
        self._write_watch.start()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._write_watch.stop()
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    def data_received(self, data: bytes) -> None:
        """Frames, the handshake's bytes, or what the layers make frames of."""
        self._heard_at = self._loop.time()
        wire = self._wire
        if wire.is_plain:
            self._take(data)
        elif wire.stage is Stage.READY:
            wire.layers.feed(data)
            self._make_plain()
        else:
            self._shake_hands(wire, data)

    def _shake_hands(self, wire: ClientConnection, data: bytes) -> None:
        try:
            wire.feed(data)
        except (RemoteError, SparqClientError) as error:
            self._write(wire.output())  # TLS tells the peer what it does not like
            self.fail(error)
            return
        self._write(wire.output())
        if wire.stage is Stage.READY:
            if not self._opened.done():
                self._opened.set_result(None)
            self._take(b"")  # what came behind the handshake
            if wire.layers:
                self._make_plain()

    async def opened(self) -> None:
        """Wait until the handshake is over.

        Raises:
            RemoteError, SparqClientError: it came to nothing.
        """
        await self._opened

    def _make_plain(self) -> None:
        """Take what the layers hold; when that is much, the rest of it in the next turn."""
        layers, transport = self._wire.layers, self._transport
        size = 0
        try:
            while size < TURN_BYTES and self.live and (data := layers.read()):
                size += len(data)
                self._take(data)
        except LayerError as error:
            self.fail(WrongPeerError(str(error)))
        if not self.live or transport.is_closing():
            return
        self._write(layers.output())
        if layers.ended:
            self.fail(ConnectionResetError("closed by the peer"))
        elif size < TURN_BYTES:
            transport.resume_reading()
        else:
            transport.pause_reading()
            self._loop.call_soon(self._make_plain)

    # Receiving

    def _take(self, data: bytes) -> None:
        """Frames: messages are handed on in runs, answers go to their requests."""
        receiver = self._wire.receiver
        answered = 0
        try:
            receiver.feed(data)
            if answered := receiver.take_oks():
                self._confirmed(answered)
            if not answered or receiver.has_more:
                for found in receiver.runs():
                    if isinstance(found, MessageRun):
                        self.on_messages(found)
                    else:
                        answered = 1
                        self._answered(*found)
        except FrameError as error:
            limit = self._config.max_msg_size
            hint = f" (the option max_msg_size is {limit})" if limit else ""
            self.fail(WrongPeerError(f"{error}{hint}"))
        if answered:
            self.on_room()

    def _answered(self, kind: int, data: bytes) -> None:
        if kind == FRAME_ERROR:
            self._refused(remote_error(data))
        elif kind == FRAME_MESSAGE:
            decode_message(data)  # too short: else it were part of a run
        elif data == HEARTBEAT:
            self.send(commands.nop())
        elif (request := self.requests.next()) is None:
            self.fail(WrongPeerError(f"an answer to no request: {data[:100]!r}"))
        elif data == OK:
            request.confirm()
        else:
            request.respond(data)

    def _confirmed(self, count: int) -> None:
        if stray := self.requests.confirm(count):
            self.fail(WrongPeerError(f"an answer to no request: OK, {stray} times"))

    def _refused(self, error: RemoteError) -> None:
        if error.code in UNREQUESTED:
            self.refused_responses += 1
            log.info("nsqd %s: %s", self.address, error, extra={"nsqd": self.address})
            return
        # Before its request hears of it, which may be made again at once: not on this connection.
        if error.fatal and error.code not in STORAGE_REFUSALS:
            self.fail(error)
        if _is_cut_short(error):
            return  # not what the command is, but that it came in part: nsqd executed none of it
        if (request := self.requests.next()) is None:
            log.warning("nsqd %s: %s", self.address, error, extra={"nsqd": self.address})
        else:
            request.fail(error)

    def _check_alive(self) -> None:
        """Give up a silent connection; look again when it could next have been silent too long."""
        config, now = self._config, self._loop.time()
        silent_at = self._heard_at + config.read_timeout
        overdue_at = now + config.publish_timeout
        if (asked_at := self.requests.oldest) is not None:
            overdue_at = asked_at + config.publish_timeout
        if now >= silent_at:
            self.fail(TimeoutError(f"nothing heard for {config.read_timeout:g} s"))
        elif now >= overdue_at:
            self.fail(TimeoutError(f"no answer within {config.publish_timeout:g} s"))
        else:
            self._watch = self._loop.call_at(min(silent_at, overdue_at), self._check_alive)


def _is_cut_short(error: RemoteError) -> bool:
    """Whether nsqd saw its end of the connection close in the middle of a command."""
    return error.code in ("E_BAD_MESSAGE", "E_BAD_BODY") and "failed to read" in error.text


async def open_connection(address: str, config: Config) -> Connection:
    """Dial an nsqd, identify, and agree on layers.

    Raises:
        OSError: it cannot be reached (``TimeoutError``: not in time).
        RemoteError: it refuses what IDENTIFY asks for, or the secret.
        TlsError, AuthRequiredError: see there.
        ConnectionLostError, WrongPeerError: it closes, or is no nsqd.
    """
    connection = await _dial(address, config)
    seconds = HANDSHAKE_SECONDS + (AUTH_SECONDS if config.auth_secret else 0)
    try:
        async with asyncio.timeout(seconds):
            await connection.opened()
    except BaseException as error:
        connection.fail(error if isinstance(error, Exception) else TimeoutError("given up"))
        raise
    return connection


async def _dial(address: str, config: Config) -> Connection:
    loop = asyncio.get_running_loop()
    place = parse_nsqd(address)

    def make() -> Connection:
        return Connection(address, config)

    async with asyncio.timeout(config.dial_timeout):
        if place.is_path:
            return (await loop.create_unix_connection(make, place.host))[1]
        local = parse_local(config.local_addr) if config.local_addr else None
        dialling = loop.create_connection(make, place.host, place.port, local_addr=local)
        return (await dialling)[1]
