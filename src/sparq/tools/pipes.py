"""Standard input and output of a tool, without blocking its event loop.

1. The other end of a pipe may pause for hours (a pager). Reads and writes block in a thread of
   their own, so that the tool still answers heartbeats and handles signals.
2. The descriptors are not made non-blocking: that would affect every program that shares them, the
   shell among them.
3. The threads are daemon threads: a pending read or write does not delay the tool's exit.
4. `BrokenPipeError` means that the reader of the output has gone: it is not reported as a failure.
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

from sparq.tools.command_line import ToolError

T = TypeVar("T")

READ_BYTES: Final = 256 << 10


class BlockingThread:
    """A thread for blocking calls; they run one at a time, in order."""

    # Not asyncio.to_thread: the threads of its pool are joined when the program ends, and a read
    # from a terminal may block until someone presses a key.
    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function in the thread; return its result or raise its exception.

        Cancelling the caller does not stop the function.
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
            except Exception as error:  # the caller gets it, and decides what it means
                settle = partial(_settle, answer, None, error)
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                answer.get_loop().call_soon_threadsafe(settle)


def _settle(answer: asyncio.Future[T], result: T, error: Exception | None) -> None:
    # The caller was cancelled meanwhile, which has cancelled the future.
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class Input:
    """Bytes from a descriptor, standard input by default."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._aside = BlockingThread("input")

    @property
    def is_terminal(self) -> bool:
        """Whether the input is a terminal."""
        return os.isatty(self._descriptor)

    async def read(self) -> bytes:
        """Wait for input and return it; empty at the end.

        Raises:
            ToolError: it cannot be read.
        """
        try:
            return await self._aside.call(partial(_read, self._descriptor))
        except OSError as error:
            raise ToolError(f"ERROR: failed to read standard input - {error.strerror}") from error


class PipeOutput:
    """Bytes to a descriptor, standard output by default."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._aside = BlockingThread("output")

    async def write(self, data: bytes) -> None:
        """Write all of the data; the operating system has it when this returns.

        Raises:
            BrokenPipeError: the reader has gone.
            ToolError: it cannot be written.
        """
        try:
            await self._aside.call(partial(_write, self._descriptor, data))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ToolError(
                f"ERROR: failed to write to standard output - {error.strerror}"
            ) from error


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:  # another program made the descriptor non-blocking
            select.select([descriptor], [], [])


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another program made the descriptor non-blocking
            select.select([], [descriptor], [])
