"""A terminal that a program has to itself, and gives back at its end and while Ctrl-Z stops it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

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
