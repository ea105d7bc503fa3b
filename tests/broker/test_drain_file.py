"""`drain.json` is read back as written, and a damaged file is refused."""

from __future__ import annotations

import pytest

from sparq.broker.drain_file import BY_MAX, NONE, Drain, DrainError, Draining, decode, encode

DRAINS = Draining(Drain(5, "me", True), {"t": Drain(6, "she")})


@pytest.mark.parametrize("draining", [NONE, DRAINS, Draining(None, {"t": Drain(6, "she")})])
def test_drains_are_read_back_as_written(draining: Draining) -> None:
    """Decoding returns the requester, time and topic of each drain, or that there is none."""
    assert draining == decode(encode(draining))
    assert (draining != NONE) == draining.is_on


def test_a_flipped_bit_is_detected_or_harmless() -> None:
    """A flipped bit raises DrainError or has no effect."""
    whole = encode(DRAINS)
    for bit in range(8 * len(whole)):
        text = bytearray(whole)
        text[bit // 8] ^= 1 << bit % 8
        try:
            assert DRAINS == decode(bytes(text)), bit
        except DrainError:
            continue


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices"),
        (encode(DRAINS).replace(b'"she"', b'"he"'), "checksum"),
        (encode(NONE).replace(b'"format": 1', b'"format": 2'), "format 2"),
        (encode(Draining(None, {"a b": Drain(1, "")})), "invalid topic name"),
    ],
    ids=["empty", "a list", "a changed name", "a later format", "an invalid topic"],
)
def test_invalid_contents_are_refused_with_a_reason(text: bytes, why: str) -> None:
    """The error gives the reason: damage, a newer format, or an invalid topic name."""
    with pytest.raises(DrainError, match=why):
        decode(text)


def test_a_long_requester_name_is_truncated() -> None:
    """A requester's name, which operators see, is cut to `BY_MAX` characters."""
    (node, _) = decode(encode(Draining(Drain(1, "x" * (BY_MAX + 1)), {})))
    assert node is not None
    assert "x" * BY_MAX == node.by
