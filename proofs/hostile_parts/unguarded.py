"""Guards to switch off, one at a time: the controls of hostile.py.

Each replaces one function or constant of sparq in this process, and names the target that must
notice it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sparq.protocol import compression, parser, receiver
from sparq.protocol.layout import FRAME_HEADER_SIZE


def _accept_any_number() -> None:
    """Accept a number of RDY, REQ or DPUB without a check that it has only digits."""
    setattr(parser, "_decimal", int)  # noqa: B010 - a replacement, which types do not allow


def _accept_any_size() -> None:
    """Accept negative sizes in a client's receiver, also -4, which leads to the same frame."""

    def frames(self: receiver.Receiver) -> Iterator[tuple[int, bytes]]:
        inflow = self._inflow
        while True:
            data, at = inflow.data, inflow.at
            if len(data) - at < FRAME_HEADER_SIZE:
                return inflow.wait_for(FRAME_HEADER_SIZE)
            size, kind = struct.unpack_from(">ii", data, at)
            if not -4 <= size <= self._max_frame_bytes:
                raise receiver.FrameError("not a frame")
            end = at + 4 + size
            if end > len(data):
                return inflow.wait_for(4 + size)
            inflow.at = end
            yield kind, data[at + FRAME_HEADER_SIZE : end]

    setattr(receiver.Receiver, "frames", frames)  # noqa: B010 - a replacement as well


def _inflate_all() -> None:
    """Make Deflate decompress its whole input into one piece."""
    setattr(compression, "PIECE_BYTES", 1 << 40)  # noqa: B010 - a replacement as well


class Control(NamedTuple):
    """A guard: how to switch it off, and which target must notice it.

    Attributes:
        switch_off: switches it off in this process.
        target: name of the target.
        executions: number of executions within which the target must notice it.
        notices: kind of the finding: exceptions, hangs or memory.
    """

    switch_off: Callable[[], None]
    target: str
    executions: int
    notices: str


CONTROLS: Final = {
    "numbers unchecked": Control(_accept_any_number, "parser", 20_000, "exceptions"),
    "frame sizes unchecked": Control(_accept_any_size, "receiver", 40_000, "hangs"),
    "inflation unbounded": Control(_inflate_all, "compression", 4_000, "memory"),
}
