"""Messages, batches and responses passed between threads, and a byte limit for publishes.

1. Both threads use the same `Message`. A response is recorded on the calling thread, where a second
   one raises, and is sent from the session's thread soon after. The same holds for a batch.
2. A batch makes its ``Message`` objects only when the program accesses one, and only on the
   session's thread.
3. ``ByteLimit`` admits a limited number of bytes at a time, but always one publish, however large.
   A wait can be interrupted (Ctrl-C); the bytes then do not count. ``leave`` waits for no lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial

from sparq.client.batch import Answer, Batch
from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.connection import DONE
from sparq.client.message import Message, Responder


class MessageProxy:
    """A ``Responder`` that passes responses on to the session's thread."""

    __slots__ = ("_responder", "_thread")

    def __init__(self, thread: LoopThread, responder: Responder) -> None:
        self._thread = thread
        self._responder = responder

    @property
    def address(self) -> str:
        """The nsqd's ``host:port`` or path."""
        return self._responder.address

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN."""
        self._thread.post(self._responder.finish, message)
        return DONE

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ."""
        self._thread.post(self._responder.requeue, message, delay, backoff)
        return DONE

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""
        self._thread.post(self._responder.touch, message)
        return DONE


def redirect_responses(thread: LoopThread, messages: Sequence[Message]) -> list[Message]:
    """Make responses to messages go through the session's thread; return the messages as a list."""
    by = partial(MessageProxy, thread)
    for message in messages:
        message.redirect(by)
    return list(messages)


class BlockingBatch(Batch):
    """A `Batch` of the blocking API: nothing is awaited; responses are sent soon after the call.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    __slots__ = ("_thread",)

    def __init__(self, thread: LoopThread, batch: Batch) -> None:
        super().__init__(batch._parts)
        self._thread = thread

    def _answer(self, answer: Answer) -> Awaitable[None]:
        self._thread.post(super()._answer, answer)
        return DONE

    def _opened(self) -> list[Message]:
        if self._messages is None:
            opened = super()._opened
            self._thread.ask(lambda: redirect_responses(self._thread, opened()))
        return super()._opened()


class ByteLimit:
    """A byte limit: admits publishes while they fit, and makes the rest wait."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._count = self._bytes = 0
        # Held only to count. Reentrant: a signal handler may run while it is held.
        self._lock = threading.RLock()
        self._left: deque[int] = deque()
        self._waiting: deque[threading.Lock] = deque()

    @property
    def count(self) -> int:
        """The number of admitted publishes."""
        with self._lock:
            self._count_left()
            return self._count

    def enter(self, size: int) -> None:
        """Wait until ``size`` bytes fit, and count them."""
        while not self._admits(size):
            news = threading.Lock()
            news.acquire()
            self._waiting.append(news)
            # Again: bytes may have left before `leave` could know of this wait.
            if self._admits(size):
                return
            news.acquire()

    def leave(self, size: int) -> None:
        """Stop counting ``size`` bytes."""
        self._left.append(size)
        with contextlib.suppress(IndexError):  # another thread may wake the last one
            while self._waiting:
                self._waiting.popleft().release()

    def _admits(self, size: int) -> bool:
        with self._lock:
            self._count_left()
            if self._count and self._bytes + size > self._bytes_max:
                return False
            self._count += 1
            self._bytes += size
            return True

    def _count_left(self) -> None:
        with contextlib.suppress(IndexError):  # a signal handler may count the last one
            while self._left:
                size = self._left.popleft()
                self._count -= 1
                self._bytes -= size
