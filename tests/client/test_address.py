"""client.address: what is an address of an nsqd, and its one spelling."""

import pytest

from sparq.client.address import parse_addresses, parse_nsqd, split_texts
from sparq.protocol.address import Address, lookupd_url, parse_address


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


def test_an_nsqd_may_be_a_path() -> None:
    """A text that begins with a slash is a unix socket; a host and a port are as ever."""
    assert parse_nsqd(" /run/nsqd.sock ") == Address("/run/nsqd.sock", 0)
    assert str(parse_nsqd("/run/nsqd.sock")) == "/run/nsqd.sock"
    assert parse_nsqd("/run/nsqd.sock").is_path
    assert not parse_nsqd("[::1]:4150").is_path
    assert parse_addresses("/a.sock, [::1]:1, /a.sock") == ["/a.sock", "[::1]:1"]
    with pytest.raises(ValueError, match="host:port"):
        parse_nsqd("run/nsqd.sock")


def test_an_nsqlookupd_has_a_url() -> None:
    """``host:port`` means http; a URL is taken as it is; nothing else is."""
    assert lookupd_url("[::1]:4161") == "http://[::1]:4161"
    assert lookupd_url("https://x:1/lookup") == "https://x:1/lookup"
    for text in ("ftp://x", "https://", "x", "/run/lookupd.sock"):
        with pytest.raises(ValueError, match=r"not (an|the) address of"):
            lookupd_url(text)
