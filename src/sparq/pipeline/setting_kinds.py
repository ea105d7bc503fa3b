"""The types of the pipeline's settings: how each type is read, checked and shown.

1. A reader returns one spelling for each value: an absolute path, `512m`, `2 seconds`. It accepts
   its own results unchanged.
2. A wrong value raises ValueError. Its text completes a sentence that begins with the value; for
   pairs, which may be secrets, it is a whole sentence without the value.
3. Slow modules (the client, TLS) are loaded only to check a value that was given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from sparq.pipeline.reading import formats
from sparq.pipeline.session_options import conflict
from sparq.program.flag_types import FlagType
from sparq.program.mistakes import one_of, shown, suggestion
from sparq.protocol.names import NAME_SIZE_MAX, is_ephemeral, is_valid_name

MIB: Final = 1 << 20
HEAP_MIN: Final = 512 * MIB
"""Spark refuses a heap of less than 450 MiB."""

UNITS_BYTES: Final = {"k": 1 << 10, "m": MIB, "g": 1 << 30, "t": 1 << 40}
UNITS_MS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
}
"""Spark's units for triggers (also with a plural s), and the short units of its other options."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PATTERN_CHARACTERS: Final = frozenset("*?[]{}\\")
_PART: Final = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]+)")
_MASTER: Final = re.compile(
    r"local(?:\[(?:\*|[1-9]\d{0,4})(?:, ?[1-9]\d{0,4})?\])?|local-cluster\[[1-9\d, ]+\]"
    r"|spark://[^\s/,]+:\d{1,5}(?:,[^\s/,]+:\d{1,5})*|yarn|k8s://\S+"
)
_MASTERS: Final = ("local[*]", "local[4]", "spark://host:7077", "yarn", "k8s://https://host:443")


def data_uri(text: str) -> str:
    """A folder: a URI, or an absolute path for a text without a scheme."""
    if not text.strip():
        raise ValueError("is empty: name a folder")
    odd = next((one for one in text if one in _PATTERN_CHARACTERS or ord(one) < 0x20), "")
    if odd:
        raise ValueError(
            f"has {shown(odd)}, which Spark would read as part of a pattern: rename the folder"
        )
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        return _folder(os.path.abspath(os.path.expanduser(text)))
    if not _SCHEME.fullmatch(scheme):
        raise ValueError("has no valid scheme: begin it with a letter, as in s3a://bucket/folder")
    if not rest.startswith("/"):
        raise ValueError(
            f"is not a URI: write {scheme}://host/path, or ./{text} for a local folder"
        )
    if scheme.lower() == "file" and urlsplit(text).netloc:
        raise ValueError(f"names a host: write file:///{rest.lstrip('/')}")
    return _folder(text)


def _folder(text: str) -> str:
    """The address without slashes at its end.

    Raises:
        ValueError: it is the root of a file system.
    """
    bare = text.rstrip("/")
    if not bare or bare.endswith(":"):
        raise ValueError("is the root of a file system: name a folder in it")
    return bare


def lookupd(text: str) -> list[str]:
    """HTTP addresses of nsqlookupds, with commas between them."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    for one in found or [text]:
        try:
            import_module("sparq.protocol.address").lookupd_url(one)
        except ValueError:
            raise ValueError("is not an address: write host:port, such as 127.0.0.1:4161") from None
    return found


def listening(text: str) -> str:
    """An address to listen on; empty: none."""
    place = import_module("sparq.daemon.address").split(text)
    if text and (place is None or not place[0]):
        raise ValueError("is not an address: write host:port, such as 127.0.0.1:4180")
    return text


def name(text: str, what: str, lasting: bool) -> str:
    """The name of a topic or a channel.

    Args:
        text: the name; if `lasting` is false it may be empty.
        what: "topic" or "channel".
        lasting: refuse ephemeral names.
    """
    if (text or lasting) and not is_valid_name(text):
        raise ValueError(
            f"is not a valid {what} name: use 1-{NAME_SIZE_MAX} characters from [.a-zA-Z0-9_-]"
        )
    if lasting and is_ephemeral(text):
        raise ValueError(f"is ephemeral: use a durable {what}, or a restart would lose clicks")
    return text


def milliseconds(text: str) -> int:
    """A time such as `500 milliseconds`, `1 minute 30 seconds` or `2` (seconds).

    Raises:
        ValueError: the text is not a time.
    """
    words = text.strip().lower()
    words = words.removeprefix("interval ")
    if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", words):
        words += " s"
    total, at = 0.0, 0
    while part := _PART.match(words, at):
        unit = part[2] if part[2] in UNITS_MS else part[2].removesuffix("s")
        if unit not in UNITS_MS:
            break
        total += float(part[1]) * UNITS_MS[unit]
        at = part.end()
    if not at or words[at:].strip():
        raise ValueError("is not a time: write 5 (seconds), 500 milliseconds or 1 minute")
    return round(total)


def interval(text: str) -> str:
    """A time in the form that Spark's triggers accept."""
    ms = milliseconds(text)
    count, unit = (ms, "millisecond") if ms % 1000 else (ms // 1000, "second")
    return f"{count} {unit}{'' if count == 1 else 's'}"


def size(text: str, least: int) -> str:
    """A size with its unit, or an empty text."""
    bare = text.strip().lower()
    if not bare:
        return bare
    found = re.fullmatch(r"(\d{1,9}) ?([kmgt])i?b?", bare)
    if found is None:
        raise ValueError("is not a size: write a whole number with a unit, such as 512m or 4g")
    if int(found[1]) * UNITS_BYTES[found[2]] < least:
        raise ValueError(f"is too small: use {least // MIB}m or more")
    return f"{int(found[1])}{found[2]}"


def master(text: str) -> str:
    """The address of a Spark master, or an empty text."""
    if text and not _MASTER.fullmatch(text):
        close = suggestion(text, _MASTERS)
        raise ValueError(f"is not a master{close or f': use {one_of(_MASTERS)}'}")
    return text


def choices(known: tuple[str, ...], text: str) -> list[str]:
    """Words from a known list, separated by commas."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    for one in found:
        word(known, one)
    return found


def word(known: tuple[str, ...], text: str) -> str:
    """A word from a known list."""
    if text not in known:
        close = suggestion(text.lower(), known)
        raise ValueError(f"is unknown{close or f': use {one_of(known)}'}")
    return text


def local_folder(text: str) -> str:
    """The absolute path of a local folder, or an empty text."""
    if "://" in text:
        raise ValueError("is a URI: name a local folder")
    return os.path.abspath(os.path.expanduser(text)) if text else ""


def pair(text: str) -> tuple[str, str]:
    """Key and value of KEY=VALUE; both are empty if there is no `=`."""
    key, equals, value = text.partition("=")
    return (key.strip(), value) if equals else ("", "")


Pairs = Iterable[tuple[str, str]]


def _last_of_each(pairs: Pairs) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in pairs:
        if not key:
            raise ValueError("write KEY=VALUE")
        found[key] = value
    return found


def spark_options(pairs: Pairs) -> tuple[tuple[str, str], ...]:
    """Options of Spark; the last value of a key counts."""
    found = _last_of_each(pairs)
    for key, value in found.items():
        if not re.fullmatch(r"spark\.\S+", key):
            raise ValueError(f"{shown(key)} is not a Spark option: these begin with spark.")
        reason = conflict(key, value)
        if reason:
            raise ValueError(f"{key} {reason}")
    return tuple(found.items())


SET_BY_FLAGS: Final[Mapping[str, str]] = {
    "topic": "write --topic",
    "topics": "the pipeline reads one topic, --topic",
    "topicspattern": "the pipeline reads one topic, --topic",
    "channel": "write --archive-channel, --metrics-channel or --spam-analysis-channel",
    "lookupd_http_addresses": "write --lookupd-http-address",
    "nsqd_tcp_addresses": "the pipeline finds nsqds through --lookupd-http-address",
    "maxoffsetspertrigger": "write --max-offsets-per-trigger",
}
"""Options of the source that the pipeline sets itself, in lower case."""


def source_options(pairs: Pairs) -> tuple[tuple[str, str], ...]:
    """Options of the source `nsq` for all three queries; the last value of a key counts."""
    found = _last_of_each(pairs)
    for key in found:
        if key.lower() in SET_BY_FLAGS:
            raise ValueError(f"{key} is set by the pipeline: {SET_BY_FLAGS[key.lower()]}")
    if found:
        options = import_module("sparq.spark.options")
        options.check_names(found)
        given = options.UserOptions({**found, "lookupd_http_addresses": "127.0.0.1:4161"})
        options.ClusterOptions.of(given)  # checks TLS, compression, AUTH and timeouts
    return tuple(found.items())


def click_paths(pairs: Pairs) -> tuple[tuple[str, str], ...]:
    """Fields of a click and their paths; the last path of a field counts."""
    found = tuple(_last_of_each(pairs).items())
    formats.check_click(found)
    return found


def click_columns(pairs: Pairs) -> tuple[tuple[str, str], ...]:
    """The user's columns, with paths and types; the last pair of a name counts."""
    found = tuple(_last_of_each(pairs).items())
    if found:
        taken = import_module("sparq.pipeline.reading.schema").TAKEN
        formats.check_columns(found, taken)
    return found


def format_string(text: str) -> str:
    """A format string of nginx, GoAccess or Apache, or an empty text."""
    if text:
        formats.parsed(text)
    return text


def w3c_fields(text: str) -> str:
    """The fields of a W3C log, or an empty text."""
    if text:
        formats.w3c(text)
    return text


def proxies(text: str) -> list[str]:
    """Networks, with commas between them."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    if found:
        import_module("sparq.pipeline.reading.addresses").networks(found)
    return found


def hosts(text: str) -> list[str]:
    """Names of hosts, with commas between them, in lower case and without `www.`."""
    found = [one.strip().lower() for one in text.split(",") if one.strip()]
    for one in found:
        if not re.fullmatch(r"[a-z0-9.-]+", one):
            raise ValueError("is not a host: write www.example.com, without a scheme")
    return [one.removeprefix("www.") for one in found]


def mmdb(text: str) -> str:
    """The absolute path of an MMDB file, or an empty text."""
    if not text:
        return ""
    path = local_folder(text)
    try:
        import_module("maxminddb").open_database(path).close()
    except ImportError:
        raise ValueError("needs maxminddb: pip install 'sparq-mq[spark]'") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else "is no MMDB file"
        raise ValueError(f"{reason}: name a file such as GeoLite2-Country.mmdb") from None
    return path


# Kinds

Reader = Callable[[str], Any]


def _from_text(read: Reader, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("has the wrong type: write a string")
    return read(value)


def _from_number(read: Reader, value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return read(str(value))
    return _from_text(read, value)


def _whole_of_text(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError("is not a whole number")
    return int(text)


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("has the wrong type: write a whole number, without quotes")
    return value


def _truth_of_text(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text == "true"


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("has the wrong type: write true or false, without quotes")
    return value


def _as_pair(value: Any) -> tuple[str, str]:
    if isinstance(value, tuple) and len(value) == 2:
        return str(value[0]), str(value[1])
    if not isinstance(value, str):
        raise ValueError("write KEY=VALUE")
    return pair(value)


def _each_once(lists: Iterable[list[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for found in lists for one in found))


def _text_kind(label: str, read: Reader) -> FlagType:
    """A kind with text values, which are read the same way from flags, files and Python."""
    return FlagType(label, read, partial(_from_text, read), str)


def some_of(*known: str) -> FlagType:
    """Words from a list, separated by commas."""
    return _text_kind("name,...", partial(choices, known))._replace(gather=_each_once)


DATA: Final = _text_kind("URI", data_uri)
LOOKUPD: Final = _text_kind("host:port", lookupd)._replace(gather=_each_once)
LISTENING: Final = _text_kind("host:port", listening)
TOPIC: Final = _text_kind("name", partial(name, what="topic", lasting=True))
RESULT_TOPIC: Final = _text_kind("name", partial(name, what="topic", lasting=False))
CHANNEL: Final = _text_kind("name", partial(name, what="channel", lasting=True))
MASTER: Final = _text_kind("master", master)
FOLDER: Final = _text_kind("folder", local_folder)
FILE: Final = _text_kind("file", local_folder)
INTERVAL: Final = FlagType("interval", interval, partial(_from_number, interval), str)
HEAP: Final = _text_kind("size", partial(size, least=HEAP_MIN))
WHOLE: Final = FlagType("count", _whole_of_text, _integer, str)
TRUTH: Final = FlagType("", _truth_of_text, _truth, lambda value: str(value).lower(), bare="true")
SPARK: Final = FlagType("KEY=VALUE", pair, _as_pair, str, gather=spark_options)
SOURCE: Final = FlagType("KEY=VALUE", pair, _as_pair, str, gather=source_options)
CLICK: Final = FlagType("FIELD=PATH", pair, _as_pair, str, gather=click_paths)
COLUMNS: Final = FlagType("NAME=PATH:TYPE", pair, _as_pair, str, gather=click_columns)
PAIRS: Final = (SPARK, SOURCE, CLICK, COLUMNS)
"""Kinds whose values are tables in the settings file."""
FORMAT: Final = _text_kind("format", partial(word, (formats.AUTO, *formats.NAMES)))
LOG_FORMAT: Final = _text_kind("string", format_string)
FIELDS: Final = _text_kind("names", w3c_fields)
ENRICH: Final = some_of(*formats.GROUPS)
HOSTS: Final = _text_kind("host,...", hosts)._replace(gather=_each_once)
MMDB: Final = _text_kind("file", mmdb)
PROXIES: Final = _text_kind("network,...", proxies)._replace(gather=_each_once)
