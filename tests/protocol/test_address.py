"""IP addresses are parsed in the forms that peers send; other texts are refused."""

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
    """Brackets are optional, and an IPv4-mapped IPv6 address gives the IPv4 one."""
    assert meant == str(parse_ip(text))


@pytest.mark.parametrize("text", ["", "[", "[]", "[::1", "::1]", "[[::1]]", "localhost", "127.1"])
def test_other_texts_are_not_addresses(text: str) -> None:
    """A host name is not resolved, and unbalanced brackets are refused."""
    assert parse_ip(text) is None
