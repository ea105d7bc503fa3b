"""What a session makes, and how it ends: the same for a producer and a consumer.

1. The work is done by one with an event loop, on the session's thread; here it is asked and told.
2. It is closed once. Who is interrupted while waiting for that (Ctrl-C) leaves the closing to go on
   by itself; what is left of it when the session's thread ends is ended with that.
3. In a forked process closing does nothing: what is to be closed is the parent's.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, Self, TypeVar

from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.client.errors import ClosedError
from sparq.client.producer import Producer

P = ParamSpec("P")
T = TypeVar("T")

HERE_ALONE: Final = (
    "a session, and what it makes, cannot be sent to another process: make a session there"
)


class Closing(ABC):
    """Is closed where its ``with`` block is left, and stays in the process that made it."""

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(HERE_ALONE)

    @abstractmethod
    def close(self) -> None:
        """End it; harmless when it is closed."""


class Member(Closing):
    """A producer or a consumer of a session.

    Attributes:
        closed: whether it is closed.
    """

    def __init__(self, thread: LoopThread, awaited: Producer | Consumer) -> None:
        self.closed = False
        self._thread = thread
        self._awaited = awaited

    @property
    def config(self) -> Config:
        """The options in use."""
        return self._awaited.config

    @property
    def connections(self) -> list[str]:
        """The nsqds that are connected, as ``host:port``."""
        return self._thread.ask(lambda: self._awaited.connections)

    @property
    def errors(self) -> dict[str, str]:
        """Why an nsqd is not connected, or an nsqlookupd has no answer, for each that should be."""
        return self._thread.ask(lambda: self._awaited.errors)

    def close(self) -> None:
        """Close it alone."""
        close_all(self._thread, [self])

    @abstractmethod
    async def _end(self) -> None:
        """On the session's thread: end what does the work."""


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A coroutine method as a method of a `Member` that waits: the same errors, and text."""

    @wraps(method)
    def wait(member: Member, /, *arguments: P.args, **named: P.kwargs) -> T:
        return member._thread.call(method, member._awaited, *arguments, **named)

    return wait


def asked(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method that awaits nothing, likewise: it is called on the session's thread."""

    @wraps(method)
    def ask(member: Member, /, *arguments: P.args, **named: P.kwargs) -> T:
        return member._thread.ask(lambda: method(member._awaited, *arguments, **named))

    return ask


def close_all(thread: LoopThread, members: Sequence[Member], *arguments: Any) -> None:
    """Close those that are open, at the same time; what is to be known for it, each is told."""
    still_open = [each for each in members if not each.closed]
    for each in still_open:
        each.closed = True
    with contextlib.suppress(ClosedError):  # they ended with the thread, or are another process's
        endings = [thread.submit(each._end, *arguments) for each in still_open]
        for ending in endings:
            thread.wait(ending)
