"""Stored batches for tests, made as nsqd makes them."""

from sparq.protocol import batch, frames
from sparq.protocol.frames import Bodies

NODE = 7
TIMESTAMP_NS = 1_763_687_000_123_456_789


def stored_batch(
    bodies: list[bytes],
    first_index: int,
    ordinal: int = 0,
    dues: list[tuple[int, int]] | None = None,
) -> bytes:
    """One whole batch."""
    run, ends = frames.encode([Bodies.of(bodies)], first_index, NODE, TIMESTAMP_NS + first_index)
    return b"".join(
        batch.encode(run, ends, first_index, ordinal, TIMESTAMP_NS, 1, 1, 128, 99, dues)
    )
