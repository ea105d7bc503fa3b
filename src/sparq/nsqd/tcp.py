"""One V2 client's connection: bytes in, commands to the broker, output back to the socket.

It wraps `wire.server` and `broker.session`; only this module uses the transport. Rules:

1. A command is executed as soon as it is parsed; its replies leave with the end of the loop turn.
2. Reading pauses while this connection, or the whole nsqd, has too many bytes not yet on disk, and
   while too many replies wait for a client that does not read. It also pauses until the next turn
   if that turn is overdue, so that other clients are served in between.
3. A fatal error is the last thing that a client reads: the write side is closed after it, later
   input is dropped, and the socket is closed after `LINGER_SECONDS`. (Closing at once, with input
   unread, would make the kernel reset the connection and lose the error.)
4. Heartbeats go out every interval; a client that is silent for two of them is dropped without an
   error frame (docs/protocol.md, "Deadlines and heartbeats").

The states of a connection and their transitions are a table in `wire.server`; how its input is read
is `Input`, which only `_pause_reading` and `resume_reading` change.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from typing import TYPE_CHECKING, cast

from sparq.daemon.address import HANDSHAKE_SECONDS, peer_text
from sparq.nsqd.slow_client_limit import SlowClientLimit
from sparq.nsqd.tls import facts_of
from sparq.nsqd.turns import BACKLOG_BYTES_MAX, STALL_NS, instant
from sparq.options.units import SECOND
from sparq.protocol import layout
from sparq.protocol.commands import STATE_INIT
from sparq.protocol.compression import LayerError
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import LineTooLong
from sparq.wire.server import ConnectionState, ServerConnection, WrongMagicError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparq.broker.session import V2Session
    from sparq.nsqd.auth import Admission
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.compression import Buffer

MAGIC_DEADLINE_SECONDS = 60.0
"""A connection that has not sent its four magic bytes by then is closed."""

WRITE_HIGH_WATER_BYTES = 1 << 20
"""With more unsent output than this, a session gets no more messages, whatever its RDY."""

LAYERED_BYTES = 128 << 10
"""Both limits on output with TLS or compression. Plain output is a slice of the cached log, and an
encrypted or compressed copy is each connection's own."""

REPLIES_HIGH_WATER_BYTES = 4 << 20
"""With more unsent output than this, the client's commands are no longer read."""

UNCOMMITTED_HIGH_WATER_BYTES = 8 << 20
"""Limit on one connection's publishes not yet on disk."""

COMMANDS_PER_TURN = 500
"""Maximum commands that one connection executes without a break; a run of PUBs or FINs counts as
one. Without this limit, a chunk of NOPs would delay the other connections by half a second."""

PIECES_MAX = 256
"""More pieces than this are joined before the write. If a client sends many commands and reads
nothing, each piece costs the transport more than its bytes."""

LAYERS_NANOSECONDS_PER_TURN = 10_000_000
"""Limit on reading one connection's layers per turn; others are served between."""

LINGER_SECONDS = 1.0
"""How long a client may take to read a fatal error before its socket is closed."""

logger = logging.getLogger(__name__)


class Input(enum.Enum):
    """How a connection's input is read."""

    READING = enum.auto()
    """The transport passes it on as it arrives."""
    PAUSED = enum.auto()
    """A limit is exceeded (rule 2): it stays in the kernel."""
    UNEXECUTED = enum.auto()
    """Paused, and the parser holds commands beyond `COMMANDS_PER_TURN`."""


class TcpConnection(asyncio.Protocol):
    """A V2 client's connection, from its four magic bytes to its end."""

    # Set in ``connection_made``, and after the magic bytes.
    _transport: asyncio.Transport
    _session: V2Session

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._turns = nsqd.turns
        self._broker = broker = nsqd.broker
        needs_tls = nsqd.options.tls.required != "false"
        self._wire = ServerConnection(broker.limits, needs_tls=needs_tls)
        self._parser = self._wire.parser
        self._admission: Admission | None = None
        self._slow_client_limit: SlowClientLimit | None = None
        self._input = Input.READING
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
        if not self._nsqd.admit(self):
            self.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._set_timer(MAGIC_DEADLINE_SECONDS, transport.abort)
        options = self._nsqd.options
        if options.tcp.first_command_timeout_ns or options.tcp.min_receive_rate:
            self._slow_client_limit = SlowClientLimit(
                self._turns.loop,
                first_seconds=options.tcp.first_command_timeout_ns / SECOND,
                rate=options.tcp.min_receive_rate,
                is_unfinished=lambda: self._parser.is_unfinished,
                is_reading=lambda: self._input is Input.READING,
                give_up=transport.abort,
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect from the broker; messages in flight wait for their timeout, as in NSQ."""
        self._wire.go(ConnectionState.ENDED)
        self._set_timer()
        if self._slow_client_limit is not None:
            self._slow_client_limit.stop()
        self._nsqd.connections.discard(self)
        self._turns.waiting.discard(self)
        if self._admission is not None:
            self._admission.close()
        if self._wire.is_v2:
            self._log("TCP: client(%s) disconnected")
            self._turns.by_session.pop(self._session, None)
            self._broker.disconnect(self._session, instant())
            self._turns.schedule()

    def eof_received(self) -> bool:
        """Send a half-closed client its outstanding replies, then end the connection."""
        if self._wire.state not in (ConnectionState.OPEN, ConnectionState.HALF_CLOSED):
            return False
        self._wire.go(ConnectionState.HALF_CLOSED)
        try:
            self._parser.eof()
        except RemoteError as error:
            self._broker.fail(self._session, error)
            self._turns.schedule()
        # True keeps the transport open for the replies; `flush` closes it after the last one.
        return not self._session.is_drained()

    def data_received(self, data: bytes) -> None:
        """Process bytes as they arrive; a turn of the broker follows."""
        if self._wire.is_plain:
            self._parser.feed(data)
            self._execute()
        elif self._wire.state is ConnectionState.ENDED:
            return
        elif self._wire.state is not ConnectionState.MAGIC:
            self._wire.feed(data)
            self._pump()
        else:
            self._begin(data)
        if self._slow_client_limit is not None:
            self._slow_client_limit.note(len(data))

    def pause_writing(self) -> None:
        """Stop sending messages: the client does not keep up."""
        self._blocked_since_ns = instant().mono_ns
        if self._wire.is_v2:
            self._session.paused_writing = True

    def resume_writing(self) -> None:
        """Send messages and read commands again: the write buffer has room."""
        self._blocked_since_ns = 0
        if self._wire.is_v2:
            self._session.paused_writing = False
            self._broker.writable(self._session)
            self.resume_reading()
            self._turns.schedule()

    # Commands

    def _begin(self, data: bytes) -> None:
        """Read the magic bytes, and create the broker's session."""
        try:
            self._wire.feed(data)
        except WrongMagicError:
            self._transport.write(layout.error(b"E_BAD_PROTOCOL"))
            self._end()
            return
        if not self._wire.is_v2:
            return
        now = instant()
        peer = peer_text(self._transport.get_extra_info("peername"))
        self._session = self._broker.connect(peer, now)
        self._log("TCP: new client(%s)")
        self._turns.by_session[self._session] = self
        if (authenticator := self._nsqd.authenticator) is not None:
            self._admission = authenticator.admission(self._turns, self._session, self._carry_on)
        self._keep_time(now.mono_ns)
        if rest := self._wire.take_held():
            self._parser.feed(rest)
            self._execute()

    def _execute(self) -> None:
        session, parser, broker = self._session, self._parser, self._broker
        now = instant()
        admission, interval, state = self._admission, session.heartbeat_interval_ms, session.state
        has_left = False
        try:
            for _ in range(COMMANDS_PER_TURN):
                if session.closing or parser.is_waiting:
                    break
                if admission is not None and admission.is_waiting:
                    break
                command = parser.next()
                if command is None or (admission is not None and admission.takes(command, now)):
                    break
                broker.execute(session, command, now)
                parser.state = session.state
                parser.heartbeats = session.heartbeat_interval_ms > 0
                self._last_command_ns = now.mono_ns
                if session.upgrade is not None:
                    # The bytes that follow belong to TLS or compression: they are not commands.
                    self._wire.note_granted(session.upgrade)
                    break
            else:
                has_left = True
        except RemoteError as error:
            broker.fail(session, error)
        # As in NSQ, a line that is too long ends the connection without an error frame.
        except LineTooLong:
            self.abort()
            return
        if state != session.state and state == STATE_INIT:
            text = "PROTOCOL(V2): [%s] SUB %s %s (client_id %s, user_agent %s)"
            names = broker.names_subscribed(session)
            self._log(text, *names, session.client_id, session.user_agent)
        if self._slow_client_limit is not None and (
            self._last_command_ns == now.mono_ns or (admission is not None and admission.is_waiting)
        ):
            self._slow_client_limit.moved()
        if session.heartbeat_interval_ms != interval:
            self._next_heartbeat_ns = now.mono_ns + self._interval_ns()
            self._arm()
        if has_left or self._must_wait() or now.mono_ns > self._turns.late_ns:
            self._pause_reading(Input.UNEXECUTED if has_left else Input.PAUSED)
        self._turns.schedule()

    def _log(self, text: str, *named: str) -> None:
        """Log an event of the connection at level info; the client's address comes first."""
        address = self._session.remote_address
        facts = {"client": address, **dict(zip(("topic", "channel"), named, strict=False))}
        logger.info(text, address, *named, extra=facts)

    def _carry_on(self) -> None:
        """Continue with the next commands: the one that waited for an authd is done."""
        self._parser.state = self._session.state
        self._last_command_ns = instant().mono_ns
        self._execute()
        self.resume_reading()

    def _must_wait(self) -> bool:
        """Whether no more commands may be read now (rule 2)."""
        return (
            self._wire.state is ConnectionState.UPGRADING
            or self._input is Input.UNEXECUTED
            or self._session.uncommitted_bytes > UNCOMMITTED_HIGH_WATER_BYTES
            or self._broker.turn.backlog_bytes > BACKLOG_BYTES_MAX
            or (self._admission is not None and self._admission.is_waiting)
            or self._transport.get_write_buffer_size() > REPLIES_HIGH_WATER_BYTES
        )

    def _pause_reading(self, paused: Input = Input.PAUSED) -> None:
        if self._transport.is_closing():
            return
        if self._input is Input.READING:
            self._transport.pause_reading()
            self._turns.waiting.add(self)
            self._input = paused
        elif paused is Input.UNEXECUTED:
            self._input = paused

    def resume_reading(self) -> None:
        """Resume reading, unless one of the limits is still exceeded."""
        if self._input is Input.READING or self._has_ended():
            return
        # No `data_received` will come for commands that the parser already holds.
        if self._input is Input.UNEXECUTED:
            self._input = Input.PAUSED
            self._execute()
        if self._has_ended() or self._must_wait() or (self._wire.has_layers and not self._pump()):
            return
        self._input = Input.READING
        self._turns.waiting.discard(self)
        self._transport.resume_reading()

    def _has_ended(self) -> bool:
        return self._wire.state is ConnectionState.ENDED or self._transport.is_closing()

    # Layers

    def _begin_upgrade(self) -> None:
        """Start TLS or compression: the reply that grants it has been sent."""
        tls = self._nsqd.tls
        if self._wire.granted.tls_v1 and tls is not None:
            # It replaces the timer of heartbeats, which must not come in the middle of a handshake.
            self._set_timer(HANDSHAKE_SECONDS, self._transport.abort)
            self._wire.start_tls(tls.context)
        else:
            self._finish_upgrade()
        self.resume_reading()

    def _finish_upgrade(self) -> None:
        session, granted = self._session, self._wire.granted
        if self._wire.finish_upgrade():
            session.deflate, session.snappy = granted.deflate, granted.snappy
            self._write(layout.OK)
        session.upgrade = None
        session.limit_output(LAYERED_BYTES)
        self._transport.set_write_buffer_limits(high=LAYERED_BYTES)
        # The time of the handshake does not count as the client's silence.
        self._keep_time(instant().mono_ns)

    def _pump(self) -> bool:
        """Execute input held by the layers, for a limited time per turn; True: nothing is left."""
        wire = self._wire
        until_ns = time.monotonic_ns() + LAYERS_NANOSECONDS_PER_TURN
        try:
            if wire.state is ConnectionState.HANDSHAKE:
                connection = wire.shake_hands()
                self._transport.write(wire.layers.output())
                if connection is not None:
                    self._session.tls = facts_of(connection)
                    self._write(layout.OK)
                    self._finish_upgrade()
            while not (self._has_ended() or self._session.closing or self._must_wait()):
                data = b"" if wire.state is ConnectionState.HANDSHAKE else wire.layers.read()
                if outgoing := wire.layers.output():
                    self._transport.write(outgoing)
                if not data:
                    is_open = wire.state is not ConnectionState.HALF_CLOSED
                    if wire.layers.ended and is_open and not self.eof_received():
                        self.close()
                    return True
                self._parser.feed(data)
                self._execute()
                if time.monotonic_ns() >= until_ns:
                    self._turns.schedule()
                    break
        except LayerError as error:
            # The layer's final bytes; later input could not be decoded.
            logger.info("PROTOCOL(V2): [%s] %s", self._session.remote_address, error)
            self._transport.write(self._wire.layers.output())
            self._end()
            return False
        self._pause_reading()
        return False

    # Output

    def flush(self) -> None:
        """Send the session's pending output, replies first."""
        wire, session = self._wire, self._session
        if wire.state is ConnectionState.ENDED or self._transport.is_closing():
            return
        output = self._broker.take_output(session)
        if output:
            if wire.has_layers:
                self._write(*output)
            elif len(output) > PIECES_MAX:
                self._transport.write(b"".join(output))
            else:
                # Also for a single piece: `write` was tried, without a gain.
                self._transport.writelines(output)
        if (wire.state is ConnectionState.OPEN and not session.closing) or not session.is_drained():
            return
        if wire.state is ConnectionState.HALF_CLOSED:
            self.close()
        elif session.closing:
            self._end()
        elif wire.state is ConnectionState.UPGRADING:
            self._begin_upgrade()

    def _write(self, *output: Buffer) -> None:
        """Send output through the layers, or bytes that are not in the queue of replies."""
        try:
            self._transport.write(self._wire.layers.seal(output))
        except LayerError:
            self.abort()

    def _end(self) -> None:
        """Close after the pending output, without a reset (rule 3)."""
        self._say_farewell()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        # A paused transport would leave input unread and not notice the client's end (rule 3).
        self._input = Input.READING
        self._transport.resume_reading()
        self._set_timer(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close at once: no more input is read, and pending output is dropped."""
        self._wire.go(ConnectionState.ENDED)
        self._transport.abort()

    def close(self) -> None:
        """Close after pending output; the client sees a plain disconnect."""
        self._say_farewell()
        self._transport.close()

    def _say_farewell(self) -> None:
        self._wire.go(ConnectionState.ENDED)
        if self._wire.has_layers and not self._transport.is_closing():
            self._transport.write(self._wire.layers.close())

    # Heartbeats and deadlines

    def _interval_ns(self) -> int:
        return self._session.heartbeat_interval_ms * 1_000_000

    def _set_timer(self, seconds: float = 0, call: Callable[[], None] | None = None) -> None:
        """Replace the timer: call `call` after `seconds`; without it only cancel the old timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._turns.loop.call_later(seconds, call) if call else None

    def _keep_time(self, now_ns: int) -> None:
        """Restart the client's timeout and the heartbeat interval at `now_ns`."""
        self._last_command_ns = now_ns
        self._next_heartbeat_ns = now_ns + self._interval_ns()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the next heartbeat or the client's timeout, whichever is earlier."""
        interval = self._interval_ns()
        if interval <= 0:
            self._set_timer()
            return
        # Commands only note their time: moving a timer for each would cost more than one check per
        # interval, when it fires.
        wake_ns = min(self._next_heartbeat_ns, self._last_command_ns + 2 * interval)
        self._wake_ns = wake_ns
        delay = max(0.001, (wake_ns - instant().mono_ns) / SECOND)
        self._set_timer(delay, self._on_timer)

    def _on_timer(self) -> None:
        interval = self._interval_ns()
        now_ns = instant().mono_ns
        if now_ns - self._wake_ns > STALL_NS:
            # nsqd stood still: it has not yet seen what the client sent and read meanwhile.
            self._last_command_ns = max(self._last_command_ns, now_ns - interval)
            self._blocked_since_ns = self._blocked_since_ns and now_ns
        silent = self._input is Input.READING and now_ns - self._last_command_ns >= 2 * interval
        # NSQ's write deadline: here, output has been above its limit for an interval.
        stuck = self._blocked_since_ns and now_ns - self._blocked_since_ns >= interval
        if silent or stuck:
            self._transport.abort()
            return
        if now_ns >= self._next_heartbeat_ns:
            self._write(layout.HEARTBEAT)
            self._next_heartbeat_ns = now_ns + interval
        if self._input is not Input.READING:
            # We paused reading, so its commands wait in the kernel: the client is not silent.
            self._last_command_ns = now_ns
        self._arm()
