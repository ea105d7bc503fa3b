"""The inbox of a consumer: what has arrived and nobody has taken yet.

1. Whoever takes leaves the rest to others: any number of tasks may take, singly or in batches.
2. What is stale (nsqd delivers it again whatever the answer) is thrown away, not given. Whether
   its time is over is looked at as it is given, and told to the consumer (``expire``).
3. Who waits and is cancelled passes on the news that woke it.

``max_in_flight`` bounds it: nsqd sends no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from sparq.client.message import Message
from sparq.client.subscription import Received


class Inbox:
    """A queue of what arrived, first come, first served.

    Args:
        expire: called with the monotonic time when something is found whose time is over.

    Attributes:
        ended: nothing more is given.
    """

    def __init__(self, expire: Callable[[float], None]) -> None:
        self.ended = False
        self._expire = expire
        self._hurried = False
        self._arrived: deque[Received] = deque()
        self._opened: deque[Message] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()

    def put(self, received: Received) -> None:
        """Add what has arrived."""
        self._arrived.append(received)
        self._wake(len(received))

    def hurry(self) -> None:
        """Let nobody wait for a batch to become larger: the consumer is stopping."""
        self._hurried = True
        self._wake(len(self._takers))

    def end(self) -> None:
        """Give nothing more; who waits is told so."""
        self.ended = True
        self._wake(len(self._takers))

    # Taking

    def take(self, now: float) -> Message | None:
        """The next message; None when there is none, or no more is given.

        Args:
            now: the monotonic time, by which it must not be over.
        """
        opened = self._opened
        while not self.ended:
            while opened:
                message = opened.popleft()
                # As `_is_fresh`, without a call for each message.
                if (not message.stale and message.expires_at > now) or self._is_fresh(message, now):
                    return message
            if not self._arrived:
                break
            opened.extend(self._arrived.popleft().open())
        return None

    def take_many(self, count: int) -> list[Received | Message]:
        """The next messages, ``count`` at most, as far as they are there."""
        found: list[Received | Message] = []
        now = time.monotonic()
        while count and self._opened:
            message = self._opened.popleft()
            if self._is_fresh(message, now):
                found.append(message)
                count -= 1
        while count and self._arrived:
            received = self._arrived[0]
            if not self._is_fresh(received, now) or len(received) <= count:
                self._arrived.popleft()
            else:
                received = received.split(count)
            if not received.stale:
                found.append(received)
                count -= len(received)
        return found

    async def gather(
        self, count: int, wait_seconds: float, is_full: Callable[[], bool]
    ) -> list[Received | Message]:
        """The next messages, after having waited for ``count`` of them.

        It waits no longer than so many seconds, and not while ``is_full`` says that no more come.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_seconds
        found = self.take_many(count)
        try:
            while (more := count - size_of(found)) and clock() < deadline:
                if self._hurried or self.ended or is_full():
                    break
                await self._news(deadline)
                found += self.take_many(more)
        except asyncio.CancelledError:
            self._put_back(found)
            raise
        now = time.monotonic()
        return [each for each in found if self._is_fresh(each, now)]

    async def filled(self) -> bool:
        """Wait until there may be something to take; False when no more is given."""
        while not self.ended:
            if self._opened or self._arrived:
                return True
            await self._news(None)
        return False

    def give_back(self) -> None:
        """REQ what nobody has taken: another consumer may have it at once."""
        for each in self.take_many(size_of(self._arrived) + len(self._opened)):
            each.requeue(0, backoff=False)

    def _is_fresh(self, each: Received | Message, now: float) -> bool:
        """Whether nsqd still waits for an answer."""
        if not each.stale and each.expires_at <= now:
            self._expire(now)
            each.stale = True
        return not each.stale

    def _put_back(self, found: list[Received | Message]) -> None:
        for each in reversed(found):
            if isinstance(each, Received):
                self._arrived.appendleft(each)
            else:
                self._opened.appendleft(each)
        self._wake(len(found))

    # Waiting

    async def _news(self, deadline: float | None) -> None:
        """Wait until something arrives, but no longer than to a time of the loop."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            async with asyncio.timeout_at(deadline):
                await taker
        except TimeoutError:
            self._leave(taker)
        except asyncio.CancelledError:
            self._leave(taker)
            raise

    def _leave(self, taker: asyncio.Future[None]) -> None:
        if not taker.cancelled():
            self._wake(1)
        elif taker in self._takers:  # whoever woke others meanwhile has taken it out
            self._takers.remove(taker)

    def _wake(self, count: int) -> None:
        """Let so many waiting tasks look."""
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1


def size_of(parts: Iterable[Received | Message]) -> int:
    """How many messages these are."""
    return sum(len(each) if isinstance(each, Received) else 1 for each in parts)
