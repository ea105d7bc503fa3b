"""Publish rates of one topic: of all clients together and of each client.

1. A rate is messages per second. A burst of one second's messages is accepted at once. Faster
   messages are held until their time; those that would be held longer than `HELD_NS` are refused.
2. One publish is accepted or refused as a whole, whatever its size; the next ones wait for the time
   that a large one uses.
3. A client is a connection; all publishes over HTTP together count as one client.
4. Held publishes are released in order of their times, which ascend for each client: so the
   messages of a connection keep their order.
"""

from __future__ import annotations

from typing import Final

from sparq.options.units import SECOND

BURST_NS: Final = SECOND
HELD_NS: Final = SECOND
CLIENTS_KEPT: Final = 1_024
"""Above this number, clients that have used up nothing are forgotten. A search for them runs only
when the number has doubled since the last one, so the average cost per publish stays constant."""


class Rates:
    """How much of the rates publishers have used; times are of the monotonic clock (ns)."""

    def __init__(self) -> None:
        self._topic_ns = 0
        self._clients: dict[int, int] = {}
        self._clients_max = CLIENTS_KEPT

    def ready_ns(
        self, client: int, count: int, now_ns: int, topic_rate: int, client_rate: int
    ) -> int | None:
        """When messages may go to the log, now at the earliest; None: they are refused.

        Args:
            client: a session's id; 0: HTTP.
            count: number of messages.
            now_ns: the current time.
            topic_rate: messages per second for all clients; 0: unlimited.
            client_rate: messages per second for this client; 0: unlimited.
        """
        # A rate is one number, the time up to which it is used up: nothing has to be refilled.
        of_topic = max(self._topic_ns, now_ns)
        of_client = max(self._clients.get(client, 0), now_ns)
        ready_ns = now_ns
        if topic_rate:
            ready_ns = max(ready_ns, of_topic - BURST_NS)
        if client_rate:
            ready_ns = max(ready_ns, of_client - BURST_NS)
        if ready_ns - now_ns > HELD_NS:
            return None
        # Only accepted publishes use up a rate: one that is refused and sent again would otherwise
        # delay itself and all others.
        if topic_rate:
            self._topic_ns = of_topic + count * SECOND // topic_rate
        if client_rate:
            self._clients[client] = of_client + count * SECOND // client_rate
            if len(self._clients) > self._clients_max:
                self._clients = {who: ns for who, ns in self._clients.items() if ns > now_ns}
                self._clients_max = max(CLIENTS_KEPT, 2 * len(self._clients))
        return ready_ns
