"""The queries' metrics for Prometheus, from Spark's progress to the scraped text."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparq.pipeline.monitor.metrics import QueryMetrics, served
from sparq.pipeline.monitor.progress import NEWEST_PUBLISHED
from sparq.program.mistakes import Mistake
from tests.pipeline.monitor.spark_progress import FIRST, QUERY_ID, STATE, place, progress

NOON_S = 1_795_348_800.0
RUN, AGAIN = "run-1", "run-2"


class Metrics(QueryMetrics):
    """The metrics of one query, in a registry of their own, with events in short."""

    def __init__(self):
        self.registry = CollectorRegistry()
        super().__init__(self.registry)

    def start(self, run):
        self.started({"id": QUERY_ID, "runId": run, "name": "metrics", "timestamp": NOON})

    def end(self, run, exception=None):
        self.ended({"id": QUERY_ID, "runId": run, "exception": exception})

    def rest(self):
        self.rested({"id": QUERY_ID, "timestamp": "2026-11-22T12:00:30.000Z"})


NOON = "2026-11-22T12:00:00.000Z"


def scraped(metrics):
    """Every sample of the text that Prometheus reads, by name and labels."""
    return samples_of(generate_latest(metrics.registry).decode())


def samples_of(text):
    """The samples of a text by name and labels, without the label `query`."""
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "query")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def started():
    """The metrics of a query that has started and has had no batch."""
    metrics = Metrics()
    metrics.start(RUN)
    return metrics


def value(metrics, name, *labels):
    """One sample of the query; None if it is absent."""
    return scraped(metrics).get((f"sparq_query_{name}", *labels))


def test_a_batch_sets_all_figures():
    """A batch gives rate, lag, duration, parts, state and counts."""
    metrics = started()
    observed = {"r": {NEWEST_PUBLISHED: NOON_S - 1, "late": 5}}
    metrics.progressed(progress(observedMetrics=observed, stateOperators=[STATE]))
    found = scraped(metrics)

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
        ("batch_duration_seconds_sum",): 2,
        ("batch_duration_seconds_count",): 1,
        ("batch_duration_seconds_bucket", "1.0"): 0,
        ("batch_duration_seconds_bucket", "2.0"): 1,
        ("batch_duration_seconds_bucket", "+Inf"): 1,
        ("batch_part_seconds_total", "addBatch"): 1.5,
        ("state_rows", "transformWithStateInPandasExec", "0"): 48,
        ("state_memory_bytes", "transformWithStateInPandasExec", "0"): 1_000_000,
        ("state_disk_bytes", "transformWithStateInPandasExec", "0"): 4_000_000,
        ("rows_dropped_total",): 2,
    }
    shown = {key: found.get((f"sparq_query_{key[0]}", *key[1:])) for key in expected}
    assert expected == shown


def test_a_batch_is_counted_once():
    """A batch that is reported again, or late, changes no counter."""
    metrics = started()
    seen = [metrics.progressed(progress(batch)) is not None for batch in (3, 3, 2, 4)]

    assert [True, False, False, True] == seen
    assert 800 == value(metrics, "rows_total")
    assert 2 == value(metrics, "batches_total")


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        (None, {"lag_messages": 0, "lag_seconds": 0, "logs_out_of_reach": 0}),
        # While an nsqd is unreachable, the last known lag stays.
        ({FIRST: place(900)}, {"lag_messages": 400, "lag_seconds": 3, "logs_out_of_reach": 1}),
    ],
)
def test_an_idle_query_has_no_lag(latest, expected):
    """An idle query has a lag of 0 messages and 0 seconds, and a rate of 0."""
    metrics = started()
    observed = {"r": {NEWEST_PUBLISHED: NOON_S - 1}}
    metrics.progressed(progress(latest=latest, observedMetrics=observed))
    metrics.rest()

    always = {"rows_per_second": 0, "heard_timestamp_seconds": NOON_S + 30}
    assert {**expected, **always} == {name: value(metrics, name) for name in (*expected, *always)}


def test_a_query_has_no_lag_before_its_first_batch():
    """Before the first batch there is no sample of the lag: unknown is not 0."""
    found = scraped(started())

    assert ("sparq_query_lag_messages",) not in found
    assert NOON_S == found["sparq_query_heard_timestamp_seconds",]


@pytest.mark.parametrize(("first", "restarts"), [(0, 0), (7, 1)])
def test_a_start_from_a_checkpoint_counts_as_a_restart(first, restarts):
    """A first batch other than 0 counts as a restart: the checkpoint existed before."""
    metrics = started()
    metrics.progressed(progress(first))
    metrics.progressed(progress(first + 1))

    assert (1, restarts) == (value(metrics, "starts_total"), value(metrics, "restarts_total"))


def test_a_second_run_in_the_same_driver_counts_as_a_restart():
    """A second run in the same driver counts as one restart, whatever its first batch."""
    metrics = started()
    metrics.progressed(progress(0))
    metrics.end(RUN, "broken")
    metrics.start(AGAIN)
    metrics.progressed(progress(1))

    names = ("starts_total", "restarts_total", "failures_total", "active")
    assert [2, 1, 1, 1] == [value(metrics, name) for name in names]


def test_a_late_end_of_an_old_run_leaves_the_new_run_active():
    """The end of an old run, reported late, does not make the new run inactive."""
    metrics = started()
    metrics.start(AGAIN)
    metrics.end(RUN)
    still = value(metrics, "active")
    metrics.end(AGAIN)

    assert (1, 0) == (still, value(metrics, "active"))


def test_the_number_of_series_does_not_grow_with_batches():
    """A thousand batches have as many series as one."""
    metrics = started()
    metrics.progressed(progress(1, stateOperators=[STATE]))
    few = len(scraped(metrics))
    for batch in range(2, 1_000):
        metrics.progressed(progress(batch, stateOperators=[STATE]))

    assert few == len(scraped(metrics))


def test_totals_are_those_of_this_process():
    """The totals, which a supervisor shows, count each batch once."""
    metrics = started()
    for batch in (7, 7, 8):
        metrics.progressed(progress(batch))

    assert {"metrics": {"batches": 2, "rows": 800}} == metrics.totals()


def test_the_server_answers_prometheus():
    """The HTTP server has the queries' metrics, until it is closed."""
    with (
        served(started().registry, "127.0.0.1:0") as url,
        urllib.request.urlopen(url) as answer,
    ):
        text = answer.read().decode()

    assert 1 == samples_of(text)["sparq_query_active",]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


def test_without_an_address_nothing_is_served():
    """An empty address means no server."""
    with served(CollectorRegistry(), "") as url:
        assert url is None


def test_an_address_in_use_is_an_error():
    """An address in use is an error with the option and the system's reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Mistake) as caught, served(CollectorRegistry(), f"127.0.0.1:{port}"):
            pass

    assert f"--metrics-address: cannot listen on 127.0.0.1:{port}: Address already in use" == str(
        caught.value
    )
