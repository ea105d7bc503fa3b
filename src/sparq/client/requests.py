"""The pending requests of a connection.

1. nsqd answers in the order of the requests, so answers are matched first in, first out. A
   cancelled request keeps its place; its answer is dropped.
2. A run of plain ``OK``s, the usual answers to publishes, is matched in one step.
3. Work is done per read from the socket instead of per answer where possible.
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


class PendingRequest(ABC):
    """One pending request; its methods handle the answer.

    Attributes:
        size: size of its command in bytes.
        asked_at: when it was sent; loop time.
    """

    __slots__ = ("asked_at", "size")

    size: int
    asked_at: float

    @abstractmethod
    def confirm(self) -> None:
        """Handle the answer OK."""

    @classmethod
    def confirm_all(cls, requests: Sequence[Self]) -> None:
        """Handle OK for several requests of this class on one connection."""
        for request in requests:
            request.confirm()

    @abstractmethod
    def respond(self, data: bytes) -> None:
        """Handle any other response."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Handle a refusal (``RemoteError``) or a lost connection (``ConnectionLostError``)."""


class Awaited(PendingRequest):
    """A request whose answer becomes the result of a future, unless that was cancelled."""

    __slots__ = ("_future",)

    def __init__(self, size: int, asked_at: float, future: asyncio.Future[bytes]) -> None:
        self.size = size
        self.asked_at = asked_at
        self._future = future

    def confirm(self) -> None:
        """Set OK as the future's result."""
        self.respond(OK)

    def respond(self, data: bytes) -> None:
        """Set the response as the future's result."""
        if not self._future.done():
            self._future.set_result(data)

    def fail(self, error: Exception) -> None:
        """Set the future's exception."""
        if not self._future.done():
            self._future.set_exception(error)


class PendingRequests:
    """The pending requests of one connection, oldest first.

    Attributes:
        size: total size of their commands in bytes.
        waiting: the requests, oldest first; code that appends one must add its size.
    """

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        self.waiting: deque[PendingRequest] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def oldest(self) -> float | None:
        """When the oldest pending request was sent; None: none is pending."""
        return self.waiting[0].asked_at if self.waiting else None

    def replace(self, others: Mapping[PendingRequest, PendingRequest]) -> None:
        """Replace some pending requests with others of the same size, in the same places."""
        self.waiting = deque([others.get(request, request) for request in self.waiting])

    def confirm(self, count: int) -> int:
        """Match ``count`` OKs to the oldest requests; return how many match no request."""
        if count == 1 and self.waiting:  # fast path: the caller awaits each publish
            request = self.waiting.popleft()
            self.size -= request.size
            request.confirm()
            return 0
        take = self.waiting.popleft
        confirmed = [take() for _ in range(min(count, len(self.waiting)))]
        self.size -= sum([request.size for request in confirmed])
        # Neighbours of one class, not all of one class: outcomes keep the order of the answers.
        kind: type[PendingRequest]
        for kind, alike in groupby(confirmed, type):
            kind.confirm_all(list(alike))
        return count - len(confirmed)

    def next(self) -> PendingRequest | None:
        """Remove and return the oldest request; None: none is pending."""
        if not self.waiting:
            return None
        request = self.waiting.popleft()
        self.size -= request.size
        return request

    def lose(self, reason: str, executed: bool | None) -> None:
        """Fail all pending requests: the connection is lost."""
        waiting, self.waiting = self.waiting, deque()
        self.size = 0
        for request in waiting:
            request.fail(ConnectionLostError(reason, executed))
