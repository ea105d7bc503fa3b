"""IP addresses are read in the forms that peers write, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from sparq.protocol.address import parse_ip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("[::ffff:10.0.0.7]", "10.0.0.7"),
    ],
)
def test_an_address_is_read(text: str, meant: str) -> None:
    """In brackets or not; an IPv4 one also where IPv6 carries it."""
    assert meant == str(parse_ip(text))


@pytest.mark.parametrize("text", ["", "[", "[]", "[::1", "::1]", "[[::1]]", "localhost", "127.1"])
def test_other_texts_are_none(text: str) -> None:
    """A name is not resolved, and half a bracket makes no address."""
    assert parse_ip(text) is None
