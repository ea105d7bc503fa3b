"""The topic that most tests of inspection share."""

from __future__ import annotations

import pytest

from tests.broker.harness import BrokerHarness
from tests.inspection.stored import harness_with_messages


@pytest.fixture(scope="module")
def harness() -> BrokerHarness:
    """200 messages of 6 KB, one per second, in several segments of several extents."""
    return harness_with_messages(200, 6000, every=1.0)
