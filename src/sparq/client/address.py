"""The addresses that a client is given: nsqds, nsqlookupds, and where its connections come from.

How an address is spelled, and what is none, is said in `protocol.address`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TypeVar

from sparq.protocol.address import Address, lookupd_url, parse_address

Given = TypeVar("Given")
Found = TypeVar("Found")


def parse_nsqd(text: str) -> Address:
    """The address of an nsqd: ``host:port``, or the path of a unix socket.

    Raises:
        ValueError: it is neither.
    """
    path = text.strip()
    return Address(path, 0) if path.startswith("/") else parse_address(text)


def parse_local(text: str) -> Address:
    """Where connections come from: ``host`` or ``host:port``; without a port it is 0, any.

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
    """The texts of a list, or of one text with commas between them; empty ones left out.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"addresses are texts as 'host:port', not {type(given).__name__}")
    texts = given.split(",") if isinstance(given, str) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"an address is a text as 'host:port', not {type(text).__name__}")
    return [text.strip() for text in texts if text.strip()]


def parse_addresses(given: str | Iterable[str]) -> list[str]:
    """The addresses of nsqds, each once and in one spelling.

    Raises:
        TypeError: it is no text and no list of texts.
        ValueError: one of them is neither ``host:port`` nor a path.
    """
    return list(dict.fromkeys(str(parse_nsqd(text)) for text in split_texts(given)))


def read_sources(
    nsqd_tcp_addresses: str | Iterable[str], lookupd_http_addresses: str | Iterable[str]
) -> tuple[list[str], list[str]]:
    """The nsqds and the nsqlookupds that a consumer or producer is given.

    Raises:
        TypeError: one is no text and no list of texts; the error names the argument.
        ValueError: one is no address; the error names the argument. Or there is none at all.
    """
    nsqds = _named("nsqd_tcp_addresses", parse_addresses, nsqd_tcp_addresses)
    lookupds = _named("lookupd_http_addresses", split_texts, lookupd_http_addresses)
    for lookupd in lookupds:
        _named("lookupd_http_addresses", lookupd_url, lookupd)
    if not nsqds and not lookupds:
        raise ValueError("give nsqd_tcp_addresses or lookupd_http_addresses")
    return nsqds, lookupds


def _named(name: str, read: Callable[[Given], Found], given: Given) -> Found:
    """What is read, or an error that names the argument."""
    try:
        return read(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
