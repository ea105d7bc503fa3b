"""Parameters of the inspection routes: accepted values and error messages."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from sparq.daemon.http import Call, HttpError
from sparq.inspection.snapshot import MessageState
from sparq.nsqd.parameters import (
    IDS_BYTES_MAX,
    SHOWN_BYTES,
    body_bytes_of,
    criteria_of,
    ids_of,
    index_of,
    name_of,
    number_of,
    state_of,
    token_of,
)
from sparq.protocol.layout import INDEX_BITS


def call(query: str) -> Call:
    return Call(make_mocked_request("GET", f"/x?{query}"))


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(HttpError) as caught:
        read()
    assert 400 == caught.value.status
    return caught.value.code


def test_names_are_required_and_legal() -> None:
    """A missing or malformed name gets NSQ's error code."""
    assert "t" == name_of(call("topic=t"), "topic")
    assert "MISSING_ARG_TOPIC" == refusal(lambda: name_of(call(""), "topic"))
    assert "INVALID_ARG_CHANNEL" == refusal(lambda: name_of(call("channel=a+b"), "channel"))


@pytest.mark.parametrize(("query", "value"), [("", 7), ("n=1", 1), ("n=20", 20)])
def test_a_number_within_its_bounds(query: str, value: int) -> None:
    """Both bounds are allowed; without the parameter the default applies."""
    assert value == number_of(call(query), "n", 7, 20)


@pytest.mark.parametrize("text", ["0", "21", "-1", "", "x", "1.5", "%C2%B2", "9" * 5000])
def test_any_other_number_is_refused(text: str) -> None:
    """Numbers out of bounds, in non-ASCII digits, or with 5,000 digits are refused."""
    assert "INVALID_ARG_N: a number from 1 to 20" == refusal(
        lambda: number_of(call(f"n={text}"), "n", 7, 20)
    )


@pytest.mark.parametrize(
    ("query", "size"),
    [
        ("", SHOWN_BYTES),
        ("body_bytes=0", 0),
        ("bodies=false", -1),
        ("bodies=false&body_bytes=9", -1),
    ],
)
def test_how_much_of_a_body_is_shown(query: str, size: int) -> None:
    """The result is a limit in bytes, or -1 with `bodies=false`: no `body` at all."""
    assert size == body_bytes_of(call(query))


def test_after_has_a_fixed_number_of_integers() -> None:
    """`after` has a fixed number of signed 64-bit numbers, separated by dots."""
    assert token_of(call(""), 2) is None
    assert [12, -3] == token_of(call("after=12.-3"), 2)
    for text in ("12", "1.2.3", "x", "", "1.", f"{1 << 63}.0", f"-{1 << 63}.0"):
        error = refusal(partial(token_of, call(f"after={text}"), 2))
        assert (
            "INVALID_ARG_AFTER: must be the `next` value of an answer to the same request" == error
        )


def test_a_state_is_one_of_those_allowed() -> None:
    """States are given by their names in lower case."""
    states = (MessageState.WAITING, MessageState.IN_FLIGHT)

    assert MessageState.IN_FLIGHT == state_of(call("state=in_flight"), None, *states)
    assert state_of(call(""), None, *states) is None
    assert "INVALID_ARG_STATE: one of waiting, in_flight" == refusal(
        lambda: state_of(call("state=finished"), None, *states)
    )


def test_criteria_of_a_search() -> None:
    """All given criteria are read; `attempts` without an operator means `=`."""
    found = criteria_of(
        call("text=%C3%A4&json=a%3D1&regex=%5Ea&channel=c&state=deferred&attempts=%3E%3D3")
    )

    assert ("ä".encode(), (">=", 3), MessageState.DEFERRED) == (
        found.text,
        found.attempts,
        found.state,
    )
    assert found.json is not None
    assert found.regex is not None
    assert ("=", 2) == criteria_of(call("channel=c&attempts=2")).attempts


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (f"text={'x' * 1025}", "INVALID_ARG_TEXT: may have at most 1024 bytes"),
        ("json=%7B", "INVALID_ARG_JSON: "),
        (f"regex={'x' * 1025}", "INVALID_ARG_REGEX: may have at most 1024 characters"),
        ("regex=(", "INVALID_ARG_REGEX: "),
        ("channel=c&attempts=x", "INVALID_ARG_ATTEMPTS: a number, optionally after one of "),
        ("channel=c&state=x", "INVALID_ARG_STATE: one of waiting, in_flight, deferred, finished"),
        ("attempts=2", "MISSING_ARG_CHANNEL: state and attempts need a channel"),
        ("state=waiting", "MISSING_ARG_CHANNEL: state and attempts need a channel"),
    ],
)
def test_invalid_criteria_are_refused(query: str, code: str) -> None:
    """The error has the name of the parameter and its limit or allowed values."""
    assert refusal(lambda: criteria_of(call(query))).startswith(code)


def test_a_pattern_needs_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without google-re2, the error names the extra that installs it."""
    monkeypatch.setitem(sys.modules, "re2", None)

    said = refusal(lambda: criteria_of(call("regex=a")))
    assert said.startswith("INVALID_ARG_REGEX: nsqd needs the package google-re2")
    assert "sparq-mq[regex]" in said


def test_ids_of_messages() -> None:
    """An id is 16 lower-case hexadecimal digits: the node id and the index in its log."""
    node = 5
    text = f"{(node << INDEX_BITS) + 9:016x}"
    assert (9, None) == (index_of(text, node), index_of(text, node + 1))
    for wrong in ("", "1f", "000000000000001F", "0" * 17):
        said = refusal(partial(index_of, wrong, node))
        assert "INVALID_ARG_ID: 16 hexadecimal digits in lower case" == said


class RequestWithBody:
    """A request with a body."""

    def __init__(self, body: bytes, **query: str) -> None:
        self.query = query
        self._body = body

    async def body(self, limit: int, too_big: str) -> bytes:
        if len(self._body) > limit:
            raise HttpError(413, too_big)
        return self._body


def ids(body: bytes, **query: str) -> Awaitable[list[str]]:
    posted: Any = RequestWithBody(body, **query)
    return ids_of(posted)


async def test_ids_of_a_request() -> None:
    """One id in the query, or a list in the body; its order is kept, duplicates are dropped."""
    a, b = "0" * 16, "f" * 16

    assert [a] == await ids(b"", id=a)
    assert [b, a] == await ids(f'{{"ids": ["{b}", "{a}", "{b}"]}}'.encode())
    assert [] == await ids(b'{"ids": []}')


INVALID_IDS = (
    'INVALID_ARG_IDS: the body must be {"ids": [...]} with at most 1000 ids, each of 16 hexadecimal'
    " digits in lower case"
)


@pytest.mark.parametrize(
    ("body", "query", "status", "code"),
    [
        (b"", {}, 400, 'MISSING_ARG_ID: give id, or a body {"ids": [...]}'),
        (b"", {"id": "x"}, 400, "INVALID_ARG_ID: 16 hexadecimal digits in lower case"),
        *(
            (body, {}, 400, INVALID_IDS)
            for body in (
                *(b'{"ids": ["x"]}', b'{"ids": [7]}', b'{"ids": "x"}', b"[]", b"{", b"\xff"),
                b"[" * 60_000,
                b'{"ids":["' + b'","'.join([b"0" * 16] * 1001) + b'"]}',
            )
        ),
        (b"x" * (IDS_BYTES_MAX + 1), {}, 413, "BODY_TOO_BIG"),
    ],
)
async def test_invalid_ids_are_refused(
    body: bytes, query: dict[str, str], status: int, code: str
) -> None:
    """Missing or malformed ids get 400, a body that is too large 413."""
    with pytest.raises(HttpError) as caught:
        await ids(body, **query)
    assert (status, code) == (caught.value.status, caught.value.code)
