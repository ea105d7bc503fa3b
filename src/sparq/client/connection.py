"""One connection to an nsqd: connect, IDENTIFY, then send commands and receive answers.

1. Commands of one event loop iteration are sent with one write, or a few if there are many.
2. nsqd answers in order, so answers are matched to requests first in, first out. A request whose
   awaiting task was cancelled keeps its place; its answer is dropped.
3. After a fatal error nsqd executes nothing: later requests were certainly not executed. Errors
   about FIN, REQ and TOUCH answer no request; they are counted. Any other unrequested answer ends
   the connection, because later answers could be matched to the wrong requests.
4. ``ended`` returns once the connection is closed; by then every request has an outcome. The
   connection is closed when nothing arrives for ``read_timeout`` (not even heartbeats), when a
   request has no answer for ``publish_timeout``, or when sending makes no progress for
   ``write_timeout``.
5. `wire.client` implements the handshake and the layers (TLS, compression). Compressed input is
   inflated in bounded pieces, one per loop iteration.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, cast

from sparq.client.arguments import parse_local, parse_nsqd
from sparq.client.config import Config
from sparq.client.errors import ConnectionLostError, SparqClientError, WrongPeerError
from sparq.client.log_fields import FieldLogger
from sparq.protocol import commands
from sparq.protocol.compression import LayerError
from sparq.protocol.errors import RemoteError
from sparq.protocol.layout import FRAME_ERROR, FRAME_MESSAGE
from sparq.protocol.receiver import FrameError, MessageRun, decode_message
from sparq.wire.client import HEARTBEAT, ClientConnection, Stage
from sparq.wire.errors import remote_error

log = FieldLogger(__name__)

OK: Final = b"OK"

HANDSHAKE_SECONDS: Final = 5.0
"""Timeout for the answer to IDENTIFY, as in nsqjs, and for upgrading to TLS and compression."""

AUTH_SECONDS: Final = 30.0
"""Added for AUTH: nsqd asks one authd after another, with some seconds for each."""

FRAME_BYTES_MAX: Final = 64 << 20

TURN_BYTES: Final = 1 << 20
"""Decoded bytes per loop iteration; reading from the socket is paused above that."""

REST_READS_MAX: Final = 16
"""Reads of ``TURN_BYTES`` each: more than a socket's receive buffer holds."""

COMMANDS_MAX: Final = 256
"""This many commands are sent before the loop iteration ends: nsqd then works in parallel."""

# With 100 tasks that publish, 32 and 50 are fastest; 64 is slower, and 256 a quarter slower.
REQUESTS_MAX: Final = 50
"""The same for requests: of 100, nsqd works on one half while the client makes the other."""

WRITE_CHECKS: Final = 4
"""Checks in a row without progress after which a peer that does not read is given up.

They are spread over ``write_timeout``. A program whose own loop was blocked all that time has made
only one check, and so does not give up the peer.
"""

UNREQUESTED: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
STORAGE_REFUSALS: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
"""Fatal from Go's nsqd but not from sparq's: the client waits to see if nsqd hangs up."""


class _Done:
    """An awaitable that is done at once; shared, to avoid an allocation."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


DONE: Final = _Done()


def settle(futures: Sequence[asyncio.Future[bytes]], answer: bytes | Exception) -> None:
    """Make an answer the result of each future, unless that was cancelled."""
    for future in futures:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


class Connection(asyncio.Protocol):
    """An identified connection; ``open_connection`` makes one.

    Attributes:
        address: the nsqd's ``host:port`` or path.
        waiting: the requests without an answer, oldest first: the loop time at which each was
            sent, the size of its command and the request itself.
        waiting_bytes: total size of their commands.
        facts: the answer to IDENTIFY; ``{}`` from an nsqd without feature negotiation.
        authorization: the answer to AUTH; ``{}`` from an nsqd that does not require AUTH.
        is_full: whether the transport's write buffer is too full; see ``drained``.
        heard_at: when data last arrived; loop time.
        opened: done once the handshake is over; carries its ``RemoteError`` or client's error.
        refused_responses: number of FIN, REQ and TOUCH commands that nsqd refused.
        live: whether commands can be sent.
        on_messages: called with each run of received messages.
        on_answers: called with requests and the answer to each of them: the response, a refusal
            (``RemoteError``), or ``ConnectionLostError`` for all that wait when it is lost.
    """

    _transport: asyncio.Transport  # from ``connection_made`` on

    def __init__(self, address: str, config: Config) -> None:
        self.address = address
        self.waiting: deque[tuple[float, int, Any]] = deque()
        self.waiting_bytes = 0
        self.facts: dict[str, Any] = {}
        self.authorization: dict[str, Any] = {}
        self.refused_responses = 0
        self.live = True
        self.is_full = False
        self.on_messages: Callable[[MessageRun], None] = lambda run: None
        self.on_answers: Callable[[list[Any], bytes | Exception], None] = settle
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[ConnectionLostError] = self._loop.create_future()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._config = config
        self._wire = ClientConnection(
            str(parse_nsqd(address)),
            config,
            config.identify(),
            config.max_msg_size or FRAME_BYTES_MAX,
        )
        self._out: list[bytes] = []
        self._resumed: asyncio.Future[None] | None = None
        self.heard_at = self._loop.time()
        self._fatal: Exception | None = None
        self._alive_timer: asyncio.TimerHandle | None = None
        self._sending_timer: asyncio.TimerHandle | None = None
        self._written = 0

    # Sending

    def send(self, command: bytes) -> None:
        """Send a command without an answer, together with others of this loop iteration."""
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(command)
        if len(out) >= COMMANDS_MAX:
            self._flush()

    def request(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a command and return a future for its answer.

        The future raises ``RemoteError`` for an error frame and ``ConnectionLostError`` if the
        connection ends first.

        Raises:
            ConnectionLostError: the connection has already ended; nothing was sent.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self.ask(command, answer, self._loop.time())
        return answer

    def ask(self, command: bytes, request: object, now: float) -> None:
        """Send a command; ``on_answers`` gets ``request`` and its answer; ``now`` is the loop time.

        Raises:
            ConnectionLostError: as for ``request``.
        """
        if not self.live:
            raise ConnectionLostError(self._reason(None), executed=False)
        self.waiting.append((now, len(command), request))
        self.waiting_bytes += len(command)
        self.send(command)
        if len(self._out) >= REQUESTS_MAX:
            self._flush()

    def drained(self) -> Awaitable[None]:
        """Return an awaitable that waits while the transport's write buffer is too full."""
        # Shielded, as in `ended`: several tasks wait for the same future.
        return DONE if self._resumed is None else asyncio.shield(self._resumed)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out:
            data = b"".join(out)
            self._write(data if self._wire.is_plain else self._wire.layers.seal((data,)))

    def _write(self, data: bytes) -> None:
        if data and not self._lost.done():
            self._written += len(data)
            self._transport.write(data)

    # Ending

    async def ended(self) -> ConnectionLostError:
        """Wait for the end of the connection and return the reason."""
        # Shielded: cancelling one waiting task must not cancel the future for the others.
        return await asyncio.shield(self._lost)

    async def close(self, seconds: float = 1.0) -> None:
        """Close once all output is written, or after ``seconds`` at the latest."""
        self._flush()
        self._write(self._wire.layers.close())
        # `close` ends the transport only when its buffer is written, which a peer that does not
        # read prevents; `abort` sets the limit.
        self._transport.close()
        await asyncio.wait([self._lost], timeout=seconds)
        self._transport.abort()

    def fail(self, error: Exception) -> None:
        """Close the connection now, with this reason."""
        self.live = False
        # The first reason counts: later ones are often its consequences.
        if self._fatal is None:
            self._fatal = error
        self._transport.abort()

    def _reason(self, error: Exception | None) -> str:
        why = self._fatal or error
        return f"connection to {self.address} lost: {why or 'closed by nsqd'}"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake; ``open_connection`` waits for its end."""
        # A cast without a check: uvloop's transports are not registered as asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._check_alive()
        self._write(self._wire.output())

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every pending request; after a fatal error, as certainly not executed."""
        self.live = False
        if self._alive_timer is not None:
            self._alive_timer.cancel()
        if exc is not None and self._fatal is None and self.waiting:
            self._read_rest()
        reason = self._reason(exc)
        self._lost.set_result(ConnectionLostError(reason))
        if not self.opened.done():
            known = isinstance(self._fatal, (SparqClientError, RemoteError))
            during = f" ({self._wire.stage})"
            self.opened.set_exception(
                self._fatal if known and self._fatal else ConnectionLostError(reason + during)
            )
            self.opened.exception()  # avoids a warning if the dialling task was cancelled
        executed = False if isinstance(self._fatal, RemoteError) else None
        waiting, self.waiting, self.waiting_bytes = self.waiting, deque(), 0
        self.on_answers([each for _, _, each in waiting], ConnectionLostError(reason, executed))
        # asyncio does not call `resume_writing` for a lost connection: tasks would wait forever.
        if self._resumed is not None:
            self.resume_writing()

    def _read_rest(self) -> None:
        """Read what nsqd sent before it reset the connection, if a write noticed the reset first.

        Go's nsqd resets the connection after a fatal error if it has received more commands.
        Without this read, the error and every OK before it would be lost, and the outcome of all
        pending requests would be unknown.
        """
        number = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            for _ in range(REST_READS_MAX):
                if not (data := os.read(number, TURN_BYTES)):
                    return
                self.data_received(data)

    def pause_writing(self) -> None:
        """Apply back-pressure: the peer reads more slowly than the client writes."""
        self._resumed = self._loop.create_future()
        self.is_full = True
        self._check_sending()

    def _check_sending(self, sent_before: int = -1, idle_checks: int = 0) -> None:
        """While writing is paused: give up a peer that reads nothing at all."""
        sent = self._written - self._transport.get_write_buffer_size()
        idle_checks = idle_checks + 1 if sent == sent_before else 0
        seconds = self._config.write_timeout
        if idle_checks == WRITE_CHECKS:
            self.fail(TimeoutError(f"nsqd has not read any data for {seconds:g} s"))
        else:
            self._sending_timer = self._loop.call_later(
                seconds / WRITE_CHECKS, self._check_sending, sent, idle_checks
            )

    def resume_writing(self) -> None:
        """End the back-pressure: the write buffer has drained."""
        if self._sending_timer is not None:
            self._sending_timer.cancel()
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None
        self.is_full = False

    def data_received(self, data: bytes) -> None:
        """Pass input to the handshake, to the layers, or directly to the frame decoder."""
        self.heard_at = self._loop.time()
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
            self._write(wire.output())  # the TLS alert for the peer
            self.fail(error)
            return
        self._write(wire.output())
        if wire.stage is Stage.READY:
            self.facts, self.authorization = wire.facts, wire.authorization
            if not self.opened.done():
                self.opened.set_result(None)
            self._take(b"")  # frames received together with the end of the handshake
            if wire.layers:
                self._make_plain()

    def _make_plain(self) -> None:
        """Decode the layers' input: up to ``TURN_BYTES`` now, the rest in the next iteration."""
        layers, transport = self._wire.layers, self._transport
        size = 0
        try:
            # Not `self.live`: `_read_rest` decodes after the end. Later, or after a fatal error,
            # nothing more is passed on.
            while not (size >= TURN_BYTES or self._fatal or self._lost.done()):
                if not (data := layers.read()):
                    break
                size += len(data)
                self._take(data)
        except LayerError as error:
            self.fail(WrongPeerError(str(error)))
        if not self.live or transport.is_closing():
            return
        self._write(layers.output())
        if layers.ended:
            self.fail(ConnectionResetError("closed by nsqd"))
        elif size < TURN_BYTES:
            transport.resume_reading()
        else:
            transport.pause_reading()
            self._loop.call_soon(self._make_plain)

    # Receiving

    def _take(self, data: bytes) -> None:
        """Decode frames; pass runs of messages to ``on_messages``, answers to their requests."""
        receiver = self._wire.receiver
        try:
            # A producer receives little but plain OKs: they are counted in one step, and the
            # decoder of frames runs only if there is anything else.
            receiver.feed(data)
            if count := receiver.take_oks():
                self._answered(OK, count)
            if not count or receiver.has_more:
                for found in receiver.runs():
                    if isinstance(found, MessageRun):
                        self.on_messages(found)
                        continue
                    kind, frame = found
                    if kind == FRAME_ERROR:
                        self._refused(remote_error(frame))
                    elif kind == FRAME_MESSAGE:
                        decode_message(frame)  # raises: one long enough would be part of a run
                    elif frame == HEARTBEAT:
                        self.send(commands.nop())
                    else:
                        self._answered(frame)
        except FrameError as error:
            limit = self._config.max_msg_size
            hint = f" (the option max_msg_size is {limit})" if limit else ""
            self.fail(WrongPeerError(f"{error}{hint}"))

    def _answered(self, answer: bytes | RemoteError, count: int = 1) -> None:
        """Pass an answer to each of the ``count`` oldest requests."""
        take = self.waiting.popleft
        taken = [take() for _ in range(min(count, len(self.waiting)))]
        if taken:
            self.waiting_bytes -= sum([size for _, size, _ in taken])
            self.on_answers([request for _, _, request in taken], answer)
        if len(taken) == count:
            return
        if isinstance(answer, RemoteError):
            log.warning("nsqd %s: %s", self.address, answer, extra={"nsqd": self.address})
        else:
            self.fail(WrongPeerError(f"unexpected answer without a request: {answer[:100]!r}"))

    def _refused(self, error: RemoteError) -> None:
        if error.code in UNREQUESTED:
            self.refused_responses += 1
            log.info("nsqd %s: %s", self.address, error, extra={"nsqd": self.address})
            return
        # Before the request fails: its caller may retry at once, and must not use this connection.
        if error.fatal and error.code not in STORAGE_REFUSALS:
            self.fail(error)
        # The connection closed in the middle of a command: nsqd did not execute any.
        if error.code in ("E_BAD_MESSAGE", "E_BAD_BODY") and "failed to read" in error.text:
            return
        self._answered(error)

    def _check_alive(self) -> None:
        """Close a silent connection, else check again at the next possible timeout."""
        # One timer for the connection: each read and each request only notes its time, which costs
        # less than a timer of its own. Without a pending request, none can be overdue before a full
        # `publish_timeout` from now.
        config, now = self._config, self._loop.time()
        silent_at = self.heard_at + config.read_timeout
        asked_at = self.waiting[0][0] if self.waiting else now
        overdue_at = asked_at + config.publish_timeout
        if now >= silent_at:
            self.fail(TimeoutError(f"no data received for {config.read_timeout:g} s"))
        elif now >= overdue_at:
            self.fail(TimeoutError(f"no answer within {config.publish_timeout:g} s"))
        else:
            self._alive_timer = self._loop.call_at(min(silent_at, overdue_at), self._check_alive)


async def open_connection(address: str, config: Config) -> Connection:
    """Connect to an nsqd, identify, and set up TLS, compression and AUTH.

    Raises:
        OSError: nsqd cannot be reached (``TimeoutError``: not in time).
        RemoteError: nsqd refuses an option in IDENTIFY, or the secret.
        TlsError, AuthRequiredError: see there.
        ConnectionLostError, WrongPeerError: the peer closed the connection, or is not an nsqd.
    """
    loop, place = asyncio.get_running_loop(), parse_nsqd(address)
    local = parse_local(config.local_addr) if config.local_addr else None

    make = partial(Connection, address, config)
    async with asyncio.timeout(config.dial_timeout):
        _, connection = await (
            loop.create_unix_connection(make, place.host)
            if place.is_path
            else loop.create_connection(make, place.host, place.port, local_addr=local)
        )
    seconds = HANDSHAKE_SECONDS + (AUTH_SECONDS if config.auth_secret else 0.0)
    try:
        async with asyncio.timeout(seconds):
            await connection.opened
    except BaseException as error:
        connection.fail(error if isinstance(error, Exception) else TimeoutError("cancelled"))
        raise
    return connection
