"""One nsqd: a broker, its turns and its V2 clients, as HTTP uses them and as they start and stop.

What HTTP asks for is awaited here; a V2 connection never comes this way (see ``tcp``).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sparq.daemon import files, token
from sparq.nsqd.clients import Clients
from sparq.nsqd.rights import access_of
from sparq.nsqd.tcp import Connection
from sparq.nsqd.turns import Turns
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparq.broker.broker import Broker
    from sparq.broker.draining import Make
    from sparq.broker.letters import Letters
    from sparq.broker.policies import Policy
    from sparq.broker.publishing import Ticket
    from sparq.broker.topic import Topic
    from sparq.daemon.address import Listener
    from sparq.log.task import Work
    from sparq.nsqd.options import Options
    from sparq.protocol.frames import Bodies


class Waiting:
    """A coroutine that waits for the broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def answered(self, error: RemoteError | None) -> None:
        """What it waits for is done, or refused."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Nsqd:
    """What the shells around one broker share.

    Attributes:
        exiting: True from the moment that `stop` begins; publishes over HTTP get EXITING.
        tcp_port, http_port, https_port: the real ports, -1 where there is none.
        http_connections_max: HTTP and HTTPS clients at a time; who comes then is closed at once.
        options: what is in force; a `Reloader` changes it.
        drain_watchers: called when other drains hold.
        access: who may do what; None: everybody may.
        lookupd_token: what nsqlookupds are shown; "": nothing.
    """

    def __init__(self, options: Options, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.broker = broker
        self.limits = broker.limits
        self.loop = loop
        self.turns = Turns(broker, loop)
        self.runner = self.turns.runner
        self.access = access_of(options)
        self.lookupd_token = token.resolve(options.lookupd.token, "--lookupd-token")
        self.clients = Clients(options, self.turns, self.access)
        self.http_connections_max = files.UNLIMITED
        self.tcp_port = self.http_port = self.https_port = -1
        self.exiting = False
        self.drain_watchers: list[Callable[[], object]] = []
        self._listener: Listener | None = None

    # Publishing and settling, for HTTP

    async def publish(self, topic: str, bodies: Bodies, defer_ms: int = 0) -> None:
        """Publish and return when the messages are kept; raises `RemoteError` when they are not."""
        waiting = Waiting(self.loop)
        self.begin_publish(topic, bodies, waiting, defer_ms)
        await waiting.future

    def begin_publish(self, topic: str, bodies: Bodies, ticket: Ticket, defer_ms: int = 0) -> None:
        """Publish; the ticket is answered once, with the refusal or None."""
        self.broker.publish(topic, bodies, self.runner.now(), ticket, defer_ms=defer_ms)
        self.turns.schedule()

    async def send_back(self, letters: Letters, topic: str) -> None:
        """Publish dead letters, which are claimed, to a topic; returns when they are kept there.

        Raises:
            RemoteError: they are not, and wait again.
        """
        waiting = Waiting(self.loop)
        self.broker.send_back(letters, topic, self.runner.now(), waiting)
        self.turns.schedule()
        await waiting.future

    async def publish_to_channel(self, topic: Topic, channel: str, bodies: Bodies) -> None:
        """Publish to one channel of a topic, and return when the messages are kept.

        Raises:
            RemoteError: they are not. INVALID_REQUEST: they cannot be that channel's alone, as the
                topic is paused, or another channel is read by ranges, which are of the log.
        """
        others = [one for one in topic.channels.values() if one.name != channel]
        if not topic.flows:
            raise RemoteError("INVALID_REQUEST", f"topic {topic.name} is paused")
        if ranged := [one.name for one in others if one.range_epoch]:
            raise RemoteError("INVALID_REQUEST", f"channel {ranged[0]} is read by ranges")
        waiting = Waiting(self.loop)
        self.broker.publish(topic.name, bodies, self.runner.now(), waiting, only=channel)
        self.turns.schedule()
        await waiting.future

    async def inspect(self, topic: Topic, work: Work) -> None:
        """Have work done that only looks into a topic; returns when it has run."""
        waiting = Waiting(self.loop)
        self.broker.inspect(topic, work, waiting)
        self.turns.schedule()
        await waiting.future

    async def choose_policies(self, chosen: tuple[Policy, ...]) -> None:
        """Have these policies hold instead of those set at run time before, once they are on disk.

        Raises:
            RemoteError: they could not be written; nothing has changed.
        """
        waiting = Waiting(self.loop)
        self.broker.choose_policies(chosen, waiting)
        self.turns.schedule()
        await waiting.future

    async def change_drains(self, make: Make) -> None:
        """Have other drains hold, once they are on disk.

        Raises:
            RemoteError: they could not be written; nothing has changed.
        """
        waiting = Waiting(self.loop)
        self.broker.drains.change(make, waiting)
        self.turns.schedule()
        await waiting.future
        for watcher in self.drain_watchers:
            watcher()

    async def settle(self) -> None:
        """Return when all that was decided so far is on disk."""
        # A sync that was under way already may have begun too early: the one after it counts.
        for _ in range(2):
            self.turns.take()
            await self.runner.barrier()

    # Life

    async def start(self, listener: Listener) -> None:
        """Take clients at a listening socket and begin to keep time."""
        self._listener = listener
        await listener.serve(lambda: Connection(self.clients))
        self.turns.start()

    async def stop(self) -> None:
        """Stop as NSQ does: no new clients, all connections closed, everything on disk."""
        self.exiting = True
        if self._listener is not None:
            self._listener.close()
        self.clients.close()
        await self.settle()
        await self.clients.gone()
        self.turns.stop()
        with contextlib.suppress(asyncio.CancelledError):
            is_last = False
            while not is_last:
                is_last = self.broker.close()
                self.runner.submit(self.broker.end_turn(self.runner.now()))
                await self.runner.barrier()
        await self.loop.run_in_executor(None, self.runner.stop)
        self.broker.closed()
