"""How the application starts its queries."""

from itertools import chain, repeat

import pytest

from sparq.pipeline import app


class Query:
    """A query of which Spark says one thing after the other."""

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


def test_a_source_that_has_come_up():
    """Whatever the query does then."""
    assert app.has_source(Query("Initializing sources", "Getting offsets from nsq"))
    assert app.has_source(Query("Initializing sources", "Waiting for data to arrive"))


def test_a_source_that_was_too_late_for_spark_is_started_again():
    """Any other error is one of the query, which ends the application."""
    late = Exception("Python worker failed to connect back.")
    other = Exception("--topic: there is no topic clicks")

    assert not app.has_source(Query("Initializing sources", error=late))
    assert app.has_source(Query("Initializing sources", error=other))
