"""How fast is published to one topic, by all and by each client.

1. A rate is messages a second. A burst of one second's messages is taken at once, what comes
   faster is held until its time, and what would be held for more than `HELD_NS` is refused.
2. One publish is taken or refused as a whole, whatever its size; the next ones wait for the time
   that a large one takes.
3. A client is a connection; all publishes over HTTP together are one.
4. What is held leaves in the order of its times, which are ascending for each client: so a
   connection's messages stay in their order.
"""

from __future__ import annotations

from typing import Final

from sparq.broker.options import SECOND_NS

BURST_NS: Final = SECOND_NS
HELD_NS: Final = SECOND_NS
CLIENTS_KEPT: Final = 1_024
"""Beyond so many, clients are forgotten that have used up nothing; looked for each time that there
are twice as many as were left, so that it costs no publish more than another."""


class Rates:
    """What a topic's publishers have used up; times are of the monotonic clock."""

    def __init__(self) -> None:
        self._topic_ns = 0
        self._clients: dict[int, int] = {}
        self._clients_max = CLIENTS_KEPT

    def ready_ns(
        self, client: int, count: int, now_ns: int, topic_rate: int, client_rate: int
    ) -> int | None:
        """When messages may go on to the log, at the earliest now; None: they are refused.

        Args:
            client: a session's id; 0: HTTP.
            count: how many messages.
            now_ns: the time.
            topic_rate: messages a second of all clients; 0: any number.
            client_rate: messages a second of this one; 0: any number.
        """
        of_topic = max(self._topic_ns, now_ns)
        of_client = max(self._clients.get(client, 0), now_ns)
        ready_ns = now_ns
        if topic_rate:
            ready_ns = max(ready_ns, of_topic - BURST_NS)
        if client_rate:
            ready_ns = max(ready_ns, of_client - BURST_NS)
        if ready_ns - now_ns > HELD_NS:
            return None
        if topic_rate:
            self._topic_ns = of_topic + count * SECOND_NS // topic_rate
        if client_rate:
            self._clients[client] = of_client + count * SECOND_NS // client_rate
            if len(self._clients) > self._clients_max:
                self._clients = {who: ns for who, ns in self._clients.items() if ns > now_ns}
                self._clients_max = max(CLIENTS_KEPT, 2 * len(self._clients))
        return ready_ns
