"""client.arguments: addresses, names and delays; wrong ones raise before anything is sent."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from sparq.client import Batch, Message
from sparq.client.arguments import parse_addresses, parse_nsqd, split_texts
from sparq.client.producer import publish_deferred_command
from sparq.protocol.address import Address, parse_address
from tests.client.scripted import consuming
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:4150", "127.0.0.1", 4150),
        (" nsqd.example:1 ", "nsqd.example", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_host_and_port(text: str, host: str, port: int) -> None:
    """An address is parsed into host and port, and formatted back to an equivalent address."""
    assert parse_address(text) == Address(host, port)
    assert parse_address(str(parse_address(text))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", "host", ":1", "host:", "host:x", "host:65536", "::1:80", "a/b:1", "host:-1", "[]:1"],
)
def test_the_error_for_a_wrong_address_quotes_it(text: str) -> None:
    """The error for a wrong address quotes it."""
    with pytest.raises(ValueError, match="host:port") as raised:
        parse_address(text)

    assert repr(text) in str(raised.value)


def test_addresses_in_a_list_or_a_text_are_the_same() -> None:
    """A list and a comma-separated text mean the same; blanks and duplicates are dropped."""
    expected = ["a:1", "b:2"]

    assert parse_addresses("a:1, b:2,,a:1") == expected
    assert parse_addresses(["a:1", " b:2", "", "a:1"]) == expected
    assert split_texts("http://x/lookup, y:1") == ["http://x/lookup", "y:1"]


def test_an_nsqd_address_with_a_slash_is_a_unix_socket() -> None:
    """An nsqd address that begins with a slash is a unix socket; others must be host:port."""
    assert parse_nsqd(" /run/nsqd.sock ") == Address("/run/nsqd.sock", 0)
    assert str(parse_nsqd("/run/nsqd.sock")) == "/run/nsqd.sock"
    assert parse_nsqd("/run/nsqd.sock").is_path
    assert not parse_nsqd("[::1]:4150").is_path
    assert parse_addresses("/a.sock, [::1]:1, /a.sock") == ["/a.sock", "[::1]:1"]
    with pytest.raises(ValueError, match="host:port"):
        parse_nsqd("run/nsqd.sock")


USES: dict[str, Callable[[Message, Any], object]] = {
    "a message": Message.requeue,
    "a batch": lambda message, delay: Batch([message]).requeue(delay),
    "a deferred publish": lambda _, delay: publish_deferred_command("t", b"x", delay),
}


@pytest.mark.parametrize("use", USES)
async def test_a_delay_out_of_range_or_of_a_wrong_type_raises(use: str) -> None:
    """A delay out of range or of a wrong type raises; the message can still be requeued."""
    async with consuming() as (nsqd, peer, consumer):
        peer.deliver(1)
        message = await anext(consumer)
        for delay in (-0.001, math.inf, math.nan, 1e10, 1e300):
            with pytest.raises(ValueError, match="delay_seconds must be from 0 to "):
                USES[use](message, delay)
        for kind in ("5", b"5"):
            with pytest.raises(TypeError, match="delay_seconds must be a number, not "):
                USES[use](message, kind)
        message.requeue(9e9, backoff=False)
        await until(lambda: not peer.in_flight)

        assert nsqd.lines(b"REQ") == [b"REQ 0000000000000001 9000000000000"]
