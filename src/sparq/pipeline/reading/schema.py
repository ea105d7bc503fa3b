"""What is read, and into which columns: the settings `Reading`, and the schema of a click.

Nothing here loads polars; settings are checked in a driver or command line that only needs names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa

from sparq.pipeline.reading import formats
from sparq.pipeline.reading.addresses import Network, networks
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

ENRICHMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "source": ("referrer_class", "search_engine"),
    "campaign": ("utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"),
    "device": ("device", "browser", "os"),
    "robot": ("robot",),
    "kind": ("kind",),
    "country": ("country",),
    "network": ("network",),
}
"""The columns that `sparq.pipeline.enrich` adds, by group; all are strings."""

TAKEN: Final = (*CLICK_SCHEMA.names, *(name for group in ENRICHMENTS.values() for name in group))
"""Names that no column of the user can have."""

_TYPES: Final = dict(
    zip(
        formats.TYPES,
        (
            *(pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.date32()),
            pa.timestamp("us", "UTC"),
        ),
        strict=True,
    )
)


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

        enrich: groups of further columns, of `formats.GROUPS`.
        site_hosts: hosts of the site itself: a referrer with one of them is internal.
        country_file: an MMDB file with countries, which gives the column `country`; empty: none.
        network_file: one with autonomous systems, for the column `network`; empty: none.
        anonymize: addresses lose their last bits before anything is stored.

    Raises:
        ValueError: a value is wrong; the text is one sentence that begins with its name.
    """

    format: str = formats.AUTO
    fields: str = ""
    log_format: str = ""
    click: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    enrich: tuple[str, ...] = ()
    site_hosts: tuple[str, ...] = ()
    country_file: str = ""
    network_file: str = ""
    anonymize: bool = False

    def __post_init__(self) -> None:
        """Check all values."""
        known = (formats.AUTO, *formats.NAMES)
        if self.format not in known:
            close = suggestion(self.format, known) or f": use {one_of(known)}"
            raise ValueError(f"format={shown(self.format)} is unknown{close}")
        checks: tuple[tuple[str, Any, Callable[[Any], object]], ...] = (
            ("fields=", self.fields, formats.w3c),
            ("log-format=", self.log_format, formats.parsed),
            ("click: ", self.click, formats.check_click),
            ("columns: ", self.columns, partial(formats.check_columns, taken=TAKEN)),
            ("trusted-proxies=", self.trusted_proxies, networks),
        )
        for name, value, check in checks:
            try:
                if value:
                    check(value)
            except ValueError as error:
                text = shown(value) if isinstance(value, str) else ""
                raise ValueError(f"{name}{text} {error}".replace(":  ", ": ")) from None

    @cached_property
    def own(self) -> dict[str, tuple[str, pa.DataType]]:
        """Path and type of each of the user's columns."""
        found = {name: formats.path_and_type(text) for name, text in self.columns}
        return {name: (path, _TYPES[kind]) for name, (path, kind) in found.items()}

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of ENRICHMENTS whose columns are made."""
        files = {"country": self.country_file, "network": self.network_file}
        return tuple(one for one in ENRICHMENTS if one in self.enrich or files.get(one))

    @cached_property
    def proxies(self) -> tuple[Network, ...]:
        """The networks of `trusted_proxies`."""
        return networks(self.trusted_proxies)


def click_schema(reading: Reading) -> pa.Schema:
    """The columns of a click: before `extra` those of enrichment and the user's."""
    fields = list(CLICK_SCHEMA)
    own = [pa.field(name, kind) for name, (_, kind) in reading.own.items()]
    made = [pa.field(name, pa.string()) for group in reading.groups for name in ENRICHMENTS[group]]
    return pa.schema([*fields[:_OWN_AT], *made, *own, *fields[_OWN_AT:]])
