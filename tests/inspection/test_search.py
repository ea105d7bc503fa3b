"""A search works in small pieces, whatever the size of batches and messages."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.inspection import json_path
from sparq.inspection import search as searching
from sparq.inspection.search import STEP_BYTES, STEP_MESSAGES, Criteria, Search
from sparq.log import reading
from sparq.log.inspection import LogInspection
from sparq.protocol.layout import FRAME_OVERHEAD
from tests.broker.harness import BrokerHarness
from tests.inspection.stored import inspection_of

EVERYTHING = 1 << 54
COUNT = 12_000


def inspection_of_batch(bodies: list[bytes], **options: Any) -> LogInspection:
    """A log with one batch, which is not cached unless the options say otherwise."""
    harness = BrokerHarness(**{"cache_bytes": 1, **options})
    harness.broker.create_topic("t", harness.clock.now())
    harness.publish("t", *bodies)
    harness.broker.create_topic("u", harness.clock.now())
    harness.publish("u", b"pushes the batch out of the cache")
    return harness.broker.topics["t"].stream.log.inspection


@dataclass
class Counter:
    """Counts work between two looks at the clock, and its maximum."""

    now: int = 0
    most: int = 0

    def add(self, amount: int) -> None:
        self.now += amount
        self.most = max(self.most, self.now)

    def clock(self) -> float:
        self.now = 0
        return 0.0


def run(search: Search) -> None:
    """Run the whole search."""
    while search.begin_step():
        search.run()


def test_messages_in_memory_are_searched_a_window_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two calls of the clock, a text search looks at one window of messages in memory."""
    inspection = inspection_of_batch([b"x" * 100] * COUNT, cache_bytes=64 << 20)
    counter = Counter()
    find = searching.place_of

    def counted(data: Any, needle: bytes, start: int, end: int) -> int:
        counter.add(end - start)
        return find(data, needle, start, end)

    monkeypatch.setattr(searching, "place_of", counted)
    search = Search(inspection, Criteria(text=b"nothing"), 0, EVERYTHING, counter.clock)
    run(search)

    assert (search.scanned, search.found) == (COUNT, [])
    assert searching.WINDOW_BYTES // 2 < counter.most < searching.WINDOW_BYTES + 100


@dataclass(frozen=True)
class CountingCondition:
    """A JSON condition that counts the bytes or bodies it is applied to."""

    counter: Counter
    unit: int = 0

    def matches(self, body: bytes) -> bool:
        self.counter.add(self.unit or len(body) + FRAME_OVERHEAD)
        return False

    def needle(self) -> bytes:
        return b""


@pytest.mark.parametrize("size", [1, 600, 30_000])
def test_parsing_between_two_calls_of_going_is_bounded(size: int) -> None:
    """Between two calls of the clock, the parsed bodies are limited in bytes and number.

    One body may exceed the limit in bytes.
    """
    inspection = inspection_of_batch([b"x" * size] * (1_200_000 // max(size, 100)))
    in_bytes, in_number = Counter(), Counter()
    for counter, unit in ((in_bytes, 0), (in_number, 1)):
        condition: Any = CountingCondition(counter, unit)
        run(Search(inspection, Criteria(json=condition), 0, EVERYTHING, counter.clock))

    assert 0 < in_bytes.most <= STEP_BYTES + size + FRAME_OVERHEAD
    assert 0 < in_number.most <= STEP_MESSAGES


def test_an_interrupted_step_continues_within_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search interrupted after each piece reads each part once and each message once."""
    bodies = [json.dumps({"n": number}).encode() for number in range(2000)]
    inspection = inspection_of_batch(bodies)
    reads: list[int] = []
    read = reading.read_extent

    def counted(disk: Any, place: Any) -> bytes:
        reads.append(place.extent.first)
        return read(disk, place)

    monkeypatch.setattr(searching, "read_extent", counted)
    criteria = Criteria(json=json_path.parse("n >= 1990"))
    search = Search(inspection, criteria, 0, EVERYTHING, itertools.count().__next__)
    steps = 0
    while search.begin_step():
        search.run()
        steps += 1

    assert [stored.body for stored in search.found] == bodies[1990:]
    assert (search.scanned, search.unsearched) == (2000, 0)
    assert steps > 2000 // STEP_MESSAGES
    assert len(reads) == 1


def test_text_is_found_in_a_message_that_is_larger_than_a_window() -> None:
    """Text at the end of a message larger than a window is found.

    Text that crosses the end of a message is not.
    """
    large = b"x" * (2 * searching.WINDOW_BYTES) + b"here"
    inspection = inspection_of_batch([b"he", large, b"re", b"here"])
    search = Search(
        inspection, Criteria(text=b"here"), 0, EVERYTHING, Counter().clock, body_bytes=4
    )
    run(search)
    assert [stored.body for stored in search.found] == [b"xxxx", b"here"]


def test_missing_messages_count_as_unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages whose bytes are missing count as unsearched."""
    inspection = inspection_of_batch([b"a", b"b"])
    monkeypatch.setattr(searching, "read_extent", lambda _disk, _place: b"")
    search = Search(inspection, Criteria(), 0, EVERYTHING, Counter().clock)
    run(search)
    assert (search.found, search.unsearched) == ([], 2)


texts = st.binary(max_size=40).map(lambda data: bytes(byte % 3 for byte in data))


@given(texts, texts.filter(bool), st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_place_of_equals_one_find_call(
    data: bytes, needle: bytes, start: int, end: int, window: int
) -> None:
    """`place_of` finds the same position as one `find` call over all the data, whatever the window.

    This includes hits across a window's edge.
    """
    end = min(end, len(data))
    start = min(start, end)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(searching, "WINDOW_BYTES", window)
        assert searching.place_of(data, needle, start, end) == data.find(needle, start, end)


class CountingBytes(bytes):
    """Bytes that record how many of them each `find` searches."""

    spans: list[int]

    def find(self, *arguments: Any) -> int:
        _, low, high = arguments
        self.spans.append(high - low)
        return super().find(*arguments)


def test_no_call_searches_more_than_a_window() -> None:
    """No `find` call searches more than a window and the needle.

    Other threads cannot run during such a call.
    """
    data = CountingBytes(bytes(1 << 20))
    data.spans = []
    assert searching.place_of(data, b"needle", 0, len(data)) == -1
    assert len(data.spans) == (1 << 20) // searching.WINDOW_BYTES
    assert max(data.spans) == searching.WINDOW_BYTES + len(b"needle") - 1


@pytest.mark.parametrize("gives_up", [1, 3, 1000])
def test_a_search_decodes_only_parts_that_may_match(
    harness: BrokerHarness, gives_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text search finds all hits, and continues where it was interrupted.

    It decodes only the parts whose bytes contain the text, each once.
    """
    inspection = inspection_of(harness)
    parts = [part for part in inspection.parts(0, EVERYTHING, 1000) if not part.blocks]
    data_of = {part.first: reading.read_extent(inspection.disk, part.place) for part in parts}
    decoded: list[int] = []
    pieces_of = reading.pieces_of

    def counted(data: bytes, place: Any) -> Any:
        decoded.append(place.extent.first)
        return pieces_of(data, place)

    monkeypatch.setattr(searching, "pieces_of", counted)
    clock = itertools.count(0, searching.STEP_SECONDS / gives_up).__next__
    for text, expected, parts_count in (
        (b"000123", [123], 1),
        (b"00001", [1, *range(10, 20)], 3),  # every part has such digits in its ids
        (b"9.", range(9, 200, 10), 3),
    ):
        search = Search(
            *(inspection, Criteria(text=text), 0, EVERYTHING, clock), limit=1000, body_bytes=6
        )
        run(search)
        assert [stored.body for stored in search.found] == [b"%06d" % at for at in expected]
        assert (search.scanned, search.unsearched) == (200, 0)
        assert decoded == [first for first, data in data_of.items() if text in data]
        assert (len(decoded), len(parts)) == (parts_count, 3)
        decoded.clear()


def test_a_search_result_is_bounded_in_bytes(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search stops at `FOUND_BYTES_MAX`, before its limit on results."""
    monkeypatch.setattr(searching, "FOUND_BYTES_MAX", 10)
    search = Search(
        *(inspection_of(harness), Criteria(), 0, EVERYTHING, Counter().clock), body_bytes=6
    )
    assert search.begin_step()
    search.run()
    assert (search.is_full, len(search.found)) == (True, 2)
