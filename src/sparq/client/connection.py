"""One connection to an nsqd: dial, identify, then commands out and answers in.

1. Everything that is written in one turn of the loop leaves as one write.
2. nsqd answers in order, so the answers to requests are matched first in, first out. A request
   whose awaiting task was cancelled keeps its place: its answer finds nobody and disturbs no one.
3. Behind a fatal error nsqd executes nothing: requests behind it were certainly not executed.
   Refusals of FIN, REQ and TOUCH answer no request, they are counted.
4. ``ended`` returns once the connection is gone; by then every request is answered. A connection
   that is silent for ``read_timeout`` (heartbeats should have come) or leaves a request
   unanswered for ``publish_timeout`` is given up.
5. Nothing follows IDENTIFY before its answer is there (nsqd may drop such bytes).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, cast

from sparq.client.address import parse_address
from sparq.client.config import Config
from sparq.client.errors import ConnectionLostError, WrongPeerError
from sparq.protocol import commands
from sparq.protocol.errors import ERRORS, RemoteError
from sparq.protocol.frames import FRAME_ERROR, FRAME_MESSAGE
from sparq.protocol.receiver import FrameError, Receiver

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
"""For the answer to IDENTIFY, as in nsqjs."""

FRAME_BYTES_MAX: Final = 2**31 - 1

HEARTBEAT: Final = b"_heartbeat_"
UNREQUESTED: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
STORAGE_REFUSALS: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
"""Fatal from Go's nsqd, not from sparq's: whether the connection ends shows when it does."""


class _Done:
    """An awaitable that has nothing to wait for; one object serves all."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE: Final = _Done()


def remote_error(text: bytes) -> RemoteError:
    """The error that an error frame tells; a code that is not known counts as fatal."""
    code, _, rest = text.decode("utf-8", "replace").partition(" ")
    kind = ERRORS.get(code)
    return RemoteError(code, rest, fatal=kind is None or kind.fatal)


class Connection(asyncio.Protocol):
    """An identified connection. Make one with ``open_connection``.

    Attributes:
        address: the nsqd's ``host:port``.
        facts: its answer to IDENTIFY; ``{}`` from one that does not negotiate.
        pending_bytes: the size of what was requested and is not answered.
        refused_responses: FIN, REQ and TOUCH that nsqd refused.
        on_messages: called with the data of all message frames of one read.
        on_room: called after ``pending_bytes`` has fallen.
    """

    def __init__(self, address: str, config: Config) -> None:
        self.address = address
        self.facts: dict[str, Any] = {}
        self.pending_bytes = 0
        self.refused_responses = 0
        self.on_messages: Callable[[list[bytes]], None] = lambda messages: None
        self.on_room: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[ConnectionLostError] = self._loop.create_future()
        self._config = config
        self._receiver = Receiver(config.max_msg_size or FRAME_BYTES_MAX)
        self._out: list[bytes] = []
        self._pending: deque[tuple[asyncio.Future[bytes], int, float]] = deque()
        self._resumed: asyncio.Future[None] | None = None
        self._heard_at = self._loop.time()
        self._fatal: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None

    # Sending

    @property
    def live(self) -> bool:
        """Whether commands can be sent."""
        return not self._lost.done() and self._fatal is None

    def send(self, command: bytes) -> None:
        """Send a command that has no answer, with whatever else this turn of the loop sends."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(command)

    def request(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a command that has an answer; the future is the answer.

        It raises ``RemoteError`` for an error frame and ``ConnectionLostError`` when the
        connection ends first.

        Raises:
            ConnectionLostError: it has ended already; nothing was sent.
        """
        if not self.live:
            raise ConnectionLostError(self._reason(None), executed=False)
        size = len(command)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._pending.append((answer, size, self._loop.time()))
        self.pending_bytes += size
        self.send(command)
        return answer

    def drained(self) -> Awaitable[None]:
        """Done at once, or when the peer has read so much that sending makes sense again."""
        return DONE if self._resumed is None else asyncio.shield(self._resumed)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._lost.done():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # Ending

    async def ended(self) -> ConnectionLostError:
        """Wait for the end of the connection: the reason."""
        # Shielded: a waiting task that is cancelled must not cancel the future for the others.
        return await asyncio.shield(self._lost)

    async def close(self, seconds: float = 1.0) -> None:
        """End the connection once what was sent is written, or after so many seconds anyway."""
        if self._out:
            self._flush()
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait([self._lost], timeout=seconds)
            self._transport.abort()

    def fail(self, error: Exception) -> None:
        """End the connection now, for this reason."""
        if self._fatal is None:
            self._fatal = error
        if self._transport is not None:
            self._transport.abort()

    def _reason(self, error: Exception | None) -> str:
        why = self._fatal or error
        return f"connection to {self.address} lost: {why or 'closed by the peer'}"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there; IDENTIFY follows by ``open_connection``."""
        # uvloop's transports are not registered as asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._check_alive()

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer every request that is left: behind a fatal error, as not executed."""
        if self._watch is not None:
            self._watch.cancel()
        not_executed = isinstance(self._fatal, RemoteError)
        reason = self._reason(exc)
        self._lost.set_result(ConnectionLostError(reason))
        pending, self._pending = self._pending, deque()
        self.pending_bytes = 0
        for answer, _, _ in pending:
            if not answer.done():
                executed = False if not_executed else None
                answer.set_exception(ConnectionLostError(reason, executed))
        if self._resumed is not None:
            self.resume_writing()
        self.on_room()

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write."""
        self._resumed = self._loop.create_future()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    def data_received(self, data: bytes) -> None:
        """Frames: messages are handed on together, answers go to their requests."""
        self._heard_at = self._loop.time()
        messages: list[bytes] = []
        answered = self.pending_bytes
        try:
            self._receiver.feed(data)
            for kind, payload in self._receiver.frames():
                if kind == FRAME_MESSAGE:
                    messages.append(payload)
                else:
                    self._answered(kind, payload)
            if messages:
                self.on_messages(messages)
        except FrameError as error:
            self.fail(WrongPeerError(str(error)))
        if self.pending_bytes < answered:
            self.on_room()

    # Receiving

    def _answered(self, kind: int, data: bytes) -> None:
        if kind == FRAME_ERROR:
            self._refused(remote_error(data))
        elif data == HEARTBEAT:
            self.send(commands.nop())
        elif (answer := self._next_request()) is None:
            log.warning("nsqd %s: an answer to no request: %.100r", self.address, data)
        elif not answer.done():
            answer.set_result(data)

    def _refused(self, error: RemoteError) -> None:
        if error.code in UNREQUESTED:
            self.refused_responses += 1
            log.info("nsqd %s: %s", self.address, error)
            return
        if (answer := self._next_request()) is None:
            log.warning("nsqd %s: %s", self.address, error)
        elif not answer.done():
            answer.set_exception(error)
        if error.fatal and error.code not in STORAGE_REFUSALS:
            self.fail(error)

    def _next_request(self) -> asyncio.Future[bytes] | None:
        if not self._pending:
            return None
        answer, size, _ = self._pending.popleft()
        self.pending_bytes -= size
        return answer

    def _check_alive(self) -> None:
        """Give up a silent connection; look again when it could next have been silent too long."""
        config, now = self._config, self._loop.time()
        silent_at = self._heard_at + config.read_timeout
        overdue_at = now + config.publish_timeout
        if self._pending:
            overdue_at = self._pending[0][2] + config.publish_timeout
        if now >= silent_at:
            self.fail(TimeoutError(f"nothing heard for {config.read_timeout:g} s"))
        elif now >= overdue_at:
            self.fail(TimeoutError(f"no answer within {config.publish_timeout:g} s"))
        else:
            self._watch = self._loop.call_at(min(silent_at, overdue_at), self._check_alive)


async def open_connection(address: str, config: Config) -> Connection:
    """Dial an nsqd and identify.

    Raises:
        OSError: it cannot be reached (``TimeoutError``: not in time).
        RemoteError: it refuses what IDENTIFY asks for.
        ConnectionLostError, WrongPeerError: it closes, or is no nsqd.
    """
    loop = asyncio.get_running_loop()
    host, port = parse_address(address)
    async with asyncio.timeout(config.dial_timeout):
        _, connection = await loop.create_connection(
            lambda: Connection(address, config), host, port
        )
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            body = json.dumps(config.identify()).encode()
            answer = await connection.request(commands.MAGIC_V2 + commands.identify(body))
        connection.facts = _facts(answer)
    except BaseException as error:
        connection.fail(error if isinstance(error, Exception) else TimeoutError("given up"))
        raise
    return connection


def _facts(answer: bytes) -> dict[str, Any]:
    """What IDENTIFY was answered with: a JSON object, or OK from one that does not negotiate."""
    if not answer.startswith(b"{"):
        return {}
    try:
        facts = json.loads(answer)
    except ValueError as error:
        raise WrongPeerError(f"an answer to IDENTIFY that is no JSON: {error}") from error
    return dict(facts)
