"""Timings of relayed messages: a line after every N messages."""

from __future__ import annotations

import logging

import pytest

from sparq.tools import relay
from sparq.tools.commands import UsageError
from sparq.tools.relay import Timings, check_every


def test_a_line_is_logged_every_n_messages() -> None:
    """Each line is about the messages since the last one, and has the total number."""
    lines: list[str] = []
    times = Timings(100, "[here]:", lines.append)
    for number in range(100, 0, -1):
        times.note(number / 1000)
    for _ in range(199):
        times.note(0.5)

    assert lines == [
        "[here]: finished 100 - 99th: 99.00ms - 95th: 95.00ms - avg: 50.50ms",
        "[here]: finished 200 - 99th: 500.00ms - 95th: 500.00ms - avg: 500.00ms",
    ]


def test_with_0_no_line_is_logged() -> None:
    """With 0 there are no lines, and no times are kept."""
    lines: list[str] = []
    times = Timings(0, "", lines.append)
    times.note(1.0)

    assert [] == lines
    assert [] == list(times._seconds)


def test_the_number_of_kept_times_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept times is limited, however large N is."""
    monkeypatch.setattr(relay, "KEPT_MAX", 10)
    lines: list[str] = []
    times = Timings(1000, "", lines.append)
    for number in range(1000):
        times.note(number / 1000)

    assert lines == [" finished 1000 - 99th: 9.00ms - 95th: 9.00ms - avg: 4.50ms"]


def test_a_small_n_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Below 100 there is a warning, for 0 there is none; a negative N is an error."""
    with caplog.at_level(logging.WARNING):
        for every in (0, 100, 99):
            check_every(every)

    assert [
        "--status-every=99: percentiles of so few messages are not meaningful"
    ] == caplog.messages
    with pytest.raises(UsageError, match="--status-every is -1: use 0 or more"):
        check_every(-1)
