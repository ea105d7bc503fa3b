"""One bucket of `spam_analysis`, batch by batch, in Spark's test harness."""

import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sparq.demo.generator import generate
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sessions.rules import rules_of, shipped
from sparq.pipeline.sessions.state import BEHIND_S, QUIET_S, SWEEP, LowMark
from tests.pipeline.sessions.visitors import PUBLISHED_S, RULES, Bucket, Click

LATER = 4 * RULES.visit.gap


def visits(**numbers):
    """The rules with other numbers of [visit]."""
    return replace(RULES, visit=structs.replace(RULES.visit, **numbers))


def robot(first, count, gap=20):
    """Clicks of a declared robot."""
    return [Click(first + at * gap, f"/{at}", agent="curl/8.5.0") for at in range(count)]


def issued(bucket):
    """(reason, amount, withdrawn) of the findings so far."""
    return [(one["reason"], one["amount"], one["withdrawn"]) for one in bucket.findings]


def test_a_session_is_put_out_once_when_the_low_mark_has_passed_its_gap():
    """A session is put out once, by the first sweep after its gap; until then it grows."""
    bucket = Bucket()
    bucket.batch([Click(0), Click(10)])
    bucket.sweep()
    bucket.batch([Click(100, "/a"), Click(RULES.visit.gap + 99, address="198.51.100.1")])
    bucket.sweep()
    assert bucket.sessions == []
    bucket.batch([Click(RULES.visit.gap + 100, address="198.51.100.1")])
    bucket.sweep()
    (session,) = bucket.sessions

    assert (session["clicks"], session["ended"], session["late"]) == (3, "gap", False)
    assert (session["entry"], session["exit"]) == ("/", "/a")
    assert bucket.meta().clicks == 2


def test_a_finding_is_issued_while_the_visit_is_open_and_again_when_it_has_doubled():
    """A finding comes within `judge_every`, again when doubled, and at the end if it has grown."""
    bucket = Bucket()
    bucket.batch(robot(0, 2))
    assert issued(bucket) == [("declared_robot", 2, False)]
    bucket.batch(robot(100, 1))
    bucket.batch(robot(200, 1))
    bucket.batch(robot(300, 1))
    assert issued(bucket)[1:] == [("declared_robot", 4, False)]
    bucket.batch([Click(LATER)])
    bucket.sweep()

    assert issued(bucket)[2:] == [("declared_robot", 5, False)]
    assert len({one["session"] for one in bucket.findings}) == 1
    revisions = [one["revision"] for one in bucket.findings]
    assert revisions == sorted(set(revisions)) and revisions[0] == PUBLISHED_S * 1000


def test_a_finding_that_no_longer_holds_is_withdrawn():
    """Six pages without parts are withdrawn when a part of a page is loaded after all."""
    bucket = Bucket()
    others = [Click(0, page, f"198.51.100.{at}") for at in range(12) for page in ("/", "/site.css")]
    bucket.batch([*others, *(Click(at, f"/{at}") for at in range(6))])
    bucket.batch([Click(50, "/a", "198.51.100.1")])
    assert issued(bucket) == [("no_resources", 6, False)]
    bucket.batch([Click(7, "/logo.svg")])
    bucket.batch([Click(51, "/a", "198.51.100.1")])

    assert issued(bucket)[1:] == [("no_resources", 0, True)]
    assert bucket.findings[0]["session"] == bucket.findings[1]["session"]
    assert bucket.findings[0]["first_time"] == bucket.findings[1]["first_time"]


def test_an_earlier_click_gives_the_session_another_id_and_withdraws_the_old_one():
    """Two sessions that a click between them joins are one; the findings about both go."""
    bucket = Bucket()
    bucket.batch([*robot(1000, 1), *robot(1000 + RULES.visit.gap + 500, 1)])
    bucket.batch([Click(1000)])
    assert len(issued(bucket)) == 2
    bucket.batch(robot(1000 + RULES.visit.gap - 100, 1))
    bucket.batch([Click(LATER)])
    bucket.sweep()
    session = next(one for one in bucket.sessions if one["robot"])

    assert session["clicks"] == 3
    newest = {one["session"]: one for one in bucket.findings}
    assert sorted(one["withdrawn"] for one in newest.values()) == [False, True]
    assert newest[session["session"]]["amount"] == 3


def test_late_clicks_make_a_session_of_their_own_over_several_batches():
    """Clicks of an old log are late, are judged, and are one session until `late_wait` is over."""
    bucket = Bucket()
    bucket.batch([Click(LATER)])
    bucket.batch(robot(0, 3))
    bucket.batch(robot(60, 3))
    bucket.sweep()
    assert bucket.sessions == []
    assert ("declared_robot", 6, False) in issued(bucket)
    bucket.batch_ms += 1000 * RULES.visit.late_wait
    bucket.sweep()
    (session,) = bucket.sessions

    assert (session["clicks"], session["late"], session["ended"]) == (6, True, "gap")
    assert sum(one["late"] for one in bucket.counts) == 6


def test_a_visit_of_too_many_clicks_is_cut():
    """A visit ends with `clicks_max` clicks, and further clicks begin another one.

    The finding about it has a higher revision, also if the clock has gone back.
    """
    bucket = Bucket(visits(clicks_max=10))
    bucket.batch(robot(0, 12))
    bucket.sweep()
    bucket.batch_ms -= 3_600_000
    bucket.batch(robot(300, 3))
    bucket.sweep()
    first, second = bucket.findings

    assert [(one["clicks"], one["ended"]) for one in bucket.sessions] == [(12, "clicks_max")]
    assert bucket.meta().clicks == 3
    assert (first["amount"], second["amount"]) == (12, 3)
    assert first["session"] != second["session"]
    assert first["revision"] < second["revision"]


def test_visits_that_were_silent_for_longest_make_room():
    """Above `held_max` clicks, visits end early until half of it is left; they are counted."""
    bucket = Bucket(visits(held_max=20))
    bucket.batch([Click(at, f"/{at}", f"198.51.100.{at}") for at in range(30)])

    assert {one["ended"] for one in bucket.sessions} == {"room"}
    assert sorted(one["entry"] for one in bucket.sessions) == sorted(f"/{at}" for at in range(20))
    assert bucket.meta().clicks == 10
    assert bucket.counts[-1]["evicted_visits"] == bucket.counts[-1]["evicted_clicks"] == 20


def test_a_query_that_is_behind_judges_only_at_sweeps():
    """Clicks published long ago are judged by the sweep, since findings are late anyway."""
    bucket = Bucket()
    for at in range(SWEEP - 1):
        bucket.lines([one.line() for one in robot(at, 1)], published_s=PUBLISHED_S - BEHIND_S - 1)
    assert bucket.findings == []
    bucket.lines([b"no click"])

    assert issued(bucket) == [("declared_robot", SWEEP - 1, False)]


def test_all_clicks_of_a_day_are_in_sessions_however_they_come():
    """Every click is in one session or in the state, in batches of random sizes of two nsqds."""
    day, rng = generate(4_000, 8), random.Random(8)
    bucket, lines = Bucket(visits(clicks_max=50)), list(day.lines)
    while lines:
        size = rng.randint(1, 400)
        bucket.lines(lines[:size], rng.choice("ab"))
        del lines[:size]
    ids = Counter(one["session"] for one in bucket.sessions)

    assert set(ids.values()) == {1}
    held = bucket.meta().clicks
    assert sum(one["clicks"] for one in bucket.sessions) + held == 4_000 - day.damaged
    assert held < 4_000


def test_rules_may_change_at_a_restart():
    """Another rule file is applied to open sessions; its columns are null for earlier clicks."""
    content = shipped()
    content["columns"]["paths"] = "COUNT(path)"
    content["rules"]["pages"] = {"when": "paths >= 2", "amount": "paths"}
    del content["rules"]["declared_robot"]
    changed = rules_of(content, CLICK_SCHEMA)
    bucket = Bucket()
    bucket.batch(robot(0, 3))
    bucket.restart(changed)
    bucket.batch(robot(100, 2))
    bucket.batch(robot(200, 1))
    bucket.close()

    assert issued(bucket) == [
        ("declared_robot", 3, False),
        ("pages", 3, False),
        ("declared_robot", 0, True),
    ]
    assert [(one["clicks"], one["ended"]) for one in bucket.sessions] == [(6, "run")]


NOW_MS = 1_800_000_000_000


def advanced(*batches, mark=None):
    """The mark after batches of (marks, seconds since NOW_MS)."""
    mark = mark or LowMark()
    for marks, second in batches:
        mark.advance([marks], NOW_MS + 1000 * second)
    return mark


BUSY = [({"a": 100 + second}, second) for second in range(5, QUIET_S + 5, 5)]
AWAY = [({"a": 100 + second}, second) for second in range(10, 50, 10)]
BOTH = ({"a": 100, "b": 40}, 0)


@pytest.mark.parametrize(
    ("batches", "low_s"),
    [
        pytest.param([BOTH, ({"a": 900}, 1)], 40, id="the slowest nsqd's"),
        pytest.param([BOTH, *BUSY], 40, id="also if it was quiet for 30 s"),
        pytest.param([BOTH, *BUSY, ({"a": 500}, QUIET_S + 1)], 500, id="but no longer"),
        pytest.param([BOTH, *AWAY, ({"b": 60}, 50), ({"a": 900}, 51)], 140, id="never back"),
        pytest.param(
            [BOTH, *AWAY, ({"b": 60}, 50), ({"a": 900}, 51), ({"b": 300}, 52)], 300,
            id="it counts again from its next click",
        ),
        pytest.param([BOTH, ({"a": 900}, 3600)], 40, id="a pause of the query counts as STEP_S"),
        pytest.param([BOTH, ({"a": 200}, 86_400), ({"a": 300}, 0)], 40, id="so do clocks' jumps"),
        pytest.param([({}, 0)], 0, id="no clicks yet"),
        pytest.param([({"a": 100}, 0), ({}, 1)], 100, id="rejected messages only"),
    ],
)  # fmt: skip
def test_the_mark_is_what_all_nsqds_have_reached(batches, low_s):
    """The mark is the minimum over the nsqds, without those that were quiet for 30 s."""
    assert low_s == advanced(*batches).low_s


def test_quiet_nsqds_are_removed_from_the_mark():
    """Quiet nsqds are removed: new names at every restart must not fill the state."""
    mark = advanced(*(({f"nsqd-{second}": second}, second) for second in range(0, 1000, 5)))

    assert len(mark.newest_s) <= QUIET_S // 5 + 1
    assert mark.newest_s.keys() == mark.seen_ms.keys()


BATCHES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), max_size=3),
        st.integers(0, 200),
    ),
    max_size=12,
)


@given(BATCHES, st.integers(0, 12))
def test_a_restored_mark_continues_as_the_original(batches, cut):
    """A mark restored from its fields continues as the original; it never decreases."""
    mark, lows = LowMark(), [0]
    for number, batch in enumerate(batches):
        if number == cut:
            mark = msgspec.json.decode(msgspec.json.encode(mark), type=LowMark)
        lows.append(advanced(batch, mark=mark).low_s)

    assert lows == sorted(lows)
    assert mark == advanced(*batches)
