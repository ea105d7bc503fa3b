"""Check the arguments of producers, consumers and messages: addresses, names and delays.

1. The syntax of addresses is defined in `protocol.address`, that of names in `protocol.names`.
2. Checks are made before a command is sent or a message counts as answered.
3. nsqd enforces its own limit for delays (``--max-req-timeout``); only delays that it cannot
   represent are rejected here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final, TypeVar

from sparq.protocol.address import Address, lookupd_url, parse_address
from sparq.protocol.names import NAME_SIZE_MAX, is_valid_name, quote

RULE: Final = (
    f"use 1-{NAME_SIZE_MAX} characters from [.a-zA-Z0-9_-], optionally followed by #ephemeral"
)

DELAY_SECONDS_MAX: Final = (2**63 - 1) / 1e9
"""nsqd counts nanoseconds in 63 bits; a longer delay overflows, so its due time is arbitrary."""

Given = TypeVar("Given")
Found = TypeVar("Found")

# Addresses


def parse_nsqd(text: str) -> Address:
    """Parse the address of an nsqd: ``host:port``, or the path of a unix socket.

    Raises:
        ValueError: it is neither.
    """
    path = text.strip()
    return Address(path, 0) if path.startswith("/") else parse_address(text)


def parse_local(text: str) -> Address:
    """Parse a local address: ``host`` or ``host:port``; without a port it is 0, any port.

    Raises:
        ValueError: it is neither.
    """
    bare = text.strip()
    with contextlib.suppress(ValueError):
        return Address(str(ip_address(bare)), 0)
    if not bare or not set(bare).isdisjoint(":[]/ "):
        return parse_address(text)
    return Address(bare, 0)


def split_texts(given: str | Iterable[str]) -> list[str]:
    """Return the addresses in a list or in one comma-separated string, without empty ones.

    Raises:
        TypeError: it is neither a string nor an iterable of strings.
    """
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(
            f"addresses must be strings such as 'host:port', not {type(given).__name__}"
        )
    texts = given.split(",") if isinstance(given, str) else list(given)
    for text in texts:
        if not isinstance(text, str):
            kind = type(text).__name__
            raise TypeError(f"an address must be a string such as 'host:port', not {kind}")
    return [text.strip() for text in texts if text.strip()]


def parse_addresses(given: str | Iterable[str]) -> list[str]:
    """Return the addresses of nsqds, normalized and without duplicates.

    Raises:
        TypeError: it is neither a string nor an iterable of strings.
        ValueError: an address is neither ``host:port`` nor a path.
    """
    return list(dict.fromkeys(str(parse_nsqd(text)) for text in split_texts(given)))


def read_sources(
    nsqd_tcp_addresses: str | Iterable[str], lookupd_http_addresses: str | Iterable[str]
) -> tuple[list[str], list[str]]:
    """Parse the addresses of nsqds and nsqlookupds given to a consumer or producer.

    Raises:
        TypeError: an argument is neither a string nor an iterable of strings; the error names it.
        ValueError: an address is not valid (the error names the argument), or none is given.
    """
    nsqds = _named("nsqd_tcp_addresses", parse_addresses, nsqd_tcp_addresses)
    lookupds = _named("lookupd_http_addresses", split_texts, lookupd_http_addresses)
    for lookupd in lookupds:
        _named("lookupd_http_addresses", lookupd_url, lookupd)
    if not nsqds and not lookupds:
        raise ValueError("no address given: set nsqd_tcp_addresses or lookupd_http_addresses")
    return nsqds, lookupds


def _named(name: str, read: Callable[[Given], Found], given: Given) -> Found:
    """Apply ``read``; its errors get the argument's name as a prefix."""
    try:
        return read(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


# Names, delays and functions


def check_name(kind: str, name: str) -> None:
    """Check that nsqd accepts a name; ``kind``, such as "topic", is for the error message.

    Raises:
        TypeError: the name is not a str.
        ValueError: the name is not valid; the error states the rule.
    """
    if not isinstance(name, str):
        raise TypeError(f"{kind} must be a str, not {type(name).__name__}")
    if not is_valid_name(name):
        raise ValueError(f"invalid {kind} name {quote(name)}: {RULE}")


def check_delay(delay_seconds: float) -> None:
    """Check that nsqd can represent a delay.

    Raises:
        TypeError: the delay is not a number.
        ValueError: the delay is negative or too long.
    """
    if not isinstance(delay_seconds, (int, float)):
        raise TypeError(f"delay_seconds must be a number, not {type(delay_seconds).__name__}")
    if not 0 <= delay_seconds < DELAY_SECONDS_MAX:
        raise ValueError(
            f"delay_seconds must be from 0 to {DELAY_SECONDS_MAX:.2g}, not {delay_seconds}"
        )


def require_callable(**given: object) -> None:
    """Check that each argument is callable or None.

    Raises:
        TypeError: one is neither.
    """
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function, not {type(value).__name__}")
