"""Progress on a terminal: the slowest query's rate, its unread clicks, and the remaining time."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.run import progress
from sparq.pipeline.run.progress import RunProgress, Speed, line, time_left

ROWS = {"archive": 80_120, "metrics": 75_000, "spam_analysis": 70_020}


class Stream(io.StringIO):
    """A stream that is a terminal or a file."""

    def __init__(self, *, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = 1_000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock in place of the machine's."""
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def screen(text):
    """The text visible on a terminal's line after all writes."""
    shown = ""
    for part in text.split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()


def test_the_line_has_rate_lag_and_remaining_time():
    """In a wide terminal the line has counts per query, rate, lag and remaining time."""
    assert (
        "publishing: published 120,000 of 200,000"
        " | archive 80,120, metrics 75,000, spam_analysis 70,020"
        " | 4,100/s | 49,980 behind | 32 s left"
    ) == line("publishing", 120_000, 200_000, ROWS, behind=49_980, per_second=4_100.0, width=200)


def test_a_narrow_terminal_leaves_out_counts_per_query():
    """In a narrow terminal the counts per query are left out first."""
    assert (
        "publishing: published 120,000 of 200,000 | 4,100/s | 49,980 behind | 32 s left"
    ) == line("publishing", 120_000, 200_000, ROWS, behind=49_980, per_second=4_100.0, width=99)


def test_before_the_first_batch_there_is_no_rate():
    """Before the first batch no rate and no lag are shown."""
    rows = dict.fromkeys(ROWS, 0)

    assert "starting: published 500 of 1,000 | archive 0, metrics 0, spam_analysis 0" == line(
        "starting", 500, 1_000, rows, behind=500, per_second=0.0, width=200
    )


@given(
    st.integers(0, 10**9),
    st.dictionaries(st.text(max_size=20), st.integers(0, 10**9), max_size=5),
    st.floats(0, 1e7),
    st.integers(1, 300),
)
def test_a_line_never_wraps(count, rows, per_second, width):
    """A line is never longer than the terminal is wide: it must be rewritten in place."""
    text = line("draining", count, count, rows, behind=count, per_second=per_second, width=width)

    assert len(text) <= width


@pytest.mark.parametrize(
    ("behind", "per_second", "expected"),
    [
        (0, 100.0, ""),
        (100, 0.0, ""),
        (1, 1_000.0, "1 s left"),
        (1, 1e-300, ""),
        (5_900, 100.0, "59 s left"),
        (6_000, 100.0, "1:00 min left"),
        (8_940, 100.0, "1:29 min left"),
        (1_000_000, 100.0, "2 h 46 min left"),
    ],
)
def test_the_remaining_time_has_a_suitable_unit(behind, per_second, expected):
    """The remaining time is shown in s, min or h; with no rate it is left out."""
    assert expected == time_left(behind, per_second)


def test_the_speed_covers_the_last_seconds():
    """The speed covers the last WINDOW_SECONDS, not a wait at the start."""
    speed = Speed()
    for second in range(60):
        speed.note(float(second), max(0, second - 30) * 100)

    assert 100.0 == speed.per_second()


def test_a_restarted_query_has_a_new_speed():
    """A count that falls starts a new speed, never a negative one."""
    speed = Speed()
    for at, count in [(0, 0), (1, 1_000), (2, 0), (3, 50)]:
        speed.note(float(at), count)

    assert 50.0 == speed.per_second()


def test_the_query_with_the_greatest_depth_determines_the_lag(clock):
    """The query with the greatest depth at nsqd determines the lag and the rate."""
    stream = Stream(terminal=False)
    shown = RunProgress(stream)
    for second in range(12):
        clock.now += 1
        rows = {"archive": second * 900, "metrics": second * 100}
        shown.show("draining", 9_900, 0, rows, {"archive": 0, "metrics": 9_900 - second * 100})

    assert (
        "[ 11.0 s] draining: published 9,900 | archive 9,000, metrics 1,000"
        " | 100/s | 8,900 behind | 1:29 min left"
    ) == stream.getvalue().splitlines()[-1]


def test_without_depths_the_lag_is_computed_from_counts(clock):
    """If the depths are unknown, the lag is the published minus the processed clicks."""
    stream = Stream(terminal=False)
    shown = RunProgress(stream)
    clock.now += 1
    shown.show("publishing", 0, 0, {"archive": 0}, None)
    clock.now += 10
    shown.show("publishing", 5_000, 0, {"archive": 2_000}, None)

    assert stream.getvalue().endswith("| 200/s | 3,000 behind | 15 s left\n")


def test_a_file_gets_a_line_every_few_seconds(clock):
    """A file gets a line every REPEAT_SECONDS, and immediately for a new stage."""
    stream = Stream(terminal=False)
    shown = RunProgress(stream)
    for _ in range(40):
        clock.now += 0.25
        shown.show("publishing", 1, 0, ROWS, None)
    shown.show("draining", 1, 0, ROWS, None)

    stages = [text.split("] ")[1].split(":")[0] for text in stream.getvalue().splitlines()]
    assert ["publishing", "publishing", "draining"] == stages


def test_a_terminal_has_one_line(clock, monkeypatch):
    """A terminal's line is overwritten completely; messages from `say` stay."""
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda _: os.terminal_size((60, 24)))
    stream = Stream(terminal=True)
    shown = RunProgress(stream)
    clock.now += 1
    shown.show("publishing", 1_000_000, 2_000_000, ROWS, None)
    first = screen(stream.getvalue())
    clock.now += 1
    shown.show("closing", 1, 0, {}, None)
    second = screen(stream.getvalue())
    shown.say("restarted: nsqd-1")

    assert first.startswith("[  1.0 s] publishing: published 1,000,000 of 2,000,000")
    assert len(first) <= 59
    assert "[  2.0 s] closing: published 1" == second
    assert stream.getvalue().endswith("\r[  2.0 s] restarted: nsqd-1\n")
