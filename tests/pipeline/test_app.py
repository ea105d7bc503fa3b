"""How the application starts its queries, and ends when it gets a signal."""

import signal
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.errors import StreamingQueryException

from sparq.options.mistakes import Mistake
from sparq.pipeline import app, channels
from sparq.pipeline.folders import lock
from sparq.pipeline.session import SHUFFLE_PARTITIONS
from sparq.pipeline.settings import SettingsError
from tests.pipeline.query_input import counted_to_the_end
from tests.pipeline.settings_examples import settings_with

FILES = LocalFileSystem()
NEEDED = (app, "session"), (app, "prepare_for_queries"), (channels, "check_cluster")


class Query:
    """A replacement for Spark's query, which has ended with an error."""

    isActive = False

    def __init__(self, error):
        self.error = error

    def exception(self):
        return self.error

    def awaitTermination(self):
        raise self.error


class Application(app.Application):
    """An application with one query, each start of which ends with an error."""

    def __init__(self, error):
        server = SimpleNamespace(thread=SimpleNamespace(is_alive=lambda: True))
        context = SimpleNamespace(_gateway=SimpleNamespace(_callback_server=server))
        self.spark = SimpleNamespace(sparkContext=context)
        self.error = error
        self.begun = []
        self.queries = {"archive": app.PipelineQuery(None, None)}
        self.queries["archive"].run = Query(error)

    def _begin(self, name):
        self.begun.append(name)
        self.queries[name].run = Query(self.error)


def test_a_query_with_a_late_worker_is_restarted():
    """A query whose Python worker connects too late is restarted; at last Spark's error is raised.

    A worker has ten seconds, which a busy machine may exceed.
    """
    application = Application(StreamingQueryException("Python worker failed to connect back."))
    for _ in range(app.LATE_MAX):
        application._watch()
    with pytest.raises(StreamingQueryException, match="connect back"):
        application._watch()

    assert app.LATE_MAX * ["archive"] == application.begun


def test_a_late_query_waits_for_others_that_are_starting():
    """A late query is restarted only when no other is starting: workers load one after another."""
    application = Application(StreamingQueryException("Python worker failed to connect back."))
    other = SimpleNamespace(isActive=True, status={"message": "Initializing sources"})
    application.queries["metrics"] = app.PipelineQuery(None, None)
    application.queries["metrics"].run = other
    application._watch()
    assert not application.begun
    other.status = {"message": "Waiting for data to arrive"}
    application._watch()

    assert ["archive"] == application.begun


def test_an_error_of_sparq_ends_the_application_in_one_sentence():
    """An error of sparq's own is shown without Spark's traceback, and without a restart."""
    error = "Traceback:\n  line 1\nsparq.spark.errors.TopicError: there is no topic x\n  at java"
    application = Application(StreamingQueryException(error))
    with pytest.raises(Mistake) as caught:
        application._watch()

    expected = "query archive failed: sparq.spark.errors.TopicError: there is no topic x"
    assert expected == str(caught.value)
    assert not application.begun


def test_tables_without_their_checkpoint_are_not_written_again(tmp_path, monkeypatch):
    """A start whose checkpoint is gone would add all clicks again: it is refused in a sentence."""
    settings = settings_with(data=str(tmp_path))
    pipeline = app.Application(None, settings, None, None)
    monkeypatch.setattr(pipeline, "_files", lambda: SubTreeFileSystem(str(tmp_path), FILES))
    monkeypatch.setattr(app, "files_of", lambda delta: delta)
    full, empty = (SimpleNamespace(opened={"a": SimpleNamespace(delta=one)}) for one in ("x", ""))
    pipeline._check_position("archive", empty)
    with pytest.raises(SettingsError, match="but not its checkpoint"):
        pipeline._check_position("archive", full)
    for place in ("archive", "files/archive"):
        offsets = tmp_path / "checkpoint" / place / "offsets"
        offsets.mkdir(parents=True)
        (offsets / "0").touch()
        pipeline._check_position("archive", full)
        (offsets / "0").unlink()


def test_a_query_runs_once_in_a_folder(tmp_path, monkeypatch):
    """A second pipeline is refused, if it has a query of the first one."""
    for owner, needed in NEEDED:
        monkeypatch.setattr(owner, needed, MagicMock())
    settings = settings_with(data=str(tmp_path), metrics_address="")
    with (
        lock(tmp_path, ".metrics.lock"),
        pytest.raises(Mistake, match="another pipeline is running with this folder"),
    ):
        app.run(settings)


@pytest.fixture
def partitions(spark):
    """A function that sets the session's shuffle partitions for one test."""
    before = spark.conf.get(SHUFFLE_PARTITIONS)
    yield lambda count: spark.conf.set(SHUFFLE_PARTITIONS, str(count))
    spark.conf.set(SHUFFLE_PARTITIONS, before)


def test_a_query_keeps_the_partitions_of_its_first_start(spark, partitions, tmp_path):
    """Spark keeps the shuffle partitions of the first start; they are read from the checkpoint."""
    pipeline = app.Application(spark, settings_with(data=str(tmp_path)), None, None)
    rows, checkpoint = spark.readStream.format("rate").load(), tmp_path / "checkpoint" / "metrics"
    for count in (3, 5):
        partitions(count)
        assert pipeline._partitions("metrics") == 3
        counted_to_the_end(rows, checkpoint)

    logs = (f"checkpoint/metrics/{log}" for log in ("offsets", "commits"))
    assert 1 == len({pipeline._newest(log) for log in logs})


@pytest.fixture
def signal_handlers():
    """The application's signal handlers are removed after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# The failure to expect is a deadlock: the handler waits for a lock that the main thread holds.
@pytest.mark.timeout(30)
@pytest.mark.usefixtures("signal_handlers")
def test_a_signal_ends_the_application_wherever_it_comes(monkeypatch, tmp_path):
    """A signal ends the application, whatever its main thread has just called."""
    left = 0

    class Application(app.Application):
        def start(self):
            sys.setprofile(self._count)

        def _count(self, *_):
            nonlocal left
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGTERM)

        def _watch(self):
            pass

    monkeypatch.setattr(app, "Application", Application)
    monkeypatch.setattr(app, "POLL_SECONDS", 0)
    for owner, needed in NEEDED:
        monkeypatch.setattr(owner, needed, MagicMock())
    settings = settings_with(data=str(tmp_path), queries=("metrics",), metrics_address="")
    before = sys.getprofile()
    try:
        for calls in range(1, 60):
            left = calls
            assert 0 == app.run(settings)
            sys.setprofile(before)
    finally:
        sys.setprofile(before)
