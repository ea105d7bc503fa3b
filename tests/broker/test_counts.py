"""Counts of deliveries by location, and the reports of losses."""

from __future__ import annotations

import pytest

from sparq.broker.counts import REPORT_NS, ChannelCounts, Losses
from sparq.broker.session import Proximity


@pytest.mark.parametrize(
    ("nearness", "expected"),
    [
        (Proximity.ZONE, (7, 0, 0)),
        (Proximity.REGION, (0, 7, 0)),
        (Proximity.OTHER, (0, 0, 7)),
        (None, (0, 0, 7)),
    ],
)
def test_a_delivery_counts_once(nearness: Proximity | None, expected: tuple[int, ...]) -> None:
    """A delivery is local to the zone or to the region, or global."""
    counts = ChannelCounts()
    counts.delivered(3, nearness)
    counts.delivered(4, nearness)
    found = (counts.zone_local_msg_count, counts.region_local_msg_count, counts.global_msg_count)
    assert expected == found


def test_a_loss_is_reported_once() -> None:
    """A report has what was lost since the previous one; there is at most one per minute."""
    losses = Losses()
    assert (0, 0) == losses.unreported((0, 0), 0)
    assert (2, 1) == losses.unreported((2, 1), 10)
    assert (0, 0) == losses.unreported((5, 1), 10 + REPORT_NS - 1)
    assert (3, 3) == losses.unreported((5, 4), 10 + REPORT_NS)
    assert (0, 0) == losses.unreported((5, 4), 10 + 2 * REPORT_NS)


def test_a_late_loss_is_reported_at_once() -> None:
    """Reports without losses delay no report."""
    losses = Losses()
    assert (0, 0) == losses.unreported((0, 0), REPORT_NS)
    assert (1, 0) == losses.unreported((1, 0), REPORT_NS + 1)


def test_the_counts_of_two_channels_are_apart() -> None:
    """A channel's report does not delay that of another channel."""
    first, second = ChannelCounts(voided_count=3), ChannelCounts(expired_count=4)
    assert (3, 0) == first.unreported_losses(5)
    assert (0, 4) == second.unreported_losses(5)
    assert (0, 0) == first.unreported_losses(2 * REPORT_NS)
