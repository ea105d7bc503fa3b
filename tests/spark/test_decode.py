"""Decoding whole stored batches gives the same rows as reading frame by frame."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.protocol import batch, frames, layout
from sparq.spark import decode
from sparq.spark.decode import SCHEMA, Decoder
from tests.spark.stored import encoded, stored_batch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_one_by_one(data: bytes, first: int, end: int) -> list[tuple]:
    """The twin of the decoder: reads batch by batch, frame by frame, field by field."""
    rows = []
    for stored in batch.walk(data):
        start = 0
        for position, stop in enumerate(stored.ends.tolist()):
            frame = bytes(stored.frames[start:stop])
            start = stop
            index = stored.header.first_index + position
            if not first <= index < end:
                continue
            timestamp_us = int.from_bytes(frame[8:16], "big") // 1000
            rows.append(
                (
                    "clicks",
                    "h:4150",
                    frame[18:34].decode(),
                    index,
                    EPOCH + timedelta(microseconds=timestamp_us),
                    frame[34:],
                )
            )
    return rows


def rows_of(batches) -> list[tuple]:
    return [tuple(row.values()) for batch_ in batches for row in batch_.to_pylist()]


bodies = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30)


@st.composite
def runs(draw) -> tuple[bytes, int, int]:
    """Some stored batches with gaps between their indexes, and a range of their indexes."""
    data, index = b"", draw(st.integers(0, 1 << 50))
    low = index
    for piece in draw(st.lists(bodies, max_size=6)):
        dues = [(0, 5)] if draw(st.booleans()) else None
        data += stored_batch(piece, index, dues=dues)
        index += len(piece) + draw(st.sampled_from([0, 0, 1, 4_194_304]))
    first = draw(st.integers(low, index))
    return data, first, draw(st.integers(first, index))


@settings(max_examples=150, deadline=None)
@given(runs(), st.sampled_from([1, 3, 50_000]))
def test_decoding_equals_reading_frame_by_frame(run, rows_max):
    """Any batches and any range give the twin's rows, in pieces of at most ROWS_MAX rows."""
    data, first, end = run
    before, decode.ROWS_MAX = decode.ROWS_MAX, rows_max
    try:
        batches = list(Decoder("clicks", "h:4150").decode(memoryview(data), first, end))
    finally:
        decode.ROWS_MAX = before

    assert rows_one_by_one(data, first, end) == rows_of(batches)
    assert all(0 < piece.num_rows <= rows_max for piece in batches)


def test_decoded_batches_have_the_declared_schema():
    """The record batches have exactly the declared schema."""
    data = stored_batch([b"a", b"bc"], 5)
    (piece,) = Decoder("clicks", "h:4150").decode(memoryview(data), 0, 99)

    assert SCHEMA == piece.schema
    piece.validate(full=True)


def test_decoded_columns_are_in_the_requested_order():
    """A decoder of chosen columns returns these, in the given order."""
    data = stored_batch([b"a", b"bc"], 5)
    (piece,) = Decoder("clicks", "h:4150", ["body", "index"]).decode(memoryview(data), 6, 7)

    assert [{"body": b"bc", "index": 6}] == piece.to_pylist()


def test_the_largest_index_is_exact():
    """The largest index, of 54 bits, is exact, and so is its id."""
    index = layout.INDEX_LIMIT - 1
    run, ends = batch.encode_frames([frames.BodySlices.of([b"x"])], index, 1023, 1)
    data = encoded(run, ends, index)
    (piece,) = Decoder("t", "n", ["id", "index"]).decode(memoryview(data), 0, index + 1)

    assert [{"id": f"{1023 << 54 | index:016x}", "index": index}] == piece.to_pylist()


def test_a_flipped_bit_is_an_error_and_never_a_row():
    """The payload's checksum is verified before anything is decoded."""
    data = bytearray(stored_batch([b"hello"] * 20, 5))
    data[-9] ^= 1

    with pytest.raises(ValueError, match="damaged"):
        list(Decoder("t", "n").decode(memoryview(data), 0, 99))


def test_rows_share_no_memory_with_the_bytes_received():
    """Decoded rows do not change when the receive buffer is overwritten."""
    data = bytearray(stored_batch([b"hello", b"you"], 5))
    (piece,) = Decoder("t", "n").decode(memoryview(data), 0, 99)
    before = pa.RecordBatch.from_pylist(piece.to_pylist(), schema=SCHEMA)
    data[:] = bytes(len(data))

    assert before == piece
