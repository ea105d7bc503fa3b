"""A session: the blocking API of the client, for scripts, shells and notebooks.

1. The asyncio ``Producer`` and ``Consumer`` do the work, on the session's own thread; a blocking
   call waits for its coroutine there. The program may run an event loop of its own as well.
2. Any number of threads may use a session, its producers and its consumers at the same time.
3. Ctrl-C interrupts any wait. A publish is then cancelled; messages are kept for the next call. The
   session stays usable.
4. Leaving the ``with`` block closes all producers and consumers of the session, and its thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from sparq.client.arguments import read_sources
from sparq.client.blocking.consumer import BlockingConsumer
from sparq.client.blocking.handle import Closing, SessionHandle, close_all
from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.blocking.producer import BlockingProducer
from sparq.client.config import Config

Made = TypeVar("Made", BlockingProducer, BlockingConsumer)


class Session(Closing):
    """Makes producers and consumers whose methods block instead of being awaited.

    ``sparq.connect`` makes a session::

        with sparq.connect("127.0.0.1:4150") as session:
            with session.producer() as producer:
                producer.publish("clicks", b"...")
            for message in session.consumer("clicks", "archive"):
                print(message.body)
                message.finish()

    Producers and consumers connect in the background; the session itself makes no connections.

    Args:
        nsqd_tcp_addresses: nsqds, each as ``host:port`` or the path of a unix socket; a list, or
            one string with commas.
        lookupd_http_addresses: nsqlookupds to find nsqds with, each as ``host:port`` or URL.
        config: base options.
        **options: options of ``Config``; they override those in ``config``.

    Attributes:
        config: the default options of its producers and consumers.

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
        nsqds, lookupds = read_sources(nsqd_tcp_addresses, lookupd_http_addresses)
        self._addresses: dict[str, Any] = {
            "nsqd_tcp_addresses": nsqds,
            "lookupd_http_addresses": lookupds,
        }
        self._made: list[SessionHandle] = []
        self._thread = LoopThread()

    def producer(self, **options: Any) -> BlockingProducer:
        """Make a producer for the session's nsqds.

        Args:
            **options: options of ``Config``, which override the session's; and
                ``discovery_filter`` as for ``Producer`` (called on the session's thread).

        Raises:
            ValueError, TypeError: as for the session.
            ClosedError: the session is closed, or was made by another process.
        """
        return self._keep(
            BlockingProducer(self._thread, config=self.config, **self._addresses, **options)
        )

    def consumer(self, topic: str, channel: str, **options: Any) -> BlockingConsumer:
        """Make a consumer of a channel, which starts to receive at once.

        It receives until it is closed, even after a loop over it has ended early, and then holds
        messages that no other consumer gets. Use a ``with`` block to close it.

        Args:
            topic: the topic.
            channel: the channel; created when it does not exist.
            **options: options of ``Config``, which override the session's; and, as for
                ``Consumer``, ``on_giving_up`` (called on a thread of its own), ``dead_letter`` and
                ``discovery_filter`` (called on the session's thread: it must not block).

        Raises:
            ValueError, TypeError: as for the session, or a name is not valid.
            ClosedError: the session is closed, or was made by another process.
        """
        return self._keep(
            BlockingConsumer(
                self._thread, topic, channel, config=self.config, **self._addresses, **options
            )
        )

    def _keep(self, made: Made) -> Made:
        self._made = [each for each in self._made if not each.closed]
        self._made.append(made)
        return made

    def close(self) -> None:
        """Close the session's producers and consumers, and end its thread.

        Waits up to ``stop_timeout`` seconds for pending publishes. nsqd redelivers messages without
        a response. Ctrl-C ends the wait and the thread at once; pending publishes then fail. A
        second call, or one in a forked process, does nothing.
        """
        try:
            close_all(self._thread, self._made)
        finally:
            self._made.clear()
            self._thread.close()
