"""The inbox of a consumer: received messages that were not handed out yet.

1. Any number of tasks may take messages, one by one or in batches.
2. Stale messages (nsqd redelivers them regardless of the response) are dropped, not handed out. The
   message timeout is checked when a message is taken; the consumer is notified (``expire``).
3. A cancelled waiter passes its wake-up on to the next.

``max_in_flight`` bounds the inbox: nsqd sends no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from sparq.client.message import Message
from sparq.client.subscription import ReceivedMessages


class Inbox:
    """A queue of received messages, first in, first out.

    Args:
        expire: called with the monotonic time when a message with an ended timeout is found.
    """

    def __init__(self, expire: Callable[[float], None]) -> None:
        self._expire = expire
        self._expired_until = 0.0
        self._ended = self._hurried = False
        # `take` opens a group only once the one before it was taken, so `_opened` comes first.
        self._arrived: deque[ReceivedMessages] = deque()
        self._opened: deque[Message] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()

    def put(self, received: ReceivedMessages) -> None:
        """Add received messages."""
        self._arrived.append(received)
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
        opened = self._opened
        while not self._ended:
            while opened:
                message = opened.popleft()
                # The fast path of `_is_fresh`, without a call per message.
                if message.expires_at > now or self._is_fresh(message, now):
                    return message
            if not self._arrived:
                break
            opened.extend(self._arrived.popleft().open())
        return None

    def take_many(self, count: int) -> list[ReceivedMessages | Message]:
        """Return up to ``count`` of the messages present, without waiting."""
        found: list[ReceivedMessages | Message] = []
        now = time.monotonic()
        while count and self._opened:
            message = self._opened.popleft()
            if self._is_fresh(message, now):
                found.append(message)
                count -= 1
        while count and self._arrived:
            received = self._arrived[0]
            is_fresh = self._is_fresh(received, now)
            if not is_fresh or len(received) <= count:
                self._arrived.popleft()
            else:
                received = received.split(count)
            if is_fresh:
                found.append(received)
                count -= len(received)
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
            for each in reversed(found):
                if isinstance(each, ReceivedMessages):
                    self._arrived.appendleft(each)
                else:
                    self._opened.appendleft(each)
            self._wake(len(found))
            raise
        # Checked again: a timeout may have ended, or a connection been lost, during the wait.
        now = time.monotonic()
        return [each for each in found if self._is_fresh(each, now)]

    async def filled(self) -> bool:
        """Wait until there may be a message to take; False: the inbox is closed."""
        while not (self._ended or self._opened or self._arrived):
            await self._news(None)
        return not self._ended

    def give_back(self) -> None:
        """Requeue all messages not taken, with delay 0, for other consumers."""
        for each in self.take_many(size_of(self._arrived) + len(self._opened)):
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
        try:
            async with asyncio.timeout_at(deadline):
                await taker
        except (TimeoutError, asyncio.CancelledError) as error:
            if not taker.cancelled():
                self._wake(1)  # another task takes the message that woke this one
            elif taker in self._takers:  # `_wake` may have removed it already
                self._takers.remove(taker)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _wake(self, count: int) -> None:
        """Wake up to ``count`` waiting tasks."""
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1


def size_of(parts: Iterable[ReceivedMessages | Message]) -> int:
    """Return the total number of messages."""
    return sum(len(each) if isinstance(each, ReceivedMessages) else 1 for each in parts)
