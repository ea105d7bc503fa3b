"""Messages, batches and responses passed between threads, and a byte limit for publishes.

1. Both threads use the same `Message`. A response is recorded on the calling thread, where a second
   one raises, and is sent from the session's thread soon after. The same holds for a batch.
2. A batch makes its ``Message`` objects only when the program accesses one, and only on the
   session's thread.
3. ``ByteLimit`` admits a limited number of bytes at a time, but always one publish, however large.
   A wait can be interrupted (Ctrl-C); the bytes then do not count.
"""

from __future__ import annotations

import threading
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
    """A byte limit: admits publishes while they fit, and makes the rest wait.

    Attributes:
        count: number of admitted publishes.
    """

    def __init__(self, bytes_max: int) -> None:
        self.count = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        """Wait until ``size`` bytes fit, and count them."""
        with self._changed:
            while self.count and self._bytes + size > self._bytes_max:
                self._changed.wait()
            self.count += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        """Stop counting ``size`` bytes."""
        with self._changed:
            self.count -= 1
            self._bytes -= size
            self._changed.notify_all()
