"""The broker that most tests of this directory use."""

import pytest

from tests.broker.harness import BrokerHarness


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with an empty data path."""
    return BrokerHarness()
