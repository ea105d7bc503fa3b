"""Size limits on peers' answers: reading stops as soon as one is too large."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sparq.protocol.bounded import check_size, collected


async def test_chunks_are_joined_up_to_the_limit() -> None:
    """Chunks are joined in order; an answer of exactly the limit is accepted."""

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"ab", b"", b"cde"):
            yield chunk

    assert b"abcde" == await collected(chunks(), 5)


async def test_nothing_is_read_beyond_the_limit() -> None:
    """At most the limit and one chunk of an answer are read."""
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 10
            yield bytes(10)

    with pytest.raises(ValueError, match="answer exceeds the limit of 35 bytes"):
        await collected(chunks(), 35)
    assert 40 == sent


def test_a_size_may_reach_its_limit() -> None:
    """A size equal to the limit is accepted, one byte more is refused."""
    check_size(5, 5)
    with pytest.raises(ValueError, match="limit of 5 bytes"):
        check_size(6, 5)
