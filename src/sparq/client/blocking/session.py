"""A session: the blocking face of the client, for scripts, shells and notebooks.

1. The same ``Producer`` and ``Consumer`` do the work, on a thread of the session's own; their calls
   wait here for what is awaited there. A program that runs an event loop itself is not disturbed.
2. Any number of threads may use one session, and what comes of it, at the same time.
3. Ctrl-C interrupts any wait. What was waited for is cancelled (a publish) or kept for the next who
   asks (messages); the session goes on.
4. Leaving the ``with`` block ends everything that the session has made, and its thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from sparq.client.address import read_sources
from sparq.client.blocking.consumer import BlockingConsumer
from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.blocking.member import Closing, Member, close_all
from sparq.client.blocking.producer import BlockingProducer
from sparq.client.config import Config

Made = TypeVar("Made", BlockingProducer, BlockingConsumer)


class Session(Closing):
    """Makes producers and consumers that wait instead of being awaited.

    ``sparq.connect`` makes one::

        with sparq.connect("127.0.0.1:4150") as session:
            with session.producer() as producer:
                producer.publish("clicks", b"...")
            for message in session.consumer("clicks", "archive"):
                print(message.body)
                message.finish()

    Connections are made in the background, by what is asked for: a session alone has none.

    Args:
        nsqd_tcp_addresses: nsqds as ``host:port`` or as paths of unix sockets, in a list or in
            one text with commas.
        lookupd_http_addresses: nsqlookupds that know the nsqds, ``host:port`` or URL.
        config: options to start from.
        **options: single options of ``Config``, which replace those of ``config``.

    Attributes:
        config: the options of what it makes, where those are not given others.

    Raises:
        ValueError: an address or an option is not valid, or no address is given.
        TypeError: an option does not exist or has the wrong type.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        config: Config | None = None,
        **options: Any,
    ) -> None:
        self.config = Config.of(config, options)
        self._nsqds, self._lookupds = read_sources(nsqd_tcp_addresses, lookupd_http_addresses)
        self._made: list[Member] = []
        self._thread = LoopThread()

    def producer(self, **options: Any) -> BlockingProducer:
        """A producer for the session's nsqds.

        Args:
            **options: options of ``Config``, which replace those of the session; and
                ``discovery_filter``, as for ``Producer`` (called on the session's thread).

        Raises:
            ValueError, TypeError: as for the session.
            ClosedError: the session is closed, or was made by another process.
        """
        made = BlockingProducer(self._thread, config=self.config, **self._addresses(), **options)
        return self._keep(made)

    def consumer(self, topic: str, channel: str, **options: Any) -> BlockingConsumer:
        """A consumer of a channel, which begins to receive at once.

        It receives until it is closed: a loop over it that is left before its end leaves messages
        with it, so give it a ``with`` block then.

        Args:
            topic: the topic.
            channel: the channel; created when it does not exist.
            **options: options of ``Config``, which replace those of the session; and, as for
                ``Consumer``, ``on_giving_up`` (called on a thread of its own), ``dead_letter`` and
                ``discovery_filter`` (called on the session's thread: it must not block).

        Raises:
            ValueError, TypeError: as for the session, or a name is not valid.
            ClosedError: the session is closed, or was made by another process.
        """
        made = BlockingConsumer(
            self._thread, topic, channel, config=self.config, **self._addresses(), **options
        )
        return self._keep(made)

    def _keep(self, made: Made) -> Made:
        self._made = [each for each in self._made if not each.closed]
        self._made.append(made)
        return made

    def _addresses(self) -> dict[str, Any]:
        return {"nsqd_tcp_addresses": self._nsqds, "lookupd_http_addresses": self._lookupds}

    def close(self) -> None:
        """Close what the session has made and end its thread; harmless when it is closed.

        Publishes under way are waited for, ``stop_timeout`` seconds at most. Messages that nobody
        has answered for, nsqd delivers again. In a forked process it does nothing. Ctrl-C ends it
        all at once: what is under way then has failed.
        """
        try:
            close_all(self._thread, self._made)
        finally:
            self._made.clear()
            self._thread.close()
