"""Messages that are published together: how many, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

TOGETHER_COUNT: Final = 1000
TOGETHER_BYTES: Final = 256 << 10
"""Of one publish, far below nsqd's default of 5 MiB; a longer message is published alone."""


def runs(bodies: Sequence[bytes], bytes_max: int = TOGETHER_BYTES) -> Iterator[Sequence[bytes]]:
    """Bodies in runs for one publish each: bounded in bytes, unless one alone is larger."""
    first, size = 0, 0
    for at, body in enumerate(bodies):
        if at > first and (size + len(body) > bytes_max or at - first == TOGETHER_COUNT):
            yield bodies[first:at]
            first, size = at, 0
        size += len(body)
    if first < len(bodies):
        yield bodies[first:]
