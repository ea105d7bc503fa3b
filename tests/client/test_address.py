"""client.address: what is an address of an nsqd, and its one spelling."""

import pytest

from sparq.client.address import Address, parse_address, parse_addresses, split_texts


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:4150", "127.0.0.1", 4150),
        (" nsqd.example:1 ", "nsqd.example", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_host_and_port(text: str, host: str, port: int) -> None:
    """An address is taken apart, and its parts make the same address again."""
    assert parse_address(text) == Address(host, port)
    assert parse_address(str(parse_address(text))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", "host", ":1", "host:", "host:x", "host:65536", "::1:80", "a/b:1", "host:-1", "[]:1"],
)
def test_what_is_no_address_is_quoted(text: str) -> None:
    """The error for a wrong address quotes it."""
    with pytest.raises(ValueError, match="host:port") as raised:
        parse_address(text)

    assert repr(text) in str(raised.value)


def test_addresses_come_once_from_text_or_list() -> None:
    """A list and a text with commas mean the same; spaces, empties and repetitions go."""
    expected = ["a:1", "b:2"]

    assert parse_addresses("a:1, b:2,,a:1") == expected
    assert parse_addresses(["a:1", " b:2", "", "a:1"]) == expected
    assert split_texts("http://x/lookup, y:1") == ["http://x/lookup", "y:1"]
