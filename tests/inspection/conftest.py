"""The topic that most tests of inspection share."""

from __future__ import annotations

import pytest

from tests.broker.house import House
from tests.inspection.stored import house_with


@pytest.fixture(scope="module")
def house() -> House:
    """200 messages of 6 KB, one per second, in several segments of several extents."""
    return house_with(200, 6000, every=1.0)
