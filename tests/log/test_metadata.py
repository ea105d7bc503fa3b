"""The contents of `sparq.json`; a flipped bit is detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from sparq.log.metadata import DataPathMetadata, MetadataError, decode

METADATA = DataPathMetadata(1, 613, 9_007_199_254_740_993)


@given(st.integers(0, 1023), st.integers(0, (1 << 54) - 1))
def test_metadata_is_decoded_as_encoded(node_id: int, retired_index: int) -> None:
    """Metadata is decoded as encoded, including indexes too large for JSON's numbers."""
    facts = DataPathMetadata(1, node_id, retired_index)

    assert decode(facts.encode()) == facts


def test_a_flipped_bit_is_detected_or_harmless() -> None:
    """A flipped bit raises MetadataError, has no effect, or changes the format number."""
    for bit in range(8 * len(METADATA.encode())):
        text = bytearray(METADATA.encode())
        text[bit // 8] ^= 1 << bit % 8
        try:
            assert decode(bytes(text)) == METADATA
        except MetadataError:
            continue
        except AssertionError:
            # The bit made it the number of a newer format: every reader refuses such a data path.
            assert decode(bytes(text)).format != 1


def test_the_checksum_is_as_documented() -> None:
    """The checksum is XXH3-64 with seed 0 of the three numbers, as documented."""
    assert METADATA.checksum() == xxh3_64_hexdigest(b"1 613 9007199254740993")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (b'{"format": 1, "node_id": 7, "retired_index": "8"}', DataPathMetadata(1, 7, 8)),
        (
            b'{"format": 2, "node_id": 7, "retired_index": "8", "checksum": "new"}',
            DataPathMetadata(2, 7, 8),
        ),
    ],
)
def test_metadata_of_other_versions_is_accepted(text: bytes, facts: DataPathMetadata) -> None:
    """A missing checksum is accepted; in a newer format none is checked."""
    assert decode(text) == facts


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"[]", b"null", b'{"format": 1}', b'{"format": 1, "node_id": "x"}'],
)
def test_invalid_metadata_is_refused(text: bytes) -> None:
    """Invalid contents raise MetadataError."""
    with pytest.raises(MetadataError):
        decode(text)
