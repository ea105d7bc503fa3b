"""What was asked on a connection and is not answered yet.

1. nsqd answers in the order of the questions, so answers are matched first in, first out. Who no
   longer waits keeps its place: its answer finds nobody and disturbs no one.
2. A run of plain ``OK``s, which is what publishing gets, is matched as one.
3. Whoever asks is any ``Answer``: a future, or what a producer keeps of a publish.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from sparq.client.errors import ConnectionLostError

OK: Final = b"OK"


class Answer(Protocol):
    """Waits for one answer; an ``asyncio.Future[bytes]`` is one."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, result: bytes, /) -> None:
        """This is the response."""

    def set_exception(self, exception: Exception, /) -> None:
        """It is refused (``RemoteError``), or will not come (``ConnectionLostError``)."""


class Requests:
    """The requests of one connection, the oldest first.

    Attributes:
        size: bytes of the commands that are not answered.
    """

    __slots__ = ("_waiting", "size")

    def __init__(self) -> None:
        self.size = 0
        self._waiting: deque[tuple[Answer, int, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> float | None:
        """When the one was asked that has waited longest; None when there is none."""
        return self._waiting[0][2] if self._waiting else None

    def add(self, answer: Answer, size: int, asked_at: float) -> None:
        """Note a question that is being sent."""
        self._waiting.append((answer, size, asked_at))
        self.size += size

    def confirm(self, count: int) -> int:
        """So many ``OK``s have come; how many of them answer nothing."""
        waiting = self._waiting
        matched = min(count, len(waiting))
        for _ in range(matched):
            answer, size, _ = waiting.popleft()
            self.size -= size
            if not answer.done():
                answer.set_result(OK)
        return count - matched

    def respond(self, data: bytes) -> bool:
        """A response has come; False when it answers nothing."""
        if (answer := self._next()) is None:
            return False
        if not answer.done():
            answer.set_result(data)
        return True

    def refuse(self, error: Exception) -> bool:
        """A refusal has come; False when it answers nothing."""
        if (answer := self._next()) is None:
            return False
        if not answer.done():
            answer.set_exception(error)
        return True

    def lose(self, reason: str, executed: bool | None) -> None:
        """The connection is gone: no answer will come to any."""
        waiting, self._waiting = self._waiting, deque()
        self.size = 0
        for answer, _, _ in waiting:
            if not answer.done():
                answer.set_exception(ConnectionLostError(reason, executed))

    def _next(self) -> Answer | None:
        if not self._waiting:
            return None
        answer, size, _ = self._waiting.popleft()
        self.size -= size
        return answer
