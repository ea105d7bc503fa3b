"""A batch whose answers cross threads.

1. It stays closed until somebody looks at a message of it: only the session's thread opens it.
2. Its answer is noted where it is given, so that a second one is an error there, and takes effect
   on the session's thread soon after.
"""

from __future__ import annotations

from sparq.client.batch import AnyBatch, Batch
from sparq.client.blocking.crossing import cross
from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.delays import check_delay
from sparq.client.message import Message


class BlockingBatch(AnyBatch):
    """Messages that are handled, and answered for, together; in the order in which they arrived.

    ``bodies`` is the fastest way to what was published: messages of their own are made only when
    somebody looks at one (``batch[0]``, ``for message in batch``). Those that were answered for
    singly are left out of the answer for the batch.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    def __init__(self, thread: LoopThread, batch: Batch) -> None:
        super().__init__()
        self._thread = thread
        self._batch = batch
        self._messages: list[Message] | None = None

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def bodies(self) -> list[bytes]:
        """The published bytes of each message."""
        return self._batch.bodies

    @property
    def attempts_max(self) -> int:
        """No message here was delivered more often."""
        return self._batch.attempts_max

    @property
    def expires_at(self) -> float:
        """When nsqd's patience with one of them ends first, on the monotonic clock."""
        return self._batch.expires_at

    def finish(self) -> None:
        """FIN for each that was not answered for.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
        """
        self._check()
        self._thread.post(self._batch.finish)
        self.responded = True

    def requeue(self, delay_seconds: float | None = None, *, backoff: bool = True) -> None:
        """REQ for each that was not answered for: deliver them again after the delay.

        Args:
            delay_seconds: by default a delay that grows with ``attempts``.
            backoff: whether this is a failure on which the whole consumer should step back.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
            ValueError: the delay is negative, or longer than nsqd can count.
        """
        self._check()
        if delay_seconds is not None:
            check_delay(delay_seconds)
        self._thread.post(lambda: self._batch.requeue(delay_seconds, backoff=backoff))
        self.responded = True

    def touch(self) -> None:
        """TOUCH for each that was not answered for: one more message timeout from now.

        Raises:
            AlreadyRespondedError: the batch was answered for before.
        """
        self._check()
        self._thread.post(self._batch.touch)

    def _opened(self) -> list[Message]:
        if self._messages is None:
            self._messages = self._thread.ask(lambda: cross(self._thread, list(self._batch)))
        return self._messages

    def __repr__(self) -> str:
        return f"<BlockingBatch of {len(self)} messages>"
