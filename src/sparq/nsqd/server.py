"""One nsqd: the broker, the threads that do its disk work, its listeners, and the loop turn.

A turn (ARCHITECTURE.md, "the road of a message") happens once after each group of events: all that
arrived is applied, one write per topic goes to disk, and only then replies and messages leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from sparq.daemon import files, token
from sparq.nsqd.commit import Runner
from sparq.nsqd.tcp import NANOSECONDS, STALL_NS, Connection

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.publishing import Done
    from sparq.broker.session import Session
    from sparq.daemon.address import Listener
    from sparq.nsqd.auth import Authenticator
    from sparq.nsqd.options import Options
    from sparq.nsqd.reload import Reloader
    from sparq.nsqd.tls import Tls
    from sparq.protocol.errors import RemoteError
    from sparq.protocol.frames import Bodies

BACKLOG_BYTES_MAX = 64 << 20
"""Publishes of all connections that are not on disk yet; beyond it reading pauses (decision 20)."""

INLINE_ROUNDS_MAX = 4
"""A commit in the loop may release work that needs another; after so many the loop goes on."""

TURN_WAITS_NS = 20_000_000
"""A loop may read a socket many times before it goes on: so long one client may keep it."""

STOP_SECONDS = 1.0
"""How long clients may take to read what they were sent before nsqd stopped."""

TICK_SECONDS_MIN = 0.001
TICK_SECONDS_MAX = 0.1
TICK_SLACK_NS = 1_000_000
"""How much later than due a tick may come; setting its timer anew costs more than this wait."""

logger = logging.getLogger(__name__)


class Nsqd:
    """What the shells around one broker share.

    Attributes:
        exiting: True from the moment that `stop` begins; publishes over HTTP get EXITING.
        on_changes: called when topics or channels have come or gone.
        tcp_port, http_port, https_port: the real ports, -1 where there is none.
        connections_max: V2 clients at a time; who comes then is closed at once.
        http_connections_max: HTTP and HTTPS clients at a time, likewise.
        tls: the certificates for V2 connections; None: no TLS.
        options: what is in force; `reloader`, which whoever builds the daemon sets, changes it.
    """

    reloader: Reloader

    def __init__(self, options: Options, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.broker = broker
        self.limits = broker.limits
        self.loop = loop
        self.runner = Runner(loop, self.turn, broker.journal.run)
        self.connections: set[Connection] = set()
        self.connections_max = self.http_connections_max = files.UNLIMITED
        self.http_token = token.resolve(options.http_token)
        self.authenticator: Authenticator | None = None
        if options.auth_http_addresses:
            self.authenticator = import_module("sparq.nsqd.auth").Authenticator(options)
        self.by_session: dict[Session, Connection] = {}
        self.waiting: set[Connection] = set()
        self.tcp_port = self.http_port = self.https_port = -1
        self.tls: Tls | None = None
        self.on_changes: Callable[[], None] = broker.changes.clear
        self._all_gone = asyncio.Event()
        self.exiting = False
        self._turn_is_due = self._is_full = self._stood_still = False
        self._tick_due_ns = self.runner.now().mono_ns
        self._turn_due_ns = 0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._listener: Listener | None = None

    # The turn

    def turn(self) -> None:
        """Have a turn once the events that are ready now are taken in."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._turn_due_ns = time.monotonic_ns()
            self.loop.call_soon(self._take_turn)

    def is_late(self, mono_ns: int) -> bool:
        """Whether the turn that is due has waited for what is still read for long enough."""
        return self._turn_is_due and mono_ns - self._turn_due_ns > TURN_WAITS_NS

    def _take_turn(self) -> None:
        self._turn_is_due = False
        broker, runner = self.broker, self.runner
        for _ in range(INLINE_ROUNDS_MAX):
            broker.end_turn(runner.now())
            tasks = broker.take_tasks()
            if not runner.may_run_inline(tasks, broker.backlog_bytes):
                runner.submit(tasks)
                break
            runner.run_inline(tasks)
        else:
            self.turn()
        self._flush()
        if broker.busy:
            self.turn()
        if broker.changes:
            self.on_changes()
        if broker.notes:
            self._log_notes()
        if self.waiting:
            for connection in tuple(self.waiting):
                connection.resume_reading()
        if broker.next_due_ns() < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_sooner(broker.next_due_ns())

    def _log_notes(self) -> None:
        for note in self.broker.notes:
            logger.warning("%s", note)
        self.broker.notes.clear()

    def _flush(self) -> None:
        by_session = self.by_session
        for session in self.broker.dirty_sessions():
            connection = by_session.get(session)
            if connection is not None:
                connection.flush()

    def is_flooded(self) -> bool:
        """Whether so much waits for the disk that nobody's commands are read."""
        return self.broker.backlog_bytes > BACKLOG_BYTES_MAX

    def _tick(self) -> None:
        now = self.runner.now()
        delay = TICK_SECONDS_MAX
        self._stood_still = not self._stood_still and now.mono_ns - self._tick_due_ns > STALL_NS
        # What clients said while nsqd stood still is read before anybody's time is over.
        if not self._stood_still:
            next_ns = self.broker.tick(now)
            if next_ns is not None:
                delay = min(delay, max(TICK_SECONDS_MIN, (next_ns - now.mono_ns) / NANOSECONDS))
        self._set_tick(now.mono_ns, delay)
        self.turn()

    def _tick_sooner(self, due_ns: int) -> None:
        """What has come since the last tick is due before the next one: a short deferral, say."""
        # After a standstill the next tick keeps its distance: clients are read before it.
        if self._tick_timer is None or self._stood_still:
            return
        now_ns = self.runner.now().mono_ns
        delay = max(TICK_SECONDS_MIN, (due_ns - now_ns) / NANOSECONDS)
        # What is overdue already must not put the tick off from turn to turn.
        if now_ns + int(delay * NANOSECONDS) < self._tick_due_ns - TICK_SLACK_NS:
            self._tick_timer.cancel()
            self._set_tick(now_ns, delay)

    def _set_tick(self, now_ns: int, delay: float) -> None:
        self._tick_due_ns = now_ns + int(delay * NANOSECONDS)
        self._tick_timer = self.loop.call_later(delay, self._tick)

    def admit(self, connection: Connection) -> bool:
        """Take a new connection in, if there is room for one more; False: it has to go."""
        if len(self.connections) >= self.connections_max:
            if not self._is_full:
                logger.warning("TCP: refusing clients beyond %d", self.connections_max)
            self._is_full = True
            return False
        self._is_full = False
        self.connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is over."""
        self.connections.discard(connection)
        self.waiting.discard(connection)
        if not self.connections:
            self._all_gone.set()

    # Publishing and settling, for HTTP

    async def publish(self, topic: str, bodies: Bodies, defer_ms: int = 0) -> None:
        """Publish and return when the messages are kept; raises `RemoteError` when they are not."""
        future: asyncio.Future[None] = self.loop.create_future()

        def done(error: RemoteError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.begin_publish(topic, bodies, done, defer_ms)
        await future

    def begin_publish(self, topic: str, bodies: Bodies, done: Done, defer_ms: int = 0) -> None:
        """Publish; `done` is called once, with the refusal or None (maybe before this returns)."""
        self.broker.publish(topic, bodies, self.runner.now(), done, defer_ms=defer_ms)
        self.turn()

    async def settle(self) -> None:
        """Return when all that was decided so far is on disk."""
        # A sync that was under way already may have begun too early: the one behind it counts.
        for _ in range(2):
            self._take_turn()
            await self.runner.barrier()

    # Life

    async def start(self, listener: Listener) -> None:
        """Take clients at a listening socket and begin to keep time."""
        self._listener = listener
        await listener.serve(lambda: Connection(self))
        self._tick()

    async def _let_clients_go(self) -> None:
        """Give the closed connections a moment to send what they hold; who does not read is cut."""
        if not self.connections:
            return
        self._all_gone.clear()  # it is set whenever the last client has left
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_gone.wait(), STOP_SECONDS)
        for connection in tuple(self.connections):
            connection.abort()
        await self._all_gone.wait()

    async def stop(self) -> None:
        """Stop as NSQ does: no new clients, all connections closed, everything on disk."""
        self.exiting = True
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self.connections):
            connection.close()
        await self.settle()
        await self._let_clients_go()
        if self.authenticator is not None:
            await self.authenticator.close()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            is_last = False
            while not is_last:
                is_last = self.broker.close(self.runner.now())
                self.runner.submit(self.broker.take_tasks())
                await self.runner.barrier()
        await self.loop.run_in_executor(None, self.runner.stop)
        self.broker.closed()
