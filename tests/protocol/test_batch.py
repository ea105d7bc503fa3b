"""The stored batch: it is read back as written, and changed bytes are detected."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol import batch
from sparq.protocol.batch import BatchError
from sparq.protocol.frames import BodySlices

SALT = 0x1234_5678_9ABC_DEF0
OFFSET = 4608
NODE = 9


def stored(
    bodies: Sequence[bytes],
    dues: list[tuple[int, int]] | None = None,
    offset: int = OFFSET,
    first_index: int = 1000,
) -> bytes:
    """One batch as stored in a file."""
    data, ends = batch.encode_frames([BodySlices.of(bodies)], first_index, NODE, 77)
    buffers = batch.encode(
        data,
        ends,
        first_index,
        40,
        publish_time_ns=77,
        log_id_short=5,
        epoch=3,
        file_offset=offset,
        salt=SALT,
        dues=dues,
    )
    return b"".join(buffers)


def test_layout_is_as_documented() -> None:
    """Every field is at the offset given in docs/log_format.md."""
    data = stored([b"abc", b"defg"])

    assert data[:4] == b"SPQB"
    assert int.from_bytes(data[4:6], "little") == 80
    assert data[6:12] == bytes([1, 0, 0, 0, 0, 0])
    assert int.from_bytes(data[12:16], "little") == 5
    assert [int.from_bytes(data[at : at + 8], "little") for at in (32, 40, 48)] == [1000, 40, 77]
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(56, 80, 4)]
    assert words == [2, 34 + 3 + 34 + 4, 0, len(data), 3, 0]
    assert np.frombuffer(data, "<u4", 2, 80).tolist() == [37, 75]
    assert data[88:].startswith(b"\x00\x00\x00\x21\x00\x00\x00\x02")
    assert len(data) % 8 == 0


@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=40),
    dues=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 1 << 62)), max_size=5),
)
def test_a_batch_is_read_back_as_written(bodies: list[bytes], dues: list[tuple[int, int]]) -> None:
    """Frames, ends, header and due times are read back as written."""
    data = stored(bodies, dues)
    header = batch.parse_header(data, 0)
    assert header is not None

    (read,) = batch.walk(data)

    encoded, ends = batch.encode_frames([BodySlices.of(bodies)], 1000, NODE, 77)
    assert bytes(read.frames) == encoded
    assert read.ends.tolist() == ends.tolist()
    assert read.dues == dues
    assert (read.count, header.end_index, header.end_ordinal) == (
        len(bodies),
        1000 + len(bodies),
        40 + len(bodies),
    )
    assert batch.check_header(data, 0, OFFSET, SALT)
    sections = batch.dues_size(len(dues))
    assert batch.batch_size(len(bodies), len(encoded), sections) == len(data)


def test_large_batch_is_not_copied_and_equals_a_joined_one() -> None:
    """Frames above 64 KiB are not copied for the write, and the bytes are the same."""
    bodies = [bytes([k]) * 3000 for k in range(40)]
    data, ends = batch.encode_frames([BodySlices.of(bodies)], 1, NODE, 77)

    buffers = batch.encode(
        data,
        ends,
        1,
        0,
        publish_time_ns=1,
        log_id_short=5,
        epoch=3,
        file_offset=8,
        salt=SALT,
    )

    assert any(part is data for part in buffers)
    (read,) = batch.walk(b"".join(buffers))
    assert bytes(read.frames) == data


def test_every_flipped_bit_is_detected() -> None:
    """A flipped bit anywhere in a batch is detected by one of its two checksums."""
    data = stored([b"first", b"second"], [(1, 5)])
    whole = batch.parse_header(data, 0)
    assert whole is not None
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            if at < batch.HEADER_SIZE:
                header = batch.parse_header(damaged, 0)
                assert header is None or not batch.check_header(damaged, 0, OFFSET, SALT)
            else:
                assert not batch.check_payload(damaged, 0, whole)


def test_a_header_is_valid_at_one_offset_of_one_file() -> None:
    """A batch at another offset, or with another file's salt, is not valid."""
    data = stored([b"x"])

    assert batch.check_header(data, 0, OFFSET, SALT)
    assert not batch.check_header(data, 0, OFFSET + 8, SALT)
    assert not batch.check_header(data, 0, OFFSET, SALT + 1)
    assert not batch.check_header(data[:60], 0, OFFSET, SALT)


def test_walk_reads_consecutive_batches() -> None:
    """`walk` reads consecutive batches, as a READ returns them."""
    parts = [stored([b"a" * k], first_index=1000 + k) for k in range(5)]

    read = list(batch.walk(b"".join(parts)))

    assert [found.header.first_index for found in read] == list(range(1000, 1005))


@pytest.mark.parametrize("cut", [1, 40, 79, 80, 100, -1])
def test_walk_refuses_a_truncated_batch(cut: int) -> None:
    """A truncated batch is an error, not fewer messages."""
    with pytest.raises(BatchError, match="damaged batch at byte 0"):
        list(batch.walk(stored([b"hello" * 20])[:cut]))


@pytest.mark.parametrize("at", [6, 7])
def test_newer_batch_is_refused(at: int) -> None:
    """An unknown version or required flag raises an error that asks for a newer sparq."""
    data = bytearray(stored([b"x"]))
    data[at] = 2

    with pytest.raises(BatchError, match="needs a newer sparq"):
        list(batch.walk(data))


def test_unknown_optional_sections_are_skipped() -> None:
    """Unknown optional sections are skipped, and the due times are still read."""
    section = (9).to_bytes(2, "little") + bytes(2) + (4).to_bytes(4, "little") + b"more"
    data = stored([b"x"], [(0, 123)])
    dues_at = len(data) - batch.dues_size(1) - (-(80 + 4 + 35 + batch.dues_size(1)) % 8)
    own = data[dues_at : dues_at + batch.dues_size(1)]

    assert batch._decode_dues(memoryview(section + own)) == [(0, 123)]
    assert batch._decode_dues(memoryview(section)) == []


@pytest.mark.parametrize(("size", "count"), [(4, 1), (8, 1), (20, 2), (4096, 2), (20, 1 << 31)])
def test_an_invalid_due_times_section_is_refused(size: int, count: int) -> None:
    """A due-times section with a wrong size or count is refused."""
    section = (1).to_bytes(2, "little") + bytes(2) + size.to_bytes(4, "little")
    section += (count.to_bytes(4, "little") + bytes(16))[:size]

    with pytest.raises(BatchError, match="due times is truncated"):
        batch._decode_dues(memoryview(section))


def test_a_longer_header_of_a_later_version_is_read() -> None:
    """A later version's longer header is read: its size field gives the bytes of the checksum."""
    data = stored([b"x"])
    longer = bytearray(data[:80] + bytes(8) + data[80:])
    longer[4:6] = (88).to_bytes(2, "little")
    longer[68:72] = len(longer).to_bytes(4, "little")

    header = batch.parse_header(longer, 0)

    assert header is not None
    assert header.header_size == 88
    assert not batch.check_header(longer, 0, OFFSET, SALT)
    (read,) = batch.walk(longer)
    assert bytes(read.frames)[-1:] == b"x"


def test_decode_refuses_bytes_that_are_not_a_batch() -> None:
    """Bytes that are not a batch raise an error with their position."""
    with pytest.raises(BatchError, match="no complete batch at byte 0"):
        batch.decode(b"nonsense" * 20, 0)


def test_a_batch_too_large_for_a_u32_is_refused() -> None:
    """A batch whose size does not fit a u32 raises an error."""
    with pytest.raises(BatchError, match="too large"):
        batch.batch_size(1, 1 << 32)
