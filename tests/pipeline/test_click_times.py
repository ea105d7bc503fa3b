"""Event times of one text and of a column of texts, compared with Python's calendar."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.click_times import CLF_BYTES, clf_times, epoch_times, event_micros, iso_times
from sparq.pipeline.text_spans import Spans, Text

instants = st.datetimes(
    datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.builds(
        timezone, st.integers(-18 * 60, 18 * 60).map(lambda minutes: timedelta(minutes=minutes)))
)  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ODD = (
    "31/Apr/2026:10:00:00 +0000", "29/Feb/2100:10:00:00 +0000", "00/Mar/2026:10:00:00 +0000",
    "02/Mar/2026:24:00:00 +0000", "02/Mar/2026:10:60:00 +0000", "02/Mar/2026:10:00:60 +0000",
    "02/Mai/2026:10:00:00 +0000", "02/Mar/0000:10:00:00 +0000", "02/Mar/2026:10:00:00 +1801",
    "02/Mar/2026:10:00:00 +0060", "31/Dec/1969:23:59:59 +0000", "31/Dec/9999:23:59:59 -0001",
    "02/Mar/2026 10:00:00 +0000", "2026-02-30T10:00:00Z", "2026-03-02T10:00:00",
    "2026-03-02T10:00Z",
    "2026-03-02T10:00:00+18:01", "2026-03-02T10:00:00.1234567890Z", "0000-03-02T10:00:00Z",
    "2026-13-02T10:00:00Z", "2026-03-02T10:00:00Z ", "\u0662\u0660\u0662\u0660-03-02T10:00:00Z", "",
    "12345678901234567890", "-1", "1e5x",
)  # fmt: skip


def micros(instant):
    """Microseconds since 1970."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def columns(texts, times):
    """A vectorised reader's times of some texts; None where it leaves a text to `event_micros`."""
    bodies = pa.array([text.encode() for text in texts], pa.binary())
    text = Text(bodies)
    found, ok = times(text, Spans(text.starts, text.ends))
    return [int(at) if sure else None for at, sure in zip(found, ok, strict=True)]


def clf_column(texts):
    """Access-log times of texts of the right length."""
    return columns(texts, lambda text, spans: clf_times(text, spans.starts))


@given(st.lists(instants, min_size=1))
def test_access_log_times_equal_those_of_datetime(found):
    """Access-log times with any offset are right; the column leaves out offsets of 18 hours."""
    texts = [f"{at:%d/%b}/{at.year:04}:{at:%H:%M:%S %z}" for at in found]
    expected = [micros(at.replace(microsecond=0)) for at in found]

    assert [event_micros(text, False) for text in texts] == expected
    for one, other in zip(clf_column(texts), expected, strict=True):
        assert one in (other, None)
    whole = [at for at in found if abs(at.utcoffset()) < timedelta(hours=18)]
    assert len([one for one in clf_column(texts) if one is not None]) == len(whole)


@given(
    st.lists(instants, min_size=1),
    st.sampled_from(("T", " ")),
    st.sampled_from(("auto", "seconds")),
)
def test_iso_times_equal_those_of_datetime(found, between, precision):
    """ISO 8601 times with or without a fraction are right, alone and as a column."""
    texts = [at.isoformat(between, precision) for at in found]
    expected = [micros(at if precision == "auto" else at.replace(microsecond=0)) for at in found]

    assert [event_micros(text, False) for text in texts] == expected
    assert columns(texts, iso_times) == expected


@pytest.mark.parametrize("text", ODD)
def test_times_of_a_column_equal_those_of_each_text(text):
    """A column gives the same time as each text alone, or leaves the text to that reader."""
    alone = event_micros(text, is_json=True)

    assert columns([text], iso_times) in ([alone], [None])
    if len(text) == CLF_BYTES:
        assert clf_column([text]) in ([alone], [None])


@given(st.lists(st.integers(0, 10**17 - 1), min_size=1))
def test_a_number_is_seconds_milliseconds_or_microseconds(numbers):
    """A number is seconds, milliseconds or microseconds by its size, and only in JSON."""
    found, ok = epoch_times(np.array(numbers, np.int64))
    alone = [event_micros(str(number), is_json=True) for number in numbers]

    assert [int(at) if sure else None for at, sure in zip(found, ok, strict=True)] == alone
    assert event_micros(str(numbers[0]), is_json=False) is None


def test_fractions_of_numbers_are_exact_to_the_microsecond():
    """Fractions are exact to the microsecond; half a microsecond is rounded up."""
    assert event_micros("1760129736.5", True) == 1760129736_500000
    assert event_micros("1760129736.0000005", True) == 1760129736_000001
    assert event_micros("1.760129736123E12", True) == 1760129736_123000
    assert event_micros("1e99", True) is None
