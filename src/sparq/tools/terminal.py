"""Standard input and output without blocking the event loop, and the terminal behind them.

1. The other end of a pipe may pause for hours (a pager). Reads and writes block in threads of their
   own, so that the tool still answers heartbeats and handles signals. The descriptors are not made
   non-blocking: that would affect every program that shares them, the shell among them.
2. The threads are daemon threads: a pending read or write does not delay the tool's exit.
3. `BrokenPipeError` means that the reader of the output has gone: it is not reported as a failure.
4. A program that uses the full screen restores the terminal at the end, and while Ctrl-Z stops the
   program. It reads keys one by one, without echo. Ctrl-C still sends a signal.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, TypeVar

from sparq.tools.commands import ToolError

T = TypeVar("T")

READ_BYTES: Final = 256 << 10

NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b" ": "space",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
ESCAPE: Final = b"\x1b"
READ_SIZE: Final = 256


class Pipe:
    """A descriptor, with blocking calls that run one at a time, in order."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last: threading.Thread | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    async def read(self) -> bytes:
        """Wait for input and return it; empty at the end.

        Raises:
            ToolError: it cannot be read.
        """

        def read() -> bytes:
            while True:
                try:
                    return os.read(self._descriptor, READ_BYTES)
                except BlockingIOError:  # another program made the descriptor non-blocking
                    select.select([self._descriptor], [], [])

        return await self._call(read, "read standard input")

    async def write(self, data: bytes) -> None:
        """Write all of the data; the operating system has it when this returns.

        Raises:
            BrokenPipeError: the reader has gone.
            ToolError: it cannot be written.
        """

        def write() -> None:
            rest = memoryview(data)
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # another program made the descriptor non-blocking
                    select.select([], [self._descriptor], [])

        await self._call(write, "write to standard output")

    async def _call(self, function: Callable[[], T], purpose: str) -> T:
        """Run the function in a thread; cancelling the caller does not stop it."""
        # Not asyncio.to_thread: the threads of its pool are joined when the program ends, and a
        # read from a terminal may block until someone presses a key.
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # from here on, it cannot be cancelled
        before = self._last

        def work() -> None:
            if before is not None:
                before.join()
            try:
                answer.set_result(function())
            except Exception as error:  # the caller gets it, and decides what it means
                answer.set_exception(error)

        self._last = threading.Thread(target=work, name=purpose, daemon=True)
        self._last.start()
        try:
            return await asyncio.wrap_future(answer)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ToolError(f"ERROR: failed to {purpose} - {error.strerror}") from error


STDIN: Final = Pipe(0)
STDOUT: Final = Pipe(1)


@contextmanager
def full_screen(
    screen: AbstractContextManager[object], pressed: Callable[[str], None]
) -> Iterator[None]:
    """Use the screen and the keyboard during the block, except while the program is stopped.

    Args:
        screen: draws on the terminal for the duration of a block, any number of times.
        pressed: called for each key.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as held:

        def take() -> None:
            held.enter_context(keyboard(pressed))
            held.enter_context(screen)
            loop.add_signal_handler(signal.SIGTSTP, stop)

        def stop() -> None:
            held.close()
            # Without this, the signal would only call `stop` again: the default action must be back
            # to stop the process.
            loop.remove_signal_handler(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGTSTP)  # continues here when the shell resumes it
            take()

        take()
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTSTP)


def keys_in(data: bytes) -> list[str]:
    """Return the keys in a terminal's input: printable ASCII characters, and those in ``NAMES``.

    A terminal sends the bytes of one key together: a lone escape character is the key Esc; followed
    by more bytes, it begins a sequence, which is skipped if it has no name.
    """
    if data == ESCAPE:
        return ["escape"]
    found = []
    while data:
        size = next((len(code) for code in NAMES if data.startswith(code)), 1)
        name = NAMES.get(data[:size]) or data[:size].decode("ascii", "replace")
        if data[:1] == ESCAPE and size == 1:
            break
        if name in NAMES.values() or (name.isascii() and name.isprintable()):
            found.append(name)
        data = data[size:]
    return found


@contextmanager
def keyboard(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call ``pressed`` for each key during the block; does nothing if stdin is not a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, READ_SIZE)
        if not data:
            loop.remove_reader(descriptor)
        for key in keys_in(data):
            pressed(key)

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    # uvloop has made the descriptor non-blocking, and on a terminal also standard output, which is
    # the same open file: a slow terminal would then end the program (EAGAIN).
    os.set_blocking(descriptor, True)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
