"""Bytes are looked for a window at a time, and found wherever they are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparq.inspection import search
from sparq.log.block import Buffer

SMALL = 5


def found(data: Buffer, needle: bytes, start: int, end: int, window: int) -> int:
    """`find` with windows of another size."""
    kept, search.WINDOW_BYTES = search.WINDOW_BYTES, window  # type: ignore[misc]  # a test's
    try:
        return search.place_of(data, needle, start, end)
    finally:
        search.WINDOW_BYTES = kept  # type: ignore[misc]  # as it was


texts = st.binary(max_size=40).map(lambda data: bytes(byte % 3 for byte in data))


@given(texts, texts.filter(bool), st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_what_is_there_is_found(
    data: bytes, needle: bytes, start: int, end: int, window: int
) -> None:
    """As by one call over all of it, also across the edge of a window, and in a view."""
    end = min(end, len(data))
    start = min(start, end)
    expected = data.find(needle, start, end)
    assert found(data, needle, start, end, window) == expected
    assert found(memoryview(data), needle, start, end, window) == expected


class Counted(bytes):
    """Bytes that note how much of them each call looks at."""

    spans: list[int]

    def find(self, *arguments: Any) -> int:
        _, low, high = arguments
        self.spans.append(high - low)
        return super().find(*arguments)


def test_no_call_looks_at_more_than_a_window() -> None:
    """However much there is: nothing else runs during one."""
    data = Counted(bytes(1 << 20))
    data.spans = []
    assert search.place_of(data, b"needle", 0, len(data)) == -1
    assert len(data.spans) == (1 << 20) // search.WINDOW_BYTES
    assert max(data.spans) == search.WINDOW_BYTES + len(b"needle") - 1
