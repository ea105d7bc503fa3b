"""The client's receiver: the same frames for any chunking, and checked sizes."""

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol import batch, layout
from sparq.protocol import frames as f
from sparq.protocol.receiver import FrameError, MessageRun, Receiver, decode_message

FRAMES = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=60)), max_size=20)
CUTS = st.lists(st.integers(0, 2000), max_size=12)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(places)]


@given(FRAMES, CUTS)
def test_frames_do_not_depend_on_chunks(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    """However the stream is cut, each frame is returned once, complete and in order."""
    receiver = Receiver(100)
    received = []
    for piece in pieces(b"".join(layout.frame(*frame) for frame in frames), cuts):
        receiver.feed(piece)
        received += list(receiver.frames())

    assert received == frames


MESSAGES = st.lists(
    st.one_of(
        st.tuples(st.just(2), st.binary(min_size=26, max_size=60)),
        st.tuples(st.sampled_from([0, 1, 3]), st.binary(max_size=60)),
    ),
    max_size=20,
)


@given(MESSAGES, CUTS, st.integers(1, 5))
def test_runs_give_the_same_frames_in_the_same_order(
    frames: list[tuple[int, bytes]], cuts: list[int], part: int
) -> None:
    """Runs, also if split, give the same messages and other frames in the same order."""
    receiver = Receiver(100)
    received: list[Any] = []
    for piece in pieces(b"".join(layout.frame(*frame) for frame in frames), cuts):
        receiver.feed(piece)
        for found in receiver.runs():
            if isinstance(found, MessageRun):
                assert found.attempts_max == max(each[1] for each in found.messages())
                while len(found) > part:
                    received += found.split(part).messages()
                assert found.bodies() == [each[3] for each in found.messages()]
                assert found.ids() == [each[2] for each in found.messages()]
                received += found.messages()
            else:
                received.append(found)

    assert received == [
        decode_message(data) if kind == layout.FRAME_MESSAGE else (kind, data)
        for kind, data in frames
    ]


@given(
    st.lists(
        st.sampled_from([layout.OK] * 4 + [layout.HEARTBEAT, layout.frame(1, b"E_X")]), max_size=30
    ),
    CUTS,
)
def test_take_oks_counts_each_ok_once(frames: list[bytes], cuts: list[int]) -> None:
    """`take_oks` counts each OK once and in order, however the stream is cut."""
    receiver, stream = Receiver(100), b"".join(frames)
    received: list[bytes] = []
    for piece in pieces(stream, cuts):
        receiver.feed(piece)
        received += [layout.OK] * receiver.take_oks()
        received += [layout.frame(*frame) for frame in receiver.frames()]

    assert received == frames


def test_take_oks_counts_only_what_is_left() -> None:
    """Frames that were taken before are not counted again."""
    receiver = Receiver(100)
    receiver.feed(layout.HEARTBEAT * 3 + layout.OK * 2)
    frames = receiver.frames()
    for _ in range(3):
        next(frames)

    assert 2 == receiver.take_oks()
    assert not receiver.has_more


def test_a_run_ends_before_an_invalid_message() -> None:
    """A run ends before a message without a header, and before an invalid size."""
    message = layout.frame(2, bytes(30))
    receiver = Receiver(100)
    receiver.feed(message * 3 + layout.frame(2, bytes(25)) + struct.pack(">ii", 101, 2) + bytes(97))
    runs = receiver.runs()

    assert len(next(runs)) == 3
    assert next(runs) == (2, bytes(25))
    with pytest.raises(FrameError, match="size 101"):
        next(runs)


def test_bytes_fed_while_frames_remain_are_kept() -> None:
    """Bytes fed while frames remain are not lost."""
    receiver = Receiver(100)
    receiver.feed(layout.OK + layout.HEARTBEAT[:5])
    frames = receiver.frames()
    assert next(frames) == (0, b"OK")
    receiver.feed(layout.HEARTBEAT[5:] + layout.OK)

    assert list(frames) == [(0, b"_heartbeat_"), (0, b"OK")]


@given(st.binary(max_size=60), st.binary(max_size=60), CUTS)
def test_take_rest_returns_the_bytes_after_the_last_frame(
    data: bytes, rest: bytes, cuts: list[int]
) -> None:
    """`take_rest` returns all bytes after the last frame, where an upgrade begins.

    None of them is read as a frame.
    """
    receiver = Receiver(100)
    stream = pieces(layout.frame(0, data) + rest, cuts)
    received: tuple[int, bytes] | None = None
    while received is None:
        receiver.feed(stream.pop(0))
        received = next(receiver.frames(), None)

    assert received == (0, data)
    assert receiver.take_rest() + b"".join(stream) == rest
    assert receiver.take_rest() == b""


@pytest.mark.parametrize("size", [3, 0, -1, 101, 2_000_000_000])
def test_an_invalid_size_raises_frame_error(size: int) -> None:
    """A size below 4 or above the limit raises FrameError, after the valid frames before it."""
    receiver = Receiver(100)
    receiver.feed(layout.OK + struct.pack(">ii", size, 0))
    frames = receiver.frames()

    assert next(frames) == (0, b"OK")
    with pytest.raises(FrameError, match=f"size {size} is outside the allowed range 4 to"):
        next(frames)


def test_a_wrong_port_is_explained() -> None:
    """If the peer answers in HTTP, the error says that this is an HTTP port."""
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    receiver = Receiver(1 << 20)
    receiver.feed(answer)

    with pytest.raises(FrameError, match="HTTP port"):
        list(receiver.frames())


def test_a_message_frame_is_decoded() -> None:
    """A message frame is decoded to timestamp, attempts, id and body."""
    frames, _ = batch.encode_frames([f.BodySlices.of([b"body"])], 5, 1, 77)

    assert decode_message(frames[8:]) == (77, 1, b"%016x" % (1 << 54 | 5), b"body")


def test_a_message_without_its_header_is_refused() -> None:
    """Too few bytes for a message raise FrameError."""
    with pytest.raises(FrameError, match="25 bytes"):
        decode_message(b"x" * 25)
