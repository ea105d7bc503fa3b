"""History: the figures of the last hour, within a memory limit."""

from __future__ import annotations

import itertools

from sparq.nsqadmin.watch.history import History, Series
from tests.nsqadmin.watch.figures import Cluster, channel, row_of, stats, topic


def grown(rounds: int, step: float = 10.0) -> Cluster:
    """A cluster with a channel that grows by 20 messages per round."""
    cluster = Cluster()
    for at in range(rounds):
        messages = at * 20
        figures = channel("c", depth=messages, messages=messages, oldest=float(at), clients=1)
        cluster.answers("a:4151", stats(topic("t", figures, messages=messages)))
        cluster.snapshot()
        cluster.now += step
    return cluster


def test_cluster_topics_channels_and_nodes_have_series() -> None:
    """The cluster, topics, channels and nodes have series of their figures."""
    cluster = grown(4)
    kept = cluster.builder.history

    times = [1_000_000.0, 1_000_010.0, 1_000_020.0, 1_000_030.0]
    depth, rates = [0.0, 20.0, 40.0, 60.0], [None, 2.0, 2.0, 2.0]
    lags, zeros = [0.0, 1.0, 2.0, 3.0], [None, 0.0, 0.0, 0.0]
    of_topic = {"depth": depth, "in_rate": rates, "lag_seconds": lags}
    assert Series(times, of_topic) == kept.series("topic", "t")
    assert Series(times, of_topic | {"out_rate": zeros}) == kept.series("channel", "t", "c")
    of_node = {"depth": depth, "in_rate": rates, "out_rate": zeros}
    assert Series(times, of_node) == kept.series("node", "a:4151")
    total = kept.series("cluster").values
    assert (depth, rates) == (total["depth"], total["in_rate"])


def test_figures_before_a_channel_existed_are_unknown() -> None:
    """Figures before its creation, and after a channel has disappeared, are unknown."""
    cluster = grown(2)
    cluster.answers("a:4151", stats(topic("t", channel("new", depth=3))))
    cluster.snapshot()

    kept = cluster.builder.history
    assert [None, None, 3.0] == kept.series("channel", "t", "new").values["depth"]
    assert [0.0, 20.0, None] == kept.series("channel", "t", "c").values["depth"]


def test_steps_are_ten_seconds_apart() -> None:
    """Steps are 10 s apart, although snapshots are made every 2 s."""
    cluster = grown(31, step=2.0)

    times = cluster.builder.history.series("cluster").times
    assert 7 == len(times)
    assert all(b - a == 10.0 for a, b in itertools.pairwise(times))


def test_steps_older_than_an_hour_are_dropped() -> None:
    """Steps that are older than an hour are dropped."""
    kept = grown(400).builder.history

    assert 361 == len(kept.series("cluster").times)
    assert kept.size_bytes == 361 * 2 * 12


def test_a_clock_that_is_set_back_drops_the_series() -> None:
    """The old series is dropped, because the times of a series must ascend."""
    cluster = grown(5)
    cluster.now -= 1000
    cluster.answers("a:4151", stats(topic("t", channel("c"))))
    cluster.snapshot()

    assert [999_050.0] == cluster.builder.history.series("cluster").times


def test_memory_is_bounded() -> None:
    """With more names, steps are farther apart, so that the bytes stay within the limit."""
    kept = History(bytes_max=360 * 12 * 10)

    assert [10.0, 10.0, 20.0, 100.0] == [kept.step_seconds(size) for size in (1, 10, 11, 100)]
    default = History()
    assert 10.0 == default.step_seconds(24_000)
    assert 90.0 == default.step_seconds(200_000)


def test_many_new_names_drop_old_steps() -> None:
    """If many names are added in one step, old steps are dropped to keep the limit."""
    cluster = Cluster()
    cluster.builder.history = History(bytes_max=4320)
    for count in (*[1] * 325, 40):
        answer = stats(*(topic(f"t{number}") for number in range(count)))
        cluster.answers("a:4151", answer)
        cluster.now += 10 if count == 1 else 400
        cluster.snapshot()

    assert 4320 == cluster.builder.history.size_bytes


def test_growth_is_the_rate_of_the_last_minute() -> None:
    """A channel that grew by 20 every 10 seconds has a growth of 2 per second."""
    cluster = grown(10)
    cluster.answers("a:4151", stats(topic("t", channel("c", depth=200))))

    row = row_of(cluster.snapshot())

    assert row.growth == 2.0


def test_a_sparkline_has_few_points_and_the_last_one() -> None:
    """A spark has the given number of points, enough for a line in a table cell."""
    kept = grown(100).builder.history

    spark = kept.spark("t", "c", points=10)

    depths = spark.values["depth"]
    assert 10 == len(spark.times) == len(depths)
    assert 99 * 20.0 == depths[-1]
    assert [None] * 10 == kept.spark("t", "none", points=10).values["depth"]


def test_a_sparkline_has_a_gap_where_this_process_stood_still() -> None:
    """A gap stays however few points are drawn, so that no line crosses it."""
    cluster = grown(50)
    cluster.now += 600
    for _ in range(50):
        cluster.now += 10
        cluster.answers("a:4151", stats(topic("t", channel("c", depth=1))))
        cluster.snapshot()

    for points in (5, 10, 24):
        spark = cluster.builder.history.spark("t", "c", points=points)
        assert 1 == spark.values["depth"].count(None)
        assert spark.times == sorted(spark.times)


def test_a_node_that_returns_with_a_backlog_is_no_growth() -> None:
    """Growth is unknown after the set of nodes has changed, until there are new steps to compare.

    While a node is gone, its own series is unknown: no line is drawn at its last figure.
    """
    cluster = grown(6)
    backlog = stats(topic("t", channel("c", depth=50_000, clients=1)))
    cluster.answers("b:4151", backlog)
    found = row_of(cluster.snapshot())
    assert (found.depth > 50_000, found.growth) == (True, None)
    for _ in range(3):
        cluster.now += 10
        found = row_of(cluster.snapshot())
    assert found.growth == 0.0
    cluster.answers("b:4151", None, state="gone")
    cluster.now += 10
    cluster.snapshot()
    series = cluster.builder.history.series("node", "b:4151").values["depth"]
    assert [50_000.0, None] == series[-2:]


def test_a_series_has_a_gap_where_steps_are_missing() -> None:
    """A time in which nsqadmin stood still is a gap in every series, not a line."""
    cluster = grown(3)
    cluster.now += 600
    cluster.snapshot()
    for of in (("cluster",), ("topic", "t"), ("channel", "t", "c"), ("node", "a:4151")):
        found = cluster.builder.history.series(*of)
        assert [20.0, 40.0, None, 40.0] == found.values["depth"][-4:], of
        assert found.times == sorted(found.times)
        assert len(found.times) == len(found.values["depth"]) == 5
