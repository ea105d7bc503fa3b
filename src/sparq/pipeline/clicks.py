"""What a click is: one message of topic `clicks`, read as JSON or as a line of an access log.

All of it is Spark SQL expressions, so that the executors' JVM does the reading and no row passes
through Python. `parse` is a pure function from DataFrame to DataFrame.

A message is read in one of two ways. An *ordinary* one is matched whole by a strict pattern, whose
groups become the columns (`_ordinary`). Every other message, from escaped quotes to nonsense, is
read with care, and gets a reason if it cannot be read (`_careful`). The careful way alone defines
what a click is; the ordinary way is faster and gives the same columns.

Invariants:
1. Every row that goes in comes out, once. `reason` is null for a click that could be read, else it
   says in words why not; no input raises (casts are `try_` casts, repetitions are possessive, since
   Java's regular expressions recurse on the others and a long line would overflow the stack).
2. `body` is handed on untouched, byte for byte, also where `parse` had to mend invalid UTF-8.
3. Nothing depends on the session's time zone: event times are UTC instants.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

# What `parse` adds behind the columns it is given, in this order.
CLICK_COLUMNS = (
    "time",  # TIMESTAMP, event time
    "address",  # STRING, the visitor's address as the log states it
    "user",  # STRING, "-" or the authenticated user; null in JSON
    "vhost",  # STRING, only where the log has it
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

# JSON keys, the first that is there wins. The names are those of nginx, Apache's and Logstash's
# common JSON formats. Values may be strings or numbers.
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

_CUT = "\u0001"  # joins captured groups for one split; a line that has it already is unreadable
_END = "sparq_end"  # closes the array that a JSON body is wrapped in: proof that it is one value

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

# How far a line that does not match can be followed: the first prefix that fails names the reason.
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

# An ordinary line. A match proves that the click can be read, except that its day may not exist. A
# line with an escape, an odd method or another field order does not match and is read with care.
# Java decodes invalid UTF-8 to U+FFFD, so a line with that character is not ordinary either.
_CLEAN = r'[^"\\\x01\ufffd]*+'
_WORD = "[!#-~]++"
_HOUR_TO_SECOND = r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)"
_ADDRESS_OR_HOST = "([0-9A-Za-z._:%-]{1,255}+)"
_METHOD_PATH_PAGE_PROTOCOL = (
    r"([A-Z]++) ((/[!#->@-\[\]-~]*+)(?:\?[!#-\[\]-~]*+)?+)(?: (HTTP/\d(?:\.\d)?+))?+"
)
_ORDINARY_LINE = (
    rf"^(?:([0-9A-Za-z.-]++:\d{{1,5}}) )?+{_ADDRESS_OR_HOST} {_WORD} ({_WORD})"
    rf" \[(\d\d)/([A-Z][a-z][a-z])/(\d{{4}}):{_HOUR_TO_SECOND} ([+-](?:0\d|1[0-7])[0-5]\d)\]"
    rf' "{_METHOD_PATH_PAGE_PROTOCOL}" (\d{{3}}|-) (\d{{1,18}}+|-)'
    rf'(?: (")({_CLEAN})" "({_CLEAN})"(?: (?:"{_CLEAN}"|[!#-\[\]-~]++))*+)?+[\r\n]*+\z'
)
# The same of a JSON body: address, time, request, status and size, joined by _CUT.
_ORDINARY_JSON = (
    rf"^{_ADDRESS_OR_HOST}{_CUT}(\d{{4}})-(\d\d)-(\d\d)[T ]{_HOUR_TO_SECOND}"
    rf"(?:Z|([+-](?:0\d|1[0-7])):?+([0-5]\d))?+{_CUT}{_METHOD_PATH_PAGE_PROTOCOL}"
    rf"{_CUT}(\d{{3}}|-){_CUT}(\d{{1,18}}+|-)\z"
)
# What both patterns leave, in this order, each after a _CUT. In the JSON form some stay empty.
_GROUPS = (
    *("vhost", "address", "user", "day", "month", "year", "hour", "minute", "second", "zone"),
    *("method", "path", "page", "protocol", "status", "bytes", "quote", "referer", "user_agent"),
)
_LINE_ORDER = "".join(f"{_CUT}${at + 1}" for at in range(len(_GROUPS)))
_JSON_ORDER = "".join(
    f"{_CUT}{group}"
    for group in (
        *("", "$1", "", "$4", "$3", "$2", "$5", "$6", "$7", "$8$9"),
        *("$10", "$11", "$12", "$13", "$14", "$15", "", "", ""),
    )
)
_MONTHS = "Jan01Feb02Mar03Apr04May05Jun06Jul07Aug08Sep09Oct10Nov11Dec12"

# The text fields of a message, from which a careful reading makes the columns.
_FIELDS = (
    *("time", "address", "user", "vhost", "request", "method", "path", "status", "bytes"),
    *("referer", "user_agent"),
)


def parse(messages: DataFrame) -> DataFrame:
    """Add CLICK_COLUMNS to rows that have a BINARY column `body`; one row in, one row out.

    Two projections: Spark evaluates what several columns of one have in common once a row, but
    only if at least two of them need it whatever the row is like. So the first reads every message
    as if it were ordinary, and with care if it was not; the second takes the one or the other.
    """
    held = messages.columns
    columns, is_ordinary = _ordinary()
    careful = F.when(~F.coalesce(is_ordinary, F.lit(False)), _careful())
    both = messages.select(
        *held, *(column.alias(f"_{name}") for name, column in columns.items()), careful.alias("_c")
    )
    chosen = [
        F.when(F.col("_c").isNull(), F.col(f"_{name}")).otherwise(F.col("_c")[name]).alias(name)
        for name in columns
    ]
    return both.select(*held, *chosen, F.col("_c")["reason"].alias("reason"))


def readable(clicks: DataFrame) -> DataFrame:
    """The clicks that could be read."""
    return clicks.where(F.col("reason").isNull())


def rejected(clicks: DataFrame) -> DataFrame:
    """The messages that could not be read, with their reason."""
    return clicks.where(F.col("reason").isNotNull())


def _ordinary() -> tuple[dict[str, Column], Column]:
    """The columns of an ordinary message, and whether it is one; else they have no meaning."""
    text = F.expr("cast(body AS STRING)")
    is_json = text.startswith("{")
    values = _json_values(F.when(is_json, text))
    json = {name: _from_json(F.get(values, F.lit(0)), name) for name in _FIELDS}
    line = F.when(~is_json, text)
    joined = F.when(_is_one_object(values), _joined(json))
    read = F.coalesce(
        F.regexp_replace(line, _ORDINARY_LINE, _LINE_ORDER),
        F.regexp_replace(joined, _ORDINARY_JSON, _JSON_ORDER),
    )
    # The patterns match no text that begins with a _CUT: what begins with one now has matched.
    matched = read.startswith(_CUT) & ~F.coalesce(line, joined).startswith(_CUT)
    parts = F.split(F.when(matched, read), _CUT)
    group = {name: F.get(parts, F.lit(at + 1)) for at, name in enumerate(_GROUPS)}
    seconds = _second(group)
    columns = {
        "time": F.timestamp_seconds(seconds),
        "address": group["address"],
        "user": F.when(~is_json, group["user"]),
        "vhost": F.coalesce(json["vhost"], _unless_empty(group["vhost"])),
        "method": group["method"],
        "path": group["path"],
        "page": group["page"],
        "protocol": _unless_empty(group["protocol"]),
        "status": group["status"].try_cast("int"),
        "bytes": F.when(group["bytes"] == "-", F.lit(0).cast("bigint")).otherwise(
            group["bytes"].try_cast("bigint")
        ),
        "referer": F.coalesce(json["referer"], F.when(group["quote"] != "", group["referer"])),
        "user_agent": F.coalesce(
            json["user_agent"], F.when(group["quote"] != "", group["user_agent"])
        ),
        "format": F.when(is_json, "json")
        .when(group["quote"] == "", "common")
        .otherwise("combined"),
    }
    return columns, (seconds >= 0) & (seconds < _TIME_END_S)


def _joined(json: dict[str, Column]) -> Column:
    """Of a JSON body what _ORDINARY_JSON reads; null where the body lacks something."""
    plain = json["path"].startswith("/") & ~json["path"].contains(" ")  # else it could be read as
    path = F.when(plain, json["path"])  # a protocol, or as a path and a protocol
    request = F.coalesce(json["request"], F.concat(json["method"], F.lit(" "), path))
    status, size = (F.coalesce(json[name], F.lit("-")) for name in ("status", "bytes"))
    cut = F.lit(_CUT)
    return F.concat(json["address"], cut, json["time"], cut, request, cut, status, cut, size)


def _unless_empty(text: Column) -> Column:
    return F.when(text != "", text)


def _second(group: dict[str, Column]) -> Column:
    """The second since 1970; null where the month has no such day, or may have none.

    By arithmetic: parsing a timestamp by its format costs as much as a pattern over half the line.
    """
    day, year, hour, minute, second, zone = (
        group[name].try_cast("int") for name in ("day", "year", "hour", "minute", "second", "zone")
    )
    month = F.call_function("div", F.instr(F.lit(_MONTHS), group["month"]) + 4, F.lit(5))
    month = month.cast("int")
    last = F.when(month == 2, 28).otherwise(30 + (month + (month > 7).cast("int")) % 2)
    date = F.make_date(
        year, *(F.when((month > 0) & day.between(1, last), at) for at in (month, day))
    )
    hours = F.call_function("div", zone, F.lit(100)).cast("int")
    offset = F.when(group["zone"].isin("+0000", ""), 0).otherwise(hours * 3600 + zone % 100 * 60)
    return F.unix_date(date).cast("bigint") * 86_400 + hour * 3600 + minute * 60 + second - offset


def _careful() -> Column:
    """All columns and the reason of any message, as one struct.

    Written with functions over arrays of one element, each of which gives a value a name (`_let`):
    in as many projections each would copy every row, also those that need none of it.
    """
    trimmed = F.expr("trim(TRAILING '\\r\\n' FROM make_valid_utf8(cast(body AS STRING)))")
    return _let(trimmed, _careful_line)


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """`use(value)`, the value evaluated once."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _careful_line(line: Column) -> Column:
    is_json = F.ltrim(line, F.lit(" \t\r\n")).startswith("{")
    fields = F.when(is_json, _json_fields(line)).otherwise(_line_fields(line))

    def with_fields(fields: Column) -> Column:
        parts = _request_parts(fields["request"])
        time = _event_time(fields["time"], is_json)
        return _let(
            parts,
            lambda parts: _let(time, lambda time: _struct(line, is_json, fields, parts, time)),
        )

    return _let(fields, with_fields)


def _json_values(text: Column) -> Column:
    """A JSON body as an array of objects, each key's value as text, whose last element is ours.

    from_json reads the first value and looks no further: with ours behind it, anything else that
    follows the object makes the whole unreadable.
    """
    keys = sorted({key for names in JSON_KEYS.values() for key in names} | {_END})
    schema = f"ARRAY<STRUCT<{', '.join(f'`{key}`: STRING' for key in keys)}>>"
    wrapped = F.concat(F.lit("["), text, F.lit(f',{{"{_END}":"1"}}]'))
    valid = F.expr("is_valid_utf8(cast(body AS STRING))")
    return F.from_json(F.when(valid, wrapped), schema)


def _is_one_object(values: Column) -> Column:
    mine = F.get(values, F.lit(1))[_END] == "1"
    return (F.size(values) == 2) & mine & F.get(values, F.lit(0)).isNotNull()


def _json_fields(line: Column) -> Column:
    """The fields of a JSON body; null where it is not one object."""

    def fields(values: Column) -> Column:
        json = {name: _from_json(F.get(values, F.lit(0)), name) for name in _FIELDS}
        return F.when(_is_one_object(values), _fields(json))

    return _let(_json_values(line), fields)


def _line_fields(line: Column) -> Column:
    """The fields of an access-log line, by one pass of the pattern; null if it does not match."""
    cut = F.regexp_replace(line, _LINE, _CUT.join(f"${at + 1}" for at in range(_LINE_GROUPS)))

    def with_head(groups: Column) -> Column:
        first = groups[0]
        head = F.when(first.contains(","), _first_of_proxies(first)).otherwise(first)
        fields = _let(
            head,
            lambda head: _let(F.split(head, " "), lambda words: named(groups, head, words)),
        )
        return F.when(F.size(groups) == _LINE_GROUPS, fields)

    def named(groups: Column, head: Column, words: Column) -> Column:
        named_host = (F.size(words) > 3) & _begins_with_named_host(head)
        first = F.when(named_host, F.lit(1)).otherwise(F.lit(0))
        return _fields(
            {
                "time": groups[1],
                "address": F.get(words, first),
                "user": F.array_join(F.slice(words, first + 3, 16), " "),
                "vhost": F.when(named_host, words[0]),
                "request": _unquoted(groups[2]),
                "status": groups[3],
                "bytes": groups[4],
                "referer": _unquoted(groups[5]),
                "user_agent": _unquoted(groups[6]),
            }
        )

    return F.when(~line.contains(_CUT), _let(F.split(cut, _CUT), with_head))


def _fields(texts: dict[str, Column]) -> Column:
    """A struct of _FIELDS, the same for both forms; what is not given is null."""
    nothing = F.lit(None).cast("string")
    return F.struct(*(texts.get(name, nothing).alias(name) for name in _FIELDS))


def _first_of_proxies(head: Column) -> Column:
    """X-Forwarded-For in the address's place is a list: the first is the visitor."""
    return F.regexp_replace(head, r"^([^\s,]++)(?:, [^\s,]++)++ ", "$1 ")


def _begins_with_named_host(head: Column) -> Column:
    """Apache's vhost_combined puts a host, mostly with a port, before the address."""
    return head.rlike(rf"^\S++ {_ADDRESS} \S++ \S") | head.rlike(
        r"^[0-9A-Za-z.-]++:\d{1,5} \S++ \S++ \S"
    )


def _unquoted(quoted: Column) -> Column:
    """The text between the quotes, escapes as written; null where there is no field."""
    return F.when(quoted != "", quoted.substr(F.lit(2), F.length(quoted) - 2))


def _from_json(values: Column, name: str) -> Column:
    keys = JSON_KEYS.get(name, ())
    if not keys:
        return F.lit(None).cast("string")
    return F.coalesce(*(values[key] for key in keys))


def _request_parts(request: Column) -> Column:
    """Method, path and protocol, path without protocol, of a request line; else null."""
    cut = F.regexp_replace(request, _REQUEST, f"$1{_CUT}$2{_CUT}$3{_CUT}$4")
    parts = _let(F.split(cut, _CUT), lambda parts: F.when(F.size(parts) == 4, parts))
    return F.when(~request.contains(_CUT), parts)


def _event_time(text: Column, is_json: Column) -> Column:
    """An instant from CLF or ISO 8601 (UTC where no offset is named); in JSON also of the epoch."""
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
        .when(is_json & text.rlike(_EPOCH_TIME), epoch)
    )
    return _let(parsed, _in_range)


def _in_range(time: Column) -> Column:
    seconds = F.unix_seconds(time)
    return F.when((seconds >= 0) & (seconds < _TIME_END_S), time)


def _struct(line: Column, is_json: Column, fields: Column, parts: Column, time: Column) -> Column:
    """CLICK_COLUMNS of a message that was read with care."""
    request_path = F.when(F.get(parts, F.lit(3)) != "", F.get(parts, F.lit(3))).otherwise(
        F.rtrim(F.get(parts, F.lit(1)))
    )
    path = F.coalesce(request_path, fields["path"])
    size = F.coalesce(fields["bytes"], F.lit("-"))
    status = F.when(fields["status"].rlike(r"^\d{3}$"), fields["status"])
    amount = F.when(size == "-", F.lit(0).cast("bigint")).when(
        size.rlike(r"^\d{1,18}$"), size.try_cast("bigint")
    )
    form = F.when(is_json, "json").when(fields["user_agent"].isNull(), "common")
    columns = {
        "time": time,
        "address": fields["address"],
        "user": fields["user"],
        "vhost": fields["vhost"],
        "method": F.coalesce(F.get(parts, F.lit(0)), fields["method"]),
        "path": path,
        "page": _page(path),
        "protocol": _unless_empty(F.get(parts, F.lit(2))),
        "status": status.try_cast("int"),
        "bytes": amount,
        "referer": fields["referer"],
        "user_agent": fields["user_agent"],
        "format": F.when(fields.isNotNull(), form.otherwise("combined")),
    }
    reason = F.when(fields.isNull(), _unmatched_reason(line, is_json)).otherwise(
        _first_reason(fields, columns)
    )
    return F.struct(
        *(column.alias(name) for name, column in columns.items()), reason.alias("reason")
    )


def _page(path: Column) -> Column:
    """The path without its query; of a proxy's `http://host/path` the path alone."""
    bare = F.substring_index(path, "?", 1)
    absolute = F.regexp_replace(bare, r"^(?i:https?)://[^/]*+", "")
    return F.when(bare.startswith("/"), bare).when(absolute == "", F.lit("/")).otherwise(absolute)


def _unmatched_reason(line: Column, is_json: Column) -> Column:
    checks: list[tuple[Column, str]] = [
        (F.trim(line) == "", "the message is empty"),
        (is_json, "the JSON is not one valid object"),
        (line.contains(_CUT), "the line has a control character"),
    ]
    return _first(checks, _line_reason(line))


def _first_reason(fields: Column, columns: dict[str, Column]) -> Column:
    """Why a click cannot be used, the first of all that holds; null where it can."""
    address, status = fields["address"], fields["status"]
    checks: list[tuple[Column, str]] = [
        (fields["time"].isNull(), "the time is missing"),
        (columns["time"].isNull(), "the time is not a time"),
        (address.isNull(), "the address is missing"),
        (~address.rlike(_ADDRESS_OR_NAME), "the address is neither an IP address nor a name"),
        (fields["request"].isNull() & columns["path"].isNull(), "the request is missing"),
        (status.isNotNull() & ~status.rlike(r"^(?:\d{3}|-)$"), _BAD_STATUS),
        (columns["bytes"].isNull(), "the size is not a number"),
    ]
    return _first(checks, F.lit(None).cast("string"))


def _line_reason(line: Column) -> Column:
    """Of _PREFIXES the first that the line does not have.

    Written as a function over an array since few rows need it: nine more patterns in the
    generated code made the method that reads every row too long for Java's compiler.
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
