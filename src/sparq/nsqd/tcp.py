"""One client's connection: bytes in, commands to the broker, its output back to the socket.

The shell around `protocol.parser` and `broker.session`; it alone knows the transport. Rules:

1. A command is executed as soon as it is parsed; its replies leave with the end of the loop turn.
2. Reading pauses while this connection, or the whole nsqd, has too much that is not on disk yet
   (decision 20), while a client that does not read has too many replies waiting, and until the
   next turn when that has waited for too long: other clients come in between.
3. A fatal error is the last thing that a client reads: the write side is closed behind it, what
   still arrives is dropped, and the socket goes after a moment. (Closing at once, with input
   unread, would make the kernel reset the connection and lose the error.)
4. Heartbeats go out every interval; a client that is silent for two of them is dropped without an
   error frame (reference: wire.md 1.4).
5. An upgrade (TLS, compression) begins behind the reply that grants it. What arrived behind the
   IDENTIFY is the next layer's, never a command (reference: wire.md 1.6).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, cast

from sparq.daemon.address import HANDSHAKE_SECONDS, peer_text
from sparq.nsqd.layers import BrokenLayer, Layers, TlsLayer
from sparq.nsqd.pace import Pace
from sparq.nsqd.tls import facts_of
from sparq.protocol import frames
from sparq.protocol.compression import Deflate, Snappy
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import LineTooLong, Parser

if TYPE_CHECKING:
    from sparq.broker.session import Buffer, Session
    from sparq.nsqd.auth import Admission
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.identify import Granted

MAGIC = b"  V2"
MAGIC_DEADLINE_SECONDS = 60.0
"""A connection that has not said which protocol it speaks by then is closed."""

WRITE_HIGH_WATER_BYTES = 1 << 20
"""Beyond this much unsent output a session gets no more messages (decision 13)."""

REPLIES_HIGH_WATER_BYTES = 4 << 20
"""Beyond this much unsent output the client's commands are no longer read."""

UNCOMMITTED_HIGH_WATER_BYTES = 8 << 20
"""One connection's publishes that are not on disk yet (decision 20)."""

COMMANDS_PER_TURN = 500
"""So many commands (a run of PUBs or FINs counts as one) a connection has executed in one go; the
others come in between, or a chunk of NOPs would keep them waiting for half a second."""

PIECES_MAX = 256
"""More than these are joined before they are written: each costs a transport more than its bytes,
where a client asks much and reads nothing."""

LAYERS_NANOSECONDS_PER_TURN = 10_000_000
"""So long are a connection's layers read in one turn; the others come in between (decision 27)."""

LINGER_SECONDS = 1.0
"""How long a connection that got a fatal error may take to read it."""

NANOSECONDS = 1_000_000_000
STALL_NS = NANOSECONDS
"""A timer that comes so late says that the process stood still: stopped, or without a CPU."""

logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """A V2 client, from its four magic bytes to its end."""

    def __init__(self, server: Nsqd) -> None:
        self._server = server
        self._broker = server.broker
        self._parser = Parser(server.limits)
        self._parser.needs_tls = server.options.tls_required != "false"
        self._layers: Layers | None = None
        self._shaking_hands = False
        self._transport: asyncio.Transport
        self._session: Session | None = None
        self._admission: Admission | None = None
        self._pace: Pace | None = None
        self._magic = b""
        self._reading = True
        self._has_more = False
        self._ending = False
        self._at_eof = False
        self._last_command_ns = 0
        self._next_heartbeat_ns = 0
        self._blocked_since_ns = self._wake_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol: the connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the magic bytes, with a deadline."""
        # uvloop's transports are not registered as asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        if not self._server.admit(self):
            self._ending = True
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._timer = self._server.loop.call_later(MAGIC_DEADLINE_SECONDS, transport.abort)
        options = self._server.options
        if options.first_command_timeout_ns or options.min_receive_rate:
            self._pace = Pace(
                self._server.loop,
                first_seconds=options.first_command_timeout_ns / NANOSECONDS,
                rate=options.min_receive_rate,
                is_unfinished=lambda: self._parser.is_unfinished,
                is_reading=lambda: self._reading,
                give_up=transport.abort,
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the broker; what is in flight waits for its timeout, as NSQ has it."""
        self._ending = True
        self._set_timer(None)
        if self._pace is not None:
            self._pace.stop()
        self._server.forget(self)
        if self._admission is not None:
            self._admission.close()
        if self._session is not None:
            self._server.by_session.pop(self._session, None)
            self._broker.disconnect(self._session, self._server.runner.now())
            self._server.turn()

    def eof_received(self) -> bool:
        """A half-closed client still gets the answers that it is owed; then the connection ends."""
        session = self._session
        if session is None or self._ending or session.upgrade is not None:
            return False
        self._at_eof = True
        try:
            self._parser.eof()
        except RemoteError as error:
            self._broker.fail(session, error)
            self._server.turn()
        return not session.is_drained()

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come; a turn of the broker follows."""
        if self._ending:
            return
        self._take(data)
        if self._pace is not None:
            self._pace.note(len(data))

    def _take(self, data: bytes) -> None:
        if self._layers is not None:
            self._layers.feed(data)
            self._pump(self._layers)
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
        if self._server.authenticator is not None:
            self._admission = self._server.authenticator.admission(
                self._server, self._session, self._carry_on
            )
        self._last_command_ns = now.mono_ns
        self._next_heartbeat_ns = now.mono_ns + self._interval_ns()
        self._arm()
        return rest

    def _execute(self) -> None:
        session, parser, broker = self._session, self._parser, self._broker
        assert session is not None
        now = self._server.runner.now()
        admission, interval = self._admission, session.heartbeat_interval_ms
        try:
            for _ in range(COMMANDS_PER_TURN):
                if session.closing or (admission is not None and admission.is_waiting):
                    break
                command = parser.next()
                if command is None or (admission is not None and admission.takes(command, now)):
                    break
                broker.execute(session, command, now)
                parser.state = session.parser_state
                parser.heartbeats = session.heartbeat_interval_ms > 0
                self._last_command_ns = now.mono_ns
                if session.upgrade is not None:
                    self._hold_upgrade()
                    break
            else:
                self._has_more = True
        except RemoteError as error:
            broker.fail(session, error)
        except LineTooLong:
            self._ending = True
            self._transport.abort()
            return
        if self._pace is not None and (self._last_command_ns == now.mono_ns or self._is_asking()):
            self._pace.moved()
        if session.heartbeat_interval_ms != interval:
            self._next_heartbeat_ns = now.mono_ns + max(0, self._interval_ns())
            self._arm()
        if self._must_wait() or self._server.is_late(now.mono_ns):
            self._pause_reading()
        self._server.turn()

    def _is_asking(self) -> bool:
        """Whether a command waits for an authd, and all that follow wait behind it."""
        return self._admission is not None and self._admission.is_waiting

    def _carry_on(self) -> None:
        """The command that waited for an authd is done; those behind it are next."""
        assert self._session is not None
        self._parser.state = self._session.parser_state
        self._last_command_ns = self._server.runner.now().mono_ns
        self._execute()
        self.resume_reading()

    def _must_wait(self) -> bool:
        session = self._session
        assert session is not None
        return (
            (session.upgrade is not None and not self._shaking_hands)
            or self._is_asking()
            or self._has_more
            or session.uncommitted_bytes > UNCOMMITTED_HIGH_WATER_BYTES
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
        if self._has_more:
            self._has_more = False
            self._execute()
        if (
            self._ending
            or self._must_wait()
            or (self._layers is not None and not self._pump(self._layers))
        ):
            return
        self._reading = True
        self._server.waiting.discard(self)
        self._transport.resume_reading()

    # Layers

    def _hold_upgrade(self) -> None:
        """No command is read until the upgrade is done; the next layer has what arrived already."""
        if self._layers is None:
            self._layers = Layers()
        self._layers.hold(self._parser.take_rest())

    def _begin_upgrade(self, granted: Granted) -> None:
        """The reply has left: what follows is TLS, or compressed."""
        tls, layers = self._server.tls, self._layers
        assert layers is not None
        if granted.tls_v1:
            assert tls is not None
            self._shaking_hands = True
            self._set_timer(self._server.loop.call_later(HANDSHAKE_SECONDS, self._transport.abort))
            layers.add_tls(TlsLayer(tls.context))
        else:
            self._finish_upgrade(layers, granted)
        self.resume_reading()

    def _shake_hands(self, layers: Layers) -> None:
        session, tls = self._session, layers.tls
        assert session is not None
        assert session.upgrade is not None
        assert tls is not None
        is_done = tls.shake_hands()
        self._transport.write(tls.outgoing())
        if is_done:
            self._shaking_hands = False
            self._parser.needs_tls = False
            session.tls = facts_of(tls.connection)
            self._write(frames.OK)
            self._finish_upgrade(layers, session.upgrade)

    def _finish_upgrade(self, layers: Layers, granted: Granted) -> None:
        session = self._session
        assert session is not None
        if granted.deflate or granted.snappy:
            layers.add_compression(Deflate(granted.deflate_level) if granted.deflate else Snappy())
            session.deflate, session.snappy = granted.deflate, granted.snappy
            self._write(frames.OK)
        session.upgrade = None
        now_ns = self._server.runner.now().mono_ns
        self._last_command_ns = now_ns
        self._next_heartbeat_ns = now_ns + max(0, self._interval_ns())
        self._arm()

    def _pump(self, layers: Layers) -> bool:
        """Execute what the layers hold, so much a turn; True when they hold nothing more."""
        session = self._session
        assert session is not None
        until_ns = time.monotonic_ns() + LAYERS_NANOSECONDS_PER_TURN
        try:
            if self._shaking_hands:
                self._shake_hands(layers)
            while not (self._ending or session.closing or self._must_wait()):
                data = b"" if self._shaking_hands else layers.read()
                if outgoing := layers.outgoing():
                    self._transport.write(outgoing)
                if not data:
                    self._note_end(layers)
                    return True
                self._parser.feed(data)
                self._execute()
                if time.monotonic_ns() >= until_ns:
                    self._server.turn()
                    break
        except BrokenLayer as error:
            self._break_off(layers, error)
            return False
        self._pause_reading()
        return False

    def _note_end(self, layers: Layers) -> None:
        if layers.ended and not self._at_eof and not self.eof_received():
            self.close()

    def _break_off(self, layers: Layers, error: BrokenLayer) -> None:
        """Nothing that follows could be understood: the layer's last words, then the end."""
        assert self._session is not None
        logger.info("PROTOCOL(V2): [%s] %s", self._session.remote_address, error)
        self._transport.write(layers.outgoing())
        self._end()

    # Output

    def flush(self) -> None:
        """Send what the broker has put out for this session, replies first."""
        session = self._session
        if session is None or self._ending or self._transport.is_closing():
            return
        output = session.take_output()
        if output:
            if self._layers is not None:
                self._write_sealed(self._layers, output)
            elif len(output) > PIECES_MAX:
                self._transport.write(b"".join(output))
            else:
                self._transport.writelines(output)
        if session.upgrade is not None and not session.closing:
            if session.is_drained() and not self._shaking_hands:
                self._begin_upgrade(session.upgrade)
            return
        if not (session.closing or self._at_eof) or not session.is_drained():
            return
        if self._at_eof:
            self.close()
        elif not self._ending:
            self._end()

    def _write(self, data: bytes) -> None:
        """Send something that takes no turn among the replies."""
        if self._layers is None:
            self._transport.write(data)
        else:
            self._write_sealed(self._layers, [data])

    def _write_sealed(self, layers: Layers, output: list[Buffer]) -> None:
        try:
            self._transport.write(layers.seal(output))
        except BrokenLayer:
            self._ending = True
            self._transport.abort()

    def _end(self) -> None:
        """Close behind the last words, without a reset (rule 3)."""
        self._ending = True
        if self._layers is not None:
            self._transport.write(self._layers.close())
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._reading = True
        self._transport.resume_reading()
        self._set_timer(self._server.loop.call_later(LINGER_SECONDS, self._transport.abort))

    def abort(self) -> None:
        """Nsqd stops, and the client does not read: what it was to be sent is dropped."""
        self._ending = True
        self._transport.abort()

    def close(self) -> None:
        """All is said, or nsqd stops: the client sees a plain disconnect."""
        self._ending = True
        if self._layers is not None and not self._transport.is_closing():
            self._transport.write(self._layers.close())
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
        self._wake_ns = wake_ns
        delay = max(0.001, (wake_ns - self._server.runner.now().mono_ns) / NANOSECONDS)
        self._set_timer(self._server.loop.call_later(delay, self._on_timer))

    def _on_timer(self) -> None:
        interval = self._interval_ns()
        now_ns = self._server.runner.now().mono_ns
        if now_ns - self._wake_ns > STALL_NS:
            # nsqd stood still: what the client has said and taken meanwhile is not known yet.
            self._last_command_ns = max(self._last_command_ns, now_ns - interval)
            self._blocked_since_ns = self._blocked_since_ns and now_ns
        silent = self._reading and now_ns - self._last_command_ns >= 2 * interval
        stuck = self._blocked_since_ns and now_ns - self._blocked_since_ns >= interval
        if silent or stuck:
            self._transport.abort()
            return
        if now_ns >= self._next_heartbeat_ns:
            self._write(frames.HEARTBEAT)
            self._next_heartbeat_ns = now_ns + interval
        if not self._reading:
            # Its commands wait in the kernel because we asked it to: that is not silence.
            self._last_command_ns = now_ns
        self._arm()
