"""Looks for bytes in much data, a window at a time.

One `find` over a whole batch keeps the interpreter for as long as it takes, up to two milliseconds
for each MiB (measured), and whoever comes back from the disk meanwhile waits for it. Between two
windows another thread may go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sparq.log.block import Buffer

WINDOW_BYTES: Final = 64 << 10
"""So much is looked at by one call: an eighth of a millisecond at worst."""


def windows(start: int, end: int, needle_size: int) -> Iterator[tuple[int, int]]:
    """The windows of [start, end). Neighbours overlap, so that each place where a needle of this
    size may be is whole in one of them."""
    for low in range(start, end, WINDOW_BYTES):
        yield low, min(low + WINDOW_BYTES + max(0, needle_size - 1), end)


def find(data: Buffer, needle: bytes, start: int, end: int) -> int:
    """Where a needle begins first within [start, end) of the data; -1: nowhere."""
    for low, high in windows(start, end, len(needle)):
        if isinstance(data, bytes):
            at = data.find(needle, low, high)
        else:
            # A view has no `find`; a copy of this size takes microseconds.
            at = bytes(data[low:high]).find(needle)
            at += low if at >= 0 else 0
        if at >= 0:
            return at
    return -1
