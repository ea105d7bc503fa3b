"""The broker that most tests of this directory use."""

import pytest

from tests.broker.house import House


@pytest.fixture
def house() -> House:
    """A broker with an empty data path."""
    return House()
