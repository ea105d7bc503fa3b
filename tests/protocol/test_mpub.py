"""MPUB bodies are parsed as they arrive, with NSQ's errors, in linear time."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol import commands as c
from sparq.protocol.errors import RemoteError
from sparq.protocol.mpub import MpubProgress, parse_body
from sparq.protocol.parser import CommandParser
from tests.protocol.parsing import LIMITS, events_of, i32

SIZE_MAX = 40
BODY_MAX = 3000


def body_of(messages: list[bytes], count: int | None = None) -> bytes:
    parts = [struct.pack(">i", len(message)) + message for message in messages]
    return struct.pack(">i", len(messages) if count is None else count) + b"".join(parts)


def outcome(walk: MpubProgress, body: bytes, cuts: list[int]) -> list[bytes] | str:
    """The result of a walk over a body that arrives in pieces: messages, or the error's text."""
    arrived = bytearray()
    try:
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            arrived += body[begin:end]
            if len(arrived) >= walk.need and walk.advance(arrived):
                whole = walk.bodies(bytes(arrived[: walk.at]))
                return [bytes(message) for message in whole]
        return walk.cut_short(len(arrived)).frame_text().decode()
    except RemoteError as error:
        return error.frame_text().decode()


def plain(body: bytes) -> list[bytes] | str:
    """The same result by reading one message after the other."""

    def number(at: int) -> int | None:
        return struct.unpack_from(">i", body, at)[0] if at + 4 <= len(body) else None

    count = number(0)
    if count is None:
        return "E_BAD_BODY MPUB failed to read message count"
    if not 0 < count <= (BODY_MAX - 4) // 5:
        return f"E_BAD_BODY MPUB invalid message count {count}"
    messages: list[bytes] = []
    at = 4
    for position in range(count):
        if at + 4 > BODY_MAX:
            return f"E_BAD_BODY MPUB body too big {at + 4} > {BODY_MAX}"
        size = number(at)
        if size is None:
            return f"E_BAD_MESSAGE MPUB failed to read message({position}) body size"
        if size <= 0:
            return f"E_BAD_MESSAGE MPUB invalid message({position}) body size {size}"
        if size > SIZE_MAX:
            return f"E_BAD_MESSAGE MPUB message too big {size} > {SIZE_MAX}"
        at += 4 + size
        if at > BODY_MAX:
            return f"E_BAD_BODY MPUB body too big {at} > {BODY_MAX}"
        if at > len(body):
            return "E_BAD_MESSAGE MPUB failed to read message body"
        messages.append(body[at - size : at])
    return messages


RUNS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, SIZE_MAX), st.integers(1, 60)),
        st.tuples(st.integers(0, SIZE_MAX + 1), st.just(1)),
    ),
    min_size=1,
    max_size=8,
).map(lambda runs: [b"m" * size for size, count in runs for _ in range(count)])


@given(
    messages=RUNS,
    count_error=st.sampled_from([0, 0, 0, 0, 1, -1, 1000, -1000]),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 3000), st.integers(0, 255))),
    missing=st.integers(0, 30),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
)
def test_walk_equals_plain_reading(
    messages: list[bytes],
    count_error: int,
    damage: tuple[int, int] | None,
    missing: int,
    cuts: list[int],
) -> None:
    """The walk gives the same result as plain reading, however the body is cut."""
    body = bytearray(body_of(messages, len(messages) + count_error))
    if damage is not None:
        body[damage[0] % len(body)] = damage[1]
    body = body[: len(body) - (missing if missing > 20 else 0)]
    places = sorted(cut % (len(body) + 1) for cut in cuts)

    found = outcome(MpubProgress(0, SIZE_MAX, BODY_MAX), bytes(body), places)

    assert found == plain(bytes(body))


def test_walk_survives_its_buffer_being_moved() -> None:
    """The walk continues after the beginning of its buffer is dropped."""
    body = body_of([b"one", b"two", b"three"])
    walk = MpubProgress(10, SIZE_MAX, BODY_MAX)

    assert not walk.advance(b"#" * 10 + body[:17])
    walk.rebase(10)
    assert walk.need == 4 + 7 + 7
    assert walk.advance(body)

    assert [bytes(message) for message in walk.bodies(body)] == [b"one", b"two", b"three"]


def test_long_runs_of_one_size_and_of_many() -> None:
    """Runs longer than any single step of the walk are found completely."""
    messages = [b"x"] * 9000 + [b"y" * (1 + n % 3) for n in range(3000)] + [b"z" * 4] * 20

    bodies = parse_body(body_of(messages), SIZE_MAX, 1_000_000)

    assert [bytes(body) for body in bodies] == messages


def test_one_size_is_one_run_however_it_is_cut() -> None:
    """Messages of one size become a range without arrays, however the body is cut."""
    messages = [bytes([n, n + 1]) for n in range(200)]
    body = body_of(messages)

    for cut in range(4 + 16 * 6, len(body)):
        walk = MpubProgress(0, SIZE_MAX, BODY_MAX)
        walk.advance(body[:cut])
        assert walk.advance(body)
        bodies = walk.bodies(body)
        assert isinstance(bodies.starts, range)
        assert [bytes(message) for message in bodies] == messages


def test_walk_whole_refuses_a_short_body() -> None:
    """`parse_body` raises an error for a short body: HTTP bodies are complete."""
    with pytest.raises(RemoteError, match="failed to read message body"):
        parse_body(body_of([b"one"])[:-1], SIZE_MAX, BODY_MAX)


def test_a_body_in_many_pieces_needs_few_arrays() -> None:
    """A body that arrives message by message needs few arrays, and loses no message."""
    messages = [bytes([n % 251]) for n in range(5000)]
    body = body_of(messages)
    walk = MpubProgress(0, SIZE_MAX, 1_000_000)

    for size in range(4, len(body) + 1, 5):
        whole = walk.advance(body[:size])

    assert whole
    assert [bytes(message) for message in walk.bodies(body)] == messages
    assert len(walk._ends) < 1100


@pytest.mark.parametrize("declared", [1, 4, 29, 30, 31, 45, 3000])
def test_the_declared_size_of_an_mpub_does_not_matter(declared: int) -> None:
    """An MPUB's declared body size does not matter: its messages determine its end.

    It may be too small, right or too large, and the input may be cut anywhere.
    """
    body = i32(2, 7) + b"seven!!" + i32(11) + b"eleven!!!!!"
    assert len(body) == 30
    stream = b"MPUB t\n" + i32(declared) + body + c.pub("t", b"behind") + c.nop()
    expected = [
        ("TopicNeeded", "t"),
        ("MPUB", "t", b"seven!!", b"eleven!!!!!"),
        ("PUB", "t", b"behind"),
        ("Nop",),
    ]

    for first in range(1, len(stream)):
        for second in range(first, len(stream), 5):
            pieces = [stream[:first], stream[first:second], stream[second:]]
            assert expected == events_of(pieces)


def test_bodies_of_an_mpub_that_a_chunk_cuts_are_copied_once() -> None:
    """An MPUB cut by a chunk is joined in one buffer, where its bodies stay.

    The command after it stays in its chunk.
    """
    parser = CommandParser(LIMITS)
    sent = c.mpub("t", [b"x" * 40] * 60)
    parser.feed(sent[:1000])
    assert parser.next() == c.TopicNeeded("t")
    assert parser.next() is None
    joined = parser._tail
    behind = c.pub("t", b"behind")
    chunk = sent[1000:] + behind
    parser.feed(chunk)
    publish, following = parser.next(), parser.next()

    assert isinstance(publish, c.MultiPublish)
    assert publish.bodies.buffer is joined
    assert isinstance(following, c.PublishRun)
    assert following.bodies.buffer is chunk
