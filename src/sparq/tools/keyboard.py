"""Single keys of a terminal, as they are pressed.

The terminal is asked for keys without their being shown and without a line's end; at the end of the
block it is as it was. Ctrl-C stays a signal.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

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
