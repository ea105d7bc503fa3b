"""A batch of messages as clicks: nothing raises, nothing is lost, one row for each message."""

import json
import random
from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.demo.generator import generate
from sparq.pipeline.reading.reader import ClickReader
from sparq.pipeline.reading.schema import CLICK_SCHEMA, Reading
from tests.pipeline import plain
from tests.pipeline.click_examples import HOSTILE, READ, UNREADABLE, damaged
from tests.pipeline.reading.written import REQUESTS, WRITERS

COMPARED = ("time", "address", "page", "status", "bytes", "referer", "user_agent")
USUAL = ClickReader(Reading())
EXAMPLES = [writers[0](REQUESTS[number])[0].encode()
            for number in (0, 1, 6) for writers in WRITERS.values()]  # fmt: skip

AT = datetime(2026, 3, 2, 10, 0, 0, 250_000, tzinfo=UTC)
# An e-commerce event (Segment's "Order Completed"), from its public document: event, [click],
# [columns], the click and its `extra`.
ORDER = {
    **{"type": "track", "event": "Order Completed", "messageId": "ajs-7fd2"},
    **{"timestamp": "2026-03-02T10:00:00.250Z", "userId": "019mr8mf4r"},
    "properties": {
        **{"order_id": "50314b8e9bcf000000000000", "total": 27.5, "currency": "USD"},
        "products": [{"product_id": "507f1f77", "price": 19, "quantity": 1}],
    },
    "context": {
        **{"ip": "2001:db8::1", "userAgent": "Mozilla/5.0 (X11)", "locale": "de-DE"},
        "page": {"path": "/checkout", "referrer": "https://a.example/", "url": "https://b/c?d"},
    },
}
ORDER_CLICK = {
    **{"address": "context.ip", "user": "userId", "path": "context.page.url"},
    **{"referer": "context.page.referrer", "user_agent": "context.userAgent"},
}
ORDER_COLUMNS = {
    **{"event": "event", "order_id": "properties.order_id: string"},
    **{"total": "properties.total: double", "first_price": "properties.products.0.price: int"},
}
ORDERED = {
    **{"time": AT, "address": "2001:db8::1", "user": "019mr8mf4r", "path": "https://b/c?d"},
    **{"page": "/c", "referer": "https://a.example/", "user_agent": "Mozilla/5.0 (X11)"},
    **{"event": "Order Completed", "order_id": "50314b8e9bcf000000000000", "total": 27.5},
    **{"first_price": 19, "misfits": 0, "reason": None},
}
ORDER_REST = {
    **{"type": "track", "messageId": "ajs-7fd2"},
    "properties": {"currency": "USD", "products": [{"product_id": "507f1f77", "quantity": 1}]},
    "context": {"locale": "de-DE", "page": {"path": "/checkout"}},
}


def read(bodies, reader=USUAL):
    """The clicks of messages."""
    table = reader.read(pa.array(bodies, pa.binary()))
    table.validate(full=True)
    return table.to_pylist()


def test_clicks_in_usual_formats_are_read():
    """The common and combined formats, their usual extensions, and JSON are read."""
    for row, (line, columns) in zip(
        read([one.encode() for one in READ]), READ.items(), strict=True
    ):
        assert row["reason"] is None, line
        assert columns == {name: row[name] for name in columns}


def test_what_is_no_click_has_only_a_reason():
    """An unreadable message has the first error as its reason, and null in all other columns."""
    rows = read([line.encode() for line in (*READ, *UNREADABLE)])[len(READ) :]

    assert UNREADABLE == {line: row["reason"] for line, row in zip(UNREADABLE, rows, strict=True)}
    assert {None} == {row[name] for row in rows for name in CLICK_SCHEMA.names if name != "reason"}


def test_hostile_messages_are_read_in_linear_time():
    """Hostile messages of up to 1 MB are read, most of them as no click."""
    assert 2 == [row["reason"] for row in read(HOSTILE)].count(None)
    assert all(row["reason"] for row in read(HOSTILE, ClickReader(Reading(format="haproxy"))))


@st.composite
def nearly_usual_bodies(draw):
    """Usual messages with up to three places removed or replaced."""
    body = bytearray(draw(st.sampled_from(EXAMPLES)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body) - 1))
        put = draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b" ", b"\\", b"0", b"}", b",", b":"])
        )
        body[at : at + draw(st.integers(0, 1))] = put
    return bytes(body)


@settings(max_examples=200)
@given(st.lists(nearly_usual_bodies() | st.binary(max_size=30), max_size=8))
def test_each_message_gives_one_row_whatever_its_batch(bodies):
    """No bytes raise; each gives one row, in order, the same alone and in any batch."""
    rows = read(bodies)

    assert [read([body])[0] for body in bodies] == rows
    assert all((row["time"] is None) == bool(row["reason"]) for row in rows)


def same_as_plain_python(bodies, rows):
    for body, row in zip(bodies, rows, strict=True):
        try:
            found = plain.read(body)
        except plain.Unreadable:
            assert row["reason"], row
        else:
            assert tuple(found[name] for name in COMPARED) == tuple(row[name] for name in COMPARED)


def test_damaged_lines_are_read_as_by_plain_python():
    """3,000 lines, most of them damaged at random, are read as by plain Python."""
    rng = random.Random(7)
    bodies = [damaged(line, rng) for line in generate(1500, seed=7).lines * 2]
    rows = read(bodies)

    same_as_plain_python(bodies, rows)
    assert 0.2 < sum(row["reason"] is not None for row in rows) / len(rows) < 0.6


def test_an_event_of_any_shape_becomes_columns():
    """An event ends as typed columns by settings alone; the rest is kept where it was."""
    reading = Reading(click=tuple(ORDER_CLICK.items()), columns=tuple(ORDER_COLUMNS.items()))
    (row,) = read([json.dumps(ORDER).encode()], ClickReader(reading))

    assert {name: row[name] for name in ORDERED} == ORDERED
    assert json.loads(row["extra"]) == ORDER_REST


def test_fields_of_lines_can_be_own_columns():
    """A field of a format string becomes a typed column by its name."""
    reading = Reading(
        log_format='$time_iso8601 "$request" $upstream_time $cache',
        columns=(("upstream", "upstream_time: double"), ("cache", "cache: string")),
    )
    lines = [f'2026-03-02T10:00:00Z "GET / HTTP/1.1" {end}'.encode()
             for end in ("0.25 HIT", "- -", "0.1,0.2 HIT")]  # fmt: skip
    rows = read(lines, ClickReader(reading))

    assert [(0.25, "HIT", 0), (None, None, 0), (None, "HIT", 1)] == [
        (row["upstream"], row["cache"], row["misfits"]) for row in rows
    ]
    assert [None, None, '{"upstream_time":"0.1,0.2"}'] == [row["extra"] for row in rows]


def test_replaced_addresses_are_kept():
    """Behind a trusted proxy, the forwarded address counts in all formats; both are kept."""
    line, _ = WRITERS["combined"][0](REQUESTS[0])
    bodies = [
        f'{line.replace("203.0.113.7", "10.0.0.1")} "1.1.1.1, 2.2.2.2"'.encode(),
        b'{"time": 1, "remote_addr": "10.0.0.1", "http_x_forwarded_for": "1.1.1.1, 2.2.2.2"}',
    ]
    for row in read(bodies, ClickReader(Reading(trusted_proxies=("private",)))):
        assert "2.2.2.2" == row["address"]
        assert {"10.0.0.1", "1.1.1.1, 2.2.2.2"} == set(json.loads(row["extra"]).values())
    assert ["10.0.0.1", "10.0.0.1"] == [row["address"] for row in read(bodies)]


def test_only_the_chosen_format_is_read():
    """With a named format, messages in other formats are no clicks."""
    lines = {name: writers[0](REQUESTS[0])[0].encode() for name, writers in WRITERS.items()}
    for chosen in ("common", "s3", "json", "caddy"):
        rows = read(lines.values(), ClickReader(Reading(format=chosen)))
        kept = {name for name, row in zip(lines, rows, strict=True) if not row["reason"]}

        assert chosen in kept
        assert kept <= {chosen, "json", "caddy", "ecs"}
