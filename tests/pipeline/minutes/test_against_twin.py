"""The buckets of `metrics`, held to the plain twin: each minute, late click, rejected message."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.demo.generator import generate
from sparq.pipeline.minutes_state import output
from sparq.pipeline.minutes_state.bucket import LIMITS, MinutesLimits
from tests.pipeline import plain
from tests.pipeline.minutes.buckets import Buckets, message, of_kind
from tests.pipeline.minutes.twin import Twin

NOW_S = 1_800_000_000
DAY_S = 86_400


@functools.cache
def generated(seed, size=1000):
    """The messages of a made-up day, published as they happened."""
    messages, second = [], 0
    for index, body in enumerate(generate(size, seed).lines):
        try:
            click = plain.read(body)
        except plain.Unreadable:
            found = {"reason": "unreadable", "body": body, "index": index}
            messages.append(message(published_s=second, **found))
            continue
        second = int(click["time"].timestamp())
        visitor = f"{click['address']}\n{click['user_agent']}"
        figures = {key: click[key] for key in ("bytes", "status")}
        messages.append(message(second, visitor, click["page"], index=index, **figures))
    return messages


def batches_of(messages, nsqds, rows, lag):
    """Batches of `rows` messages an nsqd; each nsqd is read `lag` batches after the one before."""
    logs = [[one | {"nsqd": f"nsqd-{at}"} for one in messages[at::nsqds]] for at in range(nsqds)]
    batch, turn = [], 0
    while turn == 0 or batch or turn <= lag * nsqds:
        batch = []
        for at, log in enumerate(logs):
            first = (turn - lag * at) * rows
            batch += log[first : first + rows] if first >= 0 else []
        if batch:
            yield batch
        turn += 1


def hold_to_twin(batches, count, limits=LIMITS, step_ms=1000, **cut):
    """Give both the same batches; every row of every batch must be equal."""
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
def test_a_made_up_day(seed, nsqds, lag):
    """However many nsqds there are, in step or apart, each batch's minutes are exact."""
    batches = batches_of(generated(seed), nsqds, 200 // nsqds, lag)

    hold_to_twin(batches, count=8, seed=seed)


@pytest.mark.parametrize("count", [4, 16, 64])
@pytest.mark.parametrize("partitions", [1, 5])
def test_any_number_of_buckets_and_partitions(count, partitions):
    """A minute is the sum over its buckets, whatever their number."""
    hold_to_twin(batches_of(generated(4), 2, 250, 1), count, partitions=partitions)


@pytest.mark.parametrize("recent_bytes_max", [0, 3000, 20_000])
def test_where_the_minutes_lie_does_not_matter(recent_bytes_max):
    """All but the newest minute in `cold`, half of them, or nearly none."""
    limits = MinutesLimits(horizon_s=3 * 3600, recent_bytes_max=recent_bytes_max)
    hold_to_twin(batches_of(generated(5), 3, 70, 4), 4, limits)


SECOND = st.one_of(
    st.integers(NOW_S - 3 * 3600, NOW_S),
    st.integers(NOW_S - 2 * DAY_S, NOW_S + 2 * DAY_S),  # late, and from the future
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
def test_any_messages(batches, count, limits, step_ms, partitions):
    """Late, from the future, rejected, of huge sizes, with long pages, of nsqds that go quiet."""
    hold_to_twin(batches, count, limits, step_ms, partitions=partitions)
