"""The disk, the clock, and an empty log or ledger, which most tests of the log begin with."""

import pytest

from sparq.log.ledger import Ledger
from sparq.log.log import Log
from sparq.testing import ManualClock, MemoryDisk
from tests.log import ledgers
from tests.log.log_operations import open_log


@pytest.fixture
def disk() -> MemoryDisk:
    """An empty disk."""
    return MemoryDisk()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that only the test moves."""
    return ManualClock()


@pytest.fixture
def log(disk: MemoryDisk, clock: ManualClock) -> Log:
    """An empty log."""
    return open_log(disk, clock)


@pytest.fixture
def ledger(disk: MemoryDisk) -> Ledger:
    """An empty ledger."""
    return Ledger.open(disk, ledgers.DIRECTORY)[0]
