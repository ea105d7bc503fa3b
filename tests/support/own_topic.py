"""A topic name that no other test uses, for tests that share an nsqd.

A failed test may be run again with the same nsqd. If its topic were named after the test alone, the
second run would receive the first one's messages, and fail because of them.
"""

import itertools

import pytest

LENGTH_MAX = 40

_runs = itertools.count(1)


def own_topic(request: pytest.FixtureRequest) -> str:
    """Return a topic named after the test, different in each run of it."""
    name = request.node.name.removeprefix("test_")
    letters = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    return f"{letters[:LENGTH_MAX]}_{next(_runs)}"
