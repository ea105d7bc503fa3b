"""Clicks of messages: what `sparq.pipeline.reading` finds, and what that says about each click:
source, campaign, device, robot, kind of request, country, network.

Every message comes out, once, in its place; `reason` is null for a click, else why it is none.

Nothing is asked over a network. Robots are those of `crawler-user-agents`, and programs whose user
agent has a word of robots or libraries: of 558 user agents of a real log, each of the two knows ten
that the other does not.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.reading.schema import ENRICHMENTS, Reading, click_schema

if TYPE_CHECKING:
    from sparq.pipeline.reading.reader import ClickReader

USUAL: Final = Reading()
ROWS: Final = 200_000
KEPT: Final = 65_536  # texts of a group whose values a process keeps for the next batches
CLASSES: Final = {
    "ai": "chatgpt chat.openai perplexity claude gemini.google copilot.microsoft",
    "mail": "mail webmail outlook.live android.gm",
    "search": "google bing duckduckgo yahoo yandex baidu ecosia startpage qwant naver seznam sogou"
    " kagi search.brave",
    "social": "facebook instagram twitter x.com t.co linkedin lnkd reddit youtube pinterest"
    " news.ycombinator t.me bsky tiktok threads vk whatsapp",
}
"""Labels of hosts by the class of a referrer; the first class that has one counts."""

_ENDINGS: Final = {
    "asset": "css js mjs map png jpg jpeg gif svg webp avif ico bmp woff woff2 ttf otf eot mp4 webm"
    " mp3 ogg wav wasm webmanifest",
    "file": "txt xml rdf csv pdf doc docx xls xlsx zip gz tgz bz2 xz 7z rpm deb jar exe dmg iso"
    " apk",
}
ENDINGS: Final = {one: kind for kind, endings in _ENDINGS.items() for one in endings.split()}
KINDS: Final = ("page", "asset", "api", "feed", "file")
_FEED: Final = re.compile(r"/(?:feed|rss|atom)(?:/|\.xml|$)|\.(?:rss|atom)$", re.IGNORECASE)
_API: Final = re.compile(r"^/(?:api|graphql|rest|rpc|v\d+)(?:/|$)|\.json$", re.IGNORECASE)
_IPV4: Final = re.compile(r"(?<![\d.])(\d{1,3}\.\d{1,3}\.\d{1,3})\.\d{1,3}(?![\d.])")
_IPV6: Final = re.compile(r"(?<![0-9A-Za-z:])[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")

# "cubot" is a phone, and Lynx, a browser for terminals, says libwww-FM.
_DECLARED: Final = re.compile(
    r"(?<!cu)bot\b|(?<!cu)bot[_/-]|robot|crawl|spider|slurp|scrap[ey]|\bfeed|feed(?:parser|burner)"
    r"|\brss\b|archiver|validator|monitor|headless|phantomjs|\bcurl/|\bwget|\bpython"
    r"|libwww(?!-FM)|http-?client|http_client|okhttp|go-http|\bjava/|\bruby|\bperl|mechanize"
    r"|node-fetch|axios|apachebench|mediapartners|externalhit|preview|\+https?://",
    re.IGNORECASE,
)
_WORDS: Final = re.compile(r"[\w./+:-]+")

Values = tuple[str | None, ...]


@lru_cache(KEPT)
def source(referer: str | None, site: tuple[str, ...]) -> Values:
    """Class of a referrer and its search engine; site: hosts of the site itself."""
    if referer in (None, "", "-"):
        return "direct", None
    try:
        host = (urlsplit(referer).hostname or "").removeprefix("www.")
    except ValueError:
        return "other", None
    if host in site:
        return "internal", None
    for group, names in CLASSES.items():
        found = next((name for name in names.split() if f".{name}." in f".{host}."), None)
        if found:
            return group, found.rpartition(".")[2] if group == "search" else None
    return "other", None


@lru_cache(KEPT)
def campaign(path: str | None) -> Values:
    """The UTM parameters of a path's query."""
    if path is None or "utm_" not in path:
        return (None,) * len(ENRICHMENTS["campaign"])
    found = parse_qs(path.partition("?")[2].partition("#")[0], max_num_fields=None)
    return tuple(found[name][0] if name in found else None for name in ENRICHMENTS["campaign"])


@lru_cache(KEPT)
def device(agent: str | None) -> Values:
    """Class of a device, family of its browser and of its system."""
    if agent in (None, "", "-"):
        return None, None, None
    from ua_parser import parse  # noqa: PLC0415 - its rules take a second to load

    found = parse(agent)
    browser = found.user_agent.family if found.user_agent else None
    system = found.os.family if found.os else None
    family = found.device.family if found.device else ""
    if family == "Spider":
        return "robot", browser, system
    if re.search(r"\b(?:smart-?tv|appletv|bravia|hbbtv|googletv)\b", agent, re.IGNORECASE):
        return "tv", browser, system
    is_tablet = "iPad" in agent or "Tablet" in agent
    if is_tablet or (system == "Android" and "Mobile" not in agent):
        return "tablet", browser, system
    if system in ("iOS", "Android", "Windows Phone", "KaiOS", "Symbian OS") or "Mobile" in agent:
        return "mobile", browser, system
    return ("desktop" if system else "other"), browser, system


@lru_cache(KEPT)
def robot(agent: str | None) -> Values:
    """The name of a robot, as its user agent writes it; None for others."""
    import crawleruseragents as known  # noqa: PLC0415 - 1 MB of JSON

    if agent and known.is_crawler(agent):
        return (known.CRAWLER_PATTERNS.case_sensitive.search(agent)[0].strip(" /(;"),)
    words = (word[:60] for word in _WORDS.findall(agent or "") if _DECLARED.search(word))
    return (next(words, None),)


@lru_cache(KEPT)
def kind(page: str | None, own: tuple[tuple[str, str], ...] = ()) -> Values:
    """Kind of a request, one of KINDS; `own`: endings of paths with another kind than here."""
    if page is None:
        return (None,)
    name = page.rpartition("/")[2]
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if found := dict(own).get(ending):
        return (found,)
    if _FEED.search(page):
        return ("feed",)
    if _API.search(page):
        return ("api",)
    return (ENDINGS.get(ending, "page"),)


@lru_cache(8)
def _database(path: str) -> Any:
    import maxminddb  # noqa: PLC0415 - only if the user names a file

    return maxminddb.open_database(path)


@lru_cache(KEPT)
def country(address: str | None, path: str) -> Values:
    """The ISO code of an address's country."""
    found = _looked_up(address, path)
    place = found.get("country") or found.get("registered_country") or found.get("country_code")
    return (place.get("iso_code") if isinstance(place, Mapping) else place,)


@lru_cache(KEPT)
def network(address: str | None, path: str) -> Values:
    """The network of an address, such as "AS64496 Example"."""
    found = _looked_up(address, path)
    number = found.get("autonomous_system_number") or found.get("asn")
    if number is None:
        return (None,)
    name = found.get("autonomous_system_organization") or found.get("as_name") or ""
    return (f"AS{str(number).removeprefix('AS')} {name}".strip(),)


def _looked_up(address: str | None, path: str) -> Mapping[str, Any]:
    try:
        found = _database(path).get(ipaddress.ip_address(address or ""))
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def anonymized(text: str) -> str:
    """A text in which each address has lost its last bits: 24 of IPv4 and 48 of IPv6 stay."""

    def shortened(found: re.Match[str]) -> str:
        with suppress(ValueError):
            return str(ipaddress.ip_network(f"{found[0]}/48", strict=False).network_address)
        return found[0]

    return _IPV6.sub(shortened, _IPV4.sub(r"\1.0", text))


class Enricher:
    """Adds the columns of a setting's groups to clicks."""

    def __init__(self, reading: Reading) -> None:
        self._anonymize = reading.anonymize
        # By group: the column that it reads, and its function.
        groups: dict[str, tuple[str, Callable[[str | None], Values]]] = {
            "source": ("referer", partial(source, site=reading.site_hosts)),
            "campaign": ("path", campaign),
            "device": ("user_agent", device),
            "robot": ("user_agent", robot),
            "kind": ("page", kind),
            "country": ("address", partial(country, path=reading.country_file)),
            "network": ("address", partial(network, path=reading.network_file)),
        }
        self._groups = {name: groups[name] for name in reading.groups}

    def inputs(self, columns: Sequence[str]) -> set[str]:
        """The columns that must be read to make some columns."""
        made = {name for group in self._groups for name in ENRICHMENTS[group]}
        needed = {self._groups[group][0] for group in self._wanted(columns)}
        return (set(columns) - made) | needed | {"reason"}

    def add(self, clicks: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The clicks with those of the groups' columns that are wanted."""
        is_click = pc.is_null(clicks["reason"]).combine_chunks()
        for group in self._wanted(columns):
            column, function = self._groups[group]
            values = clicks[column].combine_chunks().fill_null("").dictionary_encode()
            found = [function(one or None) for one in values.dictionary.to_pylist()]
            for at, name in enumerate(ENRICHMENTS[group]):
                texts = pa.array([one[at] for one in found], pa.string()).take(values.indices)
                clicks = clicks.append_column(name, pc.if_else(is_click, texts, None))
        for at, name in enumerate(clicks.column_names if self._anonymize else ()):
            if name in ("address", "extra"):
                values = clicks[name].combine_chunks().dictionary_encode()
                masked = [anonymized(one) for one in values.dictionary.to_pylist()]
                texts = pa.array(masked, pa.string()).take(values.indices)
                clicks = clicks.set_column(at, name, texts)
        return clicks

    def bodies(self, bodies: pa.BinaryArray, reasons: pa.ChunkedArray) -> pa.BinaryArray:
        """Messages without addresses: none of a click, and others with shortened addresses."""
        masked: list[bytes | None] = [None] * len(bodies)
        for at, reason in enumerate(reasons.to_pylist()):
            body = b"" if reason is None else bodies[at].as_py()
            if reason is not None and b"\\u" not in body:
                masked[at] = anonymized(body.decode("utf-8", "replace")).encode()
        return pa.array(masked, pa.binary())

    def _wanted(self, columns: Sequence[str]) -> list[str]:
        return [group for group in self._groups if set(ENRICHMENTS[group]) & set(columns)]


def parse_batches(
    batches: Iterable[pa.RecordBatch], columns: Collection[str], reading: Reading = USUAL
) -> Iterator[pa.Table]:
    """Parse the messages of a partition, about ROWS at a time: a .gz file is one partition."""
    parts: list[pa.Table] = []
    for batch in batches:
        if batch.num_rows:
            parts.append(parse_arrow(batch, columns, reading))
        if sum(map(len, parts)) >= ROWS:
            yield pa.concat_tables(parts)
            parts = []
    if parts:
        yield pa.concat_tables(parts)


def parse_arrow(
    messages: pa.Table | pa.RecordBatch,
    columns: Collection[str] | None = None,
    reading: Reading = USUAL,
) -> pa.Table:
    """Add columns of `click_schema(reading)`, in its order, to rows with a binary column `body`.

    Other columns are passed on. Without `columns`, all are made.
    """
    schema = click_schema(reading)
    if columns is not None:
        schema = pa.schema([one for one in schema if one.name in columns])
    table = pa.table(messages) if isinstance(messages, pa.RecordBatch) else messages
    bodies = table["body"].combine_chunks().cast(pa.binary())
    bodies = bodies.fill_null(b"") if bodies.null_count else bodies
    reader, enricher = _readers(reading)
    found = enricher.add(reader.read(bodies, enricher.inputs(schema.names)), schema.names)
    if reading.anonymize:
        at = table.column_names.index("body")
        masked = enricher.bodies(bodies, found["reason"])
        table = table.set_column(at, table.schema.field("body"), masked)
    for one in schema:
        table = table.append_column(one, found[one.name])
    return table


@lru_cache(8)
def _readers(reading: Reading) -> tuple[ClickReader, Enricher]:
    # It loads polars, which must not be loaded before Spark forks its workers.
    from sparq.pipeline.reading.reader import ClickReader  # noqa: PLC0415 - not before the fork

    return ClickReader(reading), Enricher(reading)
