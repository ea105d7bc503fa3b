"""Sessions of clicks, and what the shipped rules find in them."""

import random
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from sparq.demo.generator import generate
from sparq.pipeline.sessions.judge import most_within, sessions_of
from sparq.pipeline.sessions.rules import Window, compiled
from tests.pipeline.sessions.visitors import (
    RULES,
    Click,
    judged_once,
    messages,
    packed_rows,
    reasons,
)

ACCESS_LOG = Path(__file__).parents[4] / "shared" / "data" / "access.log"
SITE = "http://www.example.com/"
LYNX = "Lynx/2.8.9rel.1 libwww-FM/2.14 SSL-MM/1.4.1"


def pages(times, same=False, **given):
    """A click on a page at each time; on the same one, or on different ones."""
    return [
        Click(at, "/status" if same else f"/{number}", **given) for number, at in enumerate(times)
    ]


def random_clicks(rng, size):
    """Random clicks of three visitors: (visitor, second, late, page)."""
    return [
        (rng.randrange(3), rng.randrange(20_000), rng.random() < 0.1, rng.choice("abc"))
        for _ in range(size)
    ]


def frame(clicks):
    """These clicks in the form of the state."""
    columns = {"visitor": pl.Int64, "second": pl.Int64, "late": pl.Boolean, "page": pl.String}
    rows = pl.DataFrame(clicks, schema=columns, orient="row")
    return rows.with_columns(id=pl.int_range(pl.len(), dtype=pl.UInt64))


def plain_sessions(clicks, gap_s):
    """Sets of the places of clicks in a session, with plain Python."""
    found = []
    for key in {(visitor, late) for visitor, _, late, _ in clicks}:
        mine = sorted(
            (second, at)
            for at, (visitor, second, late, _) in enumerate(clicks)
            if (visitor, late) == key
        )
        found.append({mine[0][1]})
        for (before, _), (second, at) in pairwise(mine):
            if second - before > gap_s:
                found.append(set())
            found[-1].add(at)
    return {frozenset(one) for one in found}


@pytest.mark.parametrize("seed", range(5))
def test_sessions_are_those_of_a_plain_count(seed):
    """Sessions end by a gap, and late clicks make their own, as counted in plain Python."""
    clicks = random_clicks(random.Random(seed), 200)
    found = sessions_of(frame(clicks), 600).group_by("session").agg("id")["id"].to_list()

    assert plain_sessions(clicks, 600) == {frozenset(one) for one in found}


@pytest.mark.parametrize("same", ["", "page"])
def test_the_most_clicks_within_some_time_are_those_of_a_plain_count(same):
    """The largest number of clicks within a window is that of a plain count."""
    clicks = random_clicks(random.Random(9), 300)
    rows = sessions_of(frame(clicks), 3_000)
    found = most_within(rows, Window("true", 500, same), "most")
    expected = {}
    for session, mine in rows.group_by("session"):
        counts = [
            (sum(0 <= other - second <= 500 and (not same or page == its)
                 for other, page in mine["second", "page"].iter_rows()), its)
            for second, its in mine["second", "page"].iter_rows()
        ]  # fmt: skip
        expected[session[0]] = max(count for count, _ in counts)

    assert expected == dict(found["session", "most"].iter_rows())
    assert (same != "") == ("most_of" in found.columns)


def test_a_burst_is_twenty_pages_in_ten_seconds():
    """20 pages within ten seconds are a burst; 19, or parts of pages, are none."""
    assert reasons(pages([at // 2 for at in range(20)], referer=SITE)) == ["burst"]
    assert reasons(pages([at // 2 for at in range(19)], referer=SITE)) == []
    assert reasons([Click(0), *(Click(1, f"/{at}.css") for at in range(40))]) == []


def test_a_visitor_that_says_so_is_a_robot_and_nothing_else_but_a_burst():
    """A declared robot gets no finding that it is one in disguise."""
    robot = {"agent": "curl/8.5.0"}

    assert reasons([Click(0, "/robots.txt", **robot), *pages(range(1, 800, 50), **robot)]) == [
        "declared_robot"
    ]
    assert reasons(pages([0] * 20, **robot)) == ["declared_robot", "burst"]


def test_a_browser_that_asks_for_robots_txt_and_loads_no_parts_is_a_robot():
    """A browser that reads robots.txt is a robot; one that loads parts of pages has a person."""
    assert reasons([Click(0, "/robots.txt"), Click(5)]) == ["undeclared_robot"]
    assert reasons([Click(0, "/robots.txt"), Click(5), Click(6, "/site.css")]) == []


def test_even_gaps_are_a_sign_of_a_robot():
    """Pages at the pace of a clock are a robot's, though times are whole seconds."""
    part = Click(1, "/site.css")
    even = pages((int(at * 7.4) for at in range(16)), referer=SITE)
    uneven = pages((int(at * 7.4) + at % 3 * 2 for at in range(16)), referer=SITE)

    assert reasons([part, *even]) == ["undeclared_robot"]
    assert reasons([part, *even[1:]]) == []
    assert reasons([part, *uneven]) == []


def test_six_pages_without_parts_are_suspicious_where_others_load_parts():
    """Six pages without parts are suspicious, but not if the site's parts are elsewhere.

    Nor if nothing is known about the site, if links led to the pages, or if the browser shows text.
    """
    six = range(0, 600, 100)

    assert reasons(pages(six)) == ["no_resources"]
    assert reasons(pages(range(0, 500, 100))) == []
    assert reasons([*pages(six), Click(5, "/logo.svg")]) == []
    assert reasons(pages(six), site=(100, 3)) == []
    assert reasons(pages(six), site=(0, 0)) == []
    assert reasons(pages(six, referer=SITE)) == []
    assert reasons(pages(six, agent=LYNX)) == []


def test_the_same_page_again_and_again_is_suspicious_unless_it_reloads_itself():
    """15 clicks on a page in ten minutes are suspicious; a status page that reloads is not.

    Not even if the computer slept in between.
    """
    rng = random.Random(4)
    irregular, at = [], 0
    for _ in range(20):
        at += round(rng.expovariate(1 / 12))
        irregular.append(at)
    reloads = [*range(0, 600, 30), *range(1500, 2400, 30)]
    part = Click(1, "/site.css")

    (found,) = judged_once([part, *pages(irregular, same=True)]).to_dicts()
    assert (found["reason"], found["repeats_of"]) == ("repeats", "/status")
    assert reasons([part, *pages(irregular[:14], same=True)]) == []
    assert reasons([part, *pages(irregular)]) == []
    assert reasons([part, *pages(reloads, same=True)]) == []


@pytest.mark.parametrize("seed", [20_261, 20_262, 20_263, 20_264, 20_265])
def test_planted_visitors_are_found(seed):
    """Precision and recall of a generated day are at least 0.95."""
    day = generate(60_000, seed)
    found = _found(day.lines)
    planted = {(*who, reason) for who, why in day.labels.items() for reason in why}
    right = len(found & planted)

    assert right / len(found) >= 0.95
    assert right / len(planted) >= 0.95


@pytest.mark.skipif(not ACCESS_LOG.exists(), reason="needs the sample log")
def test_findings_in_a_real_log():
    """In a real log, the visitors that are called robots in disguise are a few that are known.

    Each was judged by hand: crawlers with a browser's name from neighbouring addresses, crawlers
    whose user agent no word gives away, and fetchers of twenty pages a minute. The status page that
    reloads is not among them.
    """
    found = [
        one for one in _found(ACCESS_LOG.read_bytes().splitlines()) if one[2] != "declared_robot"
    ]
    networks = {address.rsplit(".", 2)[0] for address, _, _ in found}

    assert {reason for _, _, reason in found} == {"undeclared_robot", "no_resources"}
    assert networks == {
        *("108.171", "116.125", "144.76", "180.76", "185.4"),
        *("208.115", "208.43", "216.152", "217.195", "91.236"),
    }


def _found(lines):
    """(address, user agent, reason) of all findings about a log, judged as a whole."""
    from sparq.pipeline.sessions.judge import findings_of, judged
    from sparq.pipeline.sessions.pack import from_blob

    use, found = compiled(RULES), set()
    for row in packed_rows(messages(lines), buckets=4).to_dict("records"):
        clicks = from_blob(row["clicks"])
        clicks = clicks.with_columns(late=pl.lit(False), arrived=pl.lit(0, pl.Int64))
        rows = judged(sessions_of(clicks, RULES.visit.gap), from_blob(row["visitors"]), use, (0, 0))
        rows = rows.with_columns(over=pl.lit(True))
        named = findings_of(rows, use).join(rows, on="session")
        found |= set(named["address", "user_agent", "reason"].iter_rows())
    return found
