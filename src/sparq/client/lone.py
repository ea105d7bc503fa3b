"""A future-like object for the outcome of the only pending publish.

A future resumes its task in the next loop iteration, so a program that awaits each publish before
the next one needs two iterations per message. ``AwaitedResult`` resumes the task directly where
nsqd's answer is read.

1. It resumes the task directly only for a receipt and only while no task runs; otherwise in the
   next loop iteration, like a future.
2. ``SystemExit`` and ``KeyboardInterrupt`` from the task end the loop, not the connection that
   received the answer.
3. One task awaits it, once. It is future-like for `asyncio.isfuture` and implements only what a
   task needs. It is used only for one publish at a time: with several pending, futures are cheaper,
   as they are implemented in C, and a task resumed before the others would send its next publish
   separately from theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Final

from sparq.client.publish import Receipt

Wake = Callable[["AwaitedResult"], object]

_WAITING: Final = 0
_TOLD: Final = 1
_CANCELLED: Final = 2


class AwaitedResult:
    """A ``ResultSink`` that one task awaits."""

    __slots__ = (
        *("_asyncio_future_blocking", "_context", "_error"),
        *("_loop", "_receipt", "_state", "_wake"),
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._state = _WAITING
        self._wake: Wake | None = None
        self._context: Context | None = None
        self._receipt: Receipt | None = None
        self._error: BaseException | None = None

    # Called by the dispatcher

    def done(self) -> bool:
        """Whether the publish has an outcome or was cancelled."""
        return self._state != _WAITING

    def set_result(self, receipt: Receipt, /) -> None:
        """Set the receipt and resume the task, directly if possible."""
        self._receipt = receipt
        self._state = _TOLD
        wake, context = self._wake, self._context
        if wake is None:
            return
        if context is None or asyncio.current_task() is not None:
            self._loop.call_soon(wake, self, context=context)
            return
        try:
            context.run(wake, self)
        except (SystemExit, KeyboardInterrupt) as error:
            self._loop.call_soon(_raise, error)

    def set_exception(self, error: BaseException, /) -> None:
        """Set the error and resume the task in the next loop iteration."""
        self._end(_TOLD, error)

    def _end(self, state: int, error: BaseException) -> None:
        self._state, self._error = state, error
        if self._wake is not None:
            self._loop.call_soon(self._wake, self, context=self._context)

    # Called by the task

    def __await__(self) -> Generator[AwaitedResult, None, Receipt]:
        """Wait for the outcome."""
        if self._state == _WAITING:
            # A task accepts a yielded future only with this flag set, and resets it.
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def add_done_callback(self, wake: Wake, *, context: Context | None = None) -> None:
        """Set the callback that resumes the task; the outcome is not yet set."""
        self._wake, self._context = wake, context

    def cancel(self, msg: object = None) -> bool:
        """Cancel the publish; return False if it has already ended."""
        if self._state != _WAITING:
            return False
        self._end(_CANCELLED, asyncio.CancelledError(*(() if msg is None else (msg,))))
        return True

    def cancelled(self) -> bool:
        """Whether the publish was cancelled."""
        return self._state == _CANCELLED

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the task."""
        return self._loop

    def result(self) -> Receipt:
        """Return the receipt, or raise the error."""
        if self._receipt is None:
            assert self._error is not None
            raise self._error
        return self._receipt


def _raise(error: BaseException) -> None:
    raise error
