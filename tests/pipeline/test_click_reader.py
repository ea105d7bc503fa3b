"""One message read carefully: its fields, or the first thing that is wrong with it."""

from datetime import UTC, datetime, timedelta

import pytest

from sparq.pipeline.click_reader import Click, read
from tests.pipeline.click_examples import HOSTILE, READ, UNREADABLE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("line", "expected"), READ.items())
def test_a_click_in_each_form(line, expected):
    """Common, combined, their usual extensions, and JSON under its usual names."""
    click = read(line.encode())._asdict()
    click["time"] = EPOCH + timedelta(microseconds=click["time"])

    assert click["reason"] is None
    assert expected == {name: click[name] for name in expected}


@pytest.mark.parametrize(("line", "reason"), UNREADABLE.items())
def test_the_first_thing_that_is_wrong(line, reason):
    """It is named, and the size is 0 where nothing could be read."""
    click = read(line.encode())

    assert reason == click.reason
    if reason.startswith(("not an access-log", "the JSON", "the message")):
        assert Click(bytes=0, reason=reason) == click


def test_no_message_raises():
    """Not one of a megabyte, nor one that is no UTF-8."""
    assert 2 == [read(body).reason for body in HOSTILE].count(None)
