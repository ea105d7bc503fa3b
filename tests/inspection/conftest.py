"""The topic that most tests of looking share."""

from __future__ import annotations

import pytest

from tests.broker.house import House
from tests.inspection.stored import house_with


@pytest.fixture(scope="module")
def house() -> House:
    """200 messages of 6 KB, one a second, in several files of several extents."""
    return house_with(200, 6000, every=1.0)
