"""A terminal: a progress line on it, or its full screen and its keys.

1. The progress line is rewritten in place, only where stderr is a terminal. Log lines appear above
   it: the line is erased before each of them.
2. A program that uses the full screen restores the terminal at the end, and while Ctrl-Z stops the
   program. It reads keys one by one, without echo. Ctrl-C still sends a signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import Final, TextIO

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
STEP_SECONDS: Final = 0.5
COLUMNS: Final = 80
"""Width of a terminal that does not report one."""

CLEAR: Final = "\r\x1b[K"

ESCAPE: Final = b"\x1b"
READ_SIZE: Final = 256

Taking = Callable[[], AbstractContextManager[None]]
"""Takes control of a part of the terminal for the duration of a block."""


@contextmanager
def taken(*takings: Taking) -> Iterator[None]:
    """Control the terminal during the block, except while the program is stopped (SIGTSTP)."""
    loop = asyncio.get_running_loop()
    with ExitStack() as held:

        def take() -> None:
            for taking in takings:
                held.enter_context(taking())
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


class _Clearing(logging.Filter):
    """Lets every record pass, and erases the progress line before the record is written."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def filter(self, record: logging.LogRecord) -> bool:
        """Erase the progress line."""
        self._stream.write(CLEAR)
        return True


def _columns(stream: TextIO) -> int:
    return os.get_terminal_size(stream.fileno()).columns or COLUMNS


async def show_progress(text: Callable[[], str]) -> None:
    """Show the result of ``text`` twice a second, until cancelled.

    Call it after logging is set up.
    """
    stream = sys.stderr
    if not stream.isatty():
        return
    # A filter of the handlers runs directly before a record is written, whichever logger it is
    # from.
    clearing = _Clearing(stream)
    for handler in logging.getLogger().handlers:
        handler.addFilter(clearing)
    try:
        while True:
            stream.write(f"{CLEAR}{text()[: _columns(stream) - 1]}")
            stream.flush()
            await asyncio.sleep(STEP_SECONDS)
    finally:
        stream.write(CLEAR)
        stream.flush()


@asynccontextmanager
async def progress_shown(text: Callable[[], str]) -> AsyncIterator[None]:
    """Show the result of ``text`` for the duration of a block."""
    showing = asyncio.create_task(show_progress(text))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
