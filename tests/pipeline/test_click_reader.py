"""One message read by the careful reader: its fields, or the first error in it."""

from datetime import UTC, datetime, timedelta

import pytest

from sparq.pipeline.click_reader import Click, read
from tests.pipeline.click_examples import HOSTILE, READ, UNREADABLE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("line", "expected"), READ.items())
def test_a_click_in_each_format_is_read(line, expected):
    """The common and combined formats, their usual extensions, and JSON are read."""
    click = read(line.encode())._asdict()
    click["time"] = EPOCH + timedelta(microseconds=click["time"])

    assert click["reason"] is None
    assert expected == {name: click[name] for name in expected}


@pytest.mark.parametrize(("line", "reason"), UNREADABLE.items())
def test_the_reason_is_the_first_error(line, reason):
    """The first error is the reason; if nothing could be read, the size is 0."""
    click = read(line.encode())

    assert reason == click.reason
    if reason.startswith(("not an access-log", "the JSON", "the message")):
        assert Click(bytes=0, reason=reason) == click


def test_no_message_raises():
    """No message raises an error, not even 1 MB of anything or invalid UTF-8."""
    assert 2 == [read(body).reason for body in HOSTILE].count(None)
