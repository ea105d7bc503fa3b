"""The command builders, whose bytes the parser reads back."""

import struct

import pytest

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands as c
from sparq.protocol.parser import CommandParser

ID = b"0123456789abcdef"


def parsed(data: bytes, state: int) -> c.Command | None:
    parser = CommandParser(IdentifyLimits())
    parser.state = state
    parser.feed(data)
    return parser.next()


@pytest.mark.parametrize(
    ("data", "state", "command"),
    [
        (c.identify(b"{}"), 0, c.Identify(b"{}")),
        (c.sub("t", "c#ephemeral"), 0, c.Subscribe("t", "c#ephemeral")),
        (c.rdy(7), 3, c.Ready(7)),
        (c.req(ID, 90), 3, c.Requeue(ID, 0x0123456789ABCDEF, 90)),
        (c.touch(ID), 3, c.Touch(ID, 0x0123456789ABCDEF)),
        (c.cls(), 3, c.Close()),
        (c.nop(), 0, c.Nop()),
        (c.attach("t", "c"), 0, c.Attach("t", "c")),
        (c.ends("t"), 0, c.ReadEnds("t")),
        (c.ends("t", "time", 5), 0, c.ReadEnds("t", "time", 5)),
        (c.ends("t", "after", 5, 6), 0, c.ReadEnds("t", "after", 5, 6)),
        (c.ends("t", "within", 5, 6), 0, c.ReadEnds("t", "within", 5, 6)),
        (c.read("t", "ab01", 5, 6, 7), 0, c.Read("t", "ab01", 5, 6, 7)),
        (c.commit("t", "c", 5, 6), 0, c.CommitRange("t", "c", 5, 6)),
    ],
)
def test_each_builders_bytes_are_parsed_as_its_command(
    data: bytes, state: int, command: c.Command
) -> None:
    """The parser reads each builder's bytes as the equivalent command."""
    assert parsed(data, state) == command


def test_bytes_on_the_wire() -> None:
    """The bytes are those of NSQ's specification, including nsqlookupd's commands."""
    assert c.identify(b"{}") == b"IDENTIFY\n\x00\x00\x00\x02{}"
    assert c.auth(b"key") == b"AUTH\n\x00\x00\x00\x03key"
    assert c.pub("t", b"xy") == b"PUB t\n\x00\x00\x00\x02xy"
    assert c.mpub("t", [b"x"]) == b"MPUB t\n" + struct.pack(">iii", 9, 1, 1) + b"x"
    assert c.fin(ID) == b"FIN 0123456789abcdef\n"
    assert c.MAGIC_V2 == b"  V2"
