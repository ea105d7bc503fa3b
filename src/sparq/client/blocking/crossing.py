"""What crosses threads: messages and batches with their answers, and room for what is published.

1. A message is the same `Message` on both sides. Its answer, or a batch's, is noted where it is
   given, so that a second one is an error there, and takes effect on the session's thread soon
   after.
2. A batch stays closed until somebody looks at a message of it: only the session's thread opens it.
3. Room is so many bytes at a time, and no more; one alone is let in, however large it is. Who waits
   for it may be interrupted (Ctrl-C): it has taken none then.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Sequence
from functools import partial

from sparq.client.batch import Answer, Batch
from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.connection import DONE
from sparq.client.message import Message, Responder


class Crossing:
    """A ``Responder`` that passes answers on to the session's thread."""

    __slots__ = ("_responder", "_thread")

    def __init__(self, thread: LoopThread, responder: Responder) -> None:
        self._thread = thread
        self._responder = responder

    @property
    def address(self) -> str:
        """The nsqd's ``host:port``."""
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


def cross(thread: LoopThread, messages: Sequence[Message]) -> list[Message]:
    """The same messages, to be answered for from any thread."""
    by = partial(Crossing, thread)
    for message in messages:
        message.redirect(by)
    return list(messages)


class BlockingBatch(Batch):
    """A `Batch` of the blocking face: nothing need be awaited, its answers leave soon after.

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
            self._thread.ask(lambda: cross(self._thread, opened()))
        return super()._opened()


class Room:
    """Lets in what fits, and makes the rest wait.

    Attributes:
        count: how many are inside.
    """

    def __init__(self, bytes_max: int) -> None:
        self.count = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        """Wait until there is room for so many bytes, and take it."""
        with self._changed:
            while self.count and self._bytes + size > self._bytes_max:
                self._changed.wait()
            self.count += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        """Give back what was taken."""
        with self._changed:
            self.count -= 1
            self._bytes -= size
            self._changed.notify_all()
