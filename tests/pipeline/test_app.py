"""How the application starts its queries."""

from itertools import chain, repeat

import pytest

from sparq.pipeline import app


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
