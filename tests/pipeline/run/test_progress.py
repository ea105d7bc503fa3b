"""Progress of a run: bars on a terminal, lines elsewhere."""

import io

import pytest

from sparq.pipeline.run import progress
from sparq.pipeline.run.progress import RunProgress, pace

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


@pytest.mark.parametrize(
    ("per_second", "behind", "expected"),
    [
        (None, 5, []),
        (100.0, 0, ["100/s", "0 behind"]),
        (4_100.0, 49_980, ["4,100/s", "49,980 behind", "0:00:12 left"]),
        (100.0, 1_000_000, ["100/s", "1,000,000 behind", "2:46:40 left"]),
    ],
)
def test_a_pace_has_rate_lag_and_remaining_time(per_second, behind, expected):
    """The pace has the rate, the unread clicks, and the time for them; nothing before a rate."""
    assert expected == pace(per_second, behind, 0)


def test_the_remaining_time_includes_clicks_to_come():
    """The remaining time includes clicks that are not published yet."""
    assert ["10/s", "5 behind", "0:00:02 left"] == pace(10.0, 5, 15)


def test_the_query_with_the_greatest_depth_determines_the_lag(clock):
    """The query with the greatest depth at nsqd determines the lag and the rate of a line."""
    stream = Stream(terminal=False)
    shown = RunProgress(stream)
    for second in range(12):
        clock.now += 1
        rows = {"archive": second * 900, "metrics": second * 100}
        shown.show("draining", 9_900, 0, rows, {"archive": 0, "metrics": 9_900 - second * 100})

    assert (
        "[ 11.0 s] draining: published 9,900 | archive 9,000, metrics 1,000"
        " | 100/s | 8,900 behind | 0:01:29 left"
    ) == stream.getvalue().splitlines()[-1]


def test_without_depths_the_lag_is_computed_from_counts(clock):
    """If the depths are unknown, the lag is the published minus the processed clicks."""
    stream = Stream(terminal=False)
    shown = RunProgress(stream)
    for published, count in ((0, 0), (2_500, 1_000), (5_000, 2_000)):
        clock.now += 5
        shown.show("publishing", published, 0, {"archive": count}, None)

    assert stream.getvalue().endswith("| 200/s | 3,000 behind | 0:00:15 left\n")


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


def test_a_terminal_has_a_bar_for_each_query(monkeypatch):
    """A terminal has a bar for each query; messages stay, and the bars are erased at the end."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Stream(terminal=True)
    shown = RunProgress(stream)
    shown.show("publishing", 120_000, 200_000, ROWS, None)
    shown.say("restarted: nsqd-1")
    shown.clear()

    said = stream.getvalue()
    assert all(name in said for name in ("published", *ROWS))
    assert "120,000 of 200,000" in said
    assert " s] restarted: nsqd-1\n" in said
    assert said.rstrip().endswith("\x1b[2K")
