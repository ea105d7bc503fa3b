"""File headers have the documented bytes, and damaged ones are refused."""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from sparq.log.file_header import HeaderForm

FORM = HeaderForm(b"SPARQTST", "Q4s")
FIELDS = (1 << 63, b"abcd")


def test_a_header_has_the_documented_bytes() -> None:
    """A header has magic, size, version, checksum algorithm, flags, fields and checksum.

    All are little-endian.
    """
    fields = struct.pack("<8sHBBIQ4s", b"SPARQTST", 36, 1, 1, 0, *FIELDS)

    assert fields + struct.pack("<Q", xxh3_64_intdigest(fields)) == FORM.pack(FIELDS)
    assert 36 == FORM.size


def test_a_header_is_decoded_at_any_offset() -> None:
    """A header is decoded at the beginning of the data or at an offset."""
    data = b"before" + FORM.pack(FIELDS) + b"after"

    assert FIELDS == FORM.unpack(data, 6)
    assert FIELDS == FORM.unpack(data[6:])


def test_a_header_with_a_flipped_bit_or_missing_bytes_is_refused() -> None:
    """A header with a flipped bit, or an incomplete one, is refused."""
    whole = FORM.pack(FIELDS)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert FORM.unpack(bytes(data)) is None, bit
    for size in range(len(whole)):
        assert FORM.unpack(whole[:size]) is None


def test_a_header_of_another_kind_is_not_decoded() -> None:
    """A valid header with another magic or other field sizes is refused."""
    assert FORM.unpack(HeaderForm(b"SPARQTSU", "Q4s").pack(FIELDS)) is None
    assert FORM.unpack(HeaderForm(b"SPARQTST", "Q5s").pack(FIELDS)) is None
