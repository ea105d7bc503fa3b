"""One client's connection: bytes in, commands to the broker, its output back to the socket.

The shell around `protocol.parser` and `broker.session`; it alone knows the transport. Rules:

1. A command is executed as soon as it is parsed; its replies leave with the end of the loop turn.
2. Reading pauses while this connection, or the whole nsqd, has too much that is not on disk yet
   (decision 20), and while a client that does not read has too many replies waiting.
3. A fatal error is the last thing that a client reads: the write side is closed behind it, what
   still arrives is dropped, and the socket goes after a moment. (Closing at once, with input
   unread, would make the kernel reset the connection and lose the error.)
4. Heartbeats go out every interval; a client that is silent for two of them is dropped without an
   error frame (reference: wire.md 1.4).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from sparq.daemon.address import peer_text
from sparq.protocol import frames
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import LineTooLong, Parser

if TYPE_CHECKING:
    from sparq.broker.session import Session
    from sparq.nsqd.server import Nsqd

MAGIC = b"  V2"
MAGIC_DEADLINE_SECONDS = 60.0
"""A connection that has not said which protocol it speaks by then is closed."""

WRITE_HIGH_WATER_BYTES = 1 << 20
"""Beyond this much unsent output a session gets no more messages (decision 13)."""

REPLIES_HIGH_WATER_BYTES = 4 << 20
"""Beyond this much unsent output the client's commands are no longer read."""

UNCOMMITTED_HIGH_WATER_BYTES = 8 << 20
"""One connection's publishes that are not on disk yet (decision 20)."""

LINGER_SECONDS = 1.0
"""How long a connection that got a fatal error may take to read it."""

NANOSECONDS = 1_000_000_000


class Connection(asyncio.Protocol):
    """A V2 client, from its four magic bytes to its end."""

    def __init__(self, server: Nsqd) -> None:
        self._server = server
        self._broker = server.broker
        self._parser = Parser(server.limits)
        self._transport: asyncio.Transport
        self._session: Session | None = None
        self._magic = b""
        self._reading = True
        self._ending = False
        self._at_eof = False
        self._last_command_ns = 0
        self._next_heartbeat_ns = 0
        self._blocked_since_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol: the connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the magic bytes, with a deadline."""
        # uvloop's transports are not registered as asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._server.connections.add(self)
        self._timer = self._server.loop.call_later(MAGIC_DEADLINE_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the broker; what is in flight waits for its timeout, as NSQ has it."""
        self._ending = True
        self._set_timer(None)
        self._server.forget(self)
        if self._session is not None:
            self._server.by_session.pop(self._session, None)
            self._broker.disconnect(self._session, self._server.runner.now())
            self._server.turn()

    def eof_received(self) -> bool:
        """A half-closed client still gets the answers that it is owed; then the connection ends."""
        if self._session is None or self._ending:
            return False
        self._at_eof = True
        return not self._session.is_drained()

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come; a turn of the broker follows."""
        if self._ending:
            return
        if self._session is None:
            data = self._take_magic(data)
            if self._session is None or not data:
                return
        self._parser.feed(data)
        self._execute()

    def pause_writing(self) -> None:
        """The client does not keep up: no more messages until it does."""
        self._blocked_since_ns = self._server.runner.now().mono_ns
        if self._session is not None:
            self._session.paused_writing = True

    def resume_writing(self) -> None:
        """Room again: the session may be handed messages, and its commands are read."""
        self._blocked_since_ns = 0
        if self._session is not None:
            self._session.paused_writing = False
            self._broker.writable(self._session)
            self.resume_reading()
            self._server.turn()

    # Commands

    def _take_magic(self, data: bytes) -> bytes:
        self._magic += data
        if len(self._magic) < len(MAGIC):
            return b""
        magic, rest = self._magic[: len(MAGIC)], self._magic[len(MAGIC) :]
        if magic != MAGIC:
            self._transport.write(frames.error(b"E_BAD_PROTOCOL"))
            self._end()
            return b""
        now = self._server.runner.now()
        peer = peer_text(self._transport.get_extra_info("peername"))
        self._session = self._broker.connect(peer, now)
        self._server.by_session[self._session] = self
        self._last_command_ns = now.mono_ns
        self._next_heartbeat_ns = now.mono_ns + self._interval_ns()
        self._arm()
        return rest

    def _execute(self) -> None:
        session, parser, broker = self._session, self._parser, self._broker
        assert session is not None
        now = self._server.runner.now()
        interval = session.heartbeat_interval_ms
        try:
            while not session.closing and (command := parser.next()) is not None:
                broker.execute(session, command, now)
                parser.state = session.parser_state
                parser.heartbeats = session.heartbeat_interval_ms > 0
                self._last_command_ns = now.mono_ns
        except RemoteError as error:
            broker.fail(session, error)
        except LineTooLong:
            self._transport.abort()
            return
        if session.heartbeat_interval_ms != interval:
            self._next_heartbeat_ns = now.mono_ns + max(0, self._interval_ns())
            self._arm()
        if self._must_wait():
            self._pause_reading()
        self._server.turn()

    def _must_wait(self) -> bool:
        session = self._session
        assert session is not None
        return (
            session.uncommitted_bytes > UNCOMMITTED_HIGH_WATER_BYTES
            or self._server.is_flooded()
            or self._transport.get_write_buffer_size() > REPLIES_HIGH_WATER_BYTES
        )

    def _pause_reading(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()
            self._server.waiting.add(self)

    def resume_reading(self) -> None:
        """Read on, unless one of the bounds still holds."""
        if self._reading or self._ending or self._transport.is_closing():
            return
        if not self._must_wait():
            self._reading = True
            self._server.waiting.discard(self)
            self._transport.resume_reading()

    # Output

    def flush(self) -> None:
        """Send what the broker has put out for this session, replies first."""
        session = self._session
        if session is None or self._transport.is_closing():
            return
        output = session.take_output()
        if output:
            self._transport.writelines(output)
        if not (session.closing or self._at_eof) or not session.is_drained():
            return
        if self._at_eof:
            self._transport.close()
        elif not self._ending:
            self._end()

    def _end(self) -> None:
        """Close behind the last words, without a reset (rule 3)."""
        self._ending = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._reading = True
        self._transport.resume_reading()
        self._set_timer(self._server.loop.call_later(LINGER_SECONDS, self._transport.abort))

    def close(self) -> None:
        """nsqd stops: the client sees a plain disconnect."""
        self._ending = True
        self._transport.close()

    # Heartbeats and deadlines

    def _interval_ns(self) -> int:
        assert self._session is not None
        return self._session.heartbeat_interval_ms * 1_000_000

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _arm(self) -> None:
        """Sleep until the next heartbeat or the moment when the client counts as gone."""
        interval = self._interval_ns()
        if interval <= 0:
            self._set_timer(None)
            return
        wake_ns = min(self._next_heartbeat_ns, self._last_command_ns + 2 * interval)
        delay = max(0.001, (wake_ns - self._server.runner.now().mono_ns) / NANOSECONDS)
        self._set_timer(self._server.loop.call_later(delay, self._on_timer))

    def _on_timer(self) -> None:
        interval = self._interval_ns()
        now_ns = self._server.runner.now().mono_ns
        silent = self._reading and now_ns - self._last_command_ns >= 2 * interval
        stuck = self._blocked_since_ns and now_ns - self._blocked_since_ns >= interval
        if silent or stuck:
            self._transport.abort()
            return
        if now_ns >= self._next_heartbeat_ns:
            self._transport.write(frames.HEARTBEAT)
            self._next_heartbeat_ns = now_ns + interval
        if not self._reading:
            # Its commands wait in the kernel because we asked it to: that is not silence.
            self._last_command_ns = now_ns
        self._arm()
