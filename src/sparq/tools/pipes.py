"""Standard input and output of a tool whose event loop must go on meanwhile.

1. A pipe's other end may pause for hours (a pager). Reading and writing wait in a thread of their
   own, so that heartbeats are answered and signals heard.
2. The descriptors stay as they are: making them non-blocking would do so for every program that
   shares them, the shell among them.
3. The threads are daemons: what is never read or written does not hold up the tool's end.
4. That nobody reads what is written any more is `BrokenPipeError`: not a failure to speak of.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from sparq.tools.command_line import Failed

T = TypeVar("T")

READ_BYTES: Final = 256 << 10


class Aside:
    """A thread for calls that block; one at a time, in order."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def call(self, function: Callable[[], T]) -> T:
        """Call it there: its result, or what it raises.

        Whoever is cancelled while waiting does not stop the call.
        """
        if self._thread.ident is None:
            self._thread.start()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((function, answer))
        return await answer

    def _run(self) -> None:
        while True:
            function, answer = self._calls.get()
            try:
                settle = partial(_settle, answer, function(), None)
            except Exception as error:  # whoever called decides what it means
                settle = partial(_settle, answer, None, error)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                answer.get_loop().call_soon_threadsafe(settle)


def _settle(answer: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class Input:
    """Bytes that come from a descriptor, standard input by default."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._aside = Aside("input")

    @property
    def is_terminal(self) -> bool:
        """Whether somebody types what is read."""
        return os.isatty(self._descriptor)

    async def read(self) -> bytes:
        """What is there, once something is; nothing at the end.

        Raises:
            Failed: it cannot be read.
        """
        try:
            return await self._aside.call(partial(_read, self._descriptor))
        except OSError as error:
            raise Failed(f"ERROR: failed to read standard input - {error.strerror}") from error


class Output:
    """Bytes that go to a descriptor, standard output by default."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._aside = Aside("output")

    async def write(self, data: bytes) -> None:
        """Write it all; the system has it when this returns.

        Raises:
            BrokenPipeError: nobody will read it.
            Failed: it cannot be written.
        """
        try:
            await self._aside.call(partial(_write, self._descriptor, data))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Failed(f"ERROR: failed to write to standard output - {error.strerror}") from error


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:  # another program made it so
            select.select([descriptor], [], [])


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another program made it so
            select.select([], [descriptor], [])
