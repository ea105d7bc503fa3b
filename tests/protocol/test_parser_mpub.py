"""An MPUB that arrives in pieces: where its messages end, and how often they are copied."""

from __future__ import annotations

import pytest

from sparq.protocol import commands as c
from sparq.protocol.parser import CommandParser
from tests.protocol.test_parser import LIMITS, conversation, i32


@pytest.mark.parametrize("declared", [1, 4, 29, 30, 31, 45, 3000])
def test_declared_size_of_an_mpub_decides_nothing(declared: int) -> None:
    """Too small, right or too large, and cut anywhere: the messages end where they end."""
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
            assert expected == conversation(pieces)


def test_bodies_of_an_mpub_that_a_chunk_cuts_are_copied_once() -> None:
    """What follows the MPUB stays in its chunk; the bodies stay where the pieces were joined."""
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
