"""Parse and check the parameters of the inspection routes; each error names its parameter.

An error is `400 INVALID_ARG_<NAME>: <expected value>`, or `400 MISSING_ARG_<NAME>`. All values are
limited: numbers, lists, and the lengths of texts.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker.message_actions import IDS_MAX
from sparq.daemon.http import HttpError
from sparq.inspection.json_path import FilterError, parse
from sparq.inspection.search import COMPARED, Criteria
from sparq.inspection.snapshot import MessageState
from sparq.protocol.layout import INDEX_BITS, INDEX_LIMIT
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.daemon.http import Call

Indexes = NDArray[np.int64]

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


def raw_id(text: str) -> int | None:
    """Return the number of an id, 16 hex digits; None: it is not an id."""
    return int(text, 16) if _ID.fullmatch(text) else None


def index_of(text: str, node_id: int) -> int | None:
    """Return the log index of a message id; None: the id is of another node."""
    raw = raw_id(text)
    if raw is None:
        raise refused("id", "16 hexadecimal digits in lower case")
    index = raw - (node_id << INDEX_BITS)
    return index if 0 <= index < INDEX_LIMIT else None


async def ids_of(call: Call) -> list[str]:
    """Return the ids of a request, from `id` or its body, in order and without duplicates."""
    one = call.query.get("id")
    if one is not None:
        texts: object = [one]
    else:
        body = await call.body(IDS_BYTES_MAX, "BODY_TOO_BIG")
        if not body:
            raise HttpError(400, 'MISSING_ARG_ID: give id, or a body {"ids": [...]}')
        try:
            document = json.loads(body)
            texts = document["ids"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise refused("ids", 'the body must be {"ids": [...]}') from None
    if not isinstance(texts, list) or len(texts) > IDS_MAX:
        raise refused("ids", f"a list of at most {IDS_MAX} ids")
    if not all(isinstance(text, str) and _ID.fullmatch(text) for text in texts):
        raise refused("id" if one is not None else "ids", "16 hexadecimal digits in lower case")
    return list(dict.fromkeys(texts))
