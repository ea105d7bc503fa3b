"""What an operator is told of a disk that refuses something."""

from __future__ import annotations

import errno

from sparq.broker.health import Health
from sparq.log.disk import DiskError


def test_a_failure_that_lasts_is_noted_once() -> None:
    """Health tells the reason; an operator is not told the same thing each turn."""
    health = Health()
    full = DiskError("write", "/x", errno.ENOSPC)
    health.fail("first", full)
    health.fail("second", full)

    assert (health.failure, health.notes) == ("no space left on device", ["first"])
    assert health.text(None) == "NOK - no space left on device"
    health.recover()
    assert (health.text(None), health.is_full) == ("OK", False)
