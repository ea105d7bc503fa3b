"""Size limits for peers' answers: reading stops as soon as an answer exceeds its limit."""

from __future__ import annotations

from collections.abc import AsyncIterable


async def collected(chunks: AsyncIterable[bytes], size_max: int) -> bytes:
    """Join all chunks.

    Args:
        chunks: in order, of any size.
        size_max: maximum total size in bytes.

    Raises:
        ValueError: the chunks exceed `size_max`.
    """
    found = bytearray()
    async for chunk in chunks:
        found += chunk
        check_size(len(found), size_max)
    return bytes(found)


def check_size(size: int, size_max: int) -> None:
    """Refuse a size of more than `size_max` bytes.

    Raises:
        ValueError: `size` is larger.
    """
    if size > size_max:
        raise ValueError(f"answer exceeds the limit of {size_max} bytes")
