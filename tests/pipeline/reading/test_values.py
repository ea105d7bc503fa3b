"""Event times, compared with Python's calendar; which of several addresses is the visitor's."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.reading.values import event_micros, networks, visitor

instants = st.datetimes(
    datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.builds(
        timezone, st.integers(-18 * 60, 18 * 60).map(lambda minutes: timedelta(minutes=minutes)))
)  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_772_445_600_000_000  # 2026-03-02T10:00:00Z in microseconds
TIMES = {
    "02/Mar/2026:10:00:00 +0000": SECOND,
    "[02/Mar/2026:10:00:00 +0000]": SECOND,
    "02/Mar/2026:10:00:00.655": SECOND + 655_000,
    "02/Mar/2026 10:00:00": SECOND,
    "2026-03-02T10:00:00Z": SECOND,
    "2026-03-02 10:00:00": SECOND,
    "2026-03-02T11:00:00.123456789+0100": SECOND + 123_456,
    1772445600: SECOND,
    1772445600.5: SECOND + 500_000,
    "1772445600.123": SECOND + 123_000,
    1772445600000: SECOND,
    1772445600000.5: SECOND + 500,
    1772445600000000: SECOND,
    1772445600000000999: SECOND,  # nanoseconds
}
NO_TIMES = (
    "31/Apr/2026:10:00:00 +0000", "29/Feb/2100:10:00:00 +0000", "00/Mar/2026:10:00:00 +0000",
    "02/Mar/2026:24:00:00 +0000", "02/Mar/2026:10:60:00 +0000", "02/Mar/2026:10:00:60 +0000",
    "02/Mai/2026:10:00:00 +0000", "02/Mar/0000:10:00:00 +0000", "02/Mar/2026:10:00:00 +1801",
    "31/Dec/1969:23:59:59 +0000", "31/Dec/9999:23:59:59 -0001", "2026-02-30T10:00:00Z",
    "2026-03-02T10:00:00+18:01", "0000-03-02T10:00:00Z", "2026-13-02T10:00:00Z", "yesterday",
    "\u0662\u0660\u0662\u0666-03-02T10:00:00Z", "", "0000", "-1", "1e5x", "9" * 20, "2026-03-02",
    -1, 1e300, float("nan"), 10**19, True, None, {}, [],
)  # fmt: skip


@given(instants, st.sampled_from(("T", " ")), st.sampled_from(("auto", "seconds")))
def test_times_equal_those_of_datetime(at, between, precision):
    """Times of access logs and ISO 8601 with any offset, with or without a fraction, are right."""
    second = at.replace(microsecond=0)
    texts = {
        f"{at:%d/%b}/{at.year:04}:{at:%H:%M:%S %z}": second,
        at.isoformat(between, precision): at if precision == "auto" else second,
    }
    for text, time in texts.items():
        assert (time - EPOCH) // timedelta(microseconds=1) == event_micros(text)


@pytest.mark.parametrize(("value", "micros"), TIMES.items())
def test_a_time_has_many_forms(value, micros):
    """Texts of logs and ISO 8601, and numbers of four units by their size."""
    assert micros == event_micros(value)


@pytest.mark.parametrize("value", NO_TIMES)
def test_what_is_no_time_gives_none(value):
    """A date or clock that does not exist, and everything else, is no time."""
    assert event_micros(value) is None


PASSED = {
    # connection, X-Forwarded-For, trusted: the visitor
    ("9.9.9.9", None, ()): "9.9.9.9",
    ("9.9.9.9", "1.1.1.1, 2.2.2.2", ()): "9.9.9.9",
    ("10.0.0.1", "1.1.1.1, 2.2.2.2", ("10.0.0.0/8",)): "2.2.2.2",
    ("10.0.0.1", "1.1.1.1, 10.2.2.2", ("10.0.0.0/8",)): "1.1.1.1",
    ("10.0.0.1", "10.3.3.3, 10.2.2.2", ("10.0.0.0/8",)): "10.3.3.3",
    ("10.0.0.1", "-", ("private",)): "10.0.0.1",
    ("::1", "2001:db8::5", ("private",)): "2001:db8::5",
    ("9.9.9.9", "1.1.1.1", ("private",)): "9.9.9.9",
    (None, "1.1.1.1, 2.2.2.2", ()): "2.2.2.2",
    ("1.1.1.1, 2.2.2.2", None, ()): "2.2.2.2",
    ("unknown", "1.1.1.1", ("private",)): "unknown",
    (None, None, ("private",)): None,
}


@pytest.mark.parametrize(("passed", "expected"), PASSED.items())
def test_the_last_address_that_is_no_trusted_proxy_counts(passed, expected):
    """By default the connection's address counts, never one that the client chooses."""
    address, forwarded, trusted = passed

    assert expected == visitor(address, forwarded, networks(trusted))
