"""The generated day: the same for the same seed, with labels that its lines do not contain."""

from collections import Counter

from sparq.demo import generator
from sparq.demo.generator import generate
from sparq.pipeline.sessions.rules import REASONS
from tests.pipeline import plain


def read(lines):
    clicks = []
    for line in lines:
        try:
            clicks.append(plain.read(line))
        except plain.Unreadable:
            clicks.append(None)
    return clicks


def test_a_seed_always_generates_the_same_day():
    """A seed always generates the same lines and labels; another seed generates others."""
    first, again, other = generate(3000, 1), generate(3000, 1), generate(3000, 2)

    assert (first.lines, first.labels) == (again.lines, again.labels)
    assert first.lines != other.lines
    assert first.labels.keys().isdisjoint(other.labels)


def test_a_day_has_the_requested_clicks_in_time_order(monkeypatch):
    """A day has exactly the requested lines, in time order, and `damaged` unreadable ones."""
    monkeypatch.setattr(generator, "DAMAGED_SHARE", 0.02)
    day = generate(6_000, 3)
    clicks = read(day.lines)
    times = [click["time"] for click in clicks if click]

    assert len(day.lines) == 6_000
    assert clicks.count(None) == day.damaged > 0
    assert times == sorted(times)


def test_labelled_robots_are_in_the_day_and_no_line_has_a_label():
    """Each label is a visitor of the day, every reason occurs, and no line contains a reason."""
    day = generate(6_000, 4)
    visitors = {(click["address"], click["user_agent"]) for click in read(day.lines) if click}
    whole = b"\n".join(day.lines)

    assert day.labels.keys() <= visitors
    assert {reason for reasons in day.labels.values() for reason in reasons} == set(REASONS)
    assert not any(reason.encode() in whole for reason in REASONS)
    assert len(day.labels) < 0.1 * len(visitors)


def test_clicks_follow_the_hours_of_a_day():
    """Evenings are busier than nights, 40-90 % of clicks load resources, some lines are JSON."""
    lines = generate(6_000, 5).lines
    clicks = [click for click in read(lines) if click]
    hours = Counter(click["time"].hour for click in clicks)
    resources = sum(click["page"].startswith(("/static/", "/img/")) for click in clicks)

    assert hours[20] > 3 * hours[3]
    assert 0.4 < resources / len(clicks) < 0.9
    assert 0.02 < sum(line.startswith(b"{") for line in lines) / len(lines) < 0.4
