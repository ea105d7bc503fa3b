"""Addresses as text: ``host:port`` of an nsqd, with brackets around IPv6 as in ``[::1]:4150``.

1. An address has one spelling, whether it was given, read from nsqlookupd or shown: it is the key
   by which a pool knows its connections. Names are not resolved here.
2. An nsqd may also listen on a unix socket: its address is the path, which begins with ``/``.
3. An nsqlookupd is asked over HTTP: ``host:port``, or a URL that may say ``https``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

PORT_MAX = 65_535

Given = TypeVar("Given")
Found = TypeVar("Found")


class Address(NamedTuple):
    """Where an nsqd listens; for a unix socket ``host`` is its path and ``port`` is 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.is_path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_path(self) -> bool:
        """Whether it is the path of a unix socket."""
        return self.host.startswith("/")


def parse_address(text: str) -> Address:
    """The parts of ``host:port``.

    Raises:
        ValueError: the text has another form; the error quotes it.
    """
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    well_formed = colon and plain and (bracketed or ":" not in plain) and "/" not in plain
    if not well_formed or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ValueError(f"not an address of the form host:port: {text!r}")
    return Address(plain, int(port))


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


def lookupd_url(text: str) -> str:
    """The URL of an nsqlookupd that is given as one, or as ``host:port``.

    Raises:
        ValueError: it is neither.
    """
    if "://" not in text:
        return f"http://{parse_address(text)}"
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not the address of an nsqlookupd: {text!r}")
    return text.strip()


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
