"""A line on a terminal that says how far a program has come, rewritten in place.

Where stderr is no terminal nothing is shown. Log lines come to stand above it: it is taken away
before each of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import Final, TextIO

STEP_SECONDS: Final = 0.5
COLUMNS: Final = 80
"""Of a terminal that does not say."""

CLEAR: Final = "\r\x1b[K"


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
