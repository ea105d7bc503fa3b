"""Topics of tests that share an nsqd differ."""

import pytest

from sparq.protocol.names import is_valid_name
from tests.support.own_topic import own_topic


@pytest.mark.parametrize("name", ["short", "ä b/c " * 30], ids=["short", "long and odd"])
def test_each_run_has_its_own_topic(request, name):
    """A second run of a test, as by `pytest-rerunfailures`, gets another valid topic name."""
    first, second = own_topic(request), own_topic(request)
    assert first != second
    assert is_valid_name(first + ".more#ephemeral")
