"""Addresses as text: ``host:port`` of an nsqd, with brackets around IPv6 as in ``[::1]:4150``.

An address has one spelling, whether it was given, read from nsqlookupd or shown: it is the key
by which a pool knows its connections. Names are not resolved here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PORT_MAX = 65_535


class Address(NamedTuple):
    """Where an nsqd listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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


def split_texts(given: str | Iterable[str]) -> list[str]:
    """The texts of a list, or of one text with commas between them; empty ones left out."""
    texts = given.split(",") if isinstance(given, str) else given
    return [text.strip() for text in texts if text.strip()]


def parse_addresses(given: str | Iterable[str]) -> list[str]:
    """The addresses, each once and in one spelling.

    Raises:
        ValueError: one of them is not ``host:port``.
    """
    return list(dict.fromkeys(str(parse_address(text)) for text in split_texts(given)))
