"""Clicks read with Spark SQL in nine projections, to compare `sparq.pipeline.clicks` with.

It reads every message in the same way, ordinary or not. The pipeline used it until it proved too
slow.

It consists of Spark SQL expressions: the executors' JVM does the work, and no row passes through
Python. `parse` is a pure function from DataFrame to DataFrame.

Invariants:
1. Every input row comes out, once. `reason` is null for a click that could be read; otherwise it
   says in words why not. No input raises an error: casts are `try_` casts, and repetitions are
   possessive, since Java's regular expressions recurse on other ones and a long line would
   overflow the stack.
2. `body` is passed on unchanged, byte for byte, also where `parse` replaced invalid UTF-8.
3. Nothing depends on the session's time zone: event times are UTC instants.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The columns that `parse` appends, in this order.
CLICK_COLUMNS = (
    "time",  # TIMESTAMP, event time
    "address",  # STRING, the visitor's address as written in the log
    "user",  # STRING, "-" or the authenticated user; null in JSON
    "vhost",  # STRING, if the log has it
    "method",  # STRING; null where the request line is broken, like the two below
    "path",  # STRING, with its query
    "page",  # STRING, the path without its query
    "protocol",  # STRING, as "HTTP/1.1"
    "status",  # INT; null where the log has "-"
    "bytes",  # BIGINT; 0 where the log has "-"
    "referer",  # STRING, as written, "-" included; null in the common format
    "user_agent",  # STRING, likewise
    "format",  # STRING: json, combined or common
    "reason",  # STRING: null for a readable click
)

# JSON keys; the first one present counts. The names are those of the common JSON formats of nginx,
# Apache and Logstash. Values may be strings or numbers.
JSON_KEYS: dict[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "@timestamp", "time_iso8601", "time_local", "ts"),
    "address": ("remote_addr", "ip", "address", "client_ip", "clientip"),
    "request": ("request",),
    "method": ("method", "request_method", "verb"),
    "path": ("path", "uri", "request_uri", "url"),
    "status": ("status", "response"),
    "bytes": ("bytes", "body_bytes_sent", "bytes_sent", "size"),
    "referer": ("referer", "referrer", "http_referer"),
    "user_agent": ("user_agent", "http_user_agent", "agent", "ua"),
    "vhost": ("vhost", "host"),
}

_CUT = "\u0001"  # joins captured groups for one split; a line that contains it is unreadable
_END = "sparq_end"  # last element of the array around a JSON body: shows that it is one value

_QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_HEAD = r'^(\S++(?: [^\s"]++){2,12}?)'
_LINE = (
    rf"{_HEAD} \[([^\[\]]++)\] ({_QUOTED}) (\d{{3}}|-) (\d++|-)"
    rf'(?:(?: ({_QUOTED}) ({_QUOTED})(?: (?:{_QUOTED}|[^"\s]++))*+)|(?: [^"\s]++)*+)$'
)
_LINE_GROUPS = 7
_ADDRESS = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*)"
_ADDRESS_OR_NAME = r"^[0-9A-Za-z._:%\[\]-]{1,255}$"
_METHOD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # a method, RFC 9110 section 5.6.2
_REQUEST = rf"^({_METHOD}) ++(?:(\S.*) (HTTP/\d(?:\.\d)?) *+|(\S++))$"
_CLF_TIME = r"^\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}$"
_ISO_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?$"
_EPOCH_TIME = r"^\d{1,17}(?:\.\d{1,17})?(?:[eE]\+?\d{1,2})?$"
_TIME_END_S = 253_402_300_800  # 10000-01-01: from there on years have five digits

_BAD_STATUS = "the status is not three digits"

# Ever longer prefixes of a line: the first that does not match gives the reason.
_PREFIXES: tuple[tuple[str, str], ...] = (
    (_HEAD, "not an access-log line and not JSON"),
    (rf"{_HEAD} \[[^\[\]]++\] ", "no time in brackets after address, identity and user"),
    (rf'{_HEAD} \[[^\[\]]++\] "', "no quoted request after the time"),
    (rf"{_HEAD} \[[^\[\]]++\] {_QUOTED} ", "the request is never closed"),
    (rf"{_HEAD} \[[^\[\]]++\] {_QUOTED} (?:\d{{3}}|-) ", _BAD_STATUS),
    (
        rf"{_HEAD} \[[^\[\]]++\] {_QUOTED} (?:\d{{3}}|-) (?:\d++|-)(?: |$)",
        "the size is not a number",
    ),
    (
        rf'{_HEAD} \[[^\[\]]++\] {_QUOTED} (?:\d{{3}}|-) (?:\d++|-)(?: [^"\s]++)*+(?: {_QUOTED}|$)',
        "the referer is never closed",
    ),
    (
        rf'{_HEAD} \[[^\[\]]++\] {_QUOTED} (?:\d{{3}}|-) (?:\d++|-) {_QUOTED} "',
        "the user agent is missing",
    ),
    (
        rf"{_HEAD} \[[^\[\]]++\] {_QUOTED} (?:\d{{3}}|-) (?:\d++|-) {_QUOTED} {_QUOTED}",
        "the user agent is never closed",
    ),
)


def parse(messages: DataFrame) -> DataFrame:
    """Add CLICK_COLUMNS to rows that have a BINARY column `body`; one row in, one row out."""
    held = messages.columns
    lines = messages.withColumn("_text", F.expr("make_valid_utf8(cast(body AS STRING))"))
    lines = lines.withColumn("_line", F.expr("trim(TRAILING '\\r\\n' FROM _text)"))
    start = F.expr("trim(LEADING ' \t\r\n' FROM _line)")
    lines = lines.withColumn("_json", start.startswith("{"))
    split = lines.withColumns({"_groups": _line_groups(), "_values": _json_values()})
    split = split.withColumn("_object", _json_object())
    raw = split.select(*held, "_line", "_json", *_raw_columns())
    cut = raw.withColumn("_parts", _request_parts()).withColumn("_at", _event_time(F.col("_time")))
    whole = cut.select(*held, *_click_columns()).withColumn("reason", _first_reason())
    return whole.select(*held, *CLICK_COLUMNS)


def readable(clicks: DataFrame) -> DataFrame:
    """The clicks that could be read."""
    return clicks.where(F.col("reason").isNull())


def rejected(clicks: DataFrame) -> DataFrame:
    """The messages that could not be read, with the reason."""
    return clicks.where(F.col("reason").isNotNull())


def _line_groups() -> Column:
    """The groups of an access-log line, captured in one pass; else one string."""
    line = F.col("_line")
    matched = F.regexp_replace(
        line, _LINE, _CUT.join(f"${group + 1}" for group in range(_LINE_GROUPS))
    )
    is_line = ~F.col("_json") & ~line.contains(_CUT)
    return F.when(is_line, F.split(matched, _CUT))


def _json_values() -> Column:
    """The body as an array of objects with each key's value as text; the last object is _END.

    from_json reads the first value and ignores what follows. With _END after it, anything else that
    follows the object makes the whole array unreadable.
    """
    keys = sorted({key for names in JSON_KEYS.values() for key in names} | {_END})
    schema = f"ARRAY<STRUCT<{', '.join(f'`{key}`: STRING' for key in keys)}>>"
    wrapped = F.concat(F.lit("["), F.col("_line"), F.lit(f',{{"{_END}":"1"}}]'))
    valid = F.expr("is_valid_utf8(cast(body AS STRING))")
    return F.when(F.col("_json") & valid, F.from_json(wrapped, schema))


def _json_object() -> Column:
    """The one object in the body; null if there is none."""
    values = F.col("_values")
    whole = (F.size(values) == 2) & (F.get(values, F.lit(1))[_END] == "1")
    return F.when(whole, F.get(values, F.lit(0)))


def _raw_columns() -> list[Column]:
    """The fields as text, from an access-log line or from JSON."""
    matched = F.size("_groups") == _LINE_GROUPS
    group = [F.when(matched, F.col("_groups")[at]) for at in range(_LINE_GROUPS)]
    head = F.when(group[0].contains(","), _first_of_proxies(group[0])).otherwise(group[0])
    words = F.split(head, " ")
    named_host = (F.size(words) > 3) & _begins_with_named_host(head)
    first = F.when(named_host, F.lit(1)).otherwise(F.lit(0))
    user = F.array_join(F.slice(words, first + 3, 16), " ")
    quoted = [F.expr("cast(null AS STRING)"), *(_unquoted(one) for one in (group[2], *group[5:]))]
    line = {
        "time": group[1],
        "address": F.get(words, first),
        "user": user,
        "vhost": F.when(named_host, words[0]),
        "request": quoted[1],
        "status": group[3],
        "bytes": group[4],
        "referer": quoted[2],
        "user_agent": quoted[3],
    }
    names = [*line, "method", "path"]
    form = (
        F.when(group[6] == "", "common")
        .when(matched, "combined")
        .when(F.col("_object").isNotNull(), "json")
    )
    return [
        F.coalesce(line.get(name, quoted[0]), _from_json(name)).alias(f"_{name}") for name in names
    ] + [form.alias("_form")]


def _first_of_proxies(head: Column) -> Column:
    """X-Forwarded-For in place of the address is a list; its first address is the visitor's."""
    return F.regexp_replace(head, r"^([^\s,]++)(?:, [^\s,]++)++ ", "$1 ")


def _begins_with_named_host(head: Column) -> Column:
    """Apache's vhost_combined has a host, mostly with a port, before the address."""
    return head.rlike(rf"^\S++ {_ADDRESS} \S++ \S") | head.rlike(
        r"^[0-9A-Za-z.-]++:\d{1,5} \S++ \S++ \S"
    )


def _unquoted(quoted: Column) -> Column:
    """The text between the quotes, escapes as written; null if the field is absent."""
    return F.when(quoted != "", quoted.substr(F.lit(2), F.length(quoted) - 2))


def _from_json(name: str) -> Column:
    keys = JSON_KEYS.get(name, ())
    if not keys:
        return F.expr("cast(null AS STRING)")
    return F.coalesce(*(F.col("_object")[key] for key in keys))


def _request_parts() -> Column:
    """Method, path, protocol, and path without protocol, of a request line; else one string."""
    request = F.col("_request")
    cut = F.regexp_replace(request, _REQUEST, f"$1{_CUT}$2{_CUT}$3{_CUT}$4")
    return F.when(~request.contains(_CUT), F.split(cut, _CUT))


def _event_time(text: Column) -> Column:
    """An instant from CLF, ISO 8601 (UTC if it has no offset) or, in JSON, an epoch number."""
    clf = F.try_to_timestamp(text, F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    offset = F.when(text.rlike(r"(?:Z|[+-]\d\d:?\d\d)$"), text).otherwise(
        F.concat(text, F.lit("Z"))
    )
    iso = F.regexp_replace(offset, r"([+-]\d\d):?(\d\d)$", "$1:$2").try_cast("timestamp")
    number = text.try_cast("decimal(28,6)")
    scale = (
        F.when(number < 10**11, F.lit(1_000_000))
        .when(number < 10**14, F.lit(1_000))
        .otherwise(F.lit(1))
    )
    micros = (number * scale).try_cast("bigint")
    epoch = F.when(micros < _TIME_END_S * 1_000_000, F.timestamp_micros(micros))
    parsed = (
        F.when(text.rlike(_CLF_TIME), clf)
        .when(text.rlike(_ISO_TIME), iso)
        .when(F.col("_json") & text.rlike(_EPOCH_TIME), epoch)
    )
    seconds = F.unix_seconds(parsed)
    return F.when((seconds >= 0) & (seconds < _TIME_END_S), parsed)


def _click_columns() -> list[Column]:
    parts = F.when(F.size("_parts") == 4, F.col("_parts"))
    request_path = F.when(F.get(parts, F.lit(3)) != "", F.get(parts, F.lit(3))).otherwise(
        F.rtrim(F.get(parts, F.lit(1)))
    )
    path = F.coalesce(request_path, F.col("_path"))
    protocol = F.get(parts, F.lit(2))
    size = F.coalesce(F.col("_bytes"), F.lit("-"))
    return [
        F.col("_at").alias("time"),
        F.col("_address").alias("address"),
        F.col("_user").alias("user"),
        F.col("_vhost").alias("vhost"),
        F.coalesce(F.get(parts, F.lit(0)), F.col("_method")).alias("method"),
        path.alias("path"),
        _page(path).alias("page"),
        F.when(protocol != "", protocol).alias("protocol"),
        F.when(F.col("_status").rlike(r"^\d{3}$"), F.col("_status"))
        .try_cast("int")
        .alias("status"),
        F.when(size == "-", F.lit(0).cast("bigint"))
        .when(size.rlike(r"^\d{1,18}$"), size.try_cast("bigint"))
        .alias("bytes"),
        F.col("_referer").alias("referer"),
        F.col("_user_agent").alias("user_agent"),
        F.col("_form").alias("format"),
        *(F.col(name) for name in ("_line", "_json", "_time", "_request", "_status")),
    ]


def _page(path: Column) -> Column:
    """The path without its query, and without the scheme and host of a proxy request."""
    bare = F.substring_index(path, "?", 1)
    absolute = F.regexp_replace(bare, r"^(?i:https?)://[^/]*+", "")
    return F.when(bare.startswith("/"), bare).when(absolute == "", F.lit("/")).otherwise(absolute)


def _first_reason() -> Column:
    """The first reason why a row cannot be read; null if it can."""
    line = F.col("_line")
    address, size, path = F.col("address"), F.col("bytes"), F.col("path")
    unmatched: list[tuple[Column, str]] = [
        (F.trim(line) == "", "the message is empty"),
        (F.col("_json"), "the JSON is not one valid object"),
        (line.contains(_CUT), "the line has a control character"),
    ]
    matched: list[tuple[Column, str]] = [
        (F.col("_time").isNull(), "the time is missing"),
        (F.col("time").isNull(), "the time is not a time"),
        (address.isNull(), "the address is missing"),
        (~address.rlike(_ADDRESS_OR_NAME), "the address is neither an IP address nor a name"),
        (F.col("_request").isNull() & path.isNull(), "the request is missing"),
        (F.col("_status").isNotNull() & ~F.col("_status").rlike(r"^(?:\d{3}|-)$"), _BAD_STATUS),
        (size.isNull(), "the size is not a number"),
    ]
    return F.when(F.col("format").isNull(), _first(unmatched, _line_reason(line))).otherwise(
        _first(matched, F.lit(None).cast("string"))
    )


def _line_reason(line: Column) -> Column:
    """The reason of the first of _PREFIXES that the line does not match.

    This is a function over an array because few rows need it: nine more patterns in the generated
    code made the method that reads every row too long for Java's compiler.
    """
    steps = F.array(
        *(F.struct(F.lit(at).alias("at"), F.lit(why).alias("why")) for at, why in _PREFIXES)
    )
    failed = F.filter(steps, lambda step: ~F.rlike(line, step["at"]))
    return F.coalesce(F.get(failed, F.lit(0))["why"], F.lit("the line goes on in an unknown form"))


def _first(checks: list[tuple[Column, str]], otherwise: Column) -> Column:
    return reduce(
        lambda rest, check: F.when(check[0], check[1]).otherwise(rest), reversed(checks), otherwise
    )
