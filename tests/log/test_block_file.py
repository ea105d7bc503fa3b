"""File headers have the documented bytes, and damaged ones are refused."""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from sparq.log.block_file import HeaderForm

FORM = HeaderForm(b"SPARQTST", "Q4s")
FIELDS = (1 << 63, b"abcd")


def test_a_header_has_the_documented_bytes() -> None:
    """A header has magic, size, version, checksum algorithm, flags, fields and checksum.

    All are little-endian.
    """
    fields = struct.pack("<8sHBBIQ4s", b"SPARQTST", 36, 1, 1, 0, *FIELDS)

    assert fields + struct.pack("<Q", xxh3_64_intdigest(fields)) == FORM.encode(FIELDS)
    assert 36 == FORM.size


def test_a_header_with_a_flipped_bit_or_missing_bytes_is_refused() -> None:
    """A header with a flipped bit, an incomplete one, and one of another kind are refused."""
    whole = FORM.encode(FIELDS)
    assert [FIELDS] == FORM.decode(whole + b"after")
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert [] == FORM.decode(bytes(data)), bit
    for size in range(len(whole)):
        assert [] == FORM.decode(whole[:size])
    assert [] == FORM.decode(HeaderForm(b"SPARQTSU", "Q4s").encode(FIELDS))
    assert [] == FORM.decode(HeaderForm(b"SPARQTST", "Q5s").encode(FIELDS))


def test_either_copy_of_a_header_is_enough() -> None:
    """A header's second copy is read if the first is damaged, and the data follows both."""
    form = HeaderForm(b"SPARQTST", "Q4s", copy_offset=64, data_start=128)
    data = bytearray(form.encode(FIELDS))

    assert (128, [FIELDS, FIELDS]) == (len(data), form.decode(bytes(data)))
    data[20] ^= 1
    assert [FIELDS] == form.decode(bytes(data))
