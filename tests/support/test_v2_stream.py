"""The V2 stream: the same frames for any division of their bytes, through every layer."""

import struct

import pytest

from tests.support.v2_stream import FRAME_MESSAGE, FRAME_RESPONSE, V2Stream, decode_message

OK = struct.pack(">ii", 6, FRAME_RESPONSE) + b"OK"
MESSAGE = struct.pack(">iiqH16s", 4 + 26 + 4, FRAME_MESSAGE, 7, 2, b"0123456789abcdef") + b"body"


def test_only_complete_frames_are_returned() -> None:
    """The bytes of an incomplete frame stay in the buffer."""
    stream = V2Stream()
    stream.feed(OK + OK[:7])

    assert [(FRAME_RESPONSE, b"OK")] == stream.frames()
    assert stream.frame() is None
    assert OK[:7] == stream.plain


@pytest.mark.parametrize("cut", range(len(OK + MESSAGE) + 1))
def test_frames_are_the_same_however_they_are_cut(cut: int) -> None:
    """`frame` and `frames` return the same frames for any division of their bytes."""
    data = OK + MESSAGE
    all_at_once, one_at_a_time = V2Stream(), V2Stream()
    found = []
    for piece in (data[:cut], data[cut:]):
        all_at_once.feed(piece)
        found += all_at_once.frames()
        one_at_a_time.feed(piece)
    assert found == [one_at_a_time.frame(), one_at_a_time.frame()]

    assert found[0] == (FRAME_RESPONSE, b"OK")
    assert (7, 2, b"0123456789abcdef", b"body") == decode_message(found[1][1])


def test_an_invalid_frame_is_an_error() -> None:
    """A size too small for the frame type raises ValueError from `frame` and ends `frames`."""
    stream = V2Stream()
    stream.feed(struct.pack(">ii", 3, 0))

    assert [] == stream.frames()
    with pytest.raises(ValueError, match="a frame of 3 bytes"):
        stream.frame()


def test_an_index_is_part_of_an_id() -> None:
    """The index is the lower 54 bits of the id."""
    assert decode_message(MESSAGE[8:]).log_index == 0x0123456789ABCDEF & ((1 << 54) - 1)


@pytest.mark.parametrize("kind", ["deflate", "snappy"])
def test_a_compression_begins_after_a_frame(kind: str) -> None:
    """Bytes received after the last plain frame are decompressed, even from the same read."""
    sender, receiver = V2Stream(), V2Stream()
    receiver.feed(OK)
    sender.begin_compression(kind)
    sealed = [sender.seal(MESSAGE), sender.seal(OK)]
    receiver.feed(sealed[0])
    assert receiver.frame() == (FRAME_RESPONSE, b"OK")
    receiver.begin_compression(kind)
    for piece in (sealed[1][:3], sealed[1][3:]):
        receiver.feed(piece)

    assert [FRAME_MESSAGE, FRAME_RESPONSE] == [found for found, _ in receiver.frames()]
