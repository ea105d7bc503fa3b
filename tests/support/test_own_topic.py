"""What `own_topic` promises to tests that share an nsqd."""

import pytest

from sparq.protocol.names import is_valid_name
from tests.support.own_topic import own_topic


@pytest.mark.parametrize("name", ["short", "ä b/c " * 30], ids=["short", "long and odd"])
def test_each_run_has_a_topic_of_its_own(request, name):
    """A second run, as `pytest-rerunfailures` makes one, finds nothing of the first."""
    first, second = own_topic(request), own_topic(request)
    assert first != second
    assert is_valid_name(first + ".more#ephemeral")
