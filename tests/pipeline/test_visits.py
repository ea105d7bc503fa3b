"""The rules of the spam analysis at their thresholds, and robots declared in user agents."""

import numpy as np
import pytest

from sparq.demo.website import BROWSERS
from sparq.pipeline import visits
from sparq.pipeline.visits import (
    BARE,
    BARE_PAGES,
    BURST,
    BURST_PAGES,
    CLOCK_GAPS,
    OTHER,
    PAGE,
    REPEAT_CLICKS,
    REPEAT_S,
    REPEATS,
    RESOURCE,
    ROBOTS_TXT,
    UNDECLARED,
    Clicks,
    declared_name,
)


def clicks(*rows):
    """Clicks from (second, kind, page)."""
    seconds, kinds, pages = zip(*sorted(rows), strict=True) if rows else ((), (), ())
    return Clicks(
        np.array(seconds, np.int64),
        np.array(kinds, np.int8),
        np.array(pages, object),
        np.array([f"{number:016x}" for number in range(len(rows))], object),
    )


def pages(seconds, *, same=False):
    return [(second, PAGE, "/same" if same else f"/{at}") for at, second in enumerate(seconds)]


def found(evidence):
    return [(one.reason, one.amount) for one in evidence]


@pytest.mark.parametrize(("count", "expected"), [(BURST_PAGES, 1), (BURST_PAGES - 1, 0)])
def test_a_burst_is_many_pages_within_seconds(count, expected):
    """BURST_PAGES pages within BURST_S are a burst; one fewer may be a person with many tabs."""
    quick = pages(10 + at % 10 for at in range(count))
    slow = pages(range(1000, 3000, 100))

    assert (
        found(visits.at_once(clicks(*quick, *slow), declared=False)) == [(BURST, count)] * expected
    )


def test_resources_of_a_page_are_no_burst():
    """Resources are no burst: a browser requests dozens of images together."""
    images = [(10, RESOURCE, f"/{at}.png") for at in range(100)]

    assert found(visits.at_once(clicks(*images), declared=False)) == []


@pytest.mark.parametrize(("count", "expected"), [(REPEAT_CLICKS, 1), (REPEAT_CLICKS - 1, 0)])
def test_many_clicks_on_one_page_are_repeats(count, expected):
    """REPEAT_CLICKS clicks on one page within ten minutes are repeats; the evidence names it."""
    rows = clicks(*pages((40 * at for at in range(count)), same=True))
    evidence = list(visits.at_once(rows, declared=False))

    assert found(evidence) == [(REPEATS, count)] * expected
    assert [one.details["page"] for one in evidence] == ["/same"] * expected


@pytest.mark.parametrize("gap_s", [REPEAT_S // (REPEAT_CLICKS - 1) + 1, REPEAT_S, 86_400])
def test_as_many_clicks_on_one_page_over_a_longer_time_are_no_repeats(gap_s):
    """Clicks on one page are no repeats if fewer than REPEAT_CLICKS fall within ten minutes.

    The smallest of the gaps is just too long; with the largest the page is requested daily.
    """
    rows = clicks(*pages((gap_s * at for at in range(REPEAT_CLICKS * 2)), same=True))

    assert found(visits.at_once(rows, declared=False)) == []


def test_robots_txt_is_a_sign_of_an_undeclared_robot():
    """Reading robots.txt is a sign of an undeclared robot; a declared one should read it."""
    rows = clicks((1, ROBOTS_TXT, "/robots.txt"))

    assert found(visits.at_once(rows, declared=False)) == [(UNDECLARED, 1)]
    assert found(visits.at_once(rows, declared=True)) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (pages(range(0, 700, 100)), [(BARE, 7)]),
        (pages(range(0, 100 * (BARE_PAGES - 1), 100)), []),
        ([*pages(range(0, 700, 100)), (50, RESOURCE, "/site.css")], []),
        ([*pages(range(0, 700, 100)), (50, OTHER, "/feed")], [(BARE, 7)]),
    ],
)
def test_pages_without_resources_are_suspicious(rows, expected):
    """BARE_PAGES pages without any resource are suspicious; one stylesheet clears the visit."""
    assert found(visits.no_resources(clicks(*rows))) == expected


def test_even_gaps_are_a_sign_of_a_robot():
    """Even gaps between pages are a sign of a robot, even though times are whole seconds."""
    even = pages(int(at * 7.4) for at in range(CLOCK_GAPS + 1))
    uneven = pages(int(at * 7.4) + at % 3 * 2 for at in range(CLOCK_GAPS + 1))
    reloads = pages((int(at * 7.4) for at in range(CLOCK_GAPS + 1)), same=True)

    assert found(visits.clockwork(clicks(*even))) == [(UNDECLARED, CLOCK_GAPS + 1)]
    assert found(visits.clockwork(clicks(*even[1:]))) == []
    assert found(visits.clockwork(clicks(*uneven))) == []
    assert found(visits.clockwork(clicks(*reloads))) == []


def test_evidence_has_the_times_and_ids_of_the_burst():
    """Times and message ids of evidence are those of the burst, not of the whole visit."""
    quick = pages(500 + at % 8 for at in range(30))
    (evidence,) = visits.at_once(clicks((1, PAGE, "/"), *quick, (9000, PAGE, "/")), declared=True)

    assert (evidence.first_s, evidence.last_s, evidence.amount) == (500, 507, 30)
    assert evidence.ids == tuple(f"{number:016x}" for number in range(1, 6))


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (
            "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
            "Googlebot/2.1",
        ),
        ("Mozilla/5.0 (compatible; Baiduspider/2.0; +http://x.example)", "Baiduspider/2.0"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("python-requests/2.32.3", "python-requests/2.32.3"),
        ("FeedBurner/1.0 (http://www.FeedBurner.com)", "FeedBurner/1.0"),
        ("Mozilla/5.0 HeadlessChrome/120.0", "HeadlessChrome/120.0"),
        ("Something (+https://example.com/about)", "+https://example.com/about"),
    ],
)
def test_declared_robots_are_found_in_user_agents(user_agent, name):
    """The declared name is the whole word in the user agent that identifies a robot."""
    assert declared_name(user_agent) == name


@pytest.mark.parametrize(
    "user_agent",
    [*BROWSERS, "Mozilla/5.0 (Linux; Android 9; CUBOT_X19) Mobile Safari/537.36", "-", ""],
)
def test_browsers_declare_no_robot(user_agent):
    """Browsers declare no robot, not even a telephone whose name contains "bot"."""
    assert declared_name(user_agent) is None
