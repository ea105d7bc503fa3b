"""Runs of FINs, PUBs and messages of MPUBs: the same results as reading one by one."""

import struct

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sparq.protocol import commands as c
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser
from sparq.protocol.runs import (
    COMPARED_MAX,
    EVEN_MAX,
    FIN_WIDTH,
    SINGLE_MAX,
    MultiPublishBody,
    finish_run,
    parse_body,
    publish_run,
)
from tests.protocol.parsing import LIMITS, events_of, i32

SIZE_MAX = 50
LINE = b"PUB t\n"

GOOD_FINS = st.integers(0, (1 << 64) - 1).map(lambda raw: b"FIN %016x\n" % raw)
BEFORE_A_PAGE = st.integers(1, 1 << 50).map(lambda page: page * COMPARED_MAX - 20)
"""First ids of runs in which more than the last three digits change."""
OTHER_LINES = st.sampled_from(
    [
        *(
            b"NOP\n",
            b"FIN 0123456789ABCDEF\n",
            b"FIN 0123 56789abcdef\n",
            b"FIN 0123456789abcde\r\n",
        ),
        *(b"FIN 0123456789abcdef \n", b"FIN 01234567\n", b"fin 0123456789abcdef\n", b"FIN 0123"),
        *(b"FIN 0123456\n89abcdef\n", b"FIN \n", b"FIN 0123456789abcdeg\n", b"", b"F"),
    ]
)


def plain_finishes(data: bytes, at: int) -> list[bytes]:
    """The ids of the FINs from this position on, line by line."""
    ids = []
    while True:
        line = data[at : at + FIN_WIDTH]
        text = line[4:20]
        if line != b"FIN " + text + b"\n" or not set(b"0123456789abcdef").issuperset(text):
            return ids
        ids.append(text)
        at += FIN_WIDTH


@given(
    st.lists(GOOD_FINS, max_size=3).map(b"".join),
    st.lists(GOOD_FINS, max_size=60).map(b"".join),
    OTHER_LINES,
    st.lists(GOOD_FINS, max_size=30).map(b"".join),
)
def test_finish_run_equals_line_by_line(
    before: bytes, run: bytes, other: bytes, after: bytes
) -> None:
    """A run consists of all valid FINs before the first other line."""
    data = before + run + other + after
    ids = plain_finishes(data, len(before))

    finish = finish_run(data, len(before))

    if finish is None:
        assert ids == []
    else:
        assert [finish.id_text(at) for at in range(len(finish))] == ids
        assert list(finish.raw_ids) == [int(text, 16) for text in ids]


@given(
    st.one_of(st.integers(0, (1 << 64) - 1), st.just((1 << 64) - 30), BEFORE_A_PAGE),
    st.integers(16, 80),
    st.lists(st.tuples(st.integers(0, 80 * FIN_WIDTH), st.sampled_from(b"0fFG \n_+")), max_size=2),
    OTHER_LINES,
)
@example(5 * COMPARED_MAX - 20, 40, [], b"")
def test_finishes_in_order_equal_line_by_line(
    first: int, count: int, changes: list[tuple[int, int]], other: bytes
) -> None:
    """Consecutive ids are read as a range; a damaged line among them is not included."""
    ids = [(first + n) % (1 << 64) for n in range(count)]
    lines = bytearray(b"".join(c.fin(b"%016x" % raw) for raw in ids))
    for at, byte in changes:
        lines[at % len(lines)] = byte
    data = bytes(lines) + other

    finish = finish_run(data, 0)

    found = plain_finishes(data, 0)
    if finish is None:
        assert found == []
    else:
        assert [finish.id_text(at) for at in range(len(finish))] == found
        assert list(finish.raw_ids) == [int(text, 16) for text in found]
        if not changes and other in (b"", b"F") and ids[-1] > ids[0]:
            assert isinstance(finish.raw_ids, range) or ids[-1] == (1 << 64) - 1


def test_a_long_run_is_bounded() -> None:
    """A run has at most `COMPARED_MAX` FINs; the rest is the next run."""
    data = b"".join(c.fin(b"%016x" % n) for n in range(COMPARED_MAX + 100))

    first = finish_run(data, 0)
    assert first is not None
    second = finish_run(data, len(first) * FIN_WIDTH)

    assert second is not None
    assert (len(first), len(second)) == (COMPARED_MAX, 100)
    assert second.id_text(0) == b"%016x" % COMPARED_MAX


def plain_publishes(data: bytes, at: int) -> list[tuple[int, int]]:
    """(start, size) of the PUBs from this position on, one by one."""
    found = []
    while data[at : at + len(LINE)] == LINE and len(data) >= at + len(LINE) + 4:
        start = at + len(LINE) + 4
        size = int.from_bytes(data[start - 4 : start], "big", signed=True)
        if not 0 < size <= SIZE_MAX or start + size > len(data):
            break
        found.append((start, size))
        at = start + size
    return found


PUBLISHES = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 30), st.integers(1, 80)),  # a size, and a count of PUBs
        st.tuples(st.integers(1, SIZE_MAX), st.just(1)),
    ),
    max_size=6,
).map(lambda runs: b"".join(c.pub("t", b"b" * size) * count for size, count in runs))
OTHERS = st.sampled_from(
    [
        *(b"", b"P", b"PUB t\n", b"PUB t\n\0\0", b"PUB t\n\xff\xff\xff\xff"),
        *(b"PUB t\n\x7f\xff\xff\xff", c.pub("t", b"cut short")[:-1]),
        *(c.pub("u", b"x"), c.pub("t", b""), c.pub("t", b"x" * 51)),
    ]
)


@given(st.binary(max_size=3), PUBLISHES, OTHERS, PUBLISHES)
def test_publish_runs_equal_one_by_one(
    before: bytes, run: bytes, other: bytes, after: bytes
) -> None:
    """Runs consist of all complete, valid PUBs to the same topic, of any sizes."""
    data = before + run + other + after
    assume(data.startswith(LINE, len(before)))
    found: list[tuple[int, int]] = []
    at = len(before)

    while data.startswith(LINE, at) and (bodies := publish_run(data, at, LINE, SIZE_MAX)):
        found += zip(bodies.starts, bodies.sizes, strict=True)
        at = found[-1][0] + found[-1][1]

    assert found == plain_publishes(data, len(before))


def test_a_publish_run_is_bounded() -> None:
    """A run has at most `EVEN_MAX` PUBs of one size, or `SINGLE_MAX` of different sizes."""
    even = publish_run(c.pub("t", b"abc") * (EVEN_MAX + 20), 0, LINE, SIZE_MAX)
    uneven = publish_run((c.pub("t", b"abc") + c.pub("t", b"d")) * SINGLE_MAX, 0, LINE, SIZE_MAX)

    assert even is not None
    assert uneven is not None
    assert (len(even), len(uneven)) == (EVEN_MAX, SINGLE_MAX)
    assert bytes(list(even)[-1]) == b"abc"
    assert isinstance(even.starts, range)


# MPUB

BODY_MAX = 3000


def body_of(messages: list[bytes], count: int | None = None) -> bytes:
    parts = [struct.pack(">i", len(message)) + message for message in messages]
    return struct.pack(">i", len(messages) if count is None else count) + b"".join(parts)


def outcome(body: bytes, cuts: list[int]) -> list[bytes] | str:
    """The result for a body that arrives in pieces: its messages, or the error's text."""
    arrived = bytearray()
    parsed = MultiPublishBody(len(body), SIZE_MAX, BODY_MAX)
    try:
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            arrived += body[begin:end]
            if (messages := parsed.parse(arrived, 0)) is not None:
                return [bytes(message) for message in messages]
        return parsed.cut_short(arrived).frame_text().decode()
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
def test_an_mpub_equals_plain_reading(
    messages: list[bytes],
    count_error: int,
    damage: tuple[int, int] | None,
    missing: int,
    cuts: list[int],
) -> None:
    """An MPUB's messages, or its error, are those of plain reading, however the body is cut."""
    body = bytearray(body_of(messages, len(messages) + count_error))
    if damage is not None:
        body[damage[0] % len(body)] = damage[1]
    body = body[: len(body) - (missing if missing > 20 else 0)]
    places = sorted(cut % (len(body) + 1) for cut in cuts)

    found = outcome(bytes(body), places)

    assert found == plain(bytes(body))


def test_long_bodies_of_one_size_and_of_many() -> None:
    """Bodies longer than any single step are found completely; those of one size as a range."""
    many = [b"x"] * 9000 + [b"y" * (1 + n % 3) for n in range(3000)] + [b"z" * 4] * 20
    even = [bytes([n, n + 1]) for n in range(200)]
    body = body_of(even)

    assert [bytes(each) for each in parse_body(body_of(many), SIZE_MAX, 1_000_000)] == many
    for cut in range(len(body)):
        parsed = MultiPublishBody(len(body), SIZE_MAX, BODY_MAX)
        assert parsed.parse(body[:cut], 0) is None
        bodies = parsed.parse(body, 0)
        assert bodies is not None
        assert isinstance(bodies.starts, range)
        assert [bytes(message) for message in bodies] == even


def test_a_short_body_is_refused() -> None:
    """`parse_body` raises an error for a short body: HTTP bodies are complete."""
    for body in (body_of([b"one"])[:-1], body_of([b"one", b"two"])[:-1]):
        with pytest.raises(RemoteError, match="failed to read message body"):
            parse_body(body, SIZE_MAX, BODY_MAX)


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
