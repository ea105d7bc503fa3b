"""Bytes that a peer sends, up to a limit: what is more is refused as soon as it is there."""

from __future__ import annotations

from collections.abc import AsyncIterable


async def collected(chunks: AsyncIterable[bytes], size_max: int) -> bytes:
    """All chunks put together.

    Args:
        chunks: in their order, of any size.
        size_max: bytes of all of them.

    Raises:
        ValueError: there are more.
    """
    found = bytearray()
    async for chunk in chunks:
        found += chunk
        check_size(len(found), size_max)
    return bytes(found)


def check_size(size: int, size_max: int) -> None:
    """Refuse what is larger than `size_max` bytes.

    Raises:
        ValueError: `size` is larger.
    """
    if size > size_max:
        raise ValueError(f"an answer of more than {size_max} bytes")
