"""Frames: their layout, their ids, and array paths that equal their scalar twins."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparq.protocol import batch, layout
from sparq.protocol import frames as f

INDEXES = st.integers(0, (1 << 54) - 100)
NODES = st.integers(0, 1023)
EQUAL_BODIES = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=60)
)
MIXED_BODIES = st.lists(st.binary(max_size=20), min_size=1, max_size=60)
BODIES = st.one_of(EQUAL_BODIES, MIXED_BODIES)


def plain_frame(body: bytes, raw_id: int, timestamp_ns: int, attempts: int = 1) -> bytes:
    """A message frame by the documented layout, without any code under test."""
    data = struct.pack(">qH", timestamp_ns, attempts) + b"%016x" % raw_id + body
    return struct.pack(">ii", 4 + len(data), 2) + data


def scattered(bodies: list[bytes], gap: int, as_arrays: bool) -> f.BodySlices:
    """Bodies with other bytes between them, at irregular places, as in a client's input."""
    buffer, starts = bytearray(), []
    for number, body in enumerate(bodies):
        buffer += b"#" * (gap * (1 + number % 3))
        starts.append(len(buffer))
        buffer += body
    sizes = [len(body) for body in bodies]
    if as_arrays:
        return f.BodySlices(bytes(buffer), np.array(starts, np.int64), np.array(sizes, np.int64))
    return f.BodySlices(bytes(buffer), starts, sizes)


def run_of(count: int, size: int = 20) -> tuple[bytes, f.Ends]:
    return batch.encode_frames([f.BodySlices.of([b"b" * size] * count)], 5, 1, 9)


def test_response_and_error_frames() -> None:
    """A frame is its size, its type and its data."""
    assert layout.OK == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert layout.error(b"E_X y") == b"\x00\x00\x00\x09\x00\x00\x00\x01E_X y"
    assert layout.frame(layout.FRAME_RANGE, b"") == b"\x00\x00\x00\x04\x00\x00\x00\x03"


@given(
    pieces=st.lists(st.tuples(BODIES, st.integers(0, 5), st.booleans()), min_size=1, max_size=4),
    first_index=INDEXES.filter(lambda index: index < (1 << 54) - 300),
    node_id=NODES,
)
@example([([bytes([n]) * (5000 + n) for n in range(20)], 1, False)], 1, 1)
def test_encode_equals_the_plain_form(
    pieces: list[tuple[list[bytes], int, bool]], first_index: int, node_id: int
) -> None:
    """Frames are the same as one by one, whatever the bodies' sizes and positions."""
    placed = [scattered(*piece) for piece in pieces]
    bodies = [body for piece, _, _ in pieces for body in piece]
    plain = [
        plain_frame(body, node_id << 54 | first_index + position, 77)
        for position, body in enumerate(bodies)
    ]

    frames, ends = batch.encode_frames(placed, first_index, node_id, 77)
    scalar_frames, scalar_ends = batch.encode_frames_scalar(placed, first_index, node_id, 77)

    assert frames == scalar_frames == b"".join(plain)
    assert ends.tolist() == scalar_ends.tolist() == np.cumsum([len(p) for p in plain]).tolist()


@given(st.data(), st.integers(1, 60), st.integers(1, 30), st.integers(0, 9), st.booleans())
def test_encode_of_bodies_at_even_distances(
    data: st.DataObject, count: int, size: int, gap: int, beside_others: bool
) -> None:
    """Positions given as a range give the same frames as a list of them."""
    buffer = data.draw(st.binary(min_size=count * (size + gap) + 3, max_size=count * 40 + 3))
    places = range(3, 3 + count * (size + gap), size + gap)
    even = f.BodySlices.even(buffer, places, size)
    listed = f.BodySlices(buffer, list(places), [size] * count)
    other = [f.BodySlices.of([b"o" * data.draw(st.sampled_from([size, 31]))] * 20)] * beside_others

    frames, ends = batch.encode_frames([*other, even], 5, 1, 9)
    plain_frames, plain_ends = batch.encode_frames_scalar([*other, listed], 5, 1, 9)

    assert frames == plain_frames
    assert ends.tolist() == plain_ends.tolist()
    assert even.size_bytes == listed.size_bytes


def test_encode_refuses_indexes_beyond_54_bits() -> None:
    """An index above 54 bits or a node id above 10 bits fails an assertion."""
    with pytest.raises(AssertionError):
        batch.encode_frames([f.BodySlices.of([b"x"])], layout.INDEX_LIMIT, 1, 1)
    with pytest.raises(AssertionError):
        batch.encode_frames([f.BodySlices.of([b"x"])], 1, 1024, 1)


def test_bodies_iterate_and_count() -> None:
    """BodySlices has a length and a total size, and iterates over the bodies."""
    for as_arrays in (False, True):
        bodies = scattered([b"one", b"", b"three"], 2, as_arrays)

        assert len(bodies) == 3
        assert bodies.size_bytes == 8
        assert [bytes(body) for body in bodies] == [b"one", b"", b"three"]
    assert len(f.BodySlices.of([])) == 0


# Ids


ID_TEXTS = st.one_of(
    st.integers(0, (1 << 64) - 1).map(lambda raw: b"%016x" % raw),
    st.integers(0, (1 << 64) - 1).map(lambda raw: b"%016X" % raw),
    st.binary(min_size=14, max_size=18),
    st.text("0aA_+- xg\n", min_size=16, max_size=16).map(str.encode),
)


@given(st.lists(ID_TEXTS, max_size=40))
@example([b"", b"0" * 15, b"0" * 17, b"0" * 15 + b"A", b" " + b"0" * 15, b"-" + b"0" * 14 + b"1"])
def test_texts_without_16_hex_digits_are_invalid_ids(texts: list[bytes]) -> None:
    """Texts other than 16 lower-case hex digits give INVALID_ID."""
    hex_digits = set(b"0123456789abcdef")
    plain = [
        int(text, 16) if len(text) == 16 and hex_digits.issuperset(text) else layout.INVALID_ID
        for text in texts
    ]

    assert [f.parse_raw_id(text) for text in texts] == plain


# Runs


@given(BODIES, st.data())
def test_patched_attempts(bodies: list[bytes], data: st.DataObject) -> None:
    """Each message gets its attempts, at most 65,535; nothing else changes."""
    frames, ends = batch.encode_frames([f.BodySlices.of(bodies)], 8, 2, 77)
    counts = st.lists(st.integers(1, 70_000), min_size=len(bodies), max_size=len(bodies))
    attempts = data.draw(counts)
    plain = [
        plain_frame(body, 2 << 54 | 8 + at, 77, min(attempts[at], 65_535))
        for at, body in enumerate(bodies)
    ]

    assert f.patch_attempts(frames, ends, np.array(attempts)) == b"".join(plain)


def test_one_count_of_attempts_for_all() -> None:
    """A single number applies to every message, and the original run is not changed."""
    frames, ends = run_of(3)
    before = bytes(frames)

    patched = f.patch_attempts(frames, ends, 70_000)

    assert patched == b"".join(plain_frame(b"b" * 20, 1 << 54 | 5 + n, 9, 65_535) for n in range(3))
    assert frames == before


@given(MIXED_BODIES, st.data())
def test_timestamps_are_patched_one_by_one(bodies: list[bytes], data: st.DataObject) -> None:
    """Each message gets its timestamp, and nothing else changes."""
    count = len(bodies)
    stamp = st.integers(-(1 << 63), (1 << 63) - 1)
    stamps = data.draw(st.lists(stamp, min_size=count, max_size=count))
    frames, ends = batch.encode_frames([f.BodySlices.of(bodies)], 5, 7, 1)

    patched = f.patch_timestamps(frames, ends, np.array(stamps, np.int64))

    raw = 7 << 54 | 5
    alone = [plain_frame(bodies[n], raw + n, stamps[n]) for n in range(count)]
    assert b"".join(alone) == patched
