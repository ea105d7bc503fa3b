"""Envelopes: sealed fields are found again, and other bodies stay unchanged."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparq.protocol.envelope import FIELDS_BYTES_MAX, MAGIC, seal, unseal

FIELDS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@given(st.dictionaries(st.text(), st.text(), max_size=5), st.binary())
def test_unseal_returns_the_sealed_fields_and_body(fields: dict[str, str], body: bytes) -> None:
    """`unseal` returns the sealed fields and body.

    An empty body gets no envelope, so that it stays empty.
    """
    if not body:
        assert seal(fields, body) == b""
    elif fields:
        assert unseal(seal(fields, body)) == (fields, body)
    else:
        assert seal(fields, body) == body


@given(st.binary())
@example(MAGIC)
@example(MAGIC + b"\0\0{}")
def test_any_bytes_are_an_envelope_or_a_body(data: bytes) -> None:
    """`unseal` accepts any bytes; without a valid envelope all are the body."""
    for each in (data, MAGIC + data):
        fields, body = unseal(each)
        assert each.endswith(body)
        assert fields or body == each


@pytest.mark.parametrize(
    "damaged",
    [
        seal(FIELDS, b"body")[:50],
        seal(FIELDS, b"body").replace(b"\x01", b"\x02", 1),
        MAGIC + b"\x00\x02[]body",
        MAGIC + b"\x00\x07" + b'{"a":1}body',
        MAGIC + b"\x00\x04" + b"\xff\xff\xff\xffbody",
        MAGIC + b"\x07\xd0" + b"[" * 2000 + b"body",
        MAGIC + b"\xff\xff" + b'{"a":"' + b"x" * (65_535 - 8) + b'"}body',
    ],
)
def test_an_invalid_envelope_is_a_plain_body(damaged: bytes) -> None:
    """An invalid envelope is a plain body.

    It is truncated, of another version, not an object of texts, not JSON, too deep or too large.
    """
    assert unseal(damaged) == ({}, damaged)


def test_fields_above_their_limit_are_omitted() -> None:
    """Fields above `FIELDS_BYTES_MAX` are omitted; the body is published without them."""
    assert seal({"a": "x" * FIELDS_BYTES_MAX}, b"body") == b"body"
    assert unseal(seal({"a": "x" * (FIELDS_BYTES_MAX - 8)}, b"body"))[1] == b"body"


def test_the_layout_is_the_documented_one() -> None:
    """The bytes are those documented in docs/observing_clients.md and the module."""
    assert seal({"a": "b"}, b"body") == b'\0sparq\x01\x00\x09{"a":"b"}body'
