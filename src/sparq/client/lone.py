"""The outcome of a publish that was alone under way, for the task that awaits it.

A future lets its task go on with the loop's next turn: whoever awaits each publish before the next
one pays for two turns a message. Here the task goes on where nsqd's answer is read.

1. It does so only while no task runs, and when told a receipt; otherwise it is a future's turn.
2. What ends the program (``SystemExit``, ``KeyboardInterrupt``) ends the loop, not the connection
   on which the answer came.
3. One task awaits it, once. It is future-like as `asyncio.isfuture` has it, and no more than a task
   needs. It is for who publishes one at a time: where many are under way futures are cheaper, being
   made in C, and a task that goes on before the others would send its next publish without theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Final

from sparq.client.publish import Receipt

Wake = Callable[["Lone"], object]

_WAITING: Final = 0
_TOLD: Final = 1
_CANCELLED: Final = 2


class Lone:
    """A teller that is awaited."""

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

    # For who tells

    def done(self) -> bool:
        """Whether it was told, or nobody wants to know any more."""
        return self._state != _WAITING

    def set_result(self, receipt: Receipt, /) -> None:
        """Have the task go on, now if that can be."""
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
        """Have the task fail."""
        self._end(_TOLD, error)

    def _end(self, state: int, error: BaseException) -> None:
        self._state, self._error = state, error
        if self._wake is not None:
            self._loop.call_soon(self._wake, self, context=self._context)

    # For the task

    def __await__(self) -> Generator[Lone, None, Receipt]:
        """Wait until it is told."""
        if self._state == _WAITING:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def add_done_callback(self, wake: Wake, *, context: Context | None = None) -> None:
        """What a task wants to be called when this is done, which it is not yet."""
        self._wake, self._context = wake, context

    def cancel(self, msg: object = None) -> bool:
        """Nobody wants to know any more; False: it was told before."""
        if self._state != _WAITING:
            return False
        self._end(_CANCELLED, asyncio.CancelledError(*(() if msg is None else (msg,))))
        return True

    def cancelled(self) -> bool:
        """Whether nobody wants to know any more."""
        return self._state == _CANCELLED

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the task."""
        return self._loop

    def result(self) -> Receipt:
        """What it was told; a failure is raised."""
        if self._receipt is None:
            assert self._error is not None
            raise self._error
        return self._receipt


def _raise(error: BaseException) -> None:
    raise error
