"""Both compressions agree with zlib and cramjam for any chunking, with limited memory."""

import random
import zlib
from collections.abc import Iterable

import pytest
from cramjam import snappy
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol.compression import (
    CHUNK_BYTES,
    CHUNK_BYTES_MAX,
    PIECE_BYTES,
    STREAM_IDENTIFIER,
    Compression,
    Deflate,
    LayerError,
    Snappy,
)

KINDS = [Deflate, Snappy]
PARTS = st.lists(st.one_of(st.binary(max_size=300), st.integers(1, 90_000).map(bytes)), max_size=6)
CUTS = st.lists(st.integers(1, 5_000), min_size=1, max_size=8)


def cut(data: bytes, sizes: list[int]) -> Iterable[bytes]:
    """Cut the data into chunks of these sizes, repeated as needed."""
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield data[at : at + size]
        at, turn = at + size, turn + 1


def inflate(compression: Compression, chunks: Iterable[bytes]) -> bytes:
    """Inflate the chunks; no piece may exceed `PIECE_BYTES`."""
    found = bytearray()
    for chunk in chunks:
        compression.feed(chunk)
        while piece := compression.read():
            assert len(piece) <= PIECE_BYTES
            found += piece
    return bytes(found)


def chunk(kind: int, body: bytes) -> bytes:
    """A chunk of snappy's framing format."""
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def zeros_deflated(mebibytes: int) -> bytes:
    """This many mebibytes of zeros as raw deflate: a thousandth of the size."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = bytes(1 << 20)
    return b"".join([deflater.compress(piece) for _ in range(mebibytes)] + [deflater.flush()])


@pytest.mark.parametrize("kind", KINDS)
@given(parts=PARTS, cuts=CUTS)
def test_compressed_data_is_inflated_piece_by_piece(
    kind: type[Compression], parts: list[bytes], cuts: list[int]
) -> None:
    """Data is inflated piece by piece, however the compressed bytes are cut."""
    sender, receiver = kind(), kind()
    sent = [sender.seal([part, part]) for part in parts]

    received = inflate(receiver, (c for piece in sent for c in cut(piece, cuts)))

    assert b"".join(part * 2 for part in parts) == received


@given(parts=PARTS, level=st.integers(1, 9))
def test_zlib_inflates_each_piece_to_its_end(parts: list[bytes], level: int) -> None:
    """The sync flush puts out each piece completely."""
    sender, inflater = Deflate(level), zlib.decompressobj(-15)

    for part in parts:
        assert part == inflater.decompress(sender.seal([part]))


@given(parts=PARTS, cuts=CUTS, flush=st.sampled_from([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]))
def test_output_of_zlib_is_inflated(parts: list[bytes], cuts: list[int], flush: int) -> None:
    """Output of zlib with other levels and flushes is inflated, and its end is recognised."""
    deflater = zlib.compressobj(3, zlib.DEFLATED, -15)
    data = b"".join(deflater.compress(part) + deflater.flush(flush) for part in parts)
    receiver = Deflate()

    assert b"".join(parts) == inflate(receiver, cut(data, cuts))
    assert not receiver.ended
    assert b"" == inflate(receiver, [deflater.flush(zlib.Z_FINISH)])
    assert receiver.ended
    assert b"" == inflate(receiver, [data, data])
    assert not receiver._input


@given(parts=PARTS, cuts=CUTS, padding=st.lists(st.binary(max_size=400), max_size=3))
def test_cramjams_streams_are_inflated(
    parts: list[bytes], cuts: list[int], padding: list[bytes]
) -> None:
    """Streams of cramjam with repeated identifiers and padding are inflated."""
    skippable = b"".join(chunk(0xFE, text) + chunk(0x80, text) for text in padding)
    data = b"".join(bytes(snappy.compress(part)) + skippable for part in parts if part)

    assert b"".join(parts) == inflate(Snappy(), cut(data, cuts))


def test_the_largest_plain_chunk_is_inflated() -> None:
    """A chunk of 64 KiB that does not compress, as cramjam sends it, is accepted."""
    data = random.Random(1).randbytes(CHUNK_BYTES_MAX)

    assert data == inflate(Snappy(), [bytes(snappy.compress(data))])


@given(parts=PARTS)
def test_cramjam_inflates_our_stream(parts: list[bytes]) -> None:
    """cramjam inflates our stream, which has one identifier at its beginning."""
    sender = Snappy()
    data = b"".join(sender.seal([part]) for part in parts)

    assert sender.seal([b"more"]).startswith(STREAM_IDENTIFIER) is not any(parts)
    assert b"".join(parts) == bytes(snappy.decompress(data))


@given(data=st.binary(min_size=1, max_size=2_000), where=st.randoms(use_true_random=False))
def test_a_flipped_bit_of_a_snappy_stream_is_detected(data: bytes, where: random.Random) -> None:
    """A flipped bit in a snappy stream is refused by the checksum, and gives no wrong data."""
    stream = bytearray(Snappy().seal([data]))
    stream[where.randrange(len(stream))] ^= 1 << where.randrange(8)

    try:
        received = inflate(Snappy(), [bytes(stream)])
    except LayerError:
        return
    # A size that grew waits for bytes that never arrive; a type may have become padding.
    assert received == b""


CHECKSUM = b"\0\0\0\0"
INVALID_CHUNKS = {
    "no identifier": chunk(0x00, b"abcdefgh"),
    "another identifier": chunk(0xFF, b"sNaPpX"),
    "a long identifier": b"\xff\x07\x00\x00",
    "a reserved type": STREAM_IDENTIFIER + chunk(0x02, b"hello"),
    "a chunk without a checksum": STREAM_IDENTIFIER + chunk(0x00, b"abc"),
    "a plain chunk that is too large": STREAM_IDENTIFIER + b"\x01\x05\x00\x01",
    "a chunk larger than any may be": STREAM_IDENTIFIER + b"\x00\xff\xff\xff",
    "a claim of one byte too many": STREAM_IDENTIFIER
    + chunk(0x00, CHECKSUM + b"\x81\x80\x04" + b"\x00a"),
    "a claim of 2 GiB": STREAM_IDENTIFIER
    + chunk(0x00, CHECKSUM + b"\x80\x80\x80\x80\x08" + b"\x00a"),
    "a claim without an end": STREAM_IDENTIFIER + chunk(0x00, CHECKSUM + b"\xff" * 20),
    "no claim": STREAM_IDENTIFIER + chunk(0x00, CHECKSUM),
    "less than was claimed": STREAM_IDENTIFIER + chunk(0x00, CHECKSUM + b"\x80\x80\x04" + b"\x00a"),
    "more than was claimed": STREAM_IDENTIFIER + chunk(0x00, CHECKSUM + b"\x01" + b"\x04ab"),
    "a wrong checksum": STREAM_IDENTIFIER + chunk(0x01, CHECKSUM + b"hello"),
}


@pytest.mark.parametrize("name", INVALID_CHUNKS)
def test_an_invalid_size_in_snappy_is_refused(name: str) -> None:
    """A size that the format does not allow is refused before anything is inflated."""
    with pytest.raises(LayerError):
        inflate(Snappy(), [INVALID_CHUNKS[name]])


def test_damaged_deflate_is_refused() -> None:
    """A deflate block of a nonexistent type raises LayerError."""
    with pytest.raises(LayerError):
        inflate(Deflate(), [b"\x07hello"])


def test_padding_is_not_buffered() -> None:
    """16 MiB of padding are skipped without being buffered."""
    receiver = Snappy()
    receiver.feed(STREAM_IDENTIFIER + b"\xfe\xff\xff\xff")
    for _ in range(255):
        receiver.feed(bytes(1 << 16))
        assert b"" == receiver.read()
        assert 1 << 17 > len(receiver._input)
    receiver.feed(bytes((1 << 16) - 1))

    assert b"end" == inflate(receiver, [Snappy().seal([b"end"])])


def test_a_bomb_is_inflated_only_as_far_as_it_is_read() -> None:
    """A bomb is inflated only as far as it is read.

    A later read continues where the last one stopped.
    """
    receiver = Deflate()
    receiver.feed(zeros_deflated(4))

    first = receiver.read()

    assert PIECE_BYTES == len(first)
    rest = sum(len(piece) for piece in iter(receiver.read, b""))
    assert (4 << 20) == len(first) + rest


def test_chunks_are_small() -> None:
    """A snappy chunk is small enough for a client that reads whole chunks of 64 KiB.

    Go's nsqd sends the same size.
    """
    data = random.Random(1).randbytes(5 * CHUNK_BYTES + 1)
    sent = Snappy().seal([data])
    sizes, at = [], len(STREAM_IDENTIFIER)
    while at < len(sent):
        sizes.append(int.from_bytes(sent[at + 1 : at + 4], "little"))
        at += 4 + sizes[-1]

    assert 6 == len(sizes)
    assert max(sizes) < CHUNK_BYTES + CHUNK_BYTES // 4


def test_chunks_of_zeros_are_inflated_one_at_a_time() -> None:
    """Snappy chunks of 64 KiB of zeros are inflated one at a time."""
    receiver = Snappy()
    receiver.feed(Snappy().seal([bytes(40 * CHUNK_BYTES_MAX)]))

    sizes = [len(piece) for piece in iter(receiver.read, b"")]

    assert [CHUNK_BYTES_MAX] * 40 == sizes
