"""A topic that nothing else uses, where several tests share an nsqd.

A test that failed can run again while its nsqd lives on. With a topic named after the test alone
the second run also found what the first one had published, and failed whatever the first had
failed from.
"""

import itertools

import pytest

LENGTH_MAX = 40

_runs = itertools.count(1)


def own_topic(request: pytest.FixtureRequest) -> str:
    """A topic named after the test, new in each run of it."""
    name = request.node.name.removeprefix("test_")
    letters = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    return f"{letters[:LENGTH_MAX]}_{next(_runs)}"
