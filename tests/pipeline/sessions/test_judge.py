"""Sessions of clicks, and what the shipped rules find in them."""

import json
import random
from itertools import accumulate, pairwise
from pathlib import Path

import polars as pl
import pytest

from sparq.demo.generator import generate
from sparq.pipeline.sessions.judge import FINDINGS, SESSIONS, most_within, sessions_of, table_rows
from sparq.pipeline.sessions.rules import Window
from tests.pipeline.sessions.visitors import (
    BEGIN_S,
    RULES,
    Click,
    judged_lines,
    judged_once,
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


ROBOT = {"agent": "curl/8.5.0"}
PART = Click(1, "/site.css")
BURST = [at // 2 for at in range(20)]
SIX = range(0, 600, 100)
EVEN = [int(at * 7.4) for at in range(16)]
UNEVEN = [int(at * 7.4) + at % 3 * 2 for at in range(16)]
RELOADS = [*range(0, 600, 30), *range(1500, 2400, 30)]
"""The computer slept in between."""


def irregular_times():
    """20 times, about twelve seconds apart, as of a person who clicks."""
    rng = random.Random(4)
    return list(accumulate(round(rng.expovariate(1 / 12)) for _ in range(20)))


IRREGULAR = irregular_times()


@pytest.mark.parametrize(
    ("clicks", "expected"),
    [
        pytest.param(pages(BURST, referer=SITE), ["burst"], id="20 pages in ten seconds"),
        pytest.param(pages(BURST[:19], referer=SITE), [], id="19 pages"),
        pytest.param([Click(0), *(Click(1, f"/{at}.css") for at in range(40))], [], id="parts"),
        pytest.param(
            [Click(0, "/robots.txt", **ROBOT), *pages(range(1, 800, 50), **ROBOT)],
            ["declared_robot"],
            id="a declared robot is not one in disguise",
        ),
        pytest.param(pages([0] * 20, **ROBOT), ["declared_robot", "burst"], id="but may burst"),
        pytest.param(
            [Click(0, "/robots.txt"), Click(5)], ["undeclared_robot"], id="a browser and robots.txt"
        ),
        pytest.param([Click(0, "/robots.txt"), Click(5), PART], [], id="but it loads parts"),
        pytest.param([PART, *pages(EVEN, referer=SITE)], ["undeclared_robot"], id="even gaps"),
        pytest.param([PART, *pages(EVEN[1:], referer=SITE)], [], id="a few even gaps"),
        pytest.param([PART, *pages(UNEVEN, referer=SITE)], [], id="uneven gaps"),
        pytest.param(pages(SIX), ["no_resources"], id="six pages without parts"),
        pytest.param(pages(SIX[:5]), [], id="five pages without parts"),
        pytest.param([*pages(SIX), Click(5, "/logo.svg")], [], id="six pages and a part"),
        pytest.param(pages(SIX, referer=SITE), [], id="links led to them"),
        pytest.param(pages(SIX, agent=LYNX), [], id="the browser shows text"),
        pytest.param([PART, *pages(IRREGULAR[:14], same=True)], [], id="a page 14 times"),
        pytest.param([PART, *pages(IRREGULAR)], [], id="different pages"),
        pytest.param([PART, *pages(RELOADS, same=True)], [], id="a page that reloads itself"),
    ],
)
def test_what_the_shipped_rules_find(clicks, expected):
    """Robots and frauds are found by what they do; people, and pages that reload, are not."""
    assert expected == reasons(clicks)


def test_no_resources_needs_a_site_whose_visitors_load_parts():
    """Six pages without parts say nothing if the site's parts are elsewhere, or none is known."""
    assert reasons(pages(SIX), site=(100, 3)) == reasons(pages(SIX), site=(0, 0)) == []


def test_the_same_page_again_and_again_is_suspicious():
    """15 clicks on a page in ten minutes are suspicious; the finding has the page."""
    (found,) = judged_once([PART, *pages(IRREGULAR, same=True)]).to_dicts()

    assert (found["reason"], found["repeats_of"]) == ("repeats", "/status")


def found_about(lines):
    """(address, user agent, reason) of all findings about a log."""
    return set(judged_lines(lines)["address", "user_agent", "reason"].iter_rows())


@pytest.mark.parametrize("seed", [20_261, 20_262, 20_263, 20_264, 20_265])
def test_planted_visitors_are_found(seed):
    """Precision and recall of a generated day are at least 0.95."""
    day = generate(60_000, seed)
    found = found_about(day.lines)
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
    found = found_about(ACCESS_LOG.read_bytes().splitlines())
    found = {one for one in found if one[2] != "declared_robot"}
    networks = {address.rsplit(".", 2)[0] for address, _, _ in found}

    assert {reason for _, _, reason in found} == {"undeclared_robot", "no_resources"}
    assert networks == {
        *("108.171", "116.125", "144.76", "180.76", "185.4"),
        *("208.115", "208.43", "216.152", "217.195", "91.236"),
    }


def test_rows_have_the_columns_of_the_tables():
    """Rows fit the tables' schemas; the figures are those of the rules, as JSON."""
    found = judged_once([Click(at // 2, f"/{at % 2}") for at in range(20)])
    found = found.filter(pl.col("reason") == "burst").with_columns(ended=pl.lit("gap"))
    issued = found.with_columns(revision=pl.lit(5, pl.Int64), withdrawn=pl.lit(False))
    (session,) = table_rows(found, SESSIONS, RULES).to_arrow().cast(SESSIONS).to_pylist()
    (finding,) = table_rows(issued, FINDINGS, RULES).to_arrow().cast(FINDINGS).to_pylist()

    assert session["session"] == finding["session"] == "0" * 16
    assert session["message_ids"] == [f"{number:016x}" for number in range(5)]
    assert (session["clicks"], session["entry"], session["exit"]) == (20, "/0", "/1")
    assert session["first_time"].timestamp() == BEGIN_S
    assert json.loads(session["figures"]) == json.loads(finding["evidence"])
    assert json.loads(session["figures"])["repeats_of"] == "/0"
