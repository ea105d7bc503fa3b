"""client.errors: one tree of public errors, with what is known about the outcome."""

from sparq.client.errors import ConnectionLostError, PublishError


def test_an_error_states_whether_the_request_may_have_been_executed() -> None:
    """``executed`` is None by default, i.e. unknown; PublishError counts the unanswered sends."""
    assert ConnectionLostError("gone").executed is None
    assert ConnectionLostError("gone", executed=False).executed is False
    error = PublishError("too late", attempts=3, unanswered=2)
    assert ("too late", 3, 2) == (str(error), error.attempts, error.unanswered)
