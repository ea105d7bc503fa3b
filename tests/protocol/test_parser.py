"""The parser: NSQ's error texts and order of checks, and the same commands for any chunking."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands as c
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.layout import INVALID_ID
from sparq.protocol.parser import CommandParser
from tests.protocol.parsing import CLOSING, INIT, LIMITS, SUBSCRIBED, Event, drained, events_of, i32

ID = b"0123456789abcdef"


# NSQ's texts

WRONG = [
    # (state, bytes sent, error)
    (INIT, b"HELLO x\n", "E_INVALID invalid command HELLO"),
    (INIT, b"\n", "E_INVALID invalid command "),
    (INIT, b"\r\n", "E_INVALID invalid command "),
    (INIT, b" NOP\n", "E_INVALID invalid command "),
    (INIT, b"nop\n", "E_INVALID invalid command nop"),
    (INIT, b"\xff\xfe\n", b"E_INVALID invalid command \xff\xfe"),
    (INIT, b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
    # The state is checked before anything else in the line.
    *[
        (state, line, f"E_INVALID cannot {line.split()[0].decode()} in current state")
        for state, lines in (
            (INIT, (b"RDY x\n", b"FIN " + ID + b"\n", b"FIN\n", b"REQ\n", b"TOUCH\n", b"CLS\n")),
            (SUBSCRIBED, (b"IDENTIFY\n", b"AUTH x\n", b"SUB t c\n", b"ATTACH t c\n")),
            (CLOSING, (b"IDENTIFY\n", b"AUTH\n", b"SUB\n", b"CLS\n")),
        )
        for line in lines
    ],
    # IDENTIFY
    (INIT, b"IDENTIFY\n" + i32(3001), "E_BAD_BODY IDENTIFY body too big 3001 > 3000"),
    (INIT, b"IDENTIFY\n" + i32(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
    (INIT, b"IDENTIFY\n" + i32(-1), "E_BAD_BODY IDENTIFY invalid body size -1"),
    (INIT, b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
    (INIT, b"IDENTIFY\n\0\0\0", "E_BAD_BODY IDENTIFY failed to read body size"),
    (INIT, b"IDENTIFY\n" + i32(2), "E_BAD_BODY IDENTIFY failed to read body"),
    (INIT, b"IDENTIFY\n" + i32(2) + b"{", "E_BAD_BODY IDENTIFY failed to read body"),
    # AUTH
    (INIT, b"AUTH x\n", "E_INVALID AUTH invalid number of parameters"),
    (INIT, b"AUTH \n", "E_INVALID AUTH invalid number of parameters"),
    (INIT, b"AUTH\n" + i32(3001), "E_BAD_BODY AUTH body too big 3001 > 3000"),
    (INIT, b"AUTH\n" + i32(0), "E_BAD_BODY AUTH invalid body size 0"),
    (INIT, b"AUTH\n\0", "E_BAD_BODY AUTH failed to read body size"),
    (INIT, b"AUTH\n" + i32(2) + b"s", "E_BAD_BODY AUTH failed to read body"),
    # SUB
    (INIT, b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
    (INIT, b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
    (INIT, b"SUB b@d c\n", 'E_BAD_TOPIC SUB topic name "b@d" is not valid'),
    (INIT, b"SUB  c\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    (INIT, b"SUB t b\x01\xff\n", 'E_BAD_CHANNEL SUB channel name "b\\x01\\xff" is not valid'),
    (INIT, b"SUB t  c\n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
    (INIT, b"SUB b@d b@d\n", 'E_BAD_TOPIC SUB topic name "b@d" is not valid'),
    # RDY
    (SUBSCRIBED, b"RDY x\n", "E_INVALID RDY could not parse count x"),
    (SUBSCRIBED, b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
    (SUBSCRIBED, b"RDY 1_0\n", "E_INVALID RDY could not parse count 1_0"),
    (SUBSCRIBED, b"RDY 26\n", "E_INVALID RDY count 26 out of range 0-25"),
    (
        SUBSCRIBED,
        b"RDY 18446744073709551615\n",
        "E_INVALID RDY count -1 out of range 0-25",
    ),
    # FIN, REQ, TOUCH
    (SUBSCRIBED, b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (SUBSCRIBED, b"FIN \n", "E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN " + ID[:15] + b"\n", "E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN " + ID + b"0\n", "E_INVALID invalid message ID"),
    (CLOSING, b"FIN " + ID[:15] + b"\r\n", "E_INVALID invalid message ID"),
    (SUBSCRIBED, b"FIN 01234567 9abcdef\n", "E_INVALID invalid message ID"),
    (SUBSCRIBED, b"REQ\n", "E_INVALID REQ insufficient number of params"),
    (SUBSCRIBED, b"REQ " + ID + b"\n", "E_INVALID REQ insufficient number of params"),
    (SUBSCRIBED, b"REQ x y\n", "E_INVALID invalid message ID"),
    (SUBSCRIBED, b"REQ " + ID + b" 5s\n", "E_INVALID REQ could not parse timeout 5s"),
    (SUBSCRIBED, b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    (SUBSCRIBED, b"TOUCH x\n", "E_INVALID invalid message ID"),
    # PUB
    (INIT, b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (INIT, b"PUB b@d\n", 'E_BAD_TOPIC PUB topic name "b@d" is not valid'),
    (INIT, b"PUB t\n\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
    (INIT, b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
    (INIT, b"PUB t\r\n" + i32(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
    (INIT, b"PUB t\n" + i32(-5), "E_BAD_MESSAGE PUB invalid message body size -5"),
    (INIT, b"PUB t\n" + i32(41), "E_BAD_MESSAGE PUB message too big 41 > 40"),
    (INIT, b"PUB t\n" + i32(2) + b"x", "E_BAD_MESSAGE PUB failed to read message body"),
    # DPUB
    (INIT, b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
    (INIT, b"DPUB b@d x\n", 'E_BAD_TOPIC DPUB topic name "b@d" is not valid'),
    (INIT, b"DPUB t 1s\n", "E_INVALID DPUB could not parse timeout 1s"),
    (INIT, b"DPUB t 501\n", "E_INVALID DPUB timeout 501 out of range 0-500"),
    (
        INIT,
        b"DPUB t 18446744073709551615\n",
        "E_INVALID DPUB timeout 18446744073709551615 out of range 0-500",
    ),
    (INIT, b"DPUB t 1\n", "E_BAD_MESSAGE DPUB failed to read message body size"),
    (INIT, b"DPUB t 1\n" + i32(0), "E_BAD_MESSAGE DPUB invalid message body size 0"),
    (INIT, b"DPUB t 1\n" + i32(41), "E_BAD_MESSAGE DPUB message too big 41 > 40"),
    (INIT, b"DPUB t 1\n" + i32(2), "E_BAD_MESSAGE DPUB failed to read message body"),
    # MPUB
    (INIT, b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    (INIT, b"MPUB b@d\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "b@d" is not valid'),
    (INIT, b"MPUB t\n\0", "E_BAD_BODY MPUB failed to read body size"),
    (INIT, b"MPUB t\n", "E_BAD_BODY MPUB failed to read body size"),
    (INIT, b"MPUB t\n" + i32(0), "E_BAD_BODY MPUB invalid body size 0"),
    (INIT, b"MPUB t\n" + i32(-1), "E_BAD_BODY MPUB invalid body size -1"),
    (INIT, b"MPUB t\n" + i32(3001), "E_BAD_BODY MPUB body too big 3001 > 3000"),
    (INIT, b"MPUB t\n" + i32(9) + b"\0", "E_BAD_BODY MPUB failed to read message count"),
    (INIT, b"MPUB t\n" + i32(9, 0), "E_BAD_BODY MPUB invalid message count 0"),
    (INIT, b"MPUB t\n" + i32(9, -1), "E_BAD_BODY MPUB invalid message count -1"),
    (INIT, b"MPUB t\n" + i32(9, 600), "E_BAD_BODY MPUB invalid message count 600"),
    (
        INIT,
        b"MPUB t\n" + i32(9, 599) + b"\0",
        "E_BAD_MESSAGE MPUB failed to read message(0) body size",
    ),
    (INIT, b"MPUB t\n" + i32(9, 1, 0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (
        INIT,
        b"MPUB t\n" + i32(9, 2, 1) + b"x" + i32(-3),
        "E_BAD_MESSAGE MPUB invalid message(1) body size -3",
    ),
    (INIT, b"MPUB t\n" + i32(9, 1, 41), "E_BAD_MESSAGE MPUB message too big 41 > 40"),
    (INIT, b"MPUB t\n" + i32(9, 1, 2) + b"x", "E_BAD_MESSAGE MPUB failed to read message body"),
    # Range reading
    (INIT, b"ATTACH t\n", "E_INVALID ATTACH insufficient number of parameters"),
    (INIT, b"ATTACH b@d c\n", 'E_BAD_TOPIC ATTACH topic name "b@d" is not valid'),
    (INIT, b"ATTACH t b@d\n", 'E_BAD_CHANNEL ATTACH channel name "b@d" is not valid'),
    (INIT, b"ENDS\n", "E_INVALID ENDS insufficient number of parameters"),
    (INIT, b"ENDS t time\n", "E_INVALID ENDS insufficient number of parameters"),
    (INIT, b"ENDS t after 1\n", "E_INVALID ENDS insufficient number of parameters"),
    (INIT, b"ENDS t before 1\n", "E_INVALID ENDS could not parse kind before"),
    (INIT, b"ENDS t time x\n", "E_INVALID ENDS could not parse time x"),
    (INIT, b"ENDS t after -1 1\n", "E_INVALID ENDS could not parse index -1"),
    (INIT, b"ENDS t after 1 \n", "E_INVALID ENDS could not parse count "),
    (INIT, b"ENDS t within 1\n", "E_INVALID ENDS insufficient number of parameters"),
    (INIT, b"ENDS t within 1 x\n", "E_INVALID ENDS could not parse bytes x"),
    (INIT, b"READ t log 1 2\n", "E_INVALID READ insufficient number of parameters"),
    (INIT, b"READ t log x 2 3\n", "E_INVALID READ could not parse first x"),
    (INIT, b"READ t log 1 x 3\n", "E_INVALID READ could not parse end x"),
    (INIT, b"READ t log 1 2 x\n", "E_INVALID READ could not parse max bytes x"),
    (INIT, b"COMMIT t c 1\n", "E_INVALID COMMIT insufficient number of parameters"),
    (
        INIT,
        b"COMMIT t c 9223372036854775808 1\n",
        "E_INVALID COMMIT could not parse epoch 9223372036854775808",
    ),
    (INIT, b"COMMIT t c 1 x\n", "E_INVALID COMMIT could not parse index x"),
]


@pytest.mark.parametrize(("state", "sent", "text"), WRONG, ids=lambda part: repr(part)[:50])
def test_invalid_commands_get_nsqs_errors(state: int, sent: bytes, text: str | bytes) -> None:
    """Each invalid command gets NSQ's exact error, sent whole or byte by byte."""
    expected = text if isinstance(text, bytes) else text.encode()

    for pieces in ([sent], [sent[at : at + 1] for at in range(len(sent))]):
        assert events_of(pieces, state)[-1] == ("error", expected)


def test_errors_do_not_wait_for_bodies() -> None:
    """An error in the line is raised before the body arrives."""
    for line in (b"PUB b@d\n", b"MPUB b@d\n", b"DPUB t 501\n", b"PUB t\n" + i32(41)):
        parser = CommandParser(LIMITS)
        parser.feed(line)
        with pytest.raises(RemoteError):
            drained(parser, [])


@pytest.mark.parametrize("name", [b"IDENTIFY", b"AUTH"])
def test_a_strict_body_is_refused_by_its_size(name: bytes) -> None:
    """With strict_identify, a body over 64 KiB is refused by its announced size."""
    parser = CommandParser(IdentifyLimits(strict_identify=True))
    parser.feed(name + b"\n" + i32(64 << 10))
    assert parser.next() is None
    parser = CommandParser(IdentifyLimits(strict_identify=True))
    parser.feed(name + b"\n" + i32((64 << 10) + 1))
    with pytest.raises(RemoteError, match=f"E_BAD_BODY {name.decode()} body too big"):
        parser.next()


def test_sub_without_heartbeats() -> None:
    """SUB without heartbeats is refused before its parameters are checked."""
    parser = CommandParser(LIMITS)
    parser.heartbeats = False
    parser.feed(b"SUB\n")

    with pytest.raises(RemoteError, match="cannot SUB with heartbeats disabled"):
        parser.next()


def test_an_mpub_with_an_invalid_body_creates_its_topic() -> None:
    """An MPUB with an invalid body still creates its topic, as in NSQ."""
    events = events_of([b"MPUB t\n" + i32(0)])

    assert events[0] == ("TopicNeeded", "t")
    assert events[1][0] == "error"


def test_the_first_error_ends_the_parser() -> None:
    """After an error the parser reads nothing more."""
    parser = CommandParser(LIMITS)
    parser.feed(c.nop() + b"HELLO\n" + c.nop())
    assert parser.next() == c.Nop()
    with pytest.raises(RemoteError):
        parser.next()
    parser.feed(c.nop())

    assert parser.next() is None
    parser.eof()


def test_commands_before_an_error_are_returned_first() -> None:
    """A run of PUBs with an invalid one gives the valid ones before it, then the error."""
    good = [("PUB", "t", b"x")] * 30

    assert events_of([c.pub("t", b"x") * 30 + c.pub("t", b"")])[:-1] == good


# Valid commands


def test_numbers_are_read_as_nsq_does() -> None:
    """Numbers are parsed as in NSQ.

    An empty number is 0, RDY without a count is 1, numbers wrap at 64 bits, REQ's delay is limited.
    """
    lines = [b"RDY", b"RDY ", b"RDY 025", b"RDY 18446744073709551617", b"RDY 1" + b"0" * 5000]
    lines += [b"REQ %b %b" % (ID, ms) for ms in (b"", b"501", b"18446744073709551615", b"9" * 18)]

    events = events_of([b"".join(line + b"\n" for line in lines)], SUBSCRIBED)

    assert [event[-1] for event in events] == [1, 0, 25, 1, 0, 0, 500, 0, 500]


def test_rdy_is_ignored_while_closing() -> None:
    """After CLS any RDY is a NOP, even an invalid one."""
    assert events_of([b"RDY x\nRDY 99\n"], CLOSING) == [("Nop",), ("Nop",)]


def test_extra_parameters_and_carriage_returns_are_ignored() -> None:
    """Lines may end in CR LF and have extra parameters."""
    sent = b"SUB t c extra\r\nRDY 5 6\r\nFIN " + ID + b" x\r\nNOP x\nCLS x\n"

    assert events_of([sent]) == [
        *(("Subscribe", "t", "c"), ("Ready", 5)),
        *(("FIN", 0x0123456789ABCDEF, ID), ("Nop",), ("Close",)),
    ]


def test_ids_that_are_not_hex_digits_are_invalid() -> None:
    """16 bytes that are not hex digits give INVALID_ID, and the text is kept for the error."""
    text = b"0123456789ABCDEF"
    sent = b"FIN %b\nREQ %b 5\nTOUCH %b\n" % (text, text, text)

    assert events_of([sent], SUBSCRIBED) == [
        *(("FIN", INVALID_ID, text), ("Requeue", text, INVALID_ID, 5)),
        ("Touch", text, INVALID_ID),
    ]


def test_the_state_is_checked_for_each_command() -> None:
    """RDY after SUB in the same chunk is valid: the state is checked for each command."""
    assert events_of([b"SUB t c\nRDY 5\n" + c.fin(ID) + b"CLS\n" + c.fin(ID)]) == [
        *(("Subscribe", "t", "c"), ("Ready", 5), ("FIN", 0x0123456789ABCDEF, ID)),
        *(("Close",), ("FIN", 0x0123456789ABCDEF, ID)),
    ]


def test_sizes_at_the_limits() -> None:
    """The largest message, body, count and delay are accepted."""
    largest = [b"m" * 40] * 67 + [b"m" * 20] * 2
    assert len(c.mpub("t", largest)) == len(b"MPUB t\n") + 4 + LIMITS.max_body_size

    events = events_of([c.pub("t", b"m" * 40) + c.mpub("t", largest) + c.dpub("t", 500, b"m")])

    assert [event[0] for event in events] == ["PUB", "TopicNeeded", "MPUB", "DPUB"]


def test_the_messages_of_an_mpub_are_limited_to_the_largest_body() -> None:
    """The messages of an MPUB are limited to `max_body_size` in total."""
    sent = b"MPUB t\n" + i32(100, 500) + (i32(40) + b"m" * 40) * 500

    assert events_of([sent])[-1] == ("error", b"E_BAD_BODY MPUB body too big 3040 > 3000")


@pytest.mark.parametrize("step", [1, 1000, 16_384, 40_000])
def test_a_line_that_is_too_long_ends_the_connection(step: int) -> None:
    """A line has at most 16 KiB with its newline.

    A longer one ends the connection without an error frame.
    """
    longest = b"NOP " + b"x" * (16_384 - 5) + b"\n"

    def events_of_line(line: bytes) -> list[Event]:
        return events_of([line[at : at + step] for at in range(0, len(line), step)])

    assert events_of_line(longest) == [("Nop",)]
    assert events_of_line(b"x" + longest) == [("too long",)]
    assert events_of_line(longest[:-1] + b"x") == [("too long",)]


def test_a_disconnect_within_a_line_is_not_an_error() -> None:
    """A client that disconnects within a line, or between commands, causes no error."""
    for sent in (b"", b"NO", c.nop(), c.pub("t", b"x"), c.mpub("t", [b"x"])):
        assert "error" not in [event[0] for event in events_of([sent])]


def test_feeding_before_all_commands_are_pulled_loses_nothing() -> None:
    """Feeding more before all commands were pulled loses nothing."""
    parser = CommandParser(LIMITS)
    parser.feed(c.nop() + c.mpub("t", [b"one", b"two"])[:15])
    parser.feed(c.mpub("t", [b"one", b"two"])[15:19])
    assert parser.next() == c.Nop()
    assert parser.next() == c.TopicNeeded("t")
    assert parser.next() is None
    parser.feed(c.mpub("t", [b"one", b"two"])[19:])
    parser.feed(c.nop())

    events: list[Event] = []
    drained(parser, events)
    assert events == [("MPUB", "t", b"one", b"two"), ("Nop",)]


def test_bodies_complete_in_one_chunk_are_not_copied() -> None:
    """The bodies of PUBs that are complete in one chunk are not copied."""
    chunk = c.pub("t", b"x" * 40) * 20
    parser = CommandParser(LIMITS)
    parser.feed(chunk)
    publish = parser.next()

    assert isinstance(publish, c.PublishRun)
    assert isinstance(publish.bodies, BodySlices)
    assert publish.bodies.buffer is chunk
    assert len(publish.bodies) == publish.replies == 20


# Any chunking

NAMES = st.sampled_from([b"t"] * 6 + [b"clicks", b"x#ephemeral"])
SIZES = st.one_of(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), st.tuples(st.integers(1, 40), st.just(1))
)
MESSAGES = st.lists(SIZES, min_size=1, max_size=4).map(
    lambda runs: [b"m" * size for size, count in runs for _ in range(count)][:65]
)
RAW_IDS = st.integers(0, (1 << 64) - 1)
ID_TEXTS = st.one_of(
    *[RAW_IDS.map(lambda raw: b"%016x" % raw)] * 8, RAW_IDS.map(lambda raw: b"%016X" % raw)
)
GOOD = st.one_of(
    st.builds(lambda t, ms: b"".join(c.pub(t.decode(), m) for m in ms), NAMES, MESSAGES),
    st.builds(lambda t, ms: c.mpub(t.decode(), ms), NAMES, MESSAGES),
    st.builds(lambda t, ms: c.dpub(t.decode(), 5, ms[0]), NAMES, MESSAGES),
    st.lists(ID_TEXTS, min_size=1, max_size=40).map(lambda ids: b"".join(map(c.fin, ids))),
    st.builds(lambda id_text: c.req(id_text, 7) + c.touch(id_text), ID_TEXTS),
    st.sampled_from([c.nop(), b"NOP\r\n", c.rdy(5), b"PUB t x\r\n" + i32(1) + b"m"]),
)
ODD = st.one_of(
    st.sampled_from([part for _, part, _ in WRONG]),
    st.binary(max_size=12),
    st.just(c.cls()),
    st.just(c.pub("t", b"cut short")[:-3]),
)


STREAMS = st.tuples(
    st.sampled_from([b"", c.identify(b"{}"), c.identify(b"{}") * 2, c.auth(b"key")]),
    st.sampled_from([b"", c.sub("t", "c")]),
    st.lists(GOOD, max_size=5).map(b"".join),
    ODD,
    st.lists(GOOD, max_size=2).map(b"".join),
).map(b"".join)
CUTS = st.one_of(
    st.lists(st.integers(0, 20_000), max_size=10),
    st.integers(1, 60).map(lambda step: list(range(step, 6000, step))),
)


@given(STREAMS, CUTS)
def test_commands_do_not_depend_on_chunks(stream: bytes, cuts: list[int]) -> None:
    """However a stream is cut, its commands are the same: byte by byte, none is part of a run."""
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[begin:end] for begin, end in pairwise(places)]
    one_by_one = events_of([stream[at : at + 1] for at in range(len(stream))])

    assert one_by_one == events_of(pieces) == events_of([stream])


def test_time_is_linear() -> None:
    """Parsing an MPUB and a PUB of 4 MB in pieces of 100 bytes takes linear time."""
    parser = CommandParser(IdentifyLimits(max_msg_size=4_000_000))
    stream = c.mpub("t", [b"m" * 100_000] * 45) + c.pub("t", b"m" * 4_000_000)

    begin = time.process_time()
    events: list[Event] = []
    for at in range(0, len(stream), 100):
        parser.feed(stream[at : at + 100])
        drained(parser, events)

    assert len(events) == 3
    # 85,000 pieces take about 0.2 s; copying all earlier bytes for each would take 30 s.
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("cut", range(1, 40))
def test_take_rest_returns_the_bytes_after_identify(cut: int) -> None:
    """`take_rest` returns the bytes after IDENTIFY for an upgrade, and removes them."""
    parser = CommandParser(LIMITS)
    stream = b"IDENTIFY\n\x00\x00\x00\x02{}\x16\x03\x01hello\nNOP\n"
    parser.feed(stream[:cut])
    command = parser.next()
    if command is None:
        parser.feed(stream[cut:])
        command, cut = parser.next(), len(stream)

    assert c.Identify(b"{}") == command
    assert stream[15:cut] == parser.take_rest()
    parser.feed(b"NOP\n")
    assert c.Nop() == parser.next()
    assert b"" == parser.take_rest()


@pytest.mark.parametrize("line", [b"SUB a b", b"NOP", b"AUTH", b"HUBBA x", b"", b"RDY 1", b"PUB"])
def test_required_tls_is_checked_before_anything_else(line: bytes) -> None:
    """If TLS is required, any command but IDENTIFY is refused before any other check."""
    parser = CommandParser(LIMITS)
    parser.needs_tls = True
    parser.feed(b"IDENTIFY\n\x00\x00\x00\x02{}" + line + b"\n")

    assert c.Identify(b"{}") == parser.next()
    with pytest.raises(RemoteError) as refused:
        parser.next()
    name = line.split(b" ")[0]
    expected = b"E_INVALID cannot " + name + b" in current state (TLS required)"
    assert (expected, True) == (refused.value.frame_text(), refused.value.fatal)
