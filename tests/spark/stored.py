"""Stored batches for tests, encoded as nsqd encodes them."""

from sparq.protocol import batch
from sparq.protocol.frames import BodySlices

NODE = 7
TIMESTAMP_NS = 1_763_687_000_123_456_789


def stored_batch(
    bodies: list[bytes],
    first_index: int,
    ordinal: int = 0,
    dues: list[tuple[int, int]] | None = None,
) -> bytes:
    """Encode one complete stored batch."""
    run, ends = batch.encode_frames(
        [BodySlices.of(bodies)], first_index, NODE, TIMESTAMP_NS + first_index
    )
    return encoded(run, ends, first_index, ordinal, dues)


def encoded(
    run: bytes, ends, first_index: int, ordinal: int = 0, dues: list[tuple[int, int]] | None = None
) -> bytes:
    """Encode one complete stored batch from frames that already exist."""
    parts = batch.encode(
        run,
        ends,
        first_index,
        ordinal,
        publish_time_ns=TIMESTAMP_NS,
        log_id_short=1,
        epoch=1,
        file_offset=128,
        salt=99,
        dues=dues,
    )
    return b"".join(parts)
