"""What a consumer's connections have delivered: subscriptions, the inbox and batches.

A `Subscription` is one connection:

1. It tracks messages in flight and sends the responses. Messages that arrive together are kept
   together (`ReceivedMessages`) until the program accesses one of them: counting, expiring and
   responding to a thousand messages costs as much as for one.
2. A message expires when its timeout is over: its ``expires_at`` decides, not a timer. A response
   after that is sent, since nsqd may not have noticed yet, but it counts as expired.
3. It reports each response to the consumer (backoff, RDY) *before* it sends the response, so that
   nsqd sees ``RDY 0`` before the ``REQ`` that caused it.

The `Inbox` holds messages that were not handed out yet; ``max_in_flight`` bounds it:

1. Any number of tasks may take messages, one by one or in batches.
2. Stale messages (nsqd redelivers them regardless of the response) are dropped, not handed out. The
   message timeout is checked when a message is taken; the consumer is notified (``expire``).
3. A cancelled waiter passes its wake-up on to the next.

A `Batch` is handled and responded to as a whole:

1. The cost per message is only that of slicing out its body: ``Message`` objects are made when the
   program accesses one (``batch[0]``, ``for message in batch``).
2. Responding to the batch responds to each message that had no response of its own, once.
3. A failed batch counts as one failure in the backoff, however many messages it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, overload

from sparq.client.config import Config, milliseconds
from sparq.client.connection import DONE, Connection
from sparq.client.errors import AlreadyRespondedError, WrongPeerError
from sparq.client.log_fields import FieldLogger
from sparq.client.message import Around, Delivered, Message, Respond, Response
from sparq.client.rdy import BackoffSignal, RdyWindow
from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from sparq.protocol.receiver import MessageRun

log = FieldLogger(__name__)

RDY_COUNT_MAX: Final = 2500
"""NSQ's default for ``--max-rdy-count``, if nsqd does not report its own."""

NEVER: Final = float("inf")
GONE: Final = -NEVER

WARN_SECONDS: Final = 60.0


@dataclass(slots=True)
class Counters:
    """Counts of a consumer since its start.

    Attributes:
        received: messages delivered; a redelivery counts again.
        finished: FINs sent in time.
        requeued: REQs sent in time, with or without backoff.
        touched: TOUCHes sent.
        given_up: messages delivered more than ``max_attempts`` times.
        expired: messages without a response in time; nsqd redelivers them.
        lost: messages in flight when their connection was lost; nsqd redelivers them.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    given_up: int = 0
    expired: int = 0
    lost: int = 0


class ReceivedMessages:
    """Messages of one connection that arrived together and are handled as one unit.

    They are one entry in the consumer's queue: counted, expired and responded to together. ``open``
    makes them separate ``Message`` objects. The attributes are those of `Message`, for all of them;
    ``attempts`` is the highest of any.
    """

    __slots__ = (
        *("_respond", "_subscription", "attempts", "expires_at"),
        *("responded", "run", "untouched_until"),
    )

    def __init__(self, subscription: Subscription, run: MessageRun, expires_at: float) -> None:
        self._subscription = subscription
        self._respond = subscription.respond_from_anywhere
        self.run = run
        self.attempts = run.attempts_max
        self.expires_at = self.untouched_until = expires_at
        self.responded = False

    def __len__(self) -> int:
        return len(self.run)

    def bodies(self) -> list[bytes]:
        """Return the body of each message; of dead letters, without their history."""
        bodies = self.run.bodies()
        return [unseal(body)[1] for body in bodies] if self._subscription.has_letters else bodies

    def split(self, count: int) -> ReceivedMessages:
        """Remove the first ``count`` messages and return them as a new ``ReceivedMessages``."""
        first = ReceivedMessages(self._subscription, self.run.split(count), self.untouched_until)
        first.expires_at = self.expires_at
        if self in self._subscription.in_flight:
            self._subscription.in_flight[first] = first
        return first

    def open(self) -> list[Message]:
        """Return the messages as separate objects, each with its own response."""
        return self._subscription.open(self)


class Subscription:
    """A subscribed connection.

    Attributes:
        window: its RDY and number of messages in flight.
        in_flight: the messages in flight: opened ones by id, groups not opened yet by themselves.
        has_letters: whether its topic is a dead-letter topic.
        respond_from_anywhere: ``respond``, or a function that calls it on the consumer's thread.
    """

    def __init__(
        self,
        connection: Connection,
        config: Config,
        counters: Counters,
        received: Callable[[ReceivedMessages], None],
        answering: Callable[[BackoffSignal], None],
    ) -> None:
        self.connection = connection
        self.address = connection.address
        facts = connection.facts
        most = _number(facts, "max_rdy_count", RDY_COUNT_MAX)
        self.window = RdyWindow(most, self._send_ready)
        self.in_flight: dict[bytes | ReceivedMessages, Message | ReceivedMessages] = {}
        self.has_letters = False
        self.respond_from_anywhere: Respond = self.respond
        # An nsqd that reports no timeout still has one: without its length, none is assumed here.
        self._timeout = _number(facts, "msg_timeout", 0) / 1000 or NEVER
        longest = _number(facts, "max_msg_timeout", 0) / 1000 or NEVER
        # nsqd counts `--max-msg-timeout` from the delivery, so all touches together extend the
        # message timeout by at most this difference.
        self._touchable = NEVER if NEVER in (self._timeout, longest) else longest - self._timeout
        self._config = config
        self._counters = counters
        self._received = received
        self._answering = answering
        self._warn_at = 0.0
        connection.on_messages = self._messages_received

    def _send_ready(self, count: int) -> None:
        if self.connection.live:
            self.connection.send(commands.rdy(count))

    def _messages_received(self, run: MessageRun) -> None:
        now, window = time.monotonic(), self.window
        received = ReceivedMessages(self, run, now + self._timeout)
        self.in_flight[received] = received
        window.in_flight += len(run)
        window.last_message = now
        self._counters.received += len(run)
        self._received(received)
        if window.in_flight > window.most:
            # Messages that timed out here are nsqd's to redeliver, whatever the RDY.
            self.expire(now)
            if window.in_flight > window.most and self.connection.live:
                text = f"{window.in_flight} messages received, far more than RDY allows"
                self.connection.fail(WrongPeerError(text))

    def open(self, received: ReceivedMessages) -> list[Message]:
        """Make the ``Message`` objects of a received group."""
        respond, untouched = self.respond_from_anywhere, received.untouched_until
        decoded = received.run.messages()
        messages = [Message(respond, self.address, untouched, each) for each in decoded]
        if self.has_letters:
            for message in messages:
                message.split_dead_letter()
        if received.expires_at != untouched or received.responded:
            for message in messages:
                message.expires_at = received.expires_at
                message.responded = received.responded
        if self.in_flight.pop(received, None) is not None:
            for message in messages:
                # An id already in flight was redelivered: its earlier delivery expired at nsqd.
                if (earlier := self.in_flight.get(message.raw_id)) is not None:
                    earlier.expires_at = GONE
                    self._counters.expired += 1
                    self.window.in_flight -= 1
                self.in_flight[message.raw_id] = message
        return messages

    # Responses

    def respond(
        self, each: Message | ReceivedMessages, kind: Response, delay: float | None, backoff: bool
    ) -> Awaitable[None]:
        """Send FIN, REQ or TOUCH for a message, or for all of a group.

        Args:
            each: the message or the group; in the backoff, a group is one outcome.
            kind: which.
            delay: of REQ, in seconds; None: a default that grows with ``attempts``.
            backoff: whether REQ counts as a failure in the backoff.
        """
        now, connection, counters = time.monotonic(), self.connection, self._counters
        is_late = each.expires_at <= now
        key: bytes | ReceivedMessages
        if isinstance(each, Message):
            key, ids = each.raw_id, [each.raw_id]
        else:
            key, ids = each, each.run.ids()
        if kind != "touch" and self.in_flight.get(key) is each:
            del self.in_flight[key]
            self.window.in_flight -= len(ids)
            if is_late:
                self._count_expired(len(ids))
        if not connection.live:
            return DONE
        if kind == "touch":
            counters.touched += len(ids)
            if not is_late:  # within nsqd's `--max-msg-timeout`
                each.expires_at = min(now + self._timeout, each.untouched_until + self._touchable)
            command = b"".join(map(commands.touch, ids))
        elif kind == "finish":
            counters.finished += 0 if is_late else len(ids)
            self._answering(BackoffSignal.NEUTRAL if is_late else BackoffSignal.SUCCESS)
            command = commands.fins(ids)
        else:
            if delay is None:
                config = self._config
                delay = min(config.default_requeue_delay * each.attempts, config.max_requeue_delay)
            counters.requeued += 0 if is_late else len(ids)
            self._answering(BackoffSignal.FAILURE if backoff else BackoffSignal.NEUTRAL)
            delay_ms = milliseconds(delay)
            command = b"".join([commands.req(raw_id, delay_ms) for raw_id in ids])
        connection.send(command)
        return connection.drained() if connection.is_full else DONE

    def _count_expired(self, count: int) -> None:
        """Count expired messages, and warn once a minute: a small timeout would fill the log."""
        self._counters.expired += count
        now = time.monotonic()
        if now < self._warn_at or not self.connection.live:
            return
        self._warn_at = now + WARN_SECONDS
        log.warning(
            "nsqd %s: messages were not answered within msg_timeout (%g s), so nsqd delivers them "
            "again and they are handled twice: raise msg_timeout, call touch() during long work, "
            "or lower max_in_flight",
            self.address,
            self._timeout,
            extra={"nsqd": self.address},
        )

    # Ending

    def expire(self, now: float) -> None:
        """Drop messages whose timeout is over from those in flight, and count them as expired."""
        expired = {key: each for key, each in self.in_flight.items() if each.expires_at <= now}
        if expired:
            for key in expired:
                del self.in_flight[key]
            count = size_of(expired.values())
            self.window.in_flight -= count
            self._count_expired(count)

    def forget(self) -> None:
        """Mark all messages in flight as stale: the connection is lost."""
        for each in self.in_flight.values():
            each.expires_at = GONE
        self._counters.lost += self.window.in_flight
        self.in_flight.clear()
        self.window.in_flight = 0

    def start_closing(self) -> Awaitable[object]:
        """Send CLS at once; the result waits until nsqd confirms it or the connection is lost."""
        if not self.connection.live:
            return DONE
        # nsqd delivers nothing after CLS. With the old RDY, a batch would wait for messages that do
        # not come (`Consumer._is_full`).
        self.window.ready = 0
        return asyncio.gather(self.connection.request(commands.cls()), return_exceptions=True)


def _number(facts: dict[str, Any], name: str, default: int) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and value > 0 else default


def size_of(parts: Iterable[ReceivedMessages | Message]) -> int:
    """Return the total number of messages."""
    return sum(len(each) if isinstance(each, ReceivedMessages) else 1 for each in parts)


class Inbox:
    """A queue of received messages, first in, first out.

    Args:
        expire: called with the monotonic time when a message with an ended timeout is found.

    Attributes:
        waiting: the messages, opened or not, in the order in which they arrived.
    """

    def __init__(self, expire: Callable[[float], None]) -> None:
        self.waiting: deque[ReceivedMessages | Message] = deque()
        self._expire = expire
        self._expired_until = 0.0
        self._ended = self._hurried = False
        self._takers: deque[asyncio.Future[None]] = deque()

    def put(self, received: ReceivedMessages) -> None:
        """Add received messages."""
        self.waiting.append(received)
        self._wake(len(received))

    def hurry(self) -> None:
        """Hand out batches that are not full: the consumer is stopping."""
        self._hurried = True
        self._wake(len(self._takers))

    def end(self) -> None:
        """Close the inbox and wake all waiting tasks."""
        self._ended = True
        self._wake(len(self._takers))

    # Taking

    def take(self, now: float) -> Message | None:
        """Return the next message; None: there is none, or the inbox is closed.

        Args:
            now: the monotonic time; messages whose timeout ended by then are skipped.
        """
        waiting = self.waiting
        while waiting and not self._ended:
            each = waiting.popleft()
            if isinstance(each, ReceivedMessages):
                waiting.extendleft(reversed(each.open()))
            elif each.expires_at > now or self._is_fresh(each, now):  # mostly without a call
                return each
        return None

    def take_many(self, count: int) -> list[ReceivedMessages | Message]:
        """Return up to ``count`` of the messages present, without waiting."""
        found: list[ReceivedMessages | Message] = []
        now = time.monotonic()
        while count and self.waiting:
            each = self.waiting.popleft()
            if not self._is_fresh(each, now):
                continue
            if isinstance(each, ReceivedMessages) and len(each) > count:
                self.waiting.appendleft(each)
                each = each.split(count)
            found.append(each)
            count -= size_of([each])
        return found

    async def gather(
        self, count: int, wait_seconds: float, is_full: Callable[[], bool]
    ) -> list[ReceivedMessages | Message]:
        """Wait for up to ``count`` messages and return them.

        The wait ends after ``wait_seconds``, or when ``is_full`` reports that no more will arrive.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        found = self.take_many(count)
        try:
            while (more := count - size_of(found)) and clock() < deadline:
                # Full: nsqd sends nothing until this batch is answered, so waiting longer would
                # only delay it.
                if self._hurried or self._ended or is_full():
                    break
                await self._news(deadline)
                found += self.take_many(more)
        except asyncio.CancelledError:
            # No other code knows these messages: dropped here, they would stay in flight until
            # their timeout.
            self.waiting.extendleft(reversed(found))
            self._wake(len(found))
            raise
        # Checked again: a timeout may have ended, or a connection been lost, during the wait.
        now = time.monotonic()
        return [each for each in found if self._is_fresh(each, now)]

    async def filled(self) -> bool:
        """Wait until there may be a message to take; False: the inbox is closed."""
        while not (self._ended or self.waiting):
            await self._news(None)
        return not self._ended

    def give_back(self) -> None:
        """Requeue all messages not taken, with delay 0, for other consumers."""
        for each in self.take_many(size_of(self.waiting)):
            each._respond(each, "requeue", 0, False)

    def _is_fresh(self, each: ReceivedMessages | Message, now: float) -> bool:
        """Whether nsqd still waits for a response."""
        if each.expires_at > now:
            return True
        if each.expires_at > self._expired_until:  # one call for all that expired until now
            self._expire(now)
            self._expired_until = now
        return False

    # Waiting

    async def _news(self, deadline: float | None) -> None:
        """Wait until a message arrives, or until the deadline; loop time."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                try:
                    await taker
                except asyncio.CancelledError:  # the timeout, too
                    self._wake(1)  # another task takes the message that may have woken this one
                    raise

    def _wake(self, count: int) -> None:
        """Wake up to ``count`` waiting tasks."""
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1


class Batch(Delivered, Sequence[Message]):
    """Messages in the order in which they arrived.

    ``bodies`` is the fastest access to the published bytes. ``finish``, ``requeue`` and ``touch``
    take effect when called, as those of a message do; awaiting the result only applies
    back-pressure, while an nsqd reads too slowly.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    __slots__ = ("_around", "_messages", "_parts", "responded")

    def __init__(self, parts: Iterable[ReceivedMessages | Message]) -> None:
        self.responded = False
        self._parts = list(parts)
        self._messages: list[Message] | None = None
        self._around: Around = contextlib.nullcontext

    def __len__(self) -> int:
        return size_of(self._parts)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        """Return a message, or a list of messages for a slice."""
        return self._opened()[at]

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages."""
        return iter(self._opened())

    @property
    def bodies(self) -> list[bytes]:
        """The published bytes of each message."""
        found: list[bytes] = []
        for part in self._parts:
            found += part.bodies() if isinstance(part, ReceivedMessages) else (part.body,)
        return found

    @property
    def attempts_max(self) -> int:
        """The highest ``attempts`` of any message; 0 for an empty batch."""
        return max((part.attempts for part in self._parts), default=0)

    @property
    def expires_at(self) -> float:
        """When the first message timeout of the batch ends; monotonic seconds."""
        return min((part.expires_at for part in self._parts), default=math.inf)

    def observe(self, around: Around) -> None:
        """Respond within ``around("finish")`` or ``around("requeue")`` from now on."""
        self._around = around

    def _respond_once(
        self, kind: Response, delay: float | None = None, backoff: bool = True
    ) -> Awaitable[None]:
        """Respond to each part without a response; the result awaits the slowest connection."""
        if self.responded:
            raise AlreadyRespondedError("the batch was already finished or requeued")
        is_last = self.responded = kind != "touch"
        slow = []
        with self._around(kind) if is_last else contextlib.nullcontext():
            for part in [each for each in self._parts if not each.responded]:
                part.responded = is_last
                answer = part._respond(part, kind, delay, backoff)
                backoff = False  # a failed batch counts as one failure
                # `gather` would make a task even for each answer that waits for nothing.
                if answer is not DONE:
                    slow.append(answer)
        return cast(Awaitable[None], asyncio.gather(*slow)) if slow else DONE

    def _opened(self) -> list[Message]:
        if self._messages is None:
            messages: list[Message] = []
            for part in self._parts:
                messages += part.open() if isinstance(part, ReceivedMessages) else (part,)
            # Each message now has a response of its own: no group may be answered as one.
            self._parts = list(messages)
            self._messages = messages
        return self._messages

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"
