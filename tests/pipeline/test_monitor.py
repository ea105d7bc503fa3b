"""The queries' metrics for Prometheus, from Spark's progress to the scraped text."""

import json
import socket
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import functions as F

from sparq.options.mistakes import Mistake
from sparq.pipeline import channels
from sparq.pipeline.channels import MESSAGE_DDL
from sparq.pipeline.monitor import NEWEST_PUBLISHED, QueryMetrics, lag, serve
from tests.pipeline.spark_progress import FIRST, QUERY_ID, SECOND, STATE, event, place, progress
from tests.support.published import numbered, publish_batches
from tests.support.servers import spawn_nsqd
from tests.support.spark_session import IN_A_SESSION
from tests.support.waiting import wait_for

pytestmark = IN_A_SESSION

NOON = "2026-11-22T12:00:00.000Z"
NOON_S = 1_795_348_800.0
RUN, AGAIN = "run-1", "run-2"
PLACES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**15), max_size=6)


class Metrics(QueryMetrics):
    """The metrics of one query, which has started, in a registry of their own."""

    def __init__(self):
        self.registry = CollectorRegistry()
        super().__init__(self.registry)
        self.start(RUN)

    def start(self, run):
        self.onQueryStarted(event(id=QUERY_ID, runId=run, name="metrics", timestamp=NOON))

    def end(self, run, exception=None):
        self.onQueryTerminated(event(id=QUERY_ID, runId=run, exception=exception))

    def rest(self):
        self.onQueryIdle(event(id=QUERY_ID, timestamp="2026-11-22T12:00:30.000Z"))

    def progressed(self, figures):
        self.onQueryProgress(event(progress=figures))

    def values(self, *names):
        """Samples of the query, as Prometheus reads them; None for one that is absent."""
        found = samples_of(generate_latest(self.registry).decode())
        return [found.get((f"sparq_query_{name}",)) for name in names]


@pytest.fixture
def metrics():
    """The metrics of a query that has had no batch."""
    return Metrics()


def samples_of(text):
    """The samples of a text by name and labels, without the label `query`."""
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "query")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_batch_sets_all_figures(metrics):
    """A batch gives rate, lag, duration, parts, state and counts, summed over observations."""
    observed = {"r": {NEWEST_PUBLISHED: NOON_S - 1, "late": 3, "mine": 8}}
    observed["s"] = {"late": 2, "evicted_visits": None}
    metrics.progressed(progress(observedMetrics=observed, stateOperators=[STATE]))
    found = samples_of(generate_latest(metrics.registry).decode())

    expected = {
        ("active",): 1,
        ("rows_total",): 400,
        ("batches_total",): 1,
        ("rows_per_second",): 200,
        ("lag_messages",): 550,
        ("lag_seconds",): 3,
        ("heard_timestamp_seconds",): NOON_S + 2,
        ("batch_id",): 3,
        ("late_total",): 5,
        ("evicted_visits_total",): 0,
        ("batch_duration_seconds_sum",): 2,
        ("batch_duration_seconds_count",): 1,
        ("batch_duration_seconds_bucket", "1.0"): 0,
        ("batch_duration_seconds_bucket", "2.0"): 1,
        ("batch_duration_seconds_bucket", "+Inf"): 1,
        ("batch_part_seconds_total", "addBatch"): 1.5,
        ("state_rows", "transformWithStateInPandasExec", "0"): 48,
        ("state_memory_bytes", "transformWithStateInPandasExec", "0"): 1_000_000,
        ("state_disk_bytes", "transformWithStateInPandasExec", "0"): 4_000_000,
        ("state_commit_seconds", "transformWithStateInPandasExec", "0"): 0.25,
    }
    assert expected == {key: found.get((f"sparq_query_{key[0]}", *key[1:])) for key in expected}


def test_a_batch_is_counted_once(metrics):
    """A batch that is reported again, or late, changes no counter; nor does it in the totals."""
    for batch in (3, 3, 2, 4):
        metrics.progressed(progress(batch_id=batch))

    assert [800, 2] == metrics.values("rows_total", "batches_total")
    assert {"metrics": {"rows": 800}} == metrics.rows()


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        (None, [0, 0, 0]),
        # While an nsqd is unreachable, the last known lag stays.
        ({FIRST: place(900)}, [400, 3, 1]),
    ],
)
def test_an_idle_query_has_no_lag(metrics, latest, expected):
    """An idle query has a lag of 0 messages and 0 seconds, and a rate of 0."""
    observed = {"r": {NEWEST_PUBLISHED: NOON_S - 1}}
    metrics.progressed(progress(latest=latest, observedMetrics=observed))
    metrics.rest()

    assert expected == metrics.values("lag_messages", "lag_seconds", "logs_out_of_reach")
    assert [0, NOON_S + 30] == metrics.values("rows_per_second", "heard_timestamp_seconds")


def test_a_query_has_no_lag_before_its_first_batch(metrics):
    """Before the first batch there is no sample of the lag: unknown is not 0."""
    assert [None, NOON_S] == metrics.values("lag_messages", "heard_timestamp_seconds")


@pytest.mark.parametrize(("first", "restarts"), [(0, 0), (7, 1)])
def test_a_start_from_a_checkpoint_counts_as_a_restart(metrics, first, restarts):
    """A first batch other than 0 counts as a restart: the checkpoint existed before."""
    for batch in (first, first + 1):
        metrics.progressed(progress(batch_id=batch))

    assert [1, restarts] == metrics.values("starts_total", "restarts_total")


def test_a_second_run_in_the_same_driver_counts_as_a_restart(metrics):
    """A second run in the same driver counts as one restart, whatever its first batch."""
    metrics.progressed(progress(batch_id=0))
    metrics.end(RUN, "broken")
    metrics.start(AGAIN)
    metrics.progressed(progress(batch_id=1))

    names = ("starts_total", "restarts_total", "failures_total", "active")
    assert [2, 1, 1, 1] == metrics.values(*names)


def test_a_late_end_of_an_old_run_leaves_the_new_run_active(metrics):
    """The end of an old run, reported late, does not make the new run inactive."""
    metrics.start(AGAIN)
    metrics.end(RUN)
    still = metrics.values("active")
    metrics.end(AGAIN)

    assert ([1], [0]) == (still, metrics.values("active"))


@given(PLACES, PLACES)
def test_lag_of_any_two_offsets_equals_a_plain_count(end, latest):
    """Lag equals a plain count of ordinals; a log in only one of the offsets is not counted."""
    raw = progress(
        end={f"127.0.0.1:4150/{log}": place(at) for log, at in end.items()},
        latest={f"127.0.0.1:4150/{log}": place(at) for log, at in latest.items()},
    )
    plain = sum(max(latest[log] - end[log], 0) for log in end if log in latest)

    assert (plain, len(end.keys() - latest.keys())) == lag(raw)


@pytest.mark.parametrize("latest", [None, "17", 17, []])
def test_a_log_that_is_gone_or_unknown_adds_no_lag(latest):
    """A log marked as gone is neither lag nor out of reach; lag of other sources is unknown."""
    assert (400, 0) == lag(progress(end={FIRST: place(500), SECOND: place(300, gone=True)}))
    raw = progress()
    raw["sources"][0]["latestOffset"] = latest
    assert (None, 0) == lag(raw)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        ({"sparq_read": {NEWEST_PUBLISHED: NOON_S - 3.25}, "theirs": {"n": 4}}, 2 + 3.25),
        ({"a": {NEWEST_PUBLISHED: NOON_S - 9}, "b": {NEWEST_PUBLISHED: NOON_S - 1}}, 2 + 1),
        ({"sparq_read": {NEWEST_PUBLISHED: NOON_S + 60}}, 0),  # a publisher's clock is ahead
        ({"sparq_read": {NEWEST_PUBLISHED: None}}, None),  # a batch without messages
        ({}, None),
    ],
)
def test_lag_in_time_is_the_age_of_the_newest_message_read(metrics, observed, expected):
    """Lag in seconds: the batch's end minus the newest publish time of all observations."""
    metrics.progressed(progress(observedMetrics=observed))

    assert [expected] == metrics.values("lag_seconds")


def test_the_server_answers_prometheus(metrics):
    """The HTTP server has the queries' metrics; there is none without an address."""
    with urllib.request.urlopen(serve(metrics.registry, "127.0.0.1:0")) as answer:
        text = answer.read().decode()

    assert 1 == samples_of(text)["sparq_query_active",]
    assert serve(CollectorRegistry(), "") is None


def test_an_address_in_use_is_an_error():
    """An address in use is an error with the option and the system's reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Mistake) as caught:
            serve(CollectorRegistry(), address)

    said = f"--metrics-address: cannot listen on {address}: Address already in use"
    assert said == str(caught.value)


# In a real session

WAIT_SECONDS = 150
# An idle query reports after 300 ms, not after 10 s.
IDLE = "spark.sql.streaming.noDataProgressEventInterval"


class RecordingMetrics(QueryMetrics):
    """The metrics; `reported` has all progress that Spark has reported."""

    def __init__(self, registry):
        super().__init__(registry)
        self.reported = []

    def onQueryProgress(self, event):
        super().onQueryProgress(event)
        self.reported.append(json.loads(event.json())["progress"])


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory):
    """One nsqd for all tests; each test has its own topic."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as running:
        yield running


@pytest.fixture
def listener(spark):
    """A listener in the session, with a server for its metrics."""
    before = spark.conf.get(IDLE)
    spark.conf.set(IDLE, "300")
    registry = CollectorRegistry()
    made = RecordingMetrics(registry)
    made.url = serve(registry, "127.0.0.1:0")
    made.listen_to(spark)
    yield made
    spark.streams.removeListener(made)
    spark.conf.set(IDLE, before)


def value(listener, name, *labels):
    """One metric as Prometheus scrapes it; None if it is absent."""
    with urllib.request.urlopen(listener.url) as answer:
        return samples_of(answer.read().decode()).get((f"sparq_query_{name}", *labels))


def messages(spark, nsqd, topic, limit=300):
    """A topic as a stream, at most `limit` messages per batch."""
    options = {
        "topic": topic,
        "channel": "c",
        "queryName": topic,
        "nsqd_tcp_addresses": nsqd.tcp,
        "maxOffsetsPerTrigger": str(limit),
    }
    return channels.channel(spark, options, iter, MESSAGE_DDL)


def start(writer, folder, name):
    """Start a query with its own checkpoint."""
    named = writer.queryName(name).option("checkpointLocation", str(folder / name))
    return named.trigger(processingTime="0 seconds").start()


def test_state_and_observed_counts_are_reported(spark, nsqd, listener, tmp_path):
    """The rows and bytes of RocksDB are reported, and the sums that a query observes."""
    publish_batches(nsqd, "counting", numbered(0, 500))
    counted = messages(spark, nsqd, "counting", 1_000).groupBy(F.length("body").alias("n")).count()
    rows = counted.observe(
        "sparq_written", F.sum("count").alias("late"), F.sum(F.lit(1)).alias("evicted_visits")
    )
    kept = []

    def write(frame, batch_id):
        held = frame.persist()
        kept.append((held.count(), held.count()))
        held.unpersist()

    query = start(rows.writeStream.outputMode("update").foreachBatch(write), tmp_path, "counting")
    wait_for(lambda: value(listener, "late_total") == 500, WAIT_SECONDS)
    query.stop()

    assert (3, 3) == kept[0]
    assert 3 == value(listener, "evicted_visits_total")
    assert 3 == value(listener, "state_rows", "stateStoreSave", "0")
    assert value(listener, "state_memory_bytes", "stateStoreSave", "0") > 0
    assert value(listener, "state_disk_bytes", "stateStoreSave", "0") >= 0
    assert STATE.keys() <= listener.reported[0]["stateOperators"][0].keys()
