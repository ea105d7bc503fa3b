"""How the application starts its queries, and ends when it gets a signal."""

import signal
import sys
from itertools import chain, repeat

import pytest

from sparq.pipeline import app
from tests.pipeline.settings_examples import settings_with


class Query:
    """A replacement for Spark's query; its status has these messages, one after another."""

    lastProgress = None

    def __init__(self, *messages, error=None):
        self.messages = chain(messages, repeat(messages[-1]) if error is None else ())
        self.error = error
        self.status = {"message": ""}

    @property
    def isActive(self):
        self.status = {"message": next(self.messages, None)}
        return self.status["message"] is not None

    def exception(self):
        return self.error


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(app, "POLL_SECONDS", 0)


def test_a_query_whose_source_has_started_is_not_late():
    """A query whose source has started is not late, whatever it does next."""
    for message in ("Getting offsets from nsq", "Waiting for data to arrive"):
        query = Query("Initializing sources", message)
        app.wait_for_source(query)
        assert not app.was_late(query)


def test_only_a_worker_that_connects_too_late_makes_a_query_late():
    """Only the error of a Python worker that connected too late counts as late.

    Other errors are the query's own, and end the application.
    """
    late = Query("Initializing sources", error=Exception("Python worker failed to connect back."))
    other = Query("Initializing sources", error=Exception("--topic: there is no topic clicks"))
    for query in (late, other):
        app.wait_for_source(query)

    assert app.was_late(late)
    assert not app.was_late(other)


def test_a_query_with_a_late_source_is_restarted_three_times():
    """A query whose source is late is restarted three times; then Spark's error is raised."""
    late = Exception("Python worker failed to connect back.")
    begun = []

    class Application(app.Application):
        def __init__(self):
            self._counters = {"archive": app.Counter(Query("Initializing sources", error=late))}

        def _begin(self, name):
            begun.append(name)
            self._counters[name].query = Query("Initializing sources", error=late)

    application = Application()
    application._wait_for_sources()

    assert 3 * ["archive"] == begun
    assert not application._begin_again("archive")


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
def test_a_signal_ends_the_application_wherever_it_comes(monkeypatch):
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
    for needed in ("HadoopFiles", "session", "prepare_for_queries", "check_cluster"):
        monkeypatch.setattr(app, needed, lambda *_: None)
    settings = settings_with(queries=("metrics",), metrics_address="")
    before = sys.getprofile()
    try:
        for calls in range(1, 60):
            left = calls
            assert 0 == app.run(settings)
            sys.setprofile(before)
    finally:
        sys.setprofile(before)
