"""client.errors: one tree of public errors, with what is known about the outcome."""

import re

import sparq.client
from sparq.client import errors
from sparq.client.errors import ConnectionLostError, PublishError, SparqClientError


def test_the_documented_errors_are_all_errors() -> None:
    """The module's docstring lists every error; each is a public `SparqClientError`."""
    documented = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))

    assert documented | {"SparqClientError"} == set(errors.__all__)
    assert {error.__name__ for error in SparqClientError.__subclasses__()} >= documented
    for name in documented:
        assert issubclass(getattr(errors, name), SparqClientError)
        assert getattr(errors, name) is getattr(sparq.client, name)


def test_an_error_states_whether_the_request_may_have_been_executed() -> None:
    """``executed`` is None by default, i.e. unknown; PublishError counts the unanswered sends."""
    assert ConnectionLostError("gone").executed is None
    assert ConnectionLostError("gone", executed=False).executed is False
    error = PublishError("too late", attempts=3, unanswered=2)
    assert ("too late", 3, 2) == (str(error), error.attempts, error.unanswered)
