"""What was asked on a connection and is not answered yet.

1. nsqd answers in the order of the questions, so answers are matched first in, first out. Who no
   longer waits keeps its place: its answer finds nobody and disturbs no one.
2. A run of plain ``OK``s, which is what publishing gets, is matched as one.
3. What is done for every answer is little: work per read, not per answer, wherever it can be.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, Self

from sparq.client.errors import ConnectionLostError

OK: Final = b"OK"


class Request(ABC):
    """One question, and what is done with its answer.

    Attributes:
        size: bytes of its command.
        asked_at: when it was sent, by the loop's clock.
    """

    __slots__ = ("asked_at", "size")

    size: int
    asked_at: float

    @abstractmethod
    def confirm(self) -> None:
        """nsqd says OK."""

    @classmethod
    def confirm_all(cls, requests: Sequence[Self]) -> None:
        """nsqd says OK to each of these, which are of this kind and of one connection."""
        for request in requests:
            request.confirm()

    @abstractmethod
    def respond(self, data: bytes) -> None:
        """nsqd says something else."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """nsqd refuses it (``RemoteError``), or will not answer (``ConnectionLostError``)."""


class Awaited(Request):
    """A request whose answer a future gets, if anybody still waits for that."""

    __slots__ = ("_future",)

    def __init__(self, size: int, asked_at: float, future: asyncio.Future[bytes]) -> None:
        self.size = size
        self.asked_at = asked_at
        self._future = future

    def confirm(self) -> None:
        """The future's result is OK."""
        self.respond(OK)

    def respond(self, data: bytes) -> None:
        """The future's result is this."""
        if not self._future.done():
            self._future.set_result(data)

    def fail(self, error: Exception) -> None:
        """The future raises it."""
        if not self._future.done():
            self._future.set_exception(error)


class Requests:
    """The requests of one connection, the oldest first.

    Attributes:
        size: bytes of the commands that are not answered.
        waiting: they themselves, the oldest first; whoever appends one adds to the size.
    """

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        self.waiting: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def oldest(self) -> float | None:
        """When the one was asked that has waited longest; None when there is none."""
        return self.waiting[0].asked_at if self.waiting else None

    def replace(self, others: Mapping[Request, Request]) -> None:
        """Let others of the same size wait in the places of some."""
        self.waiting = deque([others.get(request, request) for request in self.waiting])

    def confirm(self, count: int) -> int:
        """So many ``OK``s have come; how many of them answer nothing."""
        if count == 1 and self.waiting:  # as who awaits each publish has it
            request = self.waiting.popleft()
            self.size -= request.size
            request.confirm()
            return 0
        take = self.waiting.popleft
        confirmed = [take() for _ in range(min(count, len(self.waiting)))]
        self.size -= sum([request.size for request in confirmed])
        kind: type[Request]
        for kind, alike in groupby(confirmed, type):
            kind.confirm_all(list(alike))
        return count - len(confirmed)

    def next(self) -> Request | None:
        """The one that the next answer is for; None when nothing was asked."""
        if not self.waiting:
            return None
        request = self.waiting.popleft()
        self.size -= request.size
        return request

    def lose(self, reason: str, executed: bool | None) -> None:
        """The connection is gone: no answer will come to any."""
        waiting, self.waiting = self.waiting, deque()
        self.size = 0
        for request in waiting:
            request.fail(ConnectionLostError(reason, executed))
