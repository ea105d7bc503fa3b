"""Parse and check the parameters of nsqd's own routes; each error names its parameter.

An error is `400 INVALID_ARG_<NAME>: <expected value>`, or `400 MISSING_ARG_<NAME>`. All values are
limited: numbers, lists, and the lengths of texts.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from sparq.broker.message_actions import IDS_MAX
from sparq.daemon.http import HttpError
from sparq.inspection.json_path import FilterError, parse
from sparq.inspection.search import COMPARED, Criteria
from sparq.inspection.snapshot import MessageState
from sparq.protocol.instant import rfc3339, wall_ns_of
from sparq.protocol.layout import INDEX_BITS, INDEX_LIMIT
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.broker.channel import SeekTarget
    from sparq.daemon.http import Call

FORMS: Final = (
    "earliest, latest, an index, a date or time such as 2026-01-31 or 2026-01-31T08:00:00Z,"
    " a duration back from now such as -1h, or last:100 for the last 100 messages"
)

LIMIT_MAX: Final = 1000
LIMIT: Final = 50
SHOWN_BYTES_MAX: Final = 1 << 20
SHOWN_BYTES: Final = 65_536
BUDGET_MS_MAX: Final = 1000
BUDGET_MS: Final = 50
BUCKETS_MAX: Final = 1000
BUCKETS: Final = 120
TEXT_BYTES_MAX: Final = 1024
PATTERN_CHARACTERS_MAX: Final = 1024
PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory of a compiled pattern."""

IDS_BYTES_MAX: Final = 64 << 10

_ID: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN: Final = re.compile(r"-?[0-9]{1,19}(\.-?[0-9]{1,19})*")
_INDEX: Final = re.compile(r"[0-9]{1,17}")
_LAST: Final = re.compile(r"last:([0-9]{1,17})")
_NANOSECONDS: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NANOSECONDS_MAX: Final = (1 << 63) - 1
_ATTEMPTS: Final = re.compile(r"(>=|<=|!=|>|<|=|)\s*([0-9]{1,5})")


def refused(name: str, why: str) -> HttpError:
    """Return the error for an invalid parameter."""
    return HttpError(400, f"INVALID_ARG_{name.upper()}: {why}")


def name_of(call: Call, name: str) -> str:
    """Return a required topic or channel name."""
    value = call.argument(name)
    if not is_valid_name(value):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def number_of(call: Call, name: str, default: int, highest: int, lowest: int = 1) -> int:
    """Return a whole number from `lowest` to `highest`, or `default` if it is missing."""
    text = call.query.get(name)
    if text is None:
        return default
    # At most 18 digits always fit into 64 bits; `int` takes quadratic time for long texts.
    number = int(text) if text.isascii() and text.isdigit() and len(text) < len("9" * 19) else -1
    if not lowest <= number <= highest:
        raise refused(name, f"a number from {lowest} to {highest}")
    return number


def body_bytes_of(call: Call) -> int:
    """Return how many bytes of each body to show; -1: no bodies."""
    size = number_of(call, "body_bytes", SHOWN_BYTES, SHOWN_BYTES_MAX, 0)
    return size if call.flag("bodies", True) else -1


def token_of(call: Call, count: int) -> list[int] | None:
    """Return the `count` numbers of `after`; None: it is missing.

    Raises:
        HttpError: 400 INVALID_ARG_AFTER.
    """
    text = call.query.get("after")
    if text is None:
        return None
    numbers = [int(part) for part in text.split(".")] if _TOKEN.fullmatch(text) else []
    # Within 64 bits, as NumPy compares them with arrays of int64.
    if len(numbers) != count or any(abs(number) >= 1 << 63 for number in numbers):
        raise refused("after", "must be the `next` value of an answer to the same request")
    return numbers


def state_of(
    call: Call, default: MessageState | None, *allowed: MessageState
) -> MessageState | None:
    """Return the `state` parameter, one of `allowed`, or `default` if it is missing."""
    text = call.query.get("state")
    if text is None:
        return default
    names = {state.name.lower(): state for state in allowed}
    if text not in names:
        raise refused("state", f"one of {', '.join(names)}")
    return names[text]


def criteria_of(call: Call) -> Criteria:
    """Return the criteria of a search."""
    query = call.query
    text = query.get("text", "").encode("utf-8", "surrogateescape")
    if len(text) > TEXT_BYTES_MAX:
        raise refused("text", f"may have at most {TEXT_BYTES_MAX} bytes")
    try:
        condition = parse(query["json"]) if "json" in query else None
    except FilterError as error:
        raise refused("json", str(error)) from error
    regex = pattern_of(query["regex"]) if "regex" in query else None
    state = state_of(call, None, *MessageState)
    attempts = None
    if "attempts" in query:
        found = _ATTEMPTS.fullmatch(query["attempts"])
        if found is None:
            raise refused("attempts", f"a number, optionally after one of {' '.join(COMPARED)}")
        attempts = found[1] or "=", int(found[2])
    if "channel" not in query and (state is not None or attempts is not None):
        raise HttpError(400, "MISSING_ARG_CHANNEL: state and attempts need a channel")
    return Criteria(text, condition, regex, attempts, state)


def pattern_of(text: str) -> Any:
    """Compile a pattern in Go's syntax, which is searched in a body's bytes in linear time.

    Raises:
        HttpError: 400 INVALID_ARG_REGEX, also if the engine is not installed.
    """
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise refused("regex", f"may have at most {PATTERN_CHARACTERS_MAX} characters")
    try:
        engine = import_module("re2")
    except ImportError:
        raise refused(
            "regex",
            "nsqd needs the package google-re2 for it (pip install 'sparq-mq[regex]'): use text or"
            " json",
        ) from None
    options = engine.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        return engine.compile(text.encode("utf-8", "surrogateescape"), options)
    except engine.error as error:
        reason = error.args[0]
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise refused("regex", shown) from None


def index_of(text: str, node_id: int) -> int | None:
    """Return the log index of a message id; None: the id is of another node."""
    if not _ID.fullmatch(text):
        raise refused("id", "16 hexadecimal digits in lower case")
    index = int(text, 16) - (node_id << INDEX_BITS)
    return index if 0 <= index < INDEX_LIMIT else None


class MessageIds(msgspec.Struct):
    """The body of an action on messages."""

    ids: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]],
        msgspec.Meta(max_length=IDS_MAX),
    ]


async def ids_of(call: Call) -> list[str]:
    """Return the ids of a request, from `id` or its body, in order and without duplicates."""
    one = call.query.get("id")
    if one is not None:
        index_of(one, 0)
        return [one]
    body = await call.body(IDS_BYTES_MAX, "BODY_TOO_BIG")
    if not body:
        raise HttpError(400, 'MISSING_ARG_ID: give id, or a body {"ids": [...]}')
    try:
        return list(dict.fromkeys(msgspec.json.decode(body, type=MessageIds).ids))
    except (ValueError, RecursionError):
        form = f"at most {IDS_MAX} ids, each of 16 hexadecimal digits in lower case"
        raise refused("ids", f'the body must be {{"ids": [...]}} with {form}') from None


def target_of(text: str | None, now_ns: int, name: str = "TO") -> SeekTarget:
    """Parse the target of a seek.

    Args:
        text: one of `FORMS`; `time:` may precede a date, a time, or nanoseconds since 1970. A time
            without a zone is UTC. None: the request has no `to`.
        now_ns: the wall clock (ns since 1970).
        name: the parameter's name in the error.
    Raises:
        HttpError: 400 MISSING_ARG_<name> or INVALID_ARG_<name>, with the accepted forms.
    """
    if text is None:
        raise HttpError(400, f"MISSING_ARG_{name}: use {FORMS}")
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    # A bare number is always an index; nanoseconds since 1970 need `time:`.
    if _INDEX.fullmatch(text) and int(text) <= INDEX_LIMIT:
        return int(text)
    if last := _LAST.fullmatch(text):
        return "last", int(last[1])
    try:
        return "time", _wall_ns(text.removeprefix("time:"), now_ns, text.startswith("time:"))
    except (ValueError, OverflowError):
        raise HttpError(400, f"INVALID_ARG_{name}: use {FORMS}") from None


def _wall_ns(text: str, now_ns: int, may_be_number: bool) -> int:
    if may_be_number and _NANOSECONDS.fullmatch(text):
        return int(text)
    # An unescaped plus sign in a query arrives as a blank.
    text = text[:11] + text[11:].replace(" ", "+")
    return min(_NANOSECONDS_MAX, wall_ns_of(text, now_ns))


def shown_time(wall_ns: int | None) -> str | None:
    """Format a time (ns since 1970) as RFC 3339 in UTC; None stays None."""
    return None if wall_ns is None else rfc3339(wall_ns)
