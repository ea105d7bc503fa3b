"""What is read, and into which columns: the settings `Reading`, and the schema of a click.

Nothing here loads polars; settings are checked in a driver or command line that only needs names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from sparq.pipeline.reading import formats
from sparq.program.mistakes import one_of, shown, suggestion

CLICK_SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),  # event time, the only value that each click has
        ("address", pa.string()),  # the visitor's; see Reading.trusted_proxies
        ("user", pa.string()),  # "-" or the authenticated user
        ("vhost", pa.string()),  # only where the log has it
        ("method", pa.string()),  # null if the request line is broken, like the next two
        ("path", pa.string()),  # with its query
        ("page", pa.string()),  # the path without its query and without https://host
        ("protocol", pa.string()),  # such as "HTTP/1.1"
        ("status", pa.int32()),  # null where the log has "-", 0 or -1
        ("bytes", pa.int64()),  # 0 where the log has "-" or nothing
        ("referer", pa.string()),  # as written, "-" included
        ("user_agent", pa.string()),  # likewise
        ("duration", pa.float64()),  # of the request, in seconds
        ("format", pa.string()),  # one of formats.NAMES, or "log_format"
        ("extra", pa.string()),  # all other values, as a JSON object; null if there are none
        ("misfits", pa.int32()),  # number of values in `extra` that do not fit their column's type
        ("reason", pa.string()),  # null for a click; else why it is none: one sentence
    ]
)
"""The columns of a click. The user's typed columns come between `format` and `extra`."""
_OWN_AT: Final = CLICK_SCHEMA.get_field_index("extra")

TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Types of the user's columns, by their names in Spark SQL."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PRIVATE: Final = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8"),
    *("169.254.0.0/16", "fc00::/7", "fe80::/10", "::1/128"),
)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Reading:
    """How messages are read.

    Attributes:
        format: "auto", which decides for each message, or one of `formats.NAMES`.
        fields: the names of a W3C log's `#Fields:` line (IIS), separated by spaces; empty: those
            that IIS writes by default.
        log_format: a format string of nginx (`$remote_addr ...`), GoAccess (`%h ...`) or Apache;
            empty: none. It replaces `format`.
        click: pairs of our name and a path in the user's JSON, such as ("path", "page.url").
        columns: pairs of a column's name and its path and type, such as ("order_id",
            "order.id: bigint"). In a line, the path is a field's name in the format string.
        trusted_proxies: networks, or "private" for all private ones. Of the addresses that a
            click passed, the last one outside of them is the visitor's.

    Raises:
        ValueError: a value is wrong; the text is one sentence that begins with its name.
    """

    format: str = formats.AUTO
    fields: str = ""
    log_format: str = ""
    click: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check all values."""
        known = (formats.AUTO, *formats.NAMES)
        if self.format not in known:
            close = suggestion(self.format, known)
            close = close or f": use {one_of(known)}"
            raise ValueError(f"format={shown(self.format)} is unknown{close}")
        if self.fields:
            formats.w3c(self.fields)
        if self.log_format:
            formats.parsed(self.log_format)
        for name, path in self.click:
            if name not in formats.FIELDS_OF_CLICK:
                close = suggestion(name, formats.FIELDS_OF_CLICK)
                close = close or f": use {one_of(formats.FIELDS_OF_CLICK)}"
                raise ValueError(f"click: {shown(name)} is no field of a click{close}")
            if not path:
                raise ValueError(f"click: {name} has no path: write keys with points between them")
        self._check_columns()
        for text in self.trusted_proxies:
            _networks(text)

    def _check_columns(self) -> None:
        for name, text in self.columns:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"columns: {shown(name)} is no name of a column: use a-z, 0-9 and _"
                )
            if name in CLICK_SCHEMA.names:
                raise ValueError(
                    f"columns: {name} is a column of every click: choose another name, or write"
                    " its path into [click]"
                )
            path, kind = path_and_type(text)
            if not path or kind not in TYPES:
                raise ValueError(
                    f'columns: {name} = {shown(text)} is not "path: type" with one of the types'
                    f" {', '.join(TYPES)}"
                )

    @cached_property
    def own(self) -> dict[str, tuple[str, pa.DataType]]:
        """Path and type of each of the user's columns."""
        found = {name: path_and_type(text) for name, text in self.columns}
        return {name: (path, TYPES[kind]) for name, (path, kind) in found.items()}

    @cached_property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of `trusted_proxies`."""
        return tuple(one for text in self.trusted_proxies for one in _networks(text))


def click_schema(reading: Reading) -> pa.Schema:
    """The columns of a click: CLICK_SCHEMA with the user's columns before `extra`."""
    fields = list(CLICK_SCHEMA)
    own = [pa.field(name, kind) for name, (_, kind) in reading.own.items()]
    return pa.schema([*fields[:_OWN_AT], *own, *fields[_OWN_AT:]])


def path_and_type(text: str) -> tuple[str, str]:
    """The parts of "order.id: bigint"; without a type it is a string."""
    path, colon, kind = text.rpartition(":")
    return (path.strip(), kind.strip()) if colon else (text.strip(), "string")


def _networks(text: str) -> list[Network]:
    if text == "private":
        return [ipaddress.ip_network(one) for one in _PRIVATE]
    try:
        return [ipaddress.ip_network(text, strict=False)]
    except ValueError:
        raise ValueError(
            f"trusted-proxies={shown(text)} is not a network: write 10.0.0.0/8, an address, or"
            " private"
        ) from None
