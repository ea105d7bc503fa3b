"""A terminal: a line on it that says how far a program has come, or all of it and its keys.

1. The line is rewritten in place. Where stderr is no terminal nothing is shown. Log lines come to
   stand above it: it is taken away before each of them.
2. A terminal that a program has to itself is given back at the end, and while Ctrl-Z stops the
   program. It is asked for keys without their being shown and without a line's end. Ctrl-C stays a
   signal.
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
"""Of a terminal that does not say."""

CLEAR: Final = "\r\x1b[K"

ESCAPE: Final = b"\x1b"
READ_SIZE: Final = 256

Taking = Callable[[], AbstractContextManager[None]]
"""Takes something of the terminal for the time of a block."""


@contextmanager
def taken(*takings: Taking) -> Iterator[None]:
    """Have the terminal in the block, but for the time that the program is stopped (SIGTSTP)."""
    loop = asyncio.get_running_loop()
    with ExitStack() as held:

        def take() -> None:
            for taking in takings:
                held.enter_context(taking())
            loop.add_signal_handler(signal.SIGTSTP, stop)

        def stop() -> None:
            held.close()
            loop.remove_signal_handler(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGTSTP)  # it goes on here when the shell lets it
            take()

        take()
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTSTP)


def keys_in(data: bytes) -> list[str]:
    """The keys behind what a terminal sent: characters of ASCII, and those of ``NAMES``.

    A terminal sends one key's bytes together: an escape character alone is the key Esc, one with
    more after it is a sequence, which is left out where it has no name.
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
    """Tell which keys are pressed, while the block runs; nothing where stdin is no terminal."""
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
    # uvloop has made the descriptor non-blocking, and on a terminal standard output with it, which
    # is the same open file: a screen that is read slowly would end the program (EAGAIN).
    os.set_blocking(descriptor, True)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Clearing(logging.Filter):
    """Lets every record through, and takes the line away before it is written."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the line away."""
        self._stream.write(CLEAR)
        return True


def _columns(stream: TextIO) -> int:
    return os.get_terminal_size(stream.fileno()).columns or COLUMNS


async def show_progress(text: Callable[[], str]) -> None:
    """Show what ``text`` says, twice a second, until cancelled; the log is set up before."""
    stream = sys.stderr
    if not stream.isatty():
        return
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
    """Show what ``text`` says for the time of a block."""
    showing = asyncio.create_task(show_progress(text))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
