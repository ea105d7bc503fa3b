"""Publishes of a topic that wait for the disk or for a rate: a group commit, one at a time.

1. While a commit is in flight, new publishes wait; the next batch takes them in order of arrival,
   up to 256 KiB or 4,096 messages. A publish is never split, and a single one may be larger.
2. Each publish is answered exactly once: after its messages are stored as the sync policy requires,
   or with the reason why none of them is stored.
3. An ephemeral topic's log is memory: its commits finish at once, and messages that do not fit are
   dropped silently, as in NSQ.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sparq.broker.counts import TopicCounts
from sparq.broker.dead_letters import Only
from sparq.broker.options import NEVER, BrokerOptions
from sparq.broker.session import Slot, V2Session
from sparq.broker.turn import Turn
from sparq.options.units import SECOND
from sparq.protocol import layout
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import Instant

BURST_NS: Final = SECOND
HELD_NS: Final = SECOND
CLIENTS_KEPT: Final = 1_024
"""Above this number, clients that have used up nothing are forgotten. A search for them runs only
when the number has doubled since the last one, so the average cost per publish stays constant."""


class Publish(NamedTuple):
    """One publish that waits for its commit, and the destination of its answer.

    Attributes:
        topic: the topic's name.
        command: PUB, MPUB or DPUB: used in the text of a refusal.
        messages, size_bytes: number of bodies, and their total size.
        due: when it may be delivered; None: at once.
        session, slot: the sender, and the place of the answer; None: it came from no session.
        oks: number of OKs in the answer: one for each message of a run of PUBs.
        answered: called with the refusal or None if it came from no session.
        is_letter: whether its messages are dead letters, or were sent back from there.
        only: the one channel that gets it; None: all channels.
    """

    topic: str
    command: str
    bodies: BodySlices
    messages: int
    size_bytes: int
    due: Instant | None = None
    session: V2Session | None = None
    slot: Slot | None = None
    oks: int = 1
    answered: Callable[[RemoteError | None, Instant], None] | None = None
    is_letter: bool = False
    only: Only | None = None


def answer(
    publishes: Iterable[Publish],
    turn: Turn[Any],
    now: Instant,
    reason: str | None = None,
    *,
    fatal: bool = False,
) -> None:
    """Answer publishes that are stored (no reason) or refused; a fatal refusal ends connections."""
    for publish in publishes:
        turn.backlog_bytes -= publish.size_bytes
        session, slot, refused = publish.session, publish.slot, None
        if reason is not None:
            text = f"{publish.command} failed {reason}"
            refused = RemoteError(f"E_{publish.command}_FAILED", text, fatal)
        if session is None or slot is None:
            if publish.answered is not None:
                publish.answered(refused, now)
            continue
        session.uncommitted_bytes -= publish.size_bytes
        turn.sessions[session] = None
        if refused is None:
            slot.data = layout.OK * publish.oks
            counts = session.pub_counts
            counts[publish.topic] = counts.get(publish.topic, 0) + publish.messages
        else:
            # A fatal error closes the connection: a run of PUBs gets no second one.
            slot.data = layout.error(refused.frame_text()) * (1 if fatal else publish.oks)
            session.closing |= fatal


class Rates:
    """How much of their rates a topic's publishers have used, all together and each client.

    Times are of the monotonic clock (ns).

    1. A rate is messages per second. A burst of one second's messages is accepted at once. Faster
       messages are held until their time; those that would be held longer than `HELD_NS` are
       refused.
    2. One publish is accepted or refused as a whole, whatever its size; the next ones wait for the
       time that a large one uses.
    3. A client is a connection; all publishes over HTTP together count as one client.
    4. Held publishes are released in order of their times, which ascend for each client: so the
       messages of a connection keep their order.
    """

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


class Publishing:
    """The publishes of one topic that are not stored yet.

    Attributes:
        waiting: publishes that no commit has taken yet.
        pending_bytes, pending_messages: size and number of messages that are not in the log yet.
        rates: the use of the publish rate limits.
        held: publishes held back by a rate limit: a heap of (mono ns, number, publish).
    """

    def __init__(self, options: BrokerOptions, counts: TopicCounts) -> None:
        self.waiting: deque[Publish] = deque()
        self.pending_bytes = self.pending_messages = 0
        self.rates = Rates()
        self.held: list[tuple[int, int, Publish]] = []
        self._counts, self._options = counts, options

    def add(self, publish: Publish, ready_ns: int = 0) -> None:
        """Queue a publish for the next commit, but not before `ready_ns` (mono ns)."""
        self.pending_bytes += publish.size_bytes
        self.pending_messages += publish.messages
        if ready_ns:
            self._counts.held_count += publish.messages
            # The count breaks ties: equal times keep the order of arrival.
            heapq.heappush(self.held, (ready_ns, self._counts.held_count, publish))
        else:
            self.waiting.append(publish)

    def release(self, mono_ns: int) -> int:
        """Release held publishes that are ready; returns the next one's time, or NEVER."""
        while self.held and self.held[0][0] <= mono_ns:
            self.waiting.append(heapq.heappop(self.held)[2])
        return self.held[0][0] if self.held else NEVER

    def next_batch(self) -> list[Publish]:
        """Take the publishes of the next commit; `waiting` is not empty."""
        waiting, options = self.waiting, self._options
        batch = [waiting.popleft()]
        if waiting:
            size, count = batch[0].size_bytes, batch[0].messages
            while waiting:
                size += waiting[0].size_bytes
                count += waiting[0].messages
                # Batches of 1 MiB instead of 256 KiB gained nothing.
                if size > options.commit_bytes or count > options.commit_count:
                    break
                batch.append(waiting.popleft())
        return batch

    def take_all(self) -> list[Publish]:
        """Take the publishes that will not be stored, since the topic is deleted or nsqd stops."""
        # Sorted by time and number, since a heap's list is only partly ordered.
        held = [publish for _, _, publish in sorted(self.held, key=itemgetter(0, 1))]
        waiting, self.waiting, self.held = [*self.waiting, *held], deque(), []
        self.pending_bytes -= sum(publish.size_bytes for publish in waiting)
        self.pending_messages -= sum(publish.messages for publish in waiting)
        return waiting
