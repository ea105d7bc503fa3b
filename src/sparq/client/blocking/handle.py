"""The common part of a session's producers and consumers: delegation and closing.

1. An asyncio producer or consumer does the work on the session's thread; a handle calls it there.
2. A handle is closed once. If the caller is interrupted while it waits (Ctrl-C), closing goes on in
   the background; if it has not finished when the session's thread ends, it ends with the thread.
3. In a forked process closing does nothing: the connections belong to the parent process.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Self, TypeVar

from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.client.errors import ClosedError
from sparq.client.producer import Producer

P = ParamSpec("P")
T = TypeVar("T")

HERE_ALONE: Final = (
    "a session, its producers and its consumers cannot be sent to another process: "
    "make a session there"
)


class Closing(ABC):
    """An object that its ``with`` block closes, and that cannot be pickled."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(HERE_ALONE)

    @abstractmethod
    def close(self) -> None:
        """Close the object; a second call does nothing."""


class Shown(Generic[T]):
    """An attribute of the asyncio producer or consumer, for any thread to read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, handle: SessionHandle, owner: type) -> T:
        value: T = getattr(handle._awaited, self._name)
        return value


class SessionHandle(Closing):
    """A producer or a consumer of a session.

    Attributes:
        closed: whether it is closed.
        config: the options in use.
        connections: the connected nsqds, as ``host:port``.
        errors: why an nsqd is not connected or an nsqlookupd query failed, by address or URL.
    """

    config = Shown[Config]()
    connections = Shown[list[str]]()
    errors = Shown[dict[str, str]]()

    def __init__(self, thread: LoopThread, awaited: Producer | Consumer) -> None:
        self.closed = False
        self._thread = thread
        self._awaited = awaited

    def close(self) -> None:
        """Close the producer or consumer, but not the session.

        A producer waits up to ``stop_timeout`` seconds for pending publishes. A second call, or one
        in a forked process, does nothing. Ctrl-C ends only the wait: closing goes on in the
        background while the session is open.
        """
        close_all(self._thread, [self])

    @abstractmethod
    async def _end(self) -> None:
        """On the session's thread: close the asyncio producer or consumer."""


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """Turn a coroutine method into a blocking one of a `SessionHandle`, with the same docstring."""

    @wraps(method)
    def wait(handle: SessionHandle, /, *arguments: P.args, **named: P.kwargs) -> T:
        result: T = handle._thread.call(method, handle._awaited, *arguments, **named)
        return result

    return wait


def on_session_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Turn a method that is not a coroutine into one that runs on the session's thread."""

    @wraps(method)
    def ask(handle: SessionHandle, /, *arguments: P.args, **named: P.kwargs) -> T:
        result: T = handle._thread.call(method, handle._awaited, *arguments, **named)
        return result

    return ask


def close_all(thread: LoopThread, handles: Sequence[SessionHandle], *arguments: Any) -> None:
    """Close all open handles at the same time; ``arguments`` are passed to each ``_end``."""
    still_open = [each for each in handles if not each.closed]
    for each in still_open:
        each.closed = True
    with contextlib.suppress(ClosedError):  # the thread has ended, or belongs to another process
        endings = [thread.submit(each._end, *arguments) for each in still_open]
        for ending in endings:
            thread.wait(ending)
