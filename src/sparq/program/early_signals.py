"""Signals that end a program, handled from its first instruction on.

Without a handler the kernel does not deliver SIGTERM and SIGINT to the first process of a container
(process 1), so a stop during the imports would be lost; and Python would answer Ctrl-C with a
traceback. This module imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

ENDING = (signal.SIGINT, signal.SIGTERM)

Handler: TypeAlias = Callable[[int, "FrameType | None"], object]


def default_action() -> Handler | signal.Handlers:
    """Return the default action; for process 1, a handler that ends it with 128 + the signal."""
    return signal.SIG_DFL if os.getpid() != 1 else lambda number, _frame: os._exit(128 + number)


def end_with_success(_number: int, _frame: FrameType | None) -> None:
    """End the process with status 0: a daemon that was told to stop."""
    os._exit(0)


def install(handler: Handler | signal.Handlers) -> None:
    """Handle the signals that end a program, until it installs handlers of its own.

    A shell script that starts a program with & has it ignore SIGINT: an ignored signal stays so.
    """
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
