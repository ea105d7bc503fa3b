"""Publishes from a Spark task: sends MPUBs to the nsqds in turn, with fail-over.

1. An MPUB is done when an nsqd has replied OK. Without a reply it is sent again, so its messages
   may be published twice; none is lost.
2. If an nsqd refuses an MPUB for a reason of its own (its disk, its shutdown, an unreachable
   authd), the MPUB goes to another nsqd. A refusal because of the message or the secret is an
   error.
"""

from typing import Final

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol.errors import RemoteError
from sparq.spark.discovery import NsqdDiscovery
from sparq.spark.encode import MpubBody
from sparq.spark.errors import RetryDeadline, may_pass
from sparq.spark.options import ClusterOptions

_SIZE_BYTES: Final = 4
_REFUSED_BY_ITSELF: Final = frozenset({"E_MPUB_FAILED", "E_PUB_FAILED"})


class MpubPublisher:
    """Sends MPUBs, each to the next nsqd in turn.

    Args:
        cluster: addresses and connection options.
        turn: index of the first nsqd; tasks use different ones, to spread over the nsqds.
    """

    def __init__(self, cluster: ClusterOptions, turn: int = 0) -> None:
        self._discovery = NsqdDiscovery(cluster, None)
        self._layers = cluster.layers
        self._connections: dict[str, BlockingConnection] = {}
        self._turn = turn
        self._accepted = False
        self._patience = RetryDeadline("every nsqd", cluster.timeout_ms)

    def publish(self, topic: str, mpub: MpubBody) -> None:
        """Publish an MPUB; tries nsqds until one has replied OK.

        Raises:
            UnreachableError: no nsqd accepted it within the timeout.
            RemoteError: nsqd refused the message, the topic or the secret.
            WrongPeerError: the daemon at an address is not an nsqd.
            TlsError, AuthRequiredError: an nsqd does not offer the TLS that the options ask for,
                or requires AUTH.
        """
        self._patience.reset()
        while True:
            failures = []
            try:
                addresses = self._discovery.addresses()
            except OSError as error:
                addresses, failures = (), [str(error)]
            for step in range(len(addresses)):
                address = addresses[(self._turn + step) % len(addresses)]
                failure = self._attempt(address, topic, mpub)
                if failure is None:
                    self._turn += step + 1
                    return
                failures.append(f"nsqd {address}: {failure}")
            self._patience.wait("; ".join(failures) or "no nsqd is registered with nsqlookupd")

    def _attempt(self, address: str, topic: str, mpub: MpubBody) -> Exception | None:
        """Send the batch to one nsqd; returns the error if another one may succeed, else None."""
        size = len(mpub.head) + len(mpub.sized)
        # Apart from `mpub.sized`, a view of Arrow's memory: a plain connection sends it uncopied.
        line = b"MPUB %b\n" % topic.encode() + size.to_bytes(_SIZE_BYTES, "big") + mpub.head
        try:
            connection = self._connections.get(address) or self._connect(address)
            connection.ask(line, mpub.sized)
        except OSError as error:
            self._drop(address)
            return error
        except RemoteError as refusal:
            if refusal.fatal:
                self._drop(address)
            # A secret that was never accepted is most likely wrong: report it, do not wait for an
            # authd.
            if refusal.code not in _REFUSED_BY_ITSELF and not (
                self._accepted and may_pass(refusal)
            ):
                raise
            return refusal
        self._accepted = True
        return None

    def _connect(self, address: str) -> BlockingConnection:
        connection = BlockingConnection(address, user_agent="sparq spark sink", layers=self._layers)
        self._connections[address] = connection
        return connection

    def _drop(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self._drop(address)
