"""Buckets: the cost of a batch, identical replays, and limits.

All buckets together are compared with the plain twin: each minute, late click and rejected
message.
"""

import json
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.pipeline.minutes_state import bucket, output
from sparq.pipeline.minutes_state.bucket import LIMITS, MinutesLimits, early_of
from tests.pipeline.minutes_state.buckets import (
    Buckets,
    batches_of,
    by_minute,
    counted,
    generated,
    message,
    of_kind,
)
from tests.pipeline.minutes_state.twin import Twin

NOW_S = 1_800_000_000
DAY_S = 86_400
SECOND = st.one_of(
    st.integers(NOW_S - 3 * 3600, NOW_S),
    st.integers(NOW_S - 2 * DAY_S, NOW_S + 2 * DAY_S),  # also late and future clicks
    st.sampled_from([0, 253_402_300_799, NOW_S + DAY_S, NOW_S + DAY_S + 59, NOW_S + DAY_S + 60]),
)
MESSAGE = st.builds(
    message,
    SECOND,
    st.sampled_from("uvwxyz"),
    st.sampled_from([None, "/", "/é", "/z" * 249, "/z" * 251, *(f"/{n}" for n in range(15))]),
    bytes=st.sampled_from([0, 1, 2**31, 10**18 - 1]),
    status=st.sampled_from([None, 0, 99, 100, 200, 304, 404, 599, 600, 999]),
    nsqd=st.sampled_from("abc"),
    published_s=st.integers(NOW_S - 3600, NOW_S),
    index=st.integers(0, 2**54),
    reason=st.sampled_from([None] * 9 + ["broken"]),
    body=st.binary(max_size=5),
)

HOUR_S = 3600
START_S = 1_800_000_000
START = START_S // 60


def at(minute, visitor="v", page="/", **others):
    """A click `minute` minutes after START, published immediately."""
    return message((START + minute) * 60, visitor, page, **others)


def apply(buckets, *clicks, second=0):
    return buckets.apply([*clicks], (START_S + second) * 1000)


def sizes(buckets):
    """(bytes of the recent minutes, number of cold minutes) of each bucket."""
    return [(len(state.held[1]), len(state.minutes)) for state in buckets.states]


def meta(buckets):
    return [json.loads(state.held[0]) for state in buckets.states]


def test_a_batch_reads_and_writes_each_bucket_once():
    """A batch reads and writes each bucket once: each call is a round trip to the JVM."""
    buckets = Buckets(4)
    for minute in range(3):
        apply(buckets, at(minute), at(minute + 1))

    assert [state.calls for state in buckets.states] == [Counter(recent=3, writes=3)] * 4


def test_a_late_click_reads_only_its_own_minute_from_cold():
    """A late click reads only its own minute from `cold`, whatever else is open."""
    buckets = Buckets(1, MinutesLimits(recent_bytes_max=0))
    for minute in range(10):
        apply(buckets, at(minute))
    state = buckets.states[0]

    assert sorted(state.minutes) == [START + minute for minute in range(9)]

    state.calls.clear()
    row = by_minute(apply(buckets, at(3, "w", "/b")))[START + 3]

    assert state.calls == Counter(recent=1, cold=1, writes=2)
    assert (row["clicks"], row["visitors"], row["revision"]) == (2, 2, 2)
    assert [page["page"] for page in row["top_pages"]] == ["/", "/b"]


def test_the_size_of_recent_minutes_is_limited():
    """Above recent_bytes_max the older half moves to `cold`, not one minute in each batch."""
    buckets = Buckets(1, MinutesLimits(recent_bytes_max=20_000))
    for minute in range(30):
        visitors = [at(minute, f"v{n}", f"/{n % 7}") for n in range(100)]
        apply(buckets, *visitors)

        assert sizes(buckets)[0][0] <= 20_000

    writes = buckets.states[0].calls["writes"] - 30
    assert writes == sizes(buckets)[0][1] >= 15
    assert by_minute(buckets.close())[START + 1]["visitors"] == 100


def test_a_closed_minute_is_removed_from_the_state():
    """A minute that closes gets a last row and leaves the state, with the texts of its pages."""
    buckets = Buckets(1, MinutesLimits(horizon_s=600, recent_bytes_max=0))
    for minute in range(5):
        apply(buckets, at(minute, page=f"/{minute}"))
    state = buckets.states[0]
    state.calls.clear()
    rows = by_minute(apply(buckets, at(13)))

    assert [minute - START for minute, row in rows.items() if row["final"]] == [0, 1, 2]
    assert [rows[START]["revision"], rows[START + 13]["revision"]] == [2, 1]
    assert sorted(state.minutes) == [START + 3, START + 4]
    assert state.calls == Counter(recent=1, cold=3, writes=1 + 3 + 1)  # 3 deleted, 1 moved

    apply(buckets, at(30, page="/new"))

    assert sizes(buckets)[0][1] == 0
    assert b"/13" not in state.held[1]
    assert b"/4" not in state.held[1]


@pytest.mark.parametrize(("second", "final"), [(59, False), (60, True)])
def test_a_minute_closes_when_the_mark_is_the_horizon_past_its_end(second, final):
    """A minute closes when the low mark is horizon_s past its end, not a second earlier."""
    buckets = Buckets(1, MinutesLimits(horizon_s=600))
    apply(buckets, at(0))
    rows = apply(buckets, message(START_S + 600 + second))

    assert [row["final"] for row in of_kind(rows, output.MINUTE)] == [False, True][: 1 + final]


def test_a_click_of_a_closed_minute_is_late():
    """A click of a closed minute counts as late and changes no minute."""
    buckets = Buckets(4, MinutesLimits(horizon_s=600))
    apply(buckets, at(0))
    apply(buckets, at(100))
    rows = apply(buckets, at(0, "w", "/b"), at(0, "w", "/c"), at(100))

    assert not any(b"/b" in state.held[1] for state in buckets.states)
    assert counted(rows, output.LATE) == {START: 2}
    assert len(of_kind(rows, output.LATE)) == 1
    assert {row["minute"].minute for row in of_kind(rows, output.MINUTE)} == {(START + 100) % 60}
    assert sum(one["counts"]["late"] for one in meta(buckets)) == 2


@pytest.mark.parametrize(("minutes_more", "late"), [(0, 0), (1, 1)])
def test_a_click_from_the_future_is_late(minutes_more, late):
    """A click more than a day ahead is late; up to a day it may be a time zone error."""
    buckets = Buckets(4)
    rows = apply(buckets, at(24 * 60 + minutes_more, published_s=START_S))

    assert sum(counted(rows, output.LATE).values()) == late
    assert sum(row["clicks"] for row in of_kind(rows, output.MINUTE)) == 1 - late


def test_all_buckets_have_the_same_low_mark():
    """All buckets have the same low mark: each gets the marks of all nsqds."""
    buckets = Buckets(64, partitions=3)
    apply(buckets, at(5, nsqd="a"), at(90, nsqd="b"), at(80, nsqd="c"))

    assert {one["low_mark"]["low_s"] for one in meta(buckets)} == {START_S + 300}


def test_a_full_bucket_closes_its_oldest_minutes_early():
    """A full bucket closes its oldest minutes early; each click counts in a minute or as late."""
    buckets = Buckets(2, MinutesLimits(bucket_bytes_max=3000, recent_bytes_max=1500))
    messages = 0
    for batch in range(40):
        clicks = [at(batch - back % 12, f"v{batch * back}") for back in range(20)]
        messages += len(clicks)
        apply(buckets, *clicks)
    rows = pa.concat_tables(buckets.rows)
    early = of_kind(rows, output.CLOSED_EARLY)
    minutes = {int(row["minute"].timestamp()) // 60 for row in early}
    closed = {(row["minute"], row["bucket"]) for row in early}
    final = {(row["minute"], row["bucket"]) for row in of_kind(rows, output.MINUTE) if row["final"]}
    late = sum(counted(rows, output.LATE).values())
    in_minutes = sum(row["clicks"] for row in by_minute(output.read(rows)).values())

    assert 20 < len(minutes) < 52
    assert final <= closed
    assert late > 100
    assert sum(one["counts"]["closed_early"] for one in meta(buckets)) == len(early)
    assert sum(one["counts"]["clicks"] for one in meta(buckets)) == in_minutes
    assert in_minutes + late == messages
    for state in buckets.states:
        last_rows = early_of([state.held[1]]).nbytes
        assert len(state.held[1]) + sum(map(len, state.minutes.values())) < 10_000 + last_rows


def test_minutes_closed_early_in_one_bucket_are_complete():
    """A batch's rows give complete minutes, even if one bucket closed them early.

    The minute is final when it closes in the other buckets.
    """
    buckets = Buckets(
        2, MinutesLimits(bucket_bytes_max=3000, recent_bytes_max=1500, horizon_s=HOUR_S)
    )
    minutes = {}
    for batch in range(100):
        apply(buckets, *(at(batch - back % 12, f"v{batch * back}") for back in range(20)))
        minutes |= by_minute(output.read(buckets.rows[-1]))
    rows = pa.concat_tables(buckets.rows)
    over = [row for minute, row in sorted(minutes.items())][:25]

    assert of_kind(rows, output.CLOSED_EARLY)
    assert minutes == by_minute(output.read(rows))
    assert all(row["final"] for row in over)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 50), st.sampled_from("uvwxyz"), st.sampled_from("abc")),
            min_size=1,
            max_size=12,
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0, 2000, 10**6]),
    st.sampled_from([1500, 10**6]),
)
def test_partitions_and_shuffle_order_do_not_change_the_state(
    batches, recent_bytes_max, bucket_bytes_max
):
    """Any partitions and any shuffle order give identical bytes in the state and equal rows."""
    limits = MinutesLimits(30 * 60, recent_bytes_max, bucket_bytes_max)
    several = [Buckets(3, limits, partitions=parts, seed=parts) for parts in (1, 2, 5)]
    for second, batch in enumerate(batches):
        clicks = [at(minute, visitor, f"/{visitor}", nsqd=nsqd) for minute, visitor, nsqd in batch]
        clicks += [message(reason="broken", index=place, published_s=START_S) for place in range(9)]
        rows = [apply(buckets, *clicks, second=second) for buckets in several]

        assert rows[0] == rows[1] == rows[2]
    states = [[(one.held, one.minutes) for one in buckets.states] for buckets in several]

    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("recent_bytes_max", [0, 10**6])
def test_a_replayed_batch_gives_equal_bytes(recent_bytes_max):
    """A batch that Spark replays on the same state gives identical bytes and rows."""
    buckets = Buckets(4, MinutesLimits(HOUR_S, recent_bytes_max))
    for batch in range(8):
        clicks = [at(batch * 7 - back, f"v{back % 5}", f"/{back}") for back in range(16)]
        clicks.append(message(reason="broken", index=batch, published_s=START_S))
        first = buckets.results(clicks, (START_S + batch) * 1000)
        again = buckets.results(clicks, (START_S + batch) * 1000)

        assert [writes for writes, _ in first] == [writes for writes, _ in again]
        assert [rows for _, rows in first] == [rows for _, rows in again]
        buckets.apply(clicks, (START_S + batch) * 1000)


def test_apply_only_reads_the_state():
    """`apply` only reads the state; its result contains all changes."""
    buckets = Buckets(1, MinutesLimits(recent_bytes_max=0))
    for minute in range(4):
        apply(buckets, at(minute))
    before = buckets.states[0].copy()
    buckets.results([at(0), at(9)], START_S * 1000)

    assert (buckets.states[0].held, buckets.states[0].minutes) == (before.held, before.minutes)


def test_the_state_of_another_version_is_refused():
    """The state of another version is refused with a sentence that asks for a new checkpoint."""
    buckets = Buckets(1)
    apply(buckets, at(0))
    text, blob = buckets.states[0].held
    buckets.states[0].held = (json.dumps(json.loads(text) | {"version": 99}), blob)

    with pytest.raises(ValueError, match=r"version 99.*new checkpoint"):
        apply(buckets, at(1))


def test_the_end_of_a_run_closes_every_open_minute():
    """At the end of a run every open minute gets a last, final revision."""
    buckets = Buckets(4, MinutesLimits(recent_bytes_max=0))
    for minute in range(6):
        apply(buckets, at(minute, "v"), at(minute, "w"))
    newest = buckets.figures()
    closed = by_minute(output.read(buckets.close()))

    assert all(state.minutes for state in buckets.states)
    assert closed == {
        minute: row | {"final": True, "revision": row["revision"] + 1}
        for minute, row in newest.items()
    }


def test_a_click_may_be_a_day_late_or_a_day_ahead():
    """A click may be a day late or a day ahead."""
    assert (bucket.LIMITS.horizon_s, bucket.AHEAD_MAX_S) == (86_400, 86_400)


def compare_with_twin(batches, count, limits=LIMITS, step_ms=1000, **cut):
    """Run the same batches through the twin and the buckets; all rows must be equal."""
    twin, buckets = Twin(limits.horizon_s), Buckets(count, limits, **cut)
    messages = 0
    for at, batch in enumerate(batches):
        batch_ms = NOW_S * 1000 + at * step_ms
        messages += len(batch)
        expected = {row["minute"]: row for row in twin.apply(batch, batch_ms)}
        rows = output.read(buckets.apply(batch, batch_ms))

        assert expected == {row["minute"]: row for row in with_minutes(rows)}
    twin.close()
    buckets.close()

    assert twin.newest == buckets.figures()
    assert twin.late == buckets.late()
    rejected = [row for rows in buckets.rows for row in of_kind(rows, output.REJECTED)]
    assert {(one["nsqd"], one["index"], one["body"]) for one in twin.rejected} == {
        (row["nsqd"], row["index"], row["body"]) for row in rejected
    }
    clicks = sum(row["clicks"] for row in buckets.figures().values())
    assert clicks + sum(twin.late.values()) + len(rejected) == messages
    return buckets


def with_minutes(rows):
    for row in rows.to_pylist():
        yield row | {"minute": int(row["minute"].timestamp()) // 60}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("nsqds", "lag"), [(1, 0), (2, 0), (2, 3), (3, 2)])
def test_minutes_of_a_generated_day_are_exact(seed, nsqds, lag):
    """Any number of nsqds, in step or not, gives exact minutes."""
    batches = batches_of(generated(seed), nsqds, 200 // nsqds, lag)

    compare_with_twin(batches, count=8, seed=seed)


@pytest.mark.parametrize("count", [4, 16, 64])
@pytest.mark.parametrize("partitions", [1, 5])
def test_numbers_of_buckets_and_partitions_do_not_change_the_minutes(count, partitions):
    """The number of buckets and partitions does not change the minutes."""
    compare_with_twin(batches_of(generated(4), 2, 250, 1), count, partitions=partitions)


@pytest.mark.parametrize("recent_bytes_max", [0, 3000, 20_000])
def test_minutes_in_cold_do_not_change_the_result(recent_bytes_max):
    """The result is the same whether most, half or few of the minutes are in `cold`."""
    limits = MinutesLimits(horizon_s=3 * 3600, recent_bytes_max=recent_bytes_max)
    compare_with_twin(batches_of(generated(5), 3, 70, 4), 4, limits)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(MESSAGE, min_size=1, max_size=40), min_size=1, max_size=8),
    st.sampled_from([1, 4, 7]),
    st.sampled_from(
        [
            MinutesLimits(0),
            MinutesLimits(3600),
            MinutesLimits(3600, 0),
            MinutesLimits(),
            MinutesLimits(DAY_S, 2000),
        ]
    ),
    st.sampled_from([1000, 20_000]),
    st.integers(1, 4),
)
def test_any_messages_give_the_rows_of_the_twin(batches, count, limits, step_ms, partitions):
    """Late, future, rejected, huge and long-page messages and quiet nsqds give the same rows."""
    compare_with_twin(batches, count, limits, step_ms, partitions=partitions)
